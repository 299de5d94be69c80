"""Markdown becomes Discord's, in which what is no mark is escaped."""

import json
import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.running import Guest, Json

TOOL = Path(__file__).parent.parent.parent / "plugins" / "discord" / "tool.wasm"
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=60)
ESCAPED = re.compile(rf"\\([{re.escape(string.punctuation)}])")
MARKS = ["**", "*", "~~"]


@pytest.fixture(scope="module")
def discord() -> Guest:
    return Guest.load(TOOL)


def sent(discord: Guest, text: str) -> Json:
    reply = {"do": "send", "peer": "1", "text": text, "api_base": "https://api.example.com"}
    answer = discord.call("format-outgoing", json.dumps(reply))
    assert answer.tag == "ok"
    return json.loads(json.loads(answer.payload)["requests"][0]["body"])


@given(TEXTS)
def test_a_text_whose_marks_are_escaped_comes_through_as_it_is(discord: Guest, text: str) -> None:
    escaped = "".join(f"\\{one}" if one in string.punctuation else one for one in text)

    body = sent(discord, escaped)

    assert ESCAPED.sub(r"\1", body["content"]) == text
    assert body["allowed_mentions"] == {"parse": []}


@given(st.sampled_from("\\*~_|"), st.sampled_from(MARKS))
def test_a_character_beside_a_mark_stays_apart_from_it(
    discord: Guest, character: str, mark: str
) -> None:
    text = f"a \\{character}{mark}word{mark}"

    content = sent(discord, text)["content"]

    assert content == text
