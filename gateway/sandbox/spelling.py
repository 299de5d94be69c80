"""Types of functions as text, so that two of them can be compared."""

from collections.abc import Callable

from wasmtime import FuncType as CoreFunction
from wasmtime.component import (
    BorrowType,
    EnumType,
    FlagsType,
    FuncType,
    ListType,
    OptionType,
    OwnType,
    RecordType,
    ResultType,
    TupleType,
    ValType,
    VariantType,
)


def spelled_core(function: CoreFunction) -> str:
    results = ",".join(map(str, function.results))
    return f"({','.join(map(str, function.params))})" + (f"->{results}" if results else "")


def spelled_function(function: FuncType) -> str:
    parameters = ",".join(spelled(kind) for _, kind in function.params)
    result = function.result
    return f"({parameters})" + (f"->{spelled(result)}" if result is not None else "")


def spelled(kind: ValType | None) -> str:
    """A type as WIT writes it, without names of records', variants' and resources' own."""
    if kind is None:
        return "_"
    spell = _COMPOUND.get(type(kind))
    return spell(kind) if spell is not None else type(kind).__name__.lower()


def _case(name: str, payload: ValType | None) -> str:
    return name if payload is None else f"{name}({spelled(payload)})"


# A type of each class, so what it is called with is of that class.
_COMPOUND: dict[type, Callable[..., str]] = {
    OptionType: lambda kind: f"option<{spelled(kind.payload)}>",
    ListType: lambda kind: f"list<{spelled(kind.element)}>",
    ResultType: lambda kind: f"result<{spelled(kind.ok)},{spelled(kind.err)}>",
    TupleType: lambda kind: f"tuple<{','.join(map(spelled, kind.elements))}>",
    RecordType: lambda kind: f"record{{{','.join(f'{n}:{spelled(t)}' for n, t in kind.fields)}}}",
    VariantType: lambda kind: f"variant{{{','.join(_case(n, t) for n, t in kind.cases)}}}",
    EnumType: lambda kind: f"enum{{{','.join(kind.names)}}}",
    FlagsType: lambda kind: f"flags{{{','.join(kind.names)}}}",
    OwnType: lambda _: "own",
    BorrowType: lambda _: "borrow",
}
