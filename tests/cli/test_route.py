"""`exogate route explain` says who answers, and why nobody else does."""

from tests.cli.conftest import Shell


def test_a_route_is_explained_with_its_losers(shell: Shell) -> None:
    bound = shell("--json", "route", "explain", "--channel", "telegram").json
    other = shell("route", "explain", "--channel", "slack", "--peer", "a:b")

    assert (bound["agent_id"], bound["matched_by"]) == ("second", "channel")
    assert "matched by      default" in other.out
    assert "session key     demo:slack:default:a%3Ab" in other.out
    assert "0      channel is 'slack'" in other.out


def test_a_route_without_a_channel_is_wrong_usage(shell: Shell) -> None:
    ran = shell("route", "explain")

    assert (ran.code, "Missing option '--channel'" in ran.err) == (2, True)


def test_a_route_has_the_account_that_chat_speaks_as(shell: Shell) -> None:
    said = shell("--json", "chat", "-m", "hi", "--peer", "route").json["session_key"]
    told = shell("--json", "route", "explain", "--channel", "websocket", "--peer", "route").json

    assert told["session_key"] == said == "demo:websocket:local:route"
