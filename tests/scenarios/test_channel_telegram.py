"""A person writes to a bot in Telegram, which the gateway asks or is called by."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from tests.fakes.api import ApiCall, Json, Told
from tests.fakes.client import connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.chats import (
    LONG_S,
    CalledChat,
    Chat,
    is_answered_once_over_a_restart,
    is_heard_in_a_room_by_name_alone,
    is_told_what_came_with_a_message,
    keeps_a_room_from_a_direct_chat_of_the_same_id,
    loses_what_nobody_can_encode_and_nothing_else,
    opened,
    pairs_and_is_answered,
    reads_all_of_a_long_answer,
    script,
)

pytestmark = pytest.mark.shared_store

TOKEN, SECRET = "123456:token-of-a-bot", "secret_of_the-webhook"


@dataclass
class Telegram(Chat):
    """The Bot API: updates are kept until a higher offset is asked for."""

    updates: list[Json] = field(default_factory=list)
    made: int = 0

    @property
    def plugin(self) -> str:
        return f"""
[[plugins]]
name = "telegram"
path = "bundled:telegram"
capabilities = ["http:{self.api}"]
"""

    @property
    def toml(self) -> str:
        return f"""{self.plugin}
[channels.telegram]
plugin = "telegram"
config = {{ api_base = "{self.api}", username = "exo_bot" }}
secrets = {{ bot_token = "{TOKEN}" }}
{self.rules}
"""

    async def say(self, text: str, *, room: str = "", mention: bool = False) -> None:
        self.updates.append(self.update(text, room, mention=mention))
        self.changed()

    def update(self, text: str, room: str, *, mention: bool) -> Json:
        self.made += 1
        kind = "supergroup" if room else "private"
        return {
            "update_id": 10_000 + self.made,
            "message": {
                "message_id": self.made,
                "from": {"id": int(self.person), "is_bot": False, "first_name": "Ada"},
                "chat": {"id": int(room or self.direct), "type": kind},
                "date": 4_000_000_000,
                "text": f"@exo_bot {text}" if mention else text,
            }
            | self.attached,
        }

    async def answer(self, call: ApiCall) -> Told:
        method = call.path.removeprefix(f"/bot{TOKEN}/")
        match method:
            case "getUpdates":
                return await self._updates(int(call.query["offset"] or 0))
            case "sendMessage" if self.to_refuse:
                self.to_refuse -= 1
                wait = {"ok": False, "error_code": 429, "parameters": {"retry_after": 1}}
                return Told(wait, 429)
            case "sendMessage" | "editMessageText":
                room, edits = str(call.body["chat_id"]), str(call.body.get("message_id", ""))
                name = self.show(room, call.body["text"], edits)
                return Told({"ok": True, "result": {"message_id": int(name)}})
        return Told({"ok": True, "result": True})

    async def asked(self, times: int) -> None:
        """Until it was asked for updates so often."""
        while sum("getUpdates" in call.path for call in self.calls) < times:
            await self.news()

    async def _updates(self, offset: int) -> Told:
        self.updates = [one for one in self.updates if one["update_id"] >= offset]
        with anyio.move_on_after(5):
            while not self.updates:
                await self.news()
        return Told({"ok": True, "result": self.updates})


@dataclass
class CalledTelegram(Telegram, CalledChat):
    """It is told where the gateway is, and with what to prove itself."""

    webhook: str = ""

    @property
    def toml(self) -> str:
        return f"""{self.plugin}
[channels.telegram]
plugin = "telegram"
transport = "webhook"
secrets = {{ bot_token = "{TOKEN}", webhook_secret = "{SECRET}" }}
{self.rules}

[channels.telegram.config]
api_base = "{self.api}"
public_url = "https://gateway.example.com"
username = "exo_bot"
"""

    @property
    def address(self) -> str:
        return self.webhook.removeprefix("https://gateway.example.com/webhooks/")

    def signed(self, body: bytes) -> Mapping[str, str]:
        return {"x-telegram-bot-api-secret-token": SECRET}

    async def reach(self) -> None:
        while not self.webhook:
            await self.news()
        await super().reach()

    async def say(self, text: str, *, room: str = "", mention: bool = False) -> None:
        await self.call(self.update(text, room, mention=mention))

    async def answer(self, call: ApiCall) -> Told:
        if call.path == f"/bot{TOKEN}/setWebhook":
            assert call.query["secret_token"] == SECRET
            self.webhook = call.query["url"]
        return await super().answer(call)


@pytest.fixture(params=[Telegram, CalledTelegram])
async def chat(request: pytest.FixtureRequest) -> AsyncIterator[Telegram]:
    chat = request.param("1111", "1111", "-100222")
    async with chat.open():
        yield chat


async def test_a_stranger_is_paired_and_answered(chat: Telegram, tmp_path: Path) -> None:
    await pairs_and_is_answered(chat, tmp_path)


async def test_a_long_answer_comes_whole_in_parts(chat: Telegram, tmp_path: Path) -> None:
    parts = await reads_all_of_a_long_answer(chat, tmp_path, 200)

    assert len(parts) > 1


async def test_the_bot_is_meant_by_its_name(chat: Telegram, tmp_path: Path) -> None:
    await is_heard_in_a_room_by_name_alone(chat, tmp_path)


async def test_nothing_is_lost_or_doubled_over_a_restart(chat: Telegram, tmp_path: Path) -> None:
    await is_answered_once_over_a_restart(chat, tmp_path)


async def test_a_text_that_cannot_be_encoded_costs_no_other_message(
    chat: Telegram, tmp_path: Path
) -> None:
    await loses_what_nobody_can_encode_and_nothing_else(chat, tmp_path)


HALF = "\udc00"


def _bad(chat: Telegram) -> list[Json]:
    """One of each place where a person, or the platform, can put it."""
    command, name, caption, file, person = (
        chat.update("plain", "", mention=False) for _ in range(5)
    )
    command["message"]["text"] = f"/model {HALF}"
    name["message"]["from"]["first_name"] = f"Ada {HALF}"
    caption["message"] |= {"text": None, "caption": HALF, "photo": [{"file_id": "1"}]}
    file["message"] |= {"text": None, "document": {"file_name": f"{HALF}.pdf"}}
    person["message"]["from"]["id"] = f"1111{HALF}"
    return [command, name, caption, file, person]


async def test_a_batch_loses_those_messages_alone_that_cannot_be_encoded(tmp_path: Path) -> None:
    chat = Telegram("1111", "1111", "-100222", listed=True)
    first, *bad = chat.update("first", "", mention=False), *_bad(chat)
    last = chat.update("last", "", mention=False)
    async with chat.open():
        chat.updates = [first, *bad, last]
        async with scripted_server(script) as model, opened(chat, model, tmp_path):
            with anyio.fail_after(LONG_S):
                await chat.sees("answer to first")
                await chat.sees("answer to last")
            async with connected(chat.gateway) as client:
                page = await client.call("channel.dead_letters")
                (unsure,) = [one for one in page["unread"] if one["id"][:3] == "sha"]
                refused = await client.refused("channel.resubmit", id=unsure["id"])
                unknown = await client.refused("channel.resubmit", id="sha256:0")
                await client.call("channel.drop", id=unsure["id"])
                left = await client.call("channel.dead_letters")

    assert len(model.requests) == 2
    assert page["counts"]["incoming"] == len(bad) == 5
    assert all("half of a surrogate pair" in one["why"] for one in page["unread"])
    assert "in an id" in unsure["why"]
    assert "drop it" in str(refused)
    assert unknown.data["type"] == "not_found"
    assert left["counts"]["incoming"] == 4


async def test_a_room_never_sees_the_direct_chat_that_has_its_id(tmp_path: Path) -> None:
    chat = Telegram("1111", "1111", "1111")
    async with chat.open():
        await keeps_a_room_from_a_direct_chat_of_the_same_id(chat, tmp_path)


async def test_the_model_is_told_of_a_file_that_it_cannot_see(
    chat: Telegram, tmp_path: Path
) -> None:
    chat.attached = {
        "text": None,
        "photo": [{"file_size": 900}, {"file_size": 120_400}],
        "caption": "look",
    }

    asked = await is_told_what_came_with_a_message(chat, tmp_path, "")

    told = "[With this message came a file that you cannot see yet: photo (120 KB).]"
    assert asked == [f"look\n\n{told}"]


async def test_what_is_too_much_at_once_is_asked_for_again_until_there_is_room(
    tmp_path: Path,
) -> None:
    gate = anyio.Event()
    chat = Telegram("1111", "1111", "-100222", listed=True)
    said = [f"{number}" for number in range(3)]

    def slow(asked: Asked) -> Reply:
        return Reply(f"answer to {asked.last_text}", gate=gate)

    queue = "[queue]\nmax_pending_per_principal = 1"
    async with (
        chat.open(),
        scripted_server(slow) as model,
        running(Setup(model.url, rest=f"{chat.toml}\n{queue}"), tmp_path),
    ):
        with anyio.fail_after(LONG_S):
            for text in said:
                await chat.say(text)
            await model.wait_for(1)
            await chat.asked(3)  # the first is at work, and the others are asked for again
            asked_first = [asked.last_text for asked in model.requests]
            gate.set()
            await chat.sees(f"answer to {said[-1]}")

    assert asked_first == said[:1]
    assert chat.texts() == [f"answer to {text}" for text in said]
