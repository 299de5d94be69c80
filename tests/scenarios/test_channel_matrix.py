"""A person writes to a bot in Matrix, of which the homeserver tells the gateway."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from tests.fakes.api import ApiCall, Json, Told
from tests.fakes.client import connected
from tests.fakes.model_server import scripted_server
from tests.scenarios.chats import (
    LONG_S,
    CalledChat,
    is_answered_once_over_a_restart,
    is_heard_in_a_room_by_name_alone,
    is_told_what_came_with_a_message,
    loses_what_nobody_can_encode_and_nothing_else,
    opened,
    pairs_and_is_answered,
    reads_all_of_a_long_answer,
    script,
)

pytestmark = pytest.mark.shared_store(only_long=True)

AS_TOKEN, HS_TOKEN, BOT = "token-of-the-gateway", "token-of-the-homeserver", "@exogate:example.org"


@dataclass
class Matrix(CalledChat):
    """Its first message in the direct chat is an invitation, as clients send it."""

    made: int = 0
    joined: set[str] = field(default_factory=set)
    invited: bool = False
    policy: str = "pairing"

    @property
    def toml(self) -> str:
        return f"""
[[plugins]]
name = "matrix"
path = "bundled:matrix"
capabilities = ["http:{self.api}"]

[channels.matrix]
plugin = "matrix"
config = {{ user_id = "{BOT}", api_base = "{self.api}" }}
dm_policy = "{self.policy}"
{self.rules}

[channels.matrix.secrets]
as_token = "{AS_TOKEN}"
hs_token = "{HS_TOKEN}"
"""

    @property
    def method(self) -> str:
        return "PUT"

    @property
    def address(self) -> str:
        return f"matrix/_matrix/app/v1/transactions/{self.made}"

    def signed(self, body: bytes) -> Mapping[str, str]:
        return {"authorization": f"Bearer {HS_TOKEN}"}

    async def say(self, text: str, *, room: str = "", mention: bool = False) -> None:
        if not room and not self.invited:
            await self._invite()
        content = {"msgtype": "m.text", "body": f"exogate: {text}" if mention else text}
        names = {"m.mentions": {"user_ids": [BOT]}} if mention else {}
        await self._event(room or self.direct, "m.room.message", content | names | self.attached)

    async def _invite(self) -> None:
        self.invited = True
        content = {"membership": "invite", "is_direct": True}
        await self._event(self.direct, "m.room.member", content, state_key=BOT)
        if self.listed or self.policy == "open":
            while self.direct not in self.joined:
                await self.news()

    async def _event(self, room: str, kind: str, content: Json, **more: str) -> None:
        await self.call({"events": [self._made(room, kind, content, sender=self.person, **more)]})

    def _made(self, room: str, kind: str, content: Json, **more: str) -> Json:
        self.made += 1
        place = {"event_id": f"$e{self.made}", "room_id": room, "type": kind, **more}
        return {"origin_server_ts": 4_000_000_000_000, "content": content, **place}

    async def answer(self, call: ApiCall) -> Told:
        assert call.headers["authorization"] == f"Bearer {AS_TOKEN}"
        assert call.query["user_id"] == BOT
        _, _, _, _, what, *rest = call.path.split("/")
        if what == "join":
            self._join(*rest)
            return Told({"room_id": rest[0]})
        if rest[1] == "typing":
            return Told({})
        if self.to_refuse:
            self.to_refuse -= 1
            return Told({"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 500}, 429)
        return Told({"event_id": self._placed(rest[0], call.body)})

    def _join(self, room: str) -> None:
        """The bot is told of it before of whatever is said then."""
        if room not in self.joined:
            content = {"membership": "join"}
            event = self._made(room, "m.room.member", content, sender=BOT, state_key=BOT)
            self.waiting.append({"events": [event]})
        self.joined.add(room)

    def _placed(self, room: str, content: Json) -> str:
        assert room in self.joined or room == self.group
        assert content["m.mentions"] == {}
        relation = content.get("m.relates_to", {})
        edits = relation["event_id"] if relation.get("rel_type") == "m.replace" else ""
        return self.show(room, content.get("m.new_content", content)["body"], edits)


@pytest.fixture
async def chat() -> AsyncIterator[Matrix]:
    chat = Matrix("@ada:example.org", "!direct:example.org", "!room:example.org")
    async with chat.open():
        yield chat


async def test_a_stranger_is_paired_and_answered(chat: Matrix, tmp_path: Path) -> None:
    await pairs_and_is_answered(chat, tmp_path)


async def test_a_long_answer_comes_whole_in_parts(chat: Matrix, tmp_path: Path) -> None:
    parts = await reads_all_of_a_long_answer(chat, tmp_path, 400)

    assert len(parts) > 1


async def test_the_bot_is_meant_by_its_name(chat: Matrix, tmp_path: Path) -> None:
    await is_heard_in_a_room_by_name_alone(chat, tmp_path)


async def test_nothing_is_lost_or_doubled_over_a_restart(chat: Matrix, tmp_path: Path) -> None:
    await is_answered_once_over_a_restart(chat, tmp_path)


async def test_a_text_that_cannot_be_encoded_costs_no_other_message(
    chat: Matrix, tmp_path: Path
) -> None:
    await loses_what_nobody_can_encode_and_nothing_else(chat, tmp_path)


async def test_the_model_is_told_of_a_file_that_it_cannot_see(chat: Matrix, tmp_path: Path) -> None:
    chat.attached = {
        "msgtype": "m.image",
        "filename": "cat.png",
        "info": {"mimetype": "image/png", "size": 999},
    }

    asked = await is_told_what_came_with_a_message(chat, tmp_path, "look", "cat.png")

    told = (
        "[With this message came a file that you cannot see yet: cat.png (image/png, 999 bytes).]"
    )
    assert asked == [f"look\n\n{told}", told]


async def test_an_invitation_is_followed_without_a_turn(chat: Matrix, tmp_path: Path) -> None:
    chat.listed = True
    with anyio.fail_after(LONG_S):
        async with scripted_server(script) as model, opened(chat, model, tmp_path):
            await chat.say("hello")
            await chat.sees("answer to hello")

    assert [asked.last_text for asked in model.requests] == ["hello"]
    assert (chat.joined, chat.texts()) == ({chat.direct}, ["answer to hello"])


async def test_an_invitation_into_a_room_that_is_closed_is_not_followed(
    chat: Matrix, tmp_path: Path
) -> None:
    async with scripted_server(script) as model, opened(chat, model, tmp_path):
        with anyio.fail_after(LONG_S):
            for room in ("!closed:example.org", chat.group):
                invite = {"membership": "invite"}
                await chat._event(room, "m.room.member", invite, state_key=BOT)
            while chat.group not in chat.joined:
                await chat.news()

    assert (chat.joined, model.requests) == ({chat.group}, [])


@pytest.mark.parametrize("policy", ["open", "allowlist", "pairing"])
async def test_who_is_blocked_is_not_answered_until_they_are_unblocked(
    chat: Matrix, tmp_path: Path, policy: str
) -> None:
    """By an id with colons, whatever lets them talk."""
    chat.listed, chat.policy = policy != "open", policy
    who = {"channel": "matrix", "person": chat.person}
    with anyio.fail_after(LONG_S):
        async with scripted_server(script) as model, opened(chat, model, tmp_path):
            await chat.say("before")
            await chat.sees("answer to before")
            async with connected(chat.gateway) as client:
                await client.call("pair.block", **who)
                await chat.say("meanwhile")
                (listed,) = (await client.call("pair.list"))["pairings"]
                await client.call("pair.unblock", **who)
            await chat.say("after")
            await chat.sees("answer to after")

    assert (listed["person"], listed["state"]) == (chat.person, "denied")
    assert [asked.last_text for asked in model.requests] == ["before", "after"]
