"""How the notes of runs that had not ended become the first part of their journals."""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

from pydantic_core import from_json, to_json

from gateway.domain.journal import pack_text


def move_journals(db: sqlite3.Connection) -> None:
    """Within the transaction of its step, which may have run before."""
    if db.execute(_IS_NEW).fetchone() is not None:
        db.execute("DROP TABLE run_journal")
        return
    rows = db.execute(_NOTES).fetchall()
    for run_id, notes in groupby(rows, itemgetter(0)):
        entries = [_entry(step, kind, from_json(payload)) for _, step, kind, payload in notes]
        data = pack_text([to_json(["attempt", 1, [run_id]]), *map(to_json, entries)])
        db.execute("INSERT OR IGNORE INTO run_journal VALUES (?, 0, ?)", (run_id, data))
    db.execute("DROP TABLE journal")
    db.execute("ALTER TABLE run_journal RENAME TO journal")


_PART = re.compile(r"(?:@[^:]*:)+")


def _entry(step: int, kind: str, value: Any) -> list[object]:
    """A note's kind begins with the part of a run inside the run, if it is of one."""
    steps = _PART.match(kind)
    part = steps[0] if steps else ""
    name, values = _grant(step, kind[len(part) :], value)
    return ["sub", part, name, values] if part else [name, *values]


def _grant(step: int, kind: str, value: Any) -> tuple[str, list[object]]:
    what, _, id_ = kind.partition(":")
    match what:
        case "reply":
            return "reply", [step, value]
        case "begun":
            return "begun", [step, id_]
        case "said":
            return "taken", [step, value["run_id"], value["text"]]
        case _:
            return "result", [id_, step, value["name"], "", dict(_without_names(value))]


def _without_names(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in result.items() if name not in {"call_id", "name"})


_IS_NEW = "SELECT 1 FROM pragma_table_info('journal') WHERE name = 'part'"
_NOTES = """
SELECT j.run_id, j.step, j.kind, j.payload FROM journal j JOIN run r ON r.run_id = j.run_id
WHERE r.finished_at IS NULL ORDER BY j.run_id, j.step, j.id
"""
