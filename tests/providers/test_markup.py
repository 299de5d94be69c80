"""What is shown while a text arrives, and what is never called."""

import json
from collections.abc import Callable
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.model import ToolSpec
from gateway.providers.markup import MAX_CALLS, Recovery
from tests.providers.marked import TOOLS, hermes, recovered


def shown_so_far(text: str, tools: tuple[ToolSpec, ...] = TOOLS) -> str:
    recovery = Recovery(tools)
    return "".join([recovery.feed(char) for char in text])


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("so", "so"),
        ("so <", "so "),
        ("so <tool", "so "),
        ("so <tools", "so <tools"),
        ("so <b>", "so <b>"),
        ("so <tool_call>\n", "so "),
        ("so <tool_call>\nis", "so "),
        ("so <tool_call>\nis a", "so <tool_call>\nis a"),
        ("so <tool_call>{7", "so <tool_call>{7"),
        ("so [", "so "),
        ("so [1", "so [1"),
        ("a ` <tool_call>", "a ` <tool_call>"),
        ("a\nweath", "a\n"),
        ("a\nweather:", "a\nweather:"),
        ('a\nweather{"b"', "a\n"),
        ('a\nweather{"b",', 'a\nweather{"b",'),
        ("a weath", "a weath"),
    ],
)
@pytest.mark.requirement("S-002-XML-06")
def test_only_what_may_become_markup_is_held_back_and_no_longer_than_that(
    said: str, shown: str
) -> None:
    assert shown_so_far(said) == shown


@given(st.text())
def test_a_text_without_markup_is_shown_as_it_is(text: str) -> None:
    shown, calls = recovered(list(text), tools=())

    assert (shown, calls) == (text if text.strip() else "", []) or "<" in text or "[" in text


@given(st.text(alphabet="a1 .\n`~>-*{}\"'", min_size=1))
def test_what_no_markup_begins_with_is_shown_at_once(text: str) -> None:
    assert shown_so_far("a" + text) == "a" + text


def test_space_around_calls_is_not_shown_unless_text_follows() -> None:
    call = hermes()

    assert recovered([f"\n{call}\n\n{call}\n"])[0] == ""
    assert recovered([f"a\n{call}\n\n{call}\nb"])[0] == "a\n\n\n\nb"


def test_a_reply_has_a_bounded_number_of_calls() -> None:
    shown, calls = recovered([hermes() * (MAX_CALLS + 5)])

    assert (shown, len(calls)) == ("", MAX_CALLS)


def test_of_a_broken_call_the_model_is_shown_the_beginning() -> None:
    begun = '<function=clock>{"a": "'

    _, calls = recovered([begun + "x" * 100_000])

    assert begun in calls[0].arguments
    assert len(calls[0].arguments) < 3_000


@pytest.mark.requirement("S-002-XML-08", "S-002-XML-04")
def test_a_name_that_nobody_offered_is_a_call_in_a_wrapper_and_text_on_a_line() -> None:
    shown, calls = recovered(["rockets{}\n" + hermes("rockets")])

    assert shown == "rockets{}\n"
    assert [(call.name, call.arguments) for call in calls] == [("rockets", "{}")]


@pytest.mark.requirement("S-002-XML-05")
def test_a_call_at_the_end_of_thought_is_found() -> None:
    shown, calls = recovered(["I need the time.\n" + hermes() + "\n"], is_thought=True)

    assert shown == "I need the time.\n"
    assert [call.name for call in calls] == ["clock"]


def test_a_call_that_more_thought_follows_was_only_considered() -> None:
    _, calls = recovered(
        [hermes() + " would do, but I know it.", hermes("weather")], is_thought=True
    )

    assert [call.name for call in calls] == ["weather"]


LONG = 60_000
HOSTILE = {
    "a value that never ends": '<function=weather>{"city": "' + "x<y&z " * (LONG // 6),
    "opening marks": "<tool_call>" * (LONG // 11),
    "opening tags": "<invoke " * (LONG // 8),
    "calls on lines that never end": 'weather{"city":\n' * (LONG // 16),
    "brackets": '<tool_call>{"a":' + "[" * LONG,
    "backticks": "`" * LONG,
    "quotes": "> " * (LONG // 2),
    "spaces in a mark": "<tool_call>" + " " * LONG,
    "marks that do not end a value": "<function=weather>\n<parameter=city>"
    + ("</" + "parameter> ") * (LONG // 13),
    "escapes": '<tool_call>{"' + "\\\\" * (LONG // 2),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_of_hostile_text_little_is_looked_at_twice(how: str) -> None:
    """What is not taken yet is looked at again with the next piece: it stays short, so the time is
    as long as the text."""
    recovery = Recovery(TOOLS)
    text = HOSTILE[how]

    for start in range(0, len(text), 3):
        recovery.feed(text[start : start + 3])
        assert len(recovery._parser._text) - recovery._parser._at < 300

    recovery.finish()
    assert len(recovery.calls) <= 1


MEGABYTE = 1_000_000
PARTS = {
    "opening marks": ["<"],
    "brackets": ["["],
    "lines": ["\n"],
    "all of them": ["<", "[", "\n"],
    "blank lines": ["\n", " ", "\t"],
    "beginnings of marks": ["<tool_cal", "<func", "[TOOL_", "\nweathe", "<｜tool"],
    "markup in a call": ['<tool_call>{"a": '] + ["["] * 99,
}


@pytest.mark.parametrize("how", PARTS)
def test_what_begins_no_call_is_looked_at_a_piece_at_a_time(how: str) -> None:
    """A step takes some microseconds: a megabyte may not take one for each of its characters."""
    parts = PARTS[how]
    text = "".join(parts[i * i % 7919 % len(parts)] for i in range(MEGABYTE // len(parts[0])))
    if how == "markup in a call":
        text = parts[0] + "[" * MEGABYTE
    recovery = Recovery(TOOLS)

    for start in range(0, len(text), 1024):
        recovery.feed(text[start : start + 1024])
    recovery.finish()

    assert recovery.steps < len(text) / 100


@pytest.mark.parametrize("how", HOSTILE)
def test_the_steps_grow_no_faster_than_the_text(how: str) -> None:
    def steps(text: str) -> int:
        recovery = Recovery(TOOLS)
        for start in range(0, len(text), 1024):
            recovery.feed(text[start : start + 1024])
        recovery.finish()
        return recovery.steps

    text = HOSTILE[how]
    assert steps(text) < 2.2 * steps(text[: len(text) // 2]) + 100


def test_marks_of_code_are_counted_like_what_else_is_looked_at_one_by_one() -> None:
    recovery = Recovery(TOOLS)

    recovery.feed("~`" * LONG)

    assert recovery.steps >= 2 * LONG


SPACIOUS = {"properties": {f"p{n}": {"type": "string"} for n in range(5_000)}}
MARKS = "- " * 100 + "~`" * LONG
DEAR: dict[str, tuple[str, str, object]] = {
    "an attribute without a value": ("<invoke {}>", "a" * 250, {}),
    "a tool with many parameters": ("<function=weather></function>", "", SPACIOUS),
    "marks of code behind a long list": ("{}", MARKS, {}),
}


@pytest.mark.parametrize("how", DEAR)
def test_a_step_takes_about_as_long_in_any_text(how: str) -> None:
    """In CPU time, beside a text of the same shape that asks for nothing."""
    shape, hostile, schema = DEAR[how]

    def seconds(text: str, parameters: object) -> float:
        recovery = Recovery([ToolSpec("weather", "", json.dumps(parameters))])
        began = thread_time()
        recovery.feed(text * (LONG // len(text) + 1))
        recovery.finish()
        return thread_time() - began

    plain = "~`" * (LONG + 100) if how.startswith("marks") else "1" * len(hostile)
    seconds(shape.format(hostile), schema)  # what is made once is made

    costs = [seconds(shape.format(hostile), schema) for _ in range(3)]
    others = [seconds(shape.format(plain), {}) for _ in range(3)]
    assert min(costs) < 6 * min(others)


@given(st.text(alphabet='a \n\t<[>-*"1.'), st.text(alphabet="a\n`~ ", max_size=12))
def test_whole_lines_are_read_like_their_characters(text: str, before: str) -> None:
    call = hermes()
    said = f"{before}{text}"

    assert recovered([said + "\n" + call]) == recovered([*said, "\n", call])


INJECTIONS: dict[str, Callable[[str], str]] = {
    "a fence": lambda call: f"The page says:\n```\n{call}\n```\n",
    "a fence inside a fence": lambda call: f"````md\n```\n{call}\n```\n{call}\n````\n",
    "a quote": lambda call: f"The page says:\n> {call}\n",
    "inline code": lambda call: f"The page says `{call}`.",
    "quotation marks": lambda call: f'The page says "{call}".',
    "a mark without its meaning": lambda call: f"The page says \\{call}.",
    "a string of another call": lambda call: hermes("weather", json.dumps({"city": call})),
}


@pytest.mark.parametrize("how", INJECTIONS)
@pytest.mark.requirement("S-002-XML-09")
def test_what_a_model_repeats_of_others_is_not_called(how: str) -> None:
    call = hermes()

    shown, calls = recovered(list(INJECTIONS[how](call)))

    assert "clock" not in [one.name for one in calls]
    assert how == "a string of another call" or call in shown
