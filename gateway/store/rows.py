"""Rows of sessions and nodes in SQLite: their places, a node as columns and back."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic_core import from_json, to_json

from gateway.domain.ids import EPOCH, MICROSECOND, NodeId, to_time
from gateway.domain.messages import Excerpt, Extras, Message, Node, Standing, ToolCall, ToolResult

# A node's place is its session's number and its own number in one integer: siblings in time lie
# side by side on disk, and every step along a path is one look-up by row id.
SEQ_BITS = 32
_SEQ_MASK = (1 << SEQ_BITS) - 1


def place_of(session: int, seq: int) -> int:
    return session << SEQ_BITS | seq


def seq_of(place: int) -> int:
    return place & _SEQ_MASK


@dataclass(slots=True)
class SessionRow:
    """A session's counters as the database has them, uncommitted writes of this batch included."""

    id: int
    last_run: int  # seq of the newest run; 1 without a run, if messages were imported
    last_seq: int  # seq of the newest node
    head: int | None  # place
    head_id: str | None
    is_closed: bool = False
    is_forked: bool = False  # a message exists whose parent is not the one before it
    is_pruned: bool = False  # every branch that may be archived is


def append(
    nodes: Sequence[Node], parent: int | None, session: SessionRow, db: sqlite3.Connection
) -> int:
    """Adds nodes, each under the one before it. Returns how many count as messages of the
    conversation: those of a person or the agent."""
    place, count, rows = session.id << SEQ_BITS | session.last_seq, 0, []
    if nodes and session.last_seq and parent != place:
        session.is_forked, session.is_pruned = True, False
    for node in nodes:
        place += 1
        message, summary = node.message, None
        role = message.role
        if role == "summary":
            role, summary = "tool", place
        elif role in {"user", "assistant"}:
            count += 1
        parts = (message.tool_calls, message.result, message.thinking, message.extras)
        packed = pack_message(message) if any(parts) or message.notices else None
        said = (role, message.text, packed)
        at = (node.created_at - EPOCH) // MICROSECOND
        about = (node.status, node.token_count, node.model, at, node.label)
        rows.append((place, node.id, parent, node.run_id, *said, *about, summary, parent))
        parent = place
    db.executemany(_ADD_NODE, rows)
    session.last_seq += len(rows)
    return count


_ADD_NODE = """
INSERT INTO node (place, id, parent, run_id, role, text, packed, status, tokens, model, created_at,
                  label, summary)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
        coalesce(?, (SELECT summary FROM node WHERE place = ?)))
"""
# After nodes were added: the counters of their session, and its HEAD.
COUNT_NODES = """
UPDATE session SET updated_at = ?, message_count = message_count + ?, last_seq = ?, head = ?
WHERE id = ?
"""


def pack_message(message: Message) -> bytes:
    """The parts of a message besides role and text, as JSON."""
    return to_json(
        [
            [[call.id, call.name, call.arguments] for call in message.tool_calls],
            _pack_result(message.result),
            message.thinking,
            [message.extras.provider, message.extras.json] if message.extras else None,
            *([message.notices] if message.notices else []),
        ]
    )


def _pack_result(result: ToolResult | None) -> list[object] | None:
    if result is None:
        return None
    told = [result.call_id, result.name, result.content, result.is_error, result.duration_ms]
    if not (result.boundary or result.excerpt):
        return told
    cut = result.excerpt
    shown = [cut.head, cut.tail, cut.size, cut.reference] if cut else None
    return [*told, result.boundary, shown]


def unpack_message(role: Any, text: str, packed: bytes | None) -> Message:
    if packed is None:
        return Message(role, text)
    calls, result, thinking, extras, *notices = from_json(packed)
    return Message(
        role,
        text,
        tuple(ToolCall(*call) for call in calls),
        _unpack_result(*result) if result else None,
        thinking,
        Extras(*extras) if extras else None,
        tuple((kind, told) for kind, told in notices[0]) if notices else (),
    )


def _unpack_result(*values: Any) -> ToolResult:
    call_id, name, content, is_error, duration_ms, *more = values
    boundary, cut = more or ("", None)
    told, excerpt = (call_id, name, content, is_error, duration_ms), Excerpt(*cut) if cut else None
    return ToolResult(*told, boundary=boundary, excerpt=excerpt)


def to_node(row: Sequence[Any], parent_id: NodeId | None) -> Node:
    """From the columns of NODE_COLUMNS and one more."""
    place, node_id, run_id, role, text, packed, status, tokens, model, created, label, *more = row
    summary, checkpoint, standing, _ = more
    role = "summary" if summary == place else role
    message, at, seq = unpack_message(role, text, packed), to_time(created), seq_of(place)
    marks = (label, bool(checkpoint), STANDINGS[standing])
    return Node(node_id, parent_id, run_id, message, at, tokens, status, model, seq, *marks)


STANDINGS: tuple[Standing, ...] = get_args(Standing)  # by their number in a column
NODE_COLUMNS = (
    "n.place, n.id, n.run_id, n.role, n.text, n.packed, n.status, n.tokens, n.model, n.created_at,"
    " n.label, n.summary, n.checkpoint, n.standing"
)
