"""The threads that read: each has a connection of its own, none waits for the writer."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from gateway.domain.errors import GatewayError, StoreUnavailable
from gateway.store.rows import unavailable
from gateway.store.writer import Pen, Writer

T = TypeVar("T")
Query = Callable[[sqlite3.Connection], T]

THREADS = 2
_FAULTS = (GatewayError, ValueError, TypeError, LookupError, ArithmeticError)


_Ticket = tuple[Query[Any], "asyncio.Future[Any]"]


class Readers:
    """A few threads over one queue, so that a long listing does not hold up a short look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: SimpleQueue[_Ticket | None] = SimpleQueue()
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

    def stop(self) -> None:
        self._is_open = False
        for _ in self._threads:
            self._queue.put(None)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        while (ticket := self._queue.get()) is not None:
            query, future = ticket
            result: object = None
            error: Exception | None = StoreUnavailable("a reader of the store has stopped: restart")
            try:
                db = db or open_to_read(self._path)
                result, error = query(db), None
            except sqlite3.Error as fault:
                error = unavailable(fault, str(self._path))
            except _FAULTS as fault:
                error = fault
            finally:  # also after a mistake of ours: nobody waits for a thread that is gone
                self._loop.call_soon_threadsafe(_tell, future, result, error)
        if db is not None:
            db.close()


class SqliteStore:
    """One subject of the store: operations over its writer and its readers."""

    def __init__(self, writer: Writer, readers: Readers, pen: Pen) -> None:
        self._writer, self._readers, self._pen = writer, readers, pen


def _tell(future: "asyncio.Future[Any]", result: object, error: Exception | None) -> None:
    if future.done():  # its waiter was cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


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
