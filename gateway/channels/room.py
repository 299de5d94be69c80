"""The configured channels: opened with all they need, connected to their platforms, and delivering."""

import logging
import random
import re
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

import anyio

from gateway.channels.adapters import Adapter, Description, Poll, Socket, Webhook
from gateway.channels.commands import ChatCommands
from gateway.channels.delivery import Courier, Post
from gateway.channels.doorkeeping import Doorman
from gateway.channels.intake import Intake
from gateway.channels.live import LiveChannel
from gateway.channels.progress import Health, Tell
from gateway.channels.streaming import Streaming
from gateway.channels.supervision import supervise
from gateway.channels.translating import Scrub, WayIn
from gateway.channels.verification import ChannelRefused, proofs, secret_of, verifier
from gateway.channels.webhooks import WebhookDoor, address
from gateway.control.notices import Bus
from gateway.domain.channels import ChannelDef, ChannelStatus
from gateway.domain.dialling import Dialler
from gateway.domain.errors import Conflict
from gateway.domain.inbox import Accepted, HeardMessage, Inbound
from gateway.domain.outbox import Deliver
from gateway.domain.plugins import PluginInfo, PluginSecret
from gateway.domain.ports import ChannelStore, Clock, Fetch, FetchGrant, Outbox, Stores
from gateway.domain.supervision import supervise as keep_at_it
from gateway.sessions.intake import Front
from gateway.sessions.outbox import Deliveries

log = logging.getLogger(__name__)

COMPILED = "its adapter is being compiled"
SENDING_S = 5.0  # for answers that are on their way to a platform when we stop

Transport = Webhook | Poll | Socket
Counts = Counter[tuple[str, str]]  # by channel and another word
Accounts = frozenset[tuple[str, str]]
Scrubbing = Callable[[Sequence[PluginSecret]], Scrub]
_SECRET = re.compile(r"\$\{secret:([^{}]+)\}")


class Traffic(NamedTuple):
    """Counts since the start: what became of messages, why some are ignored, what became of answers."""

    taken: Counts
    ignored: Counts
    delivered: Counts


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """A channel that has all it needs. `leave`: where its recipes may go, with any of its secrets."""

    way_in: WayIn
    transport: Transport
    health: Health
    leave: FetchGrant


@dataclass(frozen=True, slots=True)
class ComingChannel:
    """One that is to be opened. `is_over`: it is open or refused, after its adapter was compiled."""

    channel: ChannelDef
    health: Health
    is_over: anyio.Event = field(default_factory=anyio.Event)


class Compiling(Protocol):
    """The plugins, some of which are still being compiled."""

    @property
    def adapters(self) -> Sequence[Adapter]: ...

    @property
    def infos(self) -> Sequence[PluginInfo]: ...

    async def ready(self, names: Iterable[str]) -> None:
        """Waits until these are loaded or refused."""
        ...


@dataclass(slots=True)
class ChannelRoom:
    """Opens channels. A channel that cannot be opened keeps no other from working. `scrubbing` takes a
    channel's secrets out of what its platform sends. `delivered` counts deliveries."""

    intake: Intake
    memos: ChannelStore
    clock: Clock
    tell: Tell
    door: WebhookDoor
    scrubbing: Scrubbing
    delivered: Counts = field(default_factory=Counter)
    open: list[OpenChannel] = field(default_factory=list)
    coming: dict[str, ComingChannel] = field(default_factory=dict)
    deliveries: Deliveries | None = None
    lines: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _health: list[Health] = field(default_factory=list)

    async def load(
        self,
        channels: Iterable[ChannelDef],
        adapters: Sequence[Adapter],
        infos: Sequence[PluginInfo],
    ) -> None:
        """Raises StoreUnavailable."""
        late = {one.name for one in infos if one.state == "compiling"}
        for channel in channels:
            health = Health(channel, channel.transport, self.clock, self.tell)
            self._health.append(health)
            coming = ComingChannel(channel, health)
            if channel.plugin in late:
                health.waits_for = COMPILED
                self.door.coming.add(channel.name)
                self.coming[channel.name] = coming
            else:
                await self._open_or_refuse(coming, adapters, infos)

    async def open_late(self, plugins: Compiling) -> None:
        """Opens each channel that is coming once its adapter is compiled. Raises StoreUnavailable."""
        async with anyio.create_task_group() as group:
            for coming in self.coming.values():
                if not coming.is_over.is_set():
                    group.start_soon(self._open_late, coming, plugins)

    async def _open_late(self, coming: ComingChannel, plugins: Compiling) -> None:
        name = coming.channel.name
        await plugins.ready([coming.channel.plugin])
        await self._open_or_refuse(coming, plugins.adapters, plugins.infos)
        self.refuse_alike(name)
        coming.health.waits_for = None
        self.door.coming.discard(name)
        coming.is_over.set()

    async def opened(self, name: str) -> OpenChannel | None:
        """Waits for a channel that is coming. None: it is refused."""
        if name in self.coming:
            await self.coming[name].is_over.wait()
        return next((one for one in self.open if one.way_in.channel.name == name), None)

    @property
    def names(self) -> Collection[str]:
        """Of the channels that are open, or may be later."""
        return {one.way_in.channel.name for one in self.open} | self.coming.keys()

    def refuse_alike(self, *late: str) -> None:
        """Refuses webhook channels that share a secret or key. The configuration is checked for that only
        for adapters that ship with the gateway. With names only these are refused: the others are at
        work."""
        called = [one for one in self.open if isinstance(one.transport, Webhook)]
        known = {
            one.way_in.channel.name: proofs(one.way_in.adapter.description, one.way_in.channel)
            for one in called
        }
        for one in called:
            name = one.way_in.channel.name
            others = [other for other in known if other != name and known[other] & known[name]]
            if others and (not late or name in late):
                problem = (
                    f"its callers prove who they are by the same secret or key as those of "
                    f"{', '.join(others)}, so each may take the other's calls; give each its own"
                )
                self.open.remove(one)
                del self.door.addresses[name]
                one.health.end("refused", problem)
                log.warning("a channel is refused", extra={"channel": name, "why": problem})

    async def take_again(self, letter: HeardMessage) -> None:
        """Raises Conflict, and as WayIn.take_again."""
        place = (letter.channel, letter.account)
        ways = (one.way_in for one in self.open)
        way = next((one for one in ways if (one.channel.name, one.channel.account) == place), None)
        if way is None:
            raise Conflict(f"channel {letter.channel} is not open: see `exogate channel list`")
        await way.take_again(letter)

    async def drain(self) -> None:
        """Finishes deliveries that are being sent; starts no other."""
        if self.deliveries is not None:
            with anyio.move_on_after(SENDING_S):
                await self.deliveries.drain()

    def hang_up(self) -> None:
        """Closes the connections to platforms so that their sessions can be resumed, and opens none again."""
        self.lines.cancel()

    def statuses(self) -> tuple[ChannelStatus, ...]:
        return tuple(one.status for one in self._health)

    async def _open_or_refuse(
        self, coming: ComingChannel, adapters: Sequence[Adapter], infos: Sequence[PluginInfo]
    ) -> None:
        channel = coming.channel
        try:
            await self._open(channel, _adapter(channel, adapters, infos), coming.health)
        except ChannelRefused as error:
            coming.health.end("refused", error.problem)
            extra = {"channel": channel.name, "why": error.problem}
            log.warning("a channel is refused", extra=extra)

    async def _open(self, channel: ChannelDef, adapter: Adapter, health: Health) -> None:
        transport = transport_of(channel, adapter.description)
        health.transport = transport.type
        _check_needs(channel, adapter.description)
        memos = await self.memos.read_memos(channel.name, channel.account)
        state = next((memo.text for memo in memos if memo.slot == "adapter"), "")
        way_in = WayIn(channel, adapter, self.intake, self.scrubbing(channel.secrets), state)
        if isinstance(transport, Webhook):
            self.door.addresses[channel.name] = address(way_in, transport, health, self.clock)
        leave = FetchGrant(adapter.plugin.origins, channel.secrets)
        self.open.append(OpenChannel(way_in, transport, health, leave))


def channel_room(
    stores: Stores,
    commands: ChatCommands,
    *,
    tell: Tell,
    scrubbing: Scrubbing,
    traffic: Traffic,
) -> ChannelRoom:
    """No channel is open yet. Deliveries wait until somebody delivers."""
    front, memos = commands.front, stores.channels
    clock = front.clock
    intake = Intake(
        front.intake.accept,
        stores.channels,
        memos,
        clock,
        lambda: None,
        Doorman(commands.book),
        commands,
        traffic.taken,
        traffic.ignored,
    )
    door = WebhookDoor(stores.audit, clock)
    return ChannelRoom(intake, memos, clock, tell, door, scrubbing, traffic.delivered)


def _adapter(
    channel: ChannelDef, adapters: Sequence[Adapter], infos: Sequence[PluginInfo]
) -> Adapter:
    """Raises ChannelRefused."""
    found = next((one for one in adapters if one.plugin.name == channel.plugin), None)
    if found is not None:
        return found
    why = next((one.why for one in infos if one.name == channel.plugin), None)
    problem = f"plugin {channel.plugin} is not loaded: {why}" if why else ""
    raise ChannelRefused(channel.name, problem or f"plugin {channel.plugin} is no channel adapter")


def require_openable(channel: ChannelDef, description: Description, clock: Clock) -> None:
    """Raises ChannelRefused for what a start would refuse, or what each connection would lack."""
    transport = transport_of(channel, description)
    _check_needs(channel, description)
    if isinstance(transport, Webhook):
        verifier(description, channel, clock)
    for name in secrets_of(transport):
        secret_of(channel, name)


def secrets_of(transport: Transport) -> Sequence[str]:
    """The secrets that a transport needs; a `setup` is left out where they are missing."""
    if isinstance(transport, Webhook):
        return (transport.challenge.secret,) if transport.challenge else ()
    needed = replace(transport, setup=None) if isinstance(transport, Poll) else transport
    return tuple(dict.fromkeys(_SECRET.findall(str(needed))))


def transport_of(channel: ChannelDef, description: Description) -> Transport:
    """The one that is configured, else the first. Raises ChannelRefused."""
    offered = description.transports
    found = next((one for one in offered if channel.transport in {None, one.type}), None)
    if found is None:
        kinds = " or ".join(one.type for one in offered)
        raise ChannelRefused(
            channel.name, f"its adapter offers no {channel.transport}; set {kinds}"
        )
    return found


def _check_needs(channel: ChannelDef, description: Description) -> None:
    """Raises ChannelRefused."""
    for name in description.secrets:
        secret_of(channel, name)
    for name in description.needs:
        if channel.config.get(name) in (None, ""):
            where = f"[channels.{channel.name}] config"
            raise ChannelRefused(channel.name, f"config.{name} is missing; set it in {where}")


@asynccontextmanager
async def delivering(
    room: ChannelRoom, accounts: Accounts, outbox: Outbox, front: Front, bus: Bus, *, fetch: Fetch
) -> AsyncIterator[None]:
    """Delivers answers to the open channels. `accounts` are those of all that are configured: answers
    wait for a channel that is refused."""
    async with anyio.create_task_group() as group:
        couriers: dict[str, Deliver] = {}
        streams: dict[str, Streaming] = {}
        coming = {name: anyio.Event() for name in room.names}

        async def join(name: str) -> None:
            one = await room.opened(name)
            if one is not None:
                post = Post(one.way_in.channel, one.way_in.adapter, fetch, front.clock)
                streams[name] = Streaming(post, front.live.get, group)
                couriers[name] = Courier(post, one.health, streams[name].draft_of)
            coming[name].set()

        for name in coming:
            group.start_soon(join, name)
        how = (front.clock, bus.publish, random.random, coming, room.delivered)
        deliveries = Deliveries(outbox, couriers, accounts, *how)
        room.intake.nudge, room.deliveries = deliveries.nudge, deliveries
        room.intake.accept = partial(_accept, room.intake.accept, streams)
        stop = bus.subscribe(lambda _: deliveries.nudge(), types=frozenset({"session.end"}))
        work = partial(keep_at_it, "deliveries", deliveries.run, front.clock, may_end=True)
        group.start_soon(work)
        try:
            yield
        finally:
            stop()
            group.cancel_scope.cancel()


async def _accept(
    accept: Callable[[Inbound], Awaitable[Accepted]],
    streams: Mapping[str, Streaming],
    inbound: Inbound,
) -> Accepted:
    """Accepts a message, and shows its sender that an answer is coming."""
    accepted = await accept(inbound)
    stream = streams.get(inbound.address.channel)
    if stream is not None and inbound.whence is not None and not accepted.duplicate:
        stream.follow(accepted.run_id, inbound.whence)
    return accepted


async def keep_lines(room: ChannelRoom, fetch: Fetch, dialler: Dialler) -> None:
    """Keeps the connections of the channels until the room hangs up."""
    with room.lines:
        async with anyio.create_task_group() as group:
            for name in room.names:
                work = partial(_keep_line, room, name, fetch, dialler)
                task = f"channel:{name}"
                kept = partial(keep_at_it, task, work, room.clock, may_end=True)
                group.start_soon(kept, name=task)


async def _keep_line(room: ChannelRoom, name: str, fetch: Fetch, dialler: Dialler) -> None:
    opened = await room.opened(name)
    if opened is None:
        return
    live = LiveChannel(
        way_in=opened.way_in,
        leave=opened.leave,
        fetch=fetch,
        dialler=dialler,
        memos=room.memos,
        health=opened.health,
        clock=room.clock,
        jitter=random.random,
    )
    await supervise(live, opened.transport)
