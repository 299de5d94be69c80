"""`exogate session` lists, shows and exports conversations."""

import json

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
