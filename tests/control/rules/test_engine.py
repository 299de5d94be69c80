"""Rules at work: in order, each for itself, and none that fails harms another."""

import logging

import pytest

from gateway.control.notices import Notices
from gateway.control.rules import (
    QUARANTINE_AT,
    Act,
    RulesInvalid,
    RunRules,
    load_rules,
)
from gateway.domain.events import Action, Batching, Notice, RuleDef
from tests.fakes.rules import NOON, core_definitions, definitions, event, rule, rules_of


def said(acts: tuple[Act, ...]) -> list[str]:
    """What is told, logged or emitted."""
    found = []
    for act in acts:
        values = act.values
        match act.kind:
            case "notify":
                found.append(values["notice"].content)
            case "log":
                found.append(values["message"])
            case "emit_event":
                found.append(values["type"])
            case kind:
                found.append(kind)
    return found


def notify(text: str, rest: str = "", rule_id: str = "r") -> str:
    return rule(f"do = [{{ notify = '{text}' }}]\n{rest}", rule_id)


FAILING = "when = 'payload.x > 1'\npriority = 1"
BAD = {"x": "text"}


@pytest.mark.requirement("S-002-Rules-05")
def test_every_rule_that_matches_fires_higher_priorities_first_then_in_order() -> None:
    text = notify("a", "", "a") + notify("b", "priority = 5", "b") + notify("c", "", "c")
    rules = rules_of(text + notify("d", "priority = -1", "d") + notify("e", "when = 'False'", "e"))

    assert said(RunRules(rules).on(event(), {})) == ["b", "a", "c", "d"]


@pytest.mark.requirement("S-002-Rules-06")
def test_a_rule_that_fails_is_passed_over_and_an_event_says_so() -> None:
    rules = RunRules(rules_of(notify("bad", FAILING, "bad") + notify("good", "", "good")))

    error, good = rules.on(event(payload=BAD), {})

    assert said((good,)) == ["good"]
    assert (error.values["type"], error.values["severity"]) == ("rule.error", "error")
    payload = error.values["payload"]
    assert payload["rule"] == "bad"
    assert payload["quarantined"] is False
    assert "payload.x > 1" in payload["error"]


@pytest.mark.parametrize(
    "rest",
    [
        "do = [{ log = 'before' }, { notify = '{payload.x|.1f}' }]",
        "do = [{ set_state = { a = 1, b = 'payload.x * 2' } }]",
        "do = [{ set_state = { a = 1, b = 'payload' } }]",
        "do = [{ set_state = { a = 1, b = 'payload.long' } }]",
        "do = [{ set_state = { a = 1, b = 'payload.large * 10' } }]",
        "do = [{ set_state = { a = 1, b = 'payload.huge' } }]",
        "batch = { dedupe = 'payload.deep' }",
    ],
)
def test_a_rule_that_fails_half_way_does_nothing_at_all(rest: str) -> None:
    rules = RunRules(rules_of(rule(rest)))
    deep: object = []
    for _ in range(100_000):
        deep = [deep]
    payload = {"x": "t", "long": "x" * 5_000, "large": 1e308, "deep": deep, "huge": 10**400}

    acts = rules.on(event(payload=payload), {})

    assert said(acts) == ["rule.error"]
    assert rules.kept is None


def test_after_three_errors_in_whatever_runs_a_rule_is_quarantined(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rules = rules_of(notify("bad", FAILING))
    with caplog.at_level(logging.WARNING):
        errors = [RunRules(rules).on(event(payload=BAD), {}) for _ in range(QUARANTINE_AT)]

    assert [said(one) for one in errors] == [["rule.error"]] * QUARANTINE_AT
    assert not RunRules(rules).on(event(payload=BAD), {})
    assert not RunRules(rules).on(event(payload={"x": 2}), {})
    assert rules.faults["r"].is_quarantined
    assert [one.getMessage() for one in caplog.records] == ["rule_quarantined"]


def test_a_rule_that_hears_its_own_errors_ends_in_quarantine() -> None:
    rules = RunRules(rules_of(notify("bad", "when = 'payload > 1'")))

    last: tuple[Act, ...] = rules.on(event(payload={}), {})
    rounds = 0
    while last:
        (error,) = last
        last = rules.on(event(error.values["type"], error.values["payload"]), {})
        rounds += 1

    assert rounds == QUARANTINE_AT


def test_a_rule_of_once_a_run_fires_again_in_the_next_one() -> None:
    rules = rules_of(notify("n", "once_per = 'run'"))
    run = RunRules(rules)

    assert said(run.on(event(), {})) == ["n"]
    assert not run.on(event(), {})
    assert said(RunRules(rules).on(event(), {})) == ["n"]


def test_a_rule_of_once_a_session_fires_again_in_the_next_one() -> None:
    rules = rules_of(notify("n", "once_per = 'session'"))
    run = RunRules(rules)

    assert said(run.on(event(), {})) == ["n"]
    assert not run.on(event(), {})
    assert run.kept is not None
    assert not RunRules(rules, kept=run.kept).on(event(), {})
    assert said(RunRules(rules).on(event(), {})) == ["n"]


def test_once_is_counted_when_it_fires_and_not_when_it_could() -> None:
    run = RunRules(rules_of(notify("n", "once_per = 'run'\nwhen = 'payload.x'")))

    assert not run.on(event(), {})
    assert said(run.on(event(payload={"x": 1}), {})) == ["n"]


def test_what_a_rule_keeps_is_there_for_the_next_rule_and_the_next_run() -> None:
    counts = rule("do = [{ set_state = { n = '(plugin.n or 0) + 1' } }]\npriority = 1", "counts")
    rules = rules_of(counts + notify("{plugin.n}", "", "tells"))
    first = RunRules(rules, kept={"n": 4, "other": "stays"})

    assert first.on(event(), {})[0] == Act("set_state", {"key": "n", "value": 5})
    assert said(first.on(event(), {})) == ["set_state", "6"]
    assert first.kept == {"n": 6, "other": "stays"}
    assert said(RunRules(rules, kept=first.kept).on(event(), {})) == ["set_state", "7"]


def test_what_the_turn_says_of_kept_values_does_not_count() -> None:
    run = RunRules(rules_of(notify("{plugin.n}{payload.n}{event.type}")), kept={"n": 1})
    scope = {"plugin": {"n": 2}, "payload": {"n": 2}, "event": {"type": "x"}}

    assert said(run.on(event(), scope)) == ["1query.start"]


@pytest.mark.parametrize(
    ("only", "heard"), [((), ["core", "a", "b"]), (("b", "gone"), ["core", "b"])]
)
def test_an_agent_has_core_rules_and_those_that_it_names_or_else_all(
    only: tuple[str, ...], heard: list[str]
) -> None:
    text = notify("core", "core = true", "c") + notify("a", "", "a") + notify("b", "", "b")
    rules = rules_of(text + notify("off", "enabled = false", "off"))

    assert said(RunRules(rules, only=only).on(event(), {})) == heard


def test_a_rule_that_is_disabled_does_not_fire_where_it_is_named() -> None:
    rules = rules_of(notify("off", "enabled = false"))

    assert not RunRules(rules, only=("r",)).on(event(), {})


def test_an_event_that_is_not_severe_enough_is_not_heard() -> None:
    run = RunRules(rules_of(notify("n", "min_severity = 'error'")))

    assert not run.on(event(severity="warning"), {})
    assert run.on(event(severity="error"), {})
    assert run.on(event(severity="critical"), {})


def test_how_notices_are_gathered_and_which_are_the_same_is_said_with_them() -> None:
    batch = "batch = { window_ms = 500, max = 7, dedupe = 'type:payload.x', dedupe_ms = 2000 }"
    run = RunRules(rules_of(notify("n", batch)))
    queue = Notices()

    def pushed(name: str, x: int, after_ms: int) -> bool:
        one = event(name, {"x": x}, after_ms=after_ms)
        (act,) = run.on(one, {})
        notice = act.values["notice"]
        assert notice.batching == Batching(0.5, 7, 2.0)
        return queue.push(notice, one.at)

    assert pushed("query.start", 1, 0)
    assert not pushed("query.start", 1, 1_999)
    assert pushed("query.start", 2, 1_999)
    assert pushed("session.resumed", 1, 1_999)
    assert pushed("query.start", 1, 2_000)


def test_without_dedupe_no_notice_is_the_same() -> None:
    (act,) = RunRules(rules_of(notify("n"))).on(event(), {})

    notice = act.values["notice"]
    assert (notice.dedupe_key, notice.batching) == (None, Batching())


def test_rules_that_are_read_again_keep_their_errors_unless_they_have_changed() -> None:
    text = notify("bad", FAILING, "same") + notify("bad", FAILING, "other")
    before = rules_of(text)
    for _ in range(QUARANTINE_AT):
        RunRules(before).on(event(payload=BAD), {})
    after = rules_of("\n\n" + text.replace('id = "other"', 'id = "other"\ndescription = "new"'))

    after.keep_faults(before)

    assert after.faults["same"].is_quarantined
    assert after.faults["other"].count == 0


def test_definitions_that_are_wrong_are_refused_with_every_problem() -> None:
    action = Action("notify", "{")
    wrong = [RuleDef(one, ("nope",), (action,), source=f"f:{one}") for one in ("1", "2")]

    with pytest.raises(RulesInvalid) as caught:
        load_rules(wrong)

    lines = str(caught.value).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["f:1", "rule 1"],
        ["f:1", "rule 1"],
        ["f:2", "rule 2"],
        ["f:2", "rule 2"],
    ]


def core(name: str, payload: dict[str, object]) -> list[Notice]:
    acts = RunRules(load_rules(core_definitions())).on(event(name, payload), {})
    return [act.values["notice"] for act in acts]


@pytest.mark.requirement("S-002-Rules-10")
@pytest.mark.parametrize(
    "name",
    [
        "budget.token.warning",
        "budget.iteration.warning",
        "context.approaching_limit",
        "agent.loop.detected",
        "agent.no_progress",
    ],
)
def test_the_model_is_told_each_warning_and_nobody_else(name: str) -> None:
    (notice,) = core(name, {"message": "Approaching it."})

    assert notice.content == "Approaching it."
    assert (notice.to, notice.inject_at) == ("model", "turn_start")


@pytest.mark.requirement("S-002-Rules-10")
def test_the_model_is_told_of_a_large_result_once_a_run() -> None:
    run = RunRules(load_rules(core_definitions()))
    told = [
        run.on(event("on_tool_complete", {"tool": "s", "items": items}), {})
        for items in (None, 6, 7, 8)
    ]

    assert [len(acts) for acts in told] == [0, 0, 1, 0]
    (act,) = told[2]
    notice = act.values["notice"]
    assert notice.content.startswith("s gave 7 results.")
    assert (notice.to, notice.inject_at) == ("model", "after_tool")


@pytest.mark.requirement("S-002-Rules-10")
def test_the_model_is_told_of_the_third_failure_of_one_tool_once() -> None:
    run, queue = RunRules(load_rules(core_definitions())), Notices()
    failures = [("a", 1), ("a", 2), ("b", 1), ("a", 3), ("a", 4), ("b", 2), ("b", 3)]

    def is_told(tool: str, count: int) -> bool:
        acts = run.on(event("on_tool_failure", {"tool": tool, "failures": count}), {})
        return any(queue.push(act.values["notice"], NOON) for act in acts)

    told = [is_told(tool, count) for tool, count in failures]

    assert told == [False, False, False, True, False, False, True]


@pytest.mark.requirement("S-002-ANS-08")
def test_the_rules_that_ship_fire_whatever_an_agent_names() -> None:
    rules = load_rules((*core_definitions(), *definitions(notify("own"))))
    run = RunRules(rules, only=("r",))

    assert all(one.is_core for one in core_definitions())
    assert said(run.on(event("budget.token.warning", {"message": "m"}), {})) == ["m", "own"]
