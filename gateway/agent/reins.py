"""How others reach a run that is at work: they stop it, or say something more to it."""

from collections import deque
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Unsaid:
    """It was taken back before the run took it."""

    run_id: RunId


@dataclass(slots=True)
class Reins:
    """What is pulled before the run is at work reaches it when it begins."""

    pulled: deque[Stop | Said] = field(default_factory=deque)
    wake: Callable[[], None] = lambda: None
    forget: Callable[[RunId], bool] = lambda _run_id: False
    heard: Callable[[Stop | Said | Unsaid], None] = lambda one: None
    is_loose: bool = False  # nobody listens any more

    def stop(self, reason: DoneReason, *, at_once: bool) -> None:
        self._pull(Stop(reason, at_once))

    def say(self, said: Said) -> bool:
        """False if it takes nothing more: it is over, or about to end."""
        if self.is_loose:
            return False
        self._pull(said)
        return True

    def _pull(self, one: Stop | Said) -> None:
        self.heard(one)
        self.pulled.append(one)
        self.wake()

    def unsay(self, run_id: RunId) -> bool:
        """False if it was taken already."""
        was_there = drop_said(self.pulled, run_id) or self.forget(run_id)
        if was_there:
            self.heard(Unsaid(run_id))
        return was_there

    def let_go(self) -> None:
        """The run has ended and keeps nothing alive."""
        self.is_loose, self.wake, self.forget = True, lambda: None, lambda _run_id: False
        self.heard = lambda one: None


def drop_said(queue: MutableSequence[Any], run_id: RunId) -> bool:
    """Takes a person's message out of those that wait; False if it is not there."""
    for one in queue:
        if isinstance(one, Said) and one.run_id == run_id:
            queue.remove(one)
            return True
    return False
