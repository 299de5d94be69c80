"""Messages from several channels reach the agents that the bindings name."""

from pathlib import Path

import pytest

from tests.fakes.client import connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import ModelServer, scripted_server
from tests.scenarios.scripts import echo

pytestmark = pytest.mark.shared_store

BOUND = """
[[agents]]
id = "team"
provider = "fake"
model = "m-team"

[[agents]]
id = "boss"
provider = "fake"
model = "m-boss"

[[bindings]]
agent_id = "team"
channel = "slack"

[[bindings]]
agent_id = "boss"
channel = "slack"
account_id = "acme"
peer_id = "U1"

[[bindings]]
agent_id = "boss"
guild_id = "g7"

[[bindings]]
agent_id = "team"
team_id = "t9"

[[bindings]]
agent_id = "boss"
channel = "telegram"
account_id = "bot:2"
"""

CASES = [
    ({"channel": "slack", "account": "acme", "peer": "U1"}, "boss", "peer"),
    ({"channel": "slack", "account": "acme", "peer": "U2"}, "team", "channel"),
    ({"channel": "slack", "account": "other", "peer": "U1"}, "team", "channel"),
    ({"channel": "discord", "account": "a", "peer": "p", "guild": "g7"}, "boss", "guild"),
    ({"channel": "discord", "account": "a", "peer": "p", "guild": "g8"}, "main", "default"),
    ({"channel": "slack", "account": "acme", "peer": "U2", "team": "t9"}, "team", "team"),
    ({"channel": "telegram", "account": "bot:2", "peer": "5"}, "boss", "account"),
    ({"channel": "telegram", "account": "bot", "peer": "2:5"}, "main", "default"),
]


def setup(model: ModelServer) -> Setup:
    return Setup(model.url, rest=BOUND)


@pytest.mark.requirement("S-003-Binding-01")
@pytest.mark.requirement("S-003-Session-01", "S-003-Session-03")
async def test_each_message_is_answered_by_the_agent_that_its_address_is_bound_to(
    tmp_path: Path,
) -> None:
    async with (
        scripted_server(echo) as model,
        running(setup(model), tmp_path) as site,
        connected(site.url) as client,
    ):
        before = (await client.call("status"))["sessions"]
        for number, (address, agent, matched_by) in enumerate(CASES):
            sent = await client.send(f"question {number}", **address)
            end = (await client.ended(sent["run_id"]))[-1]

            assert (sent["agent_id"], sent["matched_by"]) == (agent, matched_by), address
            assert end["response"] == f"answer to question {number}"
            assert model.requests[-1].body["model"] == ("m" if agent == "main" else f"m-{agent}")
            explained = await client.call("route.explain", **address)
            assert explained["session_key"] == sent["session_key"]
            assert explained["matched_by"] == matched_by
        after = (await client.call("status"))["sessions"]

    assert (before, after) == (0, len(CASES) - 1)  # two of the cases are one session


@pytest.mark.requirement("S-003-Session-02")
async def test_two_addresses_that_differ_never_share_a_session(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(setup(model), tmp_path) as site,
        connected(site.url) as client,
    ):
        one = await client.send("x", channel="irc", account="a:b", peer="c")
        other = await client.send("y", channel="irc", account="a", peer="b:c")
        third = await client.send("z", channel="irc", account="a", peer="b\nc")
        for sent in (one, other, third):
            await client.ended(sent["run_id"])
            page = await client.call("chat.history", session_key=sent["session_key"])

            assert len(page["messages"]) == 2

    keys = {one["session_key"], other["session_key"], third["session_key"]}
    assert keys == {"main:irc:a%3Ab:c", "main:irc:a:b%3Ac", "main:irc:a:b%0Ac"}


async def test_who_may_speak_for_others_can_mean_a_room(tmp_path: Path) -> None:
    """By its bare id in bindings, as `room:ID` where a direct chat could be meant."""
    slack = {"channel": "slack", "account": "acme"}
    async with (
        scripted_server(echo) as model,
        running(setup(model), tmp_path) as site,
        connected(site.url) as client,
    ):
        sent = {}
        for peer in ("U1", "room:U1", "direct:room:U1", "room:o/r"):
            sent[peer] = await client.send(peer, **slack, peer=peer)
            await client.ended(sent[peer]["run_id"])
            explained = await client.call("route.explain", **slack, peer=peer)
            assert explained["session_key"] == sent[peer]["session_key"]
        own = await client.send("mine", peer="room:U1")
        await client.ended(own["run_id"])

    assert {peer: one["session_key"] for peer, one in sent.items()} == {
        "U1": "boss:slack:acme:U1",
        "room:U1": "boss:slack:acme:room%3AU1",
        "direct:room:U1": "team:slack:acme:direct%3Aroom%3AU1",
        "room:o/r": "team:slack:acme:room%3Ao~1r",
    }
    assert own["session_key"] == "main:websocket:local:room%3AU1"


@pytest.mark.requirement("S-003-Session-10")
async def test_another_agent_for_the_same_peer_is_another_session(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(setup(model), tmp_path) as site,
        connected(site.url) as client,
    ):
        bound = await client.send("x", channel="slack", account="a", peer="p")
        named = await client.send("y", channel="slack", account="a", peer="p", agent="boss")

        assert (bound["session_key"], named["session_key"]) == ("team:slack:a:p", "boss:slack:a:p")
        assert named["matched_by"] == "request"


async def test_what_cannot_be_routed_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(setup(model), tmp_path) as site,
        connected(site.url) as client,
    ):
        error = await client.refused("chat.send", content="x", agent="nobody")
        status = await client.call("status")

        assert (error.code, error.data["code"]) == (-32004, "unknown_agent")
        assert "team" in str(error)
        assert (status["sessions"], status["pending"], model.requests) == (0, 0, [])
