"""Guests written in WAT: small core modules, wrapped into components of our world."""

import json
from pathlib import Path

from wasmtime import wat2wasm

from gateway.sandbox.componentize import component_from_core

SHOWN = {"name": "guest", "version": "1", "tools": [{"name": "run", "description": "Runs."}]}

MEMORY = '(memory (export "memory") 4)'
# Gives out memory from 64 KiB on and takes none back: an instance lives for one call.
REALLOC = """
(global $free (mut i32) (i32.const 65536))
(func $give (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (local $at i32)
  (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
  (global.set $free (i32.add (local.get $at) (local.get 3)))
  (if (i32.gt_u (global.get $free) (i32.mul (memory.size) (i32.const 65536)))
    (then (drop (memory.grow (i32.add (i32.const 1) (i32.shr_u (local.get 3) (i32.const 16)))))))
  (local.get $at))
"""
# `$ok` and `$err` answer with a text that lies in memory.
ANSWER = """
(func $say (param $tag i32) (param $at i32) (param $length i32) (result i32)
  (i32.store (i32.const 32) (local.get $tag))
  (i32.store (i32.const 36) (local.get $at))
  (i32.store (i32.const 40) (local.get $length))
  (i32.const 32))
(func $ok (param i32 i32) (result i32) (call $say (i32.const 0) (local.get 0) (local.get 1)))
(func $err (param i32 i32) (result i32) (call $say (i32.const 1) (local.get 0) (local.get 1)))
"""


def describing(text: str) -> str:
    """A `describe` that answers this text, which lies at 1024 and is up to 63 KiB long."""
    raw = text.encode()
    return f"""
(data (i32.const 1024) "{"".join(f"{chr(92)}{byte:02x}" for byte in raw)}")
(func (export "describe") (result i32)
  (i32.store (i32.const 16) (i32.const 1024))
  (i32.store (i32.const 20) (i32.const {len(raw)}))
  (i32.const 16))
"""


DESCRIBE = describing(json.dumps(SHOWN))
# Exports of a component whose core instance `$i` answers.
_MEMORY = '(memory (core memory $i "memory")) (realloc (core func $i "cabi_realloc"))'
LIFTS = f"""
(func (export "describe") (result string) (canon lift (core func $i "describe") {_MEMORY}))
(func (export "handle-tool-call") (param "input" string) (result (result string (error string)))
  (canon lift (core func $i "handle-tool-call") {_MEMORY}))
"""
CORE = ""  # of a core module that shall stay one
PIECES = {
    "lifts": LIFTS,
    "core": CORE,
    "memory": MEMORY,
    "realloc": REALLOC,
    "answer": ANSWER,
    "describe": DESCRIBE,
    "base": MEMORY + REALLOC + ANSWER + DESCRIBE,
}


def built(wat: str) -> bytes:
    """A component, of component text or of a core module; `{{piece}}` stands for a piece above."""
    is_core = "{{core}}" in wat
    for name, piece in PIECES.items():
        wat = wat.replace("{{" + name + "}}", piece)
    made = bytes(wat2wasm(wat))
    is_component = made[4:8] == b"\x0d\0\x01\0"
    return made if is_component or is_core else component_from_core(made, "tool")


def handling(body: str, *, imports: str = "", pieces: str = "{{base}}") -> bytes:
    """A tool whose `handle-tool-call` has this body: input at local 0, its length in local 1."""
    function = f'(func (export "handle-tool-call") (param i32 i32) (result i32) {body})'
    return built(f"(module {imports} {pieces} {function})")


ECHO = handling("(call $ok (local.get 0) (local.get 1))")


def kept(folder: Path, name: str, wasm: bytes) -> Path:
    path = folder / f"{name}.wasm"
    path.write_bytes(wasm)
    return path


# Does one thing that its input names; see relay.wat.
RELAY = built((Path(__file__).parent / "relay.wat").read_text(encoding="utf-8"))
