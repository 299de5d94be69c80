"""The SDKs of both wires understand the model server that our tests trust, so its answers are real."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anthropic
import anyio
import openai
import pytest

from bench.model_server import Call
from tests.fakes.model_server import ModelServer, Reply, scripted_server

CLOCK: Call = ("c1", "clock", '{"zone":"UTC"}')
QUESTION = {"role": "user", "content": "hi"}
FULL = Reply(["Hel", "lo"], thinking=["h", "m"], calls=[CLOCK], usage=(11, 3))


@asynccontextmanager
async def openai_at(
    *script: Reply, retries: int = 0
) -> AsyncIterator[tuple[ModelServer, openai.AsyncOpenAI]]:
    with anyio.fail_after(60):
        async with scripted_server(script) as server:
            client = openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=retries)
            yield server, client
            await client.close()


@asynccontextmanager
async def anthropic_at(
    *script: Reply, retries: int = 0
) -> AsyncIterator[tuple[ModelServer, anthropic.AsyncAnthropic]]:
    with anyio.fail_after(60):
        async with scripted_server(script) as server:
            url = server.url.removesuffix("/v1")
            client = anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=retries)
            yield server, client
            await client.close()


async def test_the_openai_sdk_reads_a_whole_answer() -> None:
    async with openai_at(FULL) as (_, client):
        answer = await client.chat.completions.create(model="m", messages=[QUESTION])

    (choice,) = answer.choices
    openai.types.chat.ChatCompletion.model_validate(answer.model_dump(), strict=True)
    assert (choice.message.content, choice.finish_reason) == ("Hello", "tool_calls")
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert (call.id, call.function.name, call.function.arguments) == CLOCK
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 3)


async def test_the_openai_sdk_reads_a_stream() -> None:
    async with openai_at(FULL) as (_, client):
        stream = await client.chat.completions.create(model="m", messages=[QUESTION], stream=True)
        chunks = [chunk async for chunk in stream]

    for chunk in chunks:
        openai.types.chat.ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Hello"
    pieces = [call for delta in deltas for call in delta.tool_calls or () if call.function]
    assert "".join(piece.function.arguments or "" for piece in pieces) == CLOCK[2]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 14


async def test_the_anthropic_sdk_reads_a_whole_answer() -> None:
    async with anthropic_at(FULL) as (_, client):
        answer = await client.messages.create(model="m", max_tokens=9, messages=[QUESTION])

    anthropic.types.Message.model_validate(answer.model_dump(), strict=True)
    assert [block.type for block in answer.content] == ["text", "tool_use"]
    assert (answer.stop_reason, answer.usage.input_tokens) == ("tool_use", 11)


async def test_the_anthropic_sdk_reads_a_stream() -> None:
    async with (
        anthropic_at(FULL) as (_, client),
        client.messages.stream(model="m", max_tokens=9, messages=[QUESTION]) as stream,
    ):
        answer = await stream.get_final_message()

    anthropic.types.Message.model_validate(answer.model_dump(), strict=True)
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use"]
    call = answer.content[-1]
    assert call.type == "tool_use"
    assert (call.id, call.name, call.input) == ("c1", "clock", {"zone": "UTC"})
    assert answer.usage.output_tokens == 3


ERRORS: Sequence[tuple[int, str]] = [
    (400, "BadRequestError"),
    (401, "AuthenticationError"),
    (404, "NotFoundError"),
    (429, "RateLimitError"),
    (500, "InternalServerError"),
]


@pytest.mark.parametrize(("status", "name"), ERRORS)
async def test_both_sdks_know_each_error_by_its_status(status: int, name: str) -> None:
    async with openai_at(Reply(status=status)) as (_, client):
        with pytest.raises(getattr(openai, name), match=f"scripted {status}"):
            await client.chat.completions.create(model="m", messages=[QUESTION])
    async with anthropic_at(Reply(status=status)) as (_, other):
        with pytest.raises(getattr(anthropic, name), match=f"scripted {status}"):
            await other.messages.create(model="m", max_tokens=9, messages=[QUESTION])


async def test_both_sdks_wait_as_they_are_told_and_ask_again() -> None:
    busy = Reply(status=429, headers={"retry-after-ms": "1"})
    async with openai_at(busy, Reply("ok"), retries=1) as (server, client):
        await client.chat.completions.create(model="m", messages=[QUESTION])
        asked = len(server.requests)
    async with anthropic_at(busy, Reply("ok"), retries=1) as (server, other):
        await other.messages.create(model="m", max_tokens=9, messages=[QUESTION])

    assert asked == len(server.requests) == 2
