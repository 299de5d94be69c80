"""What must neither be learned nor recalled again, in SQLite: names and times, and no words."""

import sqlite3
from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256

from gateway.domain.facts import Claim, Erasure
from gateway.store.rows import to_micros

Names = Iterable[tuple[str, str]]  # ("message", its id), ("scope" or "session", its digest)


def names_of(scope: str, session: str, *messages: str | None) -> Names:
    """By which something that was said may have been forgotten."""
    told = [("message", one) for one in messages if one is not None]
    return (*told, ("scope", _digest(scope)), ("session", _digest(session)))


def names_in(claim: Claim, scope: str) -> Names:
    source = claim.source
    return names_of(scope, str(source.session_key), source.message_id) if source else ()


def names_for(what: Erasure, messages: Iterable[str]) -> Names:
    """Of a fact the messages that told it; else all that was said by somebody, or somewhere."""
    if what.fact_id is not None:
        return [("message", one) for one in messages]
    return [(what.kind, _digest(str(what.scope or what.session_key)))]


def note(names: Names, now: datetime, db: sqlite3.Connection) -> None:
    db.executemany(_NOTE, [(*name, to_micros(now)) for name in names])


def anything_forgotten(db: sqlite3.Connection) -> bool:
    return bool(db.execute("SELECT EXISTS (SELECT 1 FROM forgotten)").fetchone()[0])


def is_forgotten(names: Names, said_at: datetime, db: sqlite3.Connection) -> bool:
    """A message, whenever it was said; of the rest what was said until then."""
    at = to_micros(said_at)
    return any(db.execute(_FIND, (*name, at)).fetchone() for name in names)


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()


_NOTE = """
INSERT INTO forgotten (kind, name, upto) VALUES (?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET upto = max(upto, excluded.upto)
"""
_FIND = """
SELECT 1 FROM forgotten WHERE kind = ?1 AND name = ?2 AND (kind = 'message' OR upto >= ?3)
"""
