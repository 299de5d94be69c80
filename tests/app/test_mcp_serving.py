"""A whole gateway serves its tools and agents to clients of MCP."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from gateway.domain.mcp import DEPTH_HEADER
from tests.fakes.client import WAIT_S, HttpAnswer, http, post_chat
from tests.fakes.gateway import ROOT, Setup, running
from tests.fakes.mcp_client import ERAS, mcp_client, names_of, text_of
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.scripts import echo, history_of

ALICE, BOB, NARROW, READER = (
    f"{name}-secret-token" for name in ("alice", "bob", "narrow", "reader")
)
SCOPES = {"alice": ["chat"], "bob": ["chat"], "narrow": ["chat", "agent:other"], "reader": ["read"]}
TOKENS = "".join(
    f'''
[[tokens]]
name = "{name}"
token = "{name}-secret-token"
scopes = {scopes}
'''
    for name, scopes in SCOPES.items()
)
SERVE = """
[mcp.serve]
enabled = true
tools = ["calc", "notes"]

[[agents]]
id = "other"
provider = "fake"
model = "m"

[[agents]]
id = "closed"
provider = "fake"
model = "m"
project = "club"

[[projects]]
id = "club"
users = ["bob"]
"""

# Enough for the longest question.
ROOMY = "context_window = 1000000\n[agent.limits]\ntoken_budget = 200000"


def setup(model_url: str, *, rest: str = SERVE, gateway: str = "") -> Setup:
    return Setup(model_url, tools=("calc", "notes"), rest=rest + TOKENS, gateway=gateway)


async def post(url: str, token: str | None = ALICE, **more: Any) -> HttpAnswer:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **more.pop("headers", {}),
    }
    options: dict[str, Any] = {"method": "POST", "body": b"{}", **more}
    return await http(f"{url}/mcp", token=token, headers=headers, **options)


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_of_either_era_lists_and_calls_tools_and_asks_agents(
    tmp_path: Path, era: str
) -> None:
    async with (
        scripted_server(echo) as model,
        running(setup(model.url), tmp_path) as site,
        mcp_client(site.url, ALICE, era=era) as client,
    ):
        names = await names_of(client)
        sum_ = await client.call_tool("calc", {"expression": "6*7"})
        wrong = await client.call_tool("calc", {"nonsense": 1})
        with pytest.raises(MCPError, match="there is no tool 'rm'"):
            await client.call_tool("rm", {})
        asked = await client.call_tool("ask_agent", {"message": "hi"})

    assert {"calc", "vault_read", "ask_agent"} < set(names)
    assert (sum_.is_error, "42" in text_of(sum_)) == (False, True)
    assert (wrong.is_error, "not valid" in text_of(wrong)) == (True, True)
    assert (asked.is_error, text_of(asked)) == (False, "answer to hi")
    assert asked.structured_content is not None
    assert set(asked.structured_content) == {"response", "conversation_id", "run_id"}


async def test_what_is_asked_is_a_conversation_of_the_chat_api(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(setup(model.url), tmp_path) as site,
        mcp_client(site.url, ALICE) as client,
    ):
        first = (await client.call_tool("ask_agent", {"message": "one"})).structured_content
        assert first is not None
        talk = first["conversation_id"]
        again = await client.call_tool("ask_agent", {"message": "two", "conversation_id": talk})
        other = await client.call_tool("ask_agent", {"message": "three"})
        await post_chat(site.url, "four", token=ALICE, conversation_id=talk)
        history = await http(f"{site.url}/api/conversations/{talk}/messages", token=ALICE)
        foreign = await http(f"{site.url}/api/conversations/{talk}/messages", token=BOB)

    assert [len(history_of(asked)) for asked in model.requests] == [1, 3, 1, 5]
    assert (text_of(again), text_of(other)) == ("answer to two", "answer to three")
    said = [one["content"] for one in history.json["messages"] if one["role"] == "user"]
    assert said == ["one", "two", "four"]
    assert foreign.status == 404 or foreign.json["messages"] == []


async def test_an_agent_out_of_reach_is_neither_listed_nor_asked_and_lends_no_tool(
    tmp_path: Path,
) -> None:
    agents: dict[str, object] = {}
    lent: dict[str, bool] = {}
    answered: set[tuple[str, str]] = set()

    async def look(url: str, token: str) -> None:
        async with mcp_client(url, token) as client:
            (ask,) = [t for t in (await client.list_tools()).tools if t.name == "ask_agent"]
            agents[token] = ask.input_schema["properties"]["agent"]["enum"]
            lent[token] = "calc" in await names_of(client)
            for agent in ("closed", "main", "nobody"):
                asked = {"message": "hi", "agent": agent}
                if not (await client.call_tool("ask_agent", asked)).is_error:
                    answered.add((token, agent))

    async with scripted_server(echo) as model, running(setup(model.url), tmp_path) as site:
        for token in (ALICE, BOB, NARROW):
            await look(site.url, token)
        async with mcp_client(site.url, NARROW) as client:
            usual = await client.call_tool("ask_agent", {"message": "hi"})
            with pytest.raises(MCPError, match="there is no tool 'calc'"):
                await client.call_tool("calc", {"expression": "1+1"})

    assert agents == {ALICE: ["main", "other"], BOB: ["main", "other", "closed"], NARROW: ["other"]}
    assert lent == {ALICE: True, BOB: True, NARROW: False}
    assert answered == {(ALICE, "main"), (BOB, "main"), (BOB, "closed")}
    assert usual.is_error
    assert "main" not in text_of(usual)


async def test_what_tools_keep_for_one_principal_no_other_finds(tmp_path: Path) -> None:
    note = {"path": "a.md", "content": "# mine"}
    async with scripted_server(echo) as model, running(setup(model.url), tmp_path) as site:
        async with mcp_client(site.url, ALICE) as client:
            await client.call_tool("vault_write", note)
            own = await client.call_tool("vault_read", {"path": "a.md"})
        async with mcp_client(site.url, BOB) as client:
            foreign = await client.call_tool("vault_read", {"path": "a.md"})

    assert "# mine" in text_of(own)
    assert foreign.is_error
    assert "# mine" not in text_of(foreign)


async def test_an_agent_of_ours_asks_no_agent_through_mcp(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(setup(model.url), tmp_path) as site,
        mcp_client(site.url, ALICE, headers={DEPTH_HEADER: "1"}) as client,
    ):
        asked = await client.call_tool("ask_agent", {"message": "and you?"})
        used = await client.call_tool("calc", {"expression": "1+1"})

    assert (asked.is_error, model.requests) == (True, [])
    assert not used.is_error


async def test_a_question_that_is_none_is_told_what_is_wrong(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, object], str]] = [
        ({}, "message"),
        ({"message": "  "}, "message"),
        ({"message": "\x85"}, "message"),
        ({"message": "x" * 400_001}, "too large"),
        ({"message": "hi", "stream": True}, "stream"),
        ({"message": "hi", "conversation_id": ""}, "conversation_id"),
        ({"message": "hi", "agent": 7}, "agent"),
    ]
    async with (
        scripted_server(echo) as model,
        running(setup(model.url), tmp_path) as site,
        mcp_client(site.url, ALICE) as client,
    ):
        for arguments, told in wrong:
            result = await client.call_tool("ask_agent", arguments)

            assert result.is_error, told
            assert told in text_of(result), arguments
    assert model.requests == []


async def test_a_question_may_be_as_long_as_its_schema_says(tmp_path: Path) -> None:
    async with (
        scripted_server(lambda _: Reply("read")) as model,
        running(replace(setup(model.url), agent=ROOMY), tmp_path) as site,
        mcp_client(site.url, ALICE) as client,
    ):
        ask = (await client.list_tools()).tools[-1]
        most = ask.input_schema["properties"]["message"]["maxLength"]
        result = await client.call_tool("ask_agent", {"message": "u" * most})

    assert not result.is_error
    assert history_of(model.requests[0])[0] == ("user", "u" * most)


async def test_a_provider_that_fails_is_told_in_the_words_for_users(tmp_path: Path) -> None:
    def script(_asked: Asked) -> Reply:
        return Reply(status=401, body=b'{"error": {"message": "key sk-of-the-test is bad"}}')

    async with (
        scripted_server(script) as model,
        running(setup(model.url), tmp_path) as site,
        mcp_client(site.url, ALICE) as client,
    ):
        result = await client.call_tool("ask_agent", {"message": "hi"})

    assert result.is_error
    assert "sk-of-the-test" not in str(result)
    assert text_of(result)


async def test_the_front_door_guards_it_as_everything_else(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(setup(model.url, gateway="max_body_bytes = 2048"), tmp_path) as site,
    ):
        answers = {
            "no token": await post(site.url, None),
            "wrong token": await post(site.url, "wrong"),
            "foreign host": await post(site.url, headers={"Host": "evil.example"}),
            "foreign origin": await post(site.url, headers={"Origin": "https://evil.example"}),
            "no scope": await post(site.url, READER),
            "GET": await post(site.url, method="GET", body=None),
            "DELETE": await post(site.url, method="DELETE", body=None),
            "large": await post(site.url, body=b"[" + b" " * 4096 + b"]"),
            "no JSON": await post(site.url, body=b"{"),
            "deep": await post(site.url, body=b"[" * 99 + b"]" * 99),
        }

    assert {name: answer.status for name, answer in answers.items()} == {
        "no token": 401,
        "wrong token": 401,
        "foreign host": 403,
        "foreign origin": 403,
        "no scope": 403,
        "GET": 405,
        "DELETE": 405,
        "large": 413,
        "no JSON": 400,
        "deep": 400,
    }
    assert all(answer.json["error"]["message"] for answer in answers.values())


async def test_where_it_is_not_enabled_nothing_is_there(tmp_path: Path) -> None:
    rest = SERVE.replace("enabled = true", "enabled = false")
    async with (
        scripted_server(echo) as model,
        running(setup(model.url, rest=rest), tmp_path) as site,
    ):
        answer = await post(site.url)

    assert (answer.status, answer.json["error"]["type"]) == (404, "not_found")


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_leaves_stops_nothing_and_leaves_nothing(
    tmp_path: Path, era: str
) -> None:
    rest = anyio.Event()

    def script(asked: Asked) -> Reply:
        return Reply(f"answer to {asked.last_text}", gate=rest)

    async with (
        scripted_server(script) as model,
        running(setup(model.url), tmp_path) as site,
        mcp_client(site.url, ALICE, era=era) as client,
    ):
        asked = {"message": "hi", "conversation_id": "c"}
        with anyio.move_on_after(WAIT_S) as leaving:
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "ask_agent", asked)
                await model.wait_for(1)
                leaving.cancel()
        rest.set()
        await site.rooms.shared.lanes.wait_idle()
        history = await http(f"{site.url}/api/conversations/c/messages", token=ALICE)

    said = [one["content"] for one in history.json["messages"]]
    assert said == ["hi", "answer to hi"]


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_asked_when_it_stops_is_answered_and_what_comes_then_is_refused(
    tmp_path: Path, era: str
) -> None:
    rest, answers = anyio.Event(), list[str]()

    def script(asked: Asked) -> Reply:
        return Reply(f"answer to {asked.last_text}", gate=rest)

    async with (
        scripted_server(script) as model,
        running(setup(model.url), tmp_path) as site,
        mcp_client(site.url, ALICE, era=era) as client,
        anyio.create_task_group() as group,
    ):

        async def ask() -> None:
            answers.append(text_of(await client.call_tool("ask_agent", {"message": "early"})))

        group.start_soon(ask)
        await model.wait_for(1)
        group.start_soon(site.rooms.drain)
        while not site.rooms.health.draining:
            await anyio.lowlevel.checkpoint()
        late = await client.call_tool("ask_agent", {"message": "late"})
        rest.set()

    assert answers == ["answer to early"]
    assert (late.is_error, "restart" in text_of(late)) == (True, True)


async def test_without_the_sdk_it_does_not_start_and_says_what_to_install(tmp_path: Path) -> None:
    config = await setup("http://127.0.0.1:9/v1").written(tmp_path)
    start = "import sys; sys.modules['mcp'] = None; from gateway.launcher import main; main()"
    words = [sys.executable, "-c", start, "--config", str(config), "run", "--port", "0"]

    ended = await anyio.run_process(words, check=False, cwd=ROOT)

    assert ended.returncode == 78
    assert b"pip install 'exogate[mcp]'" in ended.stderr
    assert b"Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("calc", '{"expression": "6*7"}', "42"),
        ("ask_agent", '{"message": "hi"}', "An agent may not ask"),
    ],
)
async def test_an_agent_elsewhere_uses_our_tools_and_asks_none_of_ours(
    tmp_path: Path, tool: str, arguments: str, told: str
) -> None:
    def script(asked: Asked) -> Reply:
        if asked.body["messages"][-1]["role"] == "tool":
            return Reply(asked.last_text)
        return Reply(calls=[("call_1", f"first__{tool}", arguments)])

    for name in ("first", "second"):
        await anyio.Path(tmp_path / name).mkdir()
    async with (
        scripted_server(script) as model,
        running(setup(model.url), tmp_path / "first") as one,
    ):
        rest = f'[mcp.servers.first]\nurl = "{one.url}/mcp"\n'
        headers = f'headers = {{ Authorization = "Bearer {ALICE}" }}'
        elsewhere = Setup(model.url, tools=("mcp:first",), rest=rest + headers)
        async with running(elsewhere, tmp_path / "second") as two:
            answer = await post_chat(two.url, "go")

    assert told in answer.json["response"]
    assert len(model.requests) == 2
