"""Nodes over one child that have a clock, a condition or a list."""

import pytest

from gateway.control.trees.engine import PendingLeaf
from gateway.control.trees.nodes import LeafCall
from tests.control.trees.stage import Pending, Stage, ended, traced


def test_a_timeout_halts_the_child_and_fails() -> None:
    assert traced("(timeout 2s (action a))", 4, tick_s=1, a="R") == [
        "R aR",
        "R aR",
        "F -a",
        "R aR",
        "end a",
    ]
    assert traced("(timeout 2s (action a))", 2, tick_s=1, a="RS") == ["R aR", "S aS"]


def test_a_delay_comes_before_every_start() -> None:
    assert traced("(delay 2s (action a))", 5, tick_s=1, a="RS") == ["R", "R", "R aR", "S aS", "R"]


def test_a_cooldown_skips_for_a_while_after_the_child_was_done() -> None:
    assert traced("(cooldown 2s (action a))", 5, tick_s=1, a="RF") == [
        "R aR",
        "F aF",
        "K",
        "R aR",
        "F aF",
    ]


def test_a_wait_takes_its_time() -> None:
    assert traced("(sequence (wait 2s) (action a))", 3, tick_s=1, wait="S", a="S") == [
        "R waitR",
        "R waitR",
        "S waitS aS",
    ]


def test_a_retry_waits_between_its_attempts() -> None:
    node = "(retry :max 3 :backoff 2s (action a))"

    assert traced(node, 5, tick_s=1, a="F") == ["R aF", "R", "R aF", "R", "F aF"]
    assert traced(node, 3, tick_s=1, a="FS") == ["R aF", "R", "S aS"]


@pytest.mark.parametrize("spelling", [":until-success", ""])
def test_until_success_is_a_retry(spelling: str) -> None:
    kind = "repeater" if spelling else "retry"

    assert traced(f"({kind} :max-iterations 2 {spelling} (action a))", 4, a="FFFS") == [
        "R aF",
        "F aF",
        "R aF",
        "S aS",
    ]


@pytest.mark.requirement("S-002-BT-05")
def test_a_loop_with_a_condition_fails_at_its_limit_so_that_a_selector_can_answer() -> None:
    stage = Stage()
    stage.logs("turn", "give-up")
    text = (
        '(tree "t" :blackboard-schema {:done false} (selector '
        '(repeat :max 3 :until "done" (action turn)) (action give-up)))'
    )

    ended(stage.run(text))
    ended(stage.run(text, done=True))

    assert stage.log == ["turn", "turn", "turn", "give-up", "turn"]


def test_the_limit_of_a_loop_may_come_from_the_configuration() -> None:
    stage = Stage(roots={"config": {"rounds": 2}})
    stage.registry.roots = {"config": {"rounds"}}
    stage.logs("turn")

    ended(stage.run("(repeat :max (config rounds) (action turn))"))

    assert stage.log == ["turn", "turn"]


def test_a_limit_that_is_no_number_ends_the_run() -> None:
    stage = Stage(roots={"config": {"rounds": "many"}})
    stage.registry.roots = {"config": {"rounds"}}
    stage.logs("turn")

    outcome = ended(stage.run("(repeat :max (config rounds) (action turn))"))

    assert outcome.reason == "internal_error"
    assert "a number is needed, not str" in outcome.detail


def test_a_guard_halts_its_child_as_soon_as_it_does_not_hold() -> None:
    stage = Stage()
    halted: list[str] = []
    stage.offer("work", lambda call: Pending(call, lambda: halted.append(call.plan.label)))
    run = stage.run('(tree "t" :blackboard-schema {:ok true} (guard "ok" (action work)))')
    assert not run.step()

    run.frame.set("ok", False)
    outcome = ended(run)

    assert (halted, outcome.status.name) == (["work"], "FAILURE")
    assert outcome.failure is not None
    assert outcome.failure["message"] == "ok"


@pytest.mark.requirement("S-002-BT-10")
def test_a_named_decorator_fails_when_its_function_says_no() -> None:
    stage = Stage()
    spent = [1, 2, 3]
    stage.offer("budget-check", lambda _call: len(spent) < 5)
    stage.offer("spend", lambda _call: spent.append(1))

    outcome = ended(stage.run("(repeat (decorator budget-check (action spend)))"))

    assert (len(spent), outcome.status.name) == (5, "FAILURE")


def test_when_is_asked_before_a_node_begins_and_not_while_it_runs() -> None:
    stage = Stage()
    stage.offer("work", lambda call: Pending(call))
    text = '(tree "t" :blackboard-schema {:on true} (sequence (action work :when "on") (succeed)))'
    run = stage.run(text)
    assert not run.step()
    run.frame.set("on", False)

    assert not run.step()
    assert ended(stage.run(text, on=False)).status.name == "SUCCESS"


def test_a_condition_without_a_value_does_not_hold_and_says_why() -> None:
    stage = Stage()
    run = stage.run('(tree "t" :blackboard-schema {:n "x"} (check "n > 3"))')

    failure = ended(run).failure

    assert failure is not None
    assert failure["type"] == "TypeError"


ITEMS = '(tree "t" :blackboard-schema {:items [] :found []} '


def collecting(stage: Stage, body: str, items: list[object], **options: str) -> object:
    said = " ".join(f":{name.replace('_', '-')} {text}" for name, text in options.items())
    run = stage.run(f"{ITEMS} (for-each $items :collect $found {said} {body}))", items=items)
    outcome = ended(run)
    return outcome.status.name, run.frame.get("found")


def test_each_item_has_a_frame_of_its_own_and_results_keep_their_order() -> None:
    stage = Stage()
    stage.offer("double", lambda call: call.set_result(call.option("of") * 2), options=["of"])  # type: ignore[operator]  # a number

    assert collecting(stage, "(action double :of $item)", [1, 2, 3], parallel="2") == (
        "SUCCESS",
        [2, 4, 6],
    )
    assert collecting(stage, "(action double :of $n)", [5], **{"as": "n"}) == ("SUCCESS", [10])
    assert collecting(stage, "(action double :of $index)", [7, 7]) == ("SUCCESS", [0, 2])
    assert collecting(stage, "(action double :of $item)", [1, 2, 3], limit="2")[1] == [2, 4]  # type: ignore[index]  # a pair
    assert collecting(stage, "(action double :of $item)", []) == ("SUCCESS", [])


def test_a_failure_ends_the_loop_or_does_not() -> None:
    stage = Stage()
    stage.offer(
        "pass", lambda call: call.set_result("ok") if call.option("it") else False, options=["it"]
    )
    body = "(action pass :it $item)"

    assert collecting(stage, body, [True, False, True]) == ("FAILURE", ["ok", None])
    assert collecting(stage, body, [True, False, True], on_child_fail="continue") == (
        "SUCCESS",
        ["ok", None, "ok"],
    )


def test_no_more_items_run_at_once_than_allowed_and_a_free_place_is_filled() -> None:
    stage = Stage()
    open_ones: list[PendingLeaf] = []

    def work(call: LeafCall) -> PendingLeaf:
        open_ones.append(Pending(call))
        return open_ones[-1]

    stage.offer("work", work)
    run = stage.run(f"{ITEMS} (for-each $items :parallel 2 (action work)))", items=[1, 2, 3])
    assert not run.step()
    assert len(open_ones) == 2

    open_ones[1].complete()
    while not run.step() and run.state.is_awake:
        pass

    assert len(open_ones) == 3
    open_ones[0].complete()
    open_ones[2].complete()
    assert ended(run).status.name == "SUCCESS"


def test_a_loop_over_something_else_ends_the_run() -> None:
    stage = Stage()
    run = stage.run('(tree "t" :blackboard-schema {:x nil} (for-each $x (succeed)))')

    assert ended(run).reason == "internal_error"


def test_what_a_key_cannot_hold_is_not_collected_and_the_loop_fails() -> None:
    stage = Stage()
    stage.offer("give-text", lambda call: call.set_result("text"))
    run = stage.run(
        '(tree "t" :blackboard-schema {:found (list int)} '
        "(for-each [1] :collect $found (action give-text)))"
    )

    outcome = ended(run)

    assert (outcome.status.name, outcome.reason, run.frame.values) == (
        "FAILURE",
        "done",
        {"found": []},
    )
    assert outcome.failure is not None
    assert outcome.failure["type"] == "BadWrite"


def test_a_retry_without_a_pause_still_gives_way() -> None:
    assert traced("(retry :max 2 :backoff 0s (action a))", 2, a="F") == ["R aF", "F aF"]
