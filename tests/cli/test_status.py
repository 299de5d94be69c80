"""`exogate status`, `agent list` and `route explain` ask the running gateway."""

from tests.cli.conftest import Shell


def test_a_gateway_that_is_ready_says_so(shell: Shell) -> None:
    ran = shell("status")

    assert ran.code == 0
    assert "ready" in ran.out
    assert "demo, second" in ran.out
    assert shell("--json", "status").json["ready"] is True


def test_agents_are_listed_with_their_souls(shell: Shell) -> None:
    agents = shell("--json", "agent", "list").json

    assert [one["id"] for one in agents] == ["demo", "second"]
    assert agents[0]["soul"]["token_count"] > 0
    assert "second" in shell("agent", "list").out


def test_a_route_is_explained_with_its_losers(shell: Shell) -> None:
    bound = shell("--json", "route", "explain", "--channel", "telegram").json
    other = shell("route", "explain", "--channel", "slack", "--peer", "a:b")

    assert (bound["agent_id"], bound["matched_by"]) == ("second", "channel")
    assert "demo   matched by default" in other.out
    assert "session demo:slack:default:a%3Ab" in other.out
    assert "not binding 0: channel is 'slack'" in other.out
