"""Types as text: two that are type_text the same are the same."""

import pytest
from wasmtime import FuncType as CoreFunction
from wasmtime import ValType
from wasmtime.component import Component, FuncType

from gateway.sandbox.calls import component_engine
from gateway.sandbox.compiler import core_signature, signature_of


@pytest.mark.parametrize(
    ("wat", "type_text"),
    [
        ("", "()"),
        ('(param "a" u8) (result string)', "(u8)->string"),
        ('(param "a" (option (list u8)))', "(option<list<u8>>)"),
        ("(result (result))", "()->result<_,_>"),
        ("(result (result u64 (error string)))", "()->result<u64,string>"),
        ('(param "a" (tuple float32 char))', "(tuple<f32,char>)"),
        ('(param "a" (borrow $r)) (result (own $r))', "(borrow)->own"),
    ],
)
def test_a_components_function_is_spelled_as_wit_spells_it(wat: str, type_text: str) -> None:
    engine = component_engine()
    text = f'(component (import "r" (type $r (sub resource))) (import "f" (func {wat})))'
    function = Component(engine, text).type.imports(engine)["f"].ty
    assert isinstance(function, FuncType)

    assert signature_of(function) == type_text


def test_a_core_function_is_spelled_with_its_numbers() -> None:
    function = CoreFunction([ValType.i32(), ValType.i64()], [ValType.i32()])

    assert core_signature(function) == "(i32,i64)->i32"
    assert core_signature(CoreFunction([], [])) == "()"
