"""Killed between six platforms and a model: nothing is lost, and whatever doubles is known."""

import sys
from pathlib import Path

import pytest

from tests.crash.channels import HITS, run
from tests.forms import is_long, keep


@pytest.mark.requirement("S-003-Message-06")
async def test_killed_while_all_channels_talk_each_answer_arrives_and_the_record_tells_of_doubles(
    tmp_path: Path,
) -> None:
    outcome = await run((8 if is_long() else 1) * len(HITS), tmp_path)

    sys.stdout.write(outcome.report())
    keep("crash-channels", outcome.report())
    assert outcome.is_valid, outcome.report()
    assert set(outcome.kills) == set(HITS)
