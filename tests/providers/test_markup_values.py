"""A value that was written as text gets the type that the schema names, and is never guessed at."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.model import ToolSpec
from gateway.providers.markup import encode_arguments, unescape_entities

DEFINITIONS = {"number": {"type": "integer"}, "itself": {"$ref": "#/$defs/itself"}}


def typed(value: str, schema: Any, *, is_json: bool = False) -> Any:
    parameters = json.dumps({"properties": {"a": schema}, "$defs": DEFINITIONS})
    return json.loads(encode_arguments(ToolSpec("t", "", parameters), [("a", value, is_json)]))["a"]


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("5", {"type": "string"}, "5"),
        (" true ", {"type": "string"}, " true "),
        ('{"a": 1}', {"type": ["string", "object"]}, '{"a": 1}'),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string"}, "null"),
        ("5", {"type": "integer"}, 5),
        ("5.0", {"type": "integer"}, 5.0),
        ("5.5", {"type": "integer"}, "5.5"),
        ("five", {"type": "integer"}, "five"),
        ("-2e3", {"type": "number"}, -2000.0),
        ("NaN", {"type": "number"}, "NaN"),
        ("1", {"type": "boolean"}, "1"),
        ("True", {"type": "boolean"}, True),
        ("None", {"type": ["integer", "null"]}, None),
        ('\n{"b": [1]}\n', {"type": "object"}, {"b": [1]}),
        ("[1, 2", {"type": "array"}, "[1, 2"),
        ("3", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3),
        ("3", {"oneOf": [{"type": "integer"}, {"type": "string"}]}, "3"),
        ("3", {"enum": [1, 3]}, 3),
        ("3", {"enum": ["1", "3"]}, "3"),
        ("3", {"const": 3}, 3),
        ("3", {"$ref": "#/$defs/number"}, 3),
        ("3", {"$ref": "#/$defs/nowhere"}, "3"),
        ("3", {"$ref": "#/$defs/itself"}, "3"),
        ("3", {"description": "anything"}, "3"),
        ("3", True, "3"),
    ],
)
@pytest.mark.requirement("S-002-XML-07")
def test_a_value_has_the_type_that_its_schema_names(
    value: str, schema: Any, expected: object
) -> None:
    found = typed(value, schema)

    assert (found, type(found)) == (expected, type(expected))


def test_where_the_schema_is_silent_the_dialect_may_say_that_it_is_json() -> None:
    assert typed("[1]", {}, is_json=True) == [1]
    assert typed("[1]", {"type": "string"}, is_json=True) == "[1]"
    assert json.loads(encode_arguments(None, [("a", "1", False), ("b", "1", True)])) == {
        "a": "1",
        "b": 1,
    }


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_string_survives_whatever_it_holds(text: str) -> None:
    assert typed(text, {"type": "string"}) == text


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("a &lt; b &amp;&amp; c", "a < b && c"),
        ("a < b &amp; c", "a < b &amp; c"),
        ("R&D &amp; more", "R&D &amp; more"),
        ("&amp;lt;", "&lt;"),
        ("&nbsp;", "&nbsp;"),
        ("&quot;x&apos; &gt;", "\"x' >"),
    ],
)
def test_entities_are_decoded_where_all_of_a_value_is_escaped(written: str, meant: str) -> None:
    assert unescape_entities(written) == meant
