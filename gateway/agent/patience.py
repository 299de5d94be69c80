"""Waiting for the store to come back: what belongs to an accepted message is never given up."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.domain.errors import StoreUnavailable
from gateway.domain.ports import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)


async def until_stored(clock: Clock, act: Callable[[], Awaitable[T]]) -> T:
    """Does it again, with growing pauses, until the store takes it."""
    tries = 0
    while True:
        try:
            return await act()
        except StoreUnavailable as error:
            log.warning("the store is not available", extra={"why": str(error)})
            await clock.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1
