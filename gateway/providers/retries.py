"""When a failed call is tried again: never after text was heard, never sooner than told."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.domain.errors import ModelFailed
from gateway.domain.model import ModelReply
from gateway.domain.ports import Clock

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 8.0
Attempt = Callable[[float], Awaitable[ModelReply]]  # is told how many seconds are left


@dataclass(frozen=True, slots=True)
class Retries:
    """How often, and the two things that make it testable. `random` gives 0 up to 1."""

    max_retries: int
    clock: Clock
    random: Callable[[], float]

    async def run(self, attempt: Attempt, deadline_s: float) -> ModelReply:
        """The first reply that succeeds. Raises the last ModelFailed."""
        end = self.clock.monotonic() + deadline_s
        tried, left_s = 0, deadline_s
        while True:
            try:
                return await attempt(left_s)
            except ModelFailed as failed:
                left_s = end - self.clock.monotonic()
                pause = self.pause_s(failed, tried, left_s)
                if pause is None:
                    raise
                log.info(
                    "a model call is tried again",
                    extra={
                        "provider": failed.provider,
                        "kind": failed.kind,
                        "detail": failed.detail,
                        "pause_s": round(pause, 3),
                    },
                )
            tried, left_s = tried + 1, left_s - pause
            await self.clock.sleep(pause)

    def pause_s(self, failed: ModelFailed, tried: int, left_s: float) -> float | None:
        """How long to wait before the next try; None: do not try again."""
        if failed.started or not failed.retryable or tried >= self.max_retries:
            return None
        told = failed.retry_after_s
        if told is None:
            pause = self.random() * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**tried)
        else:
            pause = told + self.random() * min(1.0, 0.1 + told / 10)
        return pause if pause < left_s else None
