"""What is wrong with a rule is found when it is read, with its place; what is right makes acts."""

from datetime import timedelta

import pytest

from gateway.control.rules import ROOTS, Act, RunRules
from gateway.domain.events import KINDS, Notice
from tests.fakes.rules import NOON, event, problems, rule, rules_of


def acts(rest: str, payload: dict[str, object] | None = None) -> tuple[Act, ...]:
    return RunRules(rules_of(rule(rest))).on(event(payload=payload), {"usage": {"total_tokens": 9}})


@pytest.mark.requirement("S-002-Rules-04")
def test_every_action_comes_out_as_an_act() -> None:
    found = acts(
        "do = [{ notify = 'n {payload.x}' }, { log = 'l {payload.x}', level = 'warning' },"
        " { set_state = { a = true, b = 'usage.total_tokens + 1', c = '\"c\"' } },"
        " { emit = 'house.x', severity = 'error', payload = { x = '{payload.x}', n = 1 } },"
        " { interrupt = 'i {payload.x}' }, { set_model = 'm' }, { add_tool = 'p__t' },"
        " { remove_tool = 'p__u' }]",
        {"x": "y"},
    )

    assert found == (
        Act("notify", {"notice": Notice("n y", source="rule:r", data={"x": "y"})}),
        Act("log", {"level": "warning", "message": "l y"}),
        Act("set_state", {"key": "a", "value": True}),
        Act("set_state", {"key": "b", "value": 10}),
        Act("set_state", {"key": "c", "value": "c"}),
        Act(
            "emit_event",
            {"type": "house.x", "payload": {"x": "y", "n": 1}, "severity": "error"},
        ),
        Act("interrupt", {"why": "i y"}),
        Act("set_model", {"model": "m"}),
        Act("add_tool", {"name": "p__t"}),
        Act("remove_tool", {"name": "p__u"}),
    )


@pytest.mark.parametrize(
    ("options", "notice"),
    [
        ("", Notice("n", source="rule:r")),
        (
            "to = 'client', priority = 'high', inject_at = 'after_tool'",
            Notice("n", source="rule:r", to="client", priority="high", inject_at="after_tool"),
        ),
        (
            "after_tool = 'p__t'",
            Notice("n", source="rule:r", inject_at="deferred", after_tool="p__t"),
        ),
        (
            "inject_at = 'deferred', after_turns = 2",
            Notice("n", source="rule:r", inject_at="deferred", after_turns=2),
        ),
        (
            "not_before = 'state.turn > 3'",
            Notice("n", source="rule:r", inject_at="deferred", when="state.turn > 3"),
        ),
        (
            "expires_s = 1.5",
            Notice("n", source="rule:r", expires_at=NOON + timedelta(seconds=1.5)),
        ),
    ],
)
def test_a_notice_says_where_and_whom_it_tells(options: str, notice: Notice) -> None:
    comma = ", " if options else ""

    assert acts(f"do = [{{ notify = 'n'{comma}{options} }}]") == (
        Act("notify", {"notice": notice}),
    )


@pytest.mark.requirement("S-002-Rules-02")
def test_a_rule_sees_the_event_and_everything_about_the_run() -> None:
    when = " and ".join(f"{root}.seen" for root in ROOTS if root not in {"event", "plugin"})
    rules = RunRules(
        rules_of(rule(f"when = '{when} and plugin.seen and event.type == \"query.start\"'")),
        kept={"seen": True},
    )
    scope = {root: {"seen": True} for root in ROOTS}

    assert rules.on(event(payload={"seen": True}), scope)
    assert not rules.on(event(payload={"seen": True}), {**scope, "project": {}})
    assert not rules.on(event(payload={}), scope)


@pytest.mark.requirement("S-002-Rules-09")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type)
def test_an_event_is_heard_by_each_of_its_names(kind: object) -> None:
    (found,) = [one for one in KINDS if one is kind]
    names = [name for name in (found.type, found.constant, found.hook) if name]

    for name in names:
        rules = RunRules(rules_of(rule(f"on = ['{name}']")))
        heard = [one.type for one in KINDS if rules.on(event(one.type), {})]
        assert heard == [found.type]


def test_the_hooks_of_the_seeds_are_all_there() -> None:
    assert {kind.hook for kind in KINDS if kind.hook} == {
        *("on_query_start", "on_turn_start", "on_turn_end", "on_tool_call"),
        *("on_tool_complete", "on_tool_failure", "on_session_end"),
    }


@pytest.mark.parametrize(
    ("name", "heard"),
    [
        ("tool.call.*", ["tool.call.started", "tool.call.success", "tool.call.failure"]),
        ("*_EXCEEDED", ["budget.iteration.exceeded", "budget.token.exceeded"]),
        ("on_turn_*", ["agent.turn.started", "agent.turn.ended"]),
        ("house.*", []),
    ],
)
def test_a_star_stands_for_any_part_of_any_name(name: str, heard: list[str]) -> None:
    rules = RunRules(rules_of(rule(f"on = ['{name}']")))

    assert [kind.type for kind in KINDS if rules.on(event(kind.type), {})] == heard


def test_a_star_hears_what_other_rules_emit() -> None:
    rules = RunRules(rules_of(rule("on = ['house.*']")))

    assert rules.on(event("house.quiet"), {})
    assert not rules.on(event("mouse.quiet"), {})


@pytest.mark.parametrize(
    ("rest", "key", "place", "said"),
    [
        (
            "on = ['*', 'tool.call.sucess']",
            "on.1",
            (4, 12),
            'unknown event "tool.call.sucess"; did you mean "tool.call.success"?',
        ),
        ("on = ['QUERY_STRAT']", "on.0", (4, 7), 'did you mean "QUERY_START"?'),
        ("on = ['a b']", "on.0", (4, 7), "is not an event type"),
        ("when = 'a.b'", "when", (5, 9), 'unknown name "a"'),
        ("when = '''\n  payload.x\n  > foo(1)'''", "when", (7, 5), 'unknown function "foo"'),
        ("when = 'payload.x +'", "when", (5, 9), "cannot be read"),
        ("when = \"'\\u00e9' == usgae.x\"", "when", (5, 8), 'did you mean "usage"?'),
        ("when = '\"é\" == usgae.x'", "when", (5, 16), 'did you mean "usage"?'),
        ("batch.dedupe = 'type:payload'", "", (0, 0), ""),
        ("batch.dedupe = 'type:foo.x'", "batch.dedupe", (5, 22), 'unknown name "foo"'),
        ("do = [{ notify = 'a {b}' }]", "do.0.notify", (4, 22), 'unknown name "b"'),
        ("do = [{ notify = '' }]", "do.0.notify", (4, 18), "text is empty"),
        ("do = [{ log = '{' }]", "do.0.log", (4, 16), "single brace"),
        ("do = [{ interrupt = '}' }]", "do.0.interrupt", (4, 22), "single brace"),
        ("do = [{ set_state = { a = '1 +' } }]", "do.0.set_state.a", (4, 28), "cannot be read"),
        ("do = [{ set_state = { A = 1 } }]", "do.0.set_state.A", (4, 23), ""),
        ("do = [{ emit = 'query.start' }]", "do.0.emit", (4, 16), "is an event of the gateway"),
        ("do = [{ emit = 'QUERY_START' }]", "do.0.emit", (4, 16), "is an event of the gateway"),
        ("do = [{ emit = 'quiet' }]", "do.0.emit", (4, 16), "is not a valid event type"),
        (
            "do = [{ emit = 'a.b', payload = { x = '{y}' } }]",
            "do.0.payload.x",
            (4, 41),
            'unknown name "y"',
        ),
        (
            "do = [{ notify = 'n', not_before = 'state.x >' }]",
            "do.0.not_before",
            (4, 37),
            "cannot be read",
        ),
        (
            "do = [{ notify = 'n', inject_at = 'deferred' }]",
            "do.0.inject_at",
            (4, 35),
            "has no condition",
        ),
        (
            "do = [{ notify = 'n', inject_at = 'turn_start', after_turns = 1 }]",
            "do.0.inject_at",
            (4, 35),
            '"turn_start" ignores after_turns',
        ),
        ("core = true\nenabled = false", "enabled", (6, 11), "cannot be disabled"),
    ],
)
def test_a_mistake_is_said_with_its_place(
    rest: str, key: str, place: tuple[int, int], said: str
) -> None:
    found = problems(rule(rest))

    assert [one.key for one in found] == ([f"rules.0.{key}"] if key else [])
    for one in found:
        assert (one.line, one.column) == place
        assert said in one.message + one.fix
        assert one.source == "r.toml"


def test_every_mistake_of_a_file_is_said_at_once() -> None:
    text = rule("on = ['nope']\nwhen = '('\ndo = [{ notify = '{' }]") + rule("when = ')'", "s")

    assert [one.key for one in problems(text)] == [
        "rules.0.on.0",
        "rules.0.when",
        "rules.0.do.0.notify",
        "rules.1.when",
    ]
