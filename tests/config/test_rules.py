"""Rules come from the file and from a folder; nobody takes the place of a core rule."""

import pytest

from gateway.config.load import effective
from tests.config.arena import Arena
from tests.fakes.rules import core_definitions, rule

CORE_IDS = [one.id for one in core_definitions()]


@pytest.mark.requirement("S-002-Rules-01", "S-002-ANS-03")
def test_rules_of_the_file_and_of_every_file_in_the_folder_are_read(arena: Arena) -> None:
    arena.write(rule("", "b") + rule("", "c"), "rules/2.toml")
    arena.write(rule("", "d"), "rules/1.toml")
    arena.write("this is no rule", "rules/notes.txt")

    config = arena.load("rules_dir = 'rules'\n" + rule("", "a"))

    assert [one.id for one in config.rules] == [*CORE_IDS, "a"]
    assert config.rules[-1].source == "config.toml:2"
    assert config.rule_folder is not None
    found = [(one.id, one.source) for one in config.rule_folder.rules]
    assert found == [("d", "rules/1.toml:1"), ("b", "rules/2.toml:1"), ("c", "rules/2.toml:6")]


@pytest.mark.requirement("S-002-ANS-03")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (rule("when = 'nope'", "x") + rule("", "y"), "rules/bad.toml:5:9: error[CFG006]"),
        ("[[rules]", "rules/bad.toml:1:8: error[CFG001]"),
        (rule("", "a"), 'another rule has id "a" (config.toml:2)'),
        (rule("", "good"), 'another rule has id "good" (rules/a.toml:1)'),
        (rule("", "x") + rule("", "x"), 'another rule has id "x" (rules/bad.toml:1)'),
        (rule("", "no-progress"), '"no-progress" is a core rule, which cannot be disabled or'),
        ("[gateway]\nport = 1\n", "a rules file may contain only [[rules]]"),
        ("rules = 3", "rules/bad.toml:1:9: error[CFG005]"),
    ],
)
def test_a_file_that_is_not_valid_is_left_out_whole(arena: Arena, text: str, said: str) -> None:
    arena.write(rule("", "good"), "rules/a.toml")
    arena.write(text, "rules/bad.toml")

    folder = arena.load("rules_dir = 'rules'\n" + rule("", "a")).rule_folder

    assert folder is not None
    assert [one.id for one in folder.rules] == ["good"]
    (refused,) = folder.refused
    assert refused.file == "rules/bad.toml"
    assert said in refused.why


def test_a_folder_that_is_not_there_is_an_error(arena: Arena) -> None:
    (problem,) = arena.problems("rules_dir = 'none'")

    assert (problem.code, problem.key) == ("CFG012", "rules_dir")


@pytest.mark.requirement("S-002-ANS-08", "S-002-Rules-08")
@pytest.mark.parametrize("rest", ["", "enabled = false"])
def test_a_core_rule_is_neither_replaced_nor_disabled(arena: Arena, rest: str) -> None:
    (problem,) = arena.problems(rule(rest, "token-budget"))

    assert (problem.code, problem.key, problem.line) == ("CFG008", "rules.0.id", 2)
    assert "cannot be disabled" in problem.message


def test_an_agent_names_rules_that_there_are(arena: Arena) -> None:
    arena.write(rule("", "more"), "rules/1.toml")
    text = "rules_dir = 'rules'\n[agent]\nrules = ['a', 'more', 'core-rule']\n" + rule("", "a")

    (problem,) = arena.problems(text)

    assert (problem.code, problem.key) == ("CFG009", "agent.rules.2")
    config = arena.load(text.replace(", 'core-rule'", ""))
    assert config.agents[0].rules == ("a", "more")


def test_an_agent_may_name_what_a_file_that_is_refused_may_hold(arena: Arena) -> None:
    arena.write("broken", "rules/1.toml")

    config = arena.load("rules_dir = 'rules'\n[agent]\nrules = ['there']")

    assert config.agents[0].rules == ("there",)


@pytest.mark.parametrize(
    ("rest", "keys"),
    [
        ("do = [{}]", ["do.0"]),
        ("do = [{ log = 'x', notify = 'y' }]", ["do.0"]),
        ("do = [{ log = 'x', to = 'model' }]", ["do.0.to"]),
        ("do = [{ add_tool = 'x', level = 'info' }]", ["do.0.level"]),
        ("do = [{ notfy = 'x' }]", ["do.0.notfy"]),
        ("do = []", ["do"]),
        ("on = []", ["on"]),
        ("on = 'query.start'", ["on"]),
        ("do = [{ set_state = { a = [1] } }]", ["do.0.set_state.a"]),
        ("do = [{ set_state = { a = nan } }]", ["do.0.set_state.a"]),
        ("once_per = 'day'", ["once_per"]),
        ("wehn = 'True'", ["wehn"]),
        ("batch = { max = 0 }", ["batch.max"]),
        ("min_severity = 'loud'", ["min_severity"]),
    ],
)
def test_what_has_the_wrong_shape_is_said_once(arena: Arena, rest: str, keys: list[str]) -> None:
    problems = arena.problems(rule(rest))

    assert [problem.key for problem in problems] == [f"rules.0.{key}" for key in keys]


def test_what_is_missing_hides_no_other_mistake(arena: Arena) -> None:
    problems = arena.problems("[[rules]]\n" + rule("when = 'nope'"))

    assert [one.key for one in problems] == [
        "rules.0.id",
        "rules.0.on",
        "rules.0.do",
        "rules.1.when",
    ]


def test_a_rule_in_brackets_has_no_line_of_its_own(arena: Arena) -> None:
    text = "rules = [{ id = 'a', on = ['*'], do = [{ log = 'x' }] }]"

    assert arena.load(text).rules[-1].source == "config.toml"


def test_rules_are_shown_as_they_are_in_force(arena: Arena) -> None:
    arena.write("rules_dir = '.'\n" + rule("", "a"))

    found = {row.key: (row.value, row.origin) for row in effective(arena.read())}

    assert found["rules_dir"] == (str(arena.cwd), "config.toml:1")
    assert found["rules.0.id"] == ("a", "config.toml:3")
    assert found["rules.0.do.0.notify"] == ("fired", "config.toml:5")
    assert found["rules.0.priority"] == (0, "default")
