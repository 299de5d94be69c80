"""Types of components as JSON: their schemas, and their values back and forth.

An option may be null or left out, a result is {"ok": ...} or {"err": ...}, a variant {CASE: ...},
flags are a list of names, bytes are base64.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

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
    EnumType,
    FlagsType,
    ListType,
    OptionType,
    Record,
    RecordType,
    ResultType,
    String,
    TupleType,
    ValType,
    VariantType,
)

from gateway.sandbox.binding import case_of, value_of_case

Field = tuple[str, ValType | None]


class Inexpressible(Exception):
    """JSON has nothing for a handle or a stream."""


class Misfit(Exception):
    """A JSON value that is not of its type; the text says what is wanted."""


def _unchanged(value: object) -> object:
    return value


@dataclass(frozen=True, slots=True)
class Shape:
    """A type. `read` makes of JSON what the binding takes and raises Misfit; `tell` is its inverse."""

    schema: dict[str, object]
    read: Callable[[object], object]
    tell: Callable[[object], object] = _unchanged
    is_optional: bool = False


def shape_of(kind: ValType | None) -> Shape:
    """Raises Inexpressible."""
    make = _SHAPES.get(type(kind))
    if make is None:
        raise Inexpressible(type(kind).__name__)
    return make(kind)


def shape_of_fields(fields: Iterable[Field]) -> Shape:
    """Of an object; what is read is a list in the fields' order. Raises Inexpressible."""
    return _fields([(name, shape_of(kind)) for name, kind in fields])


def _fields(shapes: Sequence[tuple[str, Shape]]) -> Shape:

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise Misfit("an object is wanted")
        lacking = [n for n, shape in shapes if n not in value and not shape.is_optional]
        if lacking:
            raise Misfit(f"{lacking[0]} is missing")
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
            raise Misfit(f"{wanted} is wanted")
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
        raise Misfit("a number is wanted")

    return Shape({"type": "number"}, read)


def _nothing(_kind: None) -> Shape:
    return Shape({"type": "null"}, lambda _: None)


def _bytes() -> Shape:
    def read(value: object) -> object:
        try:
            return base64.b64decode(value, validate=True)  # type: ignore[arg-type]  # or TypeError
        except (TypeError, ValueError, binascii.Error):
            raise Misfit("base64 is wanted") from None

    def tell(value: object) -> object:
        assert isinstance(value, bytes)
        return base64.b64encode(value).decode()

    return Shape({"type": "string", "contentEncoding": "base64"}, read, tell)


def _listed(value: object) -> list[object]:
    if not isinstance(value, list):
        raise Misfit("a list is wanted")
    return value


def _list(kind: ListType) -> Shape:
    if isinstance(kind.element, U8):
        return _bytes()
    one = shape_of(kind.element)
    return Shape(
        {"type": "array", "items": one.schema},
        lambda value: [one.read(item) for item in _listed(value)],
        lambda value: [one.tell(item) for item in value],  # type: ignore[attr-defined]  # a list
    )


def _tuple(kind: TupleType) -> Shape:
    shapes = [shape_of(one) for one in kind.elements]

    def read(value: object) -> object:
        if len(_listed(value)) != len(shapes):
            raise Misfit(f"a list of {len(shapes)} is wanted")
        return tuple(s.read(item) for s, item in zip(shapes, _listed(value), strict=True))

    size = len(shapes)
    schema = {"type": "array", "prefixItems": [s.schema for s in shapes], "minItems": size}
    return Shape(
        {**schema, "maxItems": size},
        read,
        lambda value: [s.tell(item) for s, item in zip(shapes, value, strict=True)],  # type: ignore[call-overload]  # a tuple
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

    def tell(value: object) -> object:
        return {name: shape.tell(getattr(value, name)) for name, shape in shapes.items()}

    return Shape(fields.schema, read, tell)


def _cases(kind: VariantType | ResultType) -> Sequence[Field]:
    return kind.cases if isinstance(kind, VariantType) else [("ok", kind.ok), ("err", kind.err)]


def _variant(kind: VariantType | ResultType) -> Shape:
    shapes = {name: shape_of(one) for name, one in _cases(kind)}

    def read(value: object) -> object:
        name, payload = next(iter(value.items())) if isinstance(value, dict) and value else ("", 0)
        if name not in shapes or (isinstance(value, dict) and len(value) > 1):
            raise Misfit(f"an object with one of {', '.join(shapes)} is wanted")
        return value_of_case(kind, name, shapes[name].read(payload))

    def tell(value: object) -> object:
        name, _, payload = case_of(kind, value)
        return {name: shapes[name].tell(payload)}

    return Shape({"oneOf": [_fields([case]).schema for case in shapes.items()]}, read, tell)


def _option(kind: OptionType) -> Shape:
    inner = shape_of(kind.payload)

    def read(value: object) -> object:
        name, payload = ("none", None) if value is None else ("some", inner.read(value))
        return value_of_case(kind, name, payload)

    def tell(value: object) -> object:
        name, _, payload = case_of(kind, value)
        return None if name == "none" else inner.tell(payload)

    return Shape({"anyOf": [inner.schema, {"type": "null"}]}, read, tell, is_optional=True)


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
