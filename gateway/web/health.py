"""Readiness: `/healthz` shows that the process answers, `/readyz` whether it accepts work, and why not."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio
from starlette.responses import Response

from gateway.api.http import NotReady, ReadyForWork
from gateway.domain.errors import StoreLost, StoreUnavailable
from gateway.domain.ports import Clock
from gateway.web.responses import json_response

Ready = Callable[[], Awaitable[Sequence[str]]]  # the reasons why not; none means ready
RETRY_AFTER_S = "2"
PROBE_EVERY_S = 5.0  # without requests for readiness
KNOWN_S = 0.25  # a successful probe is valid for this long
AGAIN_S = 1.0  # a failed probe is valid for this long
STALE_S = 30.0  # after so long without an answer the store counts as dead
SLOW_S = 0.5  # a store that takes longer cannot commit now
SILENT = "the store does not answer: check its server, its disk and programs that may lock it"


async def answer_readiness(
    ready: Ready, degraded: Callable[[], Sequence[str]], *, shows_reasons: bool
) -> Response:
    """Returns the answer of `/readyz`."""
    if reasons := await ready():
        answer = NotReady(status="not_ready", reasons=list(reasons) if shows_reasons else None)
        return json_response(answer, 503, {"retry-after": RETRY_AFTER_S})
    return json_response(ReadyForWork(status="ready", degraded=list(degraded()) or None))


@dataclass(slots=True)
class Health:
    """The reasons why the gateway accepts no work; it is ready without any."""

    starting: bool = True
    draining: bool = False
    store: str | None = None

    def reasons(self) -> Sequence[str]:
        reasons = (
            "the gateway is starting" if self.starting else None,
            "the gateway is draining before it stops" if self.draining else None,
            self.store,
        )
        return [reason for reason in reasons if reason is not None]


@dataclass(slots=True)
class StoreWatch:
    """Keeps `Health.store` up to date. It probes the store every few seconds and on requests for readiness, so a
    message costs nothing."""

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
                raise  # accepted messages are safe; the next start finds out which answers are
            except StoreUnavailable as error:
                self.health.store = str(error)
            self._probed_at = self.clock.monotonic()
            self._probed.set()
            self._probed = anyio.Event()

    def is_alive(self) -> bool:
        """True if the store answered lately, with success or failure."""
        return self.clock.monotonic() - self._probed_at < STALE_S

    async def reasons(self) -> Sequence[str]:
        """Returns the reasons of `Health`, after a probe of the store if the latest one is too old."""
        known_s = KNOWN_S if self.health.store is None else AGAIN_S
        if self.clock.monotonic() - self._probed_at > known_s:
            self._asked.set()
            with anyio.move_on_after(SLOW_S) as waiting:
                await self._probed.wait()
            if waiting.cancelled_caught and self.health.store is None:
                self.health.store = SILENT
        return self.health.reasons()
