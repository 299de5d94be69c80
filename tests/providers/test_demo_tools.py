"""The demo model uses the tools that it was offered, makes nothing up, and tells what they gave."""

import json

import pytest

from gateway.domain.messages import Message, ToolResult
from gateway.domain.model import ToolSpec
from gateway.providers.demo import NO_CALCULATOR, NO_CLOCK, NO_NOTES, wanted_call
from tests.providers.test_demo import ask

ALL = tuple(
    ToolSpec(name, "")
    for name in ("echo", "calc", "time", "vault_write", "vault_list", "vault_read", "vault_search")
)


async def answered(question: str, result: str) -> str:
    """What it says when its call gave that result."""
    first = await ask(question, tools=ALL)
    (call,) = first.tool_calls
    said = Message("assistant", first.text, first.tool_calls)
    told = Message("tool", result=ToolResult(call.id, call.name, result))
    return (await ask(question, said, told, tools=ALL)).text


@pytest.mark.parametrize(
    ("question", "sorry"),
    [
        ("what time is it?", NO_CLOCK),
        ("what is 2+2?", NO_CALCULATOR),
        ("note: buy milk", NO_NOTES),
        ("list my notes", NO_NOTES),
        ("read note buy milk", NO_NOTES),
        ("find notes about milk", NO_NOTES),
        ("echo hello", "hello"),
    ],
)
async def test_without_the_tool_it_makes_nothing_up(question: str, sorry: str) -> None:
    reply = await ask(question, tools=(ToolSpec("other", ""),))

    assert (reply.text, reply.tool_calls) == (sorry, ())


async def test_a_tool_that_it_has_not_is_said_to_be_missing() -> None:
    reply = await ask('call weather {"city": "Oslo"}', tools=(ToolSpec("other", ""),))

    assert reply.tool_calls == ()
    assert reply.text.startswith("I have no tool weather. My tools: other. `exogate plugin")


@pytest.mark.parametrize(
    ("question", "tool", "arguments"),
    [
        ('Call echo {"text": "a"}', "echo", {"text": "a"}),
        ('please use the echo tool with {"text": "a"}', "echo", {"text": "a"}),
        ("echo what time is it?", "echo", {"text": "what time is it?"}),
        ("Repeat: 2+2", "echo", {"text": "2+2"}),
        ("what is 2+3*4?", "calc", {"expression": "2+3*4"}),
        ("What's (1 + 2) / -3", "calc", {"expression": "(1 + 2) / -3"}),
        ("how much is 12 divided by 5 minus 1?", "calc", {"expression": "12 / 5 - 1"}),
        ("2 x 3 =", "calc", {"expression": "2*3"}),
        ("please calculate sqrt(16)", "calc", {"expression": "sqrt(16)"}),
        ("note: Buy milk!", "vault_write", {"path": "buy-milk.md", "content": "Buy milk!"}),
        ("take a note that I won", "vault_write", {"path": "i-won.md", "content": "I won"}),
        ("write a note: a\nb", "vault_write", {"path": "a-b.md", "content": "a\nb"}),
        ("list my notes", "vault_list", {}),
        ("What notes do I have?", "vault_list", {}),
        ("read note buy milk", "vault_read", {"path": "buy-milk.md"}),
        ("show me my note work/plan.md", "vault_read", {"path": "work/plan.md"}),
        ("find notes about milk?", "vault_search", {"query": "milk"}),
        ("search my notes for blue cheese", "vault_search", {"query": "blue cheese"}),
    ],
)
async def test_each_kind_of_question_goes_to_its_tool(
    question: str, tool: str, arguments: dict[str, object]
) -> None:
    reply = await ask(question, tools=ALL)

    assert [(c.name, json.loads(c.arguments)) for c in reply.tool_calls] == [(tool, arguments)]
    assert reply.finish == "tool_calls"


@pytest.mark.parametrize("question", ["what is 2?", "what is my name?", "what is a-b", "- + -"])
async def test_what_is_no_sum_is_not_calculated(question: str) -> None:
    assert (await ask(question, tools=ALL)).tool_calls == ()


async def test_notes_that_say_other_things_never_share_a_path() -> None:
    long = "one two three four five six seven eight"
    notes = [long, f"{long} nine", f"{long} ten", "Обед", "Ужин", "n" * 500, "n" * 501, "!", "?"]

    calls = [(await ask(f"note: {note}", tools=ALL)).tool_calls[0] for note in notes]

    paths = [json.loads(call.arguments)["path"] for call in calls]
    assert len(set(paths)) == len(notes)
    assert all(len(path) < 100 and path.isascii() and path[0].isalnum() for path in paths)


@pytest.mark.parametrize(
    ("question", "result", "said"),
    [
        ("echo hello", '"hello"', "hello"),
        ("echo hello", '{"text":"hello"}', "hello"),
        ("what is 2+2?", "4", "2+2 = 4"),
        ("what is 2+2?", '{"result":4}', "2+2 = 4"),
        ("what is 2+2?", '{"expression":"2+2","result":"4","exact":true}', "2+2 = 4"),
        ("what is 1/3?", '{"result":"0.333","exact":false}', "1/3 is about 0.333"),
        ("what time is it?", '{"now":"noon","unix_ms":7}', "The clock says: noon"),
        ("what time is it?", '{"date":"d","hour":7}', "The clock says: date: d; hour: 7"),
        ("note: buy milk", '{"ok":true}', "I wrote that down in buy-milk.md."),
        ("list my notes", "[]", "You have no notes yet."),
        ("list my notes", '{"notes":["a.md",{"path":"b.md"}]}', "Your notes: a.md, b.md."),
        ("read note a", '{"path":"a.md","content":"milk"}', "milk"),
        ("find notes about x", '{"results":[]}', "Your notes say nothing of it."),
        ("find notes about x", '{"results":[{"path":"x.md"}]}', "I found: x.md."),
        ("echo hello", "[" * 100_000, "[" * 100_000),
    ],
)
async def test_a_result_becomes_a_sentence(question: str, result: str, said: str) -> None:
    text = await answered(question, result)

    assert text == said if len(said) < 1000 else said.startswith(text)


@pytest.mark.parametrize("text", ["use a", "echo ", "1", "time", "note: x", "find notes ", "(1"])
@pytest.mark.parametrize("filler", [" ", "1+", "{", "x ", "(", ": "])
def test_a_text_of_a_megabyte_is_looked_at_in_no_time(text: str, filler: str) -> None:
    """Patterns that go back and forth would take hours here, and everybody would wait."""
    long = f"{text}{filler * (1_000_000 // len(filler))}x"

    wanted = wanted_call(long, {"a"})

    assert wanted is None or wanted.tool in {"echo", "vault_write"}
