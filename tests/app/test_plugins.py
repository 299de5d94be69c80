"""Host functions of the operator's packages: found by name, and no harm if one is broken."""

import json
import logging
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId
from gateway.domain.plugins import FunctionGrant, PluginDef
from gateway.host.clock import SystemClock
from gateway.host.folder import Folder
from gateway.sandbox.plugins import LOAD_WAIT_S, Plugins, host_functions, offer_late_plugins
from gateway.schemas import SchemaChecks
from gateway.tools import ToolGate
from tests.fakes.client import connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Reply, scripted_server
from tests.fakes.sandbox import a_stage
from tests.fakes.store import open_memory
from tests.fakes.wat import ECHO, kept
from tests.sandbox.test_cache import many_functions

ENTRIES = """\
[exogate.host_functions]
shelf = exogate_test_shelf:shelf
broken = exogate_test_shelf:missing
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "exogate_test_shelf-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: exogate-test-shelf\nVersion: 1\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    source = "async def shelf(text, plugin):\n    return text\n"
    (tmp_path / "exogate_test_shelf.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
def test_one_that_cannot_be_loaded_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    names = ("shelf", "broken", "absent", "clock")
    plugin = PluginDef("p", Path("p.wasm"), tuple(map(FunctionGrant, names)))
    folder = Folder()

    assert set(host_functions([plugin], {"folder": folder})) == {"folder", "shelf"}
    said = {(one.getMessage(), vars(one)["function"]) for one in caplog.records}
    assert said == {("host_function_unloadable", "broken"), ("host_function_missing", "absent")}


ROOM = """
[[plugins]]
name = "bomb"
path = "{path}"
"""


async def test_a_plugin_that_takes_long_to_compile_keeps_nobody_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = await to_thread.run_sync(kept, tmp_path, "bomb", many_functions(900_000))
    call = Reply(calls=[("c1", "calc", '{"expression":"6*7"}')])
    async with scripted_server([call, Reply("It is 42.")]) as model:
        setup = Setup(model.url, tools=("calc",), rest=ROOM.format(path=path))
        with anyio.fail_after(60):
            opened = running(setup, tmp_path, patience_s=LOAD_WAIT_S / 3)
            async with opened as site, connected(site.url) as client:
                listed = {one["name"]: one["state"] for one in await client.call("plugin.list")}
                run = await client.send("What is 6*7?")
                events = await client.ended(run["run_id"])

    assert listed == {"calc": "loaded", "bomb": "compiling"}
    assert events[-1]["response"] == "It is 42."
    assert "plugin_compiling" in [one.message for one in caplog.records]


async def test_the_tools_of_a_plugin_that_comes_late_are_offered_and_a_turn_waits_for_them(
    tmp_path: Path,
) -> None:
    gate = ToolGate((), schemas=SchemaChecks(), clock=SystemClock())
    agent = AgentDef(AgentId("main"), "fake", "m", tools=("good",))
    plugins = Plugins()
    async with (
        open_memory() as stores,
        a_stage(tmp_path / "cache", tmp_path) as stage,
        anyio.create_task_group() as group,
    ):
        path = await to_thread.run_sync(kept, tmp_path, "good", ECHO)
        configured = [PluginDef("good", path), PluginDef("bad", tmp_path / "none")]
        beside = partial(plugins.load_within, wait_s=0)
        await beside(stage.sandbox, configured, group)
        states = [one.state for one in plugins.infos]
        await offer_late_plugins(plugins, gate, stores.audit, SystemClock())
        with anyio.fail_after(60):
            await gate.prepare(agent)
            await plugins.ready(["bad"])
            await anyio.wait_all_tasks_blocked()
        refused = await stores.audit.newest(kind="plugin.refused")
        group.cancel_scope.cancel()

    assert states == ["compiling", "compiling"]
    assert [one.name for one in gate.offered(agent)] == ["good__run"]
    assert [one.state for one in plugins.infos] == ["loaded", "refused"]
    assert [json.loads(one.detail)["plugin"] for one in refused] == ["bad"]
    assert gate.foreign.statuses() == ()
