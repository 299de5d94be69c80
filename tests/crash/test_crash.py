"""The crash test; `python -m tests.crash` plays it by hand."""

import sys
from pathlib import Path

import pytest

from tests.crash.harness import Plan, run
from tests.crash.stages import STAGES
from tests.forms import is_long, keep

MODES = ("collect", "steer", "interrupt")


@pytest.mark.requirement("S-003-Message-06", "S-003-Session-08", "S-003-Session-09")
@pytest.mark.requirement("S-004-Flow-03")
async def test_killed_at_every_stage_no_message_is_lost_and_none_is_answered_twice(
    tmp_path: Path,
) -> None:
    plan = Plan(kills=40, messages=2_000) if is_long() else Plan(len(STAGES), messages=210)

    outcome = await run(plan, tmp_path)

    sys.stdout.write(outcome.report())
    keep("crash", outcome.report())
    assert outcome.is_valid, outcome.report()
    assert set(outcome.kills) == set(STAGES)
    assert outcome.account.acknowledged >= plan.messages
    assert outcome.account.merged == outcome.account.superseded == 0
    assert outcome.account.recovered  # or no acknowledgement was ever lost on its way


@pytest.mark.requirement("S-003-Session-08", "S-004-Flow-03")
@pytest.mark.parametrize("mode", MODES)
async def test_killed_while_messages_meet_each_has_one_end(mode: str, tmp_path: Path) -> None:
    """In the bounded form each mode has a third of the stages."""
    stages = tuple(STAGES) if is_long() else tuple(STAGES)[MODES.index(mode) :: len(MODES)]
    messages = 1_000 if is_long() else 110
    plan = Plan(len(stages), messages, configuration=f'[queue]\nmode = "{mode}"', of=stages)

    outcome = await run(plan, tmp_path)

    sys.stdout.write(outcome.report())
    keep(f"crash-{mode}", outcome.report())
    assert outcome.is_valid, outcome.report()
    assert set(outcome.kills) == set(stages)
    assert bool(outcome.account.merged) == (mode != "interrupt")
    assert bool(outcome.account.superseded) == (mode == "interrupt")


async def test_a_store_that_keeps_nothing_is_found_out(tmp_path: Path) -> None:
    """The books can tell a gateway that loses messages from one that does not."""
    plan = Plan(kills=4, messages=60, configuration='[store]\nurl = "memory"')

    outcome = await run(plan, tmp_path)

    assert not outcome.is_valid
    assert outcome.account.lost
