"""A call counts the requests of its guest, and every wait in it ends; an exception of a host function stays with its
call."""

import json
import threading
import time

import pytest
from wasmtime import Engine, FuncType, Linker, Module, Store, Trap, WasmtimeError
from wasmtime.component import Component, ResultType, Variant
from wasmtime.component import FuncType as ComponentFunction
from wasmtime.component import Linker as ComponentLinker

from gateway.sandbox.calls import (
    GuestCall,
    GuestEnded,
    case_of,
    component_engine,
    core_engine,
    current,
    describe_end,
    guard,
    guard_core,
    open_store,
    patch_binding,
    value_of_case,
)
from gateway.sandbox.protocol import Bounds
from tests.fakes.guests import call_of

# --- calls ---------------------------------------------------------------------------------------
BOUNDS = Bounds(memory_bytes=1, fuel=1, output_bytes=1)
REQUEST = json.dumps({"url": "https://x/", "body": ""})


def silent(*, seconds: float = 5.0, bounds: Bounds = BOUNDS) -> GuestCall:
    """A gateway that never answers."""
    call = call_of([], seconds=seconds, bounds=bounds)
    call.say = lambda *_: None
    return call


def answering(said: list[tuple[str, ...]], **bounds: int) -> GuestCall:
    changed = Bounds(memory_bytes=1, fuel=1, output_bytes=1, **bounds)
    return call_of(said, lambda _: ("ok", "yes"), bounds=changed)


def test_an_answer_comes_back() -> None:
    said: list[tuple[str, ...]] = []

    assert answering(said).ask("store.get", "notes", "k") == ("ok", "yes")
    assert said == [("store.get", "notes", "k")]


def test_too_many_host_calls_end_the_call() -> None:
    call = answering([], host_calls=3)
    for _ in range(3):
        call.ask("clock.now")

    with pytest.raises(GuestEnded):
        call.ask("clock.now")

    assert call.why == "host_calls"


def test_too_many_requests_are_told_so() -> None:
    said: list[tuple[str, ...]] = []
    call = call_of(
        said, lambda _: ("ok", '{"body": "body"}', "x"), bounds=Bounds(1, 1, 1, http_calls=2)
    )

    told = [call.ask("http.request", REQUEST) for _ in range(3)]

    assert [status for status, _ in told] == ["ok", "ok", "err"]
    assert "at most 2 requests" in told[2][1]
    assert len(said) == 2


@pytest.mark.parametrize(
    ("function", "most"), [("host.call", 192 * 1024), ("http.request", 1536 * 1024)]
)
def test_what_is_too_large_never_reaches_the_gateway(function: str, most: int) -> None:
    said: list[tuple[str, ...]] = []
    call = call_of(said, lambda _: ("ok", '{"body": "body"}', "x"))
    request = json.dumps({"url": "", "body": "x" * (most - len('{"url": "", "body": ""}'))})
    assert len(request) == most

    assert call.ask(function, request)[0] == "ok"
    status, text = call.ask(function, request + " ")

    assert (status, f"at most {most // 1024} KiB" in text) == ("err", True)
    assert len(said) == 1


def test_many_large_things_end_the_call() -> None:
    call = answering([])
    large = "x" * (192 * 1024)

    told = [call.ask("host.call", large)[0] for _ in range(85)]
    with pytest.raises(GuestEnded):
        call.ask("host.call", large)

    assert told == ["ok"] * 85
    assert call.why == "host_calls"


def test_a_request_of_odd_shape_never_reaches_the_gateway() -> None:
    said: list[tuple[str, ...]] = []
    call = call_of(said, lambda _: ("ok", "x"))

    status, text = call.ask("http.request", '{"url": [[[]]]}')

    assert (status, "nested" in text) == ("err", True)
    assert said == []


def test_an_http_answer_is_put_together_here() -> None:
    head = json.dumps({"status": 200, "headers": {}, "body": "body"})
    call = call_of([], lambda _: ("ok", head, 'x"y'))

    status, text = call.ask("http.request", REQUEST)

    assert (status, json.loads(text)) == ("ok", {"status": 200, "headers": {}, "body": 'x"y'})


def test_a_host_call_ends_with_its_call() -> None:
    call = silent(seconds=0.05)

    with pytest.raises(GuestEnded):
        call.ask("store.get", "notes", "k")

    assert call.why == "timeout"
    assert call.is_over


def test_a_cancelled_call_wakes_whoever_waits_in_it() -> None:
    call = silent()
    waker = threading.Timer(0, call.cancel)
    waker.start()

    with pytest.raises(GuestEnded):
        call.ask("store.get", "notes", "k")

    waker.join(5)
    assert call.why == "cancelled"
    with pytest.raises(GuestEnded):
        call.ask("clock.now")


def test_the_first_reason_counts() -> None:
    call = silent()
    call.stop("fuel")
    call.stop("denied")
    call.cancel()

    assert call.why == "fuel"


def test_long_lines_are_cut_between_characters_and_many_are_dropped() -> None:
    said: list[tuple[str, ...]] = []
    call = answering(said, log_lines=2, log_bytes=5)
    for _ in range(4):
        call.log("info", "éééé")

    assert said == [("log", "info", "éé")] * 2


def test_what_it_used_is_told() -> None:
    call = answering([])
    call.ask("clock.now")
    call.fuel_used = 7

    wall_ms, fuel, calls = call.usage()

    assert float(wall_ms) >= 0
    assert (fuel, calls) == ("7", "1")


def test_whoever_calls_the_host_very_often_lets_others_run() -> None:
    call = call_of([], seconds=60)
    for _ in range(2_000):
        call.throttle()
    slept_at = time.monotonic()
    for _ in range(20):
        call.throttle()

    assert time.monotonic() - slept_at >= 0.02


# --- patches of the binding ----------------------------------------------------------------------
@pytest.fixture(scope="module")
def core() -> Engine:
    return core_engine()


@pytest.fixture(scope="module")
def components() -> Engine:
    patch_binding()
    return component_engine()


_CORE = """(module (import "h" "f" (func $f (result i32)))
  (func (export "run") (result i32) (call $f) (drop) (loop $on (br $on)) (i32.const 1)))"""
_COMPONENT = """(component (import "f" (func $f (result u32))) (core func $f (canon lower (func $f)))
  (core module $m (import "h" "f" (func $f (result i32))) (func (export "run") (result i32) (call $f)))
  (core instance $i (instantiate $m (with "h" (instance (export "f" (func $f))))))
  (func (export "run") (result u32) (canon lift (core func $i "run"))))"""


def bug() -> int:
    raise ZeroDivisionError


def ended() -> int:
    raise current().stop("denied")


def run_core(engine: Engine, function: object, call: GuestCall) -> tuple[str, str]:
    module, linker = Module(engine, _CORE), Linker(engine)
    kind = module.imports[0].type
    assert isinstance(kind, FuncType)
    linker.define_func("h", "f", kind, guard_core(engine, function, otherwise=0))  # type: ignore[arg-type]  # it is one
    with open_store(engine, call) as store:
        with pytest.raises((Trap, WasmtimeError)) as raised:
            _exported(linker, store, module)(store)
        error = raised.value
        assert isinstance(error, Trap | WasmtimeError)
        return describe_end(call, error)


def _exported(linker: Linker, store: Store, module: Module):  # type: ignore[no-untyped-def]  # the binding's own
    return linker.instantiate(store, module).exports(store)["run"]


@pytest.mark.parametrize(("function", "status"), [(bug, "trap"), (ended, "denied")])
def test_a_core_guest_is_ended_without_an_exception_in_its_host_function(
    core: Engine, function: object, status: str
) -> None:
    assert run_core(core, function, call_of([]))[0] == status


@pytest.mark.parametrize(("function", "status"), [(bug, "trap"), (ended, "denied")])
def test_a_components_host_function_raises_only_what_ends_its_own_call(
    components: Engine, function: object, status: str
) -> None:
    component, linker, call = (
        Component(components, _COMPONENT),
        ComponentLinker(components),
        call_of([]),
    )
    with linker.root() as root:
        root.add_func("f", guard(lambda _store: function()))  # type: ignore[operator]  # it is one

    with open_store(components, call) as store:
        run = linker.instantiate(store, component).get_func(store, "run")
        assert run is not None
        with pytest.raises(WasmtimeError) as raised:
            run(store)

    assert describe_end(call, raised.value)[0] == status


def test_two_threads_that_lower_variants_do_not_spoil_each_others(components: Engine) -> None:
    wat = '(component (import "f" (func (result (result u32 (error string))))))'
    function = Component(components, wat).type.imports(components)["f"].ty
    assert isinstance(function, ComponentFunction)
    kind = function.result
    assert isinstance(kind, ResultType)
    found: set[tuple[str, object]] = set()

    def lower(value: object) -> None:
        for _ in range(2000):
            name, _, payload = case_of(kind, value)
            found.add((name, payload))

    threads = [threading.Thread(target=lower, args=(value,)) for value in (7, "no")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {("ok", 7), ("err", "no")}


def test_a_case_is_told_by_its_tag_only_where_its_class_does_not_tell(components: Engine) -> None:
    wat = """(component (import "f" (func (result (result string (error string)))))
      (import "g" (func (result (result u32 (error string))))))"""
    kinds = []
    for one in Component(components, wat).type.imports(components).values():
        assert isinstance(one.ty, ComponentFunction)
        assert isinstance(one.ty.result, ResultType)
        kinds.append(one.ty.result)

    assert value_of_case(kinds[0], "err", "no") == Variant("err", "no")
    assert value_of_case(kinds[1], "err", "no") == "no"
    assert case_of(kinds[0], Variant("ok", "yes"))[::2] == ("ok", "yes")
    with pytest.raises(ValueError, match="none of the cases"):
        case_of(kinds[0], "yes")
