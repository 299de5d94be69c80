"""Accepts a message: routed, bounded, committed, and only then acknowledged and put in its lane."""

import hashlib
import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial

import anyio

from gateway.domain.bindings import Route
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


@dataclass(frozen=True, slots=True)
class Bounds:
    """Beyond them a message is refused honestly; nothing that was accepted is dropped."""

    max_pending: int = 1_000  # of one session
    max_pending_total: int = 100_000


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
    _pending: Counter[SessionKey] = field(default_factory=Counter)
    _total: int = 0
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
        key = route.session_key
        self._admit(key)
        # Whoever waits for this may vanish; the commit must still reach the lane.
        with anyio.CancelScope(shield=True):
            try:
                entry = self._entry(inbound, route)
                accepted = await self._commit(entry)
            except BaseException:
                self._release(key)
                raise
            if accepted.duplicate:
                self._release(key)
            else:
                state: EntryState = "running" if accepted.attempts else "queued"
                entry = replace(entry, memos=()) if entry.memos else entry
                self._line_up(Entry(entry, accepted.seq, state, accepted.attempts))
        return accepted

    def open(self) -> None:
        """From now on messages are accepted."""
        self._refusal = None

    async def resume(self) -> int:
        """Takes up, in the order of their accepts, the messages that an earlier process left; only
        then may new ones come in behind them."""
        entries = await self.inbox.unfinished()
        for entry in entries:
            self._pending[entry.new.session_key] += 1
            self._total += 1
            # The attempt of the process that died is counted; the next one is counted anew.
            self._line_up(replace(entry, state="queued"), wait=False)
        self.open()
        if entries:
            log.info("taking up unfinished messages", extra={"count": len(entries)})
        return len(entries)

    async def _commit(self, entry: NewEntry) -> Accepted:
        """Counts the first attempt along with the accept if the message will start at once."""
        key = entry.session_key
        alone = self._pending[key] == 1
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

    def _admit(self, key: SessionKey) -> None:
        if self._refusal is not None:
            raise Busy(self._refusal)
        if self._pending[key] >= self.bounds.max_pending:
            raise Busy(f"{self._pending[key]} messages of this session are waiting already")
        if self._total >= self.bounds.max_pending_total:
            raise Busy(f"{self._total} messages are waiting already", retry_after_s=5.0)
        self._pending[key] += 1
        self._total += 1

    def _release(self, key: SessionKey) -> None:
        self._total -= 1
        self._pending[key] -= 1
        if not self._pending[key]:
            del self._pending[key]

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

    def _line_up(self, entry: Entry, *, wait: bool = True) -> None:
        new = entry.new
        opened = self.clock.monotonic()
        run = self.runs.open(new.run_id, new.session_key, new.accepted_at, opened)
        waiting = Waiting(entry, run, partial(self._release, new.session_key))
        self.lines.join(waiting, wait=wait)
