"""Guests from WebAssembly text, and a host that answers them in the same process."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

from wasmtime import Engine, Module
from wasmtime.component import Component

from gateway.sandbox.calls import GuestCall
from gateway.sandbox.protocol import EXTISM, EXTISM_FUNCTIONS, Bounds, Guest, Program, Status

BOUNDS = Bounds(memory_bytes=4 << 20, fuel=2_000_000_000, output_bytes=1 << 20)
_numbers = count(1)

Answers = Callable[[tuple[str, ...]], tuple[str, ...]]


class Runs(Protocol):
    def run(self, call: GuestCall, function: str, text: str) -> tuple[Status, str]: ...


@dataclass
class Answered:
    """What a guest answered, and all that it said to the host meanwhile."""

    status: Status = "ok"
    text: str = ""
    said: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def logged(self) -> list[tuple[str, ...]]:
        return [one[1:] for one in self.said if one[0] == "log"]


def no(_asked: tuple[str, ...]) -> tuple[str, ...]:
    """A host that grants nothing."""
    return "err", "not granted"


def granted(asked: tuple[str, ...]) -> tuple[str, ...]:
    """A host that grants clock and chance; every byte of that is a 7."""
    match asked:
        case ("clock.now",):
            return "ok", "1700000000123"
        case ("random.bytes", number):
            return "ok", "07" * int(number)
    return no(asked)


def call_of(
    said: list[tuple[str, ...]],
    answers: Answers = no,
    *,
    seconds: float = 5.0,
    bounds: Bounds = BOUNDS,
) -> GuestCall:
    def say(_number: int, texts: tuple[str, ...]) -> None:
        said.append(texts)
        if texts[0] != "log":
            call.answers.put(answers(texts))

    call = GuestCall(next(_numbers), bounds, time.monotonic() + seconds, say)
    return call


def ask(
    guest: Runs,
    text: str = "",
    answers: Answers = no,
    *,
    function: str = "handle-tool-call",
    seconds: float = 5.0,
    bounds: Bounds = BOUNDS,
) -> Answered:
    answered = Answered()
    call = call_of(answered.said, answers, seconds=seconds, bounds=bounds)
    answered.status, answered.text = guest.run(call, function, text)
    return answered


@contextmanager
def ticking(engine: Engine) -> Iterator[Engine]:
    """The clock that a worker gives its guests."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(0.005):
            engine.increment_epoch()

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield engine
    finally:
        over.set()
        thread.join()


def core_program(engine: Engine, folder: Path, wat: str, config: Mapping[str, str]) -> Program:
    return _program(folder, "extism", Module(engine, wat).serialize(), config)


def component_program(
    engine: Engine, folder: Path, wat: str, config: Mapping[str, str], guest: Guest
) -> Program:
    return _program(folder, guest, Component(engine, wat).serialize(), config)


def _program(
    folder: Path, guest: Guest, compiled: bytes | bytearray, config: Mapping[str, str]
) -> Program:
    path = folder / f"{next(_numbers)}.cwasm"
    path.write_bytes(compiled)
    return Program(str(path), guest, BOUNDS, tuple(config.items()))


def signature(type_text: str) -> str:
    """`(i64,i32)->i64` as WebAssembly text."""
    parameters, _, results = type_text.partition("->")
    given = parameters.strip("()").replace(",", " ")
    return f"(param {given})" + (f" (result {results})" if results else "")


def extism_wat(body: str, *, more: str = "", describe: str = "(i32.const 0)") -> str:
    """A module that imports all of Extism's functions; `body` is its tool call's, giving an i32.

    `$put` makes a block of bytes in the guest's own memory.
    """
    imports = "\n".join(
        f'(import "{EXTISM}" "{name}" (func ${name} {signature(type_text)}))'
        for name, type_text in EXTISM_FUNCTIONS.items()
    )
    imported, own = more.split("---") if "---" in more else ("", more)
    return f"""(module {imports} {imported}
      (memory (export "memory") 1)
      (func $put (param $from i32) (param $size i32) (result i64) (local $at i64) (local $i i32)
        (local.set $at (call $alloc (i64.extend_i32_u (local.get $size))))
        (loop $next
          (if (i32.lt_u (local.get $i) (local.get $size)) (then
            (call $store_u8 (i64.add (local.get $at) (i64.extend_i32_u (local.get $i)))
              (i32.load8_u (i32.add (local.get $from) (local.get $i))))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br $next))))
        (local.get $at))
      (func $give (param $at i64) (call $output_set (local.get $at) (call $length (local.get $at))))
      {own}
      (func (export "describe") (result i32) {describe})
      (func (export "handle_tool_call") (result i32) (local $a i64) (local $b i64) (local $n i32)
        {body}))"""
