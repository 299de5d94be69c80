"""Delivers the outbox. `sending` is written before the network call, and every answer reaches one end."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

import anyio
from anyio.abc import TaskGroup

from gateway.domain.cluster import Duties
from gateway.domain.errors import Conflict, NotFound, StoreUnavailable
from gateway.domain.events import Event, Severity
from gateway.domain.inbox import TWICE, Deliver, Delivery, DeliveryState, Receipt
from gateway.domain.ports import Clock, Outbox
from gateway.domain.supervision import backoff_s, contain, result_of, retry_store, supervise

log = logging.getLogger(__name__)

MOST_TRIES = 8
GIVES_UP_S = 86_400.0  # limit of waits that the platform itself asks for
AT_WORK = 1_024  # deliveries of a channel
REST_S = 1.0
DEFECT = Receipt("failed", why="a defect in the gateway; see the log")

NotOurs = Literal["not ours"]


class _Draining(Exception):
    """The next part of a delivery must not begin."""


@dataclass(slots=True)
class _Line:
    """The running deliveries of one channel. `sending` are those with a network call under way."""

    ids: set[str] = field(default_factory=set)
    sending: set[str] = field(default_factory=set)
    news: anyio.Event = field(default_factory=anyio.Event)
    is_draining: bool = False
    is_ours: bool = False  # this node has settled the interrupted deliveries of the node before
    may: Callable[[], bool] = lambda: True  # may this node continue to send?


@dataclass(slots=True)
class _Attempt:
    """The count of tries of one delivery, by part, as the outbox counts."""

    outbox: Outbox
    line: _Line
    clock: Clock
    id: str
    arrived: int
    tries: int
    receipt: str | None = None

    async def sending(
        self,
        arrived: int,
        *,
        is_safe: bool = False,
        receipt: str | None = None,
        waits: bool = False,
    ) -> None:
        if waits:  # records the arrived parts first, so that they are not sent again
            await retry_store(self.clock, self.outbox.arrived, self.id, arrived, receipt=receipt)
            self.arrived, self.tries = arrived, 0
            self.line.sending.discard(self.id)
            self.line.news.set()
            return
        is_begun = self.id in self.line.sending
        if self.line.is_draining and not is_begun:
            raise _Draining
        is_same = is_begun and arrived == self.arrived
        if is_same and receipt == self.receipt:
            return  # the same part in another form
        await self.outbox.sending(self.id, arrived, is_safe=is_safe, receipt=receipt)
        if not self.line.may():  # another node has the channel; nothing was sent
            now = self.clock.now()
            await self.outbox.settle(self.id, "pending", at=now, due_at=now)
            raise _Draining
        self.line.sending.add(self.id)
        if not is_same:
            self.tries = 1 if arrived > self.arrived else self.tries + 1
        self.arrived, self.receipt = arrived, receipt


@dataclass(slots=True)
class Deliveries:
    """Sends due deliveries: channels side by side, one answer of a session at a time.

    `counts` counts by channel and final state. `fraction` returns random numbers from 0 to 1. `coming`
    holds channels that are still starting; the event is set once a channel has started or failed.
    """

    outbox: Outbox
    channels: Mapping[str, Deliver]
    known: frozenset[tuple[str, str]]  # configured channels with their accounts, also closed ones
    clock: Clock
    publish: Callable[[Event], None]
    fraction: Callable[[], float]
    coming: Mapping[str, anyio.Event] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    duties: Duties | None = None  # None: this node delivers for all
    _lines: dict[str, _Line] = field(default_factory=dict)
    _group: TaskGroup | None = None  # once it runs

    def nudge(self) -> None:
        """Wakes the channels after a delivery was committed."""
        for line in self._lines.values():
            line.news.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        self._lines = {name: _Line() for name in {*self.channels, *self.coming}}
        if self.duties is None:
            await retry_store(self.clock, self._settle_interrupted)
        async with anyio.create_task_group() as self._group:
            for name in self._lines:
                self._start(self._group, name)
            await anyio.sleep_forever()

    def _start(self, group: TaskGroup, name: str) -> None:
        work, task = partial(self._deliver_channel, name), f"deliveries:{name}"
        group.start_soon(partial(supervise, task, work, self.clock, may_end=True))

    async def renew(self, known: frozenset[tuple[str, str]]) -> None:
        """Replaces the configured channels. Running deliveries continue. Deliveries to removed channels
        become dead letters. Raises StoreUnavailable."""
        self.known = known
        for name, line in self._lines.items():
            if name not in self.channels and name not in self.coming:
                line.is_draining = True
                line.news.set()
        for name in self.channels:
            line = self._lines.get(name) or _Line(is_draining=True)
            if self._group is not None and line.is_draining:
                self._lines[name] = replace(line, is_draining=False)  # the old line still ends
                self._start(self._group, name)
        await retry_store(self.clock, self.outbox.strand, known, at=self.clock.now())

    async def drain(self) -> None:
        """Begins no more deliveries, and returns when no network call is under way."""
        for line in self._lines.values():
            line.is_draining = True
        for line in self._lines.values():
            while line.sending:
                line.news = anyio.Event()
                await line.news.wait()

    async def _settle_interrupted(self, late: str | None = None) -> None:
        """Settles the deliveries that the process before was sending: those of the channel `late`, which
        has started now, or those of all channels that are not coming."""
        for delivery in await self.outbox.interrupted():
            name = delivery.new.channel
            if late == (name if name in self.coming else None):
                await self._settle_unsure(delivery)
        await self.outbox.strand(self.known, at=self.clock.now())

    async def _settle_unsure(self, delivery: Delivery) -> None:
        channel = self.channels.get(delivery.new.channel)
        receipt = channel.unsure(delivery) if channel else Receipt("unknown")
        why = "the gateway stopped while it was being sent"
        why = f"{why}; {receipt.why}" if receipt.why else why
        await self._write(delivery, receipt.state, why=why, due_at=self.clock.now())

    async def _is_ours(self, name: str, line: _Line) -> bool:
        """True if this node delivers for the channel. A new owner first settles what the node before was
        sending. Raises StoreUnavailable."""
        duties = self.duties
        if duties is None:
            return True
        line.may = partial(duties.may, name)
        if duties.holds(name) and not line.is_ours:
            for delivery in await self.outbox.interrupted():
                if delivery.new.channel == name and delivery.new.id not in line.ids:
                    await self._settle_unsure(delivery)
        line.is_ours = duties.holds(name)
        return line.is_ours

    async def _deliver_channel(self, name: str) -> None:
        line = self._lines[name]
        if name in self.coming:
            await self.coming[name].wait()
            if self.duties is None:
                await retry_store(self.clock, self._settle_interrupted, name)
        if name not in self.channels:
            return
        async with anyio.create_task_group() as group:
            while not line.is_draining:
                line.news = anyio.Event()
                try:
                    due = await self._due(name, line)
                except StoreUnavailable as error:
                    log.warning("outbox_unreadable", extra={"why": str(error)})
                    due = []
                for delivery in due:
                    line.ids.add(delivery.new.id)
                    send = partial(self._deliver, delivery, line)
                    group.start_soon(contain, "a delivery", send)
                with anyio.move_on_after(REST_S):
                    await line.news.wait()

    async def _due(self, name: str, line: _Line) -> Sequence[Delivery]:
        """Returns the due deliveries that do not run. Running ones that wait for a rate are still due."""
        if not await self._is_ours(name, line):
            return []
        # Copied before the read, which may still return deliveries that end meanwhile.
        at_work = frozenset(line.ids)
        due = await self.outbox.due(name, now=self.clock.now(), limit=AT_WORK)
        return [one for one in due if one.new.id not in at_work][: AT_WORK - len(at_work)]

    async def _deliver(self, delivery: Delivery, line: _Line) -> None:
        new = delivery.new
        attempt = _Attempt(
            self.outbox, line, self.clock, new.id, delivery.arrived, delivery.attempts
        )
        facts = {"delivery": new.id}
        try:
            # A defect in one delivery does not stop the others.
            with self.duties.busy(new.channel) if self.duties else nullcontext():
                receipt = await result_of("delivery_broke", facts, self._receipt, delivery, attempt)
            if receipt != "not ours":
                await self._settle(delivery, attempt, receipt or DEFECT)
        finally:
            line.ids.discard(new.id)
            line.sending.discard(new.id)
            line.news.set()

    async def _receipt(self, delivery: Delivery, attempt: _Attempt) -> Receipt | NotOurs:
        """Sends a delivery. Returns "not ours" if it was withdrawn, or waits for the next process."""
        channel = self.channels.get(delivery.new.channel)
        if channel is None:  # removed meanwhile
            return "not ours"
        try:
            return await channel.deliver(delivery, attempt.sending)
        except _Draining:
            return "not ours"
        except (Conflict, NotFound) as error:  # erased or dropped before it went out
            log.info("delivery_obsolete", extra={"why": str(error)})
            return "not ours"
        except StoreUnavailable as error:
            return Receipt("pending", why=str(error))

    async def _settle(self, delivery: Delivery, attempt: _Attempt, receipt: Receipt) -> None:
        state, due_at, why = receipt.state, None, receipt.why
        if state == "pending":
            due_at = self._next(delivery, attempt.tries, receipt.retry_after_s)
            if due_at is None:
                state, why = "failed", f"gave up after {attempt.tries} tries: {why}"
        await self._write(delivery, state, receipt=receipt.receipt, why=why, due_at=due_at)

    def _next(self, delivery: Delivery, tries: int, named_s: float | None) -> datetime | None:
        """Returns the time of the next try; None if there is none."""
        now = self.clock.now()
        wait_s = self.fraction() * backoff_s(tries + 1)
        if named_s is None:
            return now + timedelta(seconds=wait_s) if tries < MOST_TRIES else None
        due_at = now + timedelta(seconds=max(named_s, wait_s))
        first = delivery.settled_at or now
        return due_at if due_at - first <= timedelta(seconds=GIVES_UP_S) else None

    async def _write(
        self,
        delivery: Delivery,
        state: DeliveryState,
        *,
        receipt: str | None = None,
        why: str | None,
        due_at: datetime | None,
    ) -> None:
        """Writes the state, and retries until it is stored: a delivery that stays in `sending` would block
        its session."""
        new, now = delivery.new, self.clock.now()
        if why and (delivery.why or "").endswith(TWICE) and not why.endswith(TWICE):
            why = f"{why}; {TWICE}"  # a later failure does not remove that warning
        settle = self.outbox.settle
        await retry_store(
            self.clock, settle, new.id, state, at=now, receipt=receipt, why=why, due_at=due_at
        )
        self.counts[new.channel, state] += 1
        if state not in {"failed", "unknown"}:
            return
        facts = {"delivery": new.id, "channel": new.channel, "account": new.account, "why": why}
        log.warning("delivery_failed", extra={**facts, "state": state})
        ids = (delivery.session_key, delivery.run_id)
        severity: Severity = "error" if state == "failed" else "warning"
        self.publish(Event(f"delivery.{state}", severity, "channels", now, *ids, facts))
