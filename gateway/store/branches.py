"""Labels and checkpoints of a conversation tree in SQLite, and the branches that are archived."""

import sqlite3
from collections.abc import Sequence

from gateway.store.pen import SessionRow
from gateway.store.pruning import Span, branches_off, kept_spans, outdated
from gateway.store.rows import place_of, seq_of
from gateway.store.turns import forks_of


def put_label(session: SessionRow, place: int, label: str | None, db: sqlite3.Connection) -> None:
    if label is not None:
        bounds = (label, place_of(session.id, 0), place_of(session.id + 1, 0))
        db.execute(_TAKE_LABEL, bounds)
    db.execute("UPDATE node SET label = ? WHERE place = ?", (label, place))


def prune(session: SessionRow, most: int, db: sqlite3.Connection) -> None:
    """A tree of more than `most` nodes loses branches from sight. Costs the same in a session of any
    length, and is for those that have branches."""
    if session.head is None or not (most and session.is_forked) or session.is_pruned:
        return
    forks = forks_of(session.id, db)
    kept = kept_spans(forks, _tips(session, db))
    tree, branches = branches_off(forks, seq_of(session.head), kept, session.last_seq)

    def shown(spans: Sequence[Span]) -> int:
        gone = sum(db.execute(_GONE, _places(session, span)).fetchone()[0] for span in spans)
        return sum(last - first + 1 for first, last in spans) - int(gone)

    gone = outdated(tree, branches, shown, most)
    for span in gone:
        db.execute(_ARCHIVE, _places(session, span))
    session.is_pruned = len(gone) == sum(map(len, branches))


def bring_back(session: SessionRow, db: sqlite3.Connection) -> None:
    """What HEAD, a label or a checkpoint is on is seen again, with the path to it."""
    session.is_pruned = False
    bounds = (place_of(session.id, 0), place_of(session.id + 1, 0))
    if db.execute(_HAS_GONE, bounds).fetchone()[0]:
        for span in kept_spans(forks_of(session.id, db), _tips(session, db)).items():
            db.execute(_SHOW, _places(session, span))


def _tips(session: SessionRow, db: sqlite3.Connection) -> list[int]:
    bounds = (place_of(session.id, 0), place_of(session.id + 1, 0))
    tips = [seq_of(place) for (place,) in db.execute(_KEPT, bounds)]
    return tips if session.head is None else [*tips, seq_of(session.head)]


def _places(session: SessionRow, span: Span) -> tuple[int, int]:
    return place_of(session.id, span[0]), place_of(session.id, span[1])


_TAKE_LABEL = "UPDATE node SET label = NULL WHERE label = ? AND place >= ? AND place < ?"
_KEPT = """
SELECT place FROM node INDEXED BY node_kept
WHERE (label IS NOT NULL OR checkpoint) AND place > ? AND place < ?
"""
_GONE = (
    "SELECT count(*) FROM node INDEXED BY node_archived WHERE standing AND place BETWEEN ? AND ?"
)
_HAS_GONE = """
SELECT EXISTS (SELECT 1 FROM node INDEXED BY node_archived
               WHERE standing AND place > ? AND place < ?)
"""
_ARCHIVE = "UPDATE node SET standing = 1 WHERE place BETWEEN ? AND ? AND standing = 0"
_SHOW = """
UPDATE node SET standing = 0
WHERE place IN (SELECT place FROM node INDEXED BY node_archived
                WHERE standing AND place BETWEEN ? AND ?)
  AND standing = 1
"""
