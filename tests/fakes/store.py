"""Stores for tests: the shipped one in memory, and values to put into any of them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from gateway.domain.ids import AgentId, MessageId, NodeId, RunId, SessionKey
from gateway.domain.inbox import Ending, EndState, Merged, NewDelivery, NewEntry
from gateway.domain.messages import Message, Node
from gateway.domain.ports import PluginSpace
from gateway.store.memory import open_memory

__all__ = ["NOON", "a_space", "an_ending", "an_entry", "an_exchange", "open_memory", "session_key"]

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def session_key(peer: str = "main", *, agent: str = "demo", account: str = "local") -> SessionKey:
    return SessionKey(AgentId(agent), "websocket", account, peer)


def a_space(
    person: str | None = "ann", *, plugin: str = "notes", namespace: str = "notes"
) -> PluginSpace:
    return PluginSpace(plugin, namespace, person)


def an_entry(
    name: str,
    key: SessionKey | None = None,
    *,
    platform_id: str | None = None,
    digest: str = "",
    content: str = "hello",
    at: datetime = NOON,
) -> NewEntry:
    """Run `run-NAME` with message `msg-NAME`."""
    return NewEntry(
        MessageId(f"msg-{name}"),
        RunId(f"run-{name}"),
        key or session_key(),
        content,
        at,
        platform_id=platform_id,
        digest=digest,
    )


def an_exchange(name: str, *texts: str) -> tuple[Node, ...]:
    """Nodes NAME-1, NAME-2 …: a question and its answer, unless told otherwise."""
    return tuple(
        Node(
            NodeId(f"{name}-{number}"),
            None,
            RunId(f"run-{name}"),
            Message("user" if number % 2 else "assistant", text),
            NOON,
            3,
        )
        for number, text in enumerate(texts or ("question", "answer"), 1)
    )


def an_ending(
    name: str,
    key: SessionKey | None = None,
    *,
    grown_from: str | None = None,
    nodes: Sequence[Node] | None = None,
    take_head: bool = False,
    state: EndState = "done",
    deliveries: Sequence[NewDelivery] = (),
    after_s: float = 1.0,
    merged: Sequence[str] = (),
) -> Ending:
    """How `run-NAME` ends: an exchange that grows from `grown_from`, with the runs `merged`."""
    return Ending(
        RunId(f"run-{name}"),
        key or session_key(),
        state,
        "answered",
        tuple(an_exchange(name) if nodes is None else nodes),
        None if grown_from is None else NodeId(grown_from),
        take_head,
        b'{"type":"done"}\n',
        '{"turn":1}',
        NOON + timedelta(seconds=after_s),
        tuple(deliveries),
        merged=tuple(
            Merged(RunId(f"run-{one}"), b"merged", f'{{"merged_into":"{name}"}}') for one in merged
        ),
    )
