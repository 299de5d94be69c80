"""Configured plugins are loaded or refused with a reason; a loaded one's tools can be called."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from wasmtime import wat2wasm

from gateway.config.sections import parse_capability
from gateway.domain.errors import AdapterFailed, ToolFailed
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.plugins import PluginDef, PluginLimits
from gateway.domain.ports import ToolScope
from gateway.sandbox.plugins import MOST_INPUT_BYTES, PluginRefused, Plugins, PluginTool
from tests.fakes.fetch import FakeFetch
from tests.fakes.sandbox import Stage, a_stage, means
from tests.fakes.wat import ECHO, RELAY, describing, handling, kept

MATRIX = Path(__file__).parents[2] / "plugins" / "matrix" / "tool.wasm"
RELAY_ADAPTER = Path(__file__).parents[2] / "wasm-examples" / "channel-js" / "tool.wasm"
FAILING = handling("(call $err (i32.const 600) (i32.const 0))")
SILENT = handling("unreachable")


def scope(peer: str = "p", person: str = "ann") -> ToolScope:
    key = SessionKey(AgentId("a"), "web", "acc", peer)
    return ToolScope(key, RunId("run-1"), person, "call-1")


async def tool(stage: Stage, wasm: bytes, *grants: str, name: str = "guest") -> PluginTool:
    (one,) = stage.sandbox.tools(await stage.load(wasm, *grants, name=name, deny_unused=True))
    return one


@pytest.mark.requirement("S-003-Plugin-05")
async def test_a_guest_is_told_the_call_and_nothing_of_the_session(
    cache: Path, tmp_path: Path
) -> None:
    async def told(one: PluginTool, at: ToolScope) -> dict[str, object]:
        given: dict[str, object] = json.loads(await one.call({"a": [1, "é"]}, at))
        return given

    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            one, other = await tool(stage, ECHO), await tool(stage, ECHO, name="other")
            first, again = await told(one, scope()), await told(one, scope(person="bob"))
            elsewhere, others = await told(one, scope("q")), await told(other, scope())

    session = first.pop("session")
    assert first == {"tool": "run", "arguments": {"a": [1, "é"]}, "call_id": "call-1", "config": {}}
    assert again["session"] == session
    assert elsewhere["session"] != session
    assert others["session"] != session
    assert "web" not in json.dumps(session)


async def test_an_err_is_the_guests_word_and_anything_else_ours(
    cache: Path, tmp_path: Path
) -> None:
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            failing, silent = await tool(stage, FAILING), await tool(stage, SILENT, name="silent")
            with pytest.raises(ToolFailed) as failed:
                await failing.call({}, scope())
            with pytest.raises(ToolFailed) as crashed:
                await silent.call({}, scope())

    assert str(failed.value) == "guest__run failed."
    assert str(crashed.value) == (
        "silent__run gave no answer: it panicked (unreachable code was reached). "
        "Do not repeat the same call; use other arguments or continue without it."
    )


@pytest.mark.requirement("S-003-Plugin-14")
async def test_arguments_that_are_too_large_reach_no_guest(cache: Path, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            one = await tool(stage, ECHO)
            with pytest.raises(ToolFailed, match="its arguments are larger than 1024 KiB"):
                await one.call({"a": "é" * (MOST_INPUT_BYTES // 2)}, scope())


@pytest.mark.requirement("S-003-Plugin-11")
async def test_a_store_belongs_to_who_speaks(cache: Path, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            guest = await stage.load(RELAY, "store:notes", deny_unused=True)
            await stage.run(guest, 'snotes\nk\n"ann\'s"', person="ann")
            said = {who: await stage.run(guest, "gnotes\nk", person=who) for who in ("ann", "bob")}

    assert {who: one.text for who, one in said.items()} == {"ann": "ann's", "bob": "null"}


@pytest.mark.parametrize(
    ("grant", "beside"), [("store:a", 1), ("store:a:shared", 0), ("store:a:ro", 2)]
)
async def test_who_may_write_works_alone_in_its_space(
    cache: Path, tmp_path: Path, grant: str, beside: int
) -> None:
    """One of ann's calls is under way; another of hers and one of bob's come."""
    fetch = FakeFetch(gate=anyio.Event())
    text = 'h{"url":"https://example.com/"}'
    with anyio.fail_after(60):
        async with (
            a_stage(cache, tmp_path, means(fetch=fetch)) as stage,
            anyio.create_task_group() as group,
        ):
            guest = await stage.load(RELAY, grant, "http:example.com", deny_unused=True)
            free = await stage.load(RELAY, "http:example.com", name="free", deny_unused=True)
            group.start_soon(partial(stage.run, guest, text, person="ann"))
            await fetch.came.wait()
            for person in ("ann", "bob"):
                group.start_soon(partial(stage.run, guest, text, person=person))
            while len(fetch.asked) < 1 + beside:
                await anyio.lowlevel.checkpoint()
            # Another plugin's whole call goes by: whoever could run has asked by then.
            assert (await stage.run(free, "q")).status == "trap"
            assert len(fetch.asked) == 1 + beside
            fetch.open()

    assert len(fetch.asked) == 3


TWICE = json.dumps({"name": "x", "tools": [{"name": "run"}, {"name": "run"}]})


@pytest.fixture
def configured(tmp_path: Path) -> list[PluginDef]:
    twice = handling("unreachable", pieces="{{memory}} {{realloc}} {{answer}}" + describing(TWICE))
    files: Mapping[str, bytes] = {"good": ECHO, "wants": RELAY, "text": b"hello", "twice": twice}
    plugins = [PluginDef(name, kept(tmp_path, name, wasm)) for name, wasm in files.items()]
    clock = (parse_capability("host_function:clock"),)
    plugins.append(replace(plugins[0], name="off", is_enabled=False))
    plugins.append(replace(plugins[0], name="pinned", sha256="0" * 64))
    plugins.append(replace(plugins[0], name="again", capabilities=clock))
    plugins.append(replace(plugins[0], name="gone", path=tmp_path / "gone.wasm"))
    plugins.append(replace(plugins[0], name="tight", limits=PluginLimits(fuel=1)))
    return plugins


@pytest.mark.requirement("S-003-Plugin-03", "S-003-Plugin-04", "S-003-Plugin-08")
async def test_what_cannot_be_loaded_is_told_and_the_rest_works(
    cache: Path, tmp_path: Path, configured: list[PluginDef]
) -> None:
    plugins = Plugins()
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            await plugins.load(stage.sandbox, configured)
            tools = {one.spec.name: one for one in plugins.tools}
            said = json.loads(await tools["good__run"].call({}, scope()))

    infos = {one.name: one for one in plugins.infos}
    why = {name: one.why or "" for name, one in infos.items()}
    assert list(infos) == [one.name for one in configured]
    assert {name: one.state for name, one in infos.items()} == {
        "good": "loaded",
        "wants": "refused",
        "text": "refused",
        "twice": "refused",
        "off": "disabled",
        "pinned": "refused",
        "again": "loaded",
        "gone": "refused",
        "tight": "refused",
    }
    assert "it imports exogate:plugin/" in why["wants"]
    assert "(and 7 more), which needs the capability" in why["wants"]
    assert "not WebAssembly" in why["text"]
    assert "two of its tools have the same name" in why["twice"]
    assert "the pinned one is 000" in why["pinned"]
    assert "No such file" in why["gone"]
    assert "computing time" in why["tight"]
    assert (infos["good"].kind, infos["good"].version) == ("tool", "1")
    assert infos["good"].sha256 == infos["again"].sha256 is not None
    assert infos["again"].capabilities == ("host_function:clock",)
    assert list(tools) == ["good__run", "again__run"]
    assert said["tool"] == "run"


async def test_what_a_guest_says_instead_of_describing_itself_reaches_no_terminal(
    cache: Path, tmp_path: Path
) -> None:
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            with pytest.raises(PluginRefused) as refused:
                await stage.load(bytes(wat2wasm(_ESCAPES)), name="escapes")

            assert str(refused.value).isprintable()


async def test_a_plugin_cannot_get_before_a_bundled_one_with_its_tools_name(
    cache: Path, tmp_path: Path, configured: list[PluginDef]
) -> None:
    good = configured[0]
    pretender = replace(good, name="run")
    plugins = Plugins()
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            await plugins.load(stage.sandbox, [pretender, replace(good, is_bundled=True)])

    assert [(one.spec.name, one.spec.family) for one in plugins.tools] == [
        ("run", "good"),
        ("run", "run"),
    ]


_ESCAPES = """(module
  (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
  (import "extism:host/env" "store_u8" (func $store (param i64 i32)))
  (import "extism:host/env" "error_set" (func $error (param i64)))
  (func (export "describe") (result i32) (local $at i64)
    (local.set $at (call $alloc (i64.const 1)))
    (call $store (local.get $at) (i32.const 27))
    (call $error (local.get $at))
    (i32.const 1))
  (func (export "handle_tool_call") (result i32) (i32.const 0)))"""


async def test_an_adapter_is_known_by_its_description_and_translates(
    cache: Path, tmp_path: Path
) -> None:
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            plugins = Plugins()
            await plugins.load(stage.sandbox, [PluginDef("relay", RELAY_ADAPTER)])
            (adapter,) = plugins.adapters
            parsed = json.loads(await adapter.parse(json.dumps({"body": '{"type": "typing"}'})))
            with pytest.raises(AdapterFailed, match="plugin relay: parse-incoming failed: .*JSON"):
                await adapter.parse("no JSON")

    assert (adapter.plugin.name, adapter.description.channel) == ("relay", "chatrelay")
    assert adapter.description.recipes[0].secret == "webhook_secret"
    assert parsed["messages"] == []
    assert plugins.tools == ()


async def test_what_an_adapter_reads_of_the_largest_call_is_not_too_large(
    cache: Path, tmp_path: Path
) -> None:
    said = {"msgtype": "m.text", "body": "word \\ " * 5_000}
    event = {"type": "m.room.message", "room_id": "!r:x", "sender": "@a:x", "content": said}
    events = [{**event, "event_id": f"${number}"} for number in range(100)]
    body = json.dumps({"events": events})
    config = {"user_id": "@me:x"}
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            plugins = Plugins()
            await plugins.load(stage.sandbox, [PluginDef("matrix", MATRIX)])
            (adapter,) = plugins.adapters
            parsed = await adapter.parse(json.dumps({"body": body, "config": config}))

    assert 3 * 2**20 < len(body) < 4 * 2**20
    assert len(json.loads(parsed)["messages"]) == 100
