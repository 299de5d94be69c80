"""Guests with the Extism ABI: what they may do with the memory that they share with the host."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wasmtime import Engine

from gateway.sandbox.extism import ExtismGuest, pack, unpack
from tests.fakes.guests import BOUNDS, ask, call_of, core_program, extism_wat

Load = Callable[..., ExtismGuest]

_ECHO = """
  (local.set $a (call $alloc (call $input_length)))
  (loop $next (if (i64.lt_u (local.get $b) (call $input_length)) (then
    (call $store_u8 (i64.add (local.get $a) (local.get $b)) (call $input_load_u8 (local.get $b)))
    (local.set $b (i64.add (local.get $b) (i64.const 1)))
    (br $next))))
  (call $output_set (local.get $a) (call $input_length))
  (i32.const 0)"""


@pytest.fixture
def load(core: Engine, tmp_path: Path) -> Load:
    def loaded(
        body: str, more: str = "", describe: str = "(i32.const 0)", **config: str
    ) -> ExtismGuest:
        wat = extism_wat(body, more=more, describe=describe)
        return ExtismGuest(core, core_program(core, tmp_path, wat, config))

    return loaded


def said(guest: ExtismGuest, text: str = "", **options: object) -> tuple[str, str]:
    answered = ask(guest, text, **options)  # type: ignore[arg-type]  # handed through
    return answered.status, answered.text


def test_what_a_guest_puts_out_is_what_it_was_given(load: Load) -> None:
    guest = load(_ECHO)

    for text in ("", "x", '{"a": "ü😀"}', "y" * 300_000):
        assert said(guest, text) == ("ok", text)


def test_eight_bytes_at_once_are_the_same_bytes(load: Load) -> None:
    guest = load("""
      (local.set $a (call $alloc (i64.const 8)))
      (call $store_u64 (local.get $a) (call $input_load_u64 (i64.const 1)))
      (call $store_u64 (local.get $a) (call $load_u64 (local.get $a)))
      (call $output_set (local.get $a) (i64.const 8)) (i32.const 0)""")

    assert said(guest, "012345678") == ("ok", "12345678")
    assert said(guest, "01234567") == ("ok", "\0" * 8)


@pytest.mark.requirement("S-003-Plugin-15")
def test_describe_gets_no_input_and_every_call_a_fresh_instance(load: Load) -> None:
    counter = '(global $calls (mut i32) (i32.const 0)) (data (i32.const 0) "n=0")'
    body = """
      (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
      (i32.store8 (i32.const 2) (i32.add (i32.const 48) (global.get $calls)))
      (call $give (call $put (i32.const 0) (i32.const 3))) (i32.const 0)"""
    guest = load(body, counter, describe="(i32.wrap_i64 (call $input_length))")

    assert said(guest, "in") == ("ok", "n=1")
    assert said(guest, "in") == ("ok", "n=1")
    assert said(guest, "in", function="describe") == ("ok", "")


def test_a_guest_fails_with_its_own_words_or_its_own_number(load: Load) -> None:
    words = '(data (i32.const 0) "no such city")'
    set_error = "(call $error_set (call $put (i32.const 0) (i32.const 12)))"

    assert said(load(f"{set_error} (i32.const 1)", words)) == ("err", "no such city")
    assert said(load(f"{set_error} (i32.const 0)", words)) == ("err", "no such city")
    assert said(load(f"{set_error} (unreachable)", words)) == ("err", "no such city")
    assert said(load("(i32.const 7)")) == ("err", "it ended with code 7")


def test_an_endless_error_text_is_cut_and_may_be_any_bytes(load: Load) -> None:
    answered = ask(
        load("""
      (local.set $a (call $alloc (i64.const 1000000)))
      (call $store_u8 (local.get $a) (i32.const 255))
      (call $error_set (local.get $a)) (i32.const 1)""")
    )

    assert answered.status == "err"
    assert answered.text.startswith("\ufffd\0")
    assert len(answered.text) == 4096


@pytest.mark.parametrize("at", ["-1", "0", "16", "63", "65529", "4294967296", "0x7fffffffffffffff"])
def test_an_offset_out_of_bounds_reads_nothing_and_writes_nothing(load: Load, at: str) -> None:
    guest = load(f"""
      (call $store_u64 (i64.const {at}) (i64.const -1))
      (i32.or (i32.wrap_i64 (call $load_u64 (i64.const {at})))
        (i32.wrap_i64 (i64.or (call $length (i64.const {at})) (call $length_unsafe (i64.const {at})))))""")

    assert said(guest) == ("ok", "")


def test_an_offset_beyond_the_input_reads_nothing(load: Load) -> None:
    guest = load("""(i32.or (call $input_load_u8 (i64.const 3))
      (i32.wrap_i64 (call $input_load_u64 (i64.const -1))))""")

    assert said(guest, "abc") == ("ok", "")


@pytest.mark.parametrize(("at", "size"), [("-1", "5"), ("70", "-1"), ("0", "9"), ("70", "65530")])
def test_an_output_that_is_nowhere_is_no_output(load: Load, at: str, size: str) -> None:
    assert said(load(f"(call $output_set (i64.const {at}) (i64.const {size})) (i32.const 0)")) == (
        "ok",
        "",
    )


def test_an_error_that_is_nowhere_is_none(load: Load) -> None:
    assert said(load("(call $error_set (i64.const -3)) (i32.const 0)")) == ("ok", "")


def test_output_that_is_no_text_is_refused(load: Load) -> None:
    guest = load("(call $give (call $put (i32.const 0) (i32.const 2))) (i32.const 0)",
                 r'(data (i32.const 0) "\ff\fe")')  # fmt: skip

    assert said(guest) == ("invalid", "its output is not UTF-8 text")


@pytest.mark.requirement("S-003-Plugin-14")
def test_a_guest_that_allocates_without_end_is_given_no_more_than_its_memory(load: Load) -> None:
    guest = load("""
      (loop $more (br_if $more (i32.and
        (i64.ne (i64.const 0) (call $alloc (i64.const 1000000)))
        (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 999)))))
      (local.get $n)""")

    assert said(guest) == ("err", "it ended with code 5")


@pytest.mark.parametrize("size", ["-1", "0x40000001", "4294967295", "0"])
def test_an_allocation_that_cannot_be_is_none(load: Load, size: str) -> None:
    assert said(load(f"(i32.wrap_i64 (call $alloc (i64.const {size})))")) == ("ok", "")


def test_what_was_freed_is_used_again(load: Load) -> None:
    guest = load("""
      (local.set $a (call $alloc (i64.const 1000000)))
      (local.set $b (call $alloc (i64.const 1000000)))
      (loop $more
        (call $free (local.get $a))
        (local.set $a (call $alloc (i64.const 900000)))
        (if (i64.eqz (local.get $a)) (then (return (i32.const 1))))
        (call $free (local.get $b))
        (local.set $b (call $alloc (i64.const 1000000)))
        (if (i64.eqz (local.get $b)) (then (return (i32.const 2))))
        (br_if $more (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 99))))
      (i32.const 0)""")

    assert said(guest) == ("ok", "")


def test_only_the_beginning_of_a_block_in_use_has_a_length(load: Load) -> None:
    guest = load("""
      (local.set $a (call $alloc (i64.const 21)))
      (if (i64.ne (call $length (local.get $a)) (i64.const 21)) (then (return (i32.const 1))))
      (if (i64.ne (call $length (i64.add (local.get $a) (i64.const 8))) (i64.const 0))
        (then (return (i32.const 2))))
      (call $free (local.get $a))
      (if (i64.ne (call $length (local.get $a)) (i64.const 0)) (then (return (i32.const 3))))
      (call $free (call $input_offset))
      (i32.wrap_i64 (call $input_length))""")

    assert said(guest, "input") == ("ok", "")


def test_a_reset_forgets_everything(load: Load) -> None:
    guest = load("""
      (local.set $a (call $alloc (i64.const 8)))
      (call $output_set (local.get $a) (i64.const 8))
      (call $error_set (local.get $a))
      (call $reset)
      (i32.wrap_i64 (i64.or (i64.or (call $length (local.get $a)) (call $input_length))
        (i64.or (call $error_get) (i64.or (call $output_offset) (call $output_length)))))""")

    assert said(guest, "input") == ("ok", "")


@pytest.mark.parametrize("head", ["store_u64 (i64.const 64)", "store_u64 (i64.const 72)"])
def test_a_guest_that_spoils_the_heads_of_blocks_harms_only_itself(load: Load, head: str) -> None:
    guest = load(f"""
      (call ${head} (i64.const -1))
      (call $free (i64.const 80))
      (local.set $a (call $alloc (i64.const 3000000)))
      (local.set $b (call $alloc (i64.const 3000000)))
      (call $give (i64.const 80))
      (call $log_info (i64.const 80))
      (i32.const 0)""")

    assert said(guest, "input")[0] in {"ok", "trap"}


def test_a_setting_is_told_and_an_unknown_one_is_not(load: Load) -> None:
    body = """(local.set $a (call $config_get (call $put (i32.const 0) (i32.const 4))))
      (if (i64.eqz (local.get $a)) (then (return (i32.const 3))))
      (call $give (local.get $a)) (i32.const 0)"""
    key = '(data (i32.const 0) "city")'

    assert said(load(body, key, city="Zürich")) == ("ok", "Zürich")
    assert said(load(body, key, town="Zürich")) == ("err", "it ended with code 3")


_SET_AND_GET = """
  (call $var_set (call $put (i32.const 0) (i32.const 1)) (call $put (i32.const 8) (i32.const 2)))
  (call $give (call $var_get (call $put (i32.const 0) (i32.const 1))))
  (call $var_set (call $put (i32.const 0) (i32.const 1)) (i64.const 0))
  (call $log_info (call $put (i32.const 0) (i32.const 1)))
  (i32.wrap_i64 (call $var_get (call $put (i32.const 0) (i32.const 1))))"""


def kept() -> Callable[[tuple[str, ...]], tuple[str, str]]:
    """A store of one call's."""
    texts: dict[str, str] = {}

    def answer(asked: tuple[str, ...]) -> tuple[str, str]:
        match asked:
            case ("store.get", "vars", key):
                return ("ok", texts[key]) if key in texts else ("none", "")
            case ("store.set", "vars", key, value):
                texts[key] = value
            case ("store.delete", "vars", key):
                del texts[key]
        return "ok", ""

    return answer


@pytest.mark.parametrize("value", ["ab", r"\00\ff"])
def test_a_variable_is_kept_as_it_was_and_deleted(load: Load, value: str) -> None:
    guest = load(_SET_AND_GET, f'(data (i32.const 0) "k") (data (i32.const 8) "{value}")')

    answered = ask(guest, answers=kept())

    assert [one[0] for one in answered.said] == [
        "store.set", "store.get", "store.delete", "log", "store.get",
    ]  # fmt: skip
    assert answered.status == ("ok" if value == "ab" else "invalid")
    assert answered.text == ("ab" if value == "ab" else "its output is not UTF-8 text")


@given(
    st.one_of(
        st.binary(), st.text().map(str.encode), st.text().map(lambda t: f"base64:{t}".encode())
    )
)
def test_any_bytes_are_kept_as_a_text_and_come_back(value: bytes) -> None:
    assert unpack(pack(value)) == value


def test_a_variable_that_another_wrote_with_our_mark_is_read_as_it_is() -> None:
    assert unpack("base64:%%%") == b"base64:%%%"


def test_what_the_host_refuses_ends_the_call_with_the_hosts_words(load: Load) -> None:
    answered = ask(load(_SET_AND_GET, '(data (i32.const 0) "k")'))

    assert (answered.status, answered.text) == ("err", "not granted")
    assert [one[0] for one in answered.said] == ["store.set"]


def test_a_request_is_made_by_the_host(load: Load) -> None:
    request = r"{\"url\":\"https://a.example/x\",\"method\":\"POST\",\"headers\":{\"x-a\":\"1\"}}"
    body = """
      (local.set $a (call $http_request (call $put (i32.const 0) (i32.const 67))
        (call $put (i32.const 96) (i32.const 3))))
      (if (i32.ne (call $http_status_code) (i32.const 201)) (then (return (i32.const 1))))
      (call $log_debug (call $http_headers))
      (call $give (local.get $a)) (i32.const 0)"""
    guest = load(body, rf'(data (i32.const 0) "{request}") (data (i32.const 96) "a\ffz")')
    assert len(request.replace("\\", "")) == 67

    def answers(_asked: tuple[str, ...]) -> tuple[str, ...]:
        return "ok", json.dumps({"status": 201, "headers": {"b": "2"}, "body": "body"}), "made"

    answered = ask(guest, answers=answers)

    assert (answered.status, answered.text) == ("ok", "made")
    (function, asked), logged = answered.said
    assert function == "http.request"
    assert json.loads(asked) == {
        "url": "https://a.example/x",
        "method": "POST",
        "headers": {"x-a": "1"},
        "body_base64": "Yf96",
    }
    assert logged == ("log", "debug", '{"b": "2"}')


@pytest.mark.parametrize(
    ("request_at", "why"),
    [
        ("(call $put (i32.const 0) (i32.const 3))", "a request is not a JSON object"),
        ("(i64.const 12345)", "a request is not in memory"),
        ("(call $put (i32.const 8) (i32.const 1))", "a request is not UTF-8 text"),
    ],
)
def test_a_request_that_is_none_ends_the_call(load: Load, request_at: str, why: str) -> None:
    guest = load(f"(i32.wrap_i64 (call $http_request {request_at} (i64.const 0)))",
                 r'(data (i32.const 0) "[1]") (data (i32.const 8) "\ff")')  # fmt: skip

    assert said(guest) == ("err", why)


def test_log_levels_are_kept_and_a_flood_ends_the_call(load: Load) -> None:
    line = "(call $put (i32.const 0) (i32.const 2))"
    levels = "".join(f"(call $log_{level} {line})" for level in ("trace", "debug", "info", "warn", "error"))  # fmt: skip
    flood = f"(loop $on (call $log_info {line}) (br $on)) (i32.const 0)"
    text = '(data (i32.const 0) "hi")'

    answered = ask(load(f"{levels} (i32.sub (call $get_log_level) (i32.const 1))", text))
    flooded = ask(load(flood, text))

    assert answered.status == "ok"
    assert answered.logged == [
        (level, "hi") for level in ("debug", "debug", "info", "warn", "error")
    ]
    assert flooded.status == "host_calls"
    assert len(flooded.logged) == BOUNDS.log_lines


def test_a_function_of_the_operators_is_called_by_its_name(load: Load) -> None:
    imports = '(import "extism:host/user" "shout" (func $shout (param i64) (result i64))) ---'
    guest = load("(call $give (call $shout (call $input_offset))) (i32.const 0)", imports)

    def answers(asked: tuple[str, ...]) -> tuple[str, ...]:
        return "ok", asked[2].upper()

    answered = ask(guest, "hey", answers)

    assert (answered.status, answered.text) == ("ok", "HEY")
    assert answered.said == [("host.call", "shout", "hey")]
    assert said(guest, "hey") == ("err", "not granted")


def test_a_runtime_is_initialised_before_the_call(load: Load) -> None:
    noted = """(global $order (mut i32) (i32.const 0))
      (func (export "_initialize") (global.set $order (i32.add (i32.mul (global.get $order) (i32.const 10)) (i32.const 1))))"""
    haskell = """(func (export "hs_init") (param i32 i32)
      (global.set $order (i32.add (i32.mul (global.get $order) (i32.const 10)) (i32.const 2))))"""

    assert said(load("(global.get $order)", noted)) == ("err", "it ended with code 1")
    assert said(load("(global.get $order)", noted + haskell)) == ("err", "it ended with code 12")


def test_an_initialiser_of_another_type_is_not_called(load: Load) -> None:
    assert said(load("(i32.const 0)", '(func (export "_initialize") (param i64) unreachable)')) == (
        "ok",
        "",
    )


@pytest.mark.parametrize(
    "more",
    ["", "(func $start (loop $on (br $on))) (start $start)", '(func (export "_initialize") (loop $on (br $on)))'],
)  # fmt: skip
@pytest.mark.requirement("S-003-Plugin-14")
def test_an_endless_loop_ends_in_time_wherever_it_is(load: Load, more: str) -> None:
    guest = load("(loop $on (br $on)) (i32.const 0)", more)

    assert said(guest, seconds=0.05) == ("timeout", "it did not end in time")


def test_an_input_without_room_for_it_is_no_crash(load: Load) -> None:
    small = replace(BOUNDS, memory_bytes=128 * 1024)

    assert said(load(_ECHO), "x" * 200_000, bounds=small)[0] == "memory"


def test_a_cancelled_call_does_not_wait_for_its_answer(load: Load) -> None:
    guest = load(_SET_AND_GET, '(data (i32.const 0) "k")')
    asked: list[tuple[str, ...]] = []
    call = call_of(asked)
    call.say = lambda _number, _texts: threading.Thread(target=call.cancel).start()

    assert guest.run(call, "handle-tool-call", "") == ("cancelled", "it was cancelled")


def test_a_function_that_is_not_exported_is_told(load: Load) -> None:
    assert said(load("(i32.const 0)"), function="parse-incoming") == (
        "invalid",
        "it exports no parse_incoming",
    )


def test_failures_stay_with_their_own_calls(load: Load) -> None:
    fails, works = load(_SET_AND_GET, '(data (i32.const 0) "k")'), load(_ECHO)
    found: set[tuple[str, str, str]] = set()

    def run(kind: str, guest: ExtismGuest) -> None:
        for _ in range(60):
            found.add((kind, *said(guest, "same")))

    threads = [
        threading.Thread(target=run, args=one)
        for one in (("fails", fails), ("works", works), ("fails", fails), ("works", works))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {("fails", "err", "not granted"), ("works", "ok", "same")}
