"""The one thread that writes: takes what is waiting, commits it together, tells everybody at once."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from gateway.domain.errors import StoreLost, StoreUnavailable
from gateway.store.commits import Commits, Operation, Outcome

T = TypeVar("T")

GROUP = 64  # operations in a commit, at most


@dataclass(frozen=True, slots=True)
class _Ticket:
    durable: bool
    operation: Operation[Any]
    future: asyncio.Future[Any]


class Writer:
    """Futures are answered on the loop that asked, one wake-up a commit.

    Idle, it commits at once; groups form only behind a commit that is running. A waiter that is
    cancelled changes nothing: its operation is written all the same.
    """

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._stopped: str | None = None
        self._queue: SimpleQueue[_Ticket | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="store writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def write(self, operation: Operation[T], *, durable: bool) -> T:
        """Comes back once it is committed (and fsynced, if durable). Raises StoreUnavailable."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._stopped is None:
            self._queue.put(_Ticket(durable, operation, future))
        if self._stopped is not None:  # perhaps between the look and the put
            future.cancel()
            raise self._refusal(self._stopped)
        return await future

    def stop(self, why: str) -> None:
        """No new work; what is waiting is still written. Join to be sure."""
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
            ticket = self._queue.get()
            if ticket is None:
                if batch:
                    self._queue.put(None)  # for the next look
                break
            batch.append(ticket)
        return batch

    def _left(self) -> list[_Ticket]:
        left: list[_Ticket] = []
        while not self._queue.empty():
            ticket = self._queue.get()
            if ticket is not None:
                left.append(ticket)
        return left

    def _refuse(self, batch: Sequence[_Ticket], why: str) -> None:
        self._answer(batch, [Outcome(error=self._refusal(why)) for _ in batch])

    def _refusal(self, why: str) -> StoreUnavailable:
        return StoreUnavailable(why) if self._commits.given_up is None else StoreLost(why)

    def _answer(self, batch: Sequence[_Ticket], outcomes: Sequence[Outcome]) -> None:
        futures = [ticket.future for ticket in batch]
        self._loop.call_soon_threadsafe(_tell, futures, outcomes)


def _tell(futures: Sequence[asyncio.Future[Any]], outcomes: Sequence[Outcome]) -> None:
    for future, outcome in zip(futures, outcomes, strict=True):
        outcome.tell(future)
