"""What rules want of a turn is done, and events are told in the order in which they happened."""

import logging

import pytest

from gateway.agent.effects import Finish
from gateway.agent.output import TAKEN_AWAY
from gateway.control.notices import MAX_NOTICES as MOST_WAITING
from gateway.domain.agents import Limits
from gateway.domain.messages import Message
from tests.agent.paper import SHIPPED, Paper, call, tree


def rule(on: str, do: str, rest: str = "", *, id_: str = "r") -> str:
    return f'[[rules]]\nid = "{id_}"\non = ["{on}"]\ndo = [{{ {do} }}]\n{rest}\n'


# -- what a rule wants


@pytest.mark.requirement("S-002-Rules-04")
@pytest.mark.parametrize("plan", SHIPPED)
def test_a_rule_chooses_another_model_from_then_on(plan: str) -> None:
    paper = Paper(plan, rules=rule("on_tool_complete", 'set_model = "big"')).begin()

    paper.round(call("0")).round(call("1"))

    assert [wish.model for wish in paper.asked] == [None, "big", "big"]


@pytest.mark.requirement("S-002-Rules-04")
@pytest.mark.parametrize("plan", SHIPPED)
def test_a_tool_that_a_rule_takes_away_is_neither_told_of_nor_executed(plan: str) -> None:
    paper = Paper(plan, rules=rule("on_tool_complete", 'remove_tool = "echo"')).begin()

    paper.round(call("0")).reply("", call("1"), call("2", name="other"))

    assert [[tool.name for tool in wish.tools] for wish in paper.asked] == [
        ["echo", "other"],
        ["other"],
    ]
    assert paper.called == ["0", "2"]
    paper.give("2")
    assert ("1", TAKEN_AWAY, True) in paper.results


@pytest.mark.requirement("S-002-Rules-04")
def test_a_tool_that_was_taken_away_is_given_back() -> None:
    rules = rule("on_query_start", 'remove_tool = "echo"') + rule(
        "on_tool_complete", 'add_tool = "echo"', id_="s"
    )
    paper = Paper(rules=rules).begin().round(call("0", name="other"))

    assert [[tool.name for tool in wish.tools] for wish in paper.asked] == [
        ["other"],
        ["echo", "other"],
    ]


def test_no_rule_gives_an_agent_a_tool_that_it_does_not_have() -> None:
    paper = Paper(rules=rule("on_query_start", 'add_tool = "rm"')).begin()

    assert [tool.name for tool in paper.question.tools] == ["echo", "other"]


@pytest.mark.requirement("S-002-Rules-04")
@pytest.mark.parametrize("plan", SHIPPED)
@pytest.mark.parametrize(
    ("on", "asked", "called"),
    [
        ("on_query_start", 0, 0),
        ("on_turn_start", 0, 0),
        ("on_tool_call", 1, 1),
        ("on_tool_complete", 1, 1),
        ("on_turn_end", 1, 1),
    ],
)
def test_a_rule_interrupts_a_run_and_says_why(plan: str, on: str, asked: int, called: int) -> None:
    paper = Paper(plan, rules=rule(on, 'interrupt = "enough of {user.id}"')).begin()

    if paper.turn.end is None:
        paper.reply("look", call("0"))
        if paper.turn.end is None:
            paper.give_all()

    assert paper.reason == "cancelled"
    assert paper.system == ["enough of somebody"]
    assert (len(paper.asked), len(paper.called)) == (asked, called)
    assert paper.open == {}


def test_a_rule_cannot_interrupt_what_is_over() -> None:
    paper = Paper(rules=rule("on_session_end", 'interrupt = "too late"')).begin()

    paper.reply("done")

    assert paper.turn.end == Finish("answered", "done")
    assert paper.system == []
    assert paper.turn.state.view()["reason"] is None


@pytest.mark.requirement("S-002-Rules-04")
def test_what_a_rule_emits_comes_after_its_cause_and_other_rules_hear_it() -> None:
    rules = rule("query.start", 'emit = "house.one", payload = { n = "{turn.number}" }') + rule(
        "house.*", 'set_model = "big"', id_="s"
    )

    paper = Paper(rules=rules).begin()

    assert [event.type for event in paper.events][:2] == ["query.start", "house.one"]
    assert paper.events[1].payload == {"n": "1"}
    assert paper.question.model == "big"


def test_rules_that_cause_each_other_come_to_an_end() -> None:
    rules = rule("house.*", 'emit = "house.one"') + rule(
        "query.start", 'emit = "house.one"', id_="s"
    )

    paper = Paper(rules=rules).begin().reply("done")

    assert paper.reason == "answered"
    assert len(paper.told_of("house.one")) < 10


@pytest.mark.requirement("S-002-Rules-04")
@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_a_rule_writes_into_the_log(level: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    Paper(rules=rule("query.start", f'log = "it is {{user.id}}", level = "{level}"')).begin()

    [record] = [one for one in caplog.records if one.getMessage() == "rule_logged"]
    assert vars(record)["said"] == "it is somebody"
    assert record.levelname == level.upper()


@pytest.mark.requirement("S-002-Rules-06")
def test_a_rule_that_fails_breaks_nothing_and_is_told() -> None:
    failing = rule("query.start", 'set_model = "x"', 'when = "1 / 0 > 1"')

    paper = Paper(rules=failing).begin().reply("done")

    assert paper.reason == "answered"
    assert len(paper.told_of("rule.error")) == 1
    assert paper.asked[0].model is None


FAILING = "on_tool_failure"
ONCE = 'batch = { dedupe = "type:payload.tool", dedupe_ms = 60000 }'


@pytest.mark.requirement("S-002-ANS-07")
@pytest.mark.parametrize("plan", SHIPPED)
def test_what_is_the_same_again_is_told_once_whomever_it_is_for(plan: str) -> None:
    says = 'notify = "one", to = "client" }, { notify = "two", to = "client" }, { notify = "three"'
    paper = Paper(plan, rules=rule(FAILING, says, ONCE)).begin()

    paper.round(call("0"), call("1"), is_error=True).round(call("2"), is_error=True)

    assert paper.system == ["one", "two", "three"]


@pytest.mark.requirement("S-002-ANS-07")
def test_what_is_the_same_again_is_left_for_other_sessions_once() -> None:
    posts = rule(FAILING, 'notify = "{payload.tool} fails", inject_at = "cross_session"', ONCE)
    paper = Paper(rules=posts).begin()

    paper.round(call("0"), call("1"), call("2", name="other"), is_error=True)

    assert [one.content for one in paper.turn.output.posts] == ["echo fails", "other fails"]


def test_no_more_is_left_for_other_sessions_than_one_of_them_takes() -> None:
    posts = rule("own.*", 'notify = "again", inject_at = "cross_session"')

    paper = Paper(tree('(repeat :max 400 (emit "own.event"))'), rules=posts).begin()

    assert len(paper.turn.output.posts) == MOST_WAITING


@pytest.mark.requirement("S-002-ANS-05")
@pytest.mark.parametrize("plan", SHIPPED)
@pytest.mark.parametrize(
    "wait", ['after_tool = "other"', "after_turns = 2", 'not_before = "state.turn >= 2"']
)
def test_what_is_for_the_user_alone_waits_too_if_it_is_to(plan: str, wait: str) -> None:
    rules = rule("on_query_start", f'notify = "now", to = "client", {wait}')
    paper = Paper(plan, rules=rules).begin()

    paper.round(call("0"))
    before = list(paper.system)
    paper.round(call("1", name="other"))

    assert (before, paper.system) == ([], ["now"])
    assert paper.notices == []


# -- what rules see


@pytest.mark.requirement("S-002-Rules-02", "S-002-Rules-09")
@pytest.mark.parametrize(
    ("on", "when"),
    [
        ("on_query_start", "payload.query == 'hi' and payload.user == user.id"),
        ("on_query_start", "history.messages == 2 and project.id == 'default'"),
        (
            "on_query_start",
            "user.channel == 'c' and user.peer == 'main' and usage.cost_usd is None",
        ),
        ("on_query_start", "config.agent == 'a' and config.tree in ['default', 'oracle-agent']"),
        ("on_query_start", "limits.max_iterations == 15 and config.model == 'fake-1'"),
        ("on_turn_start", "turn.number == 2 and state.turn == 1 and payload.turn == 1"),
        ("on_tool_call", "payload.tool == 'echo' and turn.tool_calls == ['echo', 'other']"),
        ("on_tool_complete", "turn.tools_done == ['echo'] and payload.size > 3"),
        ("on_tool_failure", "payload.failures == 1 and payload.error == 'result 1'"),
        ("on_turn_end", "state.consecutive_errors == 0 and len(state.recent_actions) == 2"),
        ("on_turn_end", "usage.total_tokens == 10 and state.tokens_used == 10"),
        ("on_turn_end", "context.tokens > 27 and context.percent < 1"),
        ("on_session_end", "payload.reason == 'answered' and state.turn == 1"),
        ("agent.turn.*", "event.source == 'agent' and event.severity == 'debug'"),
        ("QUERY_START", "event.type == 'query.start' and event.run_id == 'r_1'"),
    ],
)
@pytest.mark.parametrize("plan", SHIPPED)
def test_rules_see_what_is_true_when_it_happens(plan: str, on: str, when: str) -> None:
    seen = rule(on, 'emit = "house.seen"', f'when = "{when}"\nonce_per = "run"')
    history = [Message("user", "before"), Message("assistant", "indeed")]
    paper = Paper(plan, history=history, rules=seen).begin()

    paper.reply("", call("0"), call("1", name="other"))
    paper.give("0").give("1", is_error=True).reply("done")

    assert len(paper.told_of("house.seen")) == 1
    assert paper.told_of("rule.error") == []


@pytest.mark.requirement("S-002-Rules-10")
@pytest.mark.parametrize("plan", SHIPPED)
def test_the_model_is_told_of_large_results_once_and_of_repeated_failures(plan: str) -> None:
    paper = Paper(plan, Limits(error_limit=20)).begin().reply("", call("0"))

    paper.give("0", items=7)
    large = paper.notices
    paper.reply("", call("1")).give("1", items=9)
    for number in range(2, 5):
        paper.round(call(str(number)), is_error=True)

    said = "echo gave 7 results. Use the most relevant ones, or ask more narrowly."
    failed = "echo has failed 3 times. Try another way, or tell the user what is missing."
    assert large == [said]
    assert paper.notices == [said, failed]
    assert paper.system == []


# -- events


@pytest.mark.parametrize("plan", SHIPPED)
def test_every_event_says_whose_it_is_and_when(plan: str) -> None:
    paper = Paper(plan).begin()
    paper.at = 3.0
    paper.round(call("0"), call("1")).break_off()

    assert {event.run_id for event in paper.events} == {"r_1"}
    assert {str(event.session_key) for event in paper.events} == {"a:c:p:main"}
    assert [event.at for event in paper.events] == sorted(event.at for event in paper.events)
    assert paper.events[-1].at == paper.moment.wall


def test_a_turn_that_let_go_refers_to_nobody() -> None:
    paper = Paper(rules=rule("house.*", 'emit = "house.seen"')).begin().reply("done")

    paper.turn.output.event("house.late", {})

    assert paper.told_of("house.late") == []
