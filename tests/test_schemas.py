"""Schemas of tools are checked fast and with bounded cost."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.schemas import SCHEMA_CAP, SchemaChecks

PERSON = """{"type": "object", "additionalProperties": false, "required": ["name"], "properties": {
 "name": {"type": "string", "pattern": "^(a+)+$"},
 "ages": {"type": "array", "items": {"type": "integer"}}}}"""


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"name": "aa", "ages": [1, 2]}, None),
        ({}, 'arguments: "name" is a required property'),
        ({"name": 5}, 'name: 5 is not of type "string"'),
        ({"name": "a", "ages": [1, "x"]}, 'ages[1]: "x" is not of type "integer"'),
        ({"name": "a", "z": 1}, "arguments: Additional properties are not allowed"),
        ([], 'arguments: [] is not of type "object"'),
        ({"name": "\ud800"}, "arguments: not plain JSON"),
        ({1: 2}, "arguments: not plain JSON"),
        ({"name": object()}, "arguments: not plain JSON"),
    ],
)
def test_a_problem_names_the_field_and_what_is_wrong(value: object, problem: str | None) -> None:
    found = SchemaChecks().compile(PERSON)(value)

    assert found == problem or (problem and found and found.startswith(problem))


def test_a_pattern_that_stalls_other_engines_is_answered_at_once() -> None:
    check = SchemaChecks().compile(PERSON)

    assert check({"name": "a" * 50_000 + "!"})  # exponential in a backtracking engine: never ends


def test_a_long_value_does_not_make_a_long_problem() -> None:
    problem = SchemaChecks().compile(PERSON)({"name": "b" * 10_000})

    assert problem
    assert len(problem) < 350


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('{"$ref": "http://127.0.0.1:9/x.json"}', "only references like"),
        ('{"properties": {"a": {"$ref": "file:///etc/passwd"}}}', "only references like"),
        ('{"$id": "http://a.example/b", "$ref": "c"}', "only references like"),
        ('{"$schema": "http://a.example/own"}', "cannot be used"),
        ('{"$ref": "#/$defs/missing"}', "cannot be used"),
        ('{"type": "nonsense"}', "cannot be used"),
        ('{"pattern": "(?<=a)b"}', "cannot be used"),
        ("[1]", "not a JSON object"),
        ("{", "not JSON"),
        ('{"description": "' + "x" * SCHEMA_CAP + '"}', "at most 65536"),
    ],
)
def test_a_schema_that_could_do_harm_is_refused(schema: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SchemaChecks().compile(schema)


def test_references_that_double_at_every_step_are_refused() -> None:
    steps: dict[str, object] = {
        f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(40)
    }
    bomb = {"$ref": "#/$defs/s0", "$defs": steps | {"s40": {"type": "object"}}}

    with pytest.raises(ValueError, match="unfolds"):
        SchemaChecks().compile(json.dumps(bomb))


def test_a_schema_may_refer_to_itself_and_to_its_parts() -> None:
    tree = """{"type": "object", "properties": {"left": {"$ref": "#"}, "n": {"$ref": "#/$defs/a~1b"}},
               "$defs": {"a/b": {"type": "integer"}}}"""
    check = SchemaChecks().compile(tree)

    assert check({"left": {"left": {"n": 1}}}) is None
    assert check({"left": {"n": "x"}}) == 'left.n: "x" is not of type "integer"'


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=9))
def test_any_value_is_answered_and_never_raised(value: object) -> None:
    problem = SchemaChecks().compile(PERSON)(value)

    assert problem


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"a": value}
    return value


_TWICE = [{"$ref": "#"}, {"$ref": "#"}]


@pytest.mark.parametrize("how", ["anyOf", "allOf", "oneOf"])
def test_a_schema_that_comes_back_to_itself_twice_is_no_bomb(how: str) -> None:
    schema = {"properties": {"a": {how: [*_TWICE, {"type": "array"}]}}}
    check = SchemaChecks().compile(json.dumps(schema))

    assert check(nested(100)) == "arguments: too large or nested too deep to check"


def test_two_definitions_that_lead_to_each_other_are_no_bomb() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/x"}},
        "$defs": {
            "x": {"allOf": [{"$ref": "#/$defs/y"}, {"$ref": "#/$defs/y"}]},
            "y": {"properties": {"a": {"$ref": "#/$defs/x"}}},
        },
    }

    assert "nested too deep" in str(SchemaChecks().compile(json.dumps(schema))(nested(100)))


def test_a_tree_of_any_depth_is_checked() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}
    check = SchemaChecks().compile(json.dumps(schema))

    assert check({"a": {}, "b": {"a": {}}}) is None
    assert str(check(nested(50))).endswith('1 is not of type "object"')


def test_to_say_what_is_wrong_never_costs_more_than_the_check() -> None:
    schema = {"properties": {"a": {"anyOf": [{"type": "integer"}] * 100}}}
    problem = SchemaChecks().compile(json.dumps(schema))({"a": ["y"] * 10_000})

    assert problem == "arguments: do not fit the schema"


def test_a_pattern_that_needs_much_work_for_each_character_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        SchemaChecks().compile('{"properties": {"a": {"pattern": "(x{1,50}){1,20}y"}}}')


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_a_schema_that_no_provider_could_read_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        SchemaChecks().compile(f'{{"default": {number}}}')


def test_a_schema_of_many_levels_is_weighed_at_once() -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(60):
        schema = {"type": "object", "properties": {"a": schema}}
    began = time.perf_counter()

    SchemaChecks().compile(json.dumps(schema))

    assert time.perf_counter() - began < 1
