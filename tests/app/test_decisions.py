"""Decision trees of installed packages: imported when one is named, with an honest word if it fails."""

import sys
from pathlib import Path

import pytest

from gateway.app.generation import DecisionTreeBroken, decision_trees
from gateway.domain.agents import Limits

ENTRIES = """\
[exogate.decision_trees]
calm = exogate_test_calm:Calm
broken = exogate_test_calm:missing
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "exogate_test_calm-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: exogate-test-calm\nVersion: 1\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    module = "class Calm:\n    def __init__(self, config):\n        self.config = config\n"
    (tmp_path / "exogate_test_calm.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("exogate_test_calm", None)


@pytest.mark.requirement("S-001-Tree-06")
def test_one_that_nobody_names_harms_nobody() -> None:
    trees = decision_trees({"default"})

    assert [*trees] == ["default", "broken", "calm"]
    assert "exogate_test_calm" not in sys.modules
    assert type(trees["calm"](Limits())).__name__ == "Calm"
    with pytest.raises(DecisionTreeBroken, match="broken"):
        trees["broken"](Limits())


def test_one_that_cannot_be_loaded_is_said_with_its_package() -> None:
    with pytest.raises(DecisionTreeBroken, match="broken .*exogate_test_calm:missing.*correct"):
        decision_trees({"broken"})
