"""Finds the texts, plugins and channels that a start would refuse. A trial stores nothing and connects to nothing."""

import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from anyio import to_thread

from gateway.agent.leaves import Plans
from gateway.channels.adapter_json import read_description
from gateway.channels.room import require_openable
from gateway.channels.webhooks import ChannelRefused
from gateway.config.problems import KeyPath
from gateway.config.values import GatewayConfig
from gateway.control.trees.reader import TreeInvalid
from gateway.domain.errors import GatewayError, SoulUnreadable
from gateway.domain.ports import Clock
from gateway.host.clock import SystemClock
from gateway.host.logs import logging_to
from gateway.memory.souls import Souls
from gateway.sandbox.host_functions import HostDeps
from gateway.sandbox.plugins import NoFetch, Plugins, Sandbox, open_sandbox
from gateway.store.opening import open_memory

Refusal = tuple[KeyPath, str, str]  # the place in the configuration, the name, and the reason


class BadPlugin(GatewayError):
    """The given file or folder is not a usable plugin."""

    code = "bad_plugin"


@asynccontextmanager
async def open_trial_sandbox(data_dir: Path) -> AsyncIterator[Sandbox]:
    """Opens a sandbox without network and store. Compiled code goes to the cache of the data directory."""
    clock = SystemClock()
    async with open_memory(clock) as stores:
        deps = HostDeps(NoFetch(), stores.tools, clock, read_description)
        make = partial(data_dir.mkdir, mode=0o700, parents=True, exist_ok=True)
        try:
            await to_thread.run_sync(make)
            async with open_sandbox(data_dir / "plugins", deps) as sandbox:
                yield sandbox
        except OSError as error:
            fix = "choose another --data-dir"
            raise BadPlugin(f"{data_dir} cannot be used: {error.strerror}; {fix}") from error


def load_for_trial(config: GatewayConfig) -> Sequence[Refusal]:
    """Loads all plugins into a temporary folder. Returns the plugins and channels that a start would refuse."""

    async def load(folder: str) -> Sequence[Refusal]:
        found = Plugins()
        async with open_trial_sandbox(Path(folder)) as sandbox:
            await found.load(sandbox, config.plugins)
        return [*find_refusals(config, found, SystemClock())]

    with (
        TemporaryDirectory(prefix="exogate-") as folder,
        logging_to(sys.stderr, "critical", "auto"),
    ):
        return anyio.run(load, folder)


def find_refusals(config: GatewayConfig, found: Plugins, clock: Clock) -> Iterator[Refusal]:
    """Yields refused plugins, then refused channels; a channel of a refused plugin is left out."""
    adapters = {one.plugin.name: one for one in found.adapters}
    bad = {one.name: one.why or "" for one in found.infos if one.state == "refused"}
    for index, name in enumerate(one.name for one in config.plugins):
        if name in bad:
            key = ("sha256",) if "sha256" in bad[name] else ()
            yield ("plugins", index, *key), name, bad[name]
    for channel in config.channels:
        adapter, why = adapters.get(channel.plugin), ""
        try:
            if adapter is not None:
                require_openable(channel, adapter.description, clock)
            elif channel.plugin not in bad:
                why = f"plugin {channel.plugin} is not a channel adapter"
        except ChannelRefused as error:
            why = error.problem
        if why:
            yield ("channels", channel.name), channel.name, why


async def find_unreadable(*texts: Souls | Plans) -> Mapping[str, str]:
    """Reads all files. Returns the error of each file that cannot be used."""
    bad: dict[str, str] = {}
    for path, read in ((path, each.read) for each in texts for path in each.files):
        try:
            await read(path)
        except (SoulUnreadable, TreeInvalid) as error:
            bad[path] = str(error).partition("\n")[0]
    return bad
