"""Nodes that choose, and those that clean up; the traces of the reference engines are beside."""

from gateway.control.trees.calls import Call
from tests.control.trees.stage import Stage, ended, traced


def test_an_ensured_node_runs_after_success_and_failure_and_keeps_the_status() -> None:
    assert traced("(ensure (action body) (action clean))", 3, body="RSF", clean="F") == [
        "R bodyR",
        "S bodyS cleanF",
        "F bodyF cleanF",
    ]


def test_a_halted_body_is_cleaned_up_with_one_tick() -> None:
    node = "(reactive-sequence (action gate) (ensure (action body) (action clean)))"

    assert traced(node, 2, gate="SF", body="R", clean="RS") == [
        "R gateS bodyR",
        "F gateF cleanR -body -clean",
    ]


def test_a_body_that_is_skipped_has_nothing_to_clean_up() -> None:
    assert traced("(ensure (action body) (action clean))", 1, body="K", clean="S") == ["K bodyK"]


def test_a_condition_that_is_skipped_skips_the_branches() -> None:
    assert traced("(if (action c) (action a))", 1, c="K", a="S") == ["K cK"]
    assert traced("(while (action c) (action a))", 2, c="SK", a="R") == ["R cS aR", "K cK -a"]


def switching(stage: Stage) -> str:
    stage.logs("one", "other")
    return (
        '(tree "t" :blackboard-schema {:mode "a" :done false} '
        "(switch $mode {:a (action one) :true (succeed) :else (action other)}))"
    )


def test_a_switch_takes_the_branch_of_its_value_or_else() -> None:
    stage = Stage()
    text = switching(stage)

    ended(stage.run(text))
    ended(stage.run(text, mode="zzz"))

    assert stage.log == ["one", "other"]


def test_a_switch_without_a_branch_fails_and_says_so() -> None:
    stage = Stage()
    run = stage.run('(tree "t" :blackboard-schema {:x nil} (switch $x {:a (succeed)}))')

    failure = ended(run).failure

    assert failure is not None
    assert failure["message"] == "no case for nil"


def test_a_switch_halts_the_branch_that_is_no_longer_right() -> None:
    stage = Stage()
    halted: list[str] = []
    stage.offer("wait-for-it", lambda call: call.pending(lambda: halted.append(call.name)))
    run = stage.run(
        '(tree "t" :blackboard-schema {:mode "a"} '
        "(switch $mode {:a (action wait-for-it) :b (succeed)}))"
    )
    assert not run.step()

    run.frame.set("mode", "b")

    assert stage.woken == 1  # whoever writes a key that is asked for wakes the run
    assert ended(run).status.name == "SUCCESS"
    assert halted == ["wait-for-it"]


def test_after_a_caught_failure_the_reason_can_be_read() -> None:
    stage = Stage()
    seen: list[object] = []

    def look(call: Call) -> None:
        seen.append(call.read("failure"))

    stage.offer("look", look)
    ended(stage.run('(try (fail "no luck") (catch (action look)))'))

    assert isinstance(seen[0], dict)
    assert (seen[0]["message"], seen[0]["line"]) == ("no luck", 1)
