"""What is done to whole conversations in SQLite, besides talking."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from gateway.domain.conversations import TakenIn, not_there_yet
from gateway.domain.errors import NotFound
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node
from gateway.store.branches import bring_back, put_label
from gateway.store.inbox import append, spoken
from gateway.store.pen import Pen, SessionRow
from gateway.store.rows import SEQ_BITS, STANDINGS, message_texts, place_of, require_text, to_micros
from gateway.store.writer import Writer


class SqliteConversations:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def begin(self, key: SessionKey, *, now: datetime) -> None:
        require_text("the session's key", str(key))
        await self._writer.write(partial(_begin, key, to_micros(now)), durable=True)

    async def label(self, key: SessionKey, node: NodeId, label: str | None) -> None:
        require_text("the label or a message's id", str(key), node, label)
        await self._writer.write(partial(_label, key, node, label), durable=True)

    async def checkpoint(self, key: SessionKey, node: NodeId, *, is_kept: bool) -> None:
        require_text("a message's id", str(key), node)
        await self._writer.write(partial(_checkpoint, key, node, is_kept), durable=True)

    async def take_in(self, key: SessionKey, nodes: Sequence[Node], *, now: datetime) -> TakenIn:
        require_nodes(key, nodes)
        return await self._writer.write(partial(_take_in, key, nodes, now), durable=True)


def require_nodes(key: SessionKey, nodes: Sequence[Node]) -> None:
    """Raises TextRefused before anything is written."""
    require_text("the session's key", str(key))
    for node in nodes:
        require_text("a message", node.id, node.parent_id, node.run_id, node.model, node.label)
        require_text("a message", *message_texts(node.message))


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
    """Those that are not there yet, with the ids that they get. Raises ImportRefused."""

    def is_known(name: NodeId) -> bool | None:
        """None: it is another's, or erased."""
        row = pen.db.execute("SELECT place, standing FROM node WHERE id = ?", (name,)).fetchone()
        if row is None:
            return False
        is_ours = session is not None and row[0] >> SEQ_BITS == session.id
        return True if is_ours and row[1] < _ERASED else None

    return not_there_yet(key, nodes, is_known)


_ERASED = STANDINGS.index("erased")
_BEGIN = "UPDATE session SET head = NULL, state = 'active', updated_at = ? WHERE id = ?"
_COUNT = """
UPDATE session SET updated_at = ?, message_count = message_count + ?, last_seq = ?, head = ?
WHERE id = ?
"""
