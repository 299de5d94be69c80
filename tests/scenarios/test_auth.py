"""Who is let in, what each may do, and that nobody learns of what belongs to another."""

import json
from pathlib import Path

import anyio
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.fakes.client import WAIT_S, Client, connected, http, post_chat
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import ModelServer, Reply, scripted_server
from tests.scenarios.scripts import echo

TOKENS = """
[[tokens]]
name = "alice"
token = "alice-token-1234"

[[tokens]]
name = "bob"
token = "bob-token-5678"
scopes = ["chat", "agent:team"]

[[tokens]]
name = "reader"
token = "reader-token-90"
scopes = ["read"]

[[tokens]]
name = "bridge"
token = "bridge-token-12"
scopes = ["chat", "impersonate"]

[[agents]]
id = "team"
provider = "fake"
model = "m-team"

[[bindings]]
agent_id = "team"
account_id = "bob"
"""
ALICE, BOB, READER, BRIDGE = (
    "alice-token-1234",
    "bob-token-5678",
    "reader-token-90",
    "bridge-token-12",
)


def guarded(model: ModelServer) -> Setup:
    return Setup(model.url, rest=TOKENS)


@pytest.mark.requirement("S-004-Conv-02")
async def test_without_a_valid_token_nothing_but_health_is_answered(tmp_path: Path) -> None:
    async with scripted_server(echo) as model, running(guarded(model), tmp_path) as site:
        healthy = await http(f"{site.url}/healthz")
        ready = await http(f"{site.url}/readyz")
        refused = [
            await post_chat(site.url, "hi"),
            await post_chat(site.url, "hi", token="wrong"),
            await http(f"{site.url}/metrics"),
            await http(f"{site.url}/api/nothing", token="wrong"),
        ]
        with pytest.raises(InvalidStatus) as caught:
            async with connected(site.url, "wrong"):
                raise AssertionError("a wrong token opened a socket")

        assert (healthy.status, ready.status) == (200, 200)
        assert [answer.status for answer in refused] == [401] * 4
        assert {answer.body for answer in refused} == {refused[0].body}
        assert caught.value.response.status_code == 401
        assert not model.requests


async def test_a_first_frame_may_bring_the_token(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(guarded(model), tmp_path) as site,
        connected(site.url) as client,
    ):
        me = await client.call("auth", token=ALICE)
        sent = await client.send("hi")
        end = (await client.ended(sent["run_id"]))[-1]

    assert (me["principal"], me["scopes"]) == ("alice", ["chat"])
    assert sent["session_key"] == "main:websocket:alice:main"
    assert end["response"] == "answer to hi"


@pytest.mark.parametrize(
    "frame",
    [
        {"method": "auth", "params": {"token": "wrong"}},
        {"method": "chat.send", "params": {"content": "hi"}},
        {"method": "ping"},
    ],
)
async def test_whoever_begins_with_anything_else_has_to_leave(
    tmp_path: Path, frame: dict[str, object]
) -> None:
    async with (
        scripted_server(echo) as model,
        running(guarded(model), tmp_path) as site,
        connect(site.url.replace("http", "ws") + "/ws") as socket,
    ):
        with anyio.fail_after(WAIT_S):
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": 1, **frame}))
            answer = json.loads(await socket.recv())
            with pytest.raises(ConnectionClosed):
                await socket.recv()

        assert answer["error"]["code"] == -32001
        assert socket.close_code == 4401
        assert not model.requests


async def test_a_token_does_only_what_its_scopes_say(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(guarded(model), tmp_path) as site,
        connected(site.url, READER) as reader,
        connected(site.url, ALICE) as alice,
        connected(site.url, BRIDGE) as bridge,
    ):
        errors = [
            await reader.refused("chat.send", content="x"),
            await alice.refused("chat.send", content="x", channel="slack", account="acme"),
            await alice.refused("chat.send", content="x", account="bob"),
        ]
        over_http = await post_chat(site.url, "x", token=READER)
        bridged = await bridge.send("x", channel="slack", account="acme", peer="U1")
        await bridge.ended(bridged["run_id"])

    assert [error.code for error in errors] == [-32002] * 3
    assert (over_http.status, over_http.json["error"]["type"]) == (403, "forbidden")
    assert bridged["session_key"] == "main:slack:acme:U1"
    assert len(model.requests) == 1


async def test_a_token_of_one_agent_reaches_no_other(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(guarded(model), tmp_path) as site,
        connected(site.url, BOB) as bob,
    ):
        sent = await bob.send("hi")
        await bob.ended(sent["run_id"])
        error = await bob.refused("chat.send", content="hi", agent="main")
        over_http = await post_chat(site.url, "hi", token=BOB, agent="main")
        agents = await bob.call("agent.list")
        status = await bob.call("status")

    assert sent["agent_id"] == "team"
    assert error.code in {-32002, -32004}
    assert over_http.status in {403, 404}
    assert [agent["id"] for agent in agents["agents"]] == status["agents"] == ["team"]
    assert len(model.requests) == 1


async def test_an_agent_out_of_reach_is_answered_like_one_that_does_not_exist(
    tmp_path: Path,
) -> None:
    async with (
        scripted_server(echo) as model,
        running(guarded(model), tmp_path) as site,
        connected(site.url, BOB) as bob,
    ):
        beyond = await bob.refused("chat.send", content="hi", agent="main")
        absent = await bob.refused("chat.send", content="hi", agent="nobody")
        over_http = await post_chat(site.url, "hi", token=BOB, agent="main")
        absent_http = await post_chat(site.url, "hi", token=BOB, agent="nobody")

    assert "main" not in json.dumps(absent.whole)
    assert json.dumps(beyond.whole).replace("main", "nobody") == json.dumps(absent.whole)
    assert over_http.status == absent_http.status
    assert over_http.body.replace(b"main", b"nobody") == absent_http.body


@pytest.mark.requirement("S-004-Conv-04")
async def test_what_belongs_to_another_is_answered_like_what_does_not_exist(
    tmp_path: Path,
) -> None:
    gate = anyio.Event()
    async with (
        scripted_server([Reply("done"), Reply("held", gate=gate)]) as model,
        running(guarded(model), tmp_path) as site,
        connected(site.url, ALICE) as alice,
        connected(site.url, BOB) as bob,
        connected(site.url, READER) as reader,
    ):
        ended = await alice.send("hi", peer="p")
        await alice.ended(ended["run_id"])
        live = await alice.send("hi", peer="p")
        for run_id in (ended["run_id"], live["run_id"]):
            await _is_absent_for(bob, "run_id", run_id, "r_" + "0" * 26)
        await _key_is_absent_for(bob, ended["session_key"], "main:websocket:alice:absent")
        mine = await alice.call("session.list")
        theirs = await bob.call("session.list")
        seen = await reader.call("session.list")
        inspected = await reader.call("run.inspect", run_id=ended["run_id"])
        gate.set()

        # Nobody has aborted it.
        assert (await alice.ended(live["run_id"]))[-1]["response"] == "held"

    assert [one["session_key"] for one in mine["sessions"]] == [ended["session_key"]]
    assert theirs["sessions"] == []
    assert len(seen["sessions"]) == 1
    assert inspected["session_key"] == ended["session_key"]


@pytest.mark.requirement("S-004-Conv-01", "S-004-Conv-02", "S-004-Conv-04")
async def test_a_conversation_is_that_of_whoever_authenticated_and_has_its_times(
    tmp_path: Path,
) -> None:
    async with (
        scripted_server(echo) as model,
        running(guarded(model), tmp_path) as site,
        connected(site.url, READER) as reader,
    ):
        where = f"{site.url}/api/conversations/c/messages"
        await post_chat(site.url, "my name is Alice", token=ALICE, conversation_id="c")
        foreign = await http(where, token=BOB)
        (begun,) = (await reader.call("session.list"))["sessions"]
        await post_chat(site.url, "who am I?", token=BOB, conversation_id="c")
        await post_chat(site.url, "who am I?", token=ALICE, conversation_id="c")
        pages = [await http(where, token=token) for token in (ALICE, BOB)]
        newest, other = (await reader.call("session.list"))["sessions"]

    assert foreign.status == 404
    assert (begun["channel"], begun["account"], begun["peer"]) == ("api", "alice", "c")
    assert begun["session_key"] == newest["session_key"] == "main:api:alice:c"
    assert other["session_key"] == "team:api:bob:c"
    assert newest["created_at"] == begun["created_at"] <= begun["updated_at"]
    assert begun["updated_at"] < newest["updated_at"]
    assert [len(page.json["messages"]) for page in pages] == [4, 2]
    assert "Alice" not in str(model.requests[1].body)


async def _is_absent_for(client: Client, name: str, theirs: str, nobodys: str) -> None:
    for method in ("chat.resume", "chat.abort", "run.inspect"):
        more = {"after_seq": 0} if method == "chat.resume" else {}
        foreign = await client.refused(method, **{name: theirs}, **more)
        absent = await client.refused(method, **{name: nobodys}, **more)

        assert foreign.code == -32004
        assert json.dumps(foreign.whole).replace(theirs, nobodys) == json.dumps(absent.whole)


async def _key_is_absent_for(client: Client, theirs: str, nobodys: str) -> None:
    for method in ("session.get", "session.tree", "chat.history"):
        foreign = await client.refused(method, session_key=theirs)
        absent = await client.refused(method, session_key=nobodys)

        assert foreign.code == -32004
        assert json.dumps(foreign.whole).replace(theirs, nobodys) == json.dumps(absent.whole)
    node = {"node_id": "m_0"}
    for method in ("session.branch", "session.checkout"):
        foreign = await client.refused(method, session_key=theirs, **node)
        absent = await client.refused(method, session_key=nobodys, **node)

        assert json.dumps(foreign.whole).replace(theirs, nobodys) == json.dumps(absent.whole)


async def test_an_unknown_session_of_ones_own_is_not_found_either(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(guarded(model), tmp_path) as site,
        connected(site.url, ALICE) as alice,
    ):
        error = await alice.refused("session.get", session_key="main:websocket:alice:absent")

    assert error.code == -32004


async def test_whoever_keeps_guessing_tokens_is_slowed_and_a_valid_token_is_let_in(
    tmp_path: Path,
) -> None:
    async with scripted_server(echo) as model, running(guarded(model), tmp_path) as site:
        statuses = [(await post_chat(site.url, "x", token=f"guess-{n}")).status for n in range(10)]
        slowed = await post_chat(site.url, "x", token="guess")
        let_in = await post_chat(site.url, "x", token=ALICE)

    assert statuses == [401] * 10
    assert (slowed.status, let_in.status) == (429, 200)
    assert int(slowed.headers["Retry-After"]) > 0
