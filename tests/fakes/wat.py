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


# Writes bytes as hexadecimal digits: from, how many, where to.
HEX = """
(func $digit (param i32) (result i32)
  (i32.add (local.get 0)
    (select (i32.const 48) (i32.const 87) (i32.lt_u (local.get 0) (i32.const 10)))))
(func $hex (param $from i32) (param $left i32) (param $to i32) (local $byte i32)
  (block $done (loop $on
    (br_if $done (i32.eqz (local.get $left)))
    (local.set $byte (i32.load8_u (local.get $from)))
    (i32.store8 (local.get $to) (call $digit (i32.shr_u (local.get $byte) (i32.const 4))))
    (i32.store8 offset=1 (local.get $to) (call $digit (i32.and (local.get $byte) (i32.const 15))))
    (local.set $from (i32.add (local.get $from) (i32.const 1)))
    (local.set $to (i32.add (local.get $to) (i32.const 2)))
    (local.set $left (i32.sub (local.get $left) (i32.const 1)))
    (br $on))))
"""


def posting(url: str, **annotations: bool) -> bytes:
    """A plugin `pay` whose one tool posts its input there, as {"input": HEX}, and says what it was answered."""
    asked = json.dumps({"method": "POST", "url": url, "body": '{"input":"'})[:-2]
    end = r'\"}"}'
    tool = {"name": "pay", "description": "Pays.", "annotations": annotations}
    shown = describing(json.dumps({"name": "pay", "version": "1", "tools": [tool]}))
    texts = _data(128, asked) + _data(120, end)
    to = 32768 + len(asked)
    return handling(
        f"(local $end i32)"
        f"(memory.copy (i32.const 32768) (i32.const 128) (i32.const {len(asked)}))"
        f"(call $hex (local.get 0) (local.get 1) (i32.const {to}))"
        f"(local.set $end (i32.add (i32.const {to}) (i32.shl (local.get 1) (i32.const 1))))"
        f"(memory.copy (local.get $end) (i32.const 120) (i32.const {len(end)}))"
        f"(call $http (i32.const 32768) (i32.add (i32.sub (local.get $end) (i32.const 32768))"
        f" (i32.const {len(end)})) (i32.const 48))"
        "(call $say (i32.load8_u (i32.const 48)) (i32.load (i32.const 52)) (i32.load (i32.const 56)))",
        imports='(import "exogate:plugin/http@1.0.0" "request" (func $http (param i32 i32 i32)))',
        pieces=f"{MEMORY}{REALLOC}{ANSWER}{HEX}{shown}{texts}",
    )


def _data(at: int, text: str) -> str:
    return f'(data (i32.const {at}) "{"".join(f"{chr(92)}{byte:02x}" for byte in text.encode())}")'


ECHO = handling("(call $ok (local.get 0) (local.get 1))")


def kept(folder: Path, name: str, wasm: bytes) -> Path:
    path = folder / f"{name}.wasm"
    path.write_bytes(wasm)
    return path


# Does one thing that its input names; see relay.wat.
RELAY = built((Path(__file__).parent / "relay.wat").read_text(encoding="utf-8"))
