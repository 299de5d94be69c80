"""The real clock."""

import time
from datetime import UTC, datetime

import anyio


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)  # noqa: TID251  # this is the Clock that all others take

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
