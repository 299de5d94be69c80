"""A tape is told again to its end, but for what nobody heard any more."""

import pytest

from gateway.agent.effects import RunControl
from gateway.domain.tape import Mark, Tape
from gateway.sessions.journal import Difference, TapeUnreadable
from gateway.sessions.player import Player

STOP, OVER = Mark("stop", ("cancelled", True)), Mark("over")


@pytest.mark.parametrize(
    ("late", "is_heard"),
    [
        (Mark("sent", (7,)), False),
        (Mark("spent", ("1", [])), False),
        (Mark("bytes", ("x",)), False),
        (Mark("ask", ({},)), True),
        (Mark("noted", (0, "reply")), True),
    ],
)
def test_one_step_of_whoever_was_stopped_is_no_divergence(late: Mark, *, is_heard: bool) -> None:
    parted: list[Difference | TapeUnreadable] = []

    Player(Tape((STOP, late, OVER)), RunControl(), parted.append, "none").ends()

    assert bool(parted) is is_heard
