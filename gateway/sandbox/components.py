"""Guests of our own WIT worlds: components that speak JSON in strings."""

from collections.abc import Callable, Mapping
from ctypes import POINTER, byref, c_char_p, c_ubyte, cast, string_at

from wasmtime import Engine, Store, WasmtimeError
from wasmtime import _ffi as ffi
from wasmtime.component import (
    Component,
    ExportIndex,
    Instance,
    Linker,
    LinkerInstance,
    Variant,
)

from gateway.sandbox.calls import Call, current, opened_store, trapped
from gateway.sandbox.programs import Program, Status
from gateway.sandbox.wasi_component import offer_wasi
from gateway.sandbox.worlds import import_name

# Host functions run on the guest's thread. They raise nothing but Ended.
HostFunction = Callable[..., object]


class ComponentGuest:
    """One loaded component. Every call has an instance of its own; only code is shared."""

    def __init__(self, engine: Engine, program: Program) -> None:
        self._engine = engine
        self._component = Component.deserialize_file(engine, program.path)
        self._linker = Linker(engine)
        self._exports = {
            name: self._component.get_export_index(name)
            for name in self._component.type.exports(engine)
        }
        offer(self._linker, self._component, engine)
        # What toolchains import of wasi:* without need; a guest that calls it is ended.
        self._linker.define_unknown_imports_as_traps(self._component)

    def run(self, call: Call, function: str, text: str) -> tuple[Status, str]:
        index = self._exports.get(function)
        if index is None:
            return "invalid", f"it exports no {function}"
        arguments = () if function == "describe" else (text,)
        with opened_store(self._engine, call) as store:
            try:
                instance = self._linker.instantiate(store, self._component)
                return called(store, instance, index, *arguments)
            except WasmtimeError as error:
                return trapped(call, error)


def called(
    store: Store, instance: Instance, export: ExportIndex, *texts: str
) -> tuple[Status, str]:
    """Calls a function from texts to a text, or to a result of two texts. Raises WasmtimeError.

    Without the binding's own call, which looks up the function's type each time.
    """
    function, result = instance.get_func(store, export), ffi.wasmtime_component_val_t()
    assert function is not None
    inside = byref(function._func), store._context()  # noqa: SLF001  # reason: see above
    raws = [text.encode() for text in texts]  # kept here: they are read while the call lasts
    given = (ffi.wasmtime_component_val_t * len(raws))(*map(_text_to_c, raws))
    error = ffi.wasmtime_component_func_call(*inside, given, len(raws), byref(result), 1)
    if error:
        raise WasmtimeError._from_ptr(error)  # noqa: SLF001  # reason: see above
    try:
        if result.kind != ffi.WASMTIME_COMPONENT_RESULT.value:
            return "ok", _text_from_c(result)
        status: Status = "ok" if result.of.result.is_ok else "err"
        return status, _text_from_c(result.of.result.val.contents)
    finally:
        ffi.wasmtime_component_val_delete(byref(result))


def _text_to_c(raw: bytes) -> ffi.wasmtime_component_val_t:
    value = ffi.wasmtime_component_val_t(kind=ffi.WASMTIME_COMPONENT_STRING)
    value.of.string.size, value.of.string.data = len(raw), cast(c_char_p(raw), POINTER(c_ubyte))
    return value


def _text_from_c(value: ffi.wasmtime_component_val_t) -> str:
    return string_at(value.of.string.data, value.of.string.size).decode()


def offer(linker: Linker, component: Component, engine: Engine) -> None:
    """Defines those of our interfaces, and of WASI's, that the component imports."""
    imported = component.type.imports(engine)
    with linker.root() as root:
        for name, functions in _HOST.items():
            if import_name(name) in imported:
                define(root, import_name(name), functions)
    offer_wasi(linker, component, engine)


def define(root: LinkerInstance, interface: str, functions: Mapping[str, HostFunction]) -> None:
    with root.add_instance(interface) as instance:
        for name, function in functions.items():
            instance.add_func(name, function)


def _log(_store: object, level: str, message: str) -> None:
    current().log(level, message)


def _asks(function: str) -> HostFunction:
    """Text in, text or an error out."""

    def ask(_store: object, *texts: str) -> Variant:
        return Variant(*current().ask(function, *texts))

    return ask


def _does(function: str) -> HostFunction:
    """Text in, nothing or an error out."""

    def do(_store: object, *texts: str) -> str | None:
        answer, text = current().ask(function, *texts)
        return None if answer == "ok" else text

    return do


def _get(_store: object, namespace: str, key: str) -> Variant:
    answer, text = current().ask("store.get", namespace, key)
    return Variant("ok", None) if answer == "none" else Variant(answer, text)


def gives(function: str, read: Callable[[str], object]) -> HostFunction:
    """A value that cannot be an error: without the grant, the call ends."""

    def give(_store: object, *arguments: object) -> object:
        call = current()
        answer, text = call.ask(function, *map(str, arguments))
        if answer != "ok":
            raise call.stop("denied")
        return read(text)

    return give


_HOST: dict[str, dict[str, HostFunction]] = {
    "log": {"write": _log},
    "http": {"request": _asks("http.request")},
    "store": {
        "get": _get,
        "set": _does("store.set"),
        "delete": _does("store.delete"),
        "list": _asks("store.list"),
    },
    "clock": {"now-ms": gives("clock.now", int)},
    "random": {"bytes-hex": gives("random.bytes", str)},
    "host": {"call": _asks("host.call")},
}
