"""Conversation trees in SQLite: paths, summaries, lists of sessions, operations on whole
sessions."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import partial
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
from gateway.store.inbox import append, bring_back, put_label, spoken
from gateway.store.reader import SqliteStore
from gateway.store.rows import (
    NODE_COLUMNS,
    SEQ_BITS,
    STANDINGS,
    message_texts,
    place_of,
    require_text,
    to_node,
)
from gateway.store.writer import Pen, SessionRow


class SqliteTranscript(SqliteStore):
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
        """A label moves to this node if another node of the session has it. Raises NotFound for an
        unknown session or node."""
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


def _places(key: SessionKey, db: sqlite3.Connection) -> tuple[int, int]:
    """The first place of a session's nodes, and the place after the last. Both are 0 if there is no
    session."""
    row = db.execute("SELECT id FROM session WHERE key = ?", (str(key),)).fetchone()
    return (place_of(row[0], 0), place_of(row[0] + 1, 0)) if row else (0, 0)


def _node(key: SessionKey, node_id: str, db: sqlite3.Connection) -> Node | None:
    first, beyond = _places(key, db)
    row = db.execute(f"{_NODE} WHERE n.id = ? AND n.standing < 2", (node_id,)).fetchone()
    if row is None or not first <= row[0] < beyond:
        labelled = f"{_NODE} WHERE n.label = ? AND n.place >= ? AND n.place < ?"
        row = db.execute(labelled, (node_id, first, beyond)).fetchone()
    return None if row is None else to_node(row, row[-1])


def _tree(key: SessionKey, limit: int, archived: int, db: sqlite3.Connection) -> Sequence[Node]:
    rows = db.execute(_TREE, (*_places(key, db), archived, max(0, limit))).fetchall()
    return [to_node(row, row[-1]) for row in reversed(rows)]


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


class SqliteSummaries(SqliteStore):
    async def append_summary(self, key: SessionKey, node: Node, *, expected: NodeId | None) -> bool:
        message = (node.id, node.run_id, node.model, node.message.text)
        require_text("a summary or the message's id", str(key), expected, *message)
        return await self._writer.write(partial(_append, key, node, expected), durable=False)


def _append(key: SessionKey, node: Node, expected: NodeId | None, pen: Pen) -> bool:
    session = pen.session(key)
    if session is None:
        raise NotFound(f"session {key}")
    if session.head_id != expected:
        return False
    append((node,), session.head, session, pen.db)
    last_seq = session.last_seq + 1
    head = place_of(session.id, last_seq)
    pen.db.execute(
        "UPDATE session SET last_seq = ?, head = ? WHERE id = ?", (last_seq, head, session.id)
    )
    session.last_seq, session.head, session.head_id = last_seq, head, node.id
    return True


class SqliteSessions(SqliteStore):
    async def find_session(self, key: SessionKey) -> SessionRecord | None:
        require_text("the session's key", str(key))
        await self._writer.caught_up()
        return await self._readers.read(partial(_find, key))

    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        """`updated_at` is unique, so `before` = that of the last session skips none."""
        require_text("the query", query.account, query.peer, query.text)
        require_text("the query", *(query.agents or ()), *(query.channels or ()))
        await self._writer.caught_up()
        return await self._readers.read(partial(_list, query))

    async def count_sessions(self) -> int:
        return await self._readers.read(lambda db: int(db.execute(_TOTAL).fetchone()[0]))

    async def close_session(self, key: SessionKey) -> None:
        require_text("the session's key", str(key))
        await self._writer.write(partial(_close, key), durable=True)


def _find(key: SessionKey, db: sqlite3.Connection) -> SessionRecord | None:
    row = db.execute(f"{_SESSION} WHERE s.key = ?", (str(key),)).fetchone()
    return None if row is None else _to_record(row)


def _list(query: SessionQuery, db: sqlite3.Connection) -> SessionPage:
    wanted: dict[str, Sequence[object] | None] = {
        _one_of("s.agent", query.agents): query.agents,
        _one_of("s.channel", query.channels): query.channels,
        "s.account = ?": None if query.account is None else [query.account],
        "s.peer = ?": None if query.peer is None else [query.peer],
        "instr(s.key, ?) > 0": None if query.text is None else [query.text],
        "s.updated_at < ?": None if query.before is None else [to_micros(query.before)],
    }
    given = {term: values for term, values in wanted.items() if values is not None}
    where = f"WHERE {' AND '.join(given)}" if given else ""
    limit = max(0, query.limit)
    values = [value for values in given.values() for value in values]
    rows = db.execute(
        f"{_SESSION} {where} ORDER BY s.updated_at DESC LIMIT ?", (*values, limit + 1)
    ).fetchall()
    return SessionPage(tuple(_to_record(row) for row in rows[:limit]), more=len(rows) > limit)


def _one_of(column: str, values: Sequence[str] | None) -> str:
    return f"{column} IN ({', '.join('?' * len(values or ()))})"


def _close(key: SessionKey, pen: Pen) -> None:
    closed = pen.db.execute("UPDATE session SET state = 'closed' WHERE key = ?", (str(key),))
    if closed.rowcount == 0:
        raise NotFound(f"session {key}")


def _to_record(row: Sequence[Any]) -> SessionRecord:
    key, created_at, updated_at, *rest = row
    return SessionRecord(SessionKey.parse(key), to_time(created_at), to_time(updated_at), *rest)


_TOTAL = "SELECT count(*) FROM session"
_SESSION = """
SELECT s.key, s.created_at, s.updated_at, s.message_count,
       s.input_tokens + coalesce(l.input_tokens, 0),    -- s: from before there was a ledger
       s.output_tokens + coalesce(l.output_tokens, 0),
       CASE WHEN l.priced > 0 THEN coalesce(s.cost_usd, 0.0) + l.nano_usd / 1e9 ELSE s.cost_usd END,
       s.state, (SELECT n.id FROM node n WHERE n.place = s.head)
FROM session s LEFT JOIN spend l ON l.kind = 'session' AND l.name = s.key
"""


class SqliteConversations(SqliteStore):
    async def start_over(self, key: SessionKey, *, now: datetime) -> None:
        require_text("the session's key", str(key))
        await self._writer.write(partial(_begin, key, to_micros(now)), durable=True)

    async def label_node(self, key: SessionKey, node: NodeId, label: str | None) -> None:
        require_text("the label or a message's id", str(key), node, label)
        await self._writer.write(partial(_label, key, node, label), durable=True)

    async def checkpoint(self, key: SessionKey, node: NodeId, *, is_kept: bool) -> None:
        require_text("a message's id", str(key), node)
        await self._writer.write(partial(_checkpoint, key, node, is_kept), durable=True)

    async def import_nodes(
        self, key: SessionKey, nodes: Sequence[Node], *, now: datetime
    ) -> TakenIn:
        require_text("the session's key", str(key))
        for node in nodes:
            names = (node.id, node.parent_id, node.run_id, node.model, node.label)
            require_text("a message", *names, *message_texts(node.message))
        return await self._writer.write(partial(_take_in, key, nodes, now), durable=True)


def _begin(key: SessionKey, at: int, pen: Pen) -> None:
    session = pen.session(key) or pen.make_session(key, at)
    if session.head is not None:
        stamp = pen.stamps.take(at)
        pen.db.execute(_BEGIN, (stamp, session.id))
        session.head = session.head_id = None


def _label(key: SessionKey, node: NodeId, label: str | None, pen: Pen) -> None:
    session, place = _found(key, node, pen)
    put_label(session, place, label, pen.db)
    bring_back(session, pen.db)


def _checkpoint(key: SessionKey, node: NodeId, is_kept: bool, pen: Pen) -> None:  # noqa: FBT001  # by partial
    session, place = _found(key, node, pen)
    pen.db.execute("UPDATE node SET checkpoint = ? WHERE place = ?", (is_kept, place))
    bring_back(session, pen.db)


def _found(key: SessionKey, node: NodeId, pen: Pen) -> tuple[SessionRow, int]:
    session = pen.session(key)
    if session is None:
        raise NotFound(f"session {key}")
    place = pen.place(session, node)
    if place is None:
        raise NotFound(f"message {node}")
    return session, place


def _take_in(key: SessionKey, nodes: Sequence[Node], now: datetime, pen: Pen) -> TakenIn:
    session, at = pen.session(key), to_micros(now)
    new = _new(key, nodes, session, pen)
    if session is None:
        first = min((to_micros(node.created_at) for node in new), default=at)
        session = pen.make_session(key, min(first, at))
    for node in new:
        parent = pen.place(session, node.parent_id)
        append((node,), parent, session, pen.db)
        session.last_seq += 1
        if session.head == parent:
            session.head, session.head_id = place_of(session.id, session.last_seq), node.id
    session.last_run = session.last_run or int(session.last_seq > 0)
    stamp = pen.stamps.take(at)
    row = (stamp, spoken(new), session.last_seq, session.head, session.id)
    pen.db.execute(_COUNT, row)
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
_BEGIN = "UPDATE session SET head = NULL, state = 'active', updated_at = ? WHERE id = ?"
_COUNT = """
UPDATE session SET updated_at = ?, message_count = message_count + ?, last_seq = ?, head = ?
WHERE id = ?
"""
