"""What is opened or made before the rooms are wired: the sandbox, and what agents are made over."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import anyio
from anyio import to_thread
from pydantic_core import from_json, to_json

from gateway.agent.leaves import Plans
from gateway.agent.runner import Runner
from gateway.app.agents import Rulebook
from gateway.budgets.metering import Meter
from gateway.channels.crossing import read_description
from gateway.channels.pairing import PairingBook
from gateway.config.values import GatewayConfig
from gateway.control.notices import Bus
from gateway.control.policy import DecisionTrees
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import Audit
from gateway.domain.errors import Denied
from gateway.domain.events import Deed
from gateway.domain.mcp import Foreign, Lacking, McpStatus
from gateway.domain.plugins import PluginDef, PluginInfo
from gateway.domain.ports import (
    Ask,
    Clock,
    Fetch,
    Fetched,
    HostFunction,
    Ids,
    Leave,
    Model,
    PluginStore,
    Stores,
    Tool,
)
from gateway.host.folder import Folder
from gateway.memory.souls import Souls
from gateway.sandbox.hosting import Means
from gateway.sandbox.opening import open_sandbox
from gateway.sandbox.plugins import Plugins
from gateway.tools.gate import ToolGate

log = logging.getLogger(__name__)

HOST_FUNCTIONS = "exogate.host_functions"
PATIENCE_S = 5.0  # with plugins that are compiled, before the gateway serves without them
TURN_WAITS_S = 10.0


@asynccontextmanager
async def loaded_plugins(
    config: GatewayConfig, store: PluginStore, clock: Clock, patience_s: float
) -> AsyncIterator[Plugins]:
    """Every enabled plugin, instantiated once for trial; none: no process is started."""
    plugins, enabled = Plugins(), [one for one in config.plugins if one.is_enabled]
    async with AsyncExitStack() as stack:
        means = Means(
            fetch=await stack.enter_async_context(_way_out(enabled)),
            store=store,
            clock=clock,
            encode=to_json,
            decode=from_json,
            read_adapter=read_description,
            functions=await to_thread.run_sync(host_functions, enabled),
        )
        sandbox = await stack.enter_async_context(
            open_sandbox(
                config.gateway.data_dir / "plugins",
                means,
                workers=config.sandbox.workers,
                idle_s=config.sandbox.idle_s,
            )
        )
        group = await stack.enter_async_context(anyio.create_task_group())
        await plugins.load_beside(sandbox, config.plugins, group, patience_s=patience_s)
        try:
            yield plugins
        finally:
            group.cancel_scope.cancel()


@dataclass(frozen=True, slots=True)
class Coming:
    """Implements the Foreign port around another, as long as plugins are being compiled: a turn
    waits for those that its agent has, and for a moment only."""

    plugins: Plugins
    behind: Foreign

    async def prepare(self, agent: AgentDef) -> Sequence[Lacking]:
        with anyio.move_on_after(min(TURN_WAITS_S, agent.limits.timeout_seconds)):
            await self.plugins.ready(agent.tools)
        return await self.behind.prepare(agent)

    def statuses(self) -> Sequence[McpStatus]:
        return self.behind.statuses()

    def outcomes(self) -> Mapping[tuple[str, str], int]:
        return self.behind.outcomes()


async def follow(plugins: Plugins, gate: ToolGate, audit: Audit, clock: Clock) -> None:
    """Whatever of them is loaded after the start is taken into the gate."""
    behind = gate.foreign
    if not plugins.is_complete:
        gate.foreign = Coming(plugins, behind)

    async def settled(info: PluginInfo, tools: Sequence[Tool]) -> None:
        if tools:
            gate.renew(info.name, tools)
        if plugins.is_complete:
            gate.foreign = behind
        extra = {"plugin": info.name, "state": info.state}
        log.info("a plugin came after the start", extra=extra)
        if info.state == "refused":
            told = {"plugin": info.name, "why": info.why}
            await audit.append(Deed(clock.now(), "plugin.refused", "config", told))

    await plugins.follow(settled)


@asynccontextmanager
async def _way_out(plugins: Sequence[PluginDef]) -> AsyncIterator[Fetch]:
    if not any(plugin.origins for plugin in plugins):
        yield Nowhere()
        return
    from gateway.outbound.guard import open_guarded  # noqa: PLC0415  # the HTTP client is slow to import

    async with open_guarded() as guarded:
        yield guarded


class Nowhere:
    """The guarded way out where no plugin was granted any host."""

    async def fetch(self, ask: Ask, leave: Leave) -> Fetched:
        raise Denied("not allowed to make requests: no host is granted")


def host_functions(plugins: Sequence[PluginDef]) -> dict[str, HostFunction]:
    """The built-in ones, and those of installed packages that a plugin was granted.

    A package offers one as an entry point of the group `exogate.host_functions`.
    """
    functions: dict[str, HostFunction] = {"folder": Folder(to_json, from_json)}
    wanted = {name for plugin in plugins for name in plugin.functions} - {"clock", "random"}
    for name in wanted - functions.keys():
        found = tuple(entry_points(group=HOST_FUNCTIONS, name=name))
        if not found:
            log.warning("a host function is not there", extra={"function": name})
        for one in found:
            _register(functions, one)
    return functions


def _register(functions: dict[str, HostFunction], found: EntryPoint) -> None:
    try:
        functions[found.name] = found.load()
    except Exception:  # a package may fail in any way when it is imported: the rest starts without
        extra = {"function": found.name, "package": found.value}
        log.exception("a host function cannot be loaded", extra=extra)


@dataclass(frozen=True, slots=True)
class Parts:
    """Of one gateway."""

    version: str
    clock: Clock
    bus: Bus
    ids: Ids
    stores: Stores
    souls: Souls
    plans: Plans
    decisions: DecisionTrees
    model: Model
    plugins: Plugins
    gate: ToolGate
    rules: Rulebook
    meter: Meter
    pairing: PairingBook

    def runner(self) -> Runner:
        return Runner(
            self.model,
            self.gate,
            self.plans,
            self.decisions,
            lambda: self.rules.current,
            from_json,
            self.bus.publish,
            self.bus.hears,
            self.meter.cost_usd,
        )
