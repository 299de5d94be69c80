"""A real sandbox with a fake world around it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread

from gateway.channels.adapter_json import read_description
from gateway.config.sections import parse_capability
from gateway.domain.plugins import PluginDef, PluginLimits, PluginSecret
from gateway.domain.ports import Clock, Fetch, HostFunction, ToolStore
from gateway.host.clock import SystemClock
from gateway.sandbox.host_functions import CapabilityUse, Host, HostDeps
from gateway.sandbox.plugins import Loaded, Sandbox, open_sandbox
from gateway.sandbox.pool import Outcome
from tests.fakes.fetch import FakeFetch
from tests.fakes.plugin_store import FakePlugins
from tests.fakes.wat import kept

LIMITS = PluginLimits()


def means(
    *,
    fetch: Fetch | None = None,
    store: ToolStore | None = None,
    clock: Clock | None = None,
    functions: Mapping[str, HostFunction] | None = None,
) -> HostDeps:
    return HostDeps(
        fetch or FakeFetch(),
        store or FakePlugins(),
        clock or SystemClock(),
        read_description,
        functions or {},
        CapabilityUse(),
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """A sandbox, and where the files of its guests are kept."""

    sandbox: Sandbox
    folder: Path

    async def load(
        self,
        wasm: bytes | Path,
        *grants: str,
        name: str = "guest",
        limits: PluginLimits = LIMITS,
        secrets: tuple[PluginSecret, ...] = (),
        deny_unused: bool = False,
    ) -> Loaded:
        path = (
            wasm
            if isinstance(wasm, Path)
            else await to_thread.run_sync(kept, self.folder, name, wasm)
        )
        plugin = PluginDef(
            name,
            path,
            tuple(map(parse_capability, grants)),
            limits=limits,
            secrets=secrets,
            deny_unused=deny_unused,
        )
        return await self.sandbox.load(plugin)

    async def run(self, loaded: Loaded, text: str = '"x"', *, person: str = "ann") -> Outcome:
        host = Host(self.sandbox.deps, loaded.plugin, person)
        return await self.sandbox.run(loaded, "handle-tool-call", text, host)

    @property
    def worker(self) -> int:
        """The process id of the first worker."""
        process = self.sandbox.pool._places[0].process
        assert process is not None
        return process.pid


@asynccontextmanager
async def a_stage(
    cache: Path, folder: Path, given: HostDeps | None = None, *, workers: int = 1
) -> AsyncIterator[Stage]:
    async with open_sandbox(cache, given or means(), workers=workers) as sandbox:
        yield Stage(sandbox, folder)
