"""WASI for guests, previews 1 and 2, within the bounds of a call and without the operating system."""

import struct
import threading
import time
from collections.abc import Callable
from queue import Empty

from wasmtime import Caller, Engine, FuncType, Linker, Memory, Module, StoreContext
from wasmtime.component import (
    Component,
    ComponentInstanceType,
    Record,
    ResourceAny,
    ResourceHost,
    ResourceType,
    Variant,
)
from wasmtime.component import FuncType as ComponentFunction
from wasmtime.component import Linker as ComponentLinker

from gateway.sandbox.calls import current, guard, guard_core, patch_binding
from gateway.sandbox.compiler import core_signature, signature_of
from gateway.sandbox.protocol import WASI_CORE

# ----------------------------------------------------------------------------------- both previews
STDIN, STDOUT, STDERR = 0, 1, 2
RESOLUTION_NS = 1_000_000
MOST_RANDOM_BYTES = 64 * 1024


def elapsed_ns() -> int:
    return int((time.monotonic() - current().began) * 1e9)


def wall_ns() -> int | None:
    """Returns the time of the clock; None without the grant."""
    answer, text = current().ask("clock.now")
    return int(text) * 1_000_000 if answer == "ok" else None


def random_bytes(count: int) -> bytes | None:
    """Returns random bytes; None without the grant or above MOST_RANDOM_BYTES."""
    if count > MOST_RANDOM_BYTES:
        return None
    answer, text = current().ask("random.bytes", str(count))
    if answer != "ok":
        current().log("error", text)  # it names the missing grant; most guests stop here
        return None
    return bytes.fromhex(text)


def sleep(seconds: float) -> None:
    """Sleeps at most until the end of the call. Raises GuestEnded, at once if the call is
    cancelled."""
    call = current()
    call.count("sleep")
    try:
        call.answers.get(timeout=max(0.0, min(seconds, call.left_s)))
    except Empty:
        if call.is_over:
            raise call.stop("timeout") from None
        return
    raise call.stop("cancelled")  # without a host call, only a cancel can arrive here


def say(stream: int, data: bytes) -> None:
    current().write("error" if stream == STDERR else "info", data)


# --------------------------------------------------------------------------------------- preview 2
# The number of a stream resource is its descriptor. The number of a pollable is the millisecond of the
# call at which it is ready; 0 is always ready.
_INPUT, _OUTPUT, _POLLABLE = 1, 2, 3
_RESOURCES = {
    "io/streams": {"input-stream": _INPUT, "output-stream": _OUTPUT},
    "io/poll": {"pollable": _POLLABLE},
}
_LATEST_MS = 0xFFFFFFFF
_AT_ONCE = 4096  # bytes of one write to a stream

Serve = Callable[..., object]


def offer_wasi(linker: ComponentLinker, component: Component, engine: Engine) -> None:
    """Defines the imports of WASI in the component's own versions, if their types are known."""
    patch_binding()
    for name, one in component.type.imports(engine).items():
        package, _, version = name.partition("@")
        short = package.removeprefix("wasi:")
        known = package.startswith("wasi:") and version.startswith("0.2.")
        if known and short in _INTERFACES and isinstance(one.ty, ComponentInstanceType):
            _offer(linker, name, one.ty, engine)


def _offer(
    linker: ComponentLinker, name: str, imported: ComponentInstanceType, engine: Engine
) -> None:
    short = name.partition("@")[0].removeprefix("wasi:")
    wanted = {inner: one.ty for inner, one in imported.exports(engine).items()}
    with linker.root() as root, root.add_instance(name) as instance:
        for resource, number in _RESOURCES.get(short, {}).items():
            if isinstance(wanted.get(resource), ResourceType):
                instance.add_resource(resource, ResourceType.host(number), lambda _, __: None)
        for function, (signature, serve) in _INTERFACES[short].items():
            kind = wanted.get(function)
            if isinstance(kind, ComponentFunction) and signature_of(kind) == signature:
                instance.add_func(function, guard(serve))


def _gives(make: Callable[[], object]) -> Serve:
    return lambda _store: make()


def _of(serve: Callable[..., object]) -> Serve:
    """Returns a method that gets the number of its resource. The host must consume the handle."""

    def call(store: StoreContext, handle: ResourceAny, *arguments: object) -> object:
        return serve(handle.to_host(store).rep, *arguments)

    return call


def _pollable(due_ns: int) -> ResourceHost:
    current().count("poll")  # a pollable is a handle in the store
    return ResourceHost.own(min(-(-due_ns // 1_000_000), _LATEST_MS), _POLLABLE)


def _stream(number: int) -> Serve:
    def get(_store: StoreContext) -> ResourceHost:
        current().count("poll")
        return ResourceHost.own(number, _INPUT if number == STDIN else _OUTPUT)

    return get


def _wait_s(due_ms: int) -> float:
    return due_ms / 1000 - elapsed_ns() / 1e9 if due_ms else 0.0


def _block(due_ms: int) -> None:
    left_s = _wait_s(due_ms)
    if left_s > 0:
        sleep(left_s)


def _poll(store: StoreContext, handles: list[ResourceAny]) -> list[int]:
    """Waits for the first ready handle. wasmtime 50 itself ends a guest that passes several borrowed
    handles."""
    if not handles:
        raise current().stop("trap")
    due = [handle.to_host(store).rep for handle in handles]
    soonest = min(due)
    _block(soonest)
    return [at for at, ms in enumerate(due) if ms <= soonest or _wait_s(ms) <= 0]


def _write(stream: int, data: bytes) -> Variant:
    say(stream, data)
    return Variant("ok")


def _exit(_store: StoreContext, _code: object) -> None:
    raise current().stop("trap")


def _moment(ns: int) -> Record:
    moment = Record()
    moment.seconds, moment.nanoseconds = divmod(ns, 1_000_000_000)  # type: ignore[attr-defined]  # the binding's records have any field
    return moment


def _random(count: int) -> bytes:
    found = random_bytes(count)
    if found is None:
        raise current().stop("denied")
    return found


_RESULT = "result<{},variant{{last-operation-failed(own),closed}}>"
_READ, _DONE, _ROOM = map(_RESULT.format, ("list<u8>", "_", "u64"))
_MOMENT = "record{seconds:u64,nanoseconds:u32}"
_CLOSED = _of(lambda _stream, *_: None)
_FLUSHED = _of(lambda _stream: Variant("ok"))
_READY = _of(lambda _stream: _pollable(0))
_NOBODY = _gives(lambda: None)
# interface -> function -> its type and implementation
_INTERFACES: dict[str, dict[str, tuple[str, Serve]]] = {
    "cli/environment": {
        "get-environment": ("()->list<tuple<string,string>>", _gives(list)),
        "get-arguments": ("()->list<string>", _gives(list)),
        "initial-cwd": ("()->option<string>", _NOBODY),
    },
    "cli/exit": {"exit": ("(result<_,_>)", _exit), "exit-with-code": ("(u8)", _exit)},
    "cli/stdin": {"get-stdin": ("()->own", _stream(STDIN))},
    "cli/stdout": {"get-stdout": ("()->own", _stream(STDOUT))},
    "cli/stderr": {"get-stderr": ("()->own", _stream(STDERR))},
    "cli/terminal-stdin": {"get-terminal-stdin": ("()->option<own>", _NOBODY)},
    "cli/terminal-stdout": {"get-terminal-stdout": ("()->option<own>", _NOBODY)},
    "cli/terminal-stderr": {"get-terminal-stderr": ("()->option<own>", _NOBODY)},
    "clocks/monotonic-clock": {
        "now": ("()->u64", _gives(elapsed_ns)),
        "resolution": ("()->u64", _gives(lambda: RESOLUTION_NS)),
        "subscribe-instant": ("(u64)->own", lambda _, due_ns: _pollable(due_ns)),
        "subscribe-duration": ("(u64)->own", lambda _, ns: _pollable(elapsed_ns() + ns)),
    },
    "clocks/wall-clock": {
        "now": (f"()->{_MOMENT}", _gives(lambda: _moment(wall_ns() or 0))),
        "resolution": (f"()->{_MOMENT}", _gives(lambda: _moment(RESOLUTION_NS))),
    },
    "filesystem/preopens": {"get-directories": ("()->list<tuple<own,string>>", _gives(list))},
    "io/poll": {
        "[method]pollable.ready": ("(borrow)->bool", _of(lambda due_ms: _wait_s(due_ms) <= 0)),
        "[method]pollable.block": ("(borrow)", _of(_block)),
        "poll": ("(list<borrow>)->list<u32>", _poll),
    },
    "io/streams": {
        "[method]input-stream.read": (f"(borrow,u64)->{_READ}", _CLOSED),
        "[method]input-stream.blocking-read": (f"(borrow,u64)->{_READ}", _CLOSED),
        "[method]input-stream.skip": (f"(borrow,u64)->{_ROOM}", _CLOSED),
        "[method]input-stream.blocking-skip": (f"(borrow,u64)->{_ROOM}", _CLOSED),
        "[method]input-stream.subscribe": ("(borrow)->own", _READY),
        "[method]output-stream.check-write": (f"(borrow)->{_ROOM}", _of(lambda _: _AT_ONCE)),
        "[method]output-stream.write": (f"(borrow,list<u8>)->{_DONE}", _of(_write)),
        "[method]output-stream.blocking-write-and-flush": (
            f"(borrow,list<u8>)->{_DONE}",
            _of(_write),
        ),
        "[method]output-stream.flush": (f"(borrow)->{_DONE}", _FLUSHED),
        "[method]output-stream.blocking-flush": (f"(borrow)->{_DONE}", _FLUSHED),
        "[method]output-stream.subscribe": ("(borrow)->own", _READY),
    },
    "random/random": {
        "get-random-bytes": ("(u64)->list<u8>", lambda _, count: _random(count)),
        "get-random-u64": ("()->u64", _gives(lambda: int.from_bytes(_random(8), "little"))),
    },
    # A constant seed is enough within one call.
    "random/insecure-seed": {"insecure-seed": ("()->tuple<u64,u64>", _gives(lambda: (0, 0)))},
}


# --------------------------------------------------------------------------------------- preview 1
# Error numbers.
_OK, _BAD_FILE, _FAULT, _INVALID, _IO, _UNSUPPORTED, _NOT_CAPABLE = 0, 8, 21, 28, 29, 58, 76
_REALTIME, _MONOTONIC = 0, 1
_MOST_AT_ONCE = 1024  # vectors of one write, subscriptions of one poll
_TERMINAL, _READ_OR_WRITE = 2, 0b1000010
_SUBSCRIPTION, _EVENT = struct.Struct("<QB7xI4xQQH6x"), struct.Struct("<QHB5xQH6x")

CoreServe = Callable[..., int]


class _OutOfBounds(Exception):
    """A pointer of the guest is outside its memory."""


class _View:
    """The memory of the calling guest."""

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


def pop_exit_code() -> int | None:
    """Returns and clears the exit code of the last guest of this thread; None without one."""
    code, _exits.code = _exits.code, None
    return code


def define_wasi_core(linker: Linker, engine: Engine, module: Module) -> None:
    """Defines the imports of WASI. An unknown function returns an error, or traps if it cannot."""
    for one in module.imports:
        if one.module != WASI_CORE or not isinstance(one.type, FuncType):
            continue
        name, signature = one.name or "", core_signature(one.type)
        known, serve = _FUNCTIONS.get(name, (signature, _refuse))
        if known == signature and (serve is not _refuse or signature.endswith("->i32")):
            called = guard_core(engine, _wrap(serve, signature), _IO if one.type.results else None)
            linker.define_func(WASI_CORE, name, one.type, called, access_caller=True)


def _wrap(serve: CoreServe, signature: str) -> Callable[..., int]:
    """Passes numbers as unsigned, and returns an error number for a bad pointer."""
    kinds = filter(None, signature[1 : signature.index(")")].split(","))
    masks = [0xFFFFFFFF if kind == "i32" else (1 << 64) - 1 for kind in kinds]

    def call(caller: Caller, *numbers: int) -> int:
        try:
            return serve(_View(caller), *map(int.__and__, numbers, masks))
        except _OutOfBounds:
            return _FAULT

    return call


def _returns(code: int) -> CoreServe:
    return lambda _view, *_: code


_refuse, _nothing, _no_such_file = map(_returns, (_NOT_CAPABLE, _OK, _BAD_FILE))


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


def _core_random(view: _View, at: int, count: int) -> int:
    view.require(at, count)
    found = random_bytes(count)
    return _NOT_CAPABLE if found is None else view.write(at, found)


def _core_write(view: _View, file: int, vectors_at: int, count: int, written_at: int) -> int:
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


def _core_poll(view: _View, asked_at: int, events_at: int, count: int, ready_at: int) -> int:
    if not 0 < count <= _MOST_AT_ONCE:
        return _INVALID
    asked = _SUBSCRIPTION.iter_unpack(view.read(asked_at, _SUBSCRIPTION.size * count))
    waits = [(mark, kind, _core_wait_s(kind, *rest)) for mark, kind, *rest in asked]
    if any(wait is None for _, _, wait in waits):
        return _UNSUPPORTED
    shortest = min(wait or 0.0 for _, _, wait in waits)
    if shortest > 0:
        sleep(shortest)
    events = [_EVENT.pack(mark, _OK, kind, 0, 0) for mark, kind, wait in waits if wait == shortest]
    view.write(events_at, b"".join(events))
    return view.write(ready_at, struct.pack("<I", len(events)))


def _core_wait_s(kind: int, clock: int, time_ns: int, _precision: int, flags: int) -> float | None:
    """Returns the wait of a subscription; None for an unknown clock. A file is always ready."""
    if kind != 0:
        return 0.0
    if not flags & 1:
        return time_ns / 1e9
    return max(0.0, (time_ns - elapsed_ns()) / 1e9) if clock == _MONOTONIC else None


def _core_exit(_view: _View, code: int) -> int:
    _exits.code = code
    raise current().stop("trap")


_FUNCTIONS: dict[str, tuple[str, CoreServe]] = {
    "args_get": ("(i32,i32)->i32", _nothing),
    "args_sizes_get": ("(i32,i32)->i32", _no_texts),
    "environ_get": ("(i32,i32)->i32", _nothing),
    "environ_sizes_get": ("(i32,i32)->i32", _no_texts),
    "clock_res_get": ("(i32,i32)->i32", _clock_resolution),
    "clock_time_get": ("(i32,i64,i32)->i32", _clock_time),
    "random_get": ("(i32,i32)->i32", _core_random),
    "fd_write": ("(i32,i32,i32,i32)->i32", _core_write),
    "fd_read": ("(i32,i32,i32,i32)->i32", _read),
    "fd_close": ("(i32)->i32", _nothing),
    "fd_fdstat_get": ("(i32,i32)->i32", _file_state),
    "fd_fdstat_set_flags": ("(i32,i32)->i32", _nothing),
    "fd_prestat_get": ("(i32,i32)->i32", _no_such_file),
    "fd_prestat_dir_name": ("(i32,i32,i32)->i32", _no_such_file),
    "poll_oneoff": ("(i32,i32,i32,i32)->i32", _core_poll),
    "sched_yield": ("()->i32", _nothing),
    "proc_exit": ("(i32)", _core_exit),
}
