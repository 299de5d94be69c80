"""A person writes to a bot in Discord, over its Gateway and by commands that Discord signs."""

import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from anyio import to_thread
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.host.clock import SystemClock
from tests.fakes.api import ApiCall, Told
from tests.fakes.client import connected
from tests.fakes.compiled import compiled_before
from tests.fakes.gateway import ROOT
from tests.fakes.model_server import scripted_server
from tests.fakes.platform_socket import FakeDiscord
from tests.scenarios.chats import (
    CalledChat,
    Chat,
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

BOT, APP = "token.of.a-bot", "1100000000000000002"
ME = "100"
GATEWAY = b"wss://gateway.discord.gg/?v=10&encoding=json"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@dataclass
class Discord(Chat):
    made: int = 0

    def number(self) -> str:
        """An id, which says when it was made."""
        self.made += 1
        return str(((4_000_000_000_000 - 1_420_070_400_000) << 22) + self.made)

    async def answer(self, call: ApiCall) -> Told:
        if call.path.endswith("/typing"):
            return Told(status=204)
        if self.to_refuse:
            self.to_refuse -= 1
            said = {"message": "You are being rate limited.", "retry_after": 0.3, "global": False}
            return Told(said, 429, {"retry-after": "1"})
        assert call.body["allowed_mentions"] == {"parse": []}
        return Told({"id": self.placed(call)})

    def placed(self, call: ApiCall) -> str:
        assert call.headers["authorization"] == f"Bot {BOT}"
        _, _, room, _, *edits = call.path.split("/")
        return self.show(room, call.body["content"], *edits)


@dataclass
class DialledDiscord(Discord):
    """Its adapter has the address of this Discord in it; in all else it is the one that ships."""

    socket: FakeDiscord = field(default_factory=FakeDiscord)
    folder: Path = Path()

    @property
    def toml(self) -> str:
        return f"""
[[plugins]]
name = "discord"
path = "{self.folder / "tool.wasm"}"
capabilities = ["http:{self.api}", "http:{self.line}", "host_function:clock"]

[channels.discord]
plugin = "discord"
transport = "socket"
config = {{ api_base = "{self.api}" }}
{self.rules}

[channels.discord.secrets]
bot_token = {{ value = "{BOT}", hosts = ["{self.api}", "{self.line}"] }}
"""

    @property
    def line(self) -> str:
        return self.socket.url.replace("ws", "http", 1)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self.socket.running() as url, super().open():
            address = f"{url}/?v=10&encoding=json".encode()
            await to_thread.run_sync(self._write_adapter, address)
            await compiled_before([self.folder / "tool.wasm"], self.folder.parent / "data")
            yield

    def _write_adapter(self, url: bytes) -> None:
        shipped = ROOT / "plugins" / "discord"
        guest = (shipped / "tool.wasm").read_bytes()
        assert guest.count(GATEWAY) == 1
        guest = guest.replace(GATEWAY, url + b"&" * (len(GATEWAY) - len(url)))
        self.folder.mkdir()
        digest = hashlib.sha256(guest).hexdigest()
        manifest = (shipped / "plugin.toml").read_text("utf-8")
        (self.folder / "tool.wasm").write_bytes(guest)
        (self.folder / "plugin.toml").write_text(
            re.sub('sha256 = ".*"', f'sha256 = "{digest}"', manifest), "utf-8"
        )

    async def reach(self) -> None:
        before = len(self.socket.closed)
        await self.socket.until(
            lambda: bool(self.socket.events) and len(self.socket.lines) > before
        )

    async def say(self, text: str, *, room: str = "", mention: bool = False) -> None:
        user = {"id": self.person, "username": "ada", "global_name": "Ada"}
        said = {
            "id": self.number(),
            "type": 0,
            "channel_id": room or self.direct,
            "author": user,
            "content": f"<@{ME}> {text}" if mention else text,
            "mentions": [{"id": ME}] if mention else [],
        } | self.attached
        if room:
            said["guild_id"] = "1100000000000000300"
        event = {"op": 0, "t": "MESSAGE_CREATE", "s": len(self.socket.events) + 1, "d": said}
        self.socket.events.append(event)
        if self.gateway:
            await self.socket.say(event)


@dataclass
class CalledDiscord(Discord, CalledChat):
    """What is no command of the gateway's is given as /ask."""

    @property
    def address(self) -> str:
        return "discord"

    rooms: dict[str, str] = field(default_factory=dict)  # by the token of a command

    @property
    def toml(self) -> str:
        return f"""
[[plugins]]
name = "discord"
path = "bundled:discord"
capabilities = ["http:{self.api}", "host_function:clock"]

[channels.discord]
plugin = "discord"
transport = "webhook"
config = {{ public_key = "{KEY.public_key().public_bytes_raw().hex()}", api_base = "{self.api}" }}
secrets = {{ bot_token = "{BOT}" }}
{self.rules}
"""

    def signed(self, body: bytes) -> Mapping[str, str]:
        at = str(int(SystemClock().now().timestamp()))
        proof = KEY.sign(at.encode() + body).hex()
        return {"x-signature-timestamp": at, "x-signature-ed25519": proof}

    async def say(self, text: str, *, room: str = "", mention: bool = False) -> None:
        if room and not mention:
            return  # Discord tells nobody of it
        number, user = self.number(), {"id": self.person, "username": "ada"}
        self.rooms[f"token{number}"] = room or self.direct
        told = [{"type": 3, "name": "text", "value": text}]
        is_own = text.startswith("/")
        await self.call(
            {
                "application_id": APP,
                "id": number,
                "type": 2,
                "token": f"token{number}",
                "channel_id": room or self.direct,
                "data": {"name": text[1:]} if is_own else {"name": "ask", "options": told},
            }
            | ({"guild_id": "3", "context": 0, "member": {"user": user}} if room else {})
            | ({} if room else {"context": 1, "user": user})
        )

    def placed(self, call: ApiCall) -> str:
        if call.path.startswith("/channels/"):
            return super().placed(call)
        _, _, app, token, *edits = call.path.split("/")
        assert (app, "authorization" in call.headers) == (APP, False)
        name = edits[1] if edits else ""
        return self.show(self.rooms[token], call.body["content"], name.replace("@", token))


@pytest.fixture(params=[CalledDiscord, DialledDiscord])
async def chat(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Discord]:
    chat = request.param("53908232506183680", "1100000000000000500", "1100000000000000600")
    if isinstance(chat, DialledDiscord):
        chat.folder = tmp_path / "adapter"
    async with chat.open():
        yield chat


async def test_a_stranger_is_paired_and_answered(chat: Discord, tmp_path: Path) -> None:
    await pairs_and_is_answered(chat, tmp_path)


async def test_a_long_answer_comes_whole_in_parts(chat: Discord, tmp_path: Path) -> None:
    parts = await reads_all_of_a_long_answer(chat, tmp_path, 120)

    assert len(parts) > 1


async def test_the_bot_is_meant_by_its_name(chat: Discord, tmp_path: Path) -> None:
    await is_heard_in_a_room_by_name_alone(chat, tmp_path)


async def test_nothing_is_lost_or_doubled_over_a_restart(chat: Discord, tmp_path: Path) -> None:
    await is_answered_once_over_a_restart(chat, tmp_path)


async def test_a_text_that_cannot_be_encoded_costs_no_other_message(
    chat: Discord, tmp_path: Path
) -> None:
    await loses_what_nobody_can_encode_and_nothing_else(chat, tmp_path)


@pytest.fixture
async def dialled(tmp_path: Path) -> AsyncIterator[DialledDiscord]:
    direct, group = "1100000000000000500", "1100000000000000600"
    chat = DialledDiscord("53908232506183680", direct, group, folder=tmp_path / "adapter")
    async with chat.open():
        yield chat


async def test_the_model_is_told_of_files_that_it_cannot_see(
    dialled: DialledDiscord, tmp_path: Path
) -> None:
    file = {"filename": "a.ogg", "content_type": "audio/ogg", "size": 5_000, "url": "https://x"}
    dialled.attached = {"attachments": [file], "sticker_items": [{"id": "1", "name": "wave"}]}

    asked = await is_told_what_came_with_a_message(dialled, tmp_path, "look", "")

    told = "came 2 files that you cannot see yet: a.ogg (audio/ogg, 5 KB); sticker wave.]"
    assert asked == [f"look\n\n[With this message {told}", f"[With this message {told}"]


@pytest.mark.embedded_store
@pytest.mark.parametrize(
    ("code", "todo"), [(4004, "set secrets.bot_token"), (4014, "switch Message Content Intent on")]
)
async def test_a_close_code_that_means_fix_your_settings_says_which(
    dialled: DialledDiscord, tmp_path: Path, code: int, todo: str
) -> None:
    """And nothing is dialled again."""
    async with (
        scripted_server(script) as model,
        opened(dialled, model, tmp_path),
        connected(dialled.gateway) as client,
    ):
        await client.call("events.subscribe", types=["channel.failing"])
        await dialled.socket.close(code)
        await client.until_told(len)
        (one,) = (await client.call("channel.list"))["channels"]
        problems = (await client.call("status"))["problems"]

    assert (one["state"], len(dialled.socket.lines)) == ("failing", 1)
    assert todo in one["why"]
    assert f"(code {code})" in one["why"]
    assert problems == [f"channel discord is failing: {one['why']}"]
