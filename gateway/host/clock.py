"""The real clock."""

import time
from datetime import UTC, datetime
from functools import partial

import anyio


class SystemClock:
    """Implements Clock by functions of C: every message asks for the time a few dozen times."""

    now = staticmethod(partial(datetime.now, UTC))  # noqa: TID251  # this is the Clock that all others take
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
