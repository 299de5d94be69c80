"""What a component finds of WASI: served by us under the version that it imports, in the known types."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from wasmtime import Engine

from gateway.sandbox.components import ComponentGuest
from tests.fakes.guests import BOUNDS, ask, call_of, component_program, granted

Load = Callable[..., ComponentGuest]

# `answer` is a function from core to core: () -> i64, whose number is the guest's output as a digit
# string of 20.
_SHELL = """(component {imports}
  (core module $memory (memory (export "memory") 2)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 65536)))
  (core instance $shared (instantiate $memory))
  (alias core export $shared "memory" (core memory $m))
  (alias core export $shared "realloc" (core func $realloc))
  {lowered}
  (core module $main
    (import "shared" "memory" (memory 2))
    {core_imports}
    (data (i32.const 32) "one\\0atwo")
    (func $answer (result i64) (local $a i32) (local $b i32) {body})
    (func (export "describe") (result i32)
      (local $number i64) (local $at i32)
      (local.set $number (call $answer))
      (local.set $at (i32.const 1044))
      (loop $digits
        (local.set $at (i32.sub (local.get $at) (i32.const 1)))
        (i32.store8 (local.get $at) (i32.add (i32.const 48)
          (i32.wrap_i64 (i64.rem_u (local.get $number) (i64.const 10)))))
        (local.set $number (i64.div_u (local.get $number) (i64.const 10)))
        (br_if $digits (i64.ne (local.get $number) (i64.const 0))))
      (i32.store (i32.const 0) (local.get $at))
      (i32.store (i32.const 4) (i32.sub (i32.const 1044) (local.get $at)))
      (i32.const 0)))
  (core instance $main (instantiate $main (with "shared" (instance $shared)) {given}))
  (func (export "describe") (result string)
    (canon lift (core func $main "describe") (memory $m))))"""


def wat(body: str, imports: str, functions: dict[str, tuple[str, str, str]]) -> str:
    """functions: name in core -> instance, function in it, core type."""
    lowered = core_imports = exports = ""
    for name, (instance, function, kind) in functions.items():
        lowered += f"""(alias export ${instance} "{function}" (func ${name}))
          (core func ${name} (canon lower (func ${name}) (memory $m) (realloc $realloc)))"""
        core_imports += f'(import "host" "{name}" (func ${name} {kind}))'
        exports += f'(export "{name}" (func ${name}))'
    given = f'(with "host" (instance {exports}))' if exports else ""
    return _SHELL.format(
        imports=imports, lowered=lowered, core_imports=core_imports, body=body, given=given
    )


@pytest.fixture
def load(components: Engine, tmp_path: Path) -> Load:
    def loaded(body: str, imports: str, **functions: tuple[str, str, str]) -> ComponentGuest:
        program = component_program(
            components, tmp_path, wat(body, imports, functions), {}, "exogate"
        )
        return ComponentGuest(components, program)

    return loaded


_STREAMS = """
  (import "wasi:io/streams@0.2.3" (instance $streams
    (export "output-stream" (type $out (sub resource)))
    (export "input-stream" (type $in (sub resource)))
    (export "error" (type $error (sub resource)))
    (type $failure' (variant (case "last-operation-failed" (own $error)) (case "closed")))
    (export "stream-error" (type $failure (eq $failure')))
    (export "[method]output-stream.check-write" (func (param "self" (borrow $out)) (result (result u64 (error $failure)))))
    (export "[method]output-stream.write" (func (param "self" (borrow $out)) (param "contents" (list u8)) (result (result (error $failure)))))
    (export "[method]output-stream.blocking-flush" (func (param "self" (borrow $out)) (result (result (error $failure)))))
    (export "[method]input-stream.read" (func (param "self" (borrow $in)) (param "len" u64) (result (result (list u8) (error $failure)))))))
  (alias export $streams "output-stream" (type $out))
  (alias export $streams "input-stream" (type $in))
  (import "wasi:cli/stdout@0.2.3" (instance $stdout (alias outer 1 $out (type $o)) (export "output-stream" (type $o' (eq $o)))
    (export "get-stdout" (func (result (own $o'))))))
  (import "wasi:cli/stderr@0.2.3" (instance $stderr (alias outer 1 $out (type $o)) (export "output-stream" (type $o' (eq $o)))
    (export "get-stderr" (func (result (own $o'))))))
  (import "wasi:cli/stdin@0.2.3" (instance $stdin (alias outer 1 $in (type $o)) (export "input-stream" (type $o' (eq $o)))
    (export "get-stdin" (func (result (own $o'))))))
"""  # fmt: skip
_ON_STREAMS = {
    "stdout": ("stdout", "get-stdout", "(result i32)"),
    "stderr": ("stderr", "get-stderr", "(result i32)"),
    "stdin": ("stdin", "get-stdin", "(result i32)"),
    "room": ("streams", "[method]output-stream.check-write", "(param i32 i32)"),
    "write": ("streams", "[method]output-stream.write", "(param i32 i32 i32 i32)"),
    "flush": ("streams", "[method]output-stream.blocking-flush", "(param i32 i32)"),
    "read": ("streams", "[method]input-stream.read", "(param i32 i64 i32)"),
}


def test_output_is_logged_by_lines(load: Load) -> None:
    guest = load(
        """(call $write (call $stdout) (i32.const 32) (i32.const 7) (i32.const 16))
        (call $write (call $stderr) (i32.const 32) (i32.const 3) (i32.const 16))
        (call $flush (call $stderr) (i32.const 64))
        (call $room (call $stdout) (i32.const 80))
        (i64.or (i64.load8_u (i32.const 64)) (i64.load (i32.const 88)))""",
        _STREAMS,
        **_ON_STREAMS,
    )

    answered = ask(guest, function="describe")

    assert (answered.status, answered.text) == ("ok", "4096")
    assert answered.logged == [("info", "one"), ("info", "two"), ("error", "one")]


def test_a_flood_of_output_is_dropped_and_the_guest_goes_on(load: Load) -> None:
    guest = load(
        """(local.set $b (call $stdout))
        (loop $on (call $write (local.get $b) (i32.const 32) (i32.const 4) (i32.const 16))
          (br_if $on (i32.lt_u (local.tee $a (i32.add (local.get $a) (i32.const 1))) (i32.const 2000))))
        (i64.const 5)""",
        _STREAMS,
        **_ON_STREAMS,
    )

    answered = ask(guest, function="describe")

    assert (answered.status, answered.text) == ("ok", "5")
    assert len(answered.logged) == BOUNDS.log_lines


def test_the_input_is_at_its_end(load: Load) -> None:
    guest = load(
        """(call $read (call $stdin) (i64.const 9) (i32.const 16))
        (i64.add (i64.mul (i64.const 10) (i64.load8_u (i32.const 16))) (i64.load8_u (i32.const 20)))""",
        _STREAMS,
        **_ON_STREAMS,
    )

    assert ask(guest, function="describe").text == "11"  # an error, and its case is `closed`


def test_handles_without_end_end_the_call(load: Load) -> None:
    guest = load("(loop $on (drop (call $stdout)) (br $on)) (i64.const 0)", _STREAMS, **_ON_STREAMS)

    assert ask(guest, function="describe").status == "host_calls"


_CLOCK = """
  (import "wasi:io/poll@0.2.9" (instance $poll (export "pollable" (type $p (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $p))))
    (export "[method]pollable.ready" (func (param "self" (borrow $p)) (result bool)))
    (export "poll" (func (param "in" (list (borrow $p))) (result (list u32))))))
  (alias export $poll "pollable" (type $p))
  (import "wasi:clocks/monotonic-clock@0.2.9" (instance $clock (alias outer 1 $p (type $q)) (export "pollable" (type $q' (eq $q)))
    (export "now" (func (result u64)))
    (export "subscribe-duration" (func (param "when" u64) (result (own $q'))))))
  (import "wasi:clocks/wall-clock@0.2.9" (instance $wall
    (type $d (record (field "seconds" u64) (field "nanoseconds" u32))) (export "datetime" (type $datetime (eq $d)))
    (export "now" (func (result $datetime)))))
"""  # fmt: skip
_ON_CLOCK = {
    "now": ("clock", "now", "(result i64)"),
    "after": ("clock", "subscribe-duration", "(param i64) (result i32)"),
    "block": ("poll", "[method]pollable.block", "(param i32)"),
    "ready": ("poll", "[method]pollable.ready", "(param i32) (result i32)"),
    "poll": ("poll", "poll", "(param i32 i32 i32)"),
    "wall": ("wall", "now", "(param i32)"),
}


def test_the_monotonic_clock_begins_with_the_call_and_a_sleep_moves_it(load: Load) -> None:
    guest = load(
        """(call $block (call $after (i64.const 3000000)))
        (i64.extend_i32_u (i32.or (i64.lt_u (call $now) (i64.const 3000000))
          (i64.gt_u (call $now) (i64.const 4000000000))))""",
        _CLOCK,
        **_ON_CLOCK,
    )

    assert ask(guest, function="describe").text == "0"


def test_a_poll_waits_and_tells_what_is_ready(load: Load) -> None:
    guest = load(
        """(i32.store (i32.const 64) (call $after (i64.const 1000000)))
        (call $poll (i32.const 64) (i32.const 1) (i32.const 80))
        (i64.add (i64.mul (i64.const 10) (i64.load32_u (i32.const 84)))
          (i64.load32_u (i32.load (i32.const 80))))""",
        _CLOCK,
        **_ON_CLOCK,
    )
    ready = load(
        "(i64.extend_i32_u (call $ready (call $after (i64.const 3600000000000))))",
        _CLOCK,
        **_ON_CLOCK,
    )

    assert ask(guest, function="describe").text == "10"  # one is ready: number 0
    assert ask(ready, function="describe").text == "0"


def test_a_poll_of_nothing_ends_the_call(load: Load) -> None:
    guest = load(
        "(call $poll (i32.const 64) (i32.const 0) (i32.const 80)) (i64.const 0)",
        _CLOCK,
        **_ON_CLOCK,
    )

    assert ask(guest, function="describe").status == "trap"


_FOREVER = "(call $block (call $after (i64.const 3600000000000))) (i64.const 0)"


@pytest.mark.requirement("S-003-Plugin-14")
def test_a_sleep_of_an_hour_ends_with_the_call(load: Load) -> None:
    guest = load(_FOREVER, _CLOCK, **_ON_CLOCK)

    assert ask(guest, function="describe", seconds=0.05).status == "timeout"


def test_a_cancelled_sleeper_wakes(load: Load) -> None:
    guest = load(f"(call $wall (i32.const 16)) {_FOREVER}", _CLOCK, **_ON_CLOCK)
    call = call_of([])

    def say(_number: int, _texts: tuple[str, ...]) -> None:
        call.answers.put(("err", "no"))
        threading.Thread(target=call.cancel).start()

    call.say = say

    assert guest.run(call, "describe", "")[0] == "cancelled"


@pytest.mark.requirement("S-003-Plugin-13")
def test_the_wall_clock_stands_at_its_beginning_without_a_grant(load: Load) -> None:
    guest = load("(call $wall (i32.const 16)) (i64.load (i32.const 16))", _CLOCK, **_ON_CLOCK)

    assert ask(guest, function="describe").text == "0"
    assert ask(guest, function="describe", answers=granted).text == "1700000000"


_RANDOM = '(import "wasi:random/random@0.2.0" (instance $random (export "get-random-u64" (func (result u64)))))'  # fmt: skip


@pytest.mark.requirement("S-003-Plugin-13")
def test_chance_is_given_by_grant_and_ends_the_call_without(load: Load) -> None:
    guest = load("(call $get)", _RANDOM, get=("random", "get-random-u64", "(result i64)"))

    without = ask(guest, function="describe")

    assert ask(guest, function="describe", answers=granted).text == str(0x0707070707070707)
    assert without.status == "denied"
    assert without.logged == [("error", "not granted")]


def test_a_function_of_another_type_is_not_served(load: Load) -> None:
    narrow = _RANDOM.replace("(result u64)", "(result u32)")
    guest = load(
        "(i64.extend_i32_u (call $get))", narrow, get=("random", "get-random-u64", "(result i32)")
    )

    assert ask(guest, function="describe", answers=granted).status == "denied"


@pytest.mark.parametrize(
    "name", ["wasi:sockets/instance-network@0.2.3", "wasi:random/random@0.3.0", "wasi:fs/fly@0.2.0"]
)
def test_what_is_not_served_ends_the_call_that_wants_it(load: Load, name: str) -> None:
    imports = f'(import "{name}" (instance $other (export "get-random-u64" (func (result u64)))))'
    guest = load("(call $get)", imports, get=("other", "get-random-u64", "(result i64)"))
    idle = load("(i64.const 4)", imports, get=("other", "get-random-u64", "(result i64)"))

    assert ask(guest, function="describe", answers=granted).status == "denied"
    assert ask(idle, function="describe").text == "4"


def test_an_exit_ends_the_guest(load: Load) -> None:
    imports = '(import "wasi:cli/exit@0.2.1" (instance $exit (export "exit" (func (param "status" (result))))))'
    guest = load(
        "(call $exit (i32.const 0)) (i64.const 0)", imports, exit=("exit", "exit", "(param i32)")
    )

    answered = ask(guest, function="describe")

    assert (answered.status, answered.text) == ("trap", "it exited")
