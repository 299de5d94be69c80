"""The benchmark's model server answers both wires as its plan says, and counts."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import anyio
import pytest

from bench.model_server import Answers, Counts, ModelProtocol, Plan
from gateway.domain.messages import Message, ToolResult
from gateway.domain.model import ToolSpec, Wire
from gateway.domain.ports import Http, HttpCall
from gateway.outbound.connection import open_outbound
from tests.providers.asking import Heard, a_client, a_request

TEXT = "word0 word1 word2 "


@asynccontextmanager
async def serving(plan: Plan) -> AsyncIterator[tuple[str, Http]]:
    answers, counts = Answers(plan), Counts()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ModelProtocol(plan, answers, counts), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with anyio.fail_after(60):
        async with server, open_outbound() as http:
            yield f"http://127.0.0.1:{port}/v1", http


async def stats(http: Http, url: str) -> dict[str, int]:
    body = b""
    with closing(
        await http.send(HttpCall("GET", url.removesuffix("/v1") + "/stats", {}))
    ) as answer:
        while piece := await answer.read_some():
            body += piece
    told: dict[str, int] = json.loads(body)
    return told


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("interval_s", [0.0, 0.001])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_has_as_many_words_as_planned(
    wire: Wire, interval_s: float, stream: bool
) -> None:
    async with serving(Plan(0.0, 3, interval_s, 0)) as (url, http):
        client = a_client(http, url=url, wire=wire)
        replies = [await client.reply(a_request(stream=stream), Heard()) for _ in range(2)]
        counted = await stats(http, url)

    assert [reply.text for reply in replies] == [TEXT, TEXT]
    assert replies[0].usage.output_tokens == 3
    assert counted == {"requests": 2, "open": 0, "open_max": 1}


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_every_nth_reply_calls_a_tool_but_never_right_after_a_result(wire: Wire) -> None:
    request = a_request(tools=(ToolSpec("clock", ""),))
    result = Message("tool", result=ToolResult("x", "clock", "noon"))
    after = a_request(tools=request.tools, messages=(*request.messages, result))
    async with serving(Plan(0.0, 3, 0.0, 2)) as (url, http):
        client = a_client(http, url=url, wire=wire)
        names = []
        for asked in (request, request, request, after):
            reply = await client.reply(asked, Heard())
            names.append([call.name for call in reply.tool_calls] or reply.text)

    assert names == [TEXT, ["clock"], TEXT, TEXT]


async def test_calls_that_wait_are_open_together() -> None:
    async with serving(Plan(0.3, 3, 0.0, 0)) as (url, http):
        client = a_client(http, url=url)
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(client.reply, a_request(), Heard())
        counted = await stats(http, url)

    assert counted == {"requests": 20, "open": 0, "open_max": 20}


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_so_many_tool_calls_come_before_each_answer(wire: Wire) -> None:
    tools, arguments = (ToolSpec("echo", ""),), '{"text":"hello"}'
    question = a_request(tools=tools)
    async with serving(Plan(0.0, 3, 0.0, tool_calls=1, arguments=arguments)) as (url, http):
        client = a_client(http, url=url, wire=wire)
        asking = await client.reply(question, Heard())
        [call] = asking.tool_calls
        result = ToolResult(call.id, call.name, "hello")
        after = a_request(
            tools=tools,
            messages=(
                *question.messages,
                Message("assistant", "", asking.tool_calls),
                Message("tool", result=result),
            ),
        )
        answer = await client.reply(after, Heard())

    assert call.arguments == arguments
    assert answer.text == TEXT
    assert not answer.tool_calls
