"""The configured channels: opens them, connects them to their platforms, delivers their answers."""

import logging
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

import anyio

from gateway.channels.adapters import Adapter, Description, Poll, Transport, Webhook
from gateway.channels.commands import ChatCommands
from gateway.channels.connections import ConnectedChannel, keep_connected
from gateway.channels.delivery import ChannelSender, Drafts, PlatformClient
from gateway.channels.health import ChannelHealth, Publish
from gateway.channels.intake import Counts, Intake, OpenChannel, Scrub
from gateway.channels.webhooks import (
    ChannelRefused,
    WebhookEndpoint,
    proofs,
    secret_of,
    verifier,
    webhook_address,
)
from gateway.control.notices import Bus
from gateway.domain.channels import ChannelDef, ChannelStatus
from gateway.domain.cluster import Duties
from gateway.domain.errors import Conflict
from gateway.domain.inbox import Accepted, Deliver, Inbound, ReceivedMessage
from gateway.domain.plugins import PluginInfo, PluginSecret
from gateway.domain.ports import ChannelStore, Clock, Fetch, Outbox, SocketClient, Stores
from gateway.domain.supervision import Work, retry_store, supervise
from gateway.sessions.intake import Front
from gateway.sessions.outbox import Deliveries

log = logging.getLogger(__name__)

COMPILED = "its adapter is being compiled"
SENDING_S = 5.0  # the gateway waits so long for running deliveries when it stops

Scrubbing = Callable[[Sequence[PluginSecret]], Scrub]
_SECRET = re.compile(r"\$\{secret:([^{}]+)\}")


class Traffic(NamedTuple):
    """Counts since the start: outcomes of messages, reasons of ignored ones, outcomes of answers."""

    taken: Counts
    ignored: Counts
    delivered: Counts


class AdapterPlugins(Protocol):
    """The plugins; some may still be compiling."""

    @property
    def adapters(self) -> Sequence[Adapter]: ...

    @property
    def infos(self) -> Sequence[PluginInfo]: ...

    async def ready(self, names: Iterable[str]) -> None:
        """Waits until the named plugins are loaded or refused."""


@dataclass(slots=True)
class _Entry:
    """A configured channel. `is_settled` is set once it is open or refused."""

    settings: ChannelDef
    health: ChannelHealth
    opened: OpenChannel | None = None
    is_settled: anyio.Event = field(default_factory=anyio.Event)
    connection: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    parted: anyio.Event | None = None  # set once the connection is closed; None without one


@dataclass(slots=True)
class ChannelRoom:
    """The configured channels. A channel that cannot be opened does not affect the others.

    `scrubbing` removes a channel's secrets from its platform's input. `delivered` counts deliveries.
    `connect` and `join` start the connection and the deliveries of a channel that is opened later.
    """

    intake: Intake
    store: ChannelStore
    clock: Clock
    publish: Publish
    webhooks: WebhookEndpoint
    scrubbing: Scrubbing
    delivered: Counts = field(default_factory=Counter)
    deliveries: Deliveries | None = None
    duties: Duties | None = None  # with several nodes, the channels of this node
    connect: Callable[[str], None] = lambda name: None
    join: Callable[[str, OpenChannel], None] = lambda name, opened: None
    senders: dict[str, Deliver] = field(default_factory=dict)
    drafts: dict[str, Drafts] = field(default_factory=dict)
    connections: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _entries: dict[str, _Entry] = field(default_factory=dict)

    async def load(self, channels: Iterable[ChannelDef], plugins: AdapterPlugins) -> None:
        """Opens or refuses channels, except those whose adapter is compiling. Raises
        StoreUnavailable."""
        late = {one.name for one in plugins.infos if one.state == "compiling"}
        for channel in channels:
            health = ChannelHealth(channel, channel.transport, self.clock, self.publish)
            entry = self._entries[channel.name] = _Entry(channel, health)
            if channel.plugin in late:
                health.waits_for = COMPILED
                self.webhooks.coming.add(channel.name)
            else:
                await self._open_or_refuse(entry, plugins)
                entry.is_settled.set()

    async def renew(self, channels: Sequence[ChannelDef], plugins: AdapterPlugins) -> None:
        """Replaces the channels. An unchanged channel keeps its connection; a changed one closes the
        old connection before it opens a new one. Raises StoreUnavailable."""
        stay = await self._unchanged(channels, plugins)
        late = [one for one in channels if one.name not in stay]
        await self._close(self._entries.keys() - stay.keys(), {one.name for one in late})
        self._entries = stay
        await self.load(late, plugins)
        self.refuse_shared_proofs(*(one.name for one in late))
        self._entries = {one.name: self._entries[one.name] for one in channels}
        self._begin(one.name for one in late)
        for name in self.senders.keys() - self.names:
            del self.senders[name]
        if self.deliveries is not None:
            await self.deliveries.renew(frozenset((one.name, one.account) for one in channels))

    async def _unchanged(
        self, channels: Sequence[ChannelDef], plugins: AdapterPlugins
    ) -> dict[str, _Entry]:
        """Returns the open channels whose configuration and adapter are unchanged."""
        for entry in self._entries.values():
            await entry.is_settled.wait()
        adapters = {one.plugin.name: one for one in plugins.adapters}
        return {
            name: one
            for name, one in self._entries.items()
            if one.opened is not None
            and one.settings in channels
            and one.opened.adapter == adapters.get(one.settings.plugin)
        }

    def _begin(self, names: Iterable[str]) -> None:
        """Starts the connections and deliveries of newly opened channels."""
        for name in names:
            entry = self._entries[name]
            if entry.is_settled.is_set():
                self.webhooks.coming.discard(name)
            if entry.opened is not None:
                self.join(name, entry.opened)
                self.connect(name)

    async def _close(self, names: Collection[str], coming: Collection[str]) -> None:
        """Closes channels. Callers of a channel that is `coming` again are told to retry."""
        closed = [self._entries[name] for name in names]
        for entry in closed:
            name = entry.settings.name
            self.webhooks.addresses.pop(name, None)
            self.drafts.pop(name, None)
            if name in coming:
                self.webhooks.coming.add(name)
            entry.connection.cancel()
        for entry in closed:
            if entry.parted is not None:
                await entry.parted.wait()

    async def keep_connected(self, name: str, work: Callable[[OpenChannel], Work]) -> None:
        """Runs the connection of a channel until it is closed, or until only an operator can help."""
        entry, task = self._entries[name], f"channel:{name}"
        entry.parted = anyio.Event()

        async def connected() -> None:
            opened = await self.wait_open(name)
            if opened is not None:
                await work(opened)()

        with entry.connection:
            await supervise(task, connected, self.clock, may_end=True)
        entry.parted.set()

    async def open_late(self, plugins: AdapterPlugins) -> None:
        """Opens each remaining channel once its adapter is compiled. Raises StoreUnavailable."""
        async with anyio.create_task_group() as group:
            for entry in self._entries.values():
                if not entry.is_settled.is_set():
                    group.start_soon(self._open_late, entry, plugins)

    async def _open_late(self, entry: _Entry, plugins: AdapterPlugins) -> None:
        name = entry.settings.name
        await plugins.ready([entry.settings.plugin])
        await self._open_or_refuse(entry, plugins)
        self.refuse_shared_proofs(name)
        entry.health.waits_for = None
        self.webhooks.coming.discard(name)
        entry.is_settled.set()

    async def _open_or_refuse(self, entry: _Entry, plugins: AdapterPlugins) -> None:
        try:
            entry.opened = await self._open(entry.settings, entry.health, plugins)
        except ChannelRefused as error:
            self._refuse(entry, error.problem)

    async def _open(
        self, channel: ChannelDef, health: ChannelHealth, plugins: AdapterPlugins
    ) -> OpenChannel:
        """Raises ChannelRefused, StoreUnavailable."""
        adapter = next((one for one in plugins.adapters if one.plugin.name == channel.plugin), None)
        if adapter is None:
            why = next((one.why for one in plugins.infos if one.name == channel.plugin), None)
            state = f"not loaded: {why}" if why else "no channel adapter"
            raise ChannelRefused(channel.name, f"plugin {channel.plugin} is {state}")
        transport = transport_of(channel, adapter.description)
        health.transport = transport.type
        _check_needs(channel, adapter.description)
        place = (channel.name, channel.account)
        memos = await retry_store(self.clock, self.store.read_memos, *place)
        state = next((memo.text for memo in memos if memo.slot == "adapter"), "")
        scrub = self.scrubbing(channel.secrets)
        opened = OpenChannel(channel, adapter, transport, health, self.intake, scrub, state)
        if isinstance(transport, Webhook):
            address = webhook_address(opened, transport, self.clock)
            self.webhooks.addresses[channel.name] = address
        return opened

    def _refuse(self, entry: _Entry, problem: str) -> None:
        entry.opened = None
        entry.health.end("refused", problem)
        extra = {"channel": entry.settings.name, "why": problem}
        log.warning("channel_refused", extra=extra)

    def refuse_shared_proofs(self, *late: str) -> None:
        """Refuses webhook channels that share a secret or key with another one; with `late`, only
        these channels, because the others are running. The check of the configuration covers only
        bundled adapters."""
        known = {
            name: proofs(one.channel.adapter.description, one.channel.settings)
            for name, one in self.webhooks.addresses.items()
        }
        for name in known:
            others = [other for other in known if other != name and known[other] & known[name]]
            if others and (not late or name in late):
                del self.webhooks.addresses[name]
                others_named = ", ".join(others)
                why = f"it shares a secret or key with {others_named}; give each channel its own"
                self._refuse(self._entries[name], why)

    async def wait_open(self, name: str) -> OpenChannel | None:
        """Waits until a channel is open and returns it; None if it is refused."""
        await self._entries[name].is_settled.wait()
        return self._entries[name].opened

    @property
    def names(self) -> Collection[str]:
        """The names of the channels that are open or may open later."""
        entries = self._entries.items()
        return {name for name, one in entries if one.opened or not one.is_settled.is_set()}

    async def retry_message(self, letter: ReceivedMessage) -> None:
        """Accepts an unreadable message again. Raises Conflict if its channel is not open, and as
        OpenChannel.retry_message."""
        entry = self._entries.get(letter.channel)
        opened = entry and entry.opened
        if not opened or opened.settings.account != letter.account:
            raise Conflict(f"channel {letter.channel} is not open; see `exogate channel list`")
        await opened.retry_message(letter)

    def nudge(self) -> None:
        """Wakes the deliveries."""
        if self.deliveries is not None:
            self.deliveries.nudge()

    def show_progress(self, inbound: Inbound, accepted: Accepted) -> None:
        """Shows the sender of an accepted message that an answer is coming."""
        drafts = self.drafts.get(inbound.address.channel)
        if self.duties is not None and not self.duties.holds(inbound.address.channel):
            return  # another node sends the answer
        if drafts is not None and inbound.whence is not None and not accepted.duplicate:
            drafts.start(accepted.run_id, inbound.whence)

    async def drain(self) -> None:
        """Finishes the running deliveries and starts no others."""
        if self.deliveries is not None:
            with anyio.move_on_after(SENDING_S):
                await self.deliveries.drain()

    def disconnect(self) -> None:
        """Closes all connections for good, so that their sessions can be resumed."""
        self.connections.cancel()

    def statuses(self) -> tuple[ChannelStatus, ...]:
        return tuple(one.health.status for one in self._entries.values())


def channel_room(
    stores: Stores,
    commands: ChatCommands,
    *,
    publish: Publish,
    scrubbing: Scrubbing,
    traffic: Traffic,
) -> ChannelRoom:
    """Returns a room without open channels. Deliveries wait until `delivering`."""
    front, store, clock = commands.front, stores.channels, commands.front.clock

    async def accept(inbound: Inbound) -> Accepted:
        accepted = await front.intake.accept(inbound)
        room.show_progress(inbound, accepted)
        return accepted

    how = (commands.access, commands.run, traffic.taken, traffic.ignored)
    intake = Intake(accept, store, clock, lambda: room.nudge(), *how)
    webhooks = WebhookEndpoint(stores.audit, clock)
    room = ChannelRoom(intake, store, clock, publish, webhooks, scrubbing, traffic.delivered)
    return room


def require_openable(channel: ChannelDef, description: Description, clock: Clock) -> None:
    """Raises ChannelRefused if a start would refuse the channel, or if a secret is missing."""
    transport = transport_of(channel, description)
    _check_needs(channel, description)
    if isinstance(transport, Webhook):
        verifier(description, channel, clock)
    for name in secrets_of(transport):
        secret_of(channel, name)


def secrets_of(transport: Transport) -> Sequence[str]:
    """Returns the required secrets of a transport; `setup` is skipped without its secrets."""
    if isinstance(transport, Webhook):
        return (transport.challenge.secret,) if transport.challenge else ()
    needed = replace(transport, setup=None) if isinstance(transport, Poll) else transport
    return tuple(dict.fromkeys(_SECRET.findall(str(needed))))


def transport_of(channel: ChannelDef, description: Description) -> Transport:
    """Returns the configured transport, else the first. Raises ChannelRefused."""
    offered = description.transports
    found = next((one for one in offered if channel.transport in {None, one.type}), None)
    if found is None:
        kinds = " or ".join(one.type for one in offered)
        problem = f"its adapter offers no {channel.transport}; set {kinds}"
        raise ChannelRefused(channel.name, problem)
    return found


def _check_needs(channel: ChannelDef, description: Description) -> None:
    """Raises ChannelRefused if a required secret or setting is missing."""
    for name in description.secrets:
        secret_of(channel, name)
    for name in description.needs:
        if channel.config.get(name) in (None, ""):
            where = f"[channels.{channel.name}] config"
            raise ChannelRefused(channel.name, f"config.{name} is missing; set it in {where}")


@asynccontextmanager
async def delivering(
    room: ChannelRoom,
    accounts: frozenset[tuple[str, str]],
    outbox: Outbox,
    front: Front,
    bus: Bus,
    *,
    fetch: Fetch,
) -> AsyncIterator[None]:
    """Delivers answers to the open channels. `accounts` holds all configured accounts: answers wait
    for a channel that is refused."""
    async with anyio.create_task_group() as group:
        coming = {name: anyio.Event() for name in room.names}

        def join(name: str, one: OpenChannel) -> None:
            client = PlatformClient(one.settings, one.adapter, fetch, front.clock)
            drafts = room.drafts[name] = Drafts(client, front.live.get, group)
            room.senders[name] = ChannelSender(client, one.health, drafts.draft_of)

        async def join_once_open(name: str) -> None:
            one = await room.wait_open(name)
            if one is not None:
                join(name, one)
            coming[name].set()

        room.join = join
        for name in coming:
            group.start_soon(join_once_open, name)
        how = (front.clock, bus.publish, random.random, coming, room.delivered, room.duties)
        deliveries = room.deliveries = Deliveries(outbox, room.senders, accounts, *how)
        stop = bus.subscribe(lambda _: deliveries.nudge(), types=frozenset({"session.end"}))
        work = partial(supervise, "deliveries", deliveries.run, front.clock, may_end=True)
        group.start_soon(work)
        try:
            yield
        finally:
            stop()
            group.cancel_scope.cancel()


async def keep_channels_connected(room: ChannelRoom, fetch: Fetch, sockets: SocketClient) -> None:
    """Keeps the connections of the channels until the room disconnects."""

    def work(opened: OpenChannel) -> Work:
        what = (fetch, sockets, room.store, room.clock, random.random)
        keep = partial(keep_connected, ConnectedChannel(opened, *what))
        if room.duties is None or isinstance(opened.transport, Webhook):
            return keep
        return partial(room.duties.keep, opened.settings.name, keep)

    with room.connections:
        async with anyio.create_task_group() as group:

            def connect(name: str) -> None:
                group.start_soon(room.keep_connected, name, work, name=f"channel:{name}")

            room.connect = connect
            for name in room.names:
                connect(name)
            await anyio.sleep_forever()
