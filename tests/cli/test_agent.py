"""`exogate agent list` shows the agents of the running gateway."""

from tests.cli.conftest import Shell


def test_agents_are_listed_with_their_souls(shell: Shell) -> None:
    agents = shell("--json", "agent", "list").json

    assert [one["id"] for one in agents] == ["demo", "second"]
    assert agents[0]["soul"]["token_count"] > 0
    shown = shell("agent", "list").out
    assert "second" in shown
    assert "clerk" in shown
    assert "time/time" in shown
