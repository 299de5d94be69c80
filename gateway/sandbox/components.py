"""Guests that are components: our WIT worlds, near:agent tools, and plain functions as tools."""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_ubyte, cast, string_at
from dataclasses import dataclass
from functools import partial

from wasmtime import Engine, Store, WasmtimeError
from wasmtime import _ffi as ffi
from wasmtime.component import (
    F32,
    F64,
    S8,
    S16,
    S32,
    S64,
    U8,
    U16,
    U32,
    U64,
    Bool,
    Char,
    Component,
    EnumType,
    ExportIndex,
    FlagsType,
    FuncType,
    Instance,
    Linker,
    LinkerInstance,
    ListType,
    OptionType,
    Record,
    RecordType,
    ResultType,
    String,
    TupleType,
    ValType,
    Variant,
    VariantType,
)

from gateway.sandbox.binding import case_of, guard, value_of_case
from gateway.sandbox.calls import GuestCall, current, describe_end, fetch, open_store
from gateway.sandbox.compiler import signature_of
from gateway.sandbox.interfaces import NEAR_EXPORTS, NEAR_HOST, NEAR_TOOL, import_name
from gateway.sandbox.protocol import Program, Status
from gateway.sandbox.wasi import offer_wasi

# -------------------------------------------------------------------------------------- our worlds
# Host functions run on the guest's thread. They raise nothing but Ended.
HostFunction = Callable[..., object]


class ComponentGuest:
    """One loaded component. Every call has an instance of its own; only code is shared."""

    def __init__(self, engine: Engine, program: Program) -> None:
        self._engine = engine
        self._component, self._linker = _opened(engine, program)
        self._exports = {
            name: self._component.get_export_index(name)
            for name in self._component.type.exports(engine)
        }
        # What toolchains import of wasi:* without need; a guest that calls it is ended.
        self._linker.define_unknown_imports_as_traps(self._component)

    def run(self, call: GuestCall, function: str, text: str) -> tuple[Status, str]:
        index = self._exports.get(function)
        if index is None:
            return "invalid", f"it exports no {function}"
        arguments = () if function == "describe" else (text,)
        with open_store(self._engine, call) as store:
            try:
                instance = self._linker.instantiate(store, self._component)
                return call_export(store, instance, index, *arguments)
            except WasmtimeError as error:
                return describe_end(call, error)


def call_export(
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


def _opened(engine: Engine, program: Program) -> tuple[Component, Linker]:
    """With those of our interfaces, and of WASI's, defined that the component imports."""
    component, linker = Component.deserialize_file(engine, program.path), Linker(engine)
    imported = component.type.imports(engine)
    with linker.root() as root:
        for name, functions in _HOST.items():
            if import_name(name) in imported:
                define(root, import_name(name), functions)
    offer_wasi(linker, component, engine)
    return component, linker


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


# -------------------------------------------------------------------------------------- near:agent
LONGEST_DESCRIPTION, LONGEST_SCHEMA = 4096, 512 * 1024
_ID = re.compile(r"[A-Za-z0-9_.-]+")
_ONLY_TOOL = "execute"  # of a guest whose operations nobody listed

Object = Mapping[str, object]


class NearGuest:
    """One loaded tool. Every call has an instance of its own; only code is shared."""

    def __init__(self, engine: Engine, program: Program) -> None:
        self._engine = engine
        self._component, self._linker = _opened(engine, program)
        config = dict(program.config)
        _offer_near(self._linker, self._component, engine, config.get("authorization"))
        self._linker.define_unknown_imports_as_traps(self._component)
        exports = self._component.type.exports(engine)
        tool = next(name for name in exports if name.startswith(NEAR_TOOL))
        outer = self._component.get_export_index(tool)
        self._exports = {n: self._component.get_export_index(n, outer) for n in NEAR_EXPORTS}
        listed = _ID.findall(config.get("capability_ids", ""))
        self._ids = {one.rpartition(".")[2]: one for one in listed} or {_ONLY_TOOL: _ONLY_TOOL}

    def run(self, call: GuestCall, function: str, text: str) -> tuple[Status, str]:
        if function not in {"describe", "handle-tool-call"}:
            return "invalid", f"it has no {function}"
        with open_store(self._engine, call) as store:
            try:
                instance = self._linker.instantiate(store, self._component)
                ask = partial(self._called, store, instance)
                if function == "describe":
                    return self._described(str(ask("description")), str(ask("schema")))
                asked = json.loads(text)
                capability = self._ids.get(asked["tool"])
                if capability is None:
                    return "err", f"there is no tool {asked['tool']}"
                return _told(ask("execute", _request(capability, asked["arguments"])))
            except WasmtimeError as error:
                return describe_end(call, error)

    def _called(self, store: Store, instance: Instance, name: str, *values: object) -> object:
        export: ExportIndex | None = self._exports[name]
        function = instance.get_func(store, export) if export is not None else None
        return function(store, *values) if function is not None else None

    def _described(self, description: str, schema: str) -> tuple[Status, str]:
        about = description[:LONGEST_DESCRIPTION]
        try:
            told = json.loads(schema[:LONGEST_SCHEMA])
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            return (
                "invalid",
                f"its schema is no JSON object of at most {LONGEST_SCHEMA // 1024} KiB",
            )
        tools = [
            {"name": name, "description": about, "parameters": _parameters(told, name)}
            for name in self._ids
        ]
        return "ok", json.dumps({"name": "near", "description": about, "tools": tools})


def _request(capability: str, arguments: object) -> Record:
    context = json.dumps({"capability_id": capability})
    return _new_record(params=json.dumps(arguments), context=context)


def _told(response: object) -> tuple[Status, str]:
    """Without the case's name: the binding tells a text from a failure."""
    if isinstance(response, str):
        return "ok", response
    words = (getattr(response, name, None) for name in ("kind", "code", "message"))
    return "err", ": ".join(word for word in words if word)


def _new_record(**fields: object) -> Record:
    """The binding's records have any field; those of WIT have dashes in their names."""
    record = Record()
    for name, value in fields.items():
        setattr(record, name.replace("_", "-"), value)
    return record


def _parameters(schema: Object, name: str) -> Object:
    """What of the one schema is about an operation: the branch that is tagged or titled with it."""
    if name == _ONLY_TOOL:
        return schema
    for branch in map(_as_object, _as_list(schema.get("oneOf"))):
        tag = _as_object(_as_object(branch.get("properties")).get("action"))
        if name in (
            tag.get("const"),
            *_as_list(tag.get("enum")),
            *str(branch.get("title")).split(),
        ):
            shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            return {**shared, **_untagged(branch)}
    return {}


def _untagged(branch: Object) -> Object:
    """It is the host that says which operation: a guest refuses arguments that say it too."""
    properties = {k: v for k, v in _as_object(branch.get("properties")).items() if k != "action"}
    required = [name for name in _as_list(branch.get("required")) if name != "action"]
    return {**branch, "properties": properties, "required": required}


def _as_object(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _offer_near(
    linker: Linker, component: Component, engine: Engine, authorization: str | None
) -> None:
    functions: dict[str, HostFunction] = {
        "log": _near_log,
        "now-millis": gives("clock.now", int),
        "workspace-read": lambda _store, _path: None,
        "http-request": partial(_http_request, authorization),
        "tool-invoke": lambda _store, _alias, _params: Variant("err", "tools cannot call tools"),
        "secret-exists": lambda _store, _name: False,
    }
    with linker.root() as root:
        for name in component.type.imports(engine):
            if name.startswith(NEAR_HOST):
                define(root, name, {key: guard(serve) for key, serve in functions.items()})


def _near_log(_store: object, level: str, message: str) -> None:
    current().log("debug" if level == "trace" else level, message)


def _http_request(
    authorization: str | None, _store: object, method: str, url: str, *rest: object
) -> Variant:
    headers_json, body, timeout_ms = rest
    try:
        headers = json.loads(str(headers_json) or "{}")
    except (ValueError, RecursionError):
        return _failure("input", "its headers are no JSON")
    if authorization is not None:
        headers = {**_as_object(headers), "authorization": authorization}
    request = {"method": method, "url": url, "headers": headers, "timeout_ms": timeout_ms}
    reply = fetch(request, body if isinstance(body, bytes) else None)
    if isinstance(reply, str):
        return _failure("operation-failed", reply)
    told = json.dumps(dict(reply.headers))
    return Variant("ok", _new_record(status=reply.status, headers_json=told, body=reply.body))


def _failure(kind: str, message: str) -> Variant:
    failure = _new_record(kind=kind, code=None, message=message, request_sent=False)
    return Variant("err", failure)


# ----------------------------------------------------------------------------------- types as JSON
Field = tuple[str, ValType | None]


class NotInJson(Exception):
    """JSON has nothing for a handle or a stream."""


class TypeMismatch(Exception):
    """A JSON value that is not of its type; the text says what is wanted."""


def _unchanged(value: object) -> object:
    return value


@dataclass(frozen=True, slots=True)
class Shape:
    """A type. `read` makes of JSON what the binding takes and raises TypeMismatch; `tell` is its inverse."""

    schema: dict[str, object]
    read: Callable[[object], object]
    write: Callable[[object], object] = _unchanged
    is_optional: bool = False


def shape_of(kind: ValType | None) -> Shape:
    """Raises NotInJson."""
    make = _SHAPES.get(type(kind))
    if make is None:
        raise NotInJson(type(kind).__name__)
    return make(kind)


def shape_of_fields(fields: Iterable[Field]) -> Shape:
    """Of an object; what is read is a list in the fields' order. Raises NotInJson."""
    return _fields([(name, shape_of(kind)) for name, kind in fields])


def _fields(shapes: Sequence[tuple[str, Shape]]) -> Shape:

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise TypeMismatch("an object is wanted")
        lacking = [n for n, shape in shapes if n not in value and not shape.is_optional]
        if lacking:
            raise TypeMismatch(f"{lacking[0]} is missing")
        return [shape.read(value.get(name)) for name, shape in shapes]

    schema = {
        "type": "object",
        "properties": {name: shape.schema for name, shape in shapes},
        "required": [name for name, shape in shapes if not shape.is_optional],
        "additionalProperties": False,
    }
    return Shape(schema, read)


def _simple(
    schema: dict[str, object], wanted: str, fits: Callable[[object], bool]
) -> Callable[[object], Shape]:
    def read(value: object) -> object:
        if not fits(value):
            raise TypeMismatch(f"{wanted} is wanted")
        return value

    return lambda _kind: Shape(schema, read)


def _integer(low: int, high: int) -> Callable[[object], Shape]:
    schema: dict[str, object] = {"type": "integer", "minimum": low, "maximum": high}
    wanted = f"an integer from {low} to {high}"
    return _simple(schema, wanted, lambda v: type(v) is int and low <= v <= high)


def _is_text(value: object) -> bool:
    """Half a surrogate pair can stand in JSON, but in no component."""
    return isinstance(value, str) and value == value.encode(errors="ignore").decode()


def _number(_kind: ValType) -> Shape:
    def read(value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):
                return float(value)
        raise TypeMismatch("a number is wanted")

    return Shape({"type": "number"}, read)


def _nothing(_kind: None) -> Shape:
    return Shape({"type": "null"}, lambda _: None)


def _bytes() -> Shape:
    def read(value: object) -> object:
        try:
            return base64.b64decode(value, validate=True)  # type: ignore[arg-type]  # or TypeError
        except (TypeError, ValueError, binascii.Error):
            raise TypeMismatch("base64 is wanted") from None

    def write(value: object) -> object:
        assert isinstance(value, bytes)
        return base64.b64encode(value).decode()

    return Shape({"type": "string", "contentEncoding": "base64"}, read, write)


def _listed(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeMismatch("a list is wanted")
    return value


def _list(kind: ListType) -> Shape:
    if isinstance(kind.element, U8):
        return _bytes()
    one = shape_of(kind.element)
    return Shape(
        {"type": "array", "items": one.schema},
        lambda value: [one.read(item) for item in _listed(value)],
        lambda value: [one.write(item) for item in value],  # type: ignore[attr-defined]  # a list
    )


def _tuple(kind: TupleType) -> Shape:
    shapes = [shape_of(one) for one in kind.elements]

    def read(value: object) -> object:
        if len(_listed(value)) != len(shapes):
            raise TypeMismatch(f"a list of {len(shapes)} is wanted")
        return tuple(s.read(item) for s, item in zip(shapes, _listed(value), strict=True))

    size = len(shapes)
    schema = {"type": "array", "prefixItems": [s.schema for s in shapes], "minItems": size}
    return Shape(
        {**schema, "maxItems": size},
        read,
        lambda value: [s.write(item) for s, item in zip(shapes, value, strict=True)],  # type: ignore[call-overload]  # a tuple
    )


def _record(kind: RecordType) -> Shape:
    shapes = {name: shape_of(one) for name, one in kind.fields}
    fields = _fields(list(shapes.items()))

    def read(value: object) -> object:
        record = Record()
        values = fields.read(value)
        assert isinstance(values, list)
        for name, item in zip(shapes, values, strict=True):
            setattr(record, name, item)
        return record

    def write(value: object) -> object:
        return {name: shape.write(getattr(value, name)) for name, shape in shapes.items()}

    return Shape(fields.schema, read, write)


def _cases(kind: VariantType | ResultType) -> Sequence[Field]:
    return kind.cases if isinstance(kind, VariantType) else [("ok", kind.ok), ("err", kind.err)]


def _variant(kind: VariantType | ResultType) -> Shape:
    shapes = {name: shape_of(one) for name, one in _cases(kind)}

    def read(value: object) -> object:
        name, payload = next(iter(value.items())) if isinstance(value, dict) and value else ("", 0)
        if name not in shapes or (isinstance(value, dict) and len(value) > 1):
            raise TypeMismatch(f"an object with one of {', '.join(shapes)} is wanted")
        return value_of_case(kind, name, shapes[name].read(payload))

    def write(value: object) -> object:
        name, _, payload = case_of(kind, value)
        return {name: shapes[name].write(payload)}

    return Shape({"oneOf": [_fields([case]).schema for case in shapes.items()]}, read, write)


def _option(kind: OptionType) -> Shape:
    inner = shape_of(kind.payload)

    def read(value: object) -> object:
        name, payload = ("none", None) if value is None else ("some", inner.read(value))
        return value_of_case(kind, name, payload)

    def write(value: object) -> object:
        name, _, payload = case_of(kind, value)
        return None if name == "none" else inner.write(payload)

    return Shape({"anyOf": [inner.schema, {"type": "null"}]}, read, write, is_optional=True)


def _enum(kind: EnumType) -> Shape:
    names = kind.names
    wanted = f"one of {', '.join(names)}"
    return _simple({"type": "string", "enum": names}, wanted, lambda v: v in names)(kind)


def _flags(kind: FlagsType) -> Shape:
    names = kind.names
    one = _simple({"type": "string", "enum": names}, "a flag", lambda v: v in names)(kind)
    return Shape(
        {"type": "array", "items": one.schema, "uniqueItems": True},
        lambda value: {one.read(item) for item in _listed(value)},
        lambda value: sorted(value),  # type: ignore[call-overload]  # a set of names
    )


_BITS: Mapping[type, int] = {U8: 8, U16: 16, U32: 32, U64: 64}
_SIGNED_BITS: Mapping[type, int] = {S8: 8, S16: 16, S32: 32, S64: 64}
# A shape is made of a type of the class that it is listed under.
_SHAPES: Mapping[type, Callable[..., Shape]] = {
    type(None): _nothing,
    Bool: _simple({"type": "boolean"}, "true or false", lambda v: isinstance(v, bool)),
    **{kind: _integer(0, (1 << bits) - 1) for kind, bits in _BITS.items()},
    **{
        kind: _integer(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        for kind, bits in _SIGNED_BITS.items()
    },
    F32: _number,
    F64: _number,
    Char: _simple(
        {"type": "string", "minLength": 1, "maxLength": 1},
        "one character",
        lambda v: _is_text(v) and len(str(v)) == 1,
    ),
    String: _simple({"type": "string"}, "a text", _is_text),
    ListType: _list,
    TupleType: _tuple,
    RecordType: _record,
    VariantType: _variant,
    ResultType: _variant,
    OptionType: _option,
    EnumType: _enum,
    FlagsType: _flags,
}


# --------------------------------------------------------------------------------- plain functions
LONGEST_SIGNATURE = 1024


@dataclass(frozen=True, slots=True)
class _Function:
    """`fails` has the type of a result: its error is the tool's."""

    export: ExportIndex
    arguments: Shape
    result: Shape
    fails: ResultType | None
    about: str


class FunctionsGuest:
    """One loaded component. Every call has an instance of its own; only code is shared."""

    def __init__(self, engine: Engine, program: Program) -> None:
        self._engine = engine
        self._component, self._linker = _opened(engine, program)
        self._linker.define_unknown_imports_as_traps(self._component)
        exports = self._component.type.exports(engine)
        found = ((name, self._function(name, one.ty)) for name, one in exports.items())
        self._functions = {name: function for name, function in found if function is not None}

    def _function(self, name: str, kind: object) -> _Function | None:
        """None for what JSON cannot call."""
        export = self._component.get_export_index(name)
        if not isinstance(kind, FuncType) or export is None:
            return None
        about = f"{name}{signature_of(kind)}"[:LONGEST_SIGNATURE]
        result = kind.result
        fails = result if isinstance(result, ResultType) else None
        try:
            arguments = shape_of_fields(kind.params)
            told = shape_of(fails.ok if fails is not None else result)
        except NotInJson:
            return None
        return _Function(export, arguments, told, fails, about)

    def run(self, call: GuestCall, function: str, text: str) -> tuple[Status, str]:
        if function == "describe":
            return "ok", json.dumps({"name": "functions", "tools": self._tools()})
        if function != "handle-tool-call":
            return "invalid", f"it has no {function}"
        asked = json.loads(text)
        chosen = self._functions.get(asked["tool"])
        if chosen is None:
            return "err", f"there is no tool {asked['tool']}"
        try:
            values = chosen.arguments.read(asked["arguments"])
        except TypeMismatch as error:
            return "err", f"the arguments do not fit: {error}"
        assert isinstance(values, list)
        return self._called(call, chosen, values)

    def _tools(self) -> list[object]:
        return [
            {"name": name, "description": one.about, "parameters": one.arguments.schema}
            for name, one in self._functions.items()
        ]

    def _called(
        self, call: GuestCall, chosen: _Function, values: list[object]
    ) -> tuple[Status, str]:
        with open_store(self._engine, call) as store:
            try:
                instance = self._linker.instantiate(store, self._component)
                function = instance.get_func(store, chosen.export)
                value = function(store, *values) if function is not None else None
            except WasmtimeError as error:
                return describe_end(call, error)
            if call.why is not None:
                return describe_end(call, WasmtimeError(""))
        if chosen.fails is not None:
            case, _, value = case_of(chosen.fails, value)
            if case == "err":
                return "err", value if isinstance(value, str) else "it failed"
        return "ok", json.dumps(chosen.result.write(value))
