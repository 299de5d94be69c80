"""The one thread that writes: takes what is waiting, commits it together, tells everybody at once."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from gateway.domain.errors import StoreLost, StoreUnavailable
from gateway.store.commits import Commits, Operation, Outcome
from gateway.store.pen import Pen

T = TypeVar("T")

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
