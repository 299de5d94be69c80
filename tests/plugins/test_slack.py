"""Markdown becomes mrkdwn in which nothing is a mark that was not meant as one."""

import json
import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.running import Guest

TOOL = Path(__file__).parent.parent.parent / "plugins" / "slack" / "tool.wasm"
GAP = "\u200b"
TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=GAP + "\r"), max_size=60
)
MARKED = st.lists(
    st.sampled_from(
        ["*", "**", "***", "_", "~~", "`", "``", "\n```py\n", "[", "](https://a.example/|<x>)"]
        + ["<!channel>", "<!here|x>", "<!subteam^S1>", "<@U1>", "<#C1>", "<@U1|x>", "<", ">", "!"]
        + ["\n", "\n> ", "\n- ", "\n# ", "\n|---|---|\n", "|", "\\", "&", "&lt;", " ", "word", "é"]
    ),
    max_size=30,
).map("".join)
MEANT = re.compile(r"<(?:@[UW][A-Z0-9]*|#C[A-Z0-9]*|https?://[^<>|\n]+\|[^<>\n]+)>")


@pytest.fixture(scope="module")
def slack() -> Guest:
    return Guest.load(TOOL)


def sent(slack: Guest, text: str) -> str:
    reply = {"do": "send", "peer": "C1", "text": text, "api_base": "https://api.example.com"}
    answer = slack.call("format-outgoing", json.dumps(reply))
    assert answer.tag == "ok"
    body = json.loads(json.loads(answer.payload)["requests"][0]["body"])
    return str(body["text"])


@given(TEXTS)
def test_a_text_whose_marks_are_escaped_comes_through_as_it_is(slack: Guest, text: str) -> None:
    escaped = "".join(f"\\{one}" if one in string.punctuation else one for one in text)

    out = sent(slack, escaped).replace(GAP, "")

    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        out = out.replace(entity, character)
    assert out == text


@given(MARKED)
def test_nothing_stands_in_brackets_but_persons_rooms_and_links(slack: Guest, text: str) -> None:
    out = sent(slack, text)

    assert "<" not in MEANT.sub("", out)
