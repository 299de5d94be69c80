"""A journal is played to its end, but for what nobody heard any more."""

import pytest

from gateway.agent.driver import RunControl
from gateway.domain.journal import Attempt, JournalEntry, JournalUnreadable
from gateway.sessions.journal import Difference
from gateway.sessions.replay import Player

STOP, OVER = JournalEntry("stop", ("cancelled", True)), JournalEntry("over")


@pytest.mark.parametrize(
    ("late", "is_heard"),
    [
        (JournalEntry("sent", (7,)), False),
        (JournalEntry("spent", ("1", [])), False),
        (JournalEntry("bytes", ("x",)), False),
        (JournalEntry("ask", ({},)), True),
        (JournalEntry("kept", ("reply:0",)), True),
    ],
)
def test_one_step_of_whoever_was_stopped_is_no_divergence(
    late: JournalEntry, *, is_heard: bool
) -> None:
    parted: list[Difference | JournalUnreadable] = []

    Player(Attempt((STOP, late, OVER)), RunControl(), parted.append, "none")("over")

    assert bool(parted) is is_heard


def test_what_only_a_resumed_attempt_needs_is_passed_over() -> None:
    needless = [JournalEntry("taken", (0, "r", "x")), JournalEntry("begun", (0, "1"))]
    needless.append(JournalEntry("sub", ("@0-x:", "begun", [0, "1"])))
    parted: list[Difference | JournalUnreadable] = []
    player = Player(Attempt((*needless, OVER)), RunControl(), parted.append, "none")

    player("over")

    assert (parted, list(player.coming())) == ([], [])
