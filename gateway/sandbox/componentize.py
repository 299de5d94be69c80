"""Converts a freestanding core module with the names of the canonical ABI to a component."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from wasmtime import Engine, FuncType, MemoryType, Module, WasmtimeError, wat2wasm

from gateway.domain.errors import GatewayError
from gateway.domain.ids import PluginKind
from gateway.sandbox.protocol import PACKAGE, VERSION, import_name, interface_of

_MAGIC = b"\0asm\1\0\0\0"
_HEAD = 8 + 2 + len(_MAGIC)  # bytes before the rest of a component with an empty core module
_KINDS: Mapping[type, str] = {FuncType: "function", MemoryType: "memory"}
LONGEST_WHY = 500

_ENUM = '(type $l (enum "debug" "info" "warn" "error")) (export "level" (type $level (eq $l)))'
_KEY = '(param "namespace" string) (param "key" string)'
_TEXT = "(result (result string (error string)))"
# host function -> its type in a component, and the number of i32 parameters of its lowered form
HOST: Mapping[str, tuple[str, int]] = {
    "log/write": ('(param "level" $level) (param "message" string)', 3),
    "http/request": (f'(param "request" string) {_TEXT}', 3),
    "store/get": (f"{_KEY} (result (result (option string) (error string)))", 5),
    "store/set": (f'{_KEY} (param "value" string) (result (result (error string)))', 7),
    "store/delete": (f"{_KEY} (result (result (error string)))", 5),
    "store/list": (f'(param "namespace" string) (param "prefix" string) {_TEXT}', 5),
    "clock/now-ms": ("(result u64)", 0),
    "random/bytes-hex": ('(param "count" u32) (result string)', 2),
    "host/call": (f'(param "name" string) (param "input" string) {_TEXT}', 5),
}
_OFFERED: Mapping[PluginKind, tuple[str, ...]] = {
    "tool": tuple(HOST),
    "channel": tuple(name for name in HOST if name.startswith(("log/", "store/", "clock/"))),
}
_CALLS: Mapping[PluginKind, Mapping[str, str]] = {
    "tool": {"handle-tool-call": "input"},
    "channel": {"parse-incoming": "event", "format-outgoing": "reply"},
}


class NotConvertible(GatewayError):
    """A core module lacks an export of the world, or has an import that the world does not offer."""

    code = "not_wrappable"


def component_from_core(core: bytes, world: PluginKind) -> bytes:
    """Returns a component that imports only the interfaces that the core uses.

    The core's exports have the names of the world (`handle-tool-call`), or underscores instead of
    dashes. Raises NotConvertible with the change to make.
    """
    imports, exports = _surface(core)
    used = sorted({_offered(module, name, world) for module, name in imports})
    parts = ["(component (core module)", *_import_parts(used), *_export_parts(exports, world), ")"]
    made = bytes(wat2wasm("\n".join(parts)))
    return made[:8] + b"\x01" + _leb(len(core)) + core + made[_HEAD:]


def _surface(core: bytes) -> tuple[Sequence[tuple[str, str]], Mapping[str, str]]:
    """Returns the functions that a module imports, and its exports with their kinds."""
    if core[:8] != _MAGIC:
        raise NotConvertible("this is not a WebAssembly core module")
    try:
        module = Module(Engine(), core)
    except WasmtimeError as error:
        reason = " ".join(str(error).split())
        raise NotConvertible(f"the module is malformed: {reason[:LONGEST_WHY]}") from error
    for one in module.imports:
        if not isinstance(one.type, FuncType):
            raise NotConvertible(f"it imports {one.module!r} {one.name!r}, which is not a function")
    imports = [(one.module, one.name or "") for one in module.imports]
    return imports, {one.name: _KINDS.get(type(one.type), "other") for one in module.exports}


def _offered(module: str, name: str, world: PluginKind) -> str:
    function = f"{interface_of(module)}/{name}"
    if function in _OFFERED[world]:
        return function
    raise NotConvertible(
        f"it imports {module!r} {name!r}; a {world} may import these functions of"
        f" {PACKAGE}/INTERFACE@{VERSION}: {', '.join(_OFFERED[world])}"
    )


def _import_parts(used: Sequence[str]) -> Iterator[str]:
    """Routes the core's imports through a table, because the real ones need the core's memory."""
    table = f"{len(used)} funcref"
    jumps = "\n".join(_jump(name, at) for at, name in enumerate(used))
    given = ""
    for interface, names in groupby(used, _interface):
        mine = tuple(names)
        types = "".join(f' (export "{_short(name)}" (func {HOST[name][0]}))' for name in mine)
        enum = _ENUM * (interface == "log")
        module = import_name(interface)
        yield f'(import "{module}" (instance ${interface} {enum}{types}))'
        shims = "".join(f' (export "{_short(name)}" (func $shim "{name}"))' for name in mine)
        given += f' (with "{module}" (instance {shims}))'
    yield f'(core module $shim (table $t (export "t") {table}) {jumps})'
    yield "(core instance $shim (instantiate $shim))"
    yield f"(core instance $core (instantiate 0{given}))"
    yield '(alias core export $core "memory" (core memory $memory))'
    yield '(alias core export $core "cabi_realloc" (core func $realloc))'
    yield from _fill_parts(used, table)


def _fill_parts(used: Sequence[str], table: str) -> Iterator[str]:
    for name in used:
        yield f'(alias export ${_interface(name)} "{_short(name)}" (func $host/{name}))'
        lowered = f"(canon lower (func $host/{name}) (memory $memory) (realloc $realloc))"
        yield f"(core func ${name} {lowered})"
    types = " ".join(f'(import "" "{name}" (func {_signature(name)}))' for name in used)
    order = " ".join(map(str, range(len(used))))
    elements = f"(elem (i32.const 0) func {order})"
    yield f'(core module $fill (import "" "t" (table {table})) {types} {elements})'
    real = " ".join(f'(export "{name}" (func ${name}))' for name in used)
    given = f'(export "t" (table $shim "t")) {real}'
    yield f'(core instance (instantiate $fill (with "" (instance {given}))))'


def _interface(name: str) -> str:
    return name.partition("/")[0]


def _short(name: str) -> str:
    return name.partition("/")[2]


def _signature(name: str) -> str:
    return f"(param{' i32' * HOST[name][1]}){' (result i64)' * (name == 'clock/now-ms')}"


def _jump(name: str, at: int) -> str:
    passed = "".join(f" (local.get {number})" for number in range(HOST[name][1]))
    call = f"(call_indirect $t {_signature(name)}{passed} (i32.const {at}))"
    return f'(func (export "{name}") {_signature(name)} {call})'


def _export_parts(exports: Mapping[str, str], world: PluginKind) -> Iterator[str]:
    for name, kind in (("memory", "memory"), ("cabi_realloc", "function")):
        if exports.get(name) != kind:
            raise NotConvertible(f"it does not export the {kind} {name!r}")
    yield f'(func (export "describe") (result string) {_lift(exports, "describe")})'
    for name, given in _CALLS[world].items():
        yield f'(func (export "{name}") (param "{given}" string) {_TEXT} {_lift(exports, name)})'


def _lift(exports: Mapping[str, str], name: str) -> str:
    own = next((n for n in (name, name.replace("-", "_")) if exports.get(n) == "function"), None)
    if own is None:
        raise NotConvertible(f"it does not export the function {name!r}")
    post = f"cabi_post_{own}"
    after = f' (post-return (core func $core "{post}"))' * (exports.get(post) == "function")
    return f'(canon lift (core func $core "{own}") (memory $memory) (realloc $realloc){after})'


def _leb(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _leb(rest) if rest else bytes([low])
