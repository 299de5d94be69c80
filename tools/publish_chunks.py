"""Writes docs/reference/chunks.md and events.md, the output of a run, from their declarations."""

import json
from collections.abc import Iterator
from dataclasses import MISSING
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from gateway.api.chunks import OfRun, RunEvent
from gateway.api.declarations import Value
from gateway.domain.events import KINDS

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
CHUNKS = """# Chunks of a run

A run sends its output as chunks. The WebSocket, HTTP streams and the stored log of the run carry the same chunks:

```json
{"run_id": "r_…", "session_key": "main:api:local:main", "seq": 3, "type": "content", "content": "Hello"}
```

Every chunk has `run_id`, `session_key`, `seq` (from 1, without gaps) and `type`. `?` marks optional fields.
`python tools/publish_chunks.py` generates this page from `gateway/api/chunks.py`; [the protocol](protocol.md#events) describes
when the gateway sends each chunk.
"""
EVENTS = """# Events

Rules, decision trees and subscribers of `events.subscribe` receive these events. A rule may name an event by its type, its
constant or its hook:

```toml
[[rules]]
id = "tell-me"
on = ["tool.call.failure"]
do = [{ log = "a tool failed" }]
```

`python tools/publish_chunks.py` generates this page from `gateway/domain/events.py`; [rules](rules.md#events) describe the
fields of each event.

| type | constant | hook | severity |
|---|---|---|---|
"""
_NAMES = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    datetime: "time",
    NoneType: "null",
}


def files() -> dict[str, str]:
    """Returns the pages by file name."""
    (kinds,) = get_args(RunEvent)[:1]
    chunks = CHUNKS + "".join(text for kind in get_args(kinds) for text in _chunk(kind))
    rows = [
        f"| `{one.type}` | `{one.constant}` | {f'`{one.hook}`' if one.hook else ''} | {one.severity} |\n"
        for one in KINDS
    ]
    return {"chunks.md": chunks, "events.md": EVENTS + "".join(rows)}


def _chunk(kind: type[Value]) -> Iterator[str]:
    hints = get_type_hints(kind, include_extras=True)
    yield f"\n## `{get_args(hints['type'])[0]}`\n\n{' '.join((kind.__doc__ or '').split())}\n\n"
    yield "| field | value |\n|---|---|\n"
    shared = dict(OfRun.defaults)
    for name, default in kind.defaults:
        if name not in shared and name != "type":
            yield from _rows(name, hints[name], is_needed=default is MISSING)


def _rows(name: str, hint: Any, *, is_needed: bool) -> Iterator[str]:
    """Returns the rows of a field; an object has a row for each of its fields."""
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if not (isinstance(kind, type) and issubclass(kind, Value)):
        yield f"| `{name}{'' if is_needed else '?'}` | {_value(kind, is_needed=is_needed)} |\n"
        return
    hints = get_type_hints(kind, include_extras=True)
    for part, default in kind.defaults:
        yield from _rows(f"{name}.{part}", hints[part], is_needed=default is MISSING)


def _value(kind: Any, *, is_needed: bool) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{json.dumps(one)}`" for one in get_args(kind))
    kinds = get_args(kind) or (kind,)
    told = [one for one in kinds if is_needed or one is not NoneType]
    return " or ".join(
        _value(one, is_needed=True) if get_args(one) else _NAMES[one] for one in told
    )


if __name__ == "__main__":
    for file, text in files().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
