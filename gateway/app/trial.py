"""Which plugins and channels are refused, and why; at a trial nothing is kept, and nothing is reached."""

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import anyio
from anyio import to_thread

from gateway.channels.adapter_json import read_description
from gateway.channels.room import require_openable
from gateway.channels.webhooks import ChannelRefused
from gateway.config.values import GatewayConfig
from gateway.domain.channels import ChannelDef
from gateway.domain.errors import GatewayError
from gateway.domain.ports import Clock
from gateway.host.clock import SystemClock
from gateway.host.logs import logging_to
from gateway.sandbox.host_functions import HostDeps
from gateway.sandbox.plugins import NoFetch, Plugins, Sandbox, open_sandbox
from gateway.store.opening import open_memory

Refusal = tuple[Literal["plugins", "channels"], str, str]  # its name, and why


class BadPlugin(GatewayError):
    """What was given is no plugin, or not a whole one; the text says what to do."""

    code = "bad_plugin"


@asynccontextmanager
async def open_trial_sandbox(data_dir: Path) -> AsyncIterator[Sandbox]:
    """A sandbox that reaches nothing; what it compiles is kept where the gateway keeps it."""
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
    """The plugins and channels that a gateway would refuse at its start. Nothing is kept."""

    async def load(folder: str) -> Sequence[Refusal]:
        found = Plugins()
        async with open_trial_sandbox(Path(folder)) as sandbox:
            await found.load(sandbox, config.plugins)
        return [*find_refusals(config.channels, found, SystemClock())]

    with (
        TemporaryDirectory(prefix="exogate-") as folder,
        logging_to(sys.stderr, "critical", "auto"),
    ):
        return anyio.run(load, folder)


def find_refusals(
    channels: Sequence[ChannelDef], found: Plugins, clock: Clock
) -> Iterator[Refusal]:
    """A channel whose plugin is refused is not named with it."""
    adapters = {one.plugin.name: one for one in found.adapters}
    bad = {one.name: one.why or "" for one in found.infos if one.state == "refused"}
    for name, why in bad.items():
        yield "plugins", name, why
    for channel in channels:
        adapter = adapters.get(channel.plugin)
        try:
            if adapter is not None:
                require_openable(channel, adapter.description, clock)
            elif channel.plugin not in bad:
                yield "channels", channel.name, f"plugin {channel.plugin} is no channel adapter"
        except ChannelRefused as error:
            yield "channels", channel.name, error.problem
