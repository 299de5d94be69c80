"""Runs background tasks so that a failure is logged, ends no other task, and leads to a restart.

A task group cancels all its tasks when one of them ends cancelled, even if a library cancelled it
(`Task.cancel`, a cancelled future, a scope that crossed tasks). The end of one connection could
thus end the gateway silently. Here such an end is a failure like any other.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import ParamSpec, TypeVar

import anyio

from gateway.domain.errors import StoreLost, StoreUnavailable
from gateway.domain.ports import Clock

log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 60.0
RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)
STEADY_S = 60.0  # after this running time the pauses start again with the shortest

T = TypeVar("T")
P = ParamSpec("P")
Work = Callable[[], Awaitable[object]]


def backoff_s(failures: int) -> float:
    """Returns the longest pause after so many failures in a row. Callers that compete wait a random
    part of it."""
    return min(LONGEST_PAUSE_S, 2.0 ** min(failures - 1, 10))


async def supervise(name: str, work: Work, clock: Clock, *, may_end: bool = False) -> None:
    """Runs the work until it is cancelled, and restarts it after a failure. With `may_end` a normal
    end is final. Raises StoreLost, because only a restart of the gateway helps then."""
    failures = 0
    while True:
        began = clock.monotonic()
        if await contain(name, work) and may_end:
            return
        failures = 1 if clock.monotonic() - began >= STEADY_S else failures + 1
        pause_s = backoff_s(failures)
        log.error("task_restarted", extra={"task": name, "pause_s": pause_s})
        await contain(name, partial(clock.sleep, pause_s))


async def contain(name: str, work: Work) -> bool:
    """Runs the work; returns False after a failure, which is logged and ends nothing else."""
    try:
        await work()
    except BaseException as error:
        _raise_unless_containable(error)
        failed = "task_failed"
        cancelled = "task_cancelled"
        event = failed if isinstance(error, Exception) else cancelled
        log.exception(event, extra={"task": name})
        return False
    return True


async def result_of(
    event: str,
    facts: Mapping[str, object],
    work: Callable[P, Awaitable[T]],
    *args: P.args,
    **more: P.kwargs,
) -> T | None:
    """Returns the result of the work, or None after a failure, which is logged as this event with
    the facts."""
    try:
        return await work(*args, **more)
    except BaseException as error:
        _raise_unless_containable(error)
        log.exception(event, extra=facts)
        return None


async def retry_store(
    clock: Clock, act: Callable[P, Awaitable[T]], *args: P.args, **more: P.kwargs
) -> T:
    """Repeats a call with growing pauses until the store is available."""
    tries = 0
    while True:
        try:
            return await act(*args, **more)
        except StoreUnavailable as error:
            log.warning("store_unavailable", extra={"why": str(error)})
            await clock.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1


def _raise_unless_containable(error: BaseException) -> None:
    """Raises StoreLost, and errors that cancel the task or end the process."""
    if isinstance(error, StoreLost) or not (isinstance(error, Exception) or survives(error)):
        raise error


def survives(error: BaseException) -> bool:
    """True if the task that caught the error may continue: no scope of the gateway cancelled it,
    and the process does not end."""
    if anyio.current_effective_deadline() == -math.inf:
        return False
    known = (Exception, anyio.get_cancelled_exc_class())
    group = error if isinstance(error, BaseExceptionGroup) else BaseExceptionGroup("", [error])
    if group.split(known)[1] is not None:
        return False
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
    return True
