"""What a plugin's file is, found out in a sandbox of this command's own; no gateway has to run."""

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from anyio import to_thread

from gateway.api.declarations import plain
from gateway.channels.adapter_json import read_description
from gateway.channels.adapters import Description
from gateway.channels.room import require_openable
from gateway.channels.webhooks import ChannelRefused
from gateway.cli.plugin_files import BadPlugin, Given
from gateway.config.values import GatewayConfig
from gateway.domain.channels import ChannelDef
from gateway.domain.plugins import PluginAccount, PluginDef
from gateway.host.clock import SystemClock
from gateway.host.logs import logging_to
from gateway.sandbox.cache import Uncompiled
from gateway.sandbox.host_functions import HostDeps
from gateway.sandbox.plugins import (
    NoFetch,
    PluginRefused,
    Plugins,
    Sandbox,
    info,
    missing,
    needed,
    open_sandbox,
)
from gateway.schemas import SchemaChecks
from gateway.store.opening import open_memory
from gateway.tools.gate import ToolGate
from gateway.web.status import inspected


@dataclass(frozen=True, slots=True)
class Examined:
    """All that is known of a file; what is wrong with it is in `problems`."""

    given: Given
    told: PluginAccount
    size: int = 0
    problems: tuple[str, ...] = ()
    adapter: Description | None = None  # what a channel adapter says of itself

    @property
    def sha256(self) -> str:
        return self.told.info.sha256 or ""

    @property
    def lacking(self) -> dict[str, str]:
        """Imports with the capability that each needs, of those that it was not examined with."""
        needs = self.told.needs.items()
        return {name: need for name, need in needs if need and name in self.told.lacking}

    def as_json(self) -> dict[str, object]:
        """As a running gateway tells it, without what only that can know."""
        shown: dict[str, object] = plain(inspected(self.told, {}))
        for key in ("state", "reason", "capabilities", "used", "denied"):
            shown.pop(key, None)
        file = {"file": str(self.given.file), "size": self.size}
        return {"ok": not self.problems, **file, **shown, "problems": list(self.problems)}


@asynccontextmanager
async def opened(data_dir: Path) -> AsyncIterator[Sandbox]:
    """A sandbox that reaches nothing; what it compiles is kept where the gateway keeps it."""
    clock = SystemClock()
    async with open_memory(clock) as stores:
        means = HostDeps(NoFetch(), stores.tools, clock, read_description)
        make = partial(data_dir.mkdir, mode=0o700, parents=True, exist_ok=True)
        try:
            await to_thread.run_sync(make)
            async with open_sandbox(data_dir / "plugins", means) as sandbox:
                yield sandbox
        except OSError as error:
            fix = "choose another --data-dir"
            raise BadPlugin(f"{data_dir} cannot be used: {error.strerror}; {fix}") from error


async def examine(data_dir: Path, given: Given, configured: PluginDef | None = None) -> Examined:
    """`configured` says what it is granted, if that is not what its author asks for."""
    definition = replace(configured or given.plugin, path=given.file, sha256=None)
    async with opened(data_dir) as sandbox:
        try:
            return await _examined(sandbox, given, definition)
        except Uncompiled as error:
            return Examined(given, PluginAccount(info(definition, None)), problems=(str(error),))


def refusals(config: GatewayConfig) -> list[tuple[str, str, str]]:
    """The plugins and channels that a gateway would refuse at its start, and why. Nothing is kept."""

    async def load(folder: str) -> list[tuple[str, str, str]]:
        found = Plugins()
        async with opened(Path(folder)) as sandbox:
            await found.load(sandbox, config.plugins)
        why = [
            ("plugins", one.name, one.why or "") for one in found.infos if one.state == "refused"
        ]
        return why + [*_closed(config.channels, found)]

    with (
        TemporaryDirectory(prefix="exogate-") as folder,
        logging_to(sys.stderr, "critical", "auto"),
    ):
        return anyio.run(load, folder)


def _closed(channels: Sequence[ChannelDef], found: Plugins) -> Iterator[tuple[str, str, str]]:
    adapters = {one.plugin.name: one for one in found.adapters}
    refused = {one.name for one in found.infos if one.state == "refused"}
    for channel in channels:
        adapter = adapters.get(channel.plugin)
        try:
            if adapter is not None:
                require_openable(channel, adapter.description, SystemClock())
            elif channel.plugin not in refused:
                yield "channels", channel.name, f"plugin {channel.plugin} is no channel adapter"
        except ChannelRefused as error:
            yield "channels", channel.name, error.problem


async def _examined(sandbox: Sandbox, given: Given, definition: PluginDef) -> Examined:
    compiled = await sandbox.compiling.compiled(given.file)
    inspection, needs = compiled.inspection, needed(compiled.inspection)
    told = replace(info(definition, None), kind=inspection.kind, sha256=compiled.sha256)
    problems: list[str] = []
    adapter = None
    try:  # whatever it imports: what it is not granted is another question
        loaded = await sandbox.load(replace(definition, deny_unused=True))
        told, adapter = info(definition, loaded), loaded.described.adapter
        gate = ToolGate(sandbox.tools(loaded), schemas=SchemaChecks(), clock=SystemClock())
        problems += [f"tool {one.name}: {one.why}" for one in gate.refused]
    except PluginRefused as error:
        problems.append(error.problem)
    lacking = frozenset(missing(definition, inspection))
    imports = {name: needs.get(name) for name in inspection.imports}
    touches = PluginAccount(told, inspection.guest, imports, lacking)
    size = (await to_thread.run_sync(given.file.stat)).st_size
    return Examined(given, touches, size, (*_unlike(given, touches), *problems), adapter)


def _unlike(given: Given, found: PluginAccount) -> Iterator[str]:
    """What plugin.toml says otherwise than the file."""
    about, told = given.about, found.info
    if about is None:
        return
    yield from about.problems
    if about.sha256 and about.sha256.lower() != told.sha256:
        yield f"its sha256 is {told.sha256}, plugin.toml says {about.sha256[:64]}; build it again"
    if about.kind != told.kind:
        yield f"it is a {told.kind} plugin; plugin.toml says {about.kind}"
    if told.version is not None and about.version != told.version:
        yield f"it describes version {told.version!r}; plugin.toml says {about.version[:64]!r}"
