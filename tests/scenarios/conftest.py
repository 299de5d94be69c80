"""The stages on which turns are played: each wire with each tree."""

from pathlib import Path

import pytest

from tests.scenarios.stage import TREES, WIRES, Stage

EVERY = [pytest.param((wire, tree), id=f"{wire}-{tree}") for wire in WIRES for tree in TREES]


@pytest.fixture(params=EVERY)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    wire, tree = request.param
    return Stage(wire, tree, tmp_path)
