"""Components whose plain functions are tools: described by their types, called with JSON."""

import json
from pathlib import Path

import pytest
from wasmtime import Engine
from wasmtime.component import Component

from gateway.sandbox.calls import component_engine
from gateway.sandbox.compiler import NotAPlugin, inspect_component
from gateway.sandbox.components import FunctionsGuest
from tests.fakes.guests import Answered, ask, component_program

_WAT = """(component
  (import "wasi:filesystem/preopens@0.2.0" (instance $unused (export "get-directories" (func (result u32)))))
  (type $thing (resource (rep i32)))
  (core module $main
    (memory (export "memory") 1)
    (global $free (mut i32) (i32.const 1024))
    (global $calls (mut i32) (i32.const 0))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (local $at i32)
      (local.set $at (global.get $free))
      (global.set $free (i32.add (global.get $free) (local.get 3)))
      (local.get $at))
    (func (export "add") (param i32 i64) (result i64)
      (i64.add (i64.extend_i32_u (local.get 0)) (local.get 1)))
    (func (export "say") (param i32 i32) (result i32)
      (i32.store8 (i32.const 0) (i32.eqz (local.get 1)))
      (i32.store (i32.const 4) (local.get 0))
      (i32.store (i32.const 8) (local.get 1))
      (i32.const 0))
    (func (export "spin") (loop $on (br $on)))
    (func (export "count") (result i32)
      (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
      (global.get $calls)))
  (core instance $main (instantiate $main))
  (alias core export $main "memory" (core memory $m))
  (alias core export $main "realloc" (core func $realloc))
  (func (export "add") (param "left" u32) (param "right" s64) (result s64)
    (canon lift (core func $main "add")))
  (func (export "say-it") (param "words" string) (result (result string (error string)))
    (canon lift (core func $main "say") (memory $m) (realloc $realloc)))
  (func (export "spin") (canon lift (core func $main "spin")))
  (func (export "count") (result u32) (canon lift (core func $main "count"))))"""


@pytest.fixture(scope="module")
def guest(components: Engine, tmp_path_factory: pytest.TempPathFactory) -> FunctionsGuest:
    folder: Path = tmp_path_factory.mktemp("functions")
    return FunctionsGuest(components, component_program(components, folder, _WAT, {}, "functions"))


def call(guest: FunctionsGuest, tool: str, **arguments: object) -> Answered:
    return ask(guest, json.dumps({"tool": tool, "arguments": arguments}), seconds=0.5)


def test_each_function_is_a_tool(guest: FunctionsGuest) -> None:
    told = json.loads(ask(guest, function="describe").text)

    assert [tool["name"] for tool in told["tools"]] == ["add", "say-it", "spin", "count"]
    assert told["tools"][1] == {
        "name": "say-it",
        "description": "say-it(string)->result<string,string>",
        "parameters": {
            "type": "object",
            "properties": {"words": {"type": "string"}},
            "required": ["words"],
            "additionalProperties": False,
        },
    }


def test_arguments_go_by_their_names_and_a_value_comes_back_as_json(guest: FunctionsGuest) -> None:
    assert call(guest, "add", right=-5, left=3).text == "-2"
    assert call(guest, "say-it", words='"ü"').text == '"\\"\\u00fc\\""'
    assert call(guest, "count").text == call(guest, "count").text == "1"


def test_an_error_of_the_function_is_the_tools(guest: FunctionsGuest) -> None:
    failed = call(guest, "say-it", words="")

    assert (failed.status, failed.text) == ("err", "")


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("add", {"left": 1}, "invalid arguments: right is missing"),
        ("add", {"left": -1, "right": 1}, "invalid arguments: must be an integer from 0 to 4294967295"),
        ("fly", {}, "there is no tool fly"),
    ],
)  # fmt: skip
def test_what_cannot_be_called_is_told(
    guest: FunctionsGuest, tool: str, arguments: dict[str, object], why: str
) -> None:
    failed = call(guest, tool, **arguments)

    assert (failed.status, failed.text) == ("err", why)


def test_an_endless_function_ends_in_time(guest: FunctionsGuest) -> None:
    assert call(guest, "spin").status == "timeout"


def test_what_it_has_not_is_told(guest: FunctionsGuest) -> None:
    assert ask(guest, function="parse-incoming").status == "invalid"


def test_plain_functions_are_recognised_and_types_without_end_are_not(components: Engine) -> None:
    doubled = "".join(f"(type $t{n} (tuple $t{n - 1} $t{n - 1}))" for n in range(1, 13))
    endless = f"""(component (type $t0 (tuple u8 u8)) {doubled}
      (core module $main (memory (export "memory") 1)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 0))
        (func (export "f") (param i32)))
      (core instance $main (instantiate $main))
      (func (export "f") (param "a" $t12) (canon lift (core func $main "f")
        (memory (core memory $main "memory")) (realloc (core func $main "realloc")))))"""

    assert inspect_component(Component(components, _WAT), components).guest == "functions"
    with pytest.raises(NotAPlugin, match="the type of f is too large"):
        inspect_component(Component(components, endless), components)


def _of_type(type_text: str, levels: int) -> str:
    types = ["(type $t0 u32)"]
    for number in range(levels):
        body = type_text.format(f"$t{number}")
        types.append(
            f'(type $d{number} {body}) (export $t{number + 1} "t{number}" (type $d{number}))'
        )
    types[1] = types[1].replace("$t0)", "u32)")
    return f"""(component {" ".join(types[1:])}
      (core module $main (memory (export "memory") 1)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 0))
        (func (export "go") (param i32)))
      (core instance $main (instantiate $main))
      (alias core export $main "memory" (core memory $m))
      (alias core export $main "realloc" (core func $realloc))
      (func (export "go") (param "x" $t{levels})
        (canon lift (core func $main "go") (memory $m) (realloc $realloc))))"""


@pytest.mark.parametrize("type_text", ['(record (field "a" {}))', '(variant (case "a" {}))'])
def test_a_type_in_a_type_in_a_type_is_loaded_at_once(type_text: str, tmp_path: Path) -> None:
    components = component_engine()
    program = component_program(components, tmp_path, _of_type(type_text, 60), {}, "functions")

    described = ask(FunctionsGuest(components, program), function="describe")

    assert described.status == "ok"
    assert described.text.count('"properties"') == 61


def test_a_list_that_takes_long_to_take_over_ends_the_call(tmp_path: Path) -> None:
    wat = """(component
      (core module $main (memory (export "memory") 64)
        (func (export "go") (result i32)
          (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 900000))
          (i32.const 0)))
      (core instance $main (instantiate $main))
      (alias core export $main "memory" (core memory $m))
      (func (export "go") (result (list u32)) (canon lift (core func $main "go") (memory $m))))"""
    components = component_engine()
    guest = FunctionsGuest(
        components, component_program(components, tmp_path, wat, {}, "functions")
    )

    answered = ask(guest, json.dumps({"tool": "go", "arguments": {}}))

    assert (answered.status, answered.text) == (
        "output_too_large",
        "it passed lists with too many elements",
    )


def test_a_component_of_very_many_exports_is_refused() -> None:
    exports = " ".join(f'(export "f{number}" (func $f))' for number in range(1001))
    wat = f"""(component (core module $m (func (export "f"))) (core instance $i (instantiate $m))
      (func $f (canon lift (core func $i "f"))) {exports})"""
    components = component_engine()

    with pytest.raises(NotAPlugin, match="more than 1000"):
        inspect_component(Component(components, wat), components)
