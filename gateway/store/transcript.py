"""Conversation trees in SQLite: a path costs what it shows, however long the session is."""

import sqlite3
from collections.abc import Sequence
from functools import partial

from gateway.domain.errors import NotFound
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node
from gateway.domain.sessions import Path
from gateway.store.branches import bring_back, put_label
from gateway.store.pen import Pen
from gateway.store.reader import Readers
from gateway.store.rows import NODE_COLUMNS, SEQ_BITS, place_of, require_text, to_node
from gateway.store.writer import Writer


class SqliteTranscript:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def path(
        self,
        key: SessionKey,
        *,
        upto: NodeId | None = None,
        before: NodeId | None = None,
        limit: int,
    ) -> Path:
        """`head` is the session's HEAD, whatever the path ends at. Raises NotFound for a node that
        is not of this session."""
        require_text("the session's key or a message's id", str(key), upto, before)
        return await self._readers.read(partial(_path, key, upto, before, limit))

    async def node(self, key: SessionKey, node_id: str) -> Node | None:
        require_text("the session's key or a message's id", str(key), node_id)
        return await self._readers.read(partial(_node, key, node_id))

    async def tree(self, key: SessionKey, *, limit: int, archived: bool = False) -> Sequence[Node]:
        """The newest `limit` nodes, oldest first."""
        require_text("the session's key", str(key))
        return await self._readers.read(partial(_tree, key, limit, int(archived)))

    async def move_head(
        self, key: SessionKey, to: NodeId, *, expected: NodeId | None, label: str | None = None
    ) -> bool:
        """A label that another node of the session has moves here. Raises NotFound for a session
        or node that is not there."""
        require_text("the label or a message's id", str(key), to, expected, label)
        move = partial(_move_head, key, to, expected, label)
        return await self._writer.write(move, durable=True)


def _path(
    key: SessionKey, upto: NodeId | None, before: NodeId | None, limit: int, db: sqlite3.Connection
) -> Path:
    found = db.execute(_FIND_HEAD, (str(key),)).fetchone()
    if found is None:
        return Path((), None, more=False)
    session, head, head_id = found
    end: int | None = head
    if before is not None:
        end = _place_and_parent(session, before, db)[1]
    elif upto is not None:
        end = _place_and_parent(session, upto, db)[0]
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
    if place is None:
        return None
    return NodeId(db.execute("SELECT id FROM node WHERE place = ?", (place,)).fetchone()[0])


def _place_and_parent(
    session: int, node_id: NodeId, db: sqlite3.Connection
) -> tuple[int, int | None]:
    row = db.execute(
        "SELECT place, parent FROM node WHERE id = ? AND standing < 2", (node_id,)
    ).fetchone()
    if row is None or row[0] >> SEQ_BITS != session:
        raise NotFound(f"message {node_id}")
    return row[0], row[1]


def _node(key: SessionKey, node_id: str, db: sqlite3.Connection) -> Node | None:
    found = db.execute("SELECT id FROM session WHERE key = ?", (str(key),)).fetchone()
    if found is None:
        return None
    first, beyond = place_of(found[0], 0), place_of(found[0] + 1, 0)
    row = db.execute(f"{_NODE} WHERE n.id = ? AND n.standing < 2", (node_id,)).fetchone()
    if row is None or not first <= row[0] < beyond:
        labelled = f"{_NODE} WHERE n.label = ? AND n.place >= ? AND n.place < ?"
        row = db.execute(labelled, (node_id, first, beyond)).fetchone()
    return None if row is None else to_node(row, row[-1])


def _tree(key: SessionKey, limit: int, archived: int, db: sqlite3.Connection) -> Sequence[Node]:
    found = db.execute("SELECT id FROM session WHERE key = ?", (str(key),)).fetchone()
    if found is None:
        return ()
    bounds = (place_of(found[0], 0), place_of(found[0] + 1, 0), archived, max(0, limit))
    nodes = [to_node(row, row[-1]) for row in db.execute(_TREE, bounds).fetchall()]
    nodes.reverse()
    return nodes


def _move_head(
    key: SessionKey, to: NodeId, expected: NodeId | None, label: str | None, pen: Pen
) -> bool:
    session = pen.session(key)
    if session is None:
        raise NotFound(f"session {key}")
    place = pen.place(session, to)
    if place is None:
        raise NotFound(f"message {to}")
    if session.head_id != expected:
        return False
    pen.db.execute("UPDATE session SET head = ? WHERE id = ?", (place, session.id))
    if label is not None:
        put_label(session, place, label, pen.db)
    session.head, session.head_id = place, to
    bring_back(session, pen.db)
    return True


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
ORDER BY n.place DESC LIMIT ?
"""
_SUMMARY = NODE_COLUMNS.split(", ").index("n.summary")
