"""Writes docs/reference/methods.md, the table of all methods, from their declarations in gateway/api."""

import json
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from gateway.api.declarations import Method, Value
from gateway.api.errors import FAILURES, INTERNAL, explanations
from gateway.api.methods import METHODS
from gateway.api.operating import AUTH

FILE = Path(__file__).parent.parent / "docs" / "reference" / "methods.md"
HEAD = """# Methods and errors

The JSON-RPC methods of `GET /ws`, with their scopes (one of them is enough, and `admin` allows every method), parameters and
results. `?` marks optional fields. The second table lists the types of errors; [errors](errors.md) has their remedies.
`python tools/publish_methods.py` generates this page from the declarations in `gateway/api`; [the protocol](protocol.md)
describes the methods.

| method | what for | scope | params | result |
|---|---|---|---|---|
"""
ERRORS = """
| error type | HTTP | JSON-RPC | meaning |
|---|---|---|---|
"""


def page() -> str:
    rows = [_row(method) for method in (AUTH, *METHODS)]
    return HEAD + "".join(rows) + ERRORS + "".join(_errors())


def _row(method: Method) -> str:
    needed = " or ".join(f"`{scope}`" for scope in method.scope or ())
    params = ", ".join(f"`{_param(*one)}`" for one in method.params.defaults)
    twin = f" (`GET {method.http.replace(':path', '')}`)" if method.http else ""
    told = f"| {method.help}{twin} | {needed} | {params} | `{_shown(method.result)}` |"
    return f"| `{method.name}` {told}\n"


def _param(name: str, default: Any) -> str:
    name = name.rstrip("_")
    if default is None:
        return f"{name}?"
    return name if not isinstance(default, str | int | tuple) else f"{name} = {json.dumps(default)}"


def _shown(kind: Any) -> str:
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return json.dumps(arguments[0])
    if isinstance(kind, UnionType):
        return " or ".join(map(_shown, arguments))
    if get_origin(kind) is list:
        return f"[{_shown(arguments[0])}]"
    assert issubclass(kind, Value)
    names = [name if default is MISSING else f"{name}?" for name, default in kind.defaults]
    return f"{{{', '.join(names)}}}"


def _errors() -> Iterator[str]:
    faces = (*FAILURES.values(), INTERNAL)
    for name in dict.fromkeys(one.type for one in faces):
        known = [one for one in faces if one.type == name]
        statuses = ", ".join(sorted({str(one.status) for one in known}))
        codes = ", ".join(sorted({str(one.rpc) for one in known}))
        yield f"| [`{name}`](errors.md#{name}) | {statuses} | {codes} | {explanations()[name].title} |\n"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
