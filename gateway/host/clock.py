"""The system clock, and ids that sort by creation time."""

import secrets
import time
from base64 import b32hexencode
from datetime import UTC, datetime
from functools import partial
from io import StringIO

import anyio

from gateway.domain.ports import Clock

_IDS_A_FETCH = 64  # a call of the kernel releases the GIL, which costs more than an id
_RANDOM_BYTES = 10
_RANDOM_DIGITS = 16
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [first + second for first in _DIGITS for second in _DIGITS]  # ten bits each


class SystemClock:
    """The clock of the system. Its methods are C functions: every message reads the time a few dozen times."""

    now = staticmethod(partial(datetime.now, UTC))  # noqa: TID251  # this is the Clock that all other code gets
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class TimeIds:
    """Ids of 26 base32hex digits in creation order: ten digits for the milliseconds since 1970 (until the year
    10889), the others random."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._random = StringIO()

    def new(self) -> str:
        random = self._random.read(_RANDOM_DIGITS)
        if not random:
            fresh = secrets.token_bytes(_RANDOM_BYTES * _IDS_A_FETCH)
            self._random = StringIO(b32hexencode(fresh).decode().lower())
            random = self._random.read(_RANDOM_DIGITS)
        at, pair = int(self._clock.now().timestamp() * 1000) << 2, _PAIRS
        late = pair[at >> 20 & 1023] + pair[at >> 10 & 1023] + pair[at & 1023]
        return pair[at >> 40 & 1023] + pair[at >> 30 & 1023] + late + random
