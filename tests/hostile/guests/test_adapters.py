"""Channel adapters that mean harm: a platform's call ends in time, and nobody gets what is not his."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pytest
from wasmtime import wat2wasm

from gateway.channels.health import ChannelHealth
from gateway.channels.intake import MOST_FAILURES, Intake, OpenChannel
from gateway.channels.webhooks import LARGEST_BODY, WebhookEndpoint, webhook_address
from gateway.domain.channels import ChannelDef, WebhookCall
from gateway.domain.ids import Secret
from gateway.domain.plugins import PluginLimits, PluginSecret
from gateway.outbound.guard import Scrubber
from gateway.sandbox.componentize import component_from_core
from tests.fakes.adapter import HOOK, KEY, KeptEvents, Taken
from tests.fakes.clock import FakeClock
from tests.fakes.doorkeeper import FakeCommands, FakeDoor
from tests.fakes.sandbox import a_stage
from tests.fakes.store import open_memory
from tests.fakes.wat import ANSWER, MEMORY, REALLOC, describing

DESCRIPTION = {
    "name": "evil",
    "version": "1",
    "kind": "channel",
    "channel": "evil",
    "transports": [{"type": "webhook"}],
    "verify": {"type": "token", "secret": "key", "header": "x-token"},
}
ECHO = "(call $ok (local.get 0) (local.get 1))"
FORGED = json.dumps({
    "messages": [{
        "peer": "ann",
        "sender": {"id": "ann"},
        "text": "hi",
        "platform_id": "1",
        "account": "admin",
        "channel": "websocket",
        "agent": "other",
        "capabilities": ["http:example.com"],
    }],
    "reply": {"status": 200, "headers": {"set-cookie": "a=b", "content-type": "text/plain"}},
})  # fmt: skip


def adapter(parse: str, *, said: str = "") -> bytes:
    """`parse` is the body of parse-incoming; the text `said` lies at 40000."""
    data = "".join(f"\\{byte:02x}" for byte in said.encode())
    core = f"""(module {MEMORY} {REALLOC} {ANSWER} {describing(json.dumps(DESCRIPTION))}
      (data (i32.const 40000) "{data}")
      (func (export "parse-incoming") (param i32 i32) (result i32) {parse})
      (func (export "format-outgoing") (param i32 i32) (result i32) {ECHO}))"""
    return component_from_core(bytes(wat2wasm(core)), "channel")


@dataclass
class Site:
    door: WebhookEndpoint
    taken: Taken
    events: KeptEvents

    async def call(self, body: bytes = b"{}") -> int:
        call = WebhookCall("family", "POST", "", "", (("x-token", KEY), ("x-a", KEY)), body)
        with anyio.fail_after(60):
            return (await self.door.receive(call)).status


@asynccontextmanager
async def opened(guest: bytes, cache: Path, folder: Path) -> AsyncIterator[Site]:
    secrets = (PluginSecret("key", Secret(KEY), frozenset()),)
    channel = ChannelDef("family", "guest", secrets=secrets)
    clock, taken = FakeClock(), Taken()
    async with open_memory() as stores, a_stage(cache, folder) as stage:
        events = KeptEvents(inner=stores.channels)
        loaded = await stage.load(guest, limits=PluginLimits(timeout_s=0.5, fuel=10**8))
        evil = stage.sandbox.adapter(loaded)
        assert evil is not None
        ways = (FakeDoor(), FakeCommands().run)
        intake = Intake(taken.accept, events, clock, lambda: None, *ways)
        health = ChannelHealth(channel, "webhook", clock, lambda _type, _payload: None)
        recipe = replace(HOOK, max_body_bytes=LARGEST_BODY)
        opened = OpenChannel(channel, evil, recipe, health, intake, Scrubber(secrets).body)
        here = {"family": webhook_address(opened, recipe, clock)}
        yield Site(WebhookEndpoint(stores.audit, clock, here), taken, events)


@pytest.mark.parametrize(
    "parse",
    [
        pytest.param("(loop $on (br $on)) (unreachable)", id="endless loop"),
        pytest.param("(unreachable)", id="trap"),
        pytest.param("(call $ok (i32.const 0) (i32.const 0x40000000))", id="a string of 1 GiB"),
        pytest.param("(call $ok (i32.const 65536) (i32.const 0))", id="an empty text"),
        pytest.param("(call $err (local.get 0) (local.get 1))", id="the event as an error"),
        pytest.param("(call $ok (i32.const 0) (i32.const 64))", id="bytes that are no text"),
    ],
)
async def test_a_call_that_an_adapter_ruins_is_refused_in_time_and_at_last_put_aside(
    parse: str, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(adapter(parse), cache, tmp_path) as site:
        statuses = [await site.call(f"echo {KEY}".encode()) for _ in range(MOST_FAILURES)]

    assert statuses == [500] * (MOST_FAILURES - 1) + [200]
    assert site.taken.inbound == []
    assert [one.detail for one in site.events.heard] == ["echo [secret key]"]
    assert KEY not in caplog.text + str([record.__dict__ for record in caplog.records])


async def test_an_adapter_that_says_what_it_heard_says_no_secret(
    cache: Path, tmp_path: Path
) -> None:
    said = f'{{"messages": [], "state": "{KEY}"}}'.encode()

    async with opened(adapter(ECHO), cache, tmp_path) as site:
        status = await site.call(said)
        channel = site.door.addresses["family"].channel

    assert status == 200
    assert KEY not in channel.state


async def test_an_adapter_that_forges_who_speaks_is_not_believed(
    cache: Path, tmp_path: Path
) -> None:
    parse = f"(call $ok (i32.const 40000) (i32.const {len(FORGED)}))"

    async with opened(adapter(parse, said=FORGED), cache, tmp_path) as site:
        call = WebhookCall("family", "POST", "", "", (("x-token", KEY),), b"{}")
        answer = await site.door.receive(call)

    (inbound,) = site.taken.inbound
    assert (inbound.address.channel, inbound.address.account) == ("family", "default")
    assert inbound.requested_agent is None
    assert answer.headers == (("content-type", "text/plain"),)


async def test_an_adapter_is_given_the_largest_body_that_is_let_in(
    cache: Path, tmp_path: Path
) -> None:
    parse = f"(call $ok (i32.const 40000) (i32.const {len(FORGED)}))"

    async with opened(adapter(parse, said=FORGED), cache, tmp_path) as site:
        status = await site.call(b'{"a": "' + b"x" * (LARGEST_BODY - 9) + b'"}')

    assert status == 200
    assert len(site.taken.inbound) == 1
