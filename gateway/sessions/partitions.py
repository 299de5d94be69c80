"""Turns among several nodes: which sessions this node works on, and which writes it may make.

Any node accepts a message. The node that owns the partition of the session finds the message in the store,
opens the session under the epoch of its lease, and queues the runs by number. Once another node has opened
the session, the store refuses the writes of this node, and the turn ends silently.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
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
from gateway.domain.ports import Clock, Inbox, Journal, Model, ToolScope
from gateway.memory.context import Episodes
from gateway.sessions.lanes import SessionQueues, TurnBatch, WorkOn
from gateway.sessions.mirrors import Mirrors, SharedRun
from gateway.sessions.runs import LiveRun, LiveRuns
from gateway.tools import ToolGate

log = logging.getLogger(__name__)

T = TypeVar("T")

OPENED_AT_ONCE = 16  # sessions
MOST_OPEN = 2_048  # sessions of a partition with a known next number; older ones are opened again
MOST_WANTED = 512  # runs of a partition that other nodes follow before this node has queued them
DUTY_S = 0.25  # between two checks whether this node holds a duty


@dataclass(slots=True)
class PartitionedWork:
    """Implements PartitionWork and Sharing. `epoch` returns the epoch under which this node works on a
    partition now. `on_open` is called with each session that another node may have worked on."""

    runs: SharedRuns
    live: LiveRuns
    hints: Hints
    clock: Clock
    partitions: int
    poll_s: float
    epoch: Callable[..., int | None]
    on_open: Callable[[SessionKey], None] = lambda key: None
    figures: SharedFigures = field(default_factory=SharedFigures)
    members: Callable[[], Collection[str]] = tuple  # nodes that are alive
    mirrors: Mirrors = field(init=False)
    queues: SessionQueues = field(init=False)
    _leases: dict[int, Lease] = field(default_factory=dict)  # by partition
    _next: dict[int, dict[SessionKey, int]] = field(default_factory=dict)  # numbers of runs
    # Runs that other nodes follow, by partition: the node, and the last event that it has.
    _followed: dict[int, dict[str, tuple[str, int]]] = field(default_factory=dict)
    _turns: dict[SessionKey, tuple[Tenure, CancelScope, TurnBatch]] = field(default_factory=dict)
    _opening: set[SessionKey] = field(default_factory=set)
    _wanted: set[int] = field(default_factory=set)  # partitions to read soon
    _news: anyio.Event = field(default_factory=anyio.Event)
    _rested: anyio.Event = field(default_factory=anyio.Event)
    _busy: Counter[int] = field(default_factory=Counter)  # running duties by partition
    _kept: dict[int, set[CancelScope]] = field(default_factory=dict)
    _stops: dict[RunId, str] = field(default_factory=dict)  # requested stops
    _chosen: int = 0  # the number of the last known choice
    _is_open: bool = False

    def partition(self, key: SessionKey) -> int:
        return partition_of(key, self.partitions)

    async def open(self) -> None:
        """Starts to begin turns."""
        with suppress(StoreUnavailable):  # the next read finds the choices
            await self.read_choices()
        self._is_open = True
        self._wanted |= self._leases.keys()
        self._news.set()

    # --- messages ----------------------------------------------------------------------------
    def accepted(self, entry: Entry, leave: Callable[[], None], share: Share) -> None:
        """Queues a message that this node has accepted, or mirrors its run. `leave` is called when the run
        has ended or another node works on it."""
        run = self._register(SharedRun(entry, self.clock.monotonic(), leave, share))
        key, number = run.session_key, self.partition(run.session_key)
        tenure = self._tenure(key)
        if tenure and self._is_open and self._next[number].get(key) == run.entry.seq:
            self._join(run, run.entry, tenure)
        elif tenure:
            self.read_soon(number)
        else:
            self.mirrors.ask(run)

    def mirror(self, record: RunRecord) -> SharedRun:
        """Mirrors an unfinished run that this node does not know."""
        new = SharedRun(record.entry, self.clock.monotonic(), is_counted=False)
        run = self._register(new)
        run.receive_record(record)
        self.mirrors.ask(run)
        return run

    def _register(self, run: SharedRun) -> SharedRun:
        """Registers a run. Returns the known one if a read of the partition has found it before."""
        known = self.live.setdefault(run.run_id, run)
        assert isinstance(known, SharedRun)
        if known is not run and run.is_counted:
            run.leave()
        known.may = self.may_go_on
        return known

    async def stop(self, run: LiveRun, *, at_once: bool) -> None:
        """Stops a run of any node. Raises StoreUnavailable."""
        if isinstance(run, SharedRun) and run.tenure is not None:
            self.queues.stop(run, at_once=at_once)
        else:
            await self.runs.ask_to_stop(run.run_id, AT_ONCE if at_once else "after_turn")
            self._wake(run.session_key)

    async def stop_all(self, key: SessionKey) -> int:
        """Stops every run of a session. Returns how many. Raises StoreUnavailable."""
        count = await self.runs.ask_session_to_stop(key)
        self._wake(key)
        return count

    async def load(self, key: SessionKey) -> tuple[int, int]:
        """Returns how many runs of a session are running, and how many wait. Raises StoreUnavailable."""
        return await self.runs.load(key)

    async def choose(self, key: SessionKey, named: Mapping[str, Any]) -> SessionChoice:
        """Changes a session's choice at all nodes. Raises StoreUnavailable."""
        choice = await self.runs.choose(key, named)
        self.hints.publish(CHANGED, {})
        return choice

    async def read_choices(self) -> None:
        """Reads the choices of other nodes. Raises StoreUnavailable."""
        self._chosen, found = await self.runs.choices(self._chosen)
        for key, choice in found.items():
            self.queues.choose(key, choice)

    def _wake(self, key: SessionKey) -> None:
        """Makes the owner of the session read the store."""
        number = self.partition(key)
        self.hints.publish(work_subject(number), {})
        self.read_soon(number)

    def read_soon(self, number: int) -> None:
        self._wanted.add(number)
        self._news.set()

    # --- PartitionWork -----------------------------------------------------------------------
    def start(self, lease: Lease) -> None:
        self.figures.lease_changes.add(("taken",))
        number = lease.partition
        self._leases[number], self._next[number], self._followed[number] = lease, {}, {}
        self.read_soon(number)

    async def drain(self, lease: Lease) -> None:
        self._withdraw_from(lease)
        number = lease.partition
        while self._busy[number] or any(self.partition(key) == number for key in self._turns):
            if self._rested.is_set():  # it is shared: several partitions may drain at a time
                self._rested = anyio.Event()
            await self._rested.wait()
        self.figures.lease_changes.add(("given_back",))

    def drop(self, lease: Lease) -> None:
        self.figures.lease_changes.add(("lost",))
        self._withdraw_from(lease)
        for key, (_, scope, _) in self._turns.items():
            if self.partition(key) == lease.partition:
                scope.cancel()

    def cut_off(self) -> None:
        """Cancels every turn. The next owners begin them again."""
        for _, scope, _ in self._turns.values():
            scope.cancel()

    def _withdraw_from(self, lease: Lease) -> None:
        """Begins no more turns of a partition. The next owner gets its waiting messages."""
        number = lease.partition
        if self._leases.get(number) == lease:
            del self._leases[number], self._next[number], self._followed[number]
        for scope in self._kept.get(number, ()):
            scope.cancel()
        self._withdraw(lambda key: self.partition(key) == number)

    def _withdraw(self, is_lost: Callable[[SessionKey], bool], *, with_taken: bool = False) -> None:
        # Before `open` nothing is queued, and `queues` may be unset.
        lost = self.queues.withdraw(is_lost, with_taken=with_taken) if self._is_open else ()
        for run in lost:
            if isinstance(run, SharedRun):
                run.detach()

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
                    await anyio.sleep_forever()  # the work has given up; another node may try
                finally:
                    kept.discard(scope)

    # --- work from the store -----------------------------------------------------------------
    async def run(self) -> None:
        """Reads all partitions every `poll_s`, and some after a hint, until it is cancelled."""
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
                numbers = self._leases.keys() if is_due else wanted & self._leases.keys()
                if self._is_open and numbers:
                    await self._find_work([*numbers], group, places)
                if is_due:
                    due = anyio.current_time() + self.poll_s

    async def _listen(self) -> None:
        """Receives hints. A hint makes this node read the store, or forward a run to the asking node."""
        subjects = [
            (work_subject(one), partial(self._on_hint, one)) for one in range(self.partitions)
        ]
        with _all_of(self.hints, subjects):
            await anyio.sleep_forever()

    def _on_hint(self, number: int, hint: Hint) -> None:
        if number not in self._leases:
            return
        run_id, to, after = str(hint.get("run")), hint.get("to"), hint.get("after")
        run, wanted = self.live.get(run_id), self._followed[number]
        follows = (to, after) if isinstance(to, str) and isinstance(after, int) else None
        if isinstance(run, SharedRun) and run.tenure and follows:
            self.mirrors.forward(run, *follows)
            return
        if follows:
            wanted.pop(run_id, None)
            wanted[run_id] = follows
            if len(wanted) > MOST_WANTED:
                del wanted[next(iter(wanted))]
        self.read_soon(number)

    async def _find_work(
        self, numbers: Sequence[int], group: TaskGroup, places: CapacityLimiter
    ) -> None:
        """Opens the sessions of these partitions that have runs which this node has not queued."""
        runs = self.live.values()
        queued = {one.run_id for one in runs if isinstance(one, SharedRun) and one.tenure}
        try:
            found = await self.runs.open_runs(numbers, queued)
        except StoreUnavailable as error:
            log.debug("work_not_read", extra={"why": str(error)})
            return
        # A stop is never withdrawn. A read of all partitions drops the stops of ended runs.
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

    async def _open(self, key: SessionKey, places: CapacityLimiter) -> None:
        """Opens a session and queues its runs. The next read finds runs that come meanwhile."""
        try:
            async with places:
                tenure, at_work = self._tenure(key), self._turns.get(key)
                if tenure is None or (at_work and at_work[0] != tenure):
                    return
                entries = await self.runs.open_session(tenure)
                if self._tenure(key) == tenure:
                    self._adopt(key, tenure, entries)
        except (StoreUnavailable, Fenced) as error:
            log.debug("session_not_opened", extra={"session": str(key), "why": str(error)})
        finally:
            self._opening.discard(key)

    def _adopt(self, key: SessionKey, tenure: Tenure, entries: Sequence[Entry]) -> None:
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
                run = self._register(new)
            self._join(run, entry, tenure)

    def _join(self, run: SharedRun, entry: Entry, tenure: Tenure) -> None:
        # `begin` counts the next attempt; a dead process's attempt is counted already.
        run.adopt(replace(entry, state="queued"), tenure)
        number = self.partition(run.session_key)
        known = self._next[number]
        known.pop(run.session_key, None)
        known[run.session_key] = entry.seq + 1
        if len(known) > MOST_OPEN:
            del known[next(iter(known))]
        if (follows := self._followed[number].pop(run.run_id, None)) is not None:
            self.mirrors.forward(run, *follows)
        self.queues.join(run, wait=not entry.attempts)
        self._stop_if_asked(run.run_id)

    def _tenure(self, key: SessionKey) -> Tenure | None:
        """Returns the tenure under which a turn may begin; None if another node owns the session."""
        lease = self._leases.get(self.partition(key))
        if lease is None or self.epoch(lease.partition, starting=True) != lease.epoch:
            return None
        return Tenure(key, lease.epoch)

    # --- turns -------------------------------------------------------------------------------
    def may_go_on(self, run: SharedRun) -> bool:
        """True if this node may continue a run. If not, its turn is cancelled."""
        tenure = run.tenure
        if tenure is not None and self.epoch(self.partition(run.session_key)) == tenure.epoch:
            return True
        self._lose(run)
        return False

    def may_act(self, run_id: RunId) -> bool:
        run = self.live.get(run_id)
        return not isinstance(run, SharedRun) or self.may_go_on(run)

    async def require(self, run_id: RunId) -> None:
        """Ends the turn if this node may not continue it. Called before each model call, tool call and
        write."""
        if not self.may_act(run_id):
            await checkpoint()  # delivers the cancellation
            raise Fenced(self.live[run_id].session_key)

    def _lose(self, run: SharedRun) -> None:
        tenure, scope, _ = self._turns.get(run.session_key, (None, None, None))
        if scope is not None and tenure == run.tenure and not scope.cancel_called:
            log.info("turn_lost", extra={"run": run.run_id, "session": str(run.session_key)})
            scope.cancel()

    def around(self, work: WorkOn) -> WorkOn:
        """Returns the work of a lane, under the tenure of its run."""
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
            scope.cancel()  # so that the turn counts as lost
        finally:
            del self._turns[key]
            self._rested.set()
            if not run.ended:
                self._put_back(batch, key, is_lost=scope.cancel_called)

    def _put_back(self, batch: TurnBatch, key: SessionKey, *, is_lost: bool) -> None:
        """Leaves an unfinished turn and the messages behind it to the owner of the session, which may be
        this node again."""
        self._next.get(self.partition(key), {}).pop(key, None)
        for one in (*batch.earlier, *batch.took, batch.run):
            if isinstance(one, SharedRun):
                one.detach()
        self._withdraw(key.__eq__, with_taken=True)
        if is_lost:
            self.figures.turns_lost.add(())
            self.read_soon(self.partition(key))

    async def begin(self, run_id: RunId, tenure: Tenure) -> Begun:
        """Begins an attempt with the latest choice of the session, which may be unread here."""
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
        """Makes a write that only the owner of the run may make."""
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


class OwnInbox:
    """Implements the Inbox port for turns of this node."""

    def __init__(self, inbox: Inbox, work: PartitionedWork, episodes: Episodes) -> None:
        self.inbox, self.work, self.episodes = inbox, work, episodes
        self.unfinished, self.find_run = inbox.unfinished, inbox.find_run
        self.run_history = inbox.run_history

    async def accept(self, entry: NewEntry, *, begin: bool) -> Accepted:
        """Accepts a message. The owner of its session begins the run."""
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


class OwnJournal:
    """Implements the Journal port for turns of this node."""

    def __init__(self, journal: Journal, work: PartitionedWork) -> None:
        self.journal, self.work = journal, work
        self.read, self.rule_state = journal.read, journal.rule_state

    async def append(self, run_id: RunId, part: int, pack: Callable[[], bytes]) -> None:
        await self.work.fenced(run_id, self.work.runs.append, run_id, part, pack)

    async def forgive(self, run_id: RunId) -> None:
        await self.work.fenced(run_id, self.work.runs.forgive, run_id)

    async def claim_notices(
        self, person: str, session_key: SessionKey, run_id: RunId, **more: Any
    ) -> Sequence[Notice]:
        await self.work.require(run_id)
        return await self.journal.claim_notices(person, session_key, run_id, **more)


@dataclass(frozen=True, slots=True)
class OwnModel:
    """Implements the Model port. Refuses turns that another node owns."""

    model: Model
    work: PartitionedWork

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        if request.payer is not None:
            await self.work.require(request.payer.run_id)
        return await self.model.reply(request, on_delta)


class OwnGate(ToolGate):
    """The tool gate. Refuses turns that another node owns."""

    work: PartitionedWork

    async def _attempt(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> str:
        await self.work.require(scope.run_id)
        may_act = partial(self.work.may_act, scope.run_id)
        return await super()._attempt(agent, call, replace(scope, may_act=may_act))
