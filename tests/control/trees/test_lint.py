"""Warnings for trees that load and hardly do what was meant."""

from pathlib import Path

import pytest

from gateway.agent.leaves import REGISTRY
from gateway.control.trees.engine import LeafRegistry
from gateway.control.trees.loading import load
from tests.control.trees.stage import codes, problems
from tests.fakes.plans import shipped

SAMPLES = Path(__file__).parent / "samples"


def tree(body: str, schema: str = "{}") -> str:
    return f'(tree "t" :blackboard-schema {schema} {body})'


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("(selector (succeed) (action a))", "BT040"),
        ("(sequence (fail) (action a))", "BT040"),
        ("(reactive-sequence (llm-call) (llm-call))", "BT041"),
        ('(repeat (check "True"))', "BT042"),
        ("(until-fail (succeed))", "BT042"),
        ("(repeater :until-success (selector (action a) (action b)))", "BT044"),
        ('(sequence (repeat :max 3 :until "True" (action a)) (action b))', "BT045"),
        ("(repeat :max 30 (llm-call))", "BT046"),
        ("(llm-call :timeout 60s)", "BT046"),
        ("(parallel (action a))", "BT047"),
        ("(parallel (set! :n 1) (set! :n 2))", "BT048"),
        ("(timeout 3 (action a))", "BT034"),
        ("(tool-call (blackboard :m))", "BT024"),
    ],
)
def test_a_trap_is_named_and_the_tree_loads(body: str, code: str) -> None:
    found = problems(tree(body, "{:n 0}"))

    assert code in [problem.code for problem in found]
    assert all(problem.severity == "warning" for problem in found)


@pytest.mark.parametrize(
    "body",
    [
        '(selector (succeed :when "n > 1") (action a))',
        "(reactive-sequence (action alive) (llm-call))",
        "(repeat (action a))",
        "(repeater :until-success (sequence (action a)))",
        '(selector (repeat :max 3 :until "True" (action a)) (action b))',
        '(force-success (sequence (repeat :until "True" (action a)) (action b)))',
        "(sequence (repeat :max 3 (action a)) (action b))",
        "(repeat :max (config max_iterations) (llm-call :timeout (config patience)))",
        "(parallel (set! :n 1) (set! :m 2))",
        "(tool-call $n)",
    ],
)
def test_what_is_meant_so_is_left_alone(body: str) -> None:
    assert codes(tree(body, "{:n 0 :m 0}")) == []


def test_keys_that_nobody_reads_are_named_where_it_is_known_who_reads() -> None:
    registry = LeafRegistry()
    registry.action("a", reads={"n": "int"})(print)
    text = tree("(action a)", "{:n 0 :m 0}")

    [problem] = problems(text, registry)

    assert (problem.code, problem.message) == ("BT043", ":m is never read")
    assert codes(text) == []


@pytest.mark.requirement("S-002-BT-04")
@pytest.mark.parametrize("registry", [None, REGISTRY], ids=["on trust", "for agents"])
def test_the_sample_tree_as_it_was_given_loads_and_its_defects_are_named(
    registry: LeafRegistry | None,
) -> None:
    text = (SAMPLES / "first-draft.bt").read_text(encoding="utf-8")
    plan = load(text, "first-draft.bt", registry)
    found = {(warning.code, warning.line) for warning in plan.warnings}

    assert {
        ("BT044", 39),  # it leaves the loop after the first turn, which may have called tools
        ("BT045", 87),  # phase 5 runs after success, and never at the limit
        ("BT024", 52),  # :model, :max_tokens, :xml_tool_calls are nowhere declared
        ("BT024", 56),
        ("BT024", 78),
        ("BT046", 39),  # 30 turns and 60 s say nothing of the agent's limits
        ("BT046", 58),
        ("BT047", 66),  # for-each inside of parallel
        ("BT047", 77),
    } <= found
    parts = {part for node in plan.nodes() for part in node.path.split("/")}
    assert parts >= {"emit-query-start", "agent-turn", "detect-loop"}


@pytest.mark.requirement("S-002-BT-04")
@pytest.mark.parametrize("name", ["default", "oracle-agent"])
def test_a_tree_that_ships_has_no_warning(name: str) -> None:
    assert shipped(name).warnings == ()
