"""What leaves answer, at once or later, and what becomes of their exceptions."""

import pytest

from gateway.control.trees.engine import FAILURE, RUNNING, SKIPPED, SUCCESS
from gateway.control.trees.nodes import LeafCall, TreeAbort
from tests.control.trees.stage import Stage, ended


@pytest.mark.parametrize(
    ("answer", "as_action", "as_condition"),
    [
        (None, "SUCCESS", "FAILURE"),
        (True, "SUCCESS", "SUCCESS"),
        (False, "FAILURE", "FAILURE"),
        (SUCCESS, "SUCCESS", "SUCCESS"),
        (FAILURE, "FAILURE", "FAILURE"),
        (SKIPPED, "SKIPPED", "SKIPPED"),
        ("a text", "FAILURE", "FAILURE"),
    ],
)
def test_a_function_answers_in_several_ways(
    answer: object, as_action: str, as_condition: str
) -> None:
    stage = Stage()
    stage.offer("leaf", lambda _call: answer)

    assert ended(stage.run("(action leaf)")).status.name == as_action
    assert ended(stage.run("(condition leaf)")).status.name == as_condition


def test_a_pending_leaf_runs_until_it_is_completed_and_wakes_the_run() -> None:
    stage = Stage()
    answers = stage.asks("ask")
    run = stage.run("(action ask)")
    assert not run.step()
    assert not run.state.is_awake

    answers[0].complete(outcome=False)
    answers[0].complete(outcome=True)  # too late

    assert run.state.is_awake
    assert ended(run).status is FAILURE


def test_a_halted_leaf_is_told_once_and_what_it_says_later_changes_nothing() -> None:
    stage = Stage()
    answers = stage.asks("ask")
    run = stage.run("(action ask)")
    run.step()

    run.interrupt("stop")
    answers[0].complete()

    assert stage.log == ["ask halted"]
    assert run.outcome is not None
    assert run.outcome.status is FAILURE


def test_a_leaf_may_run_without_a_pending_until_it_is_woken() -> None:
    stage = Stage()
    left = [RUNNING, SUCCESS]
    stage.offer("poll", lambda _call: left.pop(0))
    run = stage.run("(action poll)")

    assert not run.step()
    assert ended(run).status is SUCCESS


def broken(_call: LeafCall) -> object:
    raise ValueError("no such page")


def test_an_exception_is_a_failure_with_a_record() -> None:
    stage = Stage()
    stage.offer("mod.broken", broken)

    outcome = ended(stage.run('\n(sequence (action fetch :fn "mod.broken"))'))

    assert (outcome.status, outcome.reason) == (FAILURE, "done")
    assert outcome.failure == {
        "node": "fetch",
        "path": "t/sequence/fetch",
        "file": "t.bt",
        "line": 2,
        "type": "ValueError",
        "message": "no such page",
    }


def test_where_the_tree_says_so_an_exception_ends_the_run() -> None:
    stage = Stage()
    stage.offer("broken", broken)

    outcome = ended(stage.run("(selector :on-error raise (sequence (action broken)) (succeed))"))
    caught = ended(stage.run("(selector :on-error raise (action broken :on-error fail) (succeed))"))

    assert outcome.reason == "internal_error"
    assert "no such page" in outcome.detail
    assert caught.status is SUCCESS


def test_an_abort_ends_the_run_whatever_is_around_it() -> None:
    stage = Stage()

    def abort(_call: LeafCall) -> object:
        raise TreeAbort("the store is gone")

    stage.offer("abort", abort)

    outcome = ended(stage.run("(force-success (retry (action abort)))"))

    assert (outcome.reason, outcome.detail) == ("internal_error", "the store is gone")


def test_every_failure_has_a_reason() -> None:
    stage = Stage()
    stage.offer("no", lambda _call: False)
    stage.offer("no-because", lambda call: call.fail("it rains", "weather"))
    for node, kind, message in (
        ("(action no)", "failed", "no failed"),
        ("(action no-because)", "weather", "it rains"),
        ('(fail "enough")', "fail", "enough"),
        ("(fail)", "fail", "fail"),
        ('(check "1 > 2")', "condition", "1 > 2"),
        ("(timeout 0s (succeed))", "timeout", "timeout timed out"),
    ):
        failure = ended(stage.run(node)).failure

        assert failure is not None, node
        assert (failure["type"], failure["message"]) == (kind, message), node


def test_set_writes_all_its_keys_from_the_values_before() -> None:
    stage = Stage()
    run = stage.run(
        '(tree "t" :blackboard-schema {:a 1 :b 2 :c nil} (set! :a $b :b $a :c [$a {:x $b}]))'
    )

    ended(run)

    assert run.frame.values == {"a": 2, "b": 1, "c": [1, {"x": 2}]}


def test_a_value_of_the_wrong_type_is_a_failure_of_the_node() -> None:
    stage = Stage()
    run = stage.run('(tree "t" :blackboard-schema {:n 1 :any nil} (set! :n $any))', any="text")

    outcome = ended(run)

    assert run.frame.values["n"] == 1
    assert outcome.failure is not None
    assert outcome.failure["message"] == "n is int, not str"


def test_emit_tells_the_host() -> None:
    stage = Stage()

    ended(stage.run('(tree "t" :blackboard-schema {:n 1} (emit "x.y" {:n $n}))'))

    assert stage.events == [("x.y", {"n": 1})]


def test_a_function_sees_its_options_and_values_and_writes_what_it_announced() -> None:
    stage = Stage()
    seen: list[object] = []

    def call_tool(call: LeafCall) -> None:
        seen.append((call.plan.label, call.values, call.option("retries")))
        call.write("n", 2)

    def sneaky(call: LeafCall) -> None:
        call.write("n", 3)

    stage.offer("tool-call", call_tool, writes={"n": "int"}, options=["retries"])
    stage.offer("sneaky", sneaky)
    text = (
        '(tree "t" :blackboard-schema {:n 1} (sequence (tool-call $n :retries 2) (action sneaky)))'
    )
    run = stage.run(text)

    outcome = ended(run)

    assert seen == [("tool-call", [1], 2)]
    assert run.frame.values == {"n": 2}
    assert outcome.failure is not None
    assert "does not declare" in str(outcome.failure["message"])
