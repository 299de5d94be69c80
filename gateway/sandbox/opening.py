"""The sandbox with a configuration's plugins in it."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread

from gateway.domain.agents import AgentDef
from gateway.domain.errors import Denied
from gateway.domain.events import Deed
from gateway.domain.mcp import Foreign, Lacking, McpStatus
from gateway.domain.plugins import PluginDef, PluginInfo
from gateway.domain.ports import Audit, Clock, Fetched, FetchGrant, FetchRequest, HostFunction, Tool
from gateway.sandbox.compiling import Compiling
from gateway.sandbox.hosting import Means
from gateway.sandbox.plugins import Plugins, Sandbox
from gateway.sandbox.pool import open_pool

log = logging.getLogger(__name__)

HOST_FUNCTIONS = "exogate.host_functions"
PATIENCE_S = 5.0  # with plugins that are compiled, before the gateway serves without them
TURN_WAITS_S = 10.0


@asynccontextmanager
async def open_sandbox(
    cache: Path, means: Means, *, workers: int = 1, idle_s: float = 300.0
) -> AsyncIterator[Sandbox]:
    """`cache` is made if it is not there; nobody else may write to it."""
    compiling = await to_thread.run_sync(_in_private, cache, means.clock.now())
    async with open_pool(cache, workers=workers, idle_s=idle_s, clock=means.clock) as pool:
        yield Sandbox(pool, compiling, means)


def _in_private(cache: Path, now: datetime) -> Compiling:
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    cache.chmod(0o700)
    compiling = Compiling(cache)
    compiling.tidy(now)
    return compiling


@asynccontextmanager
async def open_plugins(
    sandbox: Sandbox, plugins: Sequence[PluginDef], *, patience_s: float = PATIENCE_S
) -> AsyncIterator[Plugins]:
    """Every enabled plugin, instantiated once for trial. Waits no longer than `patience_s` for those that
    are compiled. Without plugins no process is started."""
    found = Plugins()
    async with anyio.create_task_group() as group:
        await found.load_beside(sandbox, plugins, group, patience_s=patience_s)
        try:
            yield found
        finally:
            group.cancel_scope.cancel()


class Nowhere:
    """The guarded way out where no plugin was granted any host."""

    async def fetch(self, ask: FetchRequest, leave: FetchGrant) -> Fetched:
        raise Denied("not allowed to make requests: no host is granted")


def host_functions(
    plugins: Sequence[PluginDef], own: Mapping[str, HostFunction]
) -> Mapping[str, HostFunction]:
    """Our own, and those of installed packages that a plugin was granted.

    A package offers one as an entry point of the group `exogate.host_functions`.
    """
    functions = dict(own)
    wanted = {name for plugin in plugins for name in plugin.functions} - {"clock", "random"}
    for name in wanted - functions.keys():
        found = tuple(entry_points(group=HOST_FUNCTIONS, name=name))
        if not found:
            log.warning("a host function is not there", extra={"function": name})
        for one in found:
            try:
                functions[name] = one.load()
            except Exception:  # a package may fail in any way when it is imported
                extra = {"function": name, "package": one.value}
                log.exception("a host function cannot be loaded", extra=extra)
    return functions


class Offering(Protocol):
    """The gate, as far as plugins that come late change it."""

    foreign: Foreign

    def renew(self, family: str, tools: Sequence[Tool]) -> None: ...


@dataclass(frozen=True, slots=True)
class Coming:
    """Implements the Foreign port around another one while plugins are being compiled: a turn waits for
    those that its agent has, for a moment only."""

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


async def follow(plugins: Plugins, gate: Offering, audit: Audit, clock: Clock) -> None:
    """Offers the tools of plugins that are loaded after the start."""
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
