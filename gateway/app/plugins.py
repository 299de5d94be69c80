"""The sandbox with what host functions need of the other rooms."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import EntryPoint, entry_points

from anyio import to_thread
from pydantic_core import from_json, to_json

from gateway.channels.crossing import read_description
from gateway.config.values import GatewayConfig
from gateway.domain.errors import Denied
from gateway.domain.plugins import PluginDef
from gateway.domain.ports import Ask, Clock, Fetch, Fetched, HostFunction, Leave, PluginStore
from gateway.host.folder import Folder
from gateway.sandbox.hosting import Means
from gateway.sandbox.opening import open_sandbox
from gateway.sandbox.plugins import Plugins

log = logging.getLogger(__name__)

HOST_FUNCTIONS = "exogate.host_functions"


@asynccontextmanager
async def loaded_plugins(
    config: GatewayConfig, store: PluginStore, clock: Clock
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
        await plugins.load(sandbox, config.plugins)
        yield plugins


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
