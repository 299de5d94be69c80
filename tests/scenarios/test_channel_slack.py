"""A person writes to an app in Slack, by calls that it signs and by Socket Mode."""

import hashlib
import hmac
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.host.clock import SystemClock
from tests.fakes.api import ApiCall, Json, Told
from tests.fakes.platform_socket import FakeSlack
from tests.scenarios.chats import (
    CalledChat,
    Chat,
    is_answered_once_over_a_restart,
    is_heard_in_a_room_by_name_alone,
    is_told_what_came_with_a_message,
    loses_what_nobody_can_encode_and_nothing_else,
    pairs_and_is_answered,
    reads_all_of_a_long_answer,
)

pytestmark = pytest.mark.shared_store(only_long=True)

BOT, SIGNING, APP = (
    "xoxb-token-of-a-bot",
    "8f742231b10e8888abcd99yyyzzz85a5",
    "xapp-token-of-an-app",
)
ME = "U0LAN0Z89"


@dataclass
class Slack(Chat):
    made: int = 0

    def event(self, text: str, room: str, *, mention: bool) -> Json:
        self.made += 1
        at = f"4000000000.{self.made:06}"
        event = {
            "type": "message",
            "channel": room or self.direct,
            "channel_type": "channel" if room else "im",
            "user": self.person,
            "text": f"<@{ME}> {text}" if mention else text,
            "ts": at,
        } | self.attached
        return {
            "type": "event_callback",
            "team_id": "T061EG9R6",
            "event_id": f"Ev{self.made}",
            "authorizations": [{"team_id": "T061EG9R6", "user_id": ME, "is_bot": True}],
            "event": event,
        }

    async def answer(self, call: ApiCall) -> Told:
        assert call.headers["authorization"] == f"Bearer {BOT}"
        if self.to_refuse:
            self.to_refuse -= 1
            return Told({"ok": False, "error": "ratelimited"}, 429, {"retry-after": "1"})
        name = self.show(call.body["channel"], call.body["text"], call.body.get("ts") or "")
        return Told({"ok": True, "channel": call.body["channel"], "ts": name})


@dataclass
class CalledSlack(Slack, CalledChat):
    @property
    def address(self) -> str:
        return "slack"

    @property
    def toml(self) -> str:
        return f"""
[[plugins]]
name = "slack"
path = "bundled:slack"
capabilities = ["http:{self.api}"]

[channels.slack]
plugin = "slack"
transport = "webhook"
config = {{ api_base = "{self.api}" }}
secrets = {{ bot_token = "{BOT}", signing_secret = "{SIGNING}" }}
{self.rules}
"""

    def signed(self, body: bytes) -> Mapping[str, str]:
        at = str(int(SystemClock().now().timestamp()))
        proof = hmac.digest(SIGNING.encode(), f"v0:{at}:".encode() + body, hashlib.sha256).hex()
        return {"x-slack-request-timestamp": at, "x-slack-signature": f"v0={proof}"}

    async def say(self, text: str, *, room: str = "", mention: bool = False) -> None:
        await self.call(self.event(text, room, mention=mention))


@dataclass
class DialledSlack(Slack):
    socket: FakeSlack = field(default_factory=FakeSlack)
    link: str = ""

    @property
    def toml(self) -> str:
        line = f"http{self.link.removeprefix('ws').partition('/link')[0]}"
        return f"""
[[plugins]]
name = "slack"
path = "bundled:slack"
capabilities = ["http:{self.api}", "http:{line}"]

[channels.slack]
plugin = "slack"
transport = "socket"
config = {{ api_base = "{self.api}" }}
{self.rules}

[channels.slack.secrets]
bot_token = {{ value = "{BOT}", hosts = ["{self.api}"] }}
app_token = {{ value = "{APP}", hosts = ["{self.api}"] }}
"""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self.socket.running() as self.link, super().open():
            yield

    async def reach(self) -> None:
        before = len(self.socket.closed)
        await self.socket.until(lambda: len(self.socket.lines) > before)

    async def say(self, text: str, *, room: str = "", mention: bool = False) -> None:
        call = self.event(text, room, mention=mention)
        await self.socket.event(call["event_id"], call["event"], call)

    async def answer(self, call: ApiCall) -> Told:
        if call.path == "/apps.connections.open":
            assert call.headers["authorization"] == f"Bearer {APP}"
            return Told({"ok": True, "url": self.link})
        return await super().answer(call)


@pytest.fixture(params=[CalledSlack, DialledSlack])
async def chat(request: pytest.FixtureRequest) -> AsyncIterator[Slack]:
    chat = request.param("U2147483697", "D024BE91L", "C0LAN2Q65")
    async with chat.open():
        yield chat


async def test_a_stranger_is_paired_and_answered(chat: Slack, tmp_path: Path) -> None:
    await pairs_and_is_answered(chat, tmp_path)


async def test_a_long_answer_comes_whole_in_parts(chat: Slack, tmp_path: Path) -> None:
    parts = await reads_all_of_a_long_answer(chat, tmp_path, 120)

    assert len(parts) > 1


async def test_the_bot_is_meant_by_its_name(chat: Slack, tmp_path: Path) -> None:
    await is_heard_in_a_room_by_name_alone(chat, tmp_path)


async def test_nothing_is_lost_or_doubled_over_a_restart(chat: Slack, tmp_path: Path) -> None:
    await is_answered_once_over_a_restart(chat, tmp_path)


async def test_a_text_that_cannot_be_encoded_costs_no_other_message(
    chat: Slack, tmp_path: Path
) -> None:
    await loses_what_nobody_can_encode_and_nothing_else(chat, tmp_path)


async def test_the_model_is_told_of_a_file_that_it_cannot_see(chat: Slack, tmp_path: Path) -> None:
    chat.attached = {
        "files": [{"name": "q3.pdf", "mimetype": "application/pdf", "size": 2_345_678}]
    }

    asked = await is_told_what_came_with_a_message(chat, tmp_path, "look", "")

    told = "[With this message came a file that you cannot see yet: q3.pdf (application/pdf, 2.35 MB).]"
    assert asked == [f"look\n\n{told}", told]
