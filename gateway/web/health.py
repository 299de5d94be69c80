"""`/healthz` says that the process answers, `/readyz` whether it should be sent work, and why not."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio
from starlette.types import Receive, Scope, Send

from gateway.api.http import NotReady, ReadyForWork
from gateway.domain.errors import StoreLost, StoreUnavailable
from gateway.domain.ports import Clock
from gateway.web.responses import json_response

Ready = Callable[[], Awaitable[Sequence[str]]]  # the reasons against it; none: ready
RETRY_AFTER_S = "2"
PROBE_EVERY_S = 5.0  # if nobody asks
KNOWN_S = 0.25  # so long a probe counts that found nothing
AGAIN_S = 1.0  # so long one that failed
STALE_S = 30.0  # a store that was silent for so long may be silent for ever
SLOW_S = 0.5  # a store that takes longer cannot commit now
SILENT = "the store does not answer: look at its server or its disk, or for a program that locks it"


@dataclass(frozen=True, slots=True)
class Readiness:
    """ASGI: answers once the store was looked at."""

    ready: Ready
    tells_why: bool
    degraded: Callable[[], Sequence[str]] = tuple

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reasons = await self.ready()
        if reasons:
            told = list(reasons) if self.tells_why else None
            why = NotReady(status="not_ready", reasons=told)
            response = json_response(why, 503, {"retry-after": RETRY_AFTER_S})
        else:
            degraded = list(self.degraded()) or None
            response = json_response(ReadyForWork(status="ready", degraded=degraded))
        await response(scope, receive, send)


@dataclass(slots=True)
class Health:
    """The reasons against sending work; without any the gateway is ready."""

    starting: bool = True
    draining: bool = False
    store: str | None = None
    degraded: Callable[[], Sequence[str]] = tuple  # what does not work, and keeps no work away

    def reasons(self) -> Sequence[str]:
        said = (
            "the gateway is starting" if self.starting else None,
            "the gateway is draining before it stops" if self.draining else None,
            self.store,
        )
        return [reason for reason in said if reason is not None]


@dataclass(slots=True)
class StoreWatch:
    """Keeps `Health.store` true. A message costs nothing: the store is probed every few seconds, and
    when somebody asks for readiness."""

    probe: Callable[[], Awaitable[None]]
    clock: Clock
    health: Health = field(default_factory=Health)
    _probed_at: float = float("-inf")
    _asked: anyio.Event = field(default_factory=anyio.Event)
    _probed: anyio.Event = field(default_factory=anyio.Event)

    async def run(self) -> None:
        """Probes until it is cancelled."""
        while True:
            with anyio.move_on_after(PROBE_EVERY_S):
                await self._asked.wait()
            self._asked = anyio.Event()
            try:
                await self.probe()
                self.health.store = None
            except StoreLost:
                raise  # accepted messages are safe; a new start finds out which answers are
            except StoreUnavailable as error:
                self.health.store = str(error)
            self._probed_at = self.clock.monotonic()
            self._probed.set()
            self._probed = anyio.Event()

    def is_alive(self) -> bool:
        """Whether the store, however it is, answered not long ago."""
        return self.clock.monotonic() - self._probed_at < STALE_S

    async def reasons(self) -> Sequence[str]:
        """Those of `Health`, with what the store can do now."""
        known_s = KNOWN_S if self.health.store is None else AGAIN_S
        if self.clock.monotonic() - self._probed_at > known_s:
            self._asked.set()
            with anyio.move_on_after(SLOW_S) as waiting:
                await self._probed.wait()
            if waiting.cancelled_caught and self.health.store is None:
                self.health.store = SILENT
        return self.health.reasons()
