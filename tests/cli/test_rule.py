"""`exogate rule` lists rules and tries them."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.fakes.rules import core_definitions, rule

TEXT = rule("on = ['on_tool_call']\nwhen = 'payload.n > usage.total_tokens'", "mine")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_the_running_gateway_lists_its_rules(shell: Shell) -> None:
    told = shell("--json", "rule", "list").json
    core = core_definitions()

    assert [one["id"] for one in told["rules"]] == [one.id for one in core]
    assert told["rules"][0]["source"].endswith("core.toml:4")
    assert told["rules"][0] | {"source": ""} == {
        "id": "token-budget",
        "description": core[0].description,
        "on": ["budget.token.warning"],
        "core": True,
        "enabled": True,
        "priority": 100,
        "source": "",
        "errors": 0,
        "last_error": None,
        "quarantined": False,
    }
    assert told["refused"] == []
    rows = [line.split() for line in shell("rule", "list").out.splitlines()]
    assert ["large-result", "tool.call.success", "yes", "yes"] in [row[:4] for row in rows]


def test_where_no_gateway_runs_the_files_are_listed(alone: Shell) -> None:
    folder = alone.config.parent / "rules"
    folder.mkdir()
    (folder / "good.toml").write_text(rule("enabled = false", "good"))
    (folder / "bad.toml").write_text("[[rules]")
    alone.config.write_text(f"rules_dir = 'rules'\n{alone.config.read_text()}")

    ran = alone("rule", "list")

    assert ran.code == 0
    (row,) = [line.split() for line in ran.out.splitlines() if line.startswith("good ")]
    assert [*row[:4], row[-1].replace("~", str(alone.config.parent))] == [
        *("good", "*", "no", "no"),
        f"{folder}/good.toml:1",
    ]
    assert "refused: " in ran.out
    assert "bad.toml:1:8: error[CFG001]" in ran.out


def test_a_bad_rule_in_the_configuration_ends_with_78(alone: Shell) -> None:
    alone.config.write_text(alone.config.read_text() + rule("when = '('"))

    assert alone("rule", "list").code == 78
    assert alone("rule", "test", "r", "--event", "query.start").code == 78


def tried(shell: Shell, what: str, *words: str) -> dict[str, object]:
    ran = shell("--json", "rule", "test", what, *words)
    assert ran.code == 0, ran.err
    (one,) = ran.json["rules"]
    assert isinstance(one, dict)
    return one


def test_a_rule_of_a_file_shows_what_it_would_do(alone: Shell, file: Path) -> None:
    payload, scope = ("--payload", '{"n": 3}'), ("--scope", '{"usage": {"total_tokens": 2}}')
    one = tried(alone, str(file), "--event", "tool.call.started", *payload, *scope)
    said = alone("rule", "test", str(file), "--event", "on_tool_call", *payload, *scope)

    assert (one["hears"], one["when"], one["fires"]) == (True, True, True)
    assert isinstance(one["acts"], list)
    (act,) = one["acts"]
    assert (act["act"], act["notice"]["content"]) == ("notify", "fired")
    assert said.out.startswith('mine: fires; when gives True\n    {"act": "notify"')


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (("query.start",), "does not fire: query.start is not among its events"),
        (("house.x",), "does not fire: house.x is not among its events"),
        (("on_tool_call",), "does not fire: when gives False"),
        (
            (
                "on_tool_call",
                "--payload",
                '{"n": "x"}',
                "--scope",
                '{"usage": {"total_tokens": 2}}',
            ),
            "fails: ",
        ),
    ],
)
def test_a_rule_that_does_not_fire_says_why(
    alone: Shell, file: Path, words: tuple[str, ...], verdict: str
) -> None:
    one = tried(alone, str(file), "--event", *words)

    assert str(one["verdict"]).startswith(verdict)
    assert (one["fires"], one["acts"]) == (False, [])


def test_a_rule_of_the_configuration_is_tried_by_its_id(alone: Shell) -> None:
    payload = json.dumps({"tool": "search", "items": 7})

    one = tried(alone, "large-result", "--event", "TOOL_CALL_SUCCESS", "--payload", payload)

    assert one["fires"] is True


def test_a_file_with_mistakes_ends_with_78_and_says_them(alone: Shell, file: Path) -> None:
    file.write_text(rule("when = 'nope'", "mine"))

    ran = alone("rule", "test", str(file), "--event", "query.start")

    assert ran.code == 78
    assert 'mine.toml:5:9: error[CFG006] rules.0.when: "nope": unknown name "nope"' in ran.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("large-resutl", "--event", "query.start"), 1, 'did you mean "large-result"?'),
        (("large-result",), 2, "--event"),
        (("large-result", "--event", "x", "--payload", "{"), 2, "this is not JSON"),
        (("large-result", "--event", "x", "--payload", "[" * 100_000), 2, "this is not JSON"),
        (("large-result", "--event", "x", "--payload", "[]"), 2, "write a JSON object"),
        (("large-result", "--event", "x", "--scope", '{"usgae": {}}'), 2, 'did you mean "usage"?'),
        (("large-result", "--event", "x", "--scope", '{"payload": {}}'), 2, "there is no root"),
    ],
)
def test_what_cannot_be_tried_says_why(
    alone: Shell, words: tuple[str, ...], code: int, said: str
) -> None:
    ran = alone("rule", "test", *words)

    assert (ran.code, said in ran.err) == (code, True), ran.err
