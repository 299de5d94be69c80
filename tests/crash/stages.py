"""Where on its way a message is when the gateway is killed, and the hand that does it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import anyio
from anyio.abc import TaskGroup

Stage = Literal[
    "S0", "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "start", "any"
]

STAGES: dict[Stage, str] = {
    "S0": "half of its frame has been sent",
    "S1": "its whole frame has been sent, nothing has come back",
    "S2": "the first byte of our acknowledgement has come, and is taken as lost",
    "S3": "it has just been acknowledged",
    "S4": "it was acknowledged a moment ago",
    "S5": "the model has just been asked",
    "S6": "the model speaks, and the client has heard a part",
    "S7": "a tool has been called, and the model has just been told what came of it",
    "S8": "the client has just heard `done`",
    "S9": "the model has just said its last byte",
    "S10": "the model said its last byte a moment ago",
    "S11": "the client heard `done` a moment ago",
    "start": "the gateway is starting again",
    "any": "at any moment",
}
MOMENT_S = 0.004


@dataclass
class Trigger:
    """Armed for one stage; whoever sees the stage pulls. `kill` is synchronous: no time passes."""

    kill: Callable[[], None]
    chance: random.Random
    armed: Stage | None = None
    fired: anyio.Event = field(default_factory=anyio.Event)

    def arm(self, stage: Stage) -> None:
        self.armed, self.fired = stage, anyio.Event()

    def pull(self, stage: Stage) -> bool:
        """Kills if it is armed for this stage."""
        if self.armed != stage:
            return False
        self.armed = None
        self.kill()
        self.fired.set()
        return True

    def pull_soon(self, stage: Stage, group: TaskGroup, most_s: float = MOMENT_S) -> None:
        """The same, a moment later: only the first to see the stage counts."""
        if self.armed == stage:
            self.armed = None
            group.start_soon(self._later, self.chance.uniform(0, most_s))

    async def _later(self, after_s: float) -> None:
        await anyio.sleep(after_s)
        self.kill()
        self.fired.set()
