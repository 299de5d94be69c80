"""The shared store: the same operations over a SurrealDB server.

An operation runs on a small SQLite database in memory that holds the rows it has read. Rows that
were not read yet seem absent; one request then reads everything that the operation asked for, and
it runs again. Once nothing is missing, its changed rows become one commit, which checks and changes
the revision of every row that it relied on; if another node was quicker, the operation runs again.
So each rule of an operation is written once, and an operation finds its own writes as on one
machine.
"""

import logging
import random
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import anyio
from anyio import CancelScope
from anyio.lowlevel import checkpoint_if_cancelled

from gateway.domain.agents import speaker_in
from gateway.domain.cluster import Begun, Tenure
from gateway.domain.errors import GatewayError, StoreRefused, StoreUnavailable
from gateway.domain.facts import FactView, fact_view
from gateway.domain.ids import EPOCH, RunId, SessionKey
from gateway.domain.inbox import Accepted, NewEntry
from gateway.domain.ports import Clock, Stores
from gateway.store.conversations import read_settings
from gateway.store.copying import copy_rows, writing_sqlite
from gateway.store.fact_search import FactBase, groups_of
from gateway.store.faults import TextRefused, has_no_utf8
from gateway.store.inbox import StoredInbox, free_notices
from gateway.store.ledger import StoredLedger
from gateway.store.sharing import StoredSharedRuns
from gateway.store.sqlite import ClosingLedger, stores_over
from gateway.store.surreal_connection import (
    OutcomeUnknown,
    RecordExists,
    RecordID,
    StatementRefused,
    SurrealConnection,
    TransactionConflict,
)
from gateway.store.surreal_schema import REVISION, SurrealRows, upgrade_tables
from gateway.store.surreal_transaction import (
    REMEMBERED,
    KnownSession,
    LoadedRow,
    Read,
    Reads,
    RowMemory,
    SurrealCommit,
    SurrealTransaction,
    loaded_row,
)
from gateway.store.tables import Table
from gateway.store.transaction import Row, Transaction, keep_newest
from gateway.store.turns import ExtractionQueue, LocalTurnIndex
from gateway.store.writer import OF_ONE, Engine, OnCommit, OperationFailed

log = logging.getLogger(__name__)

T = TypeVar("T")
Operation = Callable[[Any], T]

_KNOWN = 4096  # sessions, about 1 kB each
_NUMBERS = 64  # numbers that a gateway reserves per request
_WITHIN_S = 10.0  # for an operation that keeps conflicting
_DOUBT_S = 90.0  # to find out whether a commit was executed: a machine may restart
_MARKS = f"SELECT id, {REVISION} FROM $records"
_GROUP = 64  # operations of `write_soon` per commit
_PREFETCHED_S = 1.0  # prefetched rows stay valid for so long
_LONG = 16_384  # characters; a longer message is read again, not remembered
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


@dataclass(slots=True)
class _Run:
    """The outcome of one run of an operation, and the sessions as its commit leaves them."""

    transaction: SurrealTransaction
    result: Any = None
    error: Exception | None = None
    commit: SurrealCommit = field(default_factory=SurrealCommit)
    known: dict[SessionKey, KnownSession] = field(default_factory=dict)


@dataclass(slots=True)
class _Doubts:
    """Attempts of a write with an unknown outcome. Without any, the write cannot be cancelled."""

    scope: CancelScope
    runs: list[_Run] = field(default_factory=list)


# --- the store -----------------------------------------------------------------------------------
_Failed = Callable[[Exception], None]


class SurrealStore(RowMemory):
    """Runs operations. For the rooms it is the writer, the readers and the state of the store."""

    def __init__(self, connection: SurrealConnection, *, is_alone: bool = False) -> None:
        super().__init__()
        self.connection, self._is_alone = connection, is_alone
        self.on_commit: OnCommit = lambda seconds, operations: None
        self.unsettled: Sequence[Row] = []
        self.last_day = ""
        self._soon: list[tuple[Operation[Any], _Failed]] = []
        self._soon_count = self._soon_done = 0  # counts since the start
        self._again = anyio.Lock()
        self._wanted, self._moved_on = anyio.Event(), anyio.Event()
        self._stopped: str | None = None
        # this gateway's writes by table, including those that only read it
        self._writes = Counter[str]()
        # Deadline, count of writes to the table, and rows.
        self._prefetched: dict[Read, tuple[float, int, Sequence[LoadedRow]]] = {}

    @property
    def engine(self) -> Engine:
        return Engine(self, self, self, self.copy)

    async def open(self) -> None:
        """Makes missing tables and reads the state. Raises StoreUnavailable, StoreRefused."""
        await upgrade_tables(self.connection)
        self.unsettled = await self.read(lambda tx: tx.find("reservation", {}, order="id"))
        day = {"kind": "day"}
        self.last_day = await self.read(
            lambda tx: tx.value("spend", day, "name", "", order="-name")
        )
        if self._is_alone:
            self.may_hold_notices = bool(await self.read(lambda tx: tx.count("notice", {})))
        pulse = {"id": 1, "commits": 0, "probed_at": 0}
        await self.write(lambda tx: tx.insert("pulse", pulse, on_conflict="keep"), durable=True)

    async def read(self, query: Operation[T]) -> T:
        """Raises StoreUnavailable, TextRefused, and the errors of the query."""
        self._require_open()
        reads = Reads()
        while True:
            run = self._run(query, reads, is_first=False)
            if self._use_prefetched(run.transaction.missing, reads):
                continue
            if await self._fetch_missing(run.transaction, reads):
                continue
            if run.error is None:
                return cast(T, run.result)
            await self._reread(reads, run.error)

    async def prefetch(self, queries: Iterable[Operation[object]]) -> None:
        """Prefetches in one request the first rows of several queries. They stay valid for a
        moment, until a write of this gateway reads or changes one of their tables. Raises
        StoreUnavailable."""
        reads, missing = Reads(), dict[Read, Table | None]()
        for query in queries:
            missing |= self._run(query, reads, is_first=False).transaction.missing
        seen = {one.name: self._writes[one.name] for one in missing.values() if one}
        until = anyio.current_time() + _PREFETCHED_S
        await self._fetch(reads, missing)
        for read, table in missing.items():
            if table is not None:
                self._prefetched[read] = (until, seen[table.name], reads.answers[read])
        keep_newest(self._prefetched, _KNOWN)

    def _use_prefetched(self, missing: Mapping[Read, Table | None], reads: Reads) -> bool:
        """True if some of the missing rows were prefetched."""
        found = dict[Read, Any]()
        for read, table in missing.items():
            until, seen, rows = self._prefetched.get(read, (0.0, 0, ()))
            if table and anyio.current_time() < until and seen == self._writes[table.name]:
                found[read] = rows
        if found:
            reads.requests += 1
            reads.tables |= {read: missing[read] for read in found}
            reads.answers |= found
        return bool(found)

    async def write(self, operation: Operation[T], *, durable: bool) -> T:
        """Runs after the operations of `write_soon`, and is always durable. Raises
        StoreUnavailable, TextRefused, and the errors of the operation, which then wrote nothing."""
        self._require_open()
        await self.caught_up()
        return await self._write(operation)

    async def _write(self, operation: Operation[T], operations: int = 1) -> T:
        """Writes even if the waiter is cancelled, as on one machine."""
        doubts, began = _Doubts(CancelScope(shield=True)), time.monotonic()
        with doubts.scope:
            written = await self._write_until_done(operation, doubts)
        self.on_commit(time.monotonic() - began, operations)
        return written  # within the scope mypy would miss a return

    async def _write_until_done(self, operation: Operation[T], doubts: _Doubts) -> T:
        """Writes that failed twice run one after the other, so that each succeeds in the end."""
        reads = Reads()
        for tries in range(2):
            if (done := await self._attempt(operation, reads, tries, doubts)) is not None:
                return done[0]
            reads = Reads(numbers=reads.numbers)
        pause_s, end = _FIRST_PAUSE_S, anyio.current_time() + _WITHIN_S
        async with self._again:
            while anyio.current_time() < end:
                tries += 1
                if (done := await self._attempt(operation, reads, tries, doubts)) is not None:
                    return done[0]
                reads = Reads(numbers=reads.numbers)
                await anyio.sleep(pause_s * random.random())
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise StoreUnavailable("other nodes keep writing the same records: try again")

    async def _attempt(
        self, operation: Operation[T], reads: Reads, tries: int, doubts: _Doubts
    ) -> tuple[T] | None:
        """Returns None if another node was quicker, or if remembered or older rows may be the cause
        of a failure. The outcome of doubtful attempts is looked up, so that none is repeated."""
        for one in doubts.runs:
            if await self._was_executed(one):
                return (cast(T, one.result),)
        while True:
            run = self._run(operation, reads, is_first=not tries)
            if await self._fetch_missing(run.transaction, reads):
                continue
            if run.error is None:
                if not await self._try_commit(run, doubts):
                    return None
                self._note_read(reads)
                return (cast(T, run.result),)
            if not tries:
                return None
            await self._reread(reads, run.error)

    async def _was_executed(self, run: _Run) -> bool:
        """True if a commit without an answer was executed. Raises OutcomeUnknown if the store does
        not come back in time."""
        marks = run.commit.marks
        end = anyio.current_time() + _DOUBT_S
        while self._stopped is None and anyio.current_time() < end:
            try:
                (found,) = await self.connection.query(_MARKS, {"records": [*marks]})
            except (StoreUnavailable, StoreRefused):
                await anyio.sleep(_LONGEST_PAUSE_S)
                continue
            is_there = any(marks.get(one["id"]) == one[REVISION] for one in found)
            if is_there:
                self._keep(run)
            return is_there
        where = self.connection.where
        raise OutcomeUnknown(
            f"{where} did not confirm a write: check whether it is there, then repeat it"
        )

    def _run(self, operation: Operation[T], reads: Reads, *, is_first: bool) -> _Run:
        """Runs without awaiting, so that runs of several operations never share the memory."""
        transaction = SurrealTransaction(self, reads, is_first=is_first)
        run = _Run(transaction)
        self.memory.execute("BEGIN")
        try:
            for one in chain(*reads.answers.values()):
                if isinstance(one, LoadedRow):
                    transaction.load(one)
            run.result = operation(transaction)
            run.commit, run.known = transaction.commit()
        except GatewayError as error:
            run.error = error
        except (*OF_ONE, sqlite3.Error) as error:  # also caused by rows that were not read yet
            run.error = TextRefused() if has_no_utf8(error) else OperationFailed(str(error))
            run.error.__cause__ = error
        finally:
            self.memory.execute("ROLLBACK")
        return run

    async def _fetch_missing(self, transaction: SurrealTransaction, reads: Reads) -> bool:
        """Reads the missing rows of a run; False if there are none."""
        for name in transaction.unnumbered:
            await self._reserve_numbers(name)
        if transaction.missing:
            reads.requests += 1
            reads.tables |= transaction.missing
            await self._fetch(reads, transaction.missing)
        return bool(transaction.missing or transaction.unnumbered)

    async def _reread(self, reads: Reads, error: Exception) -> None:
        """Reads all rows at one moment; raises the error if they were read so already. Rows of
        several moments can break a rule together that holds at each of them: a counter that is
        older than the counted rows, or two facts that were current in turn."""
        if reads.requests <= 1:
            raise error
        reads.requests = 1
        await self._fetch(reads, reads.tables)

    async def _fetch(self, reads: Reads, tables: Mapping[Read, Table | None]) -> None:
        text, values = list[str](), dict[str, object]()
        for number, (select, given) in enumerate(tables):
            text.append(f"({select.replace('$', f'$r{number}_')})")
            values |= {f"r{number}_{place}": value for place, value in enumerate(given)}
        (found,) = await self.connection.query(f"RETURN [{', '.join(text)}]", values)
        for (read, table), rows in zip(tables.items(), found, strict=True):
            reads.answers[read] = (
                rows if table is None else [loaded_row(table, row) for row in rows]
            )

    async def _reserve_numbers(self, name: str) -> None:
        text = "UPSERT ONLY $r SET next = (next ?? 1) + $n RETURN VALUE next"
        values = {"r": RecordID("numbers", name), "n": _NUMBERS}
        (beyond,) = await self.connection.commit(text, values)
        self.numbers.setdefault(name, []).extend(range(beyond - _NUMBERS, beyond))

    async def _try_commit(self, run: _Run, doubts: _Doubts) -> bool:
        """Returns False if another node changed a row that the operation relied on, or if the
        commit did not reach the store."""
        if not run.commit.parts:  # its result may be outdated
            return not run.transaction.is_from_memory
        try:
            await self.connection.query(run.commit.text, run.commit.values)
        except (TransactionConflict, RecordExists, StatementRefused, OutcomeUnknown) as error:
            for key in run.known:
                self.known.pop(key, None)
            for record in (*run.commit.rows, *run.commit.gone):
                self.rows.pop(record, None)
            if not isinstance(error, OutcomeUnknown):
                self.connection.figures.conflicts.add(())
                return False
            doubts.runs.append(run)
            doubts.scope.shield = False  # the server may be away for long
            return await self._was_executed(run)
        self._keep(run)
        return True

    def _note_read(self, reads: Reads) -> None:
        """Invalidates prefetched rows that are older than those of this write. Keeps runs: an
        opened session begins them next."""
        self._writes.update({table.name for table in reads.tables.values() if table})
        for one in chain(*reads.answers.values()):
            is_run = isinstance(one, LoadedRow) and one.table.name == "run"
            if is_run and one.record not in self.rows:
                self._remember(one)

    def _remember(self, one: LoadedRow) -> None:
        if one.table.name in REMEMBERED and len(one.row.get("content", "")) < _LONG:
            self.rows[one.record] = one

    def _keep(self, run: _Run) -> None:
        """Remembers the rows and sessions of a commit."""
        for record in (*run.commit.rows, *run.commit.gone):
            self._writes[record.table] += 1
        self.known |= run.known
        self.keys |= {one.session.id: key for key, one in run.known.items()}
        for record in run.commit.gone:
            self.rows.pop(record, None)
        for row in run.commit.rows.values():
            self._remember(row)
        for kept in (self.known, self.keys, self.rows):
            keep_newest(kept, _KNOWN)
        self.may_hold_notices = self.may_hold_notices or run.transaction.may_hold_notices
        self.series |= run.transaction.series
        for change in run.transaction.later:
            change()
        self.last_stamp = max(self.last_stamp, run.transaction.last_stamp)

    # --- the operations of `write_soon` ----------------------------------------------------------
    def write_soon(self, operation: Operation[Any], failed: _Failed) -> None:
        if self._stopped is not None:
            failed(StoreUnavailable(self._stopped))
            return
        self._soon.append((operation, failed))
        self._soon_count += 1
        self._wanted.set()

    async def run(self) -> None:
        """Writes the operations of `write_soon`, in their order, until it is cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            await self._write_soon()

    async def _write_soon(self) -> None:
        """Commits the waiting operations together; if that fails, each alone. Commits are shielded,
        so only this loop notices a cancellation."""
        while self._soon:
            await checkpoint_if_cancelled()
            some = self._soon[:_GROUP]
            try:
                await self._write(partial(_all_of, some), len(some))
            except GatewayError:
                for operation, failed in some:
                    await self._write_alone(operation, failed)
            del self._soon[: len(some)]
            self._soon_done += len(some)
            self._moved_on.set()
            self._moved_on = anyio.Event()

    async def _write_alone(self, operation: Operation[Any], failed: _Failed) -> None:
        await checkpoint_if_cancelled()
        try:
            await self._write(operation)
        except GatewayError as error:
            failed(error)

    async def caught_up(self) -> None:
        """Does not wait for later operations: under load that would never end."""
        upto = self._soon_count
        while self._soon_done < upto:
            await self._moved_on.wait()

    async def copy(self, into: Path, copies: int) -> None:
        """Writes a database of the other engine, as of one moment. The size is not known in
        advance."""
        async with self.connection.moment() as moment, writing_sqlite(into) as target:
            await copy_rows(SurrealRows(self.connection, moment), target)

    async def close(self) -> None:
        with CancelScope(shield=True), anyio.move_on_after(_WITHIN_S):
            await self.caught_up()
        self._stopped = self._stopped or "the store is closed"
        for _, failed in self._soon:
            failed(StoreUnavailable(self._stopped))

    def _require_open(self) -> None:
        if self._stopped is not None:
            raise StoreUnavailable(self._stopped)


def _all_of(some: Sequence[tuple[Operation[Any], _Failed]], tx: Transaction) -> None:
    for operation, _ in some:
        operation(tx)


class SharedInbox(StoredInbox):
    """Accepts the messages of a session one after the other: lanes take them in that order."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._turns = WeakValueDictionary[SessionKey, anyio.Lock]()

    async def accept(self, entry: NewEntry, *, begin: bool) -> Accepted:
        turn = self._turns.setdefault(entry.session_key, anyio.Lock())
        async with turn:
            return await super().accept(entry, begin=begin)


class SharedSurrealRuns(StoredSharedRuns):
    """Prefetches in one request the rows that a turn reads first."""

    def __init__(self, store: SurrealStore) -> None:
        super().__init__(store.engine)
        self._store = store

    async def begin(
        self, run_id: RunId, tenure: Tenure, *args: Any, sender: str | None = None
    ) -> Begun:
        key = tenure.session_key
        begun = await super().begin(run_id, tenure, *args)
        person, theirs = speaker_in(key, sender), fact_view(key, sender)
        first: Sequence[Operation[object]] = (
            partial(read_settings, user=person),
            partial(free_notices, person=person, key=key, run_id=run_id, now=EPOCH),
            partial(groups_of, theirs),
        )
        with suppress(StoreUnavailable):  # then each query fails on its own
            await self._store.prefetch(first)
        return begun


class SurrealFacts(FactBase, ExtractionQueue, LocalTurnIndex):
    """Implements the port FactStore."""


Waiting = Callable[[str], Awaitable[None]]  # receives the reason why there is no store yet


async def retry_until_open(
    act: Callable[[], Awaitable[T]], connection: SurrealConnection, waiting: Waiting | None
) -> T:
    """Repeats `act` whenever the store is back, until it succeeds. Raises StoreRefused."""
    while True:
        try:
            return await act()
        except StoreUnavailable as error:
            if waiting is None:
                raise
            await waiting(str(error))
        await anyio.sleep(_LONGEST_PAUSE_S)
        await connection.connected()


class SharedFacts(SurrealFacts):
    """Facts of a store with other gateways. They learn facts too, so only a query can tell whether
    there are any."""

    def knows(self, view: FactView) -> bool:
        return True

    async def _has_any(self, view: FactView) -> bool:
        return True


@asynccontextmanager
async def open_surreal(
    connection: SurrealConnection,
    clock: Clock,
    waiting: Waiting | None = None,
    make_ledger: Callable[..., ClosingLedger] = StoredLedger,
    *,
    is_alone: bool = False,
    on_commit: OnCommit | None = None,
) -> AsyncIterator[Stores]:
    """Yields the ports of a shared store. `is_alone`: no other gateway writes there. Raises
    StoreRefused, and StoreUnavailable if there is no `waiting`."""
    async with anyio.create_task_group() as group:
        group.start_soon(connection.run)
        store = SurrealStore(connection, is_alone=is_alone)
        store.on_commit = on_commit or store.on_commit
        try:
            await retry_until_open(store.open, connection, waiting)
            group.start_soon(store.run)
            engine = store.engine
            facts = (SurrealFacts if is_alone else SharedFacts)(engine, store.memory)
            ports = stores_over(engine, clock, make_ledger=make_ledger)
            shared = SharedSurrealRuns(store)
            stores = replace(ports, inbox=SharedInbox(engine), facts=facts, shared=shared)
            try:
                yield stores
            finally:
                await stores.care.close()
        finally:
            group.cancel_scope.cancel()
            store.memory.close()
