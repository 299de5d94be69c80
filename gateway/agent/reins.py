"""How others reach a run that is at work: they stop it, or say something more to it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.domain.chunks import DoneReason
from gateway.domain.ids import RunId


@dataclass(frozen=True, slots=True)
class Said:
    """One more message of a person, under the run that it was accepted with."""

    run_id: RunId
    text: str


@dataclass(frozen=True, slots=True)
class Stop:
    reason: DoneReason
    at_once: bool


@dataclass(slots=True)
class Reins:
    """What is pulled before the run is at work reaches it when it begins."""

    pulled: deque[Stop | Said] = field(default_factory=deque)
    wake: Callable[[], None] = lambda: None
    is_loose: bool = False  # nobody listens any more

    def stop(self, reason: DoneReason, *, at_once: bool) -> None:
        self.pulled.append(Stop(reason, at_once))
        self.wake()

    def say(self, said: Said) -> bool:
        """False if it takes nothing more: it is over, or about to end."""
        if self.is_loose:
            return False
        self.pulled.append(said)
        self.wake()
        return True

    def let_go(self) -> None:
        """The run has ended and keeps nothing alive."""
        self.is_loose, self.wake = True, lambda: None
