"""What rules and trees are checked against is what they are then shown."""

import re
from pathlib import Path

import pytest

from gateway.agent.turn import ROOTS
from gateway.control.rules import ROOTS as RULE_ROOTS
from gateway.control.trees.reader import TreeInvalid
from gateway.domain.messages import Message
from tests.agent.paper import SHIPPED, Paper, call, tree

EVENTS_OWN = {"event", "payload", "plugin"}  # made anew for each event
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rules.md"


def test_rules_know_the_roots_of_a_turn_and_those_of_events() -> None:
    assert set(RULE_ROOTS) == {*ROOTS, *EVENTS_OWN}


@pytest.mark.parametrize("plan", SHIPPED)
@pytest.mark.parametrize("root", ROOTS)
def test_every_view_has_exactly_the_promised_keys(root: str, plan: str) -> None:
    paper = Paper(plan).begin().reply("", call("0"), call("1")).give("0")
    scope = paper.turn.run.host.roots

    view = scope[root]

    assert isinstance(view, dict)
    assert tuple(view) == ROOTS[root]


def test_the_roots_can_be_gone_through() -> None:
    scope = Paper().turn.run.host.roots

    assert list(scope) == list(ROOTS)
    assert len(scope) == len(ROOTS)
    with pytest.raises(KeyError):
        scope["secrets"]


def test_each_root_is_documented_with_its_keys() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    shown = {root: set(re.findall(r"`(\w+)`", text)) for root, text in rows if root in ROOTS}

    assert shown.keys() == ROOTS.keys()
    for root in ROOTS.keys() - {"limits", "config"}:  # which hold the limits by their names
        assert shown[root] == set(ROOTS[root])


def test_a_view_shows_what_is_true_now() -> None:
    paper = Paper(history=[Message("user", "before")]).begin()
    scope = paper.turn.run.host.roots
    before = scope["turn"]

    paper.reply("", call("0"), call("1", name="other")).give("1")

    assert before == {"number": 1, "tool_calls": [], "tools_done": []}
    assert scope["turn"] == {
        "number": 1,
        "tool_calls": ["echo", "other"],
        "tools_done": ["other"],
    }
    assert scope["history"] == {"messages": 1}


def test_a_tree_looks_at_what_rules_see() -> None:
    plan = tree(
        "(sequence (llm-call) (check \"usage.total_tokens == 10 and user.id == 'somebody'\") "
        "(check \"config.tree == 'own' and limits.max_iterations == 15\") (llm-call))"
    )

    assert len(Paper(plan).begin().reply("once").asked) == 2


def test_a_tree_that_looks_at_nothing_that_there_is_is_refused() -> None:
    with pytest.raises(TreeInvalid, match="stat"):
        tree('(check "stat.turn > 1")')
