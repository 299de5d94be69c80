"""Transactions of many operations: whose fault a failure is, what is synced, when to give up."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.domain.errors import GatewayError, StoreUnavailable
from gateway.store.data_dir import Held, Mark
from gateway.store.faults import is_io_error, lack_of_room, sentence
from gateway.store.pen import Pen

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
