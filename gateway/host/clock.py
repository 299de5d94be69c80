"""The real clock, and ids that sort by the time they were made."""

import secrets
import time
from base64 import b32hexencode
from datetime import UTC, datetime
from functools import partial
from io import BytesIO

import anyio

from gateway.domain.ports import Clock

TIME_BYTES = 6  # milliseconds since 1970: enough until the year 10889
RANDOM_BYTES = 10
_IDS_A_FETCH = 64  # asking the kernel lets go of the interpreter, which costs more than an id


class SystemClock:
    """Implements Clock by functions of C: every message asks for the time a few dozen times."""

    now = staticmethod(partial(datetime.now, UTC))  # noqa: TID251  # this is the Clock that all others take
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class TimeIds:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._random = BytesIO()

    def new(self) -> str:
        """26 characters; base32hex keeps the order of the bytes."""
        millis = int(self._clock.now().timestamp() * 1000)
        fresh = self._random.read(RANDOM_BYTES)
        if not fresh:
            self._random = BytesIO(secrets.token_bytes(RANDOM_BYTES * _IDS_A_FETCH))
            fresh = self._random.read(RANDOM_BYTES)
        raw = millis.to_bytes(TIME_BYTES, "big") + fresh
        return b32hexencode(raw).rstrip(b"=").decode().lower()
