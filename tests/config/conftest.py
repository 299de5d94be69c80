"""Every test of the configuration gets an arena of its own."""

from pathlib import Path

import pytest

from tests.config.arena import Arena


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    for name in ("home", "cwd"):
        (tmp_path / name).mkdir()
    return Arena(tmp_path)
