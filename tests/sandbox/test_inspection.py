"""What a file is, by its exports and imports: spoken to, or refused with what it lacks."""

import pytest
from wasmtime import Module
from wasmtime.component import Component

from gateway.sandbox.calls import component_engine, core_engine
from gateway.sandbox.compiler import NotAPlugin, inspect_component, inspect_module


@pytest.mark.parametrize(
    ("wat", "why"),
    [
        ('(import "env" "f" (func))', "it imports env#f, which the host does not offer"),
        ('(import "extism:host/env" "fly" (func))', "it imports extism:host/env#fly, which the host does not offer"),
        ('(import "extism:host/env" "free" (func))', "it imports extism:host/env#free as (); it must be (i64)"),
        ('(import "extism:host/env" "memory" (memory 1))', "it imports extism:host/env#memory, which the host does not offer"),
        ('(import "extism:host/user" "f" (func (param i32)))', "it imports extism:host/user#f as (i32); it must be (i64)->i64 or (i64)"),
        ('(func (export "handle_tool_call") (param i32))', "handle_tool_call is (i32); it must be () or ()->i32"),
        ("", "the export handle_tool_call is missing"),
    ],
)  # fmt: skip
@pytest.mark.requirement("S-003-Plugin-08")
def test_a_module_that_cannot_be_spoken_to_is_refused_by_name(wat: str, why: str) -> None:
    imports = '(import "extism:host/env" "alloc" (func (param i64) (result i64)))'
    mine, exports = (wat, "") if wat.startswith("(import") else ("", wat)
    module = f'(module {imports} {mine} {exports} (func (export "describe")))'

    with pytest.raises(NotAPlugin) as raised:
        inspect_module(Module(core_engine(), module))

    assert str(raised.value) == why


def exporting(*exports: str) -> str:
    """A component whose functions trap."""
    functions = "".join(
        f'(func (export {one} (canon lift (core func $main "f") (memory $m) (realloc $r)))'
        for one in exports
    )
    return f"""(component (core module $main (memory (export "memory") 1)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) unreachable)
        (func (export "f") (param i32 i32) (result i32) unreachable)
        (func (export "g") (result i32) unreachable))
      (core instance $main (instantiate $main))
      (alias core export $main "memory" (core memory $m))
      (alias core export $main "realloc" (core func $r))
      {functions}
      (func (export "describe") (result string) (canon lift (core func $main "g") (memory $m))))"""


_CALL = '"{}") (param "a" string) (result (result string (error string)))'
_TOOL = _CALL.format("handle-tool-call")
_IN, _OUT = _CALL.format("parse-incoming"), _CALL.format("format-outgoing")


@pytest.mark.requirement("S-003-Plugin-03")
@pytest.mark.parametrize(("exports", "kind"), [([_TOOL], "tool"), ([_IN, _OUT], "channel")])
def test_a_component_is_what_its_exports_are(exports: list[str], kind: str) -> None:
    engine = component_engine()

    found = inspect_component(Component(engine, exporting(*exports)), engine)

    assert (found.guest, found.kind) == ("exogate", kind)


@pytest.mark.parametrize(
    ("exports", "why"),
    [
        ([_TOOL, _IN, _OUT], "it is a tool and a channel adapter; split it into two plugins"),
        ([_IN], "the export format-outgoing is missing"),
        ([_TOOL.replace("(result (result string (error string)))", "(result string)")],
         "handle-tool-call is (string)->string; it must be (string)->result<string,string>"),
        ([], "it exports no function; a tool exports describe and handle-tool-call"),
    ],
)  # fmt: skip
@pytest.mark.requirement("S-003-Plugin-08")
def test_a_component_that_cannot_be_spoken_to_is_refused_by_name(
    exports: list[str], why: str
) -> None:
    engine = component_engine()

    with pytest.raises(NotAPlugin) as raised:
        inspect_component(Component(engine, exporting(*exports)), engine)

    assert str(raised.value) == why
