"""Whether the gateway should be sent work."""

from collections.abc import Sequence
from dataclasses import dataclass


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
