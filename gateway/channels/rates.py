"""How often a platform may be asked: buckets by peer, by room and for the account."""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

import anyio

from gateway.channels.adapters import Rate
from gateway.domain.ports import Clock

_KNOWN = 4_096  # buckets; of these only the ones that are full again are forgotten


@dataclass(slots=True)
class _Bucket:
    """Holds `count` tokens and is full again after `per_s`. Whoever waits is served in order."""

    count: float
    per_s: float
    tokens: float
    filled_at: float
    closed_until: float = -math.inf
    turn: anyio.Lock = field(default_factory=anyio.Lock)

    def wait_s(self, now: float) -> float:
        """Until a token is there."""
        gained = (now - self.filled_at) * self.count / self.per_s
        self.tokens, self.filled_at = min(self.count, self.tokens + gained), now
        missing = max(0.0, 1 - self.tokens) * self.per_s / self.count
        # Where fractions do not add up to a whole token, nobody waits for what is left of it.
        return max(self.closed_until - now, missing if missing > 1e-6 else 0.0)

    def is_idle(self, now: float) -> bool:
        statistics = self.turn.statistics()
        is_free = not statistics.locked and not statistics.tasks_waiting
        return is_free and self.wait_s(now) <= 0 and self.tokens >= self.count


class Rates:
    """Of one channel."""

    def __init__(self, rates: tuple[Rate, ...], clock: Clock) -> None:
        self._rates, self._clock = rates, clock
        self._buckets: OrderedDict[tuple[int, str], _Bucket] = OrderedDict()

    async def take(self, peer: str, *, is_group: bool) -> None:
        """Comes back once one more request may be made."""
        await self._pass(self._bucket(-1, peer, None))
        for number, rate in enumerate(self._rates):
            if rate.scope != "group" or is_group:
                name = "" if rate.scope == "account" else peer
                await self._pass(self._bucket(number, name, rate))

    def close(self, peer: str, seconds: float) -> None:
        """The platform named a wait: nothing goes to that peer before its end."""
        bucket = self._bucket(-1, peer, None)
        bucket.closed_until = max(bucket.closed_until, self._clock.monotonic() + seconds)

    async def _pass(self, bucket: _Bucket) -> None:
        async with bucket.turn:
            while (wait_s := bucket.wait_s(self._clock.monotonic())) > 0:
                await self._clock.sleep(wait_s)
            bucket.tokens -= 1

    def _bucket(self, number: int, name: str, rate: Rate | None) -> _Bucket:
        """`rate` None: as many as you like, unless it is closed."""
        now, key = self._clock.monotonic(), (number, name)
        bucket = self._buckets.get(key)
        if bucket is None:
            count, per_s = (rate.count, rate.per_s) if rate else (math.inf, 1.0)
            bucket = self._buckets[key] = _Bucket(count, per_s, count, now)
            self._forget(now)
        self._buckets.move_to_end(key)
        return bucket

    def _forget(self, now: float) -> None:
        """Faster than new ones come, one that is busy or two."""
        for key in tuple(islice(self._buckets, 3)) if len(self._buckets) > _KNOWN else ():
            if self._buckets[key].is_idle(now):
                del self._buckets[key]
            else:
                self._buckets.move_to_end(key)
