"""Patches of the wasmtime binding that keep one guest's call from disturbing or delaying another's.

The unpatched binding converts a list of bytes at a microsecond a byte while it holds the interpreter
lock, mixes up variants that two threads lower at once, and stores the exception of a host function in
one place for all threads.
"""

import ctypes
import re
from collections.abc import Callable

from wasmtime import Engine, WasmtimeError, _bindings
from wasmtime import _ffi as ffi
from wasmtime.component import ListType, ValType, Variant
from wasmtime.component._types import VariantLikeType

from gateway.sandbox.calls import current

_CELL = ctypes.sizeof(ffi.wasmtime_component_val_t)
_KIND, _VALUE = ffi.wasmtime_component_val_t.kind.offset, ffi.wasmtime_component_val_t.of.offset
_U8 = bytes([ffi.WASMTIME_COMPONENT_U8.value])
_of_other_elements = ListType.convert_to_c, ListType.convert_from_c


def patch_binding() -> None:
    """Patches the binding before the first call of a component; may be called again."""
    # The binding has no other hook.
    ListType.convert_to_c = _list_to_c  # type: ignore[method-assign]  # see above
    ListType.convert_from_c = _list_from_c  # type: ignore[method-assign]  # see above
    VariantLikeType._lower = _lower  # type: ignore[method-assign]  # noqa: SLF001  # see above


def guard(function: Callable[..., object]) -> Callable[..., object]:
    """Wraps a component's host function, so that it raises only errors of its own call."""

    def call(*arguments: object) -> object:
        try:
            current().throttle()
            return function(*arguments)
        except WasmtimeError:
            raise
        except Exception:  # noqa: BLE001  # reason: it would surface in the next call that fails
            raise current().stop("trap") from None

    return call


def guard_core(
    engine: Engine, function: Callable[..., object], otherwise: int | None
) -> Callable[..., object]:
    """Wraps a core module's host function, so that it raises nothing: an error ends the guest at its
    next check and returns `otherwise`."""

    inner = guard(function)

    def call(*arguments: object) -> object:
        try:
            return inner(*arguments)
        except WasmtimeError:
            current().stop("trap")
        engine.increment_epoch()
        return otherwise

    return call


def case_of(kind: VariantLikeType, value: object) -> tuple[str, ValType | None, object]:
    """Returns the case of a variant, option or result, with the type and value of its payload.

    Raises ValueError. The binding omits the tag if the classes of the payloads identify the case.
    """
    is_tagged = kind._tagged()  # noqa: SLF001  # reason: the binding itself uses it
    for name, payload in kind._cases():  # noqa: SLF001  # reason: the one list of all three kinds
        if is_tagged:
            if isinstance(value, Variant) and value.tag == name:
                return name, payload, value.payload
        elif payload is None:
            if value is None:
                return name, None, None
        elif isinstance(value, _classes(payload)):
            return name, payload, value
    raise ValueError("the value has none of the cases")


def value_of_case(kind: VariantLikeType, name: str, payload: object) -> object:
    """The inverse of `case_of`."""
    return Variant(name, payload) if kind._tagged() else payload  # noqa: SLF001  # reason: as above


def _classes(kind: ValType) -> tuple[type, ...]:
    found: set[type] = set()
    kind.add_classes(found)
    return tuple(found)


def _lower(self, store, value):  # type: ignore[no-untyped-def]  # as in the binding
    name, kind, payload = case_of(self, value)
    if kind is None:
        return name, None
    raw = ffi.wasmtime_component_val_t()
    kind.convert_to_c(store, payload, ctypes.pointer(raw))
    return name, ffi.wasmtime_component_val_new(ctypes.byref(raw))


def _list_to_c(self, store, value, pointer):  # type: ignore[no-untyped-def]  # as in the binding
    if not isinstance(value, bytes) or not value or not self._is_bytes():
        _of_other_elements[0](self, store, value, pointer)
        return
    raw = ffi.wasmtime_component_vallist_t()
    ffi.wasmtime_component_vallist_new_uninit(raw, len(value))
    cells = _cells(raw)
    cells[_KIND::_CELL] = _U8 * len(value)
    cells[_VALUE::_CELL] = value
    pointer.contents.kind = ffi.WASMTIME_COMPONENT_LIST
    pointer.contents.of.list = raw


def _list_from_c(self, cell):  # type: ignore[no-untyped-def]  # as in the binding
    if not cell.of.list.size or not self._is_bytes():
        # Raises nothing: the binding would free the list twice.
        if current().may_convert(cell.of.list.size):
            return _of_other_elements[1](self, cell)
        ffi.wasmtime_component_vallist_delete(ctypes.byref(cell.of.list))
        return []
    try:
        return bytes(_cells(cell.of.list)[_VALUE::_CELL])
    finally:
        ffi.wasmtime_component_vallist_delete(ctypes.byref(cell.of.list))


def _cells(raw) -> memoryview:  # type: ignore[no-untyped-def]  # a structure of ctypes
    size = raw.size * _CELL
    found = (ctypes.c_ubyte * size).from_address(ctypes.addressof(raw.data.contents))
    return memoryview(found).cast("B")


# -------------------------------------------------------------- short calls keep the interpreter lock
# Each of these returns at once for every guest, and runs no guest code.
_STEPS = re.compile(
    r"_wasmtime_(store_(new|context|limiter|epoch_deadline_callback)"
    r"|context_(set_fuel|get_fuel|set_epoch_deadline)"
    r"|component_(instance_get_func|val_new|func_type|\w+_type_\w+)"
    r"|func_type|extern_delete|linker_get|memory_data|memory_data_size)"
    r"|_wasm_(func|memory|val|extern)type_\w+"
)


def keep_interpreter_lock() -> None:
    """Makes short calls of the library keep the interpreter lock; call it once, before the first
    call of a guest."""
    keeping = ctypes.PyDLL(None, handle=ffi.dll._handle)  # noqa: SLF001  # the open library
    for name, step in list(vars(_bindings).items()):
        if _STEPS.fullmatch(name):
            kept = getattr(keeping, name[1:])
            kept.restype, kept.argtypes = step.restype, step.argtypes
            setattr(_bindings, name, kept)
