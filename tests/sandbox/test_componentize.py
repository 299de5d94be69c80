"""A core module with canonical names becomes a component of our world, or it is said what it lacks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wasmtime import Engine, Store, wat2wasm
from wasmtime.component import Component, Linker, LinkerInstance, Variant

from gateway.sandbox.compiler import inspect_component
from gateway.sandbox.componentize import HOST, NotConvertible, component_from_core
from gateway.sandbox.protocol import INTERFACES, import_name

MEMORY = """
  (memory (export "memory") 1)
  (global $free (mut i32) (i32.const 1024))
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (local $at i32)
    (local.set $at (global.get $free))
    (global.set $free (i32.add (local.get $at) (i32.and (i32.add (local.get 3) (i32.const 7)) (i32.const -8))))
    (local.get $at))
"""
DESCRIBE = """
  (data (i32.const 0) "\\10\\00\\00\\00\\02\\00\\00\\00")
  (data (i32.const 16) "{}")
  (func (export "describe") (result i32) (i32.const 0))
"""
# Gives its input back: tag 0, pointer, length at 32.
ECHO = """
  (func (export "{name}") (param i32 i32) (result i32)
    (i32.store (i32.const 36) (local.get 0))
    (i32.store (i32.const 40) (local.get 1))
    (i32.const 32))
"""


def core(*parts: str) -> bytes:
    return bytes(wat2wasm("(module " + "\n".join(parts) + ")"))


def imports(*functions: str) -> str:
    lines = []
    for full in functions:
        interface, name = full.split("/")
        result = "(result i64)" if full == "clock/now-ms" else ""
        parameters = f"(param{' i32' * HOST[full][1]})"
        lines.append(f'(import "{import_name(interface)}" "{name}" (func {parameters} {result}))')
    return "\n".join(lines)


def imported_by(component: bytes) -> tuple[str, ...]:
    engine = Engine()
    return inspect_component(Component(engine, component), engine).imports


def called(component: bytes, export: str, text: str) -> Variant:
    engine = Engine()
    store = Store(engine)
    loaded = Component(engine, component)
    linker = Linker(engine)
    linker.define_unknown_imports_as_traps(loaded)
    function = linker.instantiate(store, loaded).get_func(store, export)
    assert function is not None
    answer = function(store, text)
    assert isinstance(answer, Variant)
    return answer


def test_a_core_without_imports_becomes_a_component_without_imports() -> None:
    made = component_from_core(core(MEMORY, DESCRIBE, ECHO.format(name="handle-tool-call")), "tool")

    assert imported_by(made) == ()
    assert called(made, "handle-tool-call", "Grüße 🦊") == Variant("ok", "Grüße 🦊")


def test_names_with_underscores_will_do() -> None:
    made = component_from_core(core(MEMORY, DESCRIBE, ECHO.format(name="handle_tool_call")), "tool")

    assert called(made, "handle-tool-call", "x") == Variant("ok", "x")


@pytest.mark.parametrize("function", sorted(HOST))
def test_every_function_of_the_host_has_the_type_of_the_published_package(function: str) -> None:
    module = core(imports(function), MEMORY, DESCRIBE, ECHO.format(name="handle-tool-call"))

    made = component_from_core(module, "tool")

    interface, name = function.split("/")
    assert imported_by(made) == (f"{import_name(interface)}#{name}",)


def test_the_table_of_the_host_lists_the_published_package() -> None:
    assert set(HOST) == {f"{i}/{name}" for i, functions in INTERFACES.items() for name in functions}


def test_only_what_the_core_uses_is_imported() -> None:
    module = core(
        imports("store/set", "clock/now-ms", "store/get"),
        MEMORY,
        DESCRIBE,
        ECHO.format(name="handle-tool-call"),
    )

    assert set(imported_by(component_from_core(module, "tool"))) == {
        "exogate:plugin/clock@1.0.0#now-ms",
        "exogate:plugin/store@1.0.0#get",
        "exogate:plugin/store@1.0.0#set",
    }


def test_the_core_reaches_the_right_function_with_the_right_values() -> None:
    use = """
      (func (export "handle-tool-call") (param i32 i32) (result i32)
        (call $log (i32.const 2) (local.get 0) (local.get 1))
        (call $call (local.get 0) (i32.const 3) (local.get 0) (local.get 1) (i32.const 64))
        (i32.store (i32.const 32) (i32.load (i32.const 64)))
        (i32.store (i32.const 36) (i32.load (i32.const 68)))
        (i32.store (i32.const 40) (i32.load (i32.const 72)))
        (i32.const 32))
      (func (export "cabi_post_handle-tool-call") (param i32))
    """
    host = f"""
      (import "{import_name("log")}" "write" (func $log (param i32 i32 i32)))
      (import "{import_name("host")}" "call" (func $call (param i32 i32 i32 i32 i32)))
    """
    heard: list[tuple[str, ...]] = []

    def log(_: object, level: str, text: str) -> None:
        heard.append(("log", level, text))

    def call(_: object, name: str, given: str) -> Variant:
        heard.append(("call", name, given))
        return Variant("err", f"no {name}")

    engine = Engine()
    store = Store(engine)
    linker = Linker(engine)
    with linker.root() as root:
        offer(root, "log", "write", log)
        offer(root, "host", "call", call)
    made = Component(engine, component_from_core(core(host, MEMORY, DESCRIBE, use), "tool"))
    function = linker.instantiate(store, made).get_func(store, "handle-tool-call")

    assert function is not None
    assert function(store, "abcdé") == Variant("err", "no abc")
    assert heard == [("log", "warn", "abcdé"), ("call", "abc", "abcdé")]


def offer(root: LinkerInstance, interface: str, name: str, function: object) -> None:
    with root.add_instance(import_name(interface)) as instance:
        instance.add_func(name, function)


def test_a_channel_has_two_calls() -> None:
    module = core(
        imports("store/get"),
        MEMORY,
        DESCRIBE,
        ECHO.format(name="parse-incoming"),
        ECHO.format(name="format_outgoing"),
    )

    made = component_from_core(module, "channel")

    engine = Engine()
    assert inspect_component(Component(engine, made), engine).kind == "channel"
    assert called(made, "parse-incoming", "in") == Variant("ok", "in")
    assert called(made, "format-outgoing", "out") == Variant("ok", "out")


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ((MEMORY, ECHO.format(name="handle-tool-call")), "does not export the function 'describe'"),
        ((MEMORY, DESCRIBE), "does not export the function 'handle-tool-call'"),
        ((), "does not export the memory 'memory'"),
        (('(memory (export "memory") 1)',), "the function 'cabi_realloc'"),
        (
            (MEMORY, DESCRIBE, '(memory (export "handle-tool-call") 1)'),
            "does not export the function 'handle-tool-call'",
        ),
        (('(import "env" "abort" (func))', MEMORY), "it imports 'env' 'abort'"),
        (('(import "exogate:plugin/log@2.0.0" "write" (func))', MEMORY), "log@2.0.0"),
        (('(import "exogate:plugin/log@1.0.0" "read" (func))', MEMORY), "'read'"),
        (('(import "env" "memory" (memory 1))',), "'memory', which is not a function"),
    ],
)
def test_what_is_missing_or_unknown_is_named(parts: tuple[str, ...], problem: str) -> None:
    with pytest.raises(NotConvertible, match="it ") as refusal:
        component_from_core(core(*parts), "tool")

    assert problem in str(refusal.value)


def test_a_channel_may_not_import_what_only_a_tool_may() -> None:
    module = core(imports("http/request"), MEMORY, DESCRIBE)

    with pytest.raises(NotConvertible, match="a channel may import these functions"):
        component_from_core(module, "channel")


def test_a_component_is_no_core_module() -> None:
    with pytest.raises(NotConvertible, match="not a WebAssembly core module"):
        component_from_core(bytes(wat2wasm("(component)")), "tool")


GOOD = core(imports("log/write"), MEMORY, DESCRIBE, ECHO.format(name="handle-tool-call"))


@given(at=st.integers(8, len(GOOD) - 1), byte=st.integers(0, 255), end=st.integers(0, len(GOOD)))
def test_a_damaged_module_is_refused_or_wrapped_and_nothing_else(
    at: int, byte: int, end: int
) -> None:
    damaged = (GOOD[:at] + bytes([byte]) + GOOD[at + 1 :])[:end]

    try:
        made = component_from_core(damaged, "tool")
    except NotConvertible:
        return
    assert made.startswith(b"\0asm\x0d\0\1\0")
