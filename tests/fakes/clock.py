"""A clock that stands still until it is told to move."""

import time
from datetime import UTC, datetime, timedelta

import anyio

LOOK_S = 0.02  # of computing, by which the machine's time is judged


class FakeClock:
    def __init__(self, now: datetime = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)) -> None:
        self._now = now
        self._seconds = 0.0
        self._sleepers: list[tuple[float, anyio.Event]] = []
        self._asleep = anyio.Event()
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        event = anyio.Event()
        self._sleepers.append((self._seconds + seconds, event))
        self._asleep.set()
        await event.wait()

    async def until_someone_sleeps(self) -> None:
        await self._asleep.wait()
        self._asleep = anyio.Event()

    def move(self, seconds: float) -> None:
        """Moves both clocks and wakes whoever is due."""
        self._seconds += seconds
        self._now += timedelta(seconds=seconds)
        due = [event for at, event in self._sleepers if at <= self._seconds]
        self._sleepers = [(at, event) for at, event in self._sleepers if at > self._seconds]
        for event in due:
            event.set()

    def set_wall(self, now: datetime) -> None:
        """The wall clock jumps; monotonic time does not."""
        self._now = now


class CountingIds:
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def new(self) -> str:
        self.count += 1
        return f"{self.count:026d}"


def now_about(seconds: float) -> float:
    """What takes so long on a machine that does nothing else may take so long on this one now."""
    began, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < LOOK_S:
        pass
    return seconds * max(1.0, 2 * (time.perf_counter() - began) / LOOK_S - 1.2)
