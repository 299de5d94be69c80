"""A journal is played to its end, but for what nobody heard any more."""

import pytest

from gateway.agent.effects import RunControl
from gateway.domain.journal import Attempt, Entry, JournalUnreadable
from gateway.sessions.journal import Difference
from gateway.sessions.player import Player

STOP, OVER = Entry("stop", ("cancelled", True)), Entry("over")


@pytest.mark.parametrize(
    ("late", "is_heard"),
    [
        (Entry("sent", (7,)), False),
        (Entry("spent", ("1", [])), False),
        (Entry("bytes", ("x",)), False),
        (Entry("ask", ({},)), True),
        (Entry("kept", ("reply:0",)), True),
    ],
)
def test_one_step_of_whoever_was_stopped_is_no_divergence(late: Entry, *, is_heard: bool) -> None:
    parted: list[Difference | JournalUnreadable] = []

    Player(Attempt((STOP, late, OVER)), RunControl(), parted.append, "none").ends()

    assert bool(parted) is is_heard


def test_what_only_a_resumed_attempt_needs_is_passed_over() -> None:
    needless = [Entry("taken", (0, "r", "x")), Entry("begun", (0, "1"))]
    needless.append(Entry("sub", ("@0-x:", "begun", [0, "1"])))
    parted: list[Difference | JournalUnreadable] = []
    player = Player(Attempt((*needless, OVER)), RunControl(), parted.append, "none")

    player.ends()

    assert (parted, list(player.coming())) == ([], [])
