"""Accepts a message: routed, bounded, committed, and only then acknowledged and put in its lane."""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import anyio

from gateway.domain.bindings import Route, Share, share_of
from gateway.domain.errors import Busy
from gateway.domain.ids import MessageId, RunId, SessionKey
from gateway.domain.inbound import Inbound
from gateway.domain.inbox import Accepted, Entry, EntryState, NewEntry
from gateway.domain.ports import Clock, Ids, Inbox
from gateway.routing import Router
from gateway.sessions.lanes import Lanes
from gateway.sessions.lines import Lines, Manner, Waiting, WorkOn
from gateway.sessions.runs import LiveRuns

log = logging.getLogger(__name__)

MB = 1_048_576


@dataclass(frozen=True, slots=True)
class Bounds:
    """Beyond them a message is refused honestly; nothing that was accepted is dropped."""

    max_pending: int = 1_000  # of one session
    max_pending_total: int = 100_000
    max_pending_mb: int = 64  # of one session
    max_pending_total_mb: int = 1_024
    max_pending_per_principal: int = 5_000


@dataclass(slots=True)
class _Held:
    """What waits in a session."""

    count: int = 0
    size: int = 0


@dataclass(slots=True)
class _Load:
    """What an accepted message weighs until its end."""

    key: SessionKey
    held: _Held
    share: Share
    size: int


@dataclass(slots=True)
class Reception:
    router: Router
    inbox: Inbox
    lanes: Lanes
    runs: LiveRuns
    work: WorkOn
    clock: Clock
    ids: Ids
    bounds: Bounds = Bounds()
    manner: Manner = Manner()
    lines: Lines = field(init=False)
    _sessions: dict[SessionKey, _Held] = field(default_factory=dict)
    _principals: dict[Share, int] = field(default_factory=dict)
    _total: int = 0
    _total_size: int = 0
    _about_to_start: int = 0
    _refusal: str | None = "the gateway is starting; send it again in a moment"

    def __post_init__(self) -> None:
        self.lines = Lines(self.lanes, self.work, self.clock, self.manner)

    def close(self) -> None:
        """From now on every message is refused with Busy: the gateway is about to restart."""
        self._refusal = "the gateway is restarting; send it again in a moment"

    @property
    def pending(self) -> int:
        return self._total

    async def accept(self, inbound: Inbound) -> Accepted:
        """Gives the ids once the message is durable. A repeated key gives the first one's ids.

        Raises NoRoute, NotOfProject, UnknownAgent, Busy, Conflict, AlreadyHeard or StoreUnavailable: then nothing was accepted.
        """
        route = self.router.resolve(inbound.address, requested=inbound.requested_agent)
        load = self._load(route.session_key, inbound.address.sender, inbound)
        self._admit(load)
        # Whoever waits for this may vanish; the commit must still reach the lane.
        with anyio.CancelScope(shield=True):
            try:
                entry = self._entry(inbound, route)
                accepted = await self._commit(entry, alone=load.held.count == 1)
            except BaseException:
                self._release(load)
                raise
            if accepted.duplicate:
                self._release(load)
            else:
                state: EntryState = "running" if accepted.attempts else "queued"
                entry = replace(entry, memos=()) if entry.memos else entry
                self._line_up(Entry(entry, accepted.seq, state, accepted.attempts), load)
        return accepted

    def open(self) -> None:
        """From now on messages are accepted."""
        self._refusal = None

    async def resume(self) -> int:
        """Takes up, in the order of their accepts, the messages that an earlier process left; only
        then may new ones come in behind them."""
        entries = await self.inbox.unfinished()
        for entry in entries:
            new = entry.new
            load = self._load(new.session_key, new.sender, new)
            self._count(load)
            # The attempt of the process that died is counted; the next one is counted anew.
            self._line_up(replace(entry, state="queued"), load, wait=False)
        self.open()
        if entries:
            log.info("taking up unfinished messages", extra={"count": len(entries)})
        return len(entries)

    async def _commit(self, entry: NewEntry, *, alone: bool) -> Accepted:
        """Counts the first attempt along with the accept if the message will start at once."""
        key = entry.session_key
        begin = (
            alone
            and not self.manner.debounce_s
            and self.lanes.is_idle(key, spoken_for=self._about_to_start)
        )
        self._about_to_start += begin
        try:
            return await self.inbox.accept(entry, begin=begin)
        finally:
            self._about_to_start -= begin

    @contextmanager
    def holding(self, key: SessionKey, size: int) -> Iterator[None]:
        """So many bytes are on their way into a session besides messages. Raises Busy."""
        held = self._sessions.get(key) or _Held()
        self._require_room(held, size, is_whole=False)
        load = _Load(key, held, ((), ""), size)
        self._count(load)
        try:
            yield
        finally:
            self._release(load)

    def _load(self, key: SessionKey, sender: str | None, said: Inbound | NewEntry) -> _Load:
        held = self._sessions.get(key) or _Held()
        size = size_of(said.content) + (size_of(said.whence) if said.whence else 0)
        return _Load(key, held, share_of(key, sender), size)

    def _admit(self, load: _Load) -> None:
        if self._refusal is not None:
            raise Busy(self._refusal)
        bounds, count = self.bounds, load.held.count
        if count >= bounds.max_pending:
            raise Busy(f"{count} messages of this session are waiting already")
        theirs = self._principals.get(load.share, 0)
        if theirs >= bounds.max_pending_per_principal:
            raise Busy(f"{theirs} messages of the same sender are waiting already")
        if self._total >= bounds.max_pending_total:
            raise Busy(f"{self._total} messages are waiting already", retry_after_s=5.0)
        self._require_room(load.held, load.size)
        self._count(load)

    def _require_room(self, held: _Held, size: int, *, is_whole: bool = True) -> None:
        """A whole message always fits where nothing else waits, or it could never be accepted."""
        bounds, total = self.bounds, self._total_size
        if held.size + size > bounds.max_pending_mb * MB and (held.size or not is_whole):
            raise Busy(
                f"what waits in this session would be more than {bounds.max_pending_mb} MB "
                "([queue] max_pending_mb): send it later, or in smaller parts"
            )
        if total + size > bounds.max_pending_total_mb * MB and (total or not is_whole):
            raise Busy(
                f"what waits would be more than {bounds.max_pending_total_mb} MB in all "
                "([queue] max_pending_total_mb): send it later, or in smaller parts",
                retry_after_s=5.0,
            )

    def _count(self, load: _Load) -> None:
        held = load.held
        if not held.count:
            self._sessions[load.key] = held
        held.count += 1
        held.size += load.size
        self._principals[load.share] = self._principals.get(load.share, 0) + 1
        self._total += 1
        self._total_size += load.size

    def _release(self, load: _Load) -> None:
        held = load.held
        held.count -= 1
        held.size -= load.size
        if not held.count:
            del self._sessions[load.key]
        self._principals[load.share] -= 1
        if not self._principals[load.share]:
            del self._principals[load.share]
        self._total -= 1
        self._total_size -= load.size

    def _entry(self, inbound: Inbound, route: Route) -> NewEntry:
        unique = self.ids.new()
        digest = ""
        if inbound.key is not None:
            digest = hashlib.sha256(inbound.fingerprint.encode()).hexdigest()
        return NewEntry(
            message_id=MessageId(f"m_{unique}"),
            run_id=RunId(f"r_{unique}"),
            session_key=route.session_key,
            matched_by=route.matched_by,
            content=inbound.content,
            accepted_at=self.clock.now(),
            platform_id=inbound.key,
            digest=digest,
            context_id=inbound.context_id,
            sender=inbound.address.sender,
            limits=inbound.limits,
            whence=inbound.whence,
            memos=inbound.memos,
        )

    def _line_up(self, entry: Entry, load: _Load, *, wait: bool = True) -> None:
        new = entry.new
        opened = self.clock.monotonic()
        run = self.runs.open(new.run_id, new.session_key, new.accepted_at, opened)
        waiting = Waiting(entry, run, partial(self._release, load), load.share)
        self.lines.join(waiting, wait=wait)


def size_of(text: str) -> int:
    """In bytes; what cannot be encoded is refused by the store."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
