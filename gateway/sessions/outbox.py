"""The outbox at work: `sending` is written before the network, and every answer reaches one end."""

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
from gateway.domain.outbox import TWICE, Deliver, Delivery, DeliveryState, Receipt
from gateway.domain.ports import Clock, Outbox
from gateway.domain.supervision import backoff_s, contained, result_of, retry_store, supervise

log = logging.getLogger(__name__)

MOST_TRIES = 8
GIVES_UP_S = 86_400.0  # although the platform itself names each wait
AT_WORK = 1_024  # deliveries of a channel
REST_S = 1.0
DEFECT = Receipt("failed", why="a defect in the gateway; the log tells")

NotOurs = Literal["not ours"]


class _Draining(Exception):
    """No other part is begun."""


@dataclass(slots=True)
class _Line:
    """The deliveries of one channel that are at work, and those of them that are being sent."""

    ids: set[str] = field(default_factory=set)
    sending: set[str] = field(default_factory=set)
    news: anyio.Event = field(default_factory=anyio.Event)
    is_draining: bool = False
    is_ours: bool = False  # among several nodes: what the one before has left is judged
    may: Callable[[], bool] = lambda: True  # go on sending


@dataclass(slots=True)
class _Attempt:
    """Of the part that is next; the outbox counts the same way."""

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
        if waits:  # else what has arrived would be sent again
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
            return  # the same part, put in another way
        await self.outbox.sending(self.id, arrived, is_safe=is_safe, receipt=receipt)
        if not self.line.may():  # the network was not touched, and another node has the channel
            now = self.clock.now()
            await self.outbox.settle(self.id, "pending", at=now, due_at=now)
            raise _Draining
        self.line.sending.add(self.id)
        if not is_same:
            self.tries = 1 if arrived > self.arrived else self.tries + 1
        self.arrived, self.receipt = arrived, receipt


@dataclass(slots=True)
class Deliveries:
    """Brings out what is due: each channel for itself, one answer of a session at a time.

    `counts` is by channel and what became of a delivery; `fraction` draws from 0 to 1; `coming` are
    channels that are not among the others yet: set once they are, or never will be.
    """

    outbox: Outbox
    channels: Mapping[str, Deliver]
    # Channels with their accounts: these, and those that are closed for now.
    known: frozenset[tuple[str, str]]
    clock: Clock
    publish: Callable[[Event], None]
    fraction: Callable[[], float]
    coming: Mapping[str, anyio.Event] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    duties: Duties | None = None  # None: this node delivers for all
    _lines: dict[str, _Line] = field(default_factory=dict)
    _group: TaskGroup | None = None  # once it runs

    def nudge(self) -> None:
        """A delivery was committed."""
        for line in self._lines.values():
            line.news.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        self._lines = {name: _Line() for name in {*self.channels, *self.coming}}
        if self.duties is None:
            await retry_store(self.clock, self._judge_interrupted)
        async with anyio.create_task_group() as self._group:
            for name in self._lines:
                self._start(self._group, name)
            await anyio.sleep_forever()

    def _start(self, group: TaskGroup, name: str) -> None:
        work, told = partial(self._bring_out, name), f"deliveries:{name}"
        group.start_soon(partial(supervise, told, work, self.clock, may_end=True))

    async def renew(self, known: frozenset[tuple[str, str]]) -> None:
        """From now on these are configured, and `channels` are open. Who is at work goes on; what is due at
        channels that are gone is kept for the operator. Raises StoreUnavailable."""
        self.known = known
        for name, line in self._lines.items():
            if name not in self.channels and name not in self.coming:
                line.is_draining = True
                line.news.set()
        for name in self.channels:
            line = self._lines.get(name) or _Line(is_draining=True)
            if self._group is not None and line.is_draining:
                self._lines[name] = replace(line, is_draining=False)  # the old one comes to its end
                self._start(self._group, name)
        await retry_store(self.clock, self.outbox.strand, known, at=self.clock.now())

    async def drain(self) -> None:
        """Begins nothing new, and comes back when nothing is under way to a platform."""
        for line in self._lines.values():
            line.is_draining = True
        for line in self._lines.values():
            while line.sending:
                line.news = anyio.Event()
                await line.news.wait()

    async def _judge_interrupted(self, late: str | None = None) -> None:
        """What was being sent by a channel that came late, or by all others."""
        for delivery in await self.outbox.interrupted():
            name = delivery.new.channel
            if late == (name if name in self.coming else None):
                await self._judge(delivery)
        await self.outbox.strand(self.known, at=self.clock.now())

    async def _judge(self, delivery: Delivery) -> None:
        channel = self.channels.get(delivery.new.channel)
        receipt = channel.unsure(delivery) if channel else Receipt("unknown")
        why = "the gateway stopped while it was being sent"
        why = f"{why}; {receipt.why}" if receipt.why else why
        await self._write(delivery, receipt.state, why=why, due_at=self.clock.now())

    async def _is_ours(self, name: str, line: _Line) -> bool:
        """One node at a time delivers. It begins with what the one before was sending. Raises
        StoreUnavailable."""
        duties = self.duties
        if duties is None:
            return True
        line.may = partial(duties.may, name)
        if duties.holds(name) and not line.is_ours:
            for delivery in await self.outbox.interrupted():
                if delivery.new.channel == name and delivery.new.id not in line.ids:
                    await self._judge(delivery)
        line.is_ours = duties.holds(name)
        return line.is_ours

    async def _bring_out(self, name: str) -> None:
        line = self._lines[name]
        if name in self.coming:
            await self.coming[name].wait()
            if self.duties is None:
                await retry_store(self.clock, self._judge_interrupted, name)
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
                    group.start_soon(contained, "a delivery", partial(self._one, delivery, line))
                with anyio.move_on_after(REST_S):
                    await line.news.wait()

    async def _due(self, name: str, line: _Line) -> Sequence[Delivery]:
        """Those that wait for their channel's rates are at work, and still due."""
        if not await self._is_ours(name, line):
            return []
        at_work = frozenset(line.ids)  # whatever ends meanwhile, the answer may still have it
        due = await self.outbox.due(name, now=self.clock.now(), limit=AT_WORK)
        return [one for one in due if one.new.id not in at_work][: AT_WORK - len(at_work)]

    async def _one(self, delivery: Delivery, line: _Line) -> None:
        new = delivery.new
        attempt = _Attempt(
            self.outbox, line, self.clock, new.id, delivery.arrived, delivery.attempts
        )
        facts = {"delivery": new.id}
        try:
            # One answer that cannot be sent keeps no other one from being sent.
            with self.duties.busy(new.channel) if self.duties else nullcontext():
                receipt = await result_of("delivery_broke", facts, self._receipt, delivery, attempt)
            if receipt != "not ours":
                await self._settle(delivery, attempt, receipt or DEFECT)
        finally:
            line.ids.discard(new.id)
            line.sending.discard(new.id)
            line.news.set()

    async def _receipt(self, delivery: Delivery, attempt: _Attempt) -> Receipt | NotOurs:
        """It is not ours to settle what is withdrawn, or left for the next process."""
        channel = self.channels.get(delivery.new.channel)
        if channel is None:  # it was removed meanwhile
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
        """When it is tried again; None: never."""
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
        """Else it would stand there as being sent, and nothing after it in its session could go."""
        new, now = delivery.new, self.clock.now()
        if why and (delivery.why or "").endswith(TWICE) and not why.endswith(TWICE):
            why = f"{why}; {TWICE}"  # no later trouble takes that back
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
