"""The one thread that writes: it commits waiting operations together and answers them at once."""

import asyncio
import logging
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from gateway.domain.errors import GatewayError, StoreLost, StoreUnavailable
from gateway.domain.ids import SessionKey
from gateway.store.data_dir import Held, Mark
from gateway.store.rows import SEQ_BITS, Stamps, is_io_error, lack_of_room, sentence

_KNOWN = 4096  # sessions; about 0.5 kB each


@dataclass(slots=True)
class SessionRow:
    """A session's counters as the database has them, uncommitted writes of this batch included."""

    id: int
    last_run: int  # seq of the newest run; 1 without a run, if messages were imported
    last_seq: int  # seq of the newest node
    head: int | None  # place
    head_id: str | None
    is_forked: bool = False  # a message exists whose parent is not the one before it
    is_pruned: bool = False  # every branch that may be archived is


class Pen:
    """What operations write with, and what is cached of the tables. Used by the writer's thread."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.accepted = 0
        self.has_erased = False  # the log must not keep what was erased
        self._sessions: OrderedDict[SessionKey, SessionRow] = OrderedDict()
        self.stamps = Stamps()
        # Calls that the process before did not settle, and the last day on which any was made.
        self.unsettled = db.execute(f"SELECT {RESERVATION} FROM reservation ORDER BY id").fetchall()
        self.last_day: str = db.execute(_LAST_DAY).fetchone()[0]
        self.refresh()

    def refresh(self) -> None:
        """Reads the cache anew. After a rollback nothing in it is true."""
        self._sessions.clear()
        self.series: dict[tuple[str, str, str], int] = {}  # of token records
        row = self.db.execute(
            "SELECT coalesce(max(id), 0), (SELECT coalesce(max(updated_at), 0) FROM session) FROM run"
        ).fetchone()
        self.accepted, self.stamps = row[0], Stamps(row[1])
        notices = self.db.execute("SELECT EXISTS (SELECT 1 FROM notice)").fetchone()
        self.may_hold_notices = bool(notices[0])  # other threads may read this

    def session(self, key: SessionKey) -> SessionRow | None:
        known = self._sessions.get(key)
        if known is not None:
            self._sessions.move_to_end(key)
            return known
        row = self.db.execute(_FIND_SESSION, (str(key),)).fetchone()
        return None if row is None else self._remember(key, SessionRow(*row))

    def make_session(self, key: SessionKey, at: int) -> SessionRow:
        """Makes the row of a key that `session` does not find."""
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
        """The place of a node of this session; None if there is no such node."""
        if node_id is None:
            return None
        if node_id == session.head_id:
            return session.head
        row = self.db.execute(_FIND_NODE, (node_id,)).fetchone()
        if row is None or row[0] >> SEQ_BITS != session.id:
            return None
        return int(row[0])


RESERVATION = (
    "id, session, run_id, provider, model, at, day, input_tokens, held_tokens, held_nano_usd"
)
_LAST_DAY = "SELECT coalesce(max(name), '') FROM spend WHERE kind = 'day'"
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

# A database up to this size is rewritten after an erasure, which takes half a second at most.
MADE_ANEW_BYTES = 64 * 1024 * 1024
GIVE_UP_AFTER = 3  # I/O errors in a row: the kernel may have dropped what it could not write

# Errors that one operation causes. All others are faults of the database.
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
    """One operation broke a rule of the database. The others of its commit were written."""

    code = "internal_error"


Outcome = tuple[Any, Exception | None]  # the result of an operation, or why it failed


class Commits:
    """Commits operations, in one thread. An operation raises GatewayError only before it writes."""

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
        """Runs all operations in one transaction. Returns an outcome for each."""
        pen, outcomes = self._pen, list[Outcome]()
        try:
            if self._synchronous != self._modes[durable]:
                self._prepare(self._modes[durable])
            pen.db.execute("BEGIN IMMEDIATE")
            for operation in operations:
                try:
                    outcomes.append((operation(pen), None))
                except GatewayError as error:
                    outcomes.append((None, error))
            if durable:
                pen.db.execute("UPDATE pulse SET commits = ?", (self._commits + 1,))
            pen.db.execute("COMMIT")
        except _OF_ONE as error:
            return self._apart(error, operations, durable=durable)
        except sqlite3.Error as error:
            return self._failed(error, len(operations))
        self.done += 1
        self._io_errors = 0
        if durable:
            self.synced += 1
            self._commits += 1
            try:
                self._mark.write(pen.accepted, self._commits)
            except StoreUnavailable as error:
                # The commit is safe. An older mark only detects less.
                log.warning("store mark not written", extra={"why": str(error)})
        if pen.has_erased:
            self._forget()
        return outcomes

    def _forget(self) -> None:
        """Removes what was erased from the log and from gaps within pages."""
        db = self._pen.db
        try:
            size = db.execute(
                "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            )
            if size.fetchone()[0] <= MADE_ANEW_BYTES:
                db.execute("VACUUM")
            busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._pen.has_erased = bool(busy)  # a reader is open: try again after the next commit
        except sqlite3.Error as error:
            self._pen.has_erased = False
            log.warning("store may still hold erased words", extra={"why": str(error)})

    def _apart(
        self, error: Exception, operations: Sequence[Operation[Any]], *, durable: bool
    ) -> list[Outcome]:
        """Commits each operation alone, so that the one at fault harms no other."""
        self._undo()
        if len(operations) == 1:
            log.error("store operation failed", exc_info=error)
            return [(None, OperationFailed(f"{self._where}: {error}"))]
        singly = [self.commit([operation], durable=durable) for operation in operations]
        return [outcome for outcomes in singly for outcome in outcomes]

    def _failed(self, error: sqlite3.Error, count: int) -> list[Outcome]:
        """Fails all operations: whether they reached the disk is not known."""
        no_room = lack_of_room(error, self._where)
        why = no_room or sentence(error, self._where)
        self._undo()
        log.error("store cannot commit", extra={"why": why})
        if no_room is None and is_io_error(error):
            self._io_errors, self._synchronous = self._io_errors + 1, ""
            if self._io_errors >= GIVE_UP_AFTER and self.given_up is None:
                self.given_up = (
                    f"{self._io_errors} commits to {self._where} failed one after another: "
                    "check the disk, then restart"
                )
        return [(None, StoreUnavailable(why)) for _ in range(count)]

    def _prepare(self, mode: str) -> None:
        """Sets how commits are synchronised, and starts a new log after an I/O error.

        After an I/O error the kernel may believe that pages are on the disk which are not. One
        missing page spoils the rest of the log, so the log is moved into the database.
        """
        if self._io_errors:
            self._pen.db.execute(f"PRAGMA synchronous = {self._modes[True]}")
            busy, _, _ = self._pen.db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
            if busy:
                log.info("store log still read by somebody")
        self._pen.db.execute(f"PRAGMA synchronous = {mode}")
        self._synchronous = mode

    def _undo(self) -> None:
        try:
            if self._pen.db.in_transaction:
                self._pen.db.execute("ROLLBACK")
            self._pen.refresh()
        except sqlite3.Error as error:
            self.given_up = f"{sentence(error, self._where)}; restart when it is mended"
            log.exception("store cannot undo a transaction")


GROUP = 64  # operations in a commit; operations of `write_soon` come on top
SOON_S = 0.02


# An operation, whether it is durable, and either the future of its waiter or a function that is called
# if it fails.
_Ticket = tuple[
    Operation[Any], bool, "asyncio.Future[Any] | None", Callable[[Exception], None] | None
]


class Writer:
    """Hands operations to the writer's thread and answers on the loop, with one wake-up a commit.

    An idle writer commits at once. Groups form only behind a commit that is running. The operation of
    a cancelled waiter is written all the same.
    """

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._stopped: str | None = None
        self._queue: SimpleQueue[Sequence[_Ticket] | None] = SimpleQueue()
        self._soon: list[_Ticket] = []  # they go with the next write
        self._is_timed = False
        self._unheard = 0  # operations of `write_soon` that are not answered
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="store writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def write(self, operation: Operation[T], *, durable: bool) -> T:
        """Returns after the commit (and its fsync, if durable). Raises StoreUnavailable."""
        if self._stopped is None:
            future: asyncio.Future[T] = self._loop.create_future()
            self._queue.put([*self._soon, (operation, durable, future, None)])
            self._soon.clear()
            if self._stopped is None:  # else the writer stopped between the check and the put
                return await future
            future.cancel()
        raise self._refusal()

    def write_soon(self, operation: Operation[Any], failed: Callable[[Exception], None]) -> None:
        """Writes in the transaction of the next `write`, before it; after SOON_S if there is none."""
        if self._stopped is not None:
            failed(self._refusal())
            return
        if not self._is_timed:
            self._is_timed = True
            self._loop.call_later(SOON_S, self._time_is_up)
        self._unheard += 1
        self._soon.append((operation, False, None, failed))

    async def caught_up(self) -> None:
        """Returns when every operation of `write_soon` is committed or failed."""
        if self._unheard:
            with suppress(StoreUnavailable):
                await self.write(_nothing, durable=False)

    def _time_is_up(self) -> None:
        self._is_timed = False
        self.push()

    def push(self) -> None:
        """Writes the operations of `write_soon` now."""
        if self._soon:
            self._queue.put(self._soon)
            self._soon = []

    def stop(self, why: str) -> None:
        """Refuses new operations. Waiting ones are still written; `join` waits for them."""
        self.push()
        self._stopped = self._stopped or why
        self._queue.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        batch: list[_Ticket] = []
        try:
            while self._commits.given_up is None and (batch := self._take()):
                operations, is_durable = list[Operation[Any]](), False
                for operation, durable, _, _ in batch:
                    operations.append(operation)
                    is_durable = is_durable or durable
                outcomes = self._commits.commit(operations, durable=is_durable)
                self._loop.call_soon_threadsafe(self._tell, batch, outcomes)
                batch = []
        finally:
            # Also after a bug: no waiter may wait for a thread that is gone.
            why = self._commits.given_up or "the store's writer has stopped: restart"
            self._stopped = self._stopped or why
            while not self._queue.empty():
                batch += self._queue.get() or ()
            refused: list[Outcome] = [(None, self._refusal()) for _ in batch]
            self._loop.call_soon_threadsafe(self._tell, batch, refused)

    def _take(self) -> list[_Ticket]:
        """Waiting operations, at least one; none after the end."""
        batch: list[_Ticket] = []
        while not batch or (len(batch) < GROUP and not self._queue.empty()):
            tickets = self._queue.get()
            if tickets is None:
                if batch:
                    self._queue.put(None)  # for the next call
                break
            batch += tickets
        return batch

    def _refusal(self) -> StoreUnavailable:
        why = self._stopped or ""
        return StoreUnavailable(why) if self._commits.given_up is None else StoreLost(why)

    def _tell(self, batch: Sequence[_Ticket], outcomes: Sequence[Outcome]) -> None:
        for (_, _, future, failed), (result, error) in zip(batch, outcomes, strict=True):
            if failed is not None:
                self._unheard -= 1
                if error is not None:
                    failed(error)
            elif future is None or future.done():  # the waiter was cancelled
                continue
            elif error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


def _nothing(_: Pen) -> None:
    """Does nothing: its commit follows those of the operations before it."""
