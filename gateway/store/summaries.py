"""Summaries in SQLite: nodes like others, which those after them point to."""

from functools import partial

from gateway.domain.errors import NotFound
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node
from gateway.store.inbox import append
from gateway.store.pen import Pen
from gateway.store.rows import place_of, require_text
from gateway.store.writer import Writer


class SqliteSummaries:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def append(self, key: SessionKey, node: Node, *, expected: NodeId | None) -> bool:
        require_summary(key, node, expected)
        return await self._writer.write(partial(_append, key, node, expected), durable=False)


def require_summary(key: SessionKey, node: Node, expected: NodeId | None) -> None:
    """Raises TextRefused before anything is written."""
    require_text("a summary", str(key), node.id, node.run_id, node.model, node.message.text)
    require_text("the message's id", expected)


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
