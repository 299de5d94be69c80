"""Turns among several nodes: which sessions this node works on, and what it may do for them.

A message may be accepted anywhere. The node that owns the partition of its session finds it in the store,
opens the session under the epoch of its lease, and puts its runs into their lane by their number. Whatever
it writes then is refused once another node has opened the session, and ends the turn without a word.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio import CancelScope, CapacityLimiter
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from gateway.domain.agents import AgentDef, Share, share_of
from gateway.domain.cluster import (
    AT_ONCE,
    CHANGED,
    Begun,
    Fenced,
    Hint,
    Hints,
    Lease,
    SharedRuns,
    Tenure,
    partition_of,
    work_subject,
)
from gateway.domain.errors import StoreUnavailable
from gateway.domain.events import Notice
from gateway.domain.figures import SharedFigures
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import Accepted, Ending, Entry, NewEntry, RunRecord, SessionChoice
from gateway.domain.messages import ToolCall
from gateway.domain.model import ModelReply, ModelRequest, OnDelta
from gateway.domain.outbox import RunHistory
from gateway.domain.ports import Clock, Inbox, Journal, Model, ToolScope
from gateway.memory.context import Episodes
from gateway.sessions.lanes import SessionQueues, TurnBatch, WorkOn
from gateway.sessions.mirrors import Mirrors, SharedRun
from gateway.sessions.runs import LiveRun, LiveRuns
from gateway.tools.gate import ToolGate

log = logging.getLogger(__name__)

T = TypeVar("T")

OPENED_AT_ONCE = 16  # sessions
MOST_OPEN = 2_048  # sessions of a partition whose next number we know; an older one is opened anew
MOST_WANTED = 512  # runs of a partition that other nodes follow, and that are not taken up yet
DUTY_S = 0.25  # between two looks whether a duty is ours


@dataclass(slots=True)
class PartitionedWork:
    """Implements PartitionWork, and what an intake needs of it. `epoch` says under which epoch this node works
    on a partition now, `on_open` hears of each session that another node may have worked on."""

    runs: SharedRuns
    live: LiveRuns
    hints: Hints
    clock: Clock
    partitions: int
    poll_s: float
    epoch: Callable[..., int | None]
    on_open: Callable[[SessionKey], None] = lambda key: None
    figures: SharedFigures = field(default_factory=SharedFigures)
    members: Callable[[], Collection[str]] = tuple  # nodes that are there
    mirrors: Mirrors = field(init=False)
    queues: SessionQueues = field(init=False)
    _leases: dict[int, Lease] = field(default_factory=dict)  # in which turns are begun
    _next: dict[int, dict[SessionKey, int]] = field(default_factory=dict)  # numbers of runs
    # Runs of each partition that others follow: who, after what.
    _follow: dict[int, dict[str, tuple[str, int]]] = field(default_factory=dict)
    _turns: dict[SessionKey, tuple[Tenure, CancelScope, TurnBatch]] = field(default_factory=dict)
    _opening: set[SessionKey] = field(default_factory=set)
    _wanted: set[int] = field(default_factory=set)  # partitions to be looked at
    _news: anyio.Event = field(default_factory=anyio.Event)
    _rested: anyio.Event = field(default_factory=anyio.Event)
    _busy: Counter[int] = field(default_factory=Counter)  # partitions with duties at work
    _kept: dict[int, set[CancelScope]] = field(default_factory=dict)
    _stops: dict[RunId, str] = field(default_factory=dict)  # of runs that are not taken up yet
    _chosen: int = 0  # the number of the last choice that is known
    _is_open: bool = False

    def partition(self, key: SessionKey) -> int:
        return partition_of(key, self.partitions)

    async def open(self) -> None:
        """From now on turns are begun."""
        with suppress(StoreUnavailable):  # then the next look finds it
            await self.look_at_choices()
        self._is_open = True
        self._wanted |= self._leases.keys()
        self._news.set()

    # --- messages ----------------------------------------------------------------------------
    def accepted(self, entry: Entry, leave: Callable[[], None], share: Share) -> None:
        """A message was accepted here. `leave` is called once it has ended, or is another node's."""
        run = self._known(SharedRun(entry, self.clock.monotonic(), leave, share))
        key, number = run.session_key, self.partition(run.session_key)
        tenure = self._tenure(key)
        if tenure and self._is_open and self._next[number].get(key) == run.entry.seq:
            self._join(run, run.entry, tenure)
        elif tenure:
            self.look_soon(number)
        else:
            self.mirrors.ask(run)

    def mirror(self, record: RunRecord) -> SharedRun:
        """A run that has not ended, and that is not known here."""
        new = SharedRun(record.entry, self.clock.monotonic(), is_counted=False)
        run = self._known(new)
        run.hear_all(record)
        self.mirrors.ask(run)
        return run

    def _known(self, run: SharedRun) -> SharedRun:
        """The same run, if the partition was looked at before its accept was told."""
        known = self.live.setdefault(run.run_id, run)
        assert isinstance(known, SharedRun)
        if known is not run and run.is_counted:
            run.leave()
        known.may = self.may_go_on
        return known

    async def stop(self, run: LiveRun, *, at_once: bool) -> None:
        """Also one that another node works on. Raises StoreUnavailable."""
        if isinstance(run, SharedRun) and run.tenure is not None:
            self.queues.stop(run, at_once=at_once)
        else:
            await self.runs.ask_to_stop(run.run_id, AT_ONCE if at_once else "after_turn")
            self._wake(run.session_key)

    async def stop_all(self, key: SessionKey) -> int:
        """Every run of a session, wherever it is; gives how many. Raises StoreUnavailable."""
        count = await self.runs.ask_session_to_stop(key)
        self._wake(key)
        return count

    async def load(self, key: SessionKey) -> tuple[int, int]:
        """How many runs of a session are at work, and how many wait. Raises StoreUnavailable."""
        return await self.runs.load(key)

    async def choose(self, key: SessionKey, named: Mapping[str, Any]) -> SessionChoice:
        """For all nodes. Raises StoreUnavailable."""
        choice = await self.runs.choose(key, named)
        self.hints.publish(CHANGED, {})
        return choice

    async def look_at_choices(self) -> None:
        """Takes over what was chosen at other nodes. Raises StoreUnavailable."""
        self._chosen, found = await self.runs.choices(self._chosen)
        for key, choice in found.items():
            self.queues.choose(key, choice)

    def _wake(self, key: SessionKey) -> None:
        """Whoever works on the session looks into the store."""
        number = self.partition(key)
        self.hints.publish(work_subject(number), {})
        self.look_soon(number)

    def look_soon(self, number: int) -> None:
        self._wanted.add(number)
        self._news.set()

    # --- PartitionWork -----------------------------------------------------------------------
    def start(self, lease: Lease) -> None:
        self.figures.lease_changes.add(("taken",))
        number = lease.partition
        self._leases[number], self._next[number], self._follow[number] = lease, {}, {}
        self.look_soon(number)

    async def drain(self, lease: Lease) -> None:
        self._stand_back(lease)
        number = lease.partition
        while self._busy[number] or any(self.partition(key) == number for key in self._turns):
            if self._rested.is_set():  # several partitions may be drained at a time
                self._rested = anyio.Event()
            await self._rested.wait()
        self.figures.lease_changes.add(("given_back",))

    def drop(self, lease: Lease) -> None:
        self.figures.lease_changes.add(("lost",))
        self._stand_back(lease)
        for key, (_, scope, _) in self._turns.items():
            if self.partition(key) == lease.partition:
                scope.cancel()

    def cut_off(self) -> None:
        """Ends every turn, for the next owners to begin anew."""
        for _, scope, _ in self._turns.values():
            scope.cancel()

    def _stand_back(self, lease: Lease) -> None:
        """Begins nothing more there: what waits is for the next owner."""
        number = lease.partition
        if self._leases.get(number) == lease:
            del self._leases[number], self._next[number], self._follow[number]
        for scope in self._kept.get(number, ()):
            scope.cancel()
        self._withdraw(lambda key: self.partition(key) == number)

    def _withdraw(self, is_lost: Callable[[SessionKey], bool], *, with_taken: bool = False) -> None:
        # Before it is open nothing is taken up, and there may be no queues.
        lost = self.queues.withdraw(is_lost, with_taken=with_taken) if self._is_open else ()
        for run in lost:
            if isinstance(run, SharedRun):
                run.let_go()

    # --- duties ------------------------------------------------------------------------------
    def holds(self, name: str) -> bool:
        lease = self._leases.get(partition_of(name, self.partitions))
        if lease is None or not self._is_open:
            return False
        return self.epoch(lease.partition, starting=True) == lease.epoch

    def may(self, name: str) -> bool:
        return self.epoch(partition_of(name, self.partitions)) is not None

    @contextmanager
    def busy(self, name: str) -> Iterator[None]:
        number = partition_of(name, self.partitions)
        self._busy[number] += 1
        try:
            yield
        finally:
            self._busy[number] -= 1
            self._rested.set()

    async def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        kept = self._kept.setdefault(partition_of(name, self.partitions), set())
        while True:
            while not self.holds(name):
                await self.clock.sleep(DUTY_S)
            with self.busy(name), CancelScope() as scope:
                kept.add(scope)
                try:
                    await work()
                    await anyio.sleep_forever()  # it gave up; another node may try
                finally:
                    kept.discard(scope)

    # --- taking up ---------------------------------------------------------------------------
    async def run(self) -> None:
        """Looks for all work every `poll_s`, and for some whenever there is a reason to, until it is cancelled."""
        places, due = CapacityLimiter(OPENED_AT_ONCE), anyio.current_time() + self.poll_s
        async with anyio.create_task_group() as group:
            group.start_soon(self.mirrors.run)
            group.start_soon(self._listen)
            while True:
                with CancelScope(deadline=due):
                    await self._news.wait()
                self._news = anyio.Event()
                wanted, self._wanted = self._wanted, set()
                is_due = anyio.current_time() >= due
                looked = self._leases.keys() if is_due else wanted & self._leases.keys()
                if self._is_open:
                    await self._look([*looked], group, places)
                if is_due:
                    due = anyio.current_time() + self.poll_s

    async def _listen(self) -> None:
        """A hint is only a reason to look into the store; and nodes that follow a run of ours are told of it."""
        subjects = [(work_subject(one), partial(self._hear, one)) for one in range(self.partitions)]
        with _all_of(self.hints, subjects):
            await anyio.sleep_forever()

    def _hear(self, number: int, hint: Hint) -> None:
        if number not in self._leases:
            return
        run_id, to, after = str(hint.get("run")), hint.get("to"), hint.get("after")
        run, wanted = self.live.get(run_id), self._follow[number]
        follows = (to, after) if isinstance(to, str) and isinstance(after, int) else None
        if isinstance(run, SharedRun) and run.tenure and follows:
            self.mirrors.tell(run, *follows)
            return
        if follows:
            wanted.pop(run_id, None)
            wanted[run_id] = follows
            if len(wanted) > MOST_WANTED:
                del wanted[next(iter(wanted))]
        self.look_soon(number)

    async def _look(
        self, numbers: Sequence[int], group: TaskGroup, places: CapacityLimiter
    ) -> None:
        if not numbers:
            return
        try:
            found = await self.runs.open_runs(numbers, self._at_work)
        except StoreUnavailable as error:
            log.debug("work_not_read", extra={"why": str(error)})
            return
        # None is withdrawn; those of runs that have ended since go when all is looked at.
        is_all = self._leases.keys() <= {*numbers}
        self._stops = {**({} if is_all else self._stops), **found.stops}
        for run_id in found.stops:
            self._stop_if_asked(run_id)
        for key in found.sessions - self._opening:
            self._opening.add(key)
            group.start_soon(self._open, key, places)

    def _stop_if_asked(self, run_id: RunId) -> None:
        run, how = self.live.get(run_id), self._stops.get(run_id)
        if how and isinstance(run, SharedRun) and run.tenure and not run.is_stopped:
            self.queues.stop(run, at_once=how == AT_ONCE)

    @property
    def _at_work(self) -> Set[RunId]:
        runs = self.live.values()
        return {one.run_id for one in runs if isinstance(one, SharedRun) and one.tenure}

    async def _open(self, key: SessionKey, places: CapacityLimiter) -> None:
        """Opens a session, and takes up its runs. What is missed meanwhile is found by the next look."""
        try:
            async with places:
                tenure, at_work = self._tenure(key), self._turns.get(key)
                if tenure is None or (at_work and at_work[0] != tenure):
                    return
                entries = await self.runs.open_session(tenure)
                if self._tenure(key) == tenure:
                    self._take_up(key, tenure, entries)
        except (StoreUnavailable, Fenced) as error:
            log.debug("session_not_opened", extra={"session": str(key), "why": str(error)})
        finally:
            self._opening.discard(key)

    def _take_up(self, key: SessionKey, tenure: Tenure, entries: Sequence[Entry]) -> None:
        following = self._next[self.partition(key)].get(key, 0)
        if not following:
            self.on_open(key)
        for entry in entries:
            if entry.seq < following:
                continue
            share = share_of(key, entry.new.sender)
            run = self.live.get(entry.new.run_id)
            if not isinstance(run, SharedRun):
                new = SharedRun(entry, self.clock.monotonic(), share=share, is_counted=False)
                run = self._known(new)
            self._join(run, entry, tenure)

    def _join(self, run: SharedRun, entry: Entry, tenure: Tenure) -> None:
        # The attempt of a process that died is counted; the next one is counted anew.
        run.take_up(replace(entry, state="queued"), tenure)
        number = self.partition(run.session_key)
        known = self._next[number]
        known.pop(run.session_key, None)
        known[run.session_key] = entry.seq + 1
        if len(known) > MOST_OPEN:
            del known[next(iter(known))]
        if (follows := self._follow[number].pop(run.run_id, None)) is not None:
            self.mirrors.tell(run, *follows)
        self.queues.join(run, wait=not entry.attempts)
        self._stop_if_asked(run.run_id)

    def _tenure(self, key: SessionKey) -> Tenure | None:
        """Under which a turn may begin."""
        lease = self._leases.get(self.partition(key))
        if lease is None or self.epoch(lease.partition, starting=True) != lease.epoch:
            return None
        return Tenure(key, lease.epoch)

    # --- turns -------------------------------------------------------------------------------
    def may_go_on(self, run: SharedRun) -> bool:
        """Whether this node may go on with a run. If not, its turn is cut off."""
        tenure = run.tenure
        if tenure is not None and self.epoch(self.partition(run.session_key)) == tenure.epoch:
            return True
        self._lose(run)
        return False

    def may_act(self, run_id: RunId) -> bool:
        run = self.live.get(run_id)
        return not isinstance(run, SharedRun) or self.may_go_on(run)

    async def require(self, run_id: RunId) -> None:
        """Before a model is asked, a tool called, something written. Ends the turn if it is not ours."""
        if not self.may_act(run_id):
            await checkpoint()  # where the turn ends
            raise Fenced(self.live[run_id].session_key)

    def _lose(self, run: SharedRun) -> None:
        tenure, scope, _ = self._turns.get(run.session_key, (None, None, None))
        if scope is not None and tenure == run.tenure and not scope.cancel_called:
            log.info("turn_lost", extra={"run": run.run_id, "session": str(run.session_key)})
            scope.cancel()

    def around(self, work: WorkOn) -> WorkOn:
        """What a lane does with a message."""
        return partial(self._turn, work)

    async def _turn(self, work: WorkOn, batch: TurnBatch) -> None:
        run = batch.run
        assert isinstance(run, SharedRun)
        key, tenure, scope = run.session_key, run.tenure, CancelScope()
        if tenure is None:
            return
        self._turns[key] = (tenure, scope, batch)
        try:
            with scope:
                await work(batch)
        except Fenced:
            scope.cancel()  # it was ending already
        finally:
            del self._turns[key]
            self._rested.set()
            if not run.ended:
                self._put_back(batch, key, is_lost=scope.cancel_called)

    def _put_back(self, batch: TurnBatch, key: SessionKey, *, is_lost: bool) -> None:
        """What a turn did not end is for the owner of its session, with all that waits behind it: for us
        again, perhaps."""
        self._next.get(self.partition(key), {}).pop(key, None)
        for one in (*batch.earlier, *batch.took, batch.run):
            if isinstance(one, SharedRun):
                one.let_go()
        self._withdraw(key.__eq__, with_taken=True)
        if is_lost:
            self.figures.turns_lost.add(())
            self.look_soon(self.partition(key))

    async def begin(self, run_id: RunId, tenure: Tenure) -> Begun:
        """The turn is as it was chosen, also where no look has found that yet."""
        node, key = self.mirrors.node, tenure.session_key
        turn, alive = self._turns.get(key), {node, *self.members()}
        sender = turn[2].run.new.sender if turn else None
        begun = await self.runs.begin(run_id, tenure, node, alive, sender=sender)
        if begun.choice.change:
            self.queues.choose(key, begun.choice)
        if turn is not None:
            turn[2].model = begun.choice.model
        return begun

    async def fenced(self, run_id: RunId, act: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Writes for a run what only its owner may write."""
        await self.require(run_id)
        run = self.live.get(run_id)
        assert isinstance(run, SharedRun)
        assert run.tenure is not None
        try:
            return await act(*args, run.tenure)
        except Fenced:
            self.figures.fenced.add(())
            self._lose(run)
            await checkpoint()
            raise


@contextmanager
def _all_of(hints: Hints, subjects: Sequence[tuple[str, Callable[[Hint], None]]]) -> Iterator[None]:
    if not subjects:
        yield
        return
    (subject, listen), *rest = subjects
    with hints.listen(subject, listen), _all_of(hints, rest):
        yield


@dataclass(frozen=True, slots=True)
class OwnInbox:
    """Implements the port Inbox for turns of this node."""

    inbox: Inbox
    work: PartitionedWork
    episodes: Episodes

    async def accept(self, entry: NewEntry, *, begin: bool) -> Accepted:
        """Its owner begins it."""
        there = replace(entry, partition=self.work.partition(entry.session_key))
        return await self.inbox.accept(there, begin=False)

    async def begin(self, run_id: RunId) -> int:
        work = self.work
        begun = await work.fenced(run_id, work.begin, run_id)
        run = work.live[run_id]
        run.entry = replace(run.entry, forgiven=begun.forgiven)
        self.episodes.require_head(run.session_key, begun.head)
        return begun.attempts

    async def finish(self, ending: Ending) -> bool:
        return await self.work.fenced(ending.run_id, self.work.runs.finish, ending)

    async def unfinished(self) -> Sequence[Entry]:
        return await self.inbox.unfinished()

    async def find_run(self, run_id: RunId) -> RunRecord | None:
        return await self.inbox.find_run(run_id)

    async def run_history(self, run_id: RunId) -> RunHistory:
        return await self.inbox.run_history(run_id)


@dataclass(frozen=True, slots=True)
class OwnJournal:
    """Implements the port Journal for turns of this node."""

    journal: Journal
    work: PartitionedWork

    async def append(self, run_id: RunId, part: int, pack: Callable[[], bytes]) -> None:
        await self.work.fenced(run_id, self.work.runs.append, run_id, part, pack)

    async def forgive(self, run_id: RunId) -> None:
        await self.work.fenced(run_id, self.work.runs.forgive, run_id)

    async def read(self, run_id: RunId) -> Sequence[bytes]:
        return await self.journal.read(run_id)

    async def claim_notices(
        self, person: str, session_key: SessionKey, run_id: RunId, **more: Any
    ) -> Sequence[Notice]:
        await self.work.require(run_id)
        return await self.journal.claim_notices(person, session_key, run_id, **more)

    async def rule_state(self, key: SessionKey) -> str | None:
        return await self.journal.rule_state(key)


@dataclass(frozen=True, slots=True)
class OwnModel:
    """Implements the port Model: asks nothing for a turn that is not ours any more."""

    model: Model
    work: PartitionedWork

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        if request.payer is not None:
            await self.work.require(request.payer.run_id)
        return await self.model.reply(request, on_delta)


class OwnGate(ToolGate):
    """Calls no tool for a turn that is not ours any more."""

    work: PartitionedWork

    async def _attempt(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> str:
        await self.work.require(scope.run_id)
        may_act = partial(self.work.may_act, scope.run_id)
        return await super()._attempt(agent, call, replace(scope, may_act=may_act))
