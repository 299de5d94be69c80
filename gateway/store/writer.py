"""The one thread that writes: takes what is waiting, commits it together, tells everybody at once."""

import asyncio
import logging
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, TypeVar

from gateway.domain.budgets import Amount, Payer, Reservation, Scope, Tally, scopes_of
from gateway.domain.errors import GatewayError, StoreLost, StoreUnavailable
from gateway.domain.ids import RunId, SessionKey, to_time
from gateway.store.data_dir import Held, Mark
from gateway.store.rows import Stamps, is_io_error, lack_of_room, place_of, sentence, seq_of

_KNOWN = 4096  # scopes; about 0.5 kB each
_NOTHING = Amount()


class Book:
    """For the writer's thread alone; uncommitted writes of its batch are included."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.latest = latest_day(db)
        self._open = {one.id: one for one in reservations(db)}
        scopes = [scope for one in self._open.values() for scope in _scopes(one)]
        # Those of which something is held are always in it.
        self._tallies = OrderedDict((one.scope, one) for one in tallies_of(scopes, db))

    def tallies(self, scopes: Sequence[Scope]) -> Sequence[Tally]:
        """One for each, in their order."""
        known = self._tallies
        for scope in scopes:
            if scope in known:
                known.move_to_end(scope)
            else:
                known[scope] = _spent(scope, self._db)
        found = [known[scope] for scope in scopes]
        while len(known) > _KNOWN + len(scopes) * (1 + len(self._open)):
            scope, oldest = known.popitem(last=False)
            if oldest.held != _NOTHING:
                known[scope] = oldest
        return found

    def __len__(self) -> int:
        return len(self._tallies)

    def hold(self, reservation: Reservation, tallies: Sequence[Tally]) -> None:
        self._open[reservation.id], self.latest = reservation, reservation.day
        for one in tallies:
            held, since = one.held + reservation.held, one.since or reservation.at
            self._tallies[one.scope] = Tally(one.scope, one.used, held, since, one.warned)

    def take(self, reservation_id: str, used: Amount) -> tuple[Reservation, Sequence[Tally]] | None:
        """What was held for it is used in so far; None if nothing was held."""
        taken = self._open.pop(reservation_id, None)
        if taken is None:
            return None
        for scope in _scopes(taken):
            one = self._tallies[scope]
            change = (one.used + used, one.held - taken.held)
            self._tallies[scope] = Tally(scope, *change, one.since, one.warned)
        return taken, [self._tallies[scope] for scope in _scopes(taken)]

    def warn(self, tally: Tally) -> None:
        self._tallies[tally.scope] = tally


def latest_day(db: sqlite3.Connection) -> str:
    """The latest that anything was reserved in: what is spent is never opened again."""
    row = db.execute("SELECT max(name) FROM spend WHERE kind = 'day'").fetchone()
    return row[0] or ""


def reservations(db: sqlite3.Connection) -> Sequence[Reservation]:
    rows = db.execute(f"SELECT {RESERVATION} FROM reservation ORDER BY id").fetchall()
    return [_to_reservation(row) for row in rows]


def tallies_of(scopes: Sequence[Scope], db: sqlite3.Connection) -> Sequence[Tally]:
    """One for each, in their order."""
    held = dict.fromkeys(scopes, _NOTHING)
    for one in reservations(db):
        held |= {scope: held[scope] + one.held for scope in _scopes(one) if scope in held}
    return [replace(_spent(scope, db), held=held[scope]) for scope in scopes]


def _spent(scope: Scope, db: sqlite3.Connection) -> Tally:
    """Without what is held."""
    row = db.execute(_SPENT, (scope.kind, scope.name)).fetchone()
    if row is None:
        return Tally(scope)
    tokens, nano_usd, since, warned = row
    return Tally(scope, Amount(tokens, nano_usd), _NOTHING, to_time(since), warned)


def _scopes(reservation: Reservation) -> Sequence[Scope]:
    return scopes_of(reservation.payer.session_key, reservation.day)


def _to_reservation(row: Sequence[Any]) -> Reservation:
    id_, session, run_id, provider, model, at, day, input_tokens, tokens, nano_usd = row
    payer = Payer(SessionKey.parse(session), RunId(run_id))
    held = Amount(tokens, nano_usd)
    return Reservation(id_, payer, provider, model, to_time(at), day, input_tokens, held)


RESERVATION = (
    "id, session, run_id, provider, model, at, day, input_tokens, held_tokens, held_nano_usd"
)
_SPENT = """
SELECT input_tokens + output_tokens, nano_usd, since, warned FROM spend
WHERE kind = ? AND name = ?
"""


@dataclass(slots=True)
class SessionRow:
    """A session's counters as the database has them, uncommitted writes of this batch included."""

    id: int
    last_run: int  # seq of the newest run; 1 also if there is none, but something was taken in
    last_seq: int  # seq of the newest node
    head: int | None  # place
    head_id: str | None
    is_forked: bool = False  # some message does not follow on the one before it
    is_pruned: bool = False  # every branch that may be is archived


class Pen:
    """Every change goes through here, one transaction at a time."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.accepted = 0
        self.has_erased = False  # so that the log must not keep what the database no longer has
        self._sessions: OrderedDict[SessionKey, SessionRow] = OrderedDict()
        self.stamps = Stamps()
        self.refresh()

    def refresh(self) -> None:
        """Reads everything anew: after an undone transaction nothing known by heart holds."""
        self._sessions.clear()
        self.book = Book(self.db)
        row = self.db.execute(
            "SELECT coalesce(max(id), 0), (SELECT coalesce(max(updated_at), 0) FROM session) FROM run"
        ).fetchone()
        self.accepted, self.stamps = row[0], Stamps(row[1])
        notices = self.db.execute("SELECT EXISTS (SELECT 1 FROM notice)").fetchone()
        self.may_hold_notices = bool(notices[0])  # anybody may look at this

    def session(self, key: SessionKey) -> SessionRow | None:
        known = self._sessions.get(key)
        if known is not None:
            self._sessions.move_to_end(key)
            return known
        row = self.db.execute(_FIND_SESSION, (str(key),)).fetchone()
        return None if row is None else self._remember(key, SessionRow(*row))

    def make_session(self, key: SessionKey, at: int) -> SessionRow:
        """Only for a key that `session` does not know."""
        stamp = self.stamps.take(at)
        made = self.db.execute(
            _MAKE_SESSION, (str(key), key.agent, key.channel, key.account, key.peer, at, stamp)
        )
        assert made.lastrowid is not None
        return self._remember(key, SessionRow(made.lastrowid, 0, 0, None, None))

    def _remember(self, key: SessionKey, session: SessionRow) -> SessionRow:
        self._sessions[key] = session
        if len(self._sessions) > _KNOWN:
            self._sessions.popitem(last=False)
        return session

    def place(self, session: SessionRow, node_id: str | None) -> int | None:
        """Where a node of this session is; None if there is none such."""
        if node_id is None:
            return None
        if node_id == session.head_id:
            return session.head
        row = self.db.execute(_FIND_NODE, (node_id,)).fetchone()
        if row is None or place_of(session.id, seq_of(row[0])) != row[0]:
            return None
        return int(row[0])


_FIND_NODE = "SELECT place FROM node WHERE id = ? AND standing < 2"
_FIND_SESSION = """
SELECT s.id, coalesce((SELECT max(r.seq) FROM run r WHERE r.session = s.id), s.last_seq > 0), s.last_seq,
       s.head, (SELECT n.id FROM node n WHERE n.place = s.head),
       (SELECT count(*) FROM (
            SELECT 1 FROM node INDEXED BY node_fork
            WHERE parent IS NOT place - 1 AND place > s.id << 32 AND place < (s.id + 1) << 32
            LIMIT 2)) > 1
FROM session s WHERE s.key = ?
"""
_MAKE_SESSION = """
INSERT INTO session (key, agent, channel, account, peer, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""

log = logging.getLogger(__name__)

T = TypeVar("T")
Operation = Callable[[Pen], T]

# Up to this size a database is written anew after an erasure: half a second at most.
MADE_ANEW_BYTES = 64 * 1024 * 1024
GIVE_UP_AFTER = 3  # I/O errors in a row: the kernel may have dropped what it could not write

# What a single operation can be at fault for; everything else is the database's own trouble.
_OF_ONE = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    AssertionError,
)


class OperationFailed(GatewayError):
    """One operation broke a rule of the database; its neighbours were written without it."""

    code = "internal_error"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an operation gave, or why it was not done."""

    result: Any = None
    error: Exception | None = None

    def tell(self, future: "asyncio.Future[Any]") -> None:
        if future.done():  # its waiter was cancelled
            return
        if self.error is None:
            future.set_result(self.result)
        else:
            future.set_exception(self.error)


class Commits:
    """Belongs to one thread. An operation raises GatewayError only before it has written."""

    def __init__(
        self, pen: Pen, mark: Mark, held: Held, where: str, *, durable: bool = True
    ) -> None:
        self._pen, self._mark, self._where = pen, mark, where
        self._modes = ("NORMAL", "FULL") if durable else ("OFF", "OFF")
        self._commits = held.commits
        self._synchronous = ""
        self._io_errors = 0
        self.done = 0  # transactions so far
        self.synced = 0  # of these, with an fsync
        self.given_up: str | None = None

    def commit(self, operations: Sequence[Operation[Any]], *, durable: bool) -> list[Outcome]:
        """One transaction for all; an outcome each."""
        try:
            outcomes = self._transaction(operations, durable=durable)
        except _OF_ONE as error:
            self._undo()
            if len(operations) == 1:
                log.exception("store operation failed")
                return [Outcome(error=OperationFailed(f"{self._where}: {error}"))]
            # One of them is at fault: each for itself, so that it harms nobody else.
            singly = [self.commit([operation], durable=durable) for operation in operations]
            return [outcome for outcomes in singly for outcome in outcomes]
        except sqlite3.Error as error:
            # Whether this reached the disk is not known: nobody is told that it did.
            no_room = lack_of_room(error, self._where)
            why = no_room or sentence(error, self._where)
            self._undo()
            self._count_failure(why, is_io_error=is_io_error(error) and no_room is None)
            return [Outcome(error=StoreUnavailable(why)) for _ in operations]
        self._io_errors = 0
        return outcomes

    def _transaction(self, operations: Sequence[Operation[Any]], *, durable: bool) -> list[Outcome]:
        if self._io_errors:
            self._start_a_new_log()
        self._be_synchronous(self._modes[durable])
        pen = self._pen
        pen.db.execute("BEGIN IMMEDIATE")
        outcomes: list[Outcome] = []
        for operation in operations:
            try:
                outcomes.append(Outcome(operation(pen)))
            except GatewayError as error:
                outcomes.append(Outcome(error=error))
        if durable:
            pen.db.execute("UPDATE pulse SET commits = ?", (self._commits + 1,))
        pen.db.execute("COMMIT")
        self.done += 1
        if durable:
            self._note_durable()
        if pen.has_erased:
            self._forget()
        return outcomes

    def _forget(self) -> None:
        """Neither the log nor the gaps within pages must keep what was erased."""
        db = self._pen.db
        try:
            size = db.execute(
                "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            )
            if size.fetchone()[0] <= MADE_ANEW_BYTES:
                db.execute("VACUUM")
            busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._pen.has_erased = bool(busy)  # somebody still reads: again after the next one
        except sqlite3.Error as error:
            self._pen.has_erased = False
            log.warning("store may still hold erased words", extra={"why": str(error)})

    def _note_durable(self) -> None:
        self.synced += 1
        self._commits += 1
        try:
            self._mark.write(Held(self._pen.accepted, self._commits))
        except StoreUnavailable as error:
            # The commit itself is safe; an older mark only detects less.
            log.warning("store mark not written", extra={"why": str(error)})

    def _be_synchronous(self, mode: str) -> None:
        if self._synchronous != mode:
            self._pen.db.execute(f"PRAGMA synchronous = {mode}")
            self._synchronous = mode

    def _start_a_new_log(self) -> None:
        """After an I/O error the kernel may think that pages are on the disk which are not, and one
        missing page spoils all of the log after it: move everything into the database instead."""
        self._be_synchronous(self._modes[True])
        busy, _, _ = self._pen.db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        if busy:
            log.info("store log still read by somebody")

    def _undo(self) -> None:
        try:
            if self._pen.db.in_transaction:
                self._pen.db.execute("ROLLBACK")
            self._pen.refresh()
        except sqlite3.Error as error:
            self.given_up = f"{sentence(error, self._where)}; restart when it is mended"
            log.exception("store cannot undo a transaction")

    def _count_failure(self, why: str, *, is_io_error: bool) -> None:
        log.error("store cannot commit", extra={"why": why})
        if not is_io_error:
            return
        self._io_errors += 1
        if self._io_errors >= GIVE_UP_AFTER and self.given_up is None:
            self.given_up = (
                f"{self._io_errors} commits to {self._where} failed one after another: "
                "check the disk, then restart"
            )


GROUP = 64  # operations in a commit; those that nobody waits for may come on top
SOON_S = 0.02


@dataclass(frozen=True, slots=True)
class _Ticket:
    durable: bool
    operation: Operation[Any]
    hear: Callable[[Outcome], None]


class Writer:
    """Futures are answered on the loop that asked, one wake-up a commit.

    Idle, it commits at once; groups form only behind a commit that is running. A waiter that is
    cancelled changes nothing: its operation is written all the same.
    """

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._stopped: str | None = None
        self._queue: SimpleQueue[Sequence[_Ticket] | None] = SimpleQueue()
        self._soon: list[_Ticket] = []  # for which nobody waits; they go with the next one
        self._is_timed = False
        self._unheard = 0  # of those, the queued ones too
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="store writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def write(self, operation: Operation[T], *, durable: bool) -> T:
        """Comes back once it is committed (and fsynced, if durable). Raises StoreUnavailable."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._stopped is None:
            self._put(_Ticket(durable, operation, lambda outcome: outcome.tell(future)))
        if self._stopped is not None:  # perhaps between the look and the put
            future.cancel()
            raise self._refusal(self._stopped)
        return await future

    def write_soon(self, operation: Operation[Any], failed: Callable[[Exception], None]) -> None:
        """In the transaction of the next `write`, before it; within SOON_S if there is none."""

        def hear(outcome: Outcome) -> None:
            self._unheard -= 1
            if outcome.error is not None:
                failed(outcome.error)

        if self._stopped is not None:
            failed(self._refusal(self._stopped))
            return
        if not self._is_timed:
            self._is_timed = True
            self._loop.call_later(SOON_S, self._time_is_up)
        self._unheard += 1
        self._soon.append(_Ticket(durable=False, operation=operation, hear=hear))

    async def caught_up(self) -> None:
        """Whatever was to be written soon is there for readers, or will never be."""
        if self._unheard:
            with suppress(StoreUnavailable):
                await self.write(_nothing, durable=False)

    def _time_is_up(self) -> None:
        self._is_timed = False
        self._put()

    def _put(self, *tickets: _Ticket) -> None:
        if self._soon or tickets:
            self._queue.put([*self._soon, *tickets])
            self._soon.clear()

    def stop(self, why: str) -> None:
        """No new work; what is waiting is still written. Join to be sure."""
        self._put()
        self._stopped = self._stopped or why
        self._queue.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        batch: list[_Ticket] = []
        try:
            while self._commits.given_up is None and (batch := self._take()):
                durable = any(ticket.durable for ticket in batch)
                operations = [ticket.operation for ticket in batch]
                self._answer(batch, self._commits.commit(operations, durable=durable))
        finally:
            # Also after a mistake of ours: nobody waits for a thread that is gone.
            why = self._commits.given_up or "the store's writer has stopped: restart"
            self._stopped = self._stopped or why
            self._refuse(batch, self._stopped)  # those that have their answer keep it
            self._refuse(self._left(), self._stopped)

    def _take(self) -> list[_Ticket]:
        """What is waiting, at least one; nothing once it is over."""
        batch: list[_Ticket] = []
        while not batch or (len(batch) < GROUP and not self._queue.empty()):
            tickets = self._queue.get()
            if tickets is None:
                if batch:
                    self._queue.put(None)  # for the next look
                break
            batch += tickets
        return batch

    def _left(self) -> list[_Ticket]:
        left: list[_Ticket] = []
        while not self._queue.empty():
            left += self._queue.get() or ()
        return left

    def _refuse(self, batch: Sequence[_Ticket], why: str) -> None:
        self._answer(batch, [Outcome(error=self._refusal(why)) for _ in batch])

    def _refusal(self, why: str) -> StoreUnavailable:
        return StoreUnavailable(why) if self._commits.given_up is None else StoreLost(why)

    def _answer(self, batch: Sequence[_Ticket], outcomes: Sequence[Outcome]) -> None:
        self._loop.call_soon_threadsafe(_tell, batch, outcomes)


def _tell(batch: Sequence[_Ticket], outcomes: Sequence[Outcome]) -> None:
    for ticket, outcome in zip(batch, outcomes, strict=True):
        ticket.hear(outcome)


def _nothing(_: Pen) -> None:
    """To wait for what is queued before it."""
