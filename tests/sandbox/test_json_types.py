"""Types of components as JSON: every value there and back, and what does not fit is named."""

import ctypes
import json
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wasmtime import Engine, Store
from wasmtime import _ffi as ffi
from wasmtime.component import Component, ComponentInstanceType, FuncType, ValType

from gateway.sandbox.calls import component_engine, open_store, patch_binding
from gateway.sandbox.components import NotInJson, TypeMismatch, shape_of
from tests.fakes.guests import call_of

TypeOf = Callable[[str], ValType]


@pytest.fixture(scope="module")
def engine() -> Engine:
    patch_binding()
    return component_engine()


@pytest.fixture(scope="module")
def store(engine: Engine) -> Iterator[Store]:
    with open_store(engine, call_of([])) as made:
        yield made


@pytest.fixture(scope="module")
def type_of(engine: Engine) -> TypeOf:
    """The type that WebAssembly text spells."""

    def found(type_text: str) -> ValType:
        wat = f"""(component (type $u' {type_text}) (import "t" (type $t (eq $u')))
          (import "i" (instance (alias outer 1 $t (type $x)) (export "t" (type $u (eq $x)))
            (export "f" (func (param "a" $u))))))"""
        imported = Component(engine, wat).type.imports(engine)["i"].ty
        assert isinstance(imported, ComponentInstanceType)
        kind = imported.exports(engine)["f"].ty
        assert isinstance(kind, FuncType)
        return kind.params[0][1]

    return found


def across(kind: ValType, store: Store, value: object) -> object:
    """JSON to JSON, by way of the binding and of wasmtime's own form of a value."""
    shape, cell = shape_of(kind), ffi.wasmtime_component_val_t()
    kind.convert_to_c(store, shape.read(value), ctypes.pointer(cell))
    told = shape.write(kind.convert_from_c(cell))
    return json.loads(json.dumps(told))


_RECORD = '(record (field "a-b" u8) (field "c" (option string)))'
_VARIANT = '(variant (case "none-of-it") (case "some" u8) (case "more" (list string)))'


@pytest.mark.parametrize(
    ("type_text", "values"),
    [
        ("bool", [True, False]),
        ("u8", [0, 255]),
        ("s16", [-32768, 32767]),
        ("u64", [0, 2**64 - 1]),
        ("s64", [-(2**63), 2**63 - 1]),
        ("float64", [0.5, -3.0]),
        ("char", ["x", "😀"]),
        ("string", ["", "ü\0😀"]),
        ("(list u8)", ["", "AP8=", "YWJj"]),
        ("(list string)", [[], ["a", "b"]]),
        ("(list (list u16))", [[[1], []]]),
        ("(tuple u8 string)", [[1, "a"]]),
        ("(option u8)", [None, 3]),
        ("(option (list u8))", [None, "YQ=="]),
        ("(enum \"red\" \"green\")", ["red"]),
        ("(flags \"read\" \"write\")", [[], ["read", "write"]]),
        ("(result u8 (error string))", [{"ok": 3}, {"err": "no"}]),
        ("(result string (error string))", [{"ok": "yes"}, {"err": "no"}]),
        ("(result (error string))", [{"ok": None}, {"err": "no"}]),
        (_RECORD, [{"a-b": 1, "c": "x"}, {"a-b": 1, "c": None}]),
        (_VARIANT, [{"none-of-it": None}, {"some": 7}, {"more": ["a"]}]),
    ],
)  # fmt: skip
def test_a_value_comes_back_as_it_was(
    type_of: TypeOf, store: Store, type_text: str, values: list[object]
) -> None:
    kind = type_of(type_text)

    assert [across(kind, store, value) for value in values] == values


@given(value=st.binary())
def test_any_bytes_come_back_as_they_were(engine: Engine, store: Store, value: bytes) -> None:
    wat = '(component (import "f" (func (param "a" (list u8)))))'
    function = Component(engine, wat).type.imports(engine)["f"].ty
    assert isinstance(function, FuncType)
    kind, cell = function.params[0][1], ffi.wasmtime_component_val_t()

    kind.convert_to_c(store, value, ctypes.pointer(cell))

    assert kind.convert_from_c(cell) == value


@pytest.mark.parametrize(
    ("type_text", "value", "why"),
    [
        ("bool", 1, "must be true or false"),
        ("u8", 256, "must be an integer from 0 to 255"),
        ("u8", True, "must be an integer from 0 to 255"),
        ("s8", 1.0, "must be an integer from -128 to 127"),
        ("float32", "1", "must be a number"),
        ("float64", 10**400, "must be a number"),
        ("char", "ab", "must be one character"),
        ("string", 1, "must be a text"),
        ("string", "\ud800", "must be a text"),
        ("(list u8)", "%", "must be base64"),
        ("(list u8)", [1], "must be base64"),
        ("(list u16)", {}, "must be a list"),
        ("(list u16)", ["a"], "must be an integer from 0 to 65535"),
        ("(tuple u8 u8)", [1], "must be a list of 2"),
        ('(enum "red" "green")', "blue", "must be one of red, green"),
        ('(flags "read")', ["write"], "must be a flag"),
        (_RECORD, {"c": "x"}, "a-b is missing"),
        (_RECORD, [], "must be an object"),
        (_VARIANT, {"other": 1}, "must be an object with one of none-of-it, some, more"),
        (_VARIANT, {"some": 1, "more": []}, "must be an object with one of none-of-it, some, more"),
        (_VARIANT, {}, "must be an object with one of none-of-it, some, more"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(
    type_of: TypeOf, type_text: str, value: object, why: str
) -> None:
    with pytest.raises(TypeMismatch) as raised:
        shape_of(type_of(type_text)).read(value)

    assert str(raised.value) == why


def test_a_schema_says_what_is_wanted(type_of: TypeOf) -> None:
    assert shape_of(type_of(_RECORD)).schema == {
        "type": "object",
        "properties": {
            "a-b": {"type": "integer", "minimum": 0, "maximum": 255},
            "c": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["a-b"],
        "additionalProperties": False,
    }


def test_a_handle_cannot_be_said_in_json(engine: Engine) -> None:
    wat = """(component (import "r" (type $r (sub resource)))
      (import "f" (func (param "a" (list (borrow $r))))))"""
    function = Component(engine, wat).type.imports(engine)["f"].ty
    assert isinstance(function, FuncType)

    with pytest.raises(NotInJson):
        shape_of(function.params[0][1])
