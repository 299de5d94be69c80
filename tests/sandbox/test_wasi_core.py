"""What a core module finds of WASI: a terminal that is a log, clocks and chance by grant, no files."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from wasmtime import Engine

from gateway.sandbox.extism import ExtismGuest
from gateway.sandbox.protocol import WASI_CORE
from tests.fakes.guests import (
    BOUNDS,
    Answers,
    ask,
    call_of,
    core_program,
    extism_wat,
    granted,
    no,
    signature,
)

_TYPES = {
    "fd_write": "(i32,i32,i32,i32)->i32",
    "fd_read": "(i32,i32,i32,i32)->i32",
    "fd_fdstat_get": "(i32,i32)->i32",
    "fd_prestat_get": "(i32,i32)->i32",
    "path_open": "(i32,i32,i32,i32,i32,i64,i64,i32,i32)->i32",
    "environ_sizes_get": "(i32,i32)->i32",
    "args_sizes_get": "(i32,i32)->i32",
    "clock_time_get": "(i32,i64,i32)->i32",
    "clock_res_get": "(i32,i32)->i32",
    "random_get": "(i32,i32)->i32",
    "poll_oneoff": "(i32,i32,i32,i32)->i32",
    "proc_exit": "(i32)",
}


@pytest.fixture
def load(core: Engine, tmp_path: Path) -> Callable[..., ExtismGuest]:
    def loaded(body: str, data: str = "", types: dict[str, str] = _TYPES) -> ExtismGuest:
        imports = "".join(
            f'(import "{WASI_CORE}" "{name}" (func ${name} {signature(type_text)}))'
            for name, type_text in types.items()
        )
        wat = extism_wat(body, more=f"{imports} --- {data}")
        return ExtismGuest(core, core_program(core, tmp_path, wat, {}))

    return loaded


@pytest.fixture
def code(load: Callable[..., ExtismGuest]) -> Callable[..., int]:
    """What a guest whose body is an error number gives."""

    def run(body: str, data: str = "", answers: Answers = no) -> int:
        answered = ask(load(body, data), answers=answers)
        if (answered.status, answered.text) == ("ok", ""):
            return 0
        assert answered.status == "err"
        return int(answered.text.removeprefix("it ended with code "))

    return run


# Two vectors at 0: "one\ntw" and "o".
_TEXT = r'(data (i32.const 0) "\20\00\00\00\06\00\00\00\26\00\00\00\01\00\00\00") (data (i32.const 32) "one\0atwo")'
_WRITE = "(call $fd_write (i32.const {}) (i32.const 0) (i32.const 2) (i32.const 48))"


def test_output_is_logged_by_lines_and_all_of_it_is_taken(load: Callable[..., ExtismGuest]) -> None:
    guest = load(
        f"{_WRITE.format(1)} drop {_WRITE.format(2)} drop (i32.load (i32.const 48))", _TEXT
    )

    answered = ask(guest)

    assert answered.text == "it ended with code 7"
    assert answered.logged == [("info", "one"), ("error", "one"), ("info", "two"), ("error", "two")]


def test_a_flood_of_output_is_dropped_and_the_guest_goes_on(
    load: Callable[..., ExtismGuest],
) -> None:
    guest = load(
        f"""(loop $on {_WRITE.format(1)} drop
          (br_if $on (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 5000))))
        (i32.const 0)""",
        _TEXT,
    )

    answered = ask(guest, seconds=30)

    assert answered.status == "ok"
    assert len(answered.logged) == BOUNDS.log_lines


def test_one_endless_line_is_cut_into_lines_of_the_log(load: Callable[..., ExtismGuest]) -> None:
    guest = load(
        "(i32.store (i32.const 4) (i32.const 65000)) (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 48))"
    )  # fmt: skip

    answered = ask(guest)

    assert answered.status == "ok"
    assert [len(text) for _, text in answered.logged] == [BOUNDS.log_bytes]


@pytest.mark.parametrize(
    ("body", "errno"),
    [
        (_WRITE.format(0), 8),
        (_WRITE.format(3), 8),
        ("(call $fd_write (i32.const 1) (i32.const 65535) (i32.const 1) (i32.const 48))", 21),
        ("(call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const -1))", 21),
        ("(i32.store (i32.const 4) (i32.const -1)) (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 48))", 21),
        ("(call $fd_write (i32.const 1) (i32.const 0) (i32.const 0x10000000) (i32.const 48))", 28),
        ("(i32.store (i32.const 48) (i32.const 9)) (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 48))) (i32.load (i32.const 48))", 0),
        ("(call $fd_read (i32.const 4) (i32.const 0) (i32.const 1) (i32.const 48))", 8),
        ("(call $fd_fdstat_get (i32.const 3) (i32.const 0))", 8),
        ("(drop (call $fd_fdstat_get (i32.const 1) (i32.const 0))) (i32.load8_u (i32.const 0))", 2),
        ("(call $fd_prestat_get (i32.const 3) (i32.const 0))", 8),
        ("(call $path_open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 0) (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 0))", 76),
        ("(i32.store (i32.const 0) (i32.const 9)) (drop (call $environ_sizes_get (i32.const 0) (i32.const 8))) (i32.load (i32.const 0))", 0),
        ("(i32.store (i32.const 8) (i32.const 9)) (drop (call $args_sizes_get (i32.const 0) (i32.const 8))) (i32.load (i32.const 8))", 0),
        ("(call $clock_time_get (i32.const 2) (i64.const 0) (i32.const 0))", 28),
        ("(call $clock_res_get (i32.const 9) (i32.const 0))", 28),
        ("(drop (call $clock_res_get (i32.const 1) (i32.const 0))) (i32.load (i32.const 0))", 1_000_000),
        ("(call $random_get (i32.const 65530) (i32.const 16))", 21),
        ("(call $poll_oneoff (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))", 28),
        ("(call $poll_oneoff (i32.const 0) (i32.const 0) (i32.const -1) (i32.const 0))", 28),
    ],
)  # fmt: skip
@pytest.mark.requirement("S-003-Plugin-13")
def test_there_are_no_files_no_environment_and_no_bad_pointers(
    code: Callable[..., int], body: str, errno: int
) -> None:
    assert code(body) == errno


@pytest.mark.requirement("S-003-Plugin-13")
def test_the_wall_clock_is_told_only_by_grant(code: Callable[..., int]) -> None:
    seconds = """(drop (call $clock_time_get (i32.const 0) (i64.const 0) (i32.const 0)))
      (i32.wrap_i64 (i64.div_u (i64.load (i32.const 0)) (i64.const 1000000000)))"""

    assert code("(call $clock_time_get (i32.const 0) (i64.const 0) (i32.const 0))") == 76
    assert code(seconds, answers=granted) == 1_700_000_000


def test_the_monotonic_clock_begins_with_the_call(code: Callable[..., int]) -> None:
    seconds = """(drop (call $clock_time_get (i32.const 1) (i64.const 0) (i32.const 0)))
      (i32.wrap_i64 (i64.div_u (i64.load (i32.const 0)) (i64.const 5000000000)))"""

    assert code(seconds) == 0


@pytest.mark.requirement("S-003-Plugin-13")
def test_random_bytes_are_given_only_by_grant_and_not_without_bound(
    code: Callable[..., int],
) -> None:
    some = "(call $random_get (i32.const 1) (i32.const 3))"
    many = "(drop (memory.grow (i32.const 2))) (call $random_get (i32.const 0) (i32.const 65537))"

    assert code(some) == 76
    assert code(f"(drop {some}) (i32.load (i32.const 0))", answers=granted) == 0x07070700
    assert code(many, answers=granted) == 76


# A subscription at 0: to a clock (kind 0), number 1, and a time that the test sets.
_SLEEP = """(i32.store (i32.const 16) (i32.const 1)) (i64.store (i32.const 24) (i64.const {ns}))
  (i32.store16 (i32.const 40) (i32.const {flags})) (i64.store (i32.const 0) (i64.const 77))
  (call $poll_oneoff (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128))"""


def test_a_sleep_ends_with_its_event(code: Callable[..., int]) -> None:
    event = "(i32.add (i32.load (i32.const 128)) (i32.load (i32.const 64)))"

    assert code(f"(drop {_SLEEP.format(ns=1_000_000, flags=0)}) {event}") == 78
    assert code(f"(drop {_SLEEP.format(ns=1, flags=1)}) {event}") == 78


@pytest.mark.requirement("S-003-Plugin-14")
def test_a_sleep_of_an_hour_ends_with_the_call(load: Callable[..., ExtismGuest]) -> None:
    answered = ask(load(_SLEEP.format(ns=3_600_000_000_000, flags=0)), seconds=0.05)

    assert (answered.status, answered.text) == ("timeout", "it did not end in time")


def test_a_cancelled_sleeper_wakes(load: Callable[..., ExtismGuest]) -> None:
    guest = load(f"{_WRITE.format(1)} drop {_SLEEP.format(ns=3_600_000_000_000, flags=0)}", _TEXT)
    call = call_of([])
    call.say = lambda _number, _texts: threading.Thread(target=call.cancel).start()

    assert guest.run(call, "handle-tool-call", "")[0] == "cancelled"


def test_a_wait_until_a_moment_of_the_wall_clock_is_not_supported(code: Callable[..., int]) -> None:
    body = _SLEEP.format(ns=1, flags=1).replace("(i32.store (i32.const 16) (i32.const 1))", "")

    assert code(body) == 58


def test_an_exit_ends_the_guest_and_its_code_decides(load: Callable[..., ExtismGuest]) -> None:
    output = "(call $give (call $put (i32.const 0) (i32.const 4)))"
    text = '(data (i32.const 0) "done")'

    well = ask(load(f"{output} (call $proc_exit (i32.const 0)) (unreachable)", text))
    badly = ask(load(f"{output} (call $proc_exit (i32.const 3)) (unreachable)", text))

    assert (well.status, well.text) == ("ok", "done")
    assert (badly.status, badly.text) == ("err", "it ended with code 3")


def test_a_function_of_another_type_or_without_a_way_to_refuse_ends_the_call(
    load: Callable[..., ExtismGuest],
) -> None:
    other = {"fd_close": "(i64)->i32", "fd_fly": "()", "fd_swim": "()->i32"}

    for body in ("(call $fd_close (i64.const 1))", "(call $fd_fly) (i32.const 0)"):
        assert ask(load(body, types=other)).status == "denied"
    assert ask(load("(call $fd_swim)", types=other)).text == "it ended with code 76"
