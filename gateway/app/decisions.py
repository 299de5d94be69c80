"""The decision trees of packages that were installed beside the gateway."""

from collections.abc import Set
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from gateway.control.policy import DECISION_TREES, DecisionTrees, MakeDecisionTree
from gateway.domain.errors import GatewayError


class DecisionTreeBroken(GatewayError):
    """An agent names one whose package fails."""

    code = "decision_tree_broken"


def decision_trees(wanted: Set[str]) -> DecisionTrees:
    """Those with these names; what no agent names is not even imported.

    Raises DecisionTreeBroken."""
    found = [one for one in entry_points(group=DECISION_TREES) if one.name in wanted]
    return DecisionTrees({one.name: _loaded(one) for one in found})


def _loaded(point: EntryPoint) -> MakeDecisionTree:
    try:
        return cast(MakeDecisionTree, point.load())
    except Exception as error:  # a package may fail in any way when it is imported
        raise DecisionTreeBroken(
            f"the decision tree {point.name} cannot be loaded from {point.value} ({error!r}); "
            'correct its package, or write decision = "default" for the agents that name it'
        ) from error
