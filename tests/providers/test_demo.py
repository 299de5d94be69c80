"""The demo model does what it says, the same each time, and claims to be nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.events import CLOSING, OPENING
from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.domain.model import ModelReply, ModelRequest, TextDelta, ToolSpec
from gateway.providers.demo import DEFAULT, HONEST, NOT_TOLD, DemoModel
from tests.providers.asking import Heard, a_request

TIME = ToolSpec("time", "Tells the time.")


def demo_request(*said: str | Message, tools: tuple[ToolSpec, ...] = (TIME,)) -> ModelRequest:
    messages = tuple(Message("user", m) if isinstance(m, str) else m for m in said)
    return a_request(provider="demo", model="demo", messages=messages, tools=tools)


async def ask(*said: str | Message, tools: tuple[ToolSpec, ...] = (TIME,)) -> ModelReply:
    return await DemoModel().reply(demo_request(*said, tools=tools), Heard())


async def test_it_streams_word_by_word() -> None:
    heard = Heard()

    reply = await DemoModel().reply(demo_request("echo one two  three"), heard)

    assert heard.deltas == [TextDelta("one "), TextDelta("two  "), TextDelta("three")]
    assert reply.text == "one two  three"


async def test_not_streaming_it_says_the_same_at_once() -> None:
    heard = Heard()
    request = replace(demo_request("echo one two"), stream=False)

    reply = await DemoModel().reply(request, heard)

    assert (len(heard.deltas), heard.text) == (1, reply.text)


@pytest.mark.parametrize(
    "question",
    ["What time is it?", "what's the date today", "what day is it", "time?", "tell me the time"],
)
async def test_asked_for_the_time_it_looks_at_the_clock(question: str) -> None:
    reply = await ask(question)

    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("time", "{}")]
    assert reply.finish == "tool_calls"


async def test_it_answers_with_what_the_clock_said() -> None:
    first = await ask("what time is it?")
    call = first.tool_calls[0]
    said = Message("assistant", first.text, first.tool_calls)
    result = Message("tool", result=ToolResult(call.id, "time", "2026-01-01T12:00:00Z"))

    reply = await ask("what time is it?", said, result)

    assert "2026-01-01T12:00:00Z" in reply.text
    assert (reply.finish, reply.tool_calls) == ("stop", ())


async def test_a_tool_that_failed_is_told_as_failed() -> None:
    result = Message("tool", result=ToolResult("x", "time", "stopped", is_error=True))

    assert "could not" in (await ask("time?", result)).text


async def test_it_calls_another_tool_when_told_to_and_only_one_that_it_has() -> None:
    tool = ToolSpec("notes", "")

    told = await ask('use notes with {"a": 1}', tools=(tool,))
    other = await ask("use hammer", tools=(tool,))

    assert [(c.name, c.arguments) for c in told.tool_calls] == [("notes", '{"a": 1}')]
    assert other.tool_calls == ()


@pytest.mark.parametrize(
    "question",
    ["Who are you?", "what are you", "Are you an AI?", "are you a real person?", "What can you do?", "help"],
)  # fmt: skip
async def test_it_says_that_it_is_a_script_and_no_ai(question: str) -> None:
    assert (await ask(question)).text == HONEST
    assert "not an AI" in HONEST


@pytest.mark.parametrize(
    ("told", "question", "answer"),
    [
        ("My dog is called Luna.", "What is my dog called?", "Your dog is called Luna."),
        ("my dog's name is Luna", "What is my dog's name?", "Your dog's name is Luna."),
        ("My dog is called Luna", "what is the name of my dog?", "Your dog is called Luna."),
        ("my name is Ana", "What's my name?", "Your name is Ana."),
        ("Call me Ana", "do you remember my name?", "Your name is Ana."),
        ("Hi! My favourite colour is dark blue.", "what is my favourite colour", "Your favourite colour is dark blue."),
    ],
)  # fmt: skip
async def test_it_remembers_what_it_was_told_in_this_conversation(
    told: str, question: str, answer: str
) -> None:
    assert (await ask(told, Message("assistant", "ok"), question)).text == answer


async def test_the_last_word_counts() -> None:
    reply = await ask("my dog is called Rex", "my dog is called Luna", "what is my dog called?")

    assert reply.text == "Your dog is called Luna."


@pytest.mark.parametrize(
    "question", ["what is my dog called?", "what is my name?", "do you know my address?"]
)
async def test_what_it_was_not_told_it_does_not_know(question: str) -> None:
    assert (await ask("my cat is called Tom", question)).text == NOT_TOLD


async def test_what_a_model_said_is_no_fact() -> None:
    said = Message("assistant", "my dog is called Rex")

    assert (await ask(said, "what is my dog called?")).text == NOT_TOLD


async def test_it_greets_and_otherwise_says_what_to_do() -> None:
    assert "Hello" in (await ask("hello there")).text
    assert "welcome" in (await ask("many thanks")).text
    assert (await ask("prove the Riemann hypothesis")).text == DEFAULT
    assert "ANTHROPIC_API_KEY" in DEFAULT


async def test_its_reply_keeps_to_the_limit_and_says_so() -> None:
    request = replace(demo_request("who are you?"), max_tokens=10)

    reply = await DemoModel().reply(request, Heard())

    assert reply.finish == "length"
    assert HONEST.startswith(reply.text)
    assert reply.usage.output_tokens <= 10


async def test_a_notice_is_not_taken_for_what_somebody_said() -> None:
    plain = await ask("what is 2+3?")
    noticed = await ask("what is 2+3?", f"{OPENING}\nhurry\n{CLOSING}")

    assert noticed.text == plain.text


async def test_its_usage_is_an_estimate_that_grows_with_what_it_is_shown() -> None:
    short = await ask("hello")
    long = await ask("x" * 3200, Message("assistant", "", (ToolCall("a", "f"),)), "hello")

    assert short.usage.estimated
    assert long.usage.input_tokens >= short.usage.input_tokens + 1000


async def test_it_counts_what_it_reads_and_no_description_of_a_tool() -> None:
    wordy = ToolSpec("time", "Tells the time. " * 500)
    asked = demo_request("hello", Message("assistant", "x" * 3200), "hello", tools=(wordy,))

    reply = await DemoModel().reply(replace(asked, system="x" * 3200), Heard())

    assert reply.usage.input_tokens < 20


@given(st.text(max_size=200))
async def test_any_text_has_the_same_answer_twice(text: str) -> None:
    assert await ask(text) == await ask(text)


@given(st.text(alphabet="my dog is'?.! called", max_size=200))
async def test_near_misses_are_answered_too(text: str) -> None:
    assert (await ask(text)).finish in {"stop", "tool_calls"}
