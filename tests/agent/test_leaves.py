"""What a tree of one's own may do: its options hold, and nothing that it leaves out breaks a run."""

import logging

import pytest

from gateway.agent.effects import Fail, Finish
from gateway.agent.leaves import QUERY_SHOWN, REGISTRY
from gateway.agent.output import DEFECT, NO_END
from gateway.control.trees.loading import load
from gateway.control.trees.reader import TreeInvalid
from gateway.domain.agents import Limits
from gateway.domain.events import Notice
from gateway.domain.ids import NodeId
from gateway.domain.messages import Message
from tests.agent.paper import (
    ANSWERED,
    EXECUTE,
    SHIPPED,
    Paper,
    call,
    is_valid_for_a_model,
    looped,
    tree,
)

ROUND = f'(sequence (llm-call) {EXECUTE} (action :fn "oracle.append_tool_results"))'


# -- trees that do less than they should


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("(succeed)", NO_END),
        ('(fail "no way")', NO_END),
        ('(action :fn "oracle.emit_query_start")', NO_END),
        ('(action :fn "oracle.save_exchange")', NO_END),
        ('(check "len(tool_calls) > 0")', NO_END),
        ('(repeat :until "done" (succeed))', NO_END),
        ('(tool-call {:id "x"})', NO_END),
        ("(tool-call 5)", NO_END),
        ('(action :fn "notify.drain" :point "at noon")', NO_END),
        ('(action :fn "notify.drain" :point "at noon" :on-error raise)', DEFECT),
    ],
)
def test_a_tree_without_an_answer_ends_with_an_error(
    body: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)

    paper = Paper(tree(body)).begin()

    assert paper.turn.end == Fail(told, told, "internal_error")
    assert paper.said == [Message("assistant", told)]
    assert paper.turn.end_event is not None
    assert "tree_without_answer" in caplog.messages


def test_why_a_tree_failed_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    Paper(tree('(fail "no way")')).begin()

    [record] = [one for one in caplog.records if one.getMessage().startswith("tree_without")]
    assert vars(record)["failure"]["message"] == "no way"


def test_a_tree_that_asks_and_stops_there_leaves_no_call_open() -> None:
    paper = Paper(tree("(llm-call)")).begin()

    paper.reply("let me see", call("0"), call("1"))

    assert paper.called == []
    assert [content for _, content, _ in paper.results] == [
        "Not executed: the run went on without it."
    ] * 2
    assert is_valid_for_a_model(paper.said)
    assert paper.turn.end == Fail(NO_END, "let me see", "internal_error")


def test_what_a_tree_does_not_gather_is_gathered_before_the_next_question() -> None:
    paper = Paper(looped(f"(sequence (llm-call) {EXECUTE})")).begin()

    paper.reply("", call("0"), call("1")).give_all()

    assert is_valid_for_a_model(paper.question.messages)
    assert [message.role for message in paper.question.messages][-2:] == ["tool", "tool"]


def test_a_tree_that_executes_one_call_answers_the_others() -> None:
    first = "(for-each $tool_calls :as call :limit 1 (tool-call $call))"
    paper = Paper(looped(f"(sequence (llm-call) {first})")).begin()

    paper.reply("", call("0"), call("1")).give("0")

    assert [content for _, content, _ in paper.results] == [
        "result 0",
        "Not executed: the run went on without it.",
    ]


@pytest.mark.requirement("S-001-Tree-08")
@pytest.mark.parametrize("most", ["1000", "(config max_iterations)"])
def test_a_tree_that_looks_at_no_limit_is_bounded_all_the_same(most: str) -> None:
    paper = Paper(looped(ROUND, most=most), Limits(max_iterations=3)).begin()

    for number in range(3):
        paper.round(call(str(number)))

    assert paper.reason == "max_iterations"
    assert len(paper.told_of("budget.iteration.exceeded")) == 1


@pytest.mark.requirement("S-001-Tree-08")
def test_a_tree_that_goes_around_a_failure_asks_no_more_than_allowed() -> None:
    stubborn = looped(f"(force-success {ROUND})", most="1000")
    paper = Paper(stubborn, Limits(token_budget=100)).begin()

    paper.round(call("0"), tokens=60).round(call("1"), tokens=60)

    assert paper.reason == "token_budget"
    assert paper.open == {}


def test_no_second_model_is_asked_while_one_is_at_work() -> None:
    plan = tree("(parallel :policy continue-on-failure (llm-call) (llm-call))")
    paper = Paper(plan).begin()

    paper.reply("done")

    assert len(paper.asked) == 1
    assert paper.reason == "answered"


def test_no_model_is_asked_while_a_tool_is_at_work() -> None:
    plan = tree(
        f"(sequence (llm-call) (parallel :policy continue-on-failure {EXECUTE} (llm-call)))"
    )
    paper = Paper(plan).begin()

    paper.reply("", call("0")).give("0")

    assert len(paper.asked) == 1
    assert is_valid_for_a_model(paper.said)


def test_a_call_that_is_at_work_is_not_begun_once_more() -> None:
    both = f"(parallel :policy continue-on-failure {EXECUTE} {EXECUTE})"
    paper = Paper(looped(f"(sequence (llm-call) (force-success {both}))")).begin()

    paper.reply("", call("0"), call("1"))

    assert paper.called == ["0", "1"]
    paper.give_all()
    assert paper.results == [("0", "result 0", False), ("1", "result 1", False)]


def test_a_call_that_has_its_result_is_not_executed_once_more() -> None:
    paper = Paper(looped(f"(sequence (llm-call) {EXECUTE} {EXECUTE})")).begin()

    paper.reply("", call("0")).give_all()

    assert paper.called == ["0"]
    assert paper.results == [("0", "result 0", False)]


# -- several models


def test_a_tree_may_ask_again_after_a_failure() -> None:
    paper = Paper(tree("(retry :max 3 (llm-call))")).begin()

    paper.break_off("overloaded").break_off("network").reply("at last")

    assert paper.turn.end == Finish("answered", "at last")
    assert [wish.step for wish in paper.asked] == [0, 0, 0]
    assert len(paper.told_of("model.failed")) == 2


def test_each_attempt_counts_as_an_iteration() -> None:
    paper = Paper(tree("(retry :max 9 (llm-call))"), Limits(max_iterations=2)).begin()

    paper.break_off().break_off()

    assert paper.reason == "max_iterations"


def test_a_model_that_broke_and_one_that_answered_end_well() -> None:
    plan = tree('(selector (llm-call :model "first") (llm-call :model "second"))')
    paper = Paper(plan).begin()

    paper.break_off("rate").reply("here")

    assert [wish.model for wish in paper.asked] == ["first", "second"]
    assert paper.turn.end == Finish("answered", "here")


# -- options


@pytest.mark.requirement("S-002-BT-08")
def test_a_model_call_says_which_model_how_much_and_how_long() -> None:
    plan = tree('(llm-call :model "big" :budget 77 :timeout 90s)')

    wish = Paper(plan).begin().question

    assert (wish.model, wish.max_tokens, wish.timeout_s) == ("big", 77, 90.0)


@pytest.mark.parametrize("options", ["", ':model "fake-1"', ':model "" :budget 0', ":model $none"])
def test_what_a_model_call_does_not_say_is_as_usual(options: str) -> None:
    wish = Paper(tree(f"(llm-call {options})", keys=":none nil")).begin().question

    assert (wish.model, wish.max_tokens, wish.timeout_s) == (None, None, None)


@pytest.mark.requirement("S-002-BT-08")
def test_a_tool_call_says_how_long_it_may_take() -> None:
    plan = tree(
        "(sequence (llm-call) (for-each $tool_calls :as call (tool-call $call :timeout 2s)))"
    )
    paper = Paper(plan).begin().reply("", call("0"))

    assert paper.calls[0].timeout_s == 2.0


@pytest.mark.requirement("S-002-BT-08")
def test_a_reply_is_written_where_the_tree_wants_it() -> None:
    plan = tree(
        "(sequence (llm-call :stream-to [:one :other]) (check \"one == 'yes'\") "
        "(if (check \"other == 'yes'\") (llm-call)))",
        keys=':one "" :other ""',
    )
    paper = Paper(plan).begin().reply("yes")

    assert len(paper.asked) == 2


def test_a_reply_that_does_not_fit_where_it_is_wanted_ends_the_run() -> None:
    plan = tree("(force-success (llm-call :stream-to [:count]))", keys=":count 5")
    paper = Paper(plan).begin().reply("yes", call("0"))

    assert paper.reason == "internal_error"
    assert is_valid_for_a_model(paper.said)


@pytest.mark.requirement("S-002-BT-08")
@pytest.mark.parametrize("option", ["", ":interruptible true", ":interruptible nil"])
def test_a_reply_that_costs_too_much_is_cut(option: str) -> None:
    paper = Paper(tree(f"(llm-call {option})"), Limits(token_budget=20)).begin()

    assert paper.hear("x" * 100).reason == "token_budget"


@pytest.mark.requirement("S-002-BT-08")
def test_a_reply_that_is_not_interruptible_is_heard_to_its_end() -> None:
    plan = looped(f"(sequence (llm-call :interruptible false) {EXECUTE} {ANSWERED})")
    paper = Paper(plan, Limits(token_budget=20)).begin()

    paper.hear("x" * 100).hear("y" * 100)
    assert paper.reason is None
    paper.reply("done", tokens=60)

    assert paper.turn.end == Finish("answered", "done")


def test_the_person_may_interrupt_what_is_not_interruptible_by_its_cost() -> None:
    paper = Paper(tree("(llm-call :interruptible false)")).begin()

    assert paper.hear("half").stop().reason == "cancelled"


def test_a_time_that_a_tree_sets_cuts_what_is_at_work() -> None:
    plan = tree("(sequence (force-success (timeout 5s (llm-call))) (llm-call))")
    paper = Paper(plan).begin().hear("too slow")

    assert paper.turn.run.next_deadline() == 5.0
    paper.pass_time(5.0)
    paper.reply("done")

    assert paper.trace.count("?cancel") == 1
    assert paper.turn.end == Finish("answered", "done")
    assert paper.turn.state.usage.estimated


# -- what comes last


FINAL = '(sequence (action :fn "oracle.save_partial_cleanup") (emit "house.end"))'


@pytest.mark.requirement("S-002-BT-06")
@pytest.mark.parametrize("how", ["answered", "cancelled", "provider_error", "internal_error"])
def test_what_a_tree_does_at_the_end_it_does_after_every_end(how: str) -> None:
    body = "(fail)" if how == "internal_error" else "(llm-call)"
    paper = Paper(tree(body, final=FINAL)).begin()

    match how:
        case "answered":
            paper.reply("done")
        case "cancelled":
            paper.stop()
        case "provider_error":
            paper.break_off()

    assert paper.reason == how
    assert len(paper.told_of("house.end")) == 1


def test_an_ending_that_never_ends_is_given_up() -> None:
    paper = Paper(tree("(llm-call)", final="(wait 60s)")).begin().reply("done")
    assert paper.turn.end is None

    paper.turn.abort()

    assert paper.turn.end == Finish("answered", "done")


def test_a_stopped_run_asks_nothing_more_at_its_end() -> None:
    plan = tree("(llm-call)", final=f"(sequence (force-success {ROUND}) (llm-call))")
    paper = Paper(plan).begin().stop()

    assert paper.reason == "cancelled"
    assert len(paper.asked) == 1


# -- what the shipped trees' leaves do


@pytest.mark.requirement("S-002-Query-02")
@pytest.mark.parametrize("plan", SHIPPED)
def test_the_first_event_tells_the_question(plan: str) -> None:
    paper = Paper(plan, context_id=NodeId("n_1")).begin()

    assert paper.events[0].type == "query.start"
    assert paper.events[0].payload == {
        "query": "hi",
        "user": "somebody",
        "project": "default",
        "context_id": "n_1",
    }
    assert QUERY_SHOWN == 200


@pytest.mark.requirement("S-002-Query-05")
@pytest.mark.parametrize("plan", SHIPPED)
def test_what_other_sessions_left_is_told_once(plan: str) -> None:
    left = Notice("they called", inject_at="cross_session", to="both")
    paper = Paper(plan, waiting=(left,)).begin()

    assert paper.notices == ["they called"]
    assert paper.system == ["they called"]
    paper.round(call("0")).reply("done")
    assert paper.system == ["they called"]
    assert len(paper.asked[1].messages) == len(paper.asked[0].messages) + 2


def test_a_tree_may_begin_anew_in_its_middle() -> None:
    plan = tree(
        '(sequence (action :fn "oracle.add_user_question") (llm-call) '
        '(action :fn "oracle.reset_state") (action :fn "oracle.add_user_question") (llm-call))'
    )
    paper = Paper(plan).begin().reply("first")

    assert [message.text for message in paper.question.messages] == ["hi"]


@pytest.mark.requirement("S-002-BT-12")
def test_a_function_that_there_is_not_is_refused_with_its_place() -> None:
    with pytest.raises(TreeInvalid, match=r"own.bt:1:.*oracle.emit_query_strat.*did you mean"):
        tree('(action :fn "oracle.emit_query_strat")')


@pytest.mark.requirement("S-002-BT-04")
@pytest.mark.parametrize("name", SHIPPED)
def test_the_trees_that_ship_have_no_warnings(name: str) -> None:
    assert Paper(name).turn.job.plan.warnings == ()


def test_a_tree_that_declares_nothing_is_given_what_it_needs() -> None:
    paper = Paper(load('(tree "t" (llm-call))', "t.bt", REGISTRY)).begin()

    assert paper.reply("done").reason == "answered"


def test_a_tree_is_given_what_it_declares_and_keeps_what_is_its_own() -> None:
    keys = ':query 5 :user_id "" :model "" :max_tokens 1 :tools [] :context_id nil'
    run = Paper(tree("(llm-call)", keys=keys)).begin().turn.run

    assert run.frame.values == {
        "query": 5,
        "user_id": "somebody",
        "model": "fake-1",
        "max_tokens": 4096,
        "tools": ["echo", "other"],
        "context_id": None,
        "tool_calls": [],
        "done": False,
    }
