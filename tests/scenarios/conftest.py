"""The stages on which turns are played: each wire with each tree."""

from pathlib import Path

import pytest

from tests.scenarios.stage import Stage, pairs


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "stage" in metafunc.fixturenames:
        ids = [f"{wire}-{tree}" for wire, tree in pairs()]
        metafunc.parametrize("stage", pairs(), ids=ids, indirect=True)


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    wire, tree = request.param
    return Stage(wire, tree, tmp_path)
