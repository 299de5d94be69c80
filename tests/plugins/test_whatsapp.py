"""Whatever comes from WhatsApp is read, and what goes out is within its limit."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.channels.adapter_json import read_formatted, read_parsed
from tests.forms import examples
from tests.plugins.running import Guest, Json

ADAPTER = Path(__file__).parent.parent.parent / "plugins" / "whatsapp" / "tool.wasm"
NUMBER = "106540352242922"
CONFIG = {"phone_number_id": NUMBER}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
KINDS = (
    *("text", "image", "document", "interactive", "button", "location", "contacts", "order"),
    *("reaction", "unsupported", "edit"),
)
MESSAGES = st.builds(
    lambda kind, part, more: {"type": kind, kind: part, "id": "wamid.ODD", "from": "1", **more},
    *(st.sampled_from(KINDS), VALUES),
    st.dictionaries(st.sampled_from(["id", "from", "context", "timestamp", "group_id"]), VALUES),
)


@pytest.fixture(scope="module")
def whatsapp() -> Guest:
    return Guest.load(ADAPTER)


def said(text: str) -> Json:
    return {"type": "text", "id": "wamid.LAST", "from": "2", "text": {"body": text}}


def call(*messages: Json) -> Json:
    value = {"metadata": {"phone_number_id": NUMBER}, "messages": messages}
    return {"entry": [{"changes": [{"field": "messages", "value": value}]}]}


@settings(deadline=None, max_examples=examples(150))
@given(odd=st.lists(MESSAGES | VALUES, max_size=4))
def test_no_message_keeps_the_next_from_being_read(whatsapp: Guest, odd: list[Json]) -> None:
    given = {"body": json.dumps(call(*odd, said("hello"))), "config": CONFIG}

    did, text = whatsapp.run({"call": {"export": "parse-incoming", "input": given}})

    assert did, text
    last = read_parsed(text).messages[-1]
    assert (last.platform_id, last.text) == ("wamid.LAST", "hello")


@settings(deadline=None, max_examples=examples(150))
@given(units=st.lists(st.sampled_from([0x41, 0x5C, 0x75, 0xD83D, 0xDE00, 0xE9]), max_size=12))
def test_halves_of_characters_are_replaced_and_nothing_else(
    whatsapp: Guest, units: list[int]
) -> None:
    text = "".join(map(chr, units))
    given = {"body": json.dumps(call(said(text))), "config": CONFIG}

    did, answer = whatsapp.run({"call": {"export": "parse-incoming", "input": given}})

    assert did, answer
    meant = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert read_parsed(answer).messages[-1].text == meant


@settings(deadline=None, max_examples=examples(50))
@given(text=st.text("ab*_~`[](h)\n> #é😀", max_size=50), times=st.integers(1, 200))
def test_what_would_be_too_long_is_said_to_be(whatsapp: Guest, text: str, times: int) -> None:
    asked = {"do": "send", "peer": "1", "text": text * times, "api_base": "https://w.example"}

    did, answer = whatsapp.run(
        {"call": {"export": "format-outgoing", "input": asked | {"config": CONFIG}}}
    )

    assert did, answer
    formatted = read_formatted(answer)
    bodies = [json.loads(one.body)["text"]["body"] for one in formatted.requests]
    assert formatted.too_long == (not bodies)
    assert all(len(body.encode("utf-16-le")) <= 2 * 4_096 for body in bodies)
