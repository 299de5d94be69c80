"""A program talks with an agent: it signs what it says, and is posted the answers."""

import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.host.clock import SystemClock
from tests.fakes.api import ApiCall, Told
from tests.fakes.client import connected, http
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import scripted_server
from tests.fakes.wat import ECHO, kept
from tests.sandbox.test_cache import many_functions
from tests.scenarios.chats import (
    LONG_S,
    CalledChat,
    is_answered_once_over_a_restart,
    is_heard_in_a_room_by_name_alone,
    keeps_a_room_from_a_direct_chat_of_the_same_id,
    loses_what_nobody_can_encode_and_nothing_else,
    pairs_and_is_answered,
    reads_all_of_a_long_answer,
    script,
)

pytestmark = pytest.mark.shared_store

KEY = bytes(range(24))
TOKEN = "token-of-the-program"


@dataclass
class Program(CalledChat):
    """It means the agent with whatever it says."""

    made: int = 0

    @property
    def toml(self) -> str:
        return f"""
[[plugins]]
name = "webhook"
path = "bundled:webhook"
capabilities = ["http:{self.api}"]

[channels.ci]
plugin = "webhook"
config = {{ scheme = "standard", reply_url = "{self.api}/answers" }}
secrets = {{ secret = "whsec_{base64.b64encode(KEY).decode()}", reply_token = "{TOKEN}" }}
{self.rules}
"""

    @property
    def address(self) -> str:
        return "ci"

    def signed(self, body: bytes) -> Mapping[str, str]:
        name, at = f"msg_{self.made}", str(int(SystemClock().now().timestamp()))
        proof = hmac.digest(KEY, f"{name}.{at}.".encode() + body, hashlib.sha256)
        signature = f"v1,{base64.b64encode(proof).decode()}"
        return {"webhook-id": name, "webhook-timestamp": at, "webhook-signature": signature}

    async def say(self, text: str, *, room: str = "", mention: bool = False) -> None:
        if room and not mention:
            return
        self.made += 1
        place = {"peer": room, "kind": "group"} if room else {}
        await self.call({"sender": self.person, "text": text} | place)

    async def answer(self, call: ApiCall) -> Told:
        assert call.headers["authorization"] == f"Bearer {TOKEN}"
        assert (call.path, call.headers["idempotency-key"]) == ("/answers", call.body["id"])
        if self.to_refuse:
            self.to_refuse -= 1
            return Told(status=429, headers={"retry-after": "1"})
        self.show(call.body["peer"], call.body["text"], call.body["id"])
        return Told()


@pytest.fixture
async def chat() -> AsyncIterator[Program]:
    chat = Program("build", "build", "nightly")
    async with chat.open():
        yield chat


async def test_a_stranger_is_paired_and_answered(chat: Program, tmp_path: Path) -> None:
    await pairs_and_is_answered(chat, tmp_path)


async def test_a_long_answer_comes_whole(chat: Program, tmp_path: Path) -> None:
    parts = await reads_all_of_a_long_answer(chat, tmp_path, 200)

    assert len(parts) == 1


async def test_a_room_has_to_be_listed(chat: Program, tmp_path: Path) -> None:
    await is_heard_in_a_room_by_name_alone(chat, tmp_path)


async def test_nothing_is_lost_or_doubled_over_a_restart(chat: Program, tmp_path: Path) -> None:
    await is_answered_once_over_a_restart(chat, tmp_path)


async def test_a_text_that_cannot_be_encoded_costs_no_other_message(
    chat: Program, tmp_path: Path
) -> None:
    await loses_what_nobody_can_encode_and_nothing_else(chat, tmp_path)


async def test_a_room_never_sees_the_direct_chat_that_has_its_id(tmp_path: Path) -> None:
    chat = Program("ann", "ann", "ann")
    async with chat.open():
        await keeps_a_room_from_a_direct_chat_of_the_same_id(chat, tmp_path)


SLOW = """
[[plugins]]
name = "bomb"
path = "{path}"

[channels.slow]
plugin = "bomb"
"""


@pytest.mark.embedded_store
async def test_an_adapter_that_takes_long_to_compile_holds_up_its_own_channel_alone(
    chat: Program, tmp_path: Path
) -> None:
    path = await to_thread.run_sync(kept, tmp_path, "bomb", many_functions(900_000))
    chat.listed = True
    async with scripted_server(script) as model:
        setup = Setup(model.url, rest=chat.toml + SLOW.format(path=path))
        with anyio.fail_after(LONG_S):
            async with (
                running(setup, tmp_path, patience_s=0) as site,
                connected(site.url) as client,
            ):
                began = {one["name"]: one["state"] for one in await client.call("plugin.list")}
                await site.rooms.channels.wait_open("ci")
                chat.gateway = site.url
                await chat.say("How are you?")
                await chat.sees("answer to How are you?")
                slow = await http(f"{site.url}/webhooks/slow", method="POST", body=b"{}")
                listed = (await client.call("channel.list"))["channels"]

    assert began["bomb"] == "compiling"
    assert (slow.status, slow.headers.get("Retry-After")) == (503, "5")
    told = {one["name"]: (one["state"], one["why"]) for one in listed}
    assert told["slow"] == ("starting", "its adapter is being compiled")
    assert told["ci"] == ("connected", None)


async def test_what_turns_out_to_be_no_adapter_refuses_its_channel_when_that_is_known(
    tmp_path: Path,
) -> None:
    path = await to_thread.run_sync(kept, tmp_path, "tool", ECHO)
    rest = SLOW.replace("bomb", "tool").format(path=path)
    async with scripted_server(script) as model:
        with anyio.fail_after(LONG_S):
            async with running(Setup(model.url, rest=rest), tmp_path, patience_s=0) as site:
                opened = await site.rooms.channels.wait_open("slow")
                (status,) = site.rooms.channels.statuses()
                call = await http(f"{site.url}/webhooks/slow", method="POST", body=b"{}")

    assert opened is None
    assert (status.state, status.why) == ("refused", "plugin tool is no channel adapter")
    assert call.status == 404
