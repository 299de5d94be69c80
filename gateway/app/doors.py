"""What the front doors are told: where they are, whether the gateway is ready, and events that belong to no run."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio

from gateway.app.agents import reach
from gateway.config.values import GatewayConfig
from gateway.control.notices import Bus
from gateway.domain.errors import StoreLost, StoreUnavailable
from gateway.domain.events import Event, kind_named
from gateway.domain.ports import Clock
from gateway.web.settings import TokenDef, WebSettings


def web_settings(config: GatewayConfig, operator_key: str) -> WebSettings:
    settings = config.gateway
    tokens = tuple(
        TokenDef(token.name, token.token.reveal(), reach(config, token.name, token.scopes))
        for token in config.tokens
    )
    return WebSettings(
        bind=settings.bind,
        port=settings.port,
        tokens=tokens,
        operator_secret=settings.token.reveal() if settings.token else None,
        cli_secret=operator_key,
        allowed_origins=settings.allowed_origins,
        trusted_proxies=settings.trusted_proxies,
        max_connections=settings.max_connections,
        max_connections_per_address=settings.max_connections_per_address,
        max_unauthenticated=settings.max_unauthenticated,
        max_frame_bytes=settings.max_frame_bytes,
        max_body_bytes=settings.max_body_bytes,
    )


PROBE_EVERY_S = 5.0  # if nobody asks
KNOWN_S = 0.25  # so long a probe counts that found nothing
AGAIN_S = 1.0  # so long one that failed
SLOW_S = 0.5  # a store that takes longer cannot commit now
SILENT = "the store does not answer: look for a program that locks it, or at the disk"


@dataclass(slots=True)
class Health:
    """Why the gateway should be sent no work; nothing: it is ready."""

    starting: bool = True
    draining: bool = False
    store: str | None = None

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


def tell_of_gateway(bus: Bus, clock: Clock, type_: str, payload: Mapping[str, object]) -> None:
    """Tells whoever listens."""
    kind = kind_named(type_)
    severity = kind.severity if kind else "info"
    bus.publish(Event(type_, severity, "gateway", clock.now(), None, None, payload))
