"""A guest that tries to reach what it was not granted, and to get hold of a secret, end to end."""

import json
import logging
from pathlib import Path

import anyio
import pytest

from gateway.config.sections import parse_capability
from gateway.domain.errors import ToolFailed
from gateway.domain.ids import AgentId, RunId, Secret, SessionKey
from gateway.domain.plugins import HttpGrant, PluginSecret
from gateway.domain.ports import PluginSpace, ToolScope
from gateway.outbound.client import open_guarded
from gateway.sandbox.plugins import Loaded
from tests.fakes.lookup import ScriptedLookup
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.fakes.plugin_store import FakePlugins
from tests.fakes.sandbox import Stage, a_stage, means
from tests.fakes.wat import RELAY, built
from tests.hostile.urls.corpus import REFUSED

SWORDFISH = "sw0rdfish-0123456789"
SCOPE = ToolScope(SessionKey(AgentId("a"), "c", "acc", "p"), RunId("r"), "ann", "call-1")


def asking(url: str, **headers: str) -> str:
    return "h" + json.dumps({"url": url, "headers": headers})


async def relay(stage: Stage, *grants: str, secrets: tuple[PluginSecret, ...] = ()) -> Loaded:
    return await stage.load(RELAY, *grants, name="relay", secrets=secrets, deny_unused=True)


@pytest.mark.requirement("S-003-Plugin-13")
async def test_no_shape_of_a_url_leads_out(cache: Path, tmp_path: Path) -> None:
    nobody = ScriptedLookup()
    with anyio.fail_after(30):
        async with (
            open_guarded(nobody) as guard,
            a_stage(cache, tmp_path, means(fetch=guard)) as stage,
        ):
            guest = await relay(stage, "http:wttr.in")
            ends = {url: (await stage.run(guest, asking(url))).status for url in REFUSED}
            denied = stage.sandbox.deps.ledger.of("relay").denied

    assert ends == dict.fromkeys(REFUSED, "err")
    assert nobody.asked == []
    assert sum(denied.values()) >= 0.9 * len(REFUSED)  # a few are no requests at all
    assert all(name.isprintable() for name in denied)


async def test_a_redirect_leads_nowhere_else(cache: Path, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with (
            scripted_server([Reply(body=b"inside")]) as inside,
            scripted_server(
                [Reply(status=302, headers={"location": inside.url}, body=b"")]
            ) as server,
            open_guarded() as guard,
            a_stage(cache, tmp_path, means(fetch=guard)) as stage,
        ):
            place = server.url.removesuffix("/v1")
            guest = await relay(stage, f"http:{place}")
            outcome = await stage.run(guest, asking(place))

    assert outcome.status == "err"
    assert "is not followed" in outcome.text
    assert (len(server.requests), len(inside.requests)) == (1, 0)


async def test_a_name_that_changes_its_address_is_asked_once_and_refused(
    cache: Path, tmp_path: Path
) -> None:
    rebinding = ScriptedLookup(["93.184.216.34", "127.0.0.1"], ["127.0.0.1"])
    with anyio.fail_after(60):
        async with (
            open_guarded(rebinding) as guard,
            a_stage(cache, tmp_path, means(fetch=guard)) as stage,
        ):
            guest = await relay(stage, "http:wttr.in")
            outcome = await stage.run(guest, asking("https://wttr.in/"))

    assert outcome.status == "err"
    assert "not public" in outcome.text
    assert rebinding.asked == [("wttr.in", 443)]


def echo(asked: Asked) -> Reply:
    """Says back what it was sent, in every place."""
    sent = asked.headers["authorization"]
    return Reply(body=json.dumps({"sent": sent}).encode(), headers={"x-echo": sent})


async def test_a_secret_that_comes_back_reaches_nobody(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The guest passes on what the server echoed, logs it, and keeps it."""
    plugins = FakePlugins()
    caplog.set_level(logging.DEBUG)
    with anyio.fail_after(60):
        async with scripted_server(echo) as server, open_guarded() as guard:
            place = server.url.removesuffix("/v1")
            grant = parse_capability(f"http:{place}")
            assert isinstance(grant, HttpGrant)
            secret = PluginSecret("key", Secret(SWORDFISH), frozenset({grant.origin}))
            world = means(fetch=guard, store=plugins)
            async with a_stage(cache, tmp_path, world) as stage:
                guest = await relay(stage, f"http:{place}", "store:loot", secrets=(secret,))
                got = await stage.run(guest, asking(place, authorization="Bearer ${secret:key}"))
                await stage.run(guest, f"w3\n{got.text}")
                kept = await stage.run(guest, f"sloot\nk\n{got.text}")

    assert server.requests[0].headers["authorization"] == f"Bearer {SWORDFISH}"
    assert (got.status, kept.status) == ("ok", "ok")
    assert json.loads(got.text)["status"] == 200
    logged = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    store = plugins.spaces[PluginSpace("relay", "loot", "ann")].values
    for place_of_loot in (got.text, logged, str(store), str(stage.sandbox.deps)):
        assert SWORDFISH not in place_of_loot
    assert "plugin_log" in logged


async def test_a_secret_is_no_text_that_a_guest_can_ask_for(cache: Path, tmp_path: Path) -> None:
    secret = PluginSecret("key", Secret(SWORDFISH), frozenset())
    with anyio.fail_after(60):
        async with open_guarded() as guard, a_stage(cache, tmp_path, means(fetch=guard)) as stage:
            guest = await relay(stage, "http:wttr.in", "store:loot", secrets=(secret,))
            said = [
                (await stage.run(guest, text)).text
                for text in (
                    asking("https://wttr.in/", authorization="${secret:key}"),
                    asking("https://wttr.in/${secret:key}"),
                    "sloot\nk\n${secret:key}",
                    "gloot\nsecret:key",
                    "xsecret\nkey",
                )
            ]

    assert "is not for https://wttr.in" in said[0]
    assert SWORDFISH not in "".join(said)


async def test_what_a_guest_says_of_its_failure_is_plain_text(cache: Path, tmp_path: Path) -> None:
    text = await anyio.Path(Path(__file__).parent / "error_with_escapes.wat").read_text()
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            (tool,) = stage.sandbox.tools(await stage.load(built(text)))
            with pytest.raises(ToolFailed) as failed:
                await tool.call({}, SCOPE)

    assert str(failed.value) == " [2J [1;1Hx "
