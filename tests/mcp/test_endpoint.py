"""The server says what a desk says, to clients of both eras, and nothing of what fails inside."""

import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from gateway.domain.ids import AgentId
from gateway.domain.mcp import McpClient, Served
from gateway.domain.model import ToolSpec
from gateway.mcp.endpoint import serving
from gateway.schemas import SchemaChecks
from gateway.web.chat import McpApi
from tests.fakes.client import http
from tests.fakes.mcp_client import ERAS, mcp_client, names_of, text_of
from tests.web.running import ALICE, BEARER, GUARDED, parse_answer, running

CROWDED = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "echo", "arguments": {"n": [0] * 40_000}},
    }
).encode()


@dataclass
class FakeDesk:
    """Serves one tool and the agents it is given; `broken`: each call fails by our own fault."""

    reached: tuple[str, ...] = ("a", "b")
    tools: tuple[ToolSpec, ...] = (ToolSpec("echo", "Says it again."),)
    broken: bool = False
    called: list[tuple[McpClient, object]] = field(default_factory=list)

    def offered(self, client: McpClient) -> Sequence[ToolSpec]:
        return self.tools

    def agents(self, client: McpClient) -> Sequence[AgentId]:
        return [AgentId(agent) for agent in self.reached]

    async def call(self, client: McpClient, name: str, arguments: Mapping[str, object]) -> Served:
        self.called.append((client, (name, arguments)))
        if self.broken:
            raise RuntimeError("a secret inside")
        return Served(json.dumps(arguments))

    async def ask(
        self, client: McpClient, message: str, *, agent: str | None, conversation: str | None
    ) -> Served:
        self.called.append((client, (message, agent, conversation)))
        facts = {"response": "yes", "conversation_id": "c", "run_id": "r"}
        return Served("yes", facts=facts)


@asynccontextmanager
async def site(desk: FakeDesk) -> AsyncIterator[str]:
    async with (
        serving(desk, schemas=SchemaChecks(), most_bytes=100_000) as door,
        running(GUARDED, routes=McpApi(door).routes()) as server,
    ):
        yield f"http://{server.address}"


@pytest.mark.parametrize("era", ERAS)
async def test_the_desk_is_told_who_calls_and_what_is_wanted(era: str) -> None:
    desk = FakeDesk()
    async with site(desk) as url, mcp_client(url, ALICE.secret, era=era) as client:
        said = await client.call_tool("echo", {"text": "ü"})
        question = {"message": "well?", "agent": "b", "conversation_id": "c"}
        asked = await client.call_tool("ask_agent", question)

    alice = McpClient("alice")
    assert desk.called == [(alice, ("echo", {"text": "ü"})), (alice, ("well?", "b", "c"))]
    assert json.loads(text_of(said)) == {"text": "ü"}
    assert asked.structured_content == {"response": "yes", "conversation_id": "c", "run_id": "r"}


@pytest.mark.parametrize("era", ERAS)
async def test_what_fails_inside_is_told_without_its_words(era: str) -> None:
    async with site(FakeDesk(broken=True)) as url, mcp_client(url, ALICE.secret, era=era) as client:
        with pytest.raises(MCPError, match="internal error") as caught:
            await client.call_tool("echo", {})

    assert "secret" not in str(caught.value)


async def test_no_agent_in_reach_is_no_tool_to_ask_one() -> None:
    desk = FakeDesk(reached=())
    async with site(desk) as url, mcp_client(url, ALICE.secret) as client:
        names = await names_of(client)
        asked = await client.call_tool("ask_agent", {"message": "hi"})

    assert (names, asked.is_error, desk.called) == (["echo"], True, [])


async def test_a_tool_cannot_take_the_name_of_ours() -> None:
    desk = FakeDesk(tools=(ToolSpec("ask_agent", "Not ours."), ToolSpec("echo", "")))
    async with site(desk) as url, mcp_client(url, ALICE.secret) as client:
        tools = (await client.list_tools()).tools

    assert [tool.name for tool in tools] == ["echo", "ask_agent"]
    assert "Not ours" not in str(tools)


async def test_asking_may_change_something_and_is_marked_so() -> None:
    async with site(FakeDesk()) as url, mcp_client(url, ALICE.secret) as client:
        (_, ask) = (await client.list_tools()).tools

    assert ask.annotations is not None
    assert ask.annotations.read_only_hint is False
    assert ask.input_schema["required"] == ["message"]


async def test_a_hundred_calls_at_once_are_all_answered() -> None:
    desk, said = FakeDesk(), dict[int, str]()
    async with site(desk) as url, mcp_client(url, ALICE.secret) as client:

        async def call(number: int) -> None:
            said[number] = text_of(await client.call_tool("echo", {"n": number}))

        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(call, number)

    assert {number: json.loads(text)["n"] for number, text in said.items()} == {
        number: number for number in range(100)
    }


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[]", 400),
        (b"1", 400),
        (b"\xff", 400),
        (CROWDED, 400),
        (b'{"jsonrpc": "2.0", "method": "tools/list"}', 202),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 7}}', 200),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "nonsense"}', 200),
    ],
)
async def test_a_body_that_is_no_request_is_refused(body: bytes, status: int) -> None:
    desk = FakeDesk()
    headers = {
        **BEARER,
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    async with site(desk) as url:
        answer = await http(f"{url}/mcp", method="POST", body=body, headers=headers)

    assert (answer.status, desk.called) == (status, [])
    assert status == 202 or "error" in answer.json


@pytest.mark.parametrize("era", ERAS)
async def test_what_clients_say_is_not_logged(era: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    desk = FakeDesk()
    async with site(desk) as url, mcp_client(url, ALICE.secret, era=era) as client:
        await client.call_tool("echo", {"text": "hush"})

    assert desk.called
    assert "hush" not in caplog.text


async def test_white_space_around_a_header_is_no_part_of_it() -> None:
    desk = FakeDesk()
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "echo", "arguments": {}, "_meta": meta}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        **BEARER,
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "  echo \t ",
    }
    async with (
        serving(desk, schemas=SchemaChecks(), most_bytes=100_000) as door,
        running(GUARDED, routes=McpApi(door).routes()) as server,
    ):
        body = json.dumps(call).encode()
        answer = await server.get("/mcp", headers, method="POST", body=body)

    assert (answer.status, len(desk.called)) == (200, 1)


async def test_a_body_that_turns_out_too_large_reaches_nobody() -> None:
    desk = FakeDesk()
    async with (
        serving(desk, schemas=SchemaChecks(), most_bytes=100_000) as door,
        running(replace(GUARDED, max_body_bytes=1024), routes=McpApi(door).routes()) as server,
    ):
        head = f"POST /mcp HTTP/1.1\r\nHost: {server.address}\r\nTransfer-Encoding: chunked\r\n"
        credential = f"Authorization: {BEARER['Authorization']}\r\nConnection: close\r\n\r\n"
        pieces = b"400\r\n" + b" " * 1024 + b"\r\n2\r\n{}\r\n0\r\n\r\n"
        answer = parse_answer(await server.raw((head + credential).encode() + pieces))

    assert (answer.status, desk.called) == (413, [])
