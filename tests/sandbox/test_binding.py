"""Whatever a host function raises stays with the call that it belongs to."""

import threading

import pytest
from wasmtime import Engine, FuncType, Linker, Module, Store, Trap, WasmtimeError
from wasmtime.component import Component, ResultType, Variant
from wasmtime.component import FuncType as ComponentFunction
from wasmtime.component import Linker as ComponentLinker

from gateway.sandbox.calls import (
    GuestCall,
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
from tests.fakes.guests import call_of


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
