"""`exogate session` lists, shows and exports conversations."""

import json
from pathlib import Path

from tests.cli.conftest import Shell

KEY = "demo:websocket:local:sessions"


def test_a_conversation_can_be_found_shown_and_exported(shell: Shell) -> None:
    for number in range(3):
        assert shell("chat", "-m", f"hello {number}", "--peer", "sessions").code == 0

    listed = shell("--json", "session", "list", "--query", "sessions").json["sessions"]
    shown = shell("session", "show", KEY, "--limit", "2")
    exported = [json.loads(line) for line in shell("session", "export", KEY).out.splitlines()]

    assert [one["session_key"] for one in listed] == [KEY]
    assert listed[0]["message_count"] == 6
    assert len(shown.out.splitlines()) == 2
    assert exported[0]["session_key"] == KEY
    assert [one["content"] for one in exported[1:] if one["role"] == "user"] == [
        "hello 0",
        "hello 1",
        "hello 2",
    ]
    assert KEY in shell("session", "list").out


def test_a_session_that_is_not_there_is_said_to_be_missing(shell: Shell) -> None:
    assert shell("session", "export", "demo:websocket:local:nobody").code == 1
    assert "is not a session key" in shell("session", "show", "nonsense").err


def test_a_conversation_goes_on_from_an_earlier_message(shell: Shell) -> None:
    key = "demo:websocket:local:branches"
    for number in range(2):
        assert shell("chat", "-m", f"hello {number}", "--peer", "branches").code == 0
    lines = shell("session", "export", key).out.splitlines()[1:]
    first, last = (json.loads(lines[place])["id"] for place in (1, -1))

    branched = shell("--json", "session", "branch", key, first, "--label", "early").json
    back = shell("--json", "session", "checkout", key, last).json
    again = shell("--json", "session", "checkout", key, "early").json

    assert branched == {"head": first, "label": "early"}
    assert (back["head"], again["head"]) == (last, first)


def test_what_was_exported_is_imported_in_either_form(shell: Shell, tmp_path: Path) -> None:
    key, lines, oracle = "demo:websocket:local:exported", tmp_path / "a.jsonl", tmp_path / "b.json"
    assert shell("chat", "-m", "hello", "--peer", "exported").code == 0
    lines.write_text(shell("session", "export", key).out)
    oracle.write_text(shell("session", "export", key, "--format", "oracle").out)
    broken = tmp_path / "c.jsonl"
    broken.write_text('{"session_key": "x"}\n{"id":')

    first = shell("--json", "session", "import", "demo:websocket:local:one", str(lines)).json
    again = shell("--json", "session", "import", "demo:websocket:local:one", str(lines)).json
    other = shell("--json", "session", "import", "demo:websocket:local:two", str(oracle)).json
    wrong = shell("session", "import", "demo:websocket:local:one", str(broken))

    assert [one["imported"] for one in (first, again, other)] == [2, 0, 2]
    assert "c.jsonl:2" in wrong.err
    assert wrong.code == 1
