"""Side by side; the thresholds are in the traces of the reference engine."""

import pytest

from tests.control.trees.stage import traced


@pytest.mark.requirement("S-002-BT-07")
def test_with_continue_on_failure_every_child_runs_to_its_end() -> None:
    node = "(parallel :policy :continue-on-failure (action a) (action b) (action c))"

    assert traced(node, 2, a="F", b="RS", c="S") == ["R aF bR cS", "S bS"]
    assert traced(node, 2, a="F", b="RF", c="F") == ["R aF bR cF", "F bF"]


@pytest.mark.parametrize(
    "policy", [":policy :require-one", ":require-one", ":success one :failure all"]
)
def test_one_is_enough_if_the_tree_says_so(policy: str) -> None:
    node = f"(parallel {policy} (action a) (action b) (action c))"

    assert traced(node, 2, a="R", b="FS", c="RS") == ["R aR bF cR", "S aR cS -a"]


@pytest.mark.parametrize(
    "policy", ["", ":require-all", ":policy :require-all", ":success all :failure 1"]
)
def test_all_have_to_succeed_otherwise(policy: str) -> None:
    node = f"(parallel {policy} (action a) (action b) (action c))"

    assert traced(node, 2, a="R", b="RF", c="R") == ["R aR bR cR", "F aR bF -a -c"]
