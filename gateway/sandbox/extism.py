"""Guests written with an Extism PDK: core modules that share a memory with the host."""

import base64
import binascii
import json
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wasmtime import (
    Engine,
    Func,
    FuncType,
    InstancePre,
    Linker,
    Memory,
    Module,
    Store,
    Trap,
    ValType,
    WasmtimeError,
)
from wasmtime import _ffi as ffi

from gateway.sandbox.calls import (
    GuestCall,
    GuestEnded,
    current,
    describe_end,
    fetch,
    guard_core,
    open_store,
)
from gateway.sandbox.compiler import core_signature
from gateway.sandbox.protocol import EXTISM, EXTISM_FUNCTIONS, EXTISM_USER, Program, Status
from gateway.sandbox.wasi import define_wasi_core, pop_exit_code

# ------------------------------------------------------------------------------- the shared memory
# The first 64 bytes hold the offsets of input, output and error, and the end of the blocks. A head
# before each block holds its use, capacity and length. A guest can damage only its own blocks.
_IN_USE, _FREE, _HEAD = 0x65787561, 0x65787566, 16
_STATE = struct.Struct("<QQQQQ")
# Read at import, because a confined worker cannot open files.
_KERNEL = Path(__file__).with_name("extism.wat").read_text(encoding="ascii")


def kernel_of(engine: Engine) -> InstancePre:
    return Linker(engine).instantiate_pre(Module(engine, _KERNEL))


class Kernel:
    """The shared memory of one call. Every read checks the bounds, because the guest writes there."""

    def __init__(self, store: Store, linker: Linker) -> None:
        """`linker` must hold the kernel's instance."""
        self._store = store
        memory, alloc = (linker.get(store, EXTISM, name) for name in ("memory", "alloc"))
        assert isinstance(memory, Memory)
        assert isinstance(alloc, Func)
        self._memory, self._alloc = memory, alloc

    def put(self, data: bytes) -> int:
        """Writes a block and returns its offset; 0 if it is empty or memory is full."""
        at = int(self._alloc(self._store, len(data)))
        if at:
            self._memory.write(self._store, bytearray(data), at)
        return at

    def put_input(self, data: bytes) -> None:
        """Sets the input of the guest. Raises MemoryError if memory is full."""
        at = self.put(data)
        if data and not at:
            raise MemoryError
        self._memory.write(self._store, bytearray(struct.pack("<QQ", at, len(data))), 0)

    def block(self, handle: int) -> bytes | None:
        """Returns the block of a handle; None if there is none."""
        at = handle & 0xFFFF_FFFF_FFFF_FFFF
        head = self._read(at - _HEAD, _HEAD) if at >= 64 + _HEAD else None
        if head is None:
            return None
        state, _room, length = struct.unpack("<IIQ", head)
        return self._read(at, length) if state == _IN_USE else None

    def output(self) -> bytes:
        _, _, at, length, _ = self._state()
        return self._read(at, length) or b""

    def error(self) -> bytes:
        """Returns the guest's error; empty without one."""
        return self.block(self._state()[4]) or b""

    def _state(self) -> tuple[int, ...]:
        return _STATE.unpack(self._memory.read(self._store, 0, _STATE.size))

    def _read(self, at: int, length: int) -> bytes | None:
        if at + length > self._memory.data_len(self._store):
            return None
        return bytes(self._memory.read(self._store, at, at + length))


# --------------------------------------------------------------------------------------- the guest
_GUEST = "guest"
_DEBUG = 1  # Extism's levels are trace (0) to error (4)
_PACKED = "base64:"  # prefix of a variable that is not text, or that has this prefix itself
LONGEST_ERROR = 4096
MOST_TEXT_BYTES = 256 * 1024


@dataclass(slots=True)
class _Run:
    """The state of a call that the host functions of its thread use."""

    kernel: Kernel
    config: Mapping[str, str]
    status: int = 0
    headers: Mapping[str, str] | None = None
    failure: str | None = None  # why a host function ended the call


_mine = threading.local()


def _run() -> _Run:
    run: _Run = _mine.run
    return run


class ExtismGuest:
    """A loaded module. Each call has its own instances; calls share only code."""

    def __init__(self, engine: Engine, program: Program) -> None:
        self._engine = engine
        self._module = Module.deserialize_file(engine, program.path)
        self._config = dict(program.config)
        exports = {one.name: one.type for one in self._module.exports}
        self._exports = {
            name: core_signature(kind)
            for name, kind in exports.items()
            if isinstance(kind, FuncType)
        }
        self._kernel = kernel_of(engine)
        self._linker = Linker(engine)
        self._linker.allow_shadowing = True  # the kernel's functions replace traps
        self._offer()
        define_wasi_core(self._linker, engine, self._module)
        self._linker.define_unknown_imports_as_traps(self._module)

    def run(self, call: GuestCall, function: str, text: str) -> tuple[Status, str]:
        name = function.replace("-", "_")
        if name not in self._exports:
            return "invalid", f"it exports no {name}"
        pop_exit_code()
        with open_store(self._engine, call) as store, _clone(self._linker) as linker:
            try:
                linker.define_instance(store, EXTISM, self._kernel.instantiate(store))
                _mine.run = run = _Run(Kernel(store, linker), self._config)
                run.kernel.put_input(b"" if function == "describe" else text.encode())
                code, ended = self._call(store, linker, name)
            except MemoryError:
                return "memory", "its input needs more memory than it may have"
            except (Trap, WasmtimeError) as error:
                return describe_end(call, error)
            return _outcome(call, run, code, ended)

    def _call(
        self, store: Store, linker: Linker, name: str
    ) -> tuple[int, Trap | WasmtimeError | None]:
        """Runs an export and returns its exit code, and the error if it did not return one."""
        try:
            linker.define_instance(store, _GUEST, linker.instantiate(store, self._module))
            for initialiser in self._initialisers():
                _export_of(store, linker, initialiser)(store, *_ARGUMENTS[initialiser])
            return int(_export_of(store, linker, name)(store) or 0), None
        except (Trap, WasmtimeError) as error:
            exit_code = pop_exit_code()
            if exit_code is None:
                return 0, error
        current().why = None  # the guest exited by itself
        return exit_code, None

    def _initialisers(self) -> tuple[str, ...]:
        """Returns the exports that a language's runtime needs to be called first."""
        there = [
            name for name in _ARGUMENTS if self._exports.get(name, "").startswith(_TAKES[name])
        ]
        if "hs_init" in there:
            return ("_initialize", "hs_init") if "_initialize" in there else ("hs_init",)
        return tuple(there[:1])

    def _offer(self) -> None:
        for name, function in _HOST.items():
            kind = _type(EXTISM_FUNCTIONS[name])
            self._linker.define_func(EXTISM, name, kind, self._quiet(function, kind))
        for one in self._module.imports:
            if one.module == EXTISM_USER and isinstance(one.type, FuncType):
                function = _asks(one.name or "", answers=bool(one.type.results))
                self._linker.define_func(
                    EXTISM_USER, one.name or "", one.type, self._quiet(function, one.type)
                )

    def _quiet(self, function: Callable[..., object], kind: FuncType) -> Callable[..., object]:
        return guard_core(self._engine, function, otherwise=0 if kind.results else None)


_TAKES = {"__wasm_call_ctors": "()", "_initialize": "()", "hs_init": "(i32,i32)"}
_ARGUMENTS = {"__wasm_call_ctors": (), "_initialize": (), "hs_init": (0, 0)}


def _clone(linker: Linker) -> Linker:
    """Clones the linker of all calls, because definitions of one store must not stay in it."""
    clone = Linker.__new__(Linker)
    # The binding has no method for it.
    clone._set_ptr(ffi.wasmtime_linker_clone(linker.ptr()))  # noqa: SLF001  # see above
    clone.engine = linker.engine
    return clone


def _export_of(store: Store, linker: Linker, name: str) -> Func:
    """Returns an export through the linker; an instance would wrap all its exports to find one."""
    found = linker.get(store, _GUEST, name)
    assert isinstance(found, Func)
    return found


def _type(signature: str) -> FuncType:
    parameters, _, results = signature.partition("->")
    kinds = {"i32": ValType.i32(), "i64": ValType.i64()}
    given = [kinds[kind] for kind in parameters.strip("()").split(",") if kind]
    return FuncType(given, [kinds[results]] if results else [])


def _outcome(
    call: GuestCall, run: _Run, code: int, ended: Trap | WasmtimeError | None
) -> tuple[Status, str]:
    """Returns the result of a call: a refusal of the host first, then the reason why the worker ended
    it, then the guest's own answer."""
    if run.failure is None and call.why is not None:
        return describe_end(call, ended or WasmtimeError(""))
    error = run.failure or run.kernel.error()[:LONGEST_ERROR].decode(errors="replace")
    if error:
        return "err", error
    if ended is not None:
        return describe_end(call, ended)
    if code != 0:
        return "err", f"it ended with code {code}"
    try:
        return "ok", run.kernel.output().decode()
    except UnicodeDecodeError:
        return "invalid", "its output is not UTF-8 text"


def _refuse(why: str) -> GuestEnded:
    """Returns the error to raise: a host function of Extism can refuse only by ending the call."""
    _run().failure = why
    return current().stop("denied")


def _text(handle: int, what: str) -> str:
    block = _run().kernel.block(handle)
    if block is None:
        raise _refuse(f"{what} is not in memory")
    if len(block) > MOST_TEXT_BYTES:
        raise _refuse(f"{what} is larger than {MOST_TEXT_BYTES // 1024} KiB")
    try:
        return block.decode()
    except UnicodeDecodeError:
        raise _refuse(f"{what} is not UTF-8 text") from None


def _put(data: bytes) -> int:
    at = _run().kernel.put(data)
    if data and not at:
        raise _refuse("memory is full, so the host cannot return its answer")
    return at


def _ask_host(function: str, *texts: str) -> str:
    answer, text = current().ask(function, *texts)
    if answer != "ok":
        raise _refuse(text)
    return text


def _config_get(key: int) -> int:
    current().count("config")
    value = _run().config.get(_text(key, "the key of a setting"))
    return 0 if value is None else _put(value.encode())


def _var_get(key: int) -> int:
    answer, text = current().ask("store.get", "vars", _text(key, "the key of a variable"))
    if answer == "none":
        return 0
    if answer != "ok":
        raise _refuse(text)
    return _put(unpack(text))


def _var_set(key: int, value: int) -> None:
    name = _text(key, "the key of a variable")
    if value == 0:
        _ask_host("store.delete", "vars", name)
        return
    block = _run().kernel.block(value)
    if block is None:
        raise _refuse("the value of a variable is not in memory")
    _ask_host("store.set", "vars", name, pack(block))


def pack(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = _PACKED
    return _PACKED + base64.b64encode(value).decode() if text.startswith(_PACKED) else text


def unpack(text: str) -> bytes:
    if not text.startswith(_PACKED):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_PACKED), validate=True)
    except binascii.Error:
        return text.encode()


def _http_request(request: int, body: int) -> int:
    run = _run()
    run.status, run.headers = 0, None
    try:
        parsed = json.loads(_text(request, "a request"))
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise _refuse("a request is not a JSON object")
    asked = {name: parsed[name] for name in ("method", "url", "headers") if parsed.get(name)}
    reply = fetch(asked, run.kernel.block(body) if body else None)
    if isinstance(reply, str):
        raise _refuse(reply)
    run.status, run.headers = reply.status, reply.headers
    return _put(reply.body)


def _http_headers() -> int:
    current().count("headers")
    headers = _run().headers
    return 0 if headers is None else _put(json.dumps(headers).encode())


def _logs(level: str) -> Callable[[int], None]:
    def log(message: int) -> None:
        block = _run().kernel.block(message) or b""
        current().log(level, block[: 2 * current().bounds.log_bytes].decode(errors="replace"))

    return log


def _asks(name: str, *, answers: bool) -> Callable[[int], int | None]:
    def ask(text: int) -> int | None:
        answer = _ask_host("host.call", name, _text(text, f"the input of {name}"))
        return _put(answer.encode()) if answers else None

    return ask


_HOST: dict[str, Callable[..., object]] = {
    "config_get": _config_get,
    "var_get": _var_get,
    "var_set": _var_set,
    "http_request": _http_request,
    "http_status_code": lambda: _run().status,
    "http_headers": _http_headers,
    "get_log_level": lambda: _DEBUG,
    "log_trace": _logs("debug"),
    **{f"log_{level}": _logs(level) for level in ("debug", "info", "warn", "error")},
}
