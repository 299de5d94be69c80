"""One call of a guest inside a worker: its engine, clock, counters, store and outcome; and the patches of
the wasmtime binding that calls need."""

import base64
import ctypes
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from wasmtime import Config, Engine, Store, Trap, WasmtimeError, _bindings
from wasmtime import _ffi as ffi
from wasmtime.component import ListType, ValType, Variant
from wasmtime.component._types import VariantLikeType

from gateway.sandbox.protocol import (
    ALL_ASKED_BYTES,
    ASKED_BYTES,
    REQUEST_BYTES,
    Bounds,
    Status,
)

# ----------------------------------------------------------------------------------------- engines
STACK_BYTES = 512 * 1024
THREAD_STACK_BYTES = 8 * 1024 * 1024
_RESERVED_BYTES = 64 * 1024 * 1024
_GUARD_BYTES = 64 * 1024


def _config() -> Config:
    config = Config()
    config.epoch_interruption = True
    config.consume_fuel = True
    # Explicit checks instead of signals: another signal handler would let a trap kill the process.
    config.signals_based_traps = False
    config.max_wasm_stack = STACK_BYTES
    config.memory_reservation = _RESERVED_BYTES
    config.memory_guard_size = _GUARD_BYTES
    config.parallel_compilation = False
    config.gc_support = False
    config.wasm_threads = False
    config.wasm_memory64 = False
    return config


def component_engine() -> Engine:
    # Without several memories, composed components crash the compiler.
    return Engine(_config())


def core_engine() -> Engine:
    """Returns an engine for core modules, which need no second memory."""
    config = _config()
    config.wasm_multi_memory = False
    return Engine(config)


# ------------------------------------------------------------------------------------ HTTP as JSON
MOST_HEADERS = 200
_KEYS = ("method", "url", "headers", "body", "body_base64", "timeout_ms")


def flatten_request(text: str) -> str:
    """Returns a request with only the known keys; only the headers may be nested. Raises
    ValueError."""
    try:
        asked = json.loads(text)
    except RecursionError:
        asked = None
    if not isinstance(asked, dict):
        raise ValueError('a request must be a JSON object with "url"')
    kept = {key: asked[key] for key in _KEYS if asked.get(key) is not None}
    headers = kept.get("headers", {})
    if not isinstance(headers, dict) or len(headers) > MOST_HEADERS or _is_nested(headers):
        raise ValueError(f'"headers" must be an object of at most {MOST_HEADERS} strings')
    if _is_nested({**kept, "headers": None}):
        raise ValueError('only "headers" may be nested in a request')
    return json.dumps(kept)


def join_answer(head: str, body: str) -> str:
    """Adds the body to the gateway's JSON, whose `body` names the key for it."""
    answer = json.loads(head)
    answer[answer.pop("body")] = body
    return json.dumps(answer)


def _is_nested(values: Mapping[str, object]) -> bool:
    return any(isinstance(value, dict | list) for value in values.values())


# ---------------------------------------------------------------------------------------- the call
TICK_S = 0.01
_SHORT_S = 0.003  # CPU time after which a guest gets a lower priority
# The bounds of a store; composed components need the most (a Python guest has 38 instances).
_TABLES, _TABLE_ELEMENTS, _INSTANCES, _MEMORIES = 16, 20_000, 64, 4
_FREELY_SERVED, _PAUSE_S = 2_000, 0.001
_ELEMENTS = 100_000  # elements of lists in one call, except bytes: each is converted on its own

Answer = tuple[str, ...]  # "ok", "none" or "err", a text, and the body of an HTTP answer
Say = Callable[[int, tuple[str, ...]], None]


class GuestEnded(WasmtimeError):
    """Ends the guest from inside a host function; `GuestCall.why` holds the reason.

    A host function may raise no other exception: the binding keeps exceptions in one place for all
    threads, so another call could raise them.
    """


@dataclass(slots=True)
class GuestCall:
    """One call of a guest. It belongs to one thread, except `cancel` and `answers`."""

    number: int
    bounds: Bounds
    end: float  # by time.monotonic
    say: Say  # sends a host call to the gateway
    began: float = field(default_factory=time.monotonic)
    why: Status | None = None  # why the worker ended the call; None if it did not
    answers: SimpleQueue[Answer | None] = field(default_factory=SimpleQueue)
    fuel_used: int = 0
    slower_by: int = 0  # the nice value of its thread once it is slow
    is_slow: bool = False
    _counts: dict[str, int] = field(default_factory=dict)
    _written: dict[str, bytes] = field(default_factory=dict)  # level -> unfinished line
    _asked_bytes: int = 0
    _elements: int = 0
    _served: int = 0

    @property
    def left_s(self) -> float:
        return self.end - time.monotonic()

    @property
    def is_over(self) -> bool:
        return self.why is not None or self.left_s <= 0

    def stop(self, why: Status) -> GuestEnded:
        """Returns the error to raise, and sets the reason unless there is one."""
        self.why = self.why or why
        return GuestEnded(f"stopped: {self.why}")

    def cancel(self) -> None:
        """Cancels the call from another thread: a waiting host call ends at once, the guest at its
        next check."""
        self.why = self.why or "cancelled"
        self.answers.put(None)

    def throttle(self) -> None:
        """Slows a guest with very many uncounted host calls, which would keep the interpreter lock
        from other guests."""
        self._served += 1
        if self._served > _FREELY_SERVED:
            time.sleep(_PAUSE_S)

    def may_convert(self, elements: int) -> bool:
        """True if a list may be converted, which no deadline interrupts; otherwise ends the call."""
        self._elements += elements
        if self._elements > _ELEMENTS:
            self.stop("output_too_large")
        return self.why is None

    def lower_priority(self) -> None:
        """Lets threads with short calls run before this one. It cannot be undone, so the thread ends
        with the call."""
        self.is_slow = True
        os.nice(self.slower_by)

    def count(self, what: str) -> int:
        """Counts a host call and returns the count of its kind. Raises GuestEnded beyond the bounds
        of all host calls."""
        if self.is_over:
            raise self.stop("timeout")
        total = self._counts["all"] = self._counts.get("all", 0) + 1
        if total > self.bounds.host_calls:
            raise self.stop("host_calls")
        self._counts[what] = self._counts.get(what, 0) + 1
        return self._counts[what]

    def ask(self, function: str, *arguments: str) -> tuple[str, str]:
        """Sends a host call to the gateway and waits for its answer until the end of the call.

        Returns "ok" or "err" and a text; `store.get` returns "none" for a missing value.
        """
        kind = function.partition(".")[0]
        if self.count(kind) > self.bounds.http_calls and kind == "http":
            return "err", f"at most {self.bounds.http_calls} requests are allowed in one call"
        most = REQUEST_BYTES if kind == "http" else ASKED_BYTES
        size = sum(len(text.encode()) for text in arguments)
        if size > most:
            return "err", f"a host call may have at most {most // 1024} KiB"
        self._asked_bytes += size
        if self._asked_bytes > ALL_ASKED_BYTES:
            raise self.stop("host_calls")
        if kind == "http":
            try:
                arguments = (flatten_request(*arguments),)
            except ValueError as error:
                return "err", str(error)
        status, text, *body = self._wait(function, *arguments)
        return status, join_answer(text, *body) if body else text

    def _wait(self, function: str, *arguments: str) -> Answer:
        self.say(self.number, (function, *arguments))
        try:
            answer = self.answers.get(timeout=max(0.0, self.left_s))
        except Empty:
            raise self.stop("timeout") from None
        if answer is None:
            raise self.stop("cancelled")
        return answer

    def log(self, level: str, message: str) -> None:
        """Logs a message; cuts a long one and drops those beyond the bound."""
        if self.count("log") <= self.bounds.log_lines:
            kept = message.encode()[: self.bounds.log_bytes].decode(errors="ignore")
            self.say(self.number, ("log", level, kept))

    def write(self, level: str, data: bytes) -> None:
        """Logs output line by line. It is not a host call, so excess output is only dropped."""
        *lines, rest = (self._written.get(level, b"") + data[: self.bounds.log_bytes]).split(b"\n")
        if len(rest) >= self.bounds.log_bytes:
            lines, rest = [*lines, rest], b""
        self._written[level] = rest
        for line in filter(None, lines):
            self._counts["log"] = self._counts.get("log", 0) + 1
            if self._counts["log"] > self.bounds.log_lines:
                return
            kept = line[: self.bounds.log_bytes].decode(errors="replace")
            self.say(self.number, ("log", level, kept))

    def flush(self) -> None:
        """Logs the unfinished lines at the end of the call."""
        for level in tuple(self._written):
            self.write(level, b"\n")

    def usage(self) -> tuple[str, str, str]:
        """Returns milliseconds, fuel and host calls."""
        wall_ms = round((time.monotonic() - self.began) * 1000, 3)
        return str(wall_ms), str(self.fuel_used), str(self._counts.get("all", 0))


_running: dict[int, GuestCall] = {}  # the store's callback gets a number and finds its call here
_mine = threading.local()


def current() -> GuestCall:
    """Returns the call of this thread; host functions run on the guest's thread."""
    call: GuestCall = _mine.call
    return call


@contextmanager
def open_store(engine: Engine, call: GuestCall) -> Iterator[Store]:
    """Opens a store within a call's bounds, and records its fuel when the context is left."""
    store = Store(engine)
    _running[call.number] = _mine.call = call
    _mine.cpu_began = time.thread_time()
    try:
        store.set_limits(
            memory_size=call.bounds.memory_bytes,
            table_elements=_TABLE_ELEMENTS,
            instances=_INSTANCES,
            tables=_TABLES,
            memories=_MEMORIES,
        )
        store.set_fuel(call.bounds.fuel)
        store.set_epoch_deadline(1)
        ffi.wasmtime_store_epoch_deadline_callback(
            store.ptr(), _tick, ctypes.c_void_p(call.number), _nothing
        )
        yield store
    finally:
        call.flush()
        call.fuel_used = call.bounds.fuel - store.get_fuel()
        del _running[call.number], _mine.call
        store.close()  # a traceback would keep the store and its memory alive


@ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.POINTER(ffi.wasmtime_context_t),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ffi.wasmtime_update_deadline_kind_t),
)
def _tick(context, number, delta, kind):  # type: ignore[no-untyped-def]  # called from C
    """Ends the guest, or lets it run until the next tick of the clock. Runs on the guest's thread."""
    call = _running.get(number)
    if call is None or call.is_over:
        error = call.stop("timeout") if call is not None else GuestEnded("stopped")
        # The binding has no other way to pass an error to C.
        return ctypes.cast(error._consume(), ctypes.c_void_p).value  # noqa: SLF001  # see above
    if call.slower_by and not call.is_slow and time.thread_time() - _mine.cpu_began > _SHORT_S:
        call.lower_priority()
    delta[0] = 1
    return 0


_nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(0)

# wasmtime's words for the end of a guest, after the last "Caused by". The text before it holds the
# names of the guest's functions, which are the guest's words and are never shown.
_TRAPS: tuple[tuple[str, Status, str], ...] = (
    ("has not been defined", "denied", "it called a system function that plugins may not call"),
    ("all fuel consumed", "fuel", "it used up the computing time of one call"),
    ("call stack exhausted", "stack", "its call stack overflowed"),
    ("resource limit exceeded", "memory", "it needs more than it may have"),
    ("exceeds memory limit", "memory", "it needs more memory than it may have"),
    ("memory minimum size", "memory", "it needs more memory than it may have"),
    ("table minimum size", "memory", "it needs larger tables than it may have"),
    ("out of bounds memory access", "trap", "it accessed memory out of bounds"),
    ("out of bounds", "trap", "it passed an address outside its memory"),
    ("beyond end of memory", "trap", "it passed an address outside its memory"),
    ("invalid utf-8", "invalid", "it passed text that is not UTF-8"),
    ("unreachable", "trap", "it panicked (unreachable code was reached)"),
    ("integer divide by zero", "trap", "it divided by zero"),
    ("interrupt", "timeout", "it did not end in time"),
)


# Why the worker ended the guest.
_STOPPED: dict[str, str] = {
    "timeout": "it did not end in time",
    "cancelled": "it was cancelled",
    "denied": "it used a capability without a grant",
    "host_calls": "it called the host too often",
    "trap": "it exited",
    "output_too_large": "it passed lists with too many elements",
}


def describe_end(call: GuestCall, error: WasmtimeError | Trap) -> tuple[Status, str]:
    """Returns why a guest ended without an answer, without any text of the guest."""
    if call.why is not None:
        return call.why, _STOPPED[call.why]
    said = str(error).rpartition("Caused by:")[2]
    found = (one for one in _TRAPS if one[0] in said)
    _, status, words = next(found, ("", "trap", "it crashed"))
    return status, words


MOST_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class GuestReply:
    status: int
    headers: Mapping[str, str]
    body: bytes


def fetch(request: Mapping[str, object], body: bytes | None) -> GuestReply | str:
    """Sends a request through the gateway; returns a text if it failed. Raises GuestEnded."""
    if body and len(body) > MOST_BODY_BYTES:
        return f"the body of a request is larger than {MOST_BODY_BYTES // 1024} KiB"
    sent = {"body_base64": base64.b64encode(body).decode()} if body else {}
    answer, text = current().ask("http.request", json.dumps({**request, **sent}))
    if answer != "ok":
        return text
    reply = json.loads(text)
    packed = reply.get("body_base64")
    got = reply.get("body", "").encode() if packed is None else base64.b64decode(packed)
    return GuestReply(reply["status"], reply["headers"], got)


# ----------------------------------------------------------------- patches of the wasmtime binding
# They keep one guest's call from disturbing or delaying another's. The unpatched binding converts a
# list of bytes at a microsecond a byte while it holds the interpreter lock, mixes up variants that two
# threads lower at once, and stores the exception of a host function in one place for all threads.
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
