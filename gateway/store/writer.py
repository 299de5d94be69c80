"""The threads of the store: one writes and commits in groups, two read beside it."""

import asyncio
import errno
import logging
import os
import sqlite3
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from anyio import to_thread

from gateway.domain.errors import GatewayError, StoreLost, StoreRefused, StoreUnavailable
from gateway.store.faults import (
    TextRefused,
    file_fault,
    file_faults,
    has_no_utf8,
    is_io_error,
    lack_of_room,
    sentence,
    unavailable,
)
from gateway.store.transaction import Row, Transaction

log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

MARK = "store.mark"


@dataclass(frozen=True, slots=True)
class Progress:
    """Messages accepted and durable commits, as a database or its mark counts them."""

    accepted: int = 0
    commits: int = 0


class Mark:
    """The acknowledged progress, in a file beside the database. SQLite drops a damaged end of its
    log silently, and only a count kept elsewhere shows the loss."""

    _FORM = struct.Struct(">QQ")

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / MARK
        with file_faults(str(self.path)):
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)

    def read(self) -> Progress:
        """Raises StoreRefused if the file has another size than the mark."""
        text = os.pread(self._file, self._FORM.size + 1, 0)
        if not text:
            return Progress()
        if len(text) != self._FORM.size:
            raise StoreRefused(
                f"{self.path} is damaged: check the disk and the database, then move the file away"
            )
        return Progress(*self._FORM.unpack(text))

    def write(self, accepted: int, commits: int) -> None:
        """Raises StoreUnavailable. A byte range within one block is written whole or not at all."""
        try:
            written = os.pwrite(self._file, self._FORM.pack(accepted, commits), 0)
            if written < self._FORM.size:  # a limit cut the write
                if os.fstat(self._file).st_size < self._FORM.size:
                    os.ftruncate(self._file, 0)
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        except OSError as error:
            raise file_fault(error, str(self.path)) from error

    def close(self) -> None:
        os.close(self._file)


# --- the writer's transaction --------------------------------------------------------------------
class WriteTransaction(Transaction):
    """The transaction of the writer's thread, with a cache of the tables."""

    def __init__(self, db: sqlite3.Connection) -> None:
        super().__init__(db)
        self.has_erased = False  # erased text must leave the log
        self.unsettled: Sequence[Row] = self.find("reservation", {}, order="id")
        self.last_day = self.value("spend", {"kind": "day"}, "name", "", order="-name")
        self.refresh()

    def refresh(self) -> None:
        """Reads the cache again; a rollback makes it invalid."""
        self._sessions.clear()
        self.series.clear()
        self.accepted, self.last_stamp, notices = self.db.execute(_REFRESH).fetchone()
        self.may_hold_notices = bool(notices)


_REFRESH = """
SELECT coalesce(max(id), 0), (SELECT coalesce(max(updated_at), 0) FROM session),
       EXISTS (SELECT 1 FROM notice) FROM run
"""

Operation = Callable[[WriteTransaction], T]
Query = Callable[[Transaction], T]
Outcome = tuple[Any, Exception | None]  # result and error of an operation


# --- commits -------------------------------------------------------------------------------------
# A database up to this size is rewritten after an erasure: at most half a second.
MADE_ANEW_BYTES = 64 * 1024 * 1024
GIVE_UP_AFTER = 3  # consecutive I/O errors: the kernel may have dropped unwritten pages

# Errors caused by one operation. All others are faults of the database.
OF_ONE = (
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
    """One operation broke a rule of the database; the others of its commit were written."""

    code = "internal_error"


OnCommit = Callable[[float, int], None]  # seconds and operations of a commit


class Commits:
    """Commits operations, in one thread. An operation raises GatewayError only before it writes."""

    def __init__(
        self, tx: WriteTransaction, mark: Mark, held: Progress, where: str, *, durable: bool = True
    ) -> None:
        self._tx, self._mark, self._where = tx, mark, where
        self._modes = ("NORMAL", "FULL") if durable else ("OFF", "OFF")
        self._commits = held.commits
        self._synchronous = ""
        self._io_errors = 0
        self.done = 0  # transactions so far
        self.synced = 0  # of these, with an fsync
        self.given_up: str | None = None
        self.on_commit: OnCommit = lambda seconds, operations: None

    def commit(self, operations: Sequence[Operation[Any]], *, durable: bool) -> list[Outcome]:
        """Runs all operations in one transaction. Returns an outcome for each."""
        tx, outcomes, began = self._tx, list[Outcome](), time.monotonic()
        try:
            if self._synchronous != self._modes[durable]:
                self._prepare(self._modes[durable])
            tx.db.execute("BEGIN IMMEDIATE")
            for operation in operations:
                try:
                    outcomes.append((operation(tx), None))
                except GatewayError as error:
                    outcomes.append((None, error))
            if durable:
                tx.db.execute("UPDATE pulse SET commits = ?", (self._commits + 1,))
            tx.db.execute("COMMIT")
        except OF_ONE as error:
            return self._apart(error, operations, durable=durable)
        except sqlite3.Error as error:
            return self._failed(error, len(operations))
        self.done += 1
        self.on_commit(time.monotonic() - began, len(operations))
        self._io_errors = 0
        if durable:
            self.synced += 1
            self._commits += 1
            try:
                self._mark.write(tx.accepted, self._commits)
            except StoreUnavailable as error:
                # The commit is safe. An older mark only detects less.
                log.warning("store_mark_not_written", extra={"why": str(error)})
        if tx.has_erased:
            self._forget()
        return outcomes

    def _forget(self) -> None:
        """Removes erased text from the log and from free space in pages."""
        db = self._tx.db
        try:
            size = db.execute(
                "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            )
            if size.fetchone()[0] <= MADE_ANEW_BYTES:
                db.execute("VACUUM")
            busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._tx.has_erased = bool(busy)  # a reader is open: retry after the next commit
        except sqlite3.Error as error:
            self._tx.has_erased = False
            log.warning("store_erasure_incomplete", extra={"why": str(error)})

    def _apart(
        self, error: Exception, operations: Sequence[Operation[Any]], *, durable: bool
    ) -> list[Outcome]:
        """Commits each operation alone, so that the faulty one harms no other."""
        self._undo()
        if len(operations) > 1:
            singly = [self.commit([operation], durable=durable) for operation in operations]
            return [outcome for outcomes in singly for outcome in outcomes]
        if has_no_utf8(error):
            return [(None, TextRefused())]
        log.error("store_operation_failed", exc_info=error)
        return [(None, OperationFailed(f"{self._where}: {error}"))]

    def _failed(self, error: sqlite3.Error, count: int) -> list[Outcome]:
        """Fails all operations: they may or may not have reached the disk."""
        no_room = lack_of_room(error, self._where)
        why = no_room or sentence(error, self._where)
        self._undo()
        log.error("store_cannot_commit", extra={"why": why})
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
            self._tx.db.execute(f"PRAGMA synchronous = {self._modes[True]}")
            busy, _, _ = self._tx.db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
            if busy:
                log.info("store_log_still_read")
        self._tx.db.execute(f"PRAGMA synchronous = {mode}")
        self._synchronous = mode

    def _undo(self) -> None:
        try:
            if self._tx.db.in_transaction:
                self._tx.db.execute("ROLLBACK")
            self._tx.refresh()
        except sqlite3.Error as error:
            self.given_up = f"{sentence(error, self._where)}; restart when it is mended"
            log.exception("store_rollback_failed")


# --- the thread that writes ----------------------------------------------------------------------
GROUP = 64  # operations per commit, without those of `write_soon`
SOON_S = 0.02

_Failed = Callable[[Exception], None]
# An operation, whether it is durable, and the future of its waiter or a callback for its failure.
_Ticket = tuple[Operation[Any], bool, "asyncio.Future[Any] | None", _Failed | None]


class Writer:
    """Queues operations for the writer's thread and answers on the loop, with one wake-up per
    commit.

    An idle writer commits at once. Groups form only behind a running commit. The operation of a
    cancelled waiter is still written.
    """

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._stopped: str | None = None
        self._queue: SimpleQueue[Sequence[_Ticket] | None] = SimpleQueue()
        self._soon: list[_Ticket] = []  # go with the next write
        self._is_timed = False
        self._unanswered = 0  # operations of `write_soon`
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
            if self._stopped is None:  # else the writer stopped between check and put
                return await future
            future.cancel()
        raise self._refusal()

    def write_soon(self, operation: Operation[Any], failed: _Failed) -> None:
        """Writes in the transaction of the next `write`, ahead of it; after SOON_S if there is
        none."""
        if self._stopped is not None:
            failed(self._refusal())
            return
        if not self._is_timed:
            self._is_timed = True
            self._loop.call_later(SOON_S, self._push)
        self._unanswered += 1
        self._soon.append((operation, False, None, failed))

    async def caught_up(self) -> None:
        """Returns when every operation of `write_soon` is committed or failed."""
        if self._unanswered:
            with suppress(StoreUnavailable):
                await self.write(lambda _: None, durable=False)  # runs after the queued ones

    def _push(self) -> None:
        """Writes the operations of `write_soon` now."""
        self._is_timed = False
        if self._soon:
            self._queue.put(self._soon)
            self._soon = []

    def stop(self, why: str) -> None:
        """Refuses new operations. Waiting ones are still written; `join` waits for them."""
        self._push()
        self._stopped = self._stopped or why
        self._queue.put(None)

    def join(self) -> None:
        self._thread.join()

    async def close(self) -> None:
        """Writes the waiting operations and refuses new ones. A second close does nothing."""
        self.stop("the store is closed")
        await to_thread.run_sync(self.join)

    def _run(self) -> None:
        batch: list[_Ticket] = []
        try:
            while self._commits.given_up is None and (batch := self._next_batch()):
                operations: list[Operation[Any]] = []
                is_durable = False
                for operation, durable, _, _ in batch:
                    operations.append(operation)
                    is_durable = is_durable or durable
                outcomes = self._commits.commit(operations, durable=is_durable)
                self._loop.call_soon_threadsafe(self._answer, batch, outcomes)
                batch = []
        finally:
            # This also runs after a bug: no waiter may wait for a dead thread.
            why = self._commits.given_up or "the store's writer has stopped: restart"
            self._stopped = self._stopped or why
            while not self._queue.empty():
                batch += self._queue.get() or ()
            refused: list[Outcome] = [(None, self._refusal()) for _ in batch]
            self._loop.call_soon_threadsafe(self._answer, batch, refused)

    def _next_batch(self) -> list[_Ticket]:
        batch: list[_Ticket] = []
        while not batch or (len(batch) < GROUP and not self._queue.empty()):
            tickets = self._queue.get()
            if tickets is None:
                if batch:
                    self._queue.put(None)  # for the next batch
                break
            batch += tickets
        return batch

    def _refusal(self) -> StoreUnavailable:
        why = self._stopped or ""
        return StoreUnavailable(why) if self._commits.given_up is None else StoreLost(why)

    def _answer(self, batch: Sequence[_Ticket], outcomes: Sequence[Outcome]) -> None:
        for (_, _, future, failed), (result, error) in zip(batch, outcomes, strict=True):
            if future is not None:
                _resolve(future, result, error)
            elif failed is not None:
                self._unanswered -= 1
                if error is not None:
                    failed(error)


def _resolve(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if future.done():  # the waiter was cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


# --- the threads that read -----------------------------------------------------------------------
THREADS = 2
_FAULTS = (GatewayError, ValueError, TypeError, LookupError, ArithmeticError)


class Readers:
    """Threads over one queue, so that a long listing does not delay a short query. Each has its own
    connection and never waits for the writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: SimpleQueue[tuple[Query[Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        self._threads = [
            threading.Thread(target=self._run, name=f"store reader {number}", daemon=True)
            for number in range(THREADS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    async def read(self, query: Query[T]) -> T:
        """Raises StoreUnavailable if the database cannot be read."""
        if not self._is_open:
            raise StoreUnavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((query, future))
        return await future

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    async def close(self) -> None:
        self._is_open = False
        for _ in self._threads:
            self._queue.put(None)
        await to_thread.run_sync(self.join)

    def _run(self) -> None:
        tx: Transaction | None = None
        while (ticket := self._queue.get()) is not None:
            query, future = ticket
            result: Any = None
            error: Exception | None = StoreUnavailable("a reader of the store stopped: restart")
            try:
                tx = tx or Transaction(open_to_read(self._path))
                result, error = query(tx), None
            except sqlite3.Error as fault:
                error = unavailable(fault, str(self._path))
            except _FAULTS as fault:
                error = TextRefused() if has_no_utf8(fault) else fault
            finally:  # runs after a bug too: no waiter may wait for a dead thread
                self._loop.call_soon_threadsafe(_resolve, future, result, error)
        if tx is not None:
            tx.db.close()


def open_to_read(path: Path, *, any_thread: bool = False) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=not any_thread,
    )
    db.execute("PRAGMA query_only = 1")
    db.execute("PRAGMA temp_store = MEMORY")  # a full disk must not stop a listing
    db.execute("PRAGMA cache_size = -1000")
    return db


# --- the methods of a port -----------------------------------------------------------------------
class Writing(Protocol):
    async def write(self, operation: Callable[[Any], T], *, durable: bool) -> T: ...
    def write_soon(self, operation: Callable[[Any], Any], failed: _Failed) -> None: ...
    async def caught_up(self) -> None: ...
    async def close(self) -> None: ...


class Reading(Protocol):
    async def read(self, query: Callable[[Any], T]) -> T: ...
    async def close(self) -> None: ...


class StoreState(Protocol):
    """State of the store that is known without a query."""

    may_hold_notices: bool
    unsettled: Sequence[Row]  # reservations that the previous process left
    last_day: str  # of the newest reservation or counter


# to a new file, if there is room for that many copies
CopyStore = Callable[[Path, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Engine:
    """The parts of an engine that every subject of the store works with."""

    writer: Writing
    readers: Reading
    state: StoreState
    copy: CopyStore


class StorePart:
    """One subject of the store: operations over its writer and readers."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._state = engine, engine.state
        self._writer, self._readers = engine.writer, engine.readers

    async def caught_up(self) -> None:
        """Waits until the operations of `write_soon` are written."""
        await self._writer.caught_up()


_Method = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


def reading(query: Callable[Concatenate[Any, P], T], *, caught_up: bool = False) -> _Method[P, T]:
    """Makes a method that runs `query` in a reader's thread; with `caught_up`, after the operations
    of `write_soon`. Raises StoreUnavailable, TextRefused, and the errors of the query."""

    async def read(self: StorePart, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if caught_up:
            await self.caught_up()
        return await self._readers.read(lambda tx: query(tx, *args, **kwargs))

    return read


def writing(operation: Callable[Concatenate[Any, P], T], *, durable: bool = False) -> _Method[P, T]:
    """Makes a method that commits `operation`, with an fsync if `durable`. Raises StoreUnavailable,
    TextRefused if a text has no UTF-8 form, and the errors of the operation, which then wrote
    nothing."""

    def write(self: StorePart, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._writer.write(lambda tx: operation(tx, *args, **kwargs), durable=durable)

    return write


def writing_durably(operation: Callable[Concatenate[Any, P], T]) -> _Method[P, T]:
    return writing(operation, durable=True)
