"""Small steps keep Python's lock; whatever may take long gives it up."""

import pytest
from wasmtime import _bindings
from wasmtime import _ffi as ffi

from gateway.sandbox.calls import keep_interpreter_lock

_OF_PYTHON = 4  # the flag of a ctypes function that is called with the lock held


def keeps_lock(name: str) -> bool:
    return bool(type(getattr(_bindings, f"_{name}"))._flags_ & _OF_PYTHON)


@pytest.mark.parametrize(
    "name",
    [
        "wasmtime_store_new",
        "wasmtime_context_set_fuel",
        "wasmtime_component_instance_get_func",
        "wasmtime_component_func_type_param_nth",
        "wasmtime_component_result_type_ok",
    ],
)
def test_a_small_step_keeps_the_lock(name: str) -> None:
    keep_interpreter_lock()

    assert keeps_lock(name)
    assert getattr(_bindings, f"_{name}").argtypes == getattr(ffi.dll, name).argtypes


@pytest.mark.parametrize(
    "name",
    [
        "wasmtime_component_func_call",  # these run a guest
        "wasmtime_component_linker_instantiate",
        "wasmtime_func_call",
        "wasmtime_linker_instantiate",
        "wasmtime_instance_pre_instantiate",
        "wasmtime_store_delete",  # these free as much as a guest took
        "wasmtime_component_val_delete",
        "wasmtime_component_new",  # this compiles
        "wasmtime_component_deserialize_file",
    ],
)
def test_what_may_take_long_gives_the_lock_up(name: str) -> None:
    keep_interpreter_lock()

    assert not keeps_lock(name)
