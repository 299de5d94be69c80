"""The ways to call a guest that the benchmark of plugins compares: without and through the gateway."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pydantic_core import to_json
from wasmtime import Engine, Store, wat2wasm
from wasmtime.component import Component, Linker

from bench import guests
from gateway.channels.adapter_json import read_description
from gateway.config.sections import parse_capability
from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.messages import ToolCall, ToolResult
from gateway.domain.plugins import PluginDef, PluginLimits
from gateway.domain.ports import Fetch, PluginSpace, ToolScope, ToolStore
from gateway.host.clock import SystemClock
from gateway.sandbox.calls import component_engine
from gateway.sandbox.host_functions import HostDeps
from gateway.sandbox.plugins import NoFetch, Sandbox
from gateway.sandbox.pool import Outcome, Pool
from gateway.schemas import SchemaChecks
from gateway.tools import ToolGate
from tests.fakes.ports import PartOfToolStore

try:
    import extism  # type: ignore[import-not-found, unused-ignore]  # may not be installed
except ImportError:
    extism = None

NO_EXTISM = (
    "PyPI's extism is not installed, so the gateway is not compared with it; "
    "install it with: pip install extism"
)
_HANDLE = "handle-tool-call"
_FOREVER = 1 << 60


def asked(size: int) -> str:
    """Returns the input of a guest with a text of the given length."""
    session = {"id": "0" * 32}
    fields = {"tool": "echo", "arguments": {"text": "x" * size}, "call_id": "c"}
    return to_json({**fields, "session": session, "config": {}}).decode()


def raw_call(*, is_stock: bool) -> Callable[[str], object]:
    """Calls the same component in this process with a new store and a new instance."""
    engine = Engine() if is_stock else component_engine()
    component, linker = Component(engine, guests.ECHO.read_bytes()), Linker(engine)
    export = component.get_export_index(_HANDLE)
    assert export is not None

    def call(text: str) -> object:
        store = Store(engine)
        if not is_stock:
            store.set_fuel(_FOREVER)
            store.set_epoch_deadline(_FOREVER)
        try:
            function = linker.instantiate(store, component).get_func(store, export)
            assert function is not None
            return function(store, text)
        finally:
            store.close()

    return call


def extism_call() -> Callable[[str], object] | None:
    """Returns a call that makes a new plugin from its manifest; None if extism is not installed."""
    if extism is None:
        return None
    manifest = {"wasm": [{"data": bytes(wat2wasm(guests.EXTISM_ECHO))}]}

    def call(text: str) -> object:
        return extism.Plugin(manifest).call("handle_tool_call", text)

    return call


class Kept(PartOfToolStore):
    """Implements PluginStore with one value, so that only the call takes time."""

    async def get(self, _space: PluginSpace, _key: str) -> str | None:
        return "v"

    async def set(self, _space: PluginSpace, _key: str, _value: str) -> None: ...

    async def delete(self, _space: PluginSpace, _key: str) -> None: ...

    async def list(self, _space: PluginSpace, _prefix: str) -> Sequence[str]:
        return ()


def means() -> HostDeps:
    fetch: Fetch = NoFetch()
    store: ToolStore = Kept()
    return HostDeps(fetch, store, SystemClock(), read_description)


@dataclass(slots=True)
class Watched:
    """A pool that records the worker's time of each call."""

    pool: Pool
    wall_ms: list[float] = field(default_factory=list)

    async def call(self, *asked: Any, **options: Any) -> Outcome:
        outcome = await self.pool.call(*asked, **options)
        self.wall_ms.append(outcome.wall_ms)
        return outcome


@dataclass(frozen=True, slots=True)
class Gated:
    """The whole way of a tool call in a turn: through the gate to a worker and back."""

    gate: ToolGate
    agent: AgentDef
    name: str
    scope: ToolScope
    watched: Watched

    async def call(self, size: int) -> ToolResult:
        call = ToolCall("c", self.name, to_json({"text": "x" * size}).decode())
        return await self.gate.call(self.agent, call, self.scope)

    async def succeed(self, size: int) -> None:
        """Makes a call. Raises RuntimeError if it fails."""
        result = await self.call(size)
        if result.is_error:
            raise RuntimeError(f"{self.name} failed: {result.content}")


async def gated(sandbox: Sandbox, plugin: PluginDef) -> Gated:
    """Raises PluginRefused."""
    watched = Watched(sandbox.pool)
    beside = replace(sandbox, pool=cast(Pool, watched))
    tools = beside.tools(await beside.load(plugin))
    gate = ToolGate(tools, schemas=SchemaChecks(), clock=SystemClock())
    agent = AgentDef(AgentId("main"), "mock", "mock-1", tools=(plugin.name,))
    scope = ToolScope(SessionKey(agent.id, "web", "main"), RunId("r"), "alice", "c")
    return Gated(gate, agent, tools[0].spec.name, scope, watched)


def plugin(
    name: str, wasm: bytes | Path, home: Path, *, granted: str = "", timeout_s: float = 10.0
) -> PluginDef:
    """Returns a plugin as configured by an operator. Its fuel outlasts its time."""
    path = wasm if isinstance(wasm, Path) else home / f"{name}.wasm"
    if isinstance(wasm, bytes):
        path.write_bytes(wasm)
    capabilities = tuple(map(parse_capability, granted.split()))
    return PluginDef(
        name, path, capabilities, limits=PluginLimits(timeout_s=timeout_s, fuel=_FOREVER)
    )
