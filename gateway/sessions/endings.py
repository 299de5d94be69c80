"""How a run ends: its nodes, its terminal chunk and its record, put together for one commit. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.agent.job import Answer
from gateway.agent.wishes import Fail, Finish
from gateway.domain.chunks import Chunk
from gateway.domain.events import Event
from gateway.domain.ids import NodeId, RunId
from gateway.domain.inbox import Entry, NewEntry
from gateway.domain.messages import Message, Node, NodeStatus
from gateway.domain.notices import Notice
from gateway.domain.usage import Usage
from gateway.memory.window import message_tokens

SHOWN_TEXT = 150_000  # characters in the last event; all of it was told before, in pieces


@dataclass(frozen=True, slots=True)
class End:
    """`outcome` is the reason of `done`, or `failed`."""

    outcome: str
    nodes: tuple[Node, ...]
    terminal: Chunk
    usage: Usage
    text: str
    farewell: Event | None = None
    posts: tuple[Notice, ...] = ()
    kept: Mapping[str, object] | None = None  # by rules
    has_told: bool = True


@dataclass(frozen=True, slots=True)
class Timing:
    finished_at: datetime
    execution_ms: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The messages that a run answers, its own the last; and those that it took on its way."""

    entries: Sequence[Entry]
    taken: Sequence[Entry] = ()


def answered(asked: Asked, answer: Answer, parent: NodeId | None, timing: Timing) -> End:
    """The end of a run that was driven, whether it was answered, stopped or broken off."""
    end = answer.end
    status: NodeStatus = "complete"
    if isinstance(end, Finish) and end.partial:
        status = "cancelled" if end.reason == "cancelled" else "partial"
    elif not isinstance(end, Finish):
        status = "error" if end.text == end.told else "partial"
    nodes = _nodes(asked, answer.said, parent, timing, status=status, model=answer.model)
    if isinstance(end, Finish):
        data = _done(end, answer, nodes[-1].id, timing)
        done = Chunk("done", data)
        return _end(end.reason, nodes, done, answer)
    terminal = _error(end.error_type, end.told, nodes[-1].id, timing, retryable=end.retryable)
    terminal = Chunk("error", {**terminal.data, **_facts(end)})
    return _end("failed", nodes, terminal, answer)


def _facts(end: Fail) -> Mapping[str, object]:
    """What is known besides: of the provider that failed, or of the budget that is spent."""
    after, told = end.retry_after_s, dict[str, object]()
    if end.refusal is not None:
        told, after = dict(end.refusal.facts), end.refusal.retry_after_s
    more = {"provider": end.provider, "provider_status": end.status, "retry_after_s": after}
    return told | {name: value for name, value in more.items() if value is not None}


def _end(outcome: str, nodes: tuple[Node, ...], terminal: Chunk, answer: Answer) -> End:
    text, farewell = answer.end.text, answer.farewell
    told = (answer.usage, text, farewell, answer.posts, answer.kept, answer.has_told)
    return End(outcome, nodes, terminal, *told)


def refused(asked: Asked, error_type: str, told: str, parent: NodeId | None, timing: Timing) -> End:
    """The end of a run that no model was asked for, or that a defect of ours broke off."""
    said = (Message("assistant", told),)
    nodes = _nodes(asked, said, parent, timing, status="error", model=None)
    terminal = _error(error_type, told, nodes[-1].id, timing, retryable=False)
    told_last = {"reason": error_type, "exchange_saved": True, "cancelled": False, "partial": True}
    new, at = asked.entries[-1].new, timing.finished_at
    farewell = Event("session.end", "info", "sessions", at, new.session_key, new.run_id, told_last)
    return End("failed", nodes, terminal, Usage(), told, farewell)


def merged(into: RunId, answer: NodeId, timing: Timing) -> Chunk:
    """How a run ends whose question another run answered."""
    data = {
        "reason": "merged",
        "merged_into": into,
        "message_id": answer,
        "context_id": answer,
        "response": "",  # it was told once, by the run that made it
        "tokens_used": 0,
        "model": None,
        "execution_time_ms": timing.execution_ms,
        "partial": False,
        "timestamp": timing.finished_at,
    }
    return Chunk("done", data)


def _nodes(
    asked: Asked,
    said: tuple[Message, ...],
    parent: NodeId | None,
    timing: Timing,
    *,
    status: NodeStatus,
    model: str | None,
) -> tuple[Node, ...]:
    """The questions and all that was said after them, each the parent of the next. `status` is that
    of the last."""
    nodes: list[Node] = []
    placed = list(_placed(asked, said, timing))
    for place, (node_id, run_id, at, message) in enumerate(placed, 1):
        node = Node(
            id=node_id,
            parent_id=parent,
            run_id=run_id,
            message=message,
            created_at=at,
            token_count=message_tokens(message),
            status=status if place == len(placed) else "complete",
            model=model if message.role == "assistant" else None,
        )
        nodes.append(node)
        parent = node_id
    return tuple(nodes)


def _placed(
    asked: Asked, said: Sequence[Message], timing: Timing
) -> Iterator[tuple[NodeId, RunId, datetime, Message]]:
    """A question keeps the id of its message and the run that it was accepted with."""
    own, taken = asked.entries[-1].new, iter(asked.taken)
    for entry in asked.entries:
        yield _question(entry.new, Message("user", entry.new.content))
    for place, message in enumerate(said, 1):
        its = next(taken, None) if message.role == "user" else None
        if its is not None:
            yield _question(its.new, message)
        else:
            node_id = NodeId(f"{own.message_id}.{place}")
            yield node_id, own.run_id, timing.finished_at, message


def _question(new: NewEntry, message: Message) -> tuple[NodeId, RunId, datetime, Message]:
    return NodeId(new.message_id), new.run_id, new.accepted_at, message


def _done(end: Finish, answer: Answer, node_id: NodeId, timing: Timing) -> Mapping[str, object]:
    return {
        "reason": end.reason,
        "message_id": node_id,
        "context_id": node_id,
        "response": end.text[:SHOWN_TEXT],
        **({"truncated": True} if len(end.text) > SHOWN_TEXT else {}),
        **({"cut": True} if answer.finish in {"length", "overrun"} else {}),
        **({"filtered": True} if answer.finish == "content_filter" else {}),
        "tokens_used": answer.usage.total,
        "model": answer.model,
        "execution_time_ms": timing.execution_ms,
        "partial": end.partial,
        "timestamp": timing.finished_at,
    }


def _error(
    error_type: str, told: str, node_id: NodeId, timing: Timing, *, retryable: bool
) -> Chunk:
    return Chunk(
        "error",
        {
            "error_type": error_type,
            "message": told,
            "retryable": retryable,
            "context_id": node_id,
            "timestamp": timing.finished_at,
        },
    )
