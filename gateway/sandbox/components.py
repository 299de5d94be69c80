"""Guests that are components: exogate's WIT worlds, near:agent tools, and plain functions as tools."""

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

from gateway.sandbox.calls import (
    GuestCall,
    case_of,
    current,
    describe_end,
    fetch,
    guard,
    open_store,
    value_of_case,
)
from gateway.sandbox.compiler import signature_of
from gateway.sandbox.protocol import (
    NEAR_EXPORTS,
    NEAR_HOST,
    NEAR_TOOL,
    Program,
    Status,
    import_name,
)
from gateway.sandbox.wasi import offer_wasi

# --------------------------------------------------------------------------------- exogate's worlds
# Host functions run on the guest's thread and raise only GuestEnded.
HostFunction = Callable[..., object]


class _Guest:
    """A loaded component. Each call has its own instance; calls share only code."""

    def __init__(self, engine: Engine, program: Program) -> None:
        self._engine = engine
        self._component, self._linker = _open_component(engine, program)
        self._types = {n: one.ty for n, one in self._component.type.exports(engine).items()}

    def _with_instance(
        self, call: GuestCall, work: Callable[[Store, Instance], tuple[Status, str]]
    ) -> tuple[Status, str]:
        with open_store(self._engine, call) as store:
            try:
                return work(store, self._linker.instantiate(store, self._component))
            except WasmtimeError as error:
                return describe_end(call, error)


class ComponentGuest(_Guest):
    """A component of one of exogate's worlds."""

    def __init__(self, engine: Engine, program: Program) -> None:
        super().__init__(engine, program)
        self._exports = {name: self._component.get_export_index(name) for name in self._types}

    def run(self, call: GuestCall, function: str, text: str) -> tuple[Status, str]:
        index = self._exports.get(function)
        if index is None:
            return "invalid", f"it exports no {function}"
        texts = () if function == "describe" else (text,)
        return self._with_instance(
            call, lambda store, instance: call_export(store, instance, index, *texts)
        )


def call_export(
    store: Store, instance: Instance, export: ExportIndex, *texts: str
) -> tuple[Status, str]:
    """Calls a function from texts to a text, or to a result of two texts. Raises WasmtimeError.

    The binding's own call is slower, because it looks up the function's type each time.
    """
    function, result = instance.get_func(store, export), ffi.wasmtime_component_val_t()
    assert function is not None
    inside = byref(function._func), store._context()  # noqa: SLF001  # reason: see above
    raws = [text.encode() for text in texts]  # the call reads these bytes, so they must stay alive
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


def _open_component(engine: Engine, program: Program) -> tuple[Component, Linker]:
    """Loads a component and defines the known interfaces that it imports."""
    component, linker = Component.deserialize_file(engine, program.path), Linker(engine)
    imported = component.type.imports(engine)
    with linker.root() as root:
        for name, functions in _HOST.items():
            if import_name(name) in imported:
                define(root, import_name(name), functions)
    offer_wasi(linker, component, engine)
    if program.guest == "near":
        _offer_near(linker, component, engine, dict(program.config).get("authorization"))
    # Toolchains import functions of wasi:* without need; calling one ends the guest.
    linker.define_unknown_imports_as_traps(component)
    return component, linker


def define(root: LinkerInstance, interface: str, functions: Mapping[str, HostFunction]) -> None:
    with root.add_instance(interface) as instance:
        for name, function in functions.items():
            instance.add_func(name, function)


def _asks(function: str) -> HostFunction:
    """Returns a host function from texts to a text or an error."""

    def ask(_store: object, *texts: str) -> Variant:
        return Variant(*current().ask(function, *texts))

    return ask


def _does(function: str) -> HostFunction:
    """Returns a host function from texts to nothing or an error."""

    def do(_store: object, *texts: str) -> str | None:
        answer, text = current().ask(function, *texts)
        return None if answer == "ok" else text

    return do


def _get(_store: object, namespace: str, key: str) -> Variant:
    answer, text = current().ask("store.get", namespace, key)
    return Variant("ok", None) if answer == "none" else Variant(answer, text)


def gives(function: str, read: Callable[[str], object]) -> HostFunction:
    """Returns a host function whose result cannot be an error: without the grant the call ends."""

    def give(_store: object, *arguments: object) -> object:
        call = current()
        answer, text = call.ask(function, *map(str, arguments))
        if answer != "ok":
            raise call.stop("denied")
        return read(text)

    return give


_HOST: dict[str, dict[str, HostFunction]] = {
    "log": {"write": lambda _store, level, message: current().log(level, message)},
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
_ONLY_TOOL = "execute"  # the tool of a guest without `capability_ids`

Object = Mapping[str, object]


class NearGuest(_Guest):
    """A near:agent tool."""

    def __init__(self, engine: Engine, program: Program) -> None:
        super().__init__(engine, program)
        tool = next(name for name in self._types if name.startswith(NEAR_TOOL))
        outer = self._component.get_export_index(tool)
        self._exports = {n: self._component.get_export_index(n, outer) for n in NEAR_EXPORTS}
        listed = _ID.findall(dict(program.config).get("capability_ids", ""))
        self._ids = {one.rpartition(".")[2]: one for one in listed} or {_ONLY_TOOL: _ONLY_TOOL}

    def run(self, call: GuestCall, function: str, text: str) -> tuple[Status, str]:
        if function not in {"describe", "handle-tool-call"}:
            return "invalid", f"it has no {function}"

        def work(store: Store, instance: Instance) -> tuple[Status, str]:
            ask = partial(self._call_function, store, instance)
            if function == "describe":
                return self._describe(str(ask("description")), str(ask("schema")))
            asked = json.loads(text)
            capability = self._ids.get(asked["tool"])
            if capability is None:
                return "err", f"there is no tool {asked['tool']}"
            context = json.dumps({"capability_id": capability})
            params = json.dumps(asked["arguments"])
            return _answer(ask("execute", _new_record(params=params, context=context)))

        return self._with_instance(call, work)

    def _call_function(
        self, store: Store, instance: Instance, name: str, *values: object
    ) -> object:
        export: ExportIndex | None = self._exports[name]
        function = instance.get_func(store, export) if export is not None else None
        return function(store, *values) if function is not None else None

    def _describe(self, description: str, schema: str) -> tuple[Status, str]:
        about = description[:LONGEST_DESCRIPTION]
        try:
            parsed = json.loads(schema[:LONGEST_SCHEMA])
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            most = f"{LONGEST_SCHEMA // 1024} KiB"
            return "invalid", f"its schema is not a JSON object of at most {most}"
        tools = [
            {"name": name, "description": about, "parameters": _parameters(parsed, name)}
            for name in self._ids
        ]
        return "ok", json.dumps({"name": "near", "description": about, "tools": tools})


def _answer(response: object) -> tuple[Status, str]:
    """Reads a response, whose case the binding marks only by its class."""
    if isinstance(response, str):
        return "ok", response
    words = (getattr(response, name, None) for name in ("kind", "code", "message"))
    return "err", ": ".join(word for word in words if word)


def _new_record(**fields: object) -> Record:
    """Returns a record; WIT writes its field names with dashes."""
    record = Record()
    for name, value in fields.items():
        setattr(record, name.replace("_", "-"), value)
    return record


def _parameters(schema: Object, name: str) -> Object:
    """Returns the branch of the schema whose tag or title is the operation; empty without one."""
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
            return {**shared, **_without_tag(branch)}
    return {}


def _without_tag(branch: Object) -> Object:
    """Removes the tag, because the host passes the operation and a guest refuses a second one."""
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
        return _failure("input", "the headers are not JSON")
    if authorization is not None:
        headers = {**_as_object(headers), "authorization": authorization}
    request = {"method": method, "url": url, "headers": headers, "timeout_ms": timeout_ms}
    reply = fetch(request, body if isinstance(body, bytes) else None)
    if isinstance(reply, str):
        return _failure("operation-failed", reply)
    answered = json.dumps(dict(reply.headers))
    return Variant("ok", _new_record(status=reply.status, headers_json=answered, body=reply.body))


def _failure(kind: str, message: str) -> Variant:
    failure = _new_record(kind=kind, code=None, message=message, request_sent=False)
    return Variant("err", failure)


# ----------------------------------------------------------------------------------- types as JSON
Field = tuple[str, ValType | None]


class NotInJson(Exception):
    """The type has no JSON form, for example a handle or a stream."""


class TypeMismatch(Exception):
    """A JSON value does not have its type; the text names the type."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The JSON form of a type. `read` converts JSON to a value of the binding and raises
    TypeMismatch; `write` is its inverse."""

    schema: dict[str, object]
    read: Callable[[object], object]
    write: Callable[[object], object] = lambda value: value
    is_optional: bool = False


def shape_of(kind: ValType | None) -> Shape:
    """Returns the JSON form of a type. Raises NotInJson."""
    make = _SHAPES.get(type(kind))
    if make is None:
        raise NotInJson(type(kind).__name__)
    return make(kind)


def shape_of_fields(fields: Iterable[Field]) -> Shape:
    """Returns the form of an object, which is read as a list in the order of its fields. Raises
    NotInJson."""
    return _fields([(name, shape_of(kind)) for name, kind in fields])


def _fields(shapes: Sequence[tuple[str, Shape]]) -> Shape:

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise TypeMismatch("must be an object")
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
            raise TypeMismatch(f"must be {wanted}")
        return value

    return lambda _kind: Shape(schema, read)


def _integer(low: int, high: int) -> Callable[[object], Shape]:
    schema: dict[str, object] = {"type": "integer", "minimum": low, "maximum": high}
    wanted = f"an integer from {low} to {high}"
    return _simple(schema, wanted, lambda v: type(v) is int and low <= v <= high)


def _is_text(value: object) -> bool:
    """True for text without half a surrogate pair, which JSON allows but a component does not."""
    return isinstance(value, str) and value == value.encode(errors="ignore").decode()


def _number(_kind: ValType) -> Shape:
    def read(value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):
                return float(value)
        raise TypeMismatch("must be a number")

    return Shape({"type": "number"}, read)


def _bytes() -> Shape:
    def read(value: object) -> object:
        try:
            return base64.b64decode(value, validate=True)  # type: ignore[arg-type]  # or TypeError
        except (TypeError, ValueError, binascii.Error):
            raise TypeMismatch("must be base64") from None

    def write(value: object) -> object:
        assert isinstance(value, bytes)
        return base64.b64encode(value).decode()

    return Shape({"type": "string", "contentEncoding": "base64"}, read, write)


def _require_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeMismatch("must be a list")
    return value


def _list(kind: ListType) -> Shape:
    if isinstance(kind.element, U8):
        return _bytes()
    one = shape_of(kind.element)
    return Shape(
        {"type": "array", "items": one.schema},
        lambda value: [one.read(item) for item in _require_list(value)],
        lambda value: [one.write(item) for item in value],  # type: ignore[attr-defined]  # a list
    )


def _tuple(kind: TupleType) -> Shape:
    shapes = [shape_of(one) for one in kind.elements]

    def read(value: object) -> object:
        if len(_require_list(value)) != len(shapes):
            raise TypeMismatch(f"must be a list of {len(shapes)}")
        return tuple(s.read(item) for s, item in zip(shapes, _require_list(value), strict=True))

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


def _variant(kind: VariantType | ResultType) -> Shape:
    cases = kind.cases if isinstance(kind, VariantType) else [("ok", kind.ok), ("err", kind.err)]
    shapes = {name: shape_of(one) for name, one in cases}

    def read(value: object) -> object:
        name, payload = next(iter(value.items())) if isinstance(value, dict) and value else ("", 0)
        if name not in shapes or (isinstance(value, dict) and len(value) > 1):
            raise TypeMismatch(f"must be an object with one of {', '.join(shapes)}")
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
        lambda value: {one.read(item) for item in _require_list(value)},
        lambda value: sorted(value),  # type: ignore[call-overload]  # a set of names
    )


_BITS: Mapping[type, int] = {U8: 8, U16: 16, U32: 32, U64: 64}
_SIGNED_BITS: Mapping[type, int] = {S8: 8, S16: 16, S32: 32, S64: 64}
# Each function takes a type of its class.
_SHAPES: Mapping[type, Callable[..., Shape]] = {
    type(None): lambda _kind: Shape({"type": "null"}, lambda _value: None),
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
    """One exported function. `fails` is its result type if it can return an error."""

    export: ExportIndex
    arguments: Shape
    result: Shape
    fails: ResultType | None
    about: str


class FunctionsGuest(_Guest):
    """A component whose functions are tools."""

    def __init__(self, engine: Engine, program: Program) -> None:
        super().__init__(engine, program)
        found = ((name, self._function(name, kind)) for name, kind in self._types.items())
        self._functions = {name: function for name, function in found if function is not None}

    def _function(self, name: str, kind: object) -> _Function | None:
        """Returns an exported function; None for other exports, and for types without JSON."""
        export = self._component.get_export_index(name)
        if not isinstance(kind, FuncType) or export is None:
            return None
        about = f"{name}{signature_of(kind)}"[:LONGEST_SIGNATURE]
        result = kind.result
        fails = result if isinstance(result, ResultType) else None
        try:
            arguments = shape_of_fields(kind.params)
            returned = shape_of(fails.ok if fails is not None else result)
        except NotInJson:
            return None
        return _Function(export, arguments, returned, fails, about)

    def run(self, call: GuestCall, function: str, text: str) -> tuple[Status, str]:
        if function == "describe":
            tools = [
                {"name": name, "description": one.about, "parameters": one.arguments.schema}
                for name, one in self._functions.items()
            ]
            return "ok", json.dumps({"name": "functions", "tools": tools})
        if function != "handle-tool-call":
            return "invalid", f"it has no {function}"
        asked = json.loads(text)
        chosen = self._functions.get(asked["tool"])
        if chosen is None:
            return "err", f"there is no tool {asked['tool']}"
        try:
            values = chosen.arguments.read(asked["arguments"])
        except TypeMismatch as error:
            return "err", f"invalid arguments: {error}"
        assert isinstance(values, list)

        def work(store: Store, instance: Instance) -> tuple[Status, str]:
            function = instance.get_func(store, chosen.export)
            value = function(store, *values) if function is not None else None
            if call.why is not None:
                return describe_end(call, WasmtimeError(""))
            if chosen.fails is not None:
                case, _, value = case_of(chosen.fails, value)
                if case == "err":
                    return "err", value if isinstance(value, str) else "it failed"
            return "ok", json.dumps(chosen.result.write(value))

        return self._with_instance(call, work)
