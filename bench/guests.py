"""Guests for the benchmark of plugins: small tools as text, and a large one."""

import subprocess
import sys
from pathlib import Path

from wasmtime import wat2wasm

from gateway.sandbox.componentize import component_from_core

ECHO = Path(__file__).parents[1] / "plugins" / "echo" / "tool.wasm"
SPINS_FROM = 1_000  # bytes of input; a spinner answers a shorter input at once

_SPIN = f"""
  (if (i32.ge_u (local.get 1) (i32.const {SPINS_FROM})) (then (loop $on (br $on))))"""
_ASK = """
  (loop $more
    (call $get (i32.const 80) (i32.const 5) (i32.const 88) (i32.const 1) (i32.const 128))
    (local.set 2 (i32.add (local.get 2) (i32.const 1)))
    (br_if $more (i32.lt_u (local.get 2) (i32.const {times}))))"""
_GET = '(import "exogate:plugin/store@1.0.0" "get" (func $get (param i32 i32 i32 i32 i32)))'

# The compiler cannot fold away any of the values of the large tool.
_STEP, _STEP_BYTES, _STEPS = "v128.const i64x2 7 9 i8x16.swizzle ", 20, 300


def spinner(name: str = "spinner") -> bytes:
    """Returns a tool that never ends if its input is long."""
    return _tool(name, _SPIN)


def trapper() -> bytes:
    return _tool("trapper", "unreachable")


def asker(times: int) -> bytes:
    """Returns a tool that calls the host's store the given number of times."""
    return _tool("asker", _ASK.format(times=times), imports=_GET)


def large(size: int, file: Path) -> None:
    """Writes a tool of so many bytes of code. In another process, whose memory is gone afterwards:
    starting a compiler takes the longer the more memory a process has."""
    subprocess.run([sys.executable, "-m", "bench.guests", str(size), str(file)], check=True)


def _tool(name: str, body: str, *, imports: str = "", more: str = "") -> bytes:
    said = f'{{"name":"{name}","version":"1","tools":[{{"name":"{name}"}}]}}'
    escaped = said.replace('"', '\\"')
    core = wat2wasm(f"""(module {imports}
      (memory (export "memory") 4)
      (global $at (mut i32) (i32.const 4096))
      (data (i32.const 16) "\\00\\04\\00\\00\\{len(said):02x}\\00\\00\\00")
      (data (i32.const 32) "\\00\\00\\00\\00\\40\\00\\00\\00\\02\\00\\00\\00")
      (data (i32.const 64) "{{}}") (data (i32.const 80) "bench") (data (i32.const 88) "k")
      (data (i32.const 1024) "{escaped}")
      (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (local $start i32)
        (local.set $start (i32.and (i32.add (global.get $at) (i32.const 7)) (i32.const -8)))
        (global.set $at (i32.add (local.get $start) (local.get 3)))
        (local.get $start))
      (func (export "describe") (result i32) (i32.const 16))
      (func (export "handle-tool-call") (param i32 i32) (result i32) (local i32) {body}
        (i32.const 32))
      {more})""")
    return component_from_core(bytes(core), "tool")


# An echo in the interface of PyPI's extism. It parses nothing, so it does less work than the own echo.
EXTISM_ECHO = """(module
  (import "extism:host/env" "input_length" (func $length (result i64)))
  (import "extism:host/env" "input_load_u64" (func $read (param i64) (result i64)))
  (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
  (import "extism:host/env" "store_u64" (func $write (param i64 i64)))
  (import "extism:host/env" "output_set" (func $give (param i64 i64)))
  (memory (export "memory") 1)
  (func (export "handle_tool_call") (result i32) (local $at i64) (local $to i64)
    (local.set $to (call $alloc (call $length)))
    (loop $more
      (call $write (i64.add (local.get $to) (local.get $at)) (call $read (local.get $at)))
      (local.set $at (i64.add (local.get $at) (i64.const 8)))
      (br_if $more (i64.le_u (i64.add (local.get $at) (i64.const 8)) (call $length))))
    (call $give (local.get $to) (call $length))
    (i32.const 0)))"""


if __name__ == "__main__":
    filler = f"(func (param v128) (result v128) local.get 0 {_STEP * _STEPS})\n"
    count = max(1, int(sys.argv[1]) // (_STEP_BYTES * _STEPS))
    Path(sys.argv[2]).write_bytes(_tool("large", "", more=filler * count))
