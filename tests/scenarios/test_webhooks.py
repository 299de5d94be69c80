"""A platform calls: from its signed bytes to the turn, through a real adapter in its sandbox."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.fakes.client import HttpAnswer, connected, http, until
from tests.fakes.gateway import Setup, Site, running
from tests.fakes.model_server import ModelServer, Reply, scripted_server

pytestmark = pytest.mark.shared_store

ADAPTER = Path(__file__).parents[2] / "wasm-examples" / "channel-js" / "tool.wasm"
SECRET = "a-secret-that-signs-calls"
COMPILED_S = 60.0  # in which the adapter is compiled on any machine: no call is answered before
REST = f"""
[[plugins]]
name = "relay"
path = "{ADAPTER}"
[channels.family]
plugin = "relay"
dm_policy = "open"
secrets.webhook_secret = "{SECRET}"
[channels.blank]
plugin = "relay"
secrets.webhook_secret = " "
[channels.missing]
plugin = "relay"
"""


def said(text: str, number: str = "1") -> bytes:
    room = {"id": "r1", "is_direct": True}
    ann = {"id": "ann", "name": "Ann"}
    message = {"type": "message", "id": number, "room": room, "sender": ann, "text": text}
    return json.dumps(message).encode()


def signed(body: bytes, secret: str = SECRET) -> dict[str, str]:
    proof = hmac.digest(secret.encode(), body, hashlib.sha256).hex()
    return {"x-chatrelay-signature": f"sha256={proof}", "host": "anything.example"}


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Site, ModelServer]]:
    async with (
        scripted_server(lambda asked: Reply("Hello.")) as model,
        running(Setup(model.url, rest=REST), folder, patience_s=COMPILED_S) as site,
    ):
        yield site, model


async def post(
    site: Site, body: bytes, headers: dict[str, str], name: str = "family"
) -> HttpAnswer:
    return await http(f"{site.url}/webhooks/{name}", method="POST", body=body, headers=headers)


@pytest.mark.requirement("S-003-Session-01")
async def test_a_call_that_is_genuine_becomes_a_turn(tmp_path: Path) -> None:
    body = said("What is the time?")

    async with opened(tmp_path) as (site, model):
        answer = await post(site, body, signed(body))
        with anyio.fail_after(60):
            asked = await model.wait_for(1)
        async with connected(site.url) as client:
            page = await client.call("session.list")

        assert [one["session_key"] for one in page["sessions"]] == ["main:family:default:ann"]
        assert (answer.status, answer.body) == (200, b"")
        assert asked.last_text == "What is the time?"


async def test_whoever_signs_nothing_or_with_something_else_gets_no_further(tmp_path: Path) -> None:
    body = said("hi")

    async with opened(tmp_path) as (site, model):
        answers = [
            await post(site, body, {}),
            await post(site, body, signed(body, "another secret")),
            await post(site, body, signed(body, "")),
            await post(site, body + b" ", signed(body)),
        ]
        await site.rooms.shared.lanes.wait_idle()

        assert {answer.status for answer in answers} == {401}
        assert len({answer.body for answer in answers}) == 1
        assert model.requests == []


def states_of(site: Site) -> dict[str, str]:
    return {one.name: one.state for one in site.rooms.channels.statuses()}


@pytest.mark.embedded_store
@pytest.mark.parametrize("name", ["blank", "missing", "nobody"])
async def test_a_channel_that_nobody_can_verify_has_no_address(tmp_path: Path, name: str) -> None:
    body = said("hi")

    async with opened(tmp_path) as (site, _):
        answer = await post(site, body, signed(body, " "), name)
        # The others are connected beside the start.
        await until(lambda: states_of(site)["family"] != "starting")

        assert answer.status == 404
        assert states_of(site) == {"family": "connected", "blank": "refused", "missing": "refused"}
