"""Rules that never want anything."""

from collections.abc import Mapping

from gateway.control.rules.acts import Act
from gateway.domain.events import Event


class NoRules:
    def on(self, event: Event, scope: Mapping[str, object], /) -> tuple[Act, ...]:
        return ()
