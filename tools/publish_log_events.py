"""Writes docs/reference/log-events.md: all log events of the code with their levels and fields."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "log-events.md"
LEVELS = {"debug": 0, "info": 0, "warning": 0, "error": 0, "exception": 0, "log": 1}
HEAD = """# Log events

This page lists every event of the log with its level and its fields. To show the lines of one event:

```sh
exogate logs --event channel_disconnected
```

Each line has `at`, `level`, `event` and `logger`. Lines of a run also have `run`, `session`, `agent`, `channel` and `person`. A caught
failure has its traceback in `exception`. Lines of libraries have the event `library_message`, with their `text`. Lines of
`exogate logs --run` that come from the journal have the logger `exogate.journal`; this page does not list them.
[Observe](../how-to/observe.md) describes the log. `python tools/publish_log_events.py` generates this page.

| event | level | logged by | fields |
|---|---|---|---|
"""


@dataclass
class Event:
    levels: set[str] = field(default_factory=set)
    rooms: set[str] = field(default_factory=set)
    fields: dict[str, None] = field(default_factory=dict)


def logged() -> Iterator[tuple[Path, str, ast.expr, ast.Call, ast.AST]]:
    """Yields each logging call: file, level, event, the call and its function."""
    for path, around in functions():
        for node in ast.walk(around):
            if isinstance(node, ast.Call) and (found := event_of(node)) is not None:
                yield path, *found, node, around


def functions() -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def event_of(call: ast.Call) -> tuple[str, ast.expr] | None:
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level)) if level in LEVELS:
            known = {"exception": "error", "log": "info"}
            return known.get(level, level), call.args[LEVELS[level]]
        case ast.Call(func=ast.Name(id="result_of" | "contain")):
            return "error", call.args[0]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr="_own")):
            return "warning", call.args[0]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr="log")) if call.args:
            return "info", call.args[0]
    return None


def constants(event: ast.expr, around: ast.AST) -> Iterator[str]:
    """Yields the possible names of an event; an unknown expression as its source."""
    match event:
        case ast.Constant(value=str(name)):
            yield name
        case ast.IfExp(body=body, orelse=other):
            yield from (*constants(body, around), *constants(other, around))
        case ast.Name(id=name):
            for value in assigned(name, around):
                yield from constants(value, around)
        case _:
            yield ast.unparse(event)


def assigned(name: str, around: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(around):
        match node:
            case ast.Assign(targets=[ast.Name(id=one)], value=value) if one == name:
                yield value
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for target, value in zip(names, values, strict=False):
                    if isinstance(target, ast.Name) and target.id == name:
                        yield value


def fields_of(call: ast.Call, around: ast.AST) -> Iterator[str]:
    """Yields the field names of a logging call, from dictionaries in the call or assigned above it."""
    given = [one.value for one in call.keywords if one.arg == "extra"] or call.args[1:2]
    for value in given:
        yield from keys(value, around)
    yield from (
        one.arg for one in call.keywords if one.arg and one.arg not in {"extra", "exc_info"}
    )


def keys(value: ast.expr, around: ast.AST) -> Iterator[str]:
    match value:
        case ast.Dict(keys=names, values=values):
            for name, inner in zip(names, values, strict=True):
                if isinstance(name, ast.Constant):
                    yield str(name.value)
                elif name is None:
                    yield from keys(inner, around)
        case ast.Name(id=name):
            for one in assigned(name, around):
                yield from keys(one, around)


def page() -> str:
    events: dict[str, Event] = defaultdict(Event)
    for path, level, named, call, around in logged():
        for name in constants(named, around):
            event = events[name]
            event.levels.add(level)
            event.rooms.add(path.relative_to(ROOT / "gateway").parts[0].removesuffix(".py"))
            event.fields |= dict.fromkeys(fields_of(call, around))
    rows = []
    for name, event in sorted(events.items()):
        shown = ", ".join(f"`{one}`" for one in event.fields)
        levels, rooms = (", ".join(sorted(one)) for one in (event.levels, event.rooms))
        rows.append(f"| `{name}` | {levels} | {rooms} | {shown} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
