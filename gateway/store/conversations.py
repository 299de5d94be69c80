"""Sessions and their conversation trees in SQLite: paths, labels, branches, lists of sessions."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gateway.domain.errors import NotFound
from gateway.domain.ids import NodeId, SessionKey, to_micros, to_time
from gateway.domain.messages import Node
from gateway.domain.sessions import (
    Path,
    SessionPage,
    SessionQuery,
    SessionRecord,
    TakenIn,
    not_there_yet,
)
from gateway.store.erasure import SqliteErasures
from gateway.store.plugins import SqliteSettings
from gateway.store.pruning import Span, branches_off, kept_spans, outdated
from gateway.store.rows import (
    COUNT_NODES,
    NODE_COLUMNS,
    SEQ_BITS,
    STANDINGS,
    SessionRow,
    append,
    place_of,
    seq_of,
    to_node,
)
from gateway.store.tables import where
from gateway.store.turns import forks_of
from gateway.store.writer import Pen, reading, writing


# --- labels and branches -------------------------------------------------------------------------
def put_label(session: SessionRow, place: int, label: str | None, db: sqlite3.Connection) -> None:
    if label is not None:
        db.execute(_TAKE_LABEL, (label, *_bounds(session.id)))
    db.execute("UPDATE node SET label = ? WHERE place = ?", (label, place))


def prune(session: SessionRow, most: int, db: sqlite3.Connection) -> None:
    """Archives branches of a tree that has more than `most` nodes. The cost does not depend on the
    length of the session."""
    if session.head is None or not (most and session.is_forked) or session.is_pruned:
        return
    forks = forks_of(session.id, db)
    kept = kept_spans(forks, _tips(session, db))
    tree, branches = branches_off(forks, seq_of(session.head), kept, session.last_seq)

    def shown(spans: Sequence[Span]) -> int:
        gone = sum(db.execute(_GONE, _places_in(session.id, span)).fetchone()[0] for span in spans)
        return sum(last - first + 1 for first, last in spans) - int(gone)

    gone = outdated(tree, branches, shown, most)
    db.executemany(_ARCHIVE, [_places_in(session.id, span) for span in gone])
    session.is_pruned = len(gone) == sum(map(len, branches))


def bring_back(session: SessionRow, db: sqlite3.Connection) -> None:
    """Shows the paths to HEAD, labels and checkpoints again."""
    session.is_pruned = False
    if db.execute(_HAS_GONE, _bounds(session.id)).fetchone()[0]:
        kept = kept_spans(forks_of(session.id, db), _tips(session, db))
        db.executemany(_SHOW, [_places_in(session.id, span) for span in kept.items()])


def _tips(session: SessionRow, db: sqlite3.Connection) -> list[int]:
    tips = [seq_of(place) for (place,) in db.execute(_KEPT, _bounds(session.id))]
    return tips if session.head is None else [*tips, seq_of(session.head)]


def _places_in(session: int, span: Span) -> tuple[int, int]:
    return place_of(session, span[0]), place_of(session, span[1])


def _bounds(session: int) -> tuple[int, int]:
    """The place before a session's first node, and the place after its last."""
    return place_of(session, 0), place_of(session + 1, 0)


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


# --- the tree is read ----------------------------------------------------------------------------
def _path(
    db: sqlite3.Connection,
    key: SessionKey,
    *,
    upto: NodeId | None = None,
    before: NodeId | None = None,
    limit: int,
) -> Path:
    """`head` is the session's HEAD, whatever the path ends at. Raises NotFound for a node that is
    not of this session."""
    found = db.execute(_FIND_HEAD, (str(key),)).fetchone()
    if found is None:
        return Path((), None, more=False)
    session, head, head_id = found
    end: int | None = head
    if (named := before or upto) is not None:
        place, parent = _place_and_parent(session, named, db)
        end = place if before is None else parent
    if end is None or limit < 1:
        return Path((), head_id, more=end is not None)
    rows = db.execute(_WALK, (end, limit)).fetchall()
    rows.sort()  # by place, which comes first: a child is always younger than its parent
    parent_id = _id_at(rows[0][-1], db)
    nodes: list[Node] = []
    for row in rows:
        nodes.append(to_node(row, parent_id))
        parent_id = row[1]
    summary = None if before is not None else _summary(rows[-1][_SUMMARY], db)
    return Path(tuple(nodes), head_id, rows[0][-1] is not None, summary)


def _summary(place: int | None, db: sqlite3.Connection) -> Node | None:
    if place is None:
        return None
    row = db.execute(f"{_NODE} WHERE n.place = ?", (place,)).fetchone()
    return to_node(row, row[-1])


def _id_at(place: int | None, db: sqlite3.Connection) -> NodeId | None:
    row = db.execute("SELECT id FROM node WHERE place = ?", (place,)).fetchone()
    return None if row is None else NodeId(row[0])


def _place_and_parent(
    session: int, node_id: NodeId, db: sqlite3.Connection
) -> tuple[int, int | None]:
    row = db.execute(_PLACE_AND_PARENT, (node_id,)).fetchone()
    if row is None or row[0] >> SEQ_BITS != session:
        raise NotFound(f"message {node_id}")
    return row[0], row[1]


def _bounds_of(key: SessionKey, db: sqlite3.Connection) -> tuple[int, int]:
    """As `_bounds`; both are 0 if there is no session."""
    row = db.execute("SELECT id FROM session WHERE key = ?", (str(key),)).fetchone()
    return _bounds(row[0]) if row else (0, 0)


def _node(db: sqlite3.Connection, key: SessionKey, node_id: str) -> Node | None:
    first, beyond = _bounds_of(key, db)
    row = db.execute(f"{_NODE} WHERE n.id = ? AND n.standing < 2", (node_id,)).fetchone()
    if row is None or not first <= row[0] < beyond:
        labelled = f"{_NODE} WHERE n.label = ? AND n.place >= ? AND n.place < ?"
        row = db.execute(labelled, (node_id, first, beyond)).fetchone()
    return None if row is None else to_node(row, row[-1])


def _tree(
    db: sqlite3.Connection, key: SessionKey, *, limit: int, archived: bool = False
) -> Sequence[Node]:
    """The newest `limit` nodes, oldest first."""
    rows = db.execute(_TREE, (*_bounds_of(key, db), archived, limit)).fetchall()
    return [to_node(row, row[-1]) for row in reversed(rows)]


_PLACE_AND_PARENT = "SELECT place, parent FROM node WHERE id = ? AND standing < 2"
_FIND_HEAD = """
SELECT s.id, s.head, (SELECT n.id FROM node n WHERE n.place = s.head)
FROM session s WHERE s.key = ?
"""
_NODE = f"SELECT {NODE_COLUMNS}, p.id FROM node n LEFT JOIN node p ON p.place = n.parent"
_WALK = f"""
WITH RECURSIVE up (place, depth) AS (
    VALUES (?, 1)
    UNION ALL
    SELECT n.parent, up.depth + 1 FROM up JOIN node n ON n.place = up.place
    WHERE up.depth < ? AND n.parent IS NOT NULL
)
SELECT {NODE_COLUMNS}, n.parent FROM up CROSS JOIN node n ON n.place = up.place
"""
_TREE = """
SELECT n.place, n.id, n.run_id, n.role, '', NULL, n.status, n.tokens, n.model, n.created_at,
       n.label, n.summary, n.checkpoint, n.standing, p.id
FROM node n LEFT JOIN node p ON p.place = n.parent
WHERE n.place >= ? AND n.place < ? AND n.standing <= ?
ORDER BY n.place DESC LIMIT max(0, ?)
"""
_SUMMARY = NODE_COLUMNS.split(", ").index("n.summary")


# --- the tree is changed -------------------------------------------------------------------------
def _found(key: SessionKey, pen: Pen) -> SessionRow:
    session = pen.session(key)
    if session is None:
        raise NotFound(f"session {key}")
    return session


def _found_node(key: SessionKey, node: NodeId, pen: Pen) -> tuple[SessionRow, int]:
    session = _found(key, pen)
    place = pen.place(session, node)
    if place is None:
        raise NotFound(f"message {node}")
    return session, place


def _move_head(
    pen: Pen, key: SessionKey, to: NodeId, *, expected: NodeId | None, label: str | None = None
) -> bool:
    """A label moves to this node if another node of the session has it. Raises NotFound for an
    unknown session or node."""
    session, place = _found_node(key, to, pen)
    if session.head_id != expected:
        return False
    pen.db.execute("UPDATE session SET head = ? WHERE id = ?", (place, session.id))
    if label is not None:
        put_label(session, place, label, pen.db)
    session.head, session.head_id = place, to
    bring_back(session, pen.db)
    return True


def _append_summary(pen: Pen, key: SessionKey, node: Node, *, expected: NodeId | None) -> bool:
    session = _found(key, pen)
    if session.head_id != expected:
        return False
    append((node,), session.head, session, pen.db)
    session.head, session.head_id = place_of(session.id, session.last_seq), node.id
    pen.db.execute(
        "UPDATE session SET last_seq = ?, head = ? WHERE id = ?",
        (session.last_seq, session.head, session.id),
    )
    return True


def _start_over(pen: Pen, key: SessionKey, *, now: datetime) -> None:
    at = to_micros(now)
    session = pen.session(key) or pen.make_session(key, at)
    if session.head is not None:
        pen.db.execute(_START_OVER, (pen.stamp(at), session.id))
        session.head, session.head_id, session.is_closed = None, None, False


def _label_node(pen: Pen, key: SessionKey, node: NodeId, label: str | None) -> None:
    session, place = _found_node(key, node, pen)
    put_label(session, place, label, pen.db)
    bring_back(session, pen.db)


def _checkpoint(pen: Pen, key: SessionKey, node: NodeId, *, is_kept: bool) -> None:
    session, place = _found_node(key, node, pen)
    pen.db.execute("UPDATE node SET checkpoint = ? WHERE place = ?", (is_kept, place))
    bring_back(session, pen.db)


def _import_nodes(pen: Pen, key: SessionKey, nodes: Sequence[Node], *, now: datetime) -> TakenIn:
    session, at = pen.session(key), to_micros(now)
    new, count = _new(key, nodes, session, pen), 0
    if session is None:
        first = min((to_micros(node.created_at) for node in new), default=at)
        session = pen.make_session(key, min(first, at))
    for node in new:
        parent = pen.place(session, node.parent_id)
        count += append((node,), parent, session, pen.db)
        if session.head == parent:
            session.head, session.head_id = place_of(session.id, session.last_seq), node.id
    session.last_run = session.last_run or int(session.last_seq > 0)
    pen.db.execute(COUNT_NODES, (pen.stamp(at), count, session.last_seq, session.head, session.id))
    return TakenIn(len(new), NodeId(session.head_id) if session.head_id else None)


def _new(
    key: SessionKey, nodes: Sequence[Node], session: SessionRow | None, pen: Pen
) -> list[Node]:
    """The nodes that are not stored yet, with their new ids. Raises ImportRefused."""

    def is_known(name: NodeId) -> bool | None:
        """None if the id is another session's, or erased."""
        row = pen.db.execute("SELECT place, standing FROM node WHERE id = ?", (name,)).fetchone()
        is_ours = row and session is not None and row[0] >> SEQ_BITS == session.id
        return (True if is_ours and row[1] < _ERASED else None) if row else False

    return not_there_yet(key, nodes, is_known)


_ERASED = STANDINGS.index("erased")
_START_OVER = "UPDATE session SET head = NULL, state = 'active', updated_at = ? WHERE id = ?"


# --- sessions ------------------------------------------------------------------------------------
def _find_session(db: sqlite3.Connection, key: SessionKey) -> SessionRecord | None:
    row = db.execute(f"{_SESSION} WHERE s.key = ?", (str(key),)).fetchone()
    return None if row is None else _to_record(row)


def _list_sessions(db: sqlite3.Connection, query: SessionQuery) -> SessionPage:
    """`updated_at` is unique, so `before` = that of the last session skips none."""
    wanted = {
        _one_of("s.agent", query.agents): query.agents,
        _one_of("s.channel", query.channels): query.channels,
        "s.account = ?": query.account,
        "s.peer = ?": query.peer,
        "instr(s.key, ?) > 0": query.text,
        "s.updated_at < ?": query.before,
    }
    (condition, values), limit = where(wanted), max(0, query.limit)
    rows = db.execute(
        f"{_SESSION} {condition} ORDER BY s.updated_at DESC LIMIT ?", (*values, limit + 1)
    ).fetchall()
    return SessionPage(tuple(_to_record(row) for row in rows[:limit]), more=len(rows) > limit)


def _one_of(column: str, values: Sequence[str] | None) -> str:
    return f"{column} IN ({', '.join('?' * len(values or ()))})"


def _count_sessions(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM session").fetchone()[0])


def _close_session(pen: Pen, key: SessionKey) -> None:
    session = _found(key, pen)
    pen.db.execute("UPDATE session SET state = 'closed' WHERE id = ?", (session.id,))
    session.is_closed = True


def _to_record(row: Sequence[Any]) -> SessionRecord:
    key, created_at, updated_at, *rest = row
    return SessionRecord(SessionKey.parse(key), to_time(created_at), to_time(updated_at), *rest)


_SESSION = """
SELECT s.key, s.created_at, s.updated_at, s.message_count,
       s.input_tokens + coalesce(l.input_tokens, 0),    -- s: from before there was a ledger
       s.output_tokens + coalesce(l.output_tokens, 0),
       CASE WHEN l.priced > 0 THEN coalesce(s.cost_usd, 0.0) + l.nano_usd / 1e9 ELSE s.cost_usd END,
       s.state, (SELECT n.id FROM node n WHERE n.place = s.head)
FROM session s LEFT JOIN spend l ON l.kind = 'session' AND l.name = s.key
"""


class SqliteSessionStore(SqliteErasures, SqliteSettings):
    """Implements the port SessionStore."""

    find_session = reading(_find_session, caught_up=True)
    list_sessions = reading(_list_sessions, caught_up=True)
    count_sessions = reading(_count_sessions)
    close_session = writing(_close_session, durable=True)
    path = reading(_path)
    node = reading(_node)
    tree = reading(_tree)
    move_head = writing(_move_head, durable=True)
    append_summary = writing(_append_summary, durable=False)
    start_over = writing(_start_over, durable=True)
    label_node = writing(_label_node, durable=True)
    checkpoint = writing(_checkpoint, durable=True)
    import_nodes = writing(_import_nodes, durable=True)
