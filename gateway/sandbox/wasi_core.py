"""What core modules import of WASI preview 1: served within a call's bounds, never by the system.

There are no files, no arguments and no environment, and the input is empty.
"""

import struct
import threading
from collections.abc import Callable

from wasmtime import Caller, Engine, FuncType, Linker, Memory, Module

from gateway.sandbox.abis import WASI_CORE
from gateway.sandbox.binding import quiet
from gateway.sandbox.calls import current
from gateway.sandbox.spelling import spelled_core
from gateway.sandbox.wasi import (
    RESOLUTION_NS,
    STDERR,
    STDIN,
    STDOUT,
    elapsed_ns,
    random_bytes,
    say,
    sleep,
    wall_ns,
)

# errno
_OK, _BAD_FILE, _FAULT, _INVALID, _IO, _UNSUPPORTED, _NOT_CAPABLE = 0, 8, 21, 28, 29, 58, 76
_REALTIME, _MONOTONIC = 0, 1
_MOST_AT_ONCE = 1024  # vectors of one write, subscriptions of one poll
_TERMINAL, _READ_OR_WRITE = 2, 0b1000010
_SUBSCRIPTION, _EVENT = struct.Struct("<QB7xI4xQQH6x"), struct.Struct("<QHB5xQH6x")

Serve = Callable[..., int]


class _OutOfBounds(Exception):
    """A pointer of the guest's that is none."""


class _View:
    """The memory of the guest that calls."""

    def __init__(self, caller: Caller) -> None:
        memory = caller.get("memory")
        if not isinstance(memory, Memory):
            raise _OutOfBounds
        self._caller, self._memory = caller, memory

    def require(self, at: int, count: int) -> None:
        if at + count > self._memory.data_len(self._caller):
            raise _OutOfBounds

    def read(self, at: int, count: int) -> bytes:
        self.require(at, count)
        return bytes(self._memory.read(self._caller, at, at + count))

    def write(self, at: int, data: bytes) -> int:
        self.require(at, len(data))
        if data:
            self._memory.write(self._caller, data, at)
        return _OK


class _Exits(threading.local):
    code: int | None = None


_exits = _Exits()


def taken_exit_code() -> int | None:
    """With what the guest that this thread ran last ended itself; None if it did not."""
    code, _exits.code = _exits.code, None
    return code


def define_wasi_core(linker: Linker, engine: Engine, module: Module) -> None:
    """What is not known here refuses, or is left to be a trap if it has no way to."""
    for one in module.imports:
        if one.module != WASI_CORE or not isinstance(one.type, FuncType):
            continue
        name, signature = one.name or "", spelled_core(one.type)
        known, serve = _FUNCTIONS.get(name, (signature, _refuse))
        if known == signature and (serve is not _refuse or signature.endswith("->i32")):
            called = quiet(engine, _served(serve, signature), _IO if one.type.results else None)
            linker.define_func(WASI_CORE, name, one.type, called, access_caller=True)


def _served(serve: Serve, signature: str) -> Callable[..., int]:
    """The guest's numbers without a sign, and a bad pointer as an error number."""
    masks = [0xFFFFFFFF if kind == "i32" else (1 << 64) - 1 for kind in _parameters(signature)]

    def call(caller: Caller, *numbers: int) -> int:
        try:
            return serve(_View(caller), *map(int.__and__, numbers, masks))
        except _OutOfBounds:
            return _FAULT

    return call


def _parameters(signature: str) -> list[str]:
    return [kind for kind in signature[1 : signature.index(")")].split(",") if kind]


def _refuse(_view: _View, *_: int) -> int:
    return _NOT_CAPABLE


def _nothing(_view: _View, *_: int) -> int:
    return _OK


def _no_texts(view: _View, count_at: int, bytes_at: int) -> int:
    view.write(bytes_at, bytes(4))
    return view.write(count_at, bytes(4))


def _clock_resolution(view: _View, clock: int, at: int) -> int:
    if clock not in {_REALTIME, _MONOTONIC}:
        return _INVALID
    return view.write(at, struct.pack("<Q", RESOLUTION_NS))


def _clock_time(view: _View, clock: int, _precision: int, at: int) -> int:
    if clock not in {_REALTIME, _MONOTONIC}:
        return _INVALID
    now = wall_ns() if clock == _REALTIME else elapsed_ns()
    return _NOT_CAPABLE if now is None else view.write(at, struct.pack("<Q", now))


def _random(view: _View, at: int, count: int) -> int:
    view.require(at, count)
    found = random_bytes(count)
    return _NOT_CAPABLE if found is None else view.write(at, found)


def _write(view: _View, file: int, vectors_at: int, count: int, written_at: int) -> int:
    if file not in {STDOUT, STDERR}:
        return _BAD_FILE
    if count > _MOST_AT_ONCE:
        return _INVALID
    vectors = list(struct.iter_unpack("<II", view.read(vectors_at, 8 * count)))
    data, most = b"", current().bounds.log_bytes
    for at, length in vectors:
        view.require(at, length)
        data += view.read(at, min(length, most - len(data)))
    say(file, data)
    total = sum(length for _, length in vectors) & 0xFFFFFFFF
    return view.write(written_at, struct.pack("<I", total))


def _read(view: _View, file: int, _vectors_at: int, _count: int, read_at: int) -> int:
    return view.write(read_at, bytes(4)) if file == STDIN else _BAD_FILE


def _file_state(view: _View, file: int, at: int) -> int:
    if file > STDERR:
        return _BAD_FILE
    return view.write(at, struct.pack("<BxHxxxxQQ", _TERMINAL, 0, _READ_OR_WRITE, 0))


def _no_such_file(_view: _View, *_: int) -> int:
    return _BAD_FILE


def _poll(view: _View, asked_at: int, events_at: int, count: int, ready_at: int) -> int:
    if not 0 < count <= _MOST_AT_ONCE:
        return _INVALID
    asked = _SUBSCRIPTION.iter_unpack(view.read(asked_at, _SUBSCRIPTION.size * count))
    waits = [(mark, kind, _wait_s(kind, *rest)) for mark, kind, *rest in asked]
    if any(wait is None for _, _, wait in waits):
        return _UNSUPPORTED
    shortest = min(wait or 0.0 for _, _, wait in waits)
    if shortest > 0:
        sleep(shortest)
    events = [_EVENT.pack(mark, _OK, kind, 0, 0) for mark, kind, wait in waits if wait == shortest]
    view.write(events_at, b"".join(events))
    return view.write(ready_at, struct.pack("<I", len(events)))


def _wait_s(kind: int, clock: int, time_ns: int, _precision: int, flags: int) -> float | None:
    """None: until a moment of a clock that is not known. A file is always ready."""
    if kind != 0:
        return 0.0
    if not flags & 1:
        return time_ns / 1e9
    return max(0.0, (time_ns - elapsed_ns()) / 1e9) if clock == _MONOTONIC else None


def _exit(_view: _View, code: int) -> int:
    _exits.code = code
    raise current().stop("trap")


_FUNCTIONS: dict[str, tuple[str, Serve]] = {
    "args_get": ("(i32,i32)->i32", _nothing),
    "args_sizes_get": ("(i32,i32)->i32", _no_texts),
    "environ_get": ("(i32,i32)->i32", _nothing),
    "environ_sizes_get": ("(i32,i32)->i32", _no_texts),
    "clock_res_get": ("(i32,i32)->i32", _clock_resolution),
    "clock_time_get": ("(i32,i64,i32)->i32", _clock_time),
    "random_get": ("(i32,i32)->i32", _random),
    "fd_write": ("(i32,i32,i32,i32)->i32", _write),
    "fd_read": ("(i32,i32,i32,i32)->i32", _read),
    "fd_close": ("(i32)->i32", _nothing),
    "fd_fdstat_get": ("(i32,i32)->i32", _file_state),
    "fd_fdstat_set_flags": ("(i32,i32)->i32", _nothing),
    "fd_prestat_get": ("(i32,i32)->i32", _no_such_file),
    "fd_prestat_dir_name": ("(i32,i32,i32)->i32", _no_such_file),
    "poll_oneoff": ("(i32,i32,i32,i32)->i32", _poll),
    "sched_yield": ("()->i32", _nothing),
    "proc_exit": ("(i32)", _exit),
}
