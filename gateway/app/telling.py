"""Events that belong to no run."""

from collections.abc import Mapping

from gateway.control.bus import Bus
from gateway.domain.events import Event, kind_named
from gateway.domain.ports import Clock


def tell_of_gateway(bus: Bus, clock: Clock, type_: str, payload: Mapping[str, object]) -> None:
    """Tells whoever listens."""
    kind = kind_named(type_)
    severity = kind.severity if kind else "info"
    bus.publish(Event(type_, severity, "gateway", clock.now(), None, None, payload))
