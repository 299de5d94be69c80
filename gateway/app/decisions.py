"""The decision trees of packages that were installed beside the gateway."""

from collections.abc import Set
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from gateway.control.policy import (
    DECISION_TREES,
    AgentConfig,
    DecisionTree,
    DecisionTrees,
    MakeDecisionTree,
)
from gateway.domain.errors import GatewayError


class DecisionTreeBroken(GatewayError):
    """An agent names one whose package fails."""

    code = "decision_tree_broken"


def decision_trees(wanted: Set[str]) -> DecisionTrees:
    """Those with these names are imported now, the others once a tree asks for one.

    Raises DecisionTreeBroken."""
    found = entry_points(group=DECISION_TREES)
    for point in found:
        if point.name in wanted:
            _loaded(point)
    return DecisionTrees({point.name: partial(_made, point) for point in found})


def _made(point: EntryPoint, config: AgentConfig) -> DecisionTree:
    return _loaded(point)(config)


def _loaded(point: EntryPoint) -> MakeDecisionTree:
    try:
        return cast(MakeDecisionTree, point.load())
    except Exception as error:  # a package may fail in any way when it is imported
        raise DecisionTreeBroken(
            f"the decision tree {point.name} cannot be loaded from {point.value} ({error!r}); "
            'correct its package, or write decision = "default" for the agents that name it'
        ) from error
