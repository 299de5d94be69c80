"""The protocol between gateway and worker: programs, bounds, outcomes, and frames over a socket; and the
signatures of the interfaces of guests: the WIT package of exogate, Extism, near:agent."""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from gateway.domain.ids import PluginKind

# exogate: exogate's WIT worlds. extism: core modules of any Extism PDK. near: components that export
# near:agent/tool. functions: components whose plain functions are tools.
Guest = Literal["exogate", "extism", "near", "functions"]

# The outcome of a call. The guest itself answers `ok` or `err`; the host sets the others.
Status = Literal[
    "ok",
    "err",
    "timeout",
    "cancelled",
    "fuel",
    "memory",
    "stack",
    "trap",
    "host_calls",
    "denied",
    "output_too_large",
    "invalid",
    "load",
]


# Bounds of one host call, of one HTTP request, and of all host calls of a call.
ASKED_BYTES, REQUEST_BYTES, ALL_ASKED_BYTES = 192 * 1024, 1536 * 1024, 16 * 1024 * 1024
ESCAPED = 3  # factor by which an HTTP request may grow when it is sent as ASCII


@dataclass(frozen=True, slots=True)
class Inspection:
    """The facts of a file, read without running it. `imports` are written interface#function."""

    guest: Guest
    kind: PluginKind
    imports: tuple[str, ...]
    exports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one call. The worker enforces them; the gateway checks them again."""

    memory_bytes: int
    fuel: int
    output_bytes: int
    host_calls: int = 1000
    http_calls: int = 20
    log_lines: int = 200
    log_bytes: int = 4096


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled guest for a worker to load."""

    path: str
    guest: Guest
    bounds: Bounds
    config: tuple[tuple[str, str], ...] = ()  # settings for Extism guests
    concurrency: int = 8  # parallel calls


# ------------------------------------------------------------------------------------------ frames
LARGEST = 64 * 1024 * 1024
MOST_TEXTS = 8
_HEAD = struct.Struct("<IBI")  # length after the head, kind, call
_LENGTH = struct.Struct("<I")


class Kind(IntEnum):
    """The kinds of frames, with their sender and texts."""

    READY = 1  # worker: its confinement as JSON
    LOAD = 2  # gateway: a program as JSON; the call number becomes the program number
    CALL = 3  # gateway: program number, function, seconds, input
    CANCEL = 4  # gateway
    ANSWER = 5  # gateway: "ok", "none" or "err", text, and the body of an HTTP answer
    HOST = 6  # worker: function, arguments...
    RESULT = 7  # worker: status, text, milliseconds, fuel, host calls


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    call: int
    texts: tuple[str, ...]
    size: int = field(default=0, compare=False)  # bytes


def encode(kind: Kind, call: int, texts: Sequence[str] = ()) -> bytes:
    """Returns the bytes of a frame. Raises ValueError for half a surrogate pair or a frame over
    LARGEST."""
    parts = [b""]
    for text in texts:
        raw = text.encode()
        parts += (_LENGTH.pack(len(raw)), raw)
    length = sum(map(len, parts))
    if length > LARGEST:
        raise ValueError(f"a frame of {length} bytes")
    parts[0] = _HEAD.pack(length, kind, call)
    return b"".join(parts)


class BrokenFrame(Exception):
    """The other side violated the protocol, so its further frames cannot be trusted."""


class Reader:
    """Assembles frames from bytes. `most` returns the bound of a frame by its kind and call; a larger
    frame is refused before any of it is stored."""

    __slots__ = ("_most", "_rest")

    def __init__(self, most: Callable[[Kind, int], int] = lambda _kind, _call: LARGEST) -> None:
        self._rest = bytearray()
        self._most = most

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the complete frames. Raises BrokenFrame."""
        self._rest += data
        at = 0
        try:
            while len(self._rest) - at >= _HEAD.size:
                length, kind, call = _HEAD.unpack_from(self._rest, at)
                known = _kind(kind)
                if length > self._most(known, call):
                    raise BrokenFrame(f"a frame of {length} bytes")
                end = at + _HEAD.size + length
                if len(self._rest) < end:
                    break
                frame = Frame(known, call, self._texts(at + _HEAD.size, end), length)
                at = end
                yield frame
        finally:
            del self._rest[:at]

    def _texts(self, at: int, end: int) -> tuple[str, ...]:
        texts: list[str] = []
        while at < end:
            if len(texts) == MOST_TEXTS:
                raise BrokenFrame(f"more than {MOST_TEXTS} texts")
            if end - at < _LENGTH.size:
                raise BrokenFrame("a text without its length")
            (length,) = _LENGTH.unpack_from(self._rest, at)
            at += _LENGTH.size
            if length > end - at:
                raise BrokenFrame("a text that is longer than its frame")
            try:
                texts.append(self._rest[at : at + length].decode())
            except UnicodeDecodeError as error:
                raise BrokenFrame("a text that is not UTF-8") from error
            at += length
        return tuple(texts)


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError as error:
        raise BrokenFrame(f"a frame of the unknown kind {number}") from error


# ---------------------------------------------------------------------------- interfaces of guests
# The same content as wit/exogate-plugin.wit.
PACKAGE, VERSION = "exogate:plugin", "1.0.0"

_LEVEL = "enum{debug,info,warn,error}"
# interface -> function -> signature
INTERFACES = {
    "log": {"write": f"({_LEVEL},string)"},
    "http": {"request": "(string)->result<string,string>"},
    "store": {
        "get": "(string,string)->result<option<string>,string>",
        "set": "(string,string,string)->result<_,string>",
        "delete": "(string,string)->result<_,string>",
        "list": "(string,string)->result<string,string>",
    },
    "clock": {"now-ms": "()->u64"},
    "random": {"bytes-hex": "(u32)->string"},
    "host": {"call": "(string,string)->result<string,string>"},
}
_TEXT_TO_RESULT = "(string)->result<string,string>"
# kind of plugin -> export -> signature
WORLDS = {
    "tool": {"describe": "()->string", "handle-tool-call": _TEXT_TO_RESULT},
    "channel": {
        "describe": "()->string",
        "parse-incoming": _TEXT_TO_RESULT,
        "format-outgoing": _TEXT_TO_RESULT,
    },
}


def import_name(interface: str) -> str:
    return f"{PACKAGE}/{interface}@{VERSION}"


def interface_of(name: str) -> str | None:
    """Returns the name of an import of exogate's package in this version; None for other imports."""
    package, _, rest = name.partition("/")
    interface, _, version = rest.partition("@")
    is_ours = package == PACKAGE and version == VERSION and interface in INTERFACES
    return interface if is_ours else None


# --------------------------------------------------------------------------- foreign interfaces
# Core modules of any Extism PDK.
EXTISM, EXTISM_USER, WASI_CORE = "extism:host/env", "extism:host/user", "wasi_snapshot_preview1"
# signature -> functions: of the shared memory and of the host
_EXTISM = {
    "(i64)->i64": "alloc length length_unsafe load_u64 input_load_u64 config_get var_get",
    "(i64)": "free error_set log_trace log_debug log_info log_warn log_error",
    "()->i64": "input_offset input_length output_offset output_length error_get http_headers",
    "(i64)->i32": "load_u8 input_load_u8",
    "(i64,i32)": "store_u8",
    "(i64,i64)": "store_u64 output_set var_set",
    "()": "reset",
    "(i64,i64)->i64": "http_request",
    "()->i32": "http_status_code get_log_level",
}
EXTISM_FUNCTIONS = {
    name: signature for signature, names in _EXTISM.items() for name in names.split()
}
# A function of the operator takes a text and may return one.
EXTISM_USER_FUNCTIONS = ("(i64)->i64", "(i64)")
EXTISM_EXPORTS = ("()", "()->i32")

# Components that export near:agent/tool.
NEAR_TOOL, NEAR_HOST = "near:agent/tool@0.4.", "near:agent/host@0.4."
_FAILURES = (
    "enum{auth-required,input,output-too-large,executor,network-denied,client,operation-failed}"
)
_FAILURE = f"kind:{_FAILURES},code:option<string>,message:option<string>"
NEAR_FUNCTIONS = {
    "log": "(enum{trace,debug,info,warn,error},string)",
    "now-millis": "()->u64",
    "workspace-read": "(string)->option<string>",
    "http-request": (
        "(string,string,string,option<list<u8>>,option<u32>)"
        "->result<record{status:u16,headers-json:string,body:list<u8>},"
        f"record{{{_FAILURE},request-sent:bool}}>"
    ),
    "tool-invoke": "(string,string)->result<string,string>",
    "secret-exists": "(string)->bool",
}
NEAR_EXPORTS = {
    "execute": (
        "(record{params:string,context:option<string>})"
        f"->variant{{success(string),failure(record{{{_FAILURE}}})}}"
    ),
    "schema": "()->string",
    "description": "()->string",
}
