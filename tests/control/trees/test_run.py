"""A run from its first tick to `:finally`, and how it is stopped."""

from gc import collect
from itertools import cycle, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.control.trees import nodes
from gateway.control.trees.engine import (
    FAILURE,
    MAX_PARTS,
    MAX_WORK,
    RUNNING,
    SKIPPED,
    STUCK,
    SUCCESS,
    Run,
    TreeHost,
)
from gateway.control.trees.loading import load
from gateway.control.trees.nodes import LeafCall
from gateway.control.trees.reader import TreeInvalid
from tests.control.trees.shapes import NODES
from tests.control.trees.stage import Pending, Stage, ended
from tests.forms import examples

FINALLY = '(tree "t" {body} :finally (sequence (action clean) (action say)))'


def with_end(body: str) -> str:
    return FINALLY.format(body=body)


@pytest.mark.requirement("S-002-BT-06")
@pytest.mark.parametrize("body", ["(succeed)", "(fail)", "(action broken :on-error raise)"])
def test_the_end_runs_after_success_failure_and_an_exception(body: str) -> None:
    stage = Stage()
    stage.logs("clean", "say")

    def broken(_call: LeafCall) -> object:
        raise OSError("gone")

    stage.offer("broken", broken)

    ended(stage.run(with_end(body)))

    assert stage.log == ["clean", "say"]


def test_an_interrupt_halts_what_runs_and_then_comes_the_end() -> None:
    stage = Stage()
    stage.logs("clean", "say")
    stage.offer("wait-long", lambda call: Pending(call, lambda: stage.log.append("halted")))
    run = stage.run(with_end("(action wait-long)"))
    assert not run.step()

    run.interrupt("the user")
    run.interrupt("again")
    outcome = ended(run)

    assert stage.log == ["halted", "clean", "say"]
    assert (outcome.status, outcome.reason, outcome.detail) == (FAILURE, "interrupted", "the user")


def test_a_run_that_is_dropped_halts_nothing_and_cleans_nothing_up() -> None:
    stage = Stage()
    stage.logs("clean")
    stage.asks("wait-long")
    run = stage.run("(ensure (sequence (action wait-long)) (action clean))")
    assert not run.step()

    del run
    collect()

    assert stage.log == []


def test_an_end_that_fails_changes_nothing() -> None:
    stage = Stage()

    outcome = ended(stage.run('(tree "t" (succeed) :finally (fail "late"))'))

    assert (outcome.status, outcome.reason, outcome.failure) == (SUCCESS, "done", None)


def test_an_end_that_takes_too_long_is_given_up() -> None:
    stage = Stage()
    stage.offer("wait-long", lambda call: Pending(call, lambda: stage.log.append("halted")))
    run = stage.run('(tree "t" (succeed) :finally (action wait-long))')
    run.step()
    assert run.is_ending
    assert not run.step()

    run.abandon()

    assert run.step()
    assert run.outcome is not None
    assert (run.outcome.status, stage.log) == (SUCCESS, ["halted"])


def test_an_interrupt_reaches_a_tree_that_never_waits_between_two_rounds() -> None:
    stage = Stage()
    stage.logs("work")
    run = stage.run("(repeat (action work))")
    for _ in range(10):
        assert not run.step()
        assert run.state.is_awake

    run.interrupt("stop")

    assert run.step()
    assert len(stage.log) == 10


def test_a_tree_that_only_wakes_itself_is_stuck() -> None:
    stage = Stage()
    stage.logs("work")

    outcome = ended(stage.run("(repeat (action work))"))

    assert outcome.reason == "stuck"
    assert len(stage.log) == STUCK


def test_a_loop_that_waits_for_something_is_never_stuck() -> None:
    stage = Stage()
    open_ones = stage.asks("ask")
    run = stage.run("(repeat :max 3000 (action ask))")

    for _ in range(3000):
        run.step()
        open_ones[-1].complete()
    assert ended(run).status is SUCCESS


def test_ticks_are_bounded_if_the_tree_says_so() -> None:
    stage = Stage()
    stage.logs("work", "clean")

    outcome = ended(
        stage.run('(tree "t" :max-ticks 5 (repeat (action work)) :finally (action clean))')
    )

    assert (outcome.reason, stage.log) == ("max_ticks", ["work"] * 5 + ["clean"])


def test_lists_are_not_shared_between_runs() -> None:
    stage = Stage()
    text = '(tree "t" :blackboard-schema {:q "" :seen []} :inputs [q] (succeed))'

    first, second = stage.run(text, q="hello"), stage.run(text)
    first.frame.values["seen"].append(1)  # type: ignore[attr-defined]  # a list

    assert first.frame.get("q") == "hello"
    assert second.frame.values == {"q": "", "seen": []}


def test_a_run_goes_on_from_a_snapshot() -> None:
    stage = Stage()
    stage.logs("early", "late")
    text = (
        '(tree "t" :blackboard-schema {:is_begun false} (sequence '
        '(sequence :when "not is_begun" (action early) (set! :is_begun true)) (action late)))'
    )
    first = stage.run(text)
    ended(first)

    ended(stage.run(text, **first.frame.values))

    assert stage.log == ["early", "late", "late"]


def test_deadlines_are_those_of_nodes_that_wait() -> None:
    stage = Stage()
    stage.offer("work", lambda call: Pending(call))
    run = stage.run("(parallel (timeout 5s (action work)) (wait 3s))")
    assert run.next_deadline() is None

    run.step()

    assert run.next_deadline() == 3
    stage.now = 3
    run.step()
    assert run.next_deadline() == 5
    run.interrupt("stop")
    assert run.next_deadline() is None


def test_only_keys_that_are_asked_for_at_each_tick_wake_a_run() -> None:
    stage = Stage()
    plan = stage.plan(
        '(tree "t" :blackboard-schema {:a 1 :b 1 :c 1 :d 1 :e ""} (sequence (guard "a > 0" '
        '(check "b > 0")) (reactive-sequence (check "c > 0") (succeed)) '
        '(while (condition x? :expr "d > 0") (succeed)) (switch $e {:else (succeed)})))'
    )

    assert plan.watched == {"a", "c", "d", "e"}


def test_a_leaf_may_interrupt_its_own_run() -> None:
    stage = Stage()
    stage.logs("after", "clean")
    stage.offer("stop", lambda _call: run.interrupt("enough"))
    run = stage.run('(tree "t" (sequence (action stop) (action after)) :finally (action clean))')

    outcome = ended(run)

    assert stage.log == ["after", "clean"]  # the tick in which it happened goes to its end
    assert (outcome.reason, outcome.detail) == ("interrupted", "enough")


def test_a_key_that_a_subtree_asks_for_is_its_callers_and_wakes_too() -> None:
    stage = Stage()
    stage.asks("work")
    run = stage.run(
        '(tree "t" :blackboard-schema {:n 1} (subtree inner :bind {:amount $n})) '
        '(tree "inner" :blackboard-schema {:amount 0} (guard "amount > 0" (action work)))'
    )
    assert not run.step()

    run.frame.set("n", 0)

    assert run.state.is_awake
    assert ended(run).status is FAILURE


def test_roots_of_the_host_are_looked_up_when_they_are_needed() -> None:
    usage = {"tokens": 10}
    stage = Stage(roots={"usage": usage})
    stage.registry.roots = {"usage": {"tokens"}}
    text = '(selector (check "usage.tokens > 100") (fail))'
    assert ended(stage.run(text)).status is FAILURE

    usage["tokens"] = 1000

    assert ended(stage.run(text)).status is SUCCESS


@given(NODES, st.sampled_from(["{}", "{:a 1}", "{:a []}", "{:a (int) :b nil}"]), st.data())
@settings(max_examples=examples(300))
def test_whatever_loads_runs_or_ends_with_a_reason(
    node: str, schema: str, data: st.DataObject
) -> None:
    try:
        plan = load(f'(tree "t" :blackboard-schema {schema} {node} :finally {node})')
    except TreeInvalid:
        return
    answers = data.draw(st.lists(st.sampled_from([True, False, RUNNING, SKIPPED]), min_size=1))
    turn = cycle(answers)
    now = iter(range(100_000))
    run = Run(
        plan,
        TreeHost(lambda: next(now) / 10, find_act=lambda _plan: lambda _call: next(turn)),
        nodes.NODES,
    )

    steps = sum(1 for _ in takewhile(lambda _: not run.step(), range(40)))
    run.interrupt("enough")
    run.abandon()

    assert steps <= 40
    assert run.outcome is not None
    assert run.next_deadline() is None


EVENT = '(emit "own.event") '
ITEMS = f"[{'1 ' * 200}]"
SIDE_BY_SIDE = "(for-each $long :parallel 200 "
DOUBLED = "(repeat :max 60 (set! :xs [$xs $xs] :ys [$ys $ys]))"
KEYS = f":xs [1] :ys [1] :long {ITEMS}"


@pytest.mark.requirement("S-002-BT-14")
@pytest.mark.parametrize(
    "body",
    [
        f"(repeat :max -1 (sequence {EVENT * 900}))",
        f"{SIDE_BY_SIDE * 3} (succeed))))",
        f"(repeat :max -1 (sequence {'(set! :xs [$long $long $long])' * 900}))",
    ],
    ids=["events", "items", "lists"],
)
def test_a_tree_that_lets_nothing_else_have_its_turn_is_ended_and_its_end_runs(body: str) -> None:
    stage = Stage()
    stage.logs("clean")

    final = '(sequence (emit "own.end") (action clean))'
    run = stage.run(f'(tree "t" :blackboard-schema {{{KEYS}}} {body} :finally {final})')
    outcome = ended(run)

    assert (outcome.status, outcome.reason) == (FAILURE, "internal_error")
    assert f"more than {MAX_WORK} loop items and events" in outcome.detail
    assert len(stage.events) <= MAX_WORK + 1
    assert (stage.events[-1], stage.log) == (("own.end", {}), ["clean"])


def test_work_is_counted_anew_when_something_has_happened() -> None:
    stage = Stage()
    asked = stage.asks("ask")
    run = stage.run(f"(repeat :max 30 (sequence {EVENT * 900} (action ask)))")

    while not run.step():
        for pending in asked:
            pending.complete()

    assert run.outcome is not None
    assert (run.outcome.status, len(stage.events)) == (SUCCESS, 27_000)


@pytest.mark.requirement("S-002-BT-14")
@pytest.mark.parametrize(
    "body",
    [
        f'(sequence {DOUBLED} (check "xs == ys"))',
        "(repeat :max 60 (for-each [1 2] :collect $xs (set! :result $xs)))",
        f'(emit "own.event" {{:x [{"$long " * 60}]}})',
    ],
    ids=["doubled", "collected", "told"],
)
def test_no_value_grows_beyond_what_can_be_looked_at(body: str) -> None:
    stage = Stage()

    outcome = ended(stage.run(f'(tree "t" :blackboard-schema {{{KEYS}}} {body})'))

    assert outcome.failure is not None
    assert f"more than {MAX_PARTS} parts" in str(outcome.failure["message"])
    assert stage.events == []
