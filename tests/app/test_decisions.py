"""Decision trees of installed packages: only those that an agent names, and an honest word if one fails."""

from pathlib import Path

import pytest

from gateway.app.decisions import DecisionTreeBroken, decision_trees

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
    (tmp_path / "exogate_test_calm.py").write_text("class Calm:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.requirement("S-001-Tree-06")
def test_one_that_nobody_names_harms_nobody() -> None:
    assert decision_trees({"default", "calm"}).names == ("default", "calm")
    assert decision_trees({"default"}).names == ("default",)


def test_one_that_cannot_be_loaded_is_said_with_its_package() -> None:
    with pytest.raises(DecisionTreeBroken, match="broken .*exogate_test_calm:missing.*correct"):
        decision_trees({"broken"})
