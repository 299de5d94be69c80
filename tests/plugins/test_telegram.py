"""Markdown becomes text and entities that Telegram takes, whatever a model wrote."""

import json
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.running import Guest, Json

TOOL = Path(__file__).parent.parent.parent / "plugins" / "telegram" / "tool.wasm"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
WORDS = st.text(st.characters(categories=["L", "So", "Mn"]), min_size=1, max_size=20)
MARKED = st.lists(
    st.sampled_from(
        ["*", "**", "***", "_", "__", "~~", "`", "``", "```", "\n```py\n", "[", "![", "]"]
        + ["](https://a.example/)", "<https://a.example/>", "https://a.example/_b_", "<", ">"]
        + ["\n", "\n\n", "\n> ", "\n>", "\n- ", "\n1. ", "\n# ", "\n|---|---|\n", "|", "---"]
        + ["\\", " ", "word", "é", "👩‍👩‍👧", "𝄞", "“", "\u3000"]
    ),
    max_size=30,
).map("".join)
MARKS = [("**", "bold"), ("__", "bold"), ("*", "italic"), ("_", "italic"), ("~~", "strikethrough")]


@pytest.fixture(scope="module")
def telegram() -> Guest:
    return Guest.load(TOOL)


def sent(telegram: Guest, text: str) -> tuple[str, list[Json]]:
    """The text and the entities of a message to somebody."""
    reply = {"do": "send", "peer": "1", "text": text, "api_base": "https://api.example.com"}
    answer = telegram.call("format-outgoing", json.dumps(reply))
    assert answer.tag == "ok"
    request = json.loads(answer.payload)["requests"][0]
    body = json.loads(request["body"])
    return body["text"], body["entities"]


def covered(text: str, entity: Json) -> str:
    """As Telegram counts; fails inside of a surrogate pair."""
    start = 2 * entity["offset"]
    return text.encode("utf-16-le")[start : start + 2 * entity["length"]].decode("utf-16-le")


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@given(TEXTS)
def test_a_text_whose_marks_are_escaped_comes_through_as_it_is(telegram: Guest, text: str) -> None:
    if not text.strip(" \t\r\n"):
        return
    escaped = "".join(f"\\{one}" if one in string.punctuation else one for one in text)

    assert sent(telegram, escaped) == (text, [])


@given(WORDS, st.sampled_from(MARKS))
def test_a_mark_covers_what_it_is_around(telegram: Guest, text: str, mark: tuple[str, str]) -> None:
    around, kind = mark

    plain, entities = sent(telegram, f"👍 {around}{text}{around}.")

    assert plain == f"👍 {text}."
    assert [one["type"] for one in entities] == [kind]
    assert covered(plain, entities[0]) == text


@given(WORDS, st.sampled_from(MARKS))
def test_a_mark_that_nothing_closes_is_text(
    telegram: Guest, text: str, mark: tuple[str, str]
) -> None:
    source = f"{mark[0]}{text} and {text}"

    assert sent(telegram, source) == (source, [])


@given(TEXTS)
def test_code_stands_as_it_was_written(telegram: Guest, text: str) -> None:
    fence = "`" * 80

    plain, entities = sent(telegram, f"See\n{fence}\n{text}\n{fence}\nend")

    assert plain == f"See\n{text}\nend"
    assert [(one["type"], covered(plain, one)) for one in entities] == [("pre", text)]


@given(MARKED)
def test_entities_lie_in_the_text_and_nothing_lies_in_code(telegram: Guest, text: str) -> None:
    plain, entities = sent(telegram, f"x{text}")

    whole = units(plain)
    assert whole <= units(f"x{text}")
    for one in entities:
        assert 0 <= one["offset"] < one["offset"] + one["length"] <= whole
        assert covered(plain, one)
    alone = [one for one in entities if one["type"] in {"code", "pre"}]
    for code in alone:
        end = code["offset"] + code["length"]
        for one in entities:
            inside = max(one["offset"], code["offset"]) < min(one["offset"] + one["length"], end)
            assert one is code or one["type"] == "blockquote" or not inside


@given(MARKED)
def test_whatever_is_no_mark_is_still_there(telegram: Guest, text: str) -> None:
    plain, _ = sent(telegram, f"x{text}")

    for word in ("word", "é", "👩‍👩‍👧", "𝄞", "“"):
        assert plain.count(word) == text.count(word) or "```" in text
