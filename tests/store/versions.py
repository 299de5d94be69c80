"""Databases as earlier versions made them."""

import sqlite3
from pathlib import Path

_STEPS = (Path(__file__).parent / "versions.sql").read_text("utf-8").split("-- version ")[1:]


def of_version(version: int, path: Path | None = None) -> sqlite3.Connection:
    """An empty database of that version: in memory, unless a path is given."""
    db = sqlite3.connect(path or ":memory:", isolation_level=None)
    for step in _STEPS[:version]:
        db.executescript(step.partition("\n")[2])
    db.execute(f"PRAGMA user_version = {version}")
    return db
