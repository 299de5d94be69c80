"""Conversation trees and the list of sessions in memory."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from gateway.domain.errors import NotFound
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Message, Node
from gateway.domain.sessions import Path, SessionPage, SessionQuery, SessionRecord
from gateway.store.commits import OperationFailed
from gateway.store.memory_shelf import Session, Shelf
from gateway.store.rows import require_text
from gateway.store.summaries import require_summary


class MemoryTranscript:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def path(
        self,
        key: SessionKey,
        *,
        upto: NodeId | None = None,
        before: NodeId | None = None,
        limit: int,
    ) -> Path:
        require_text("the session's key or a message's id", str(key), upto, before)
        await self._shelf.ready()
        session = self._shelf.sessions.get(key)
        if session is None:
            return Path((), None, more=False)
        end = session.record.head
        if before is not None:
            end = _node_of(session, before).parent_id
        elif upto is not None:
            end = _node_of(session, upto).id
        nodes: list[Node] = []
        while end is not None and len(nodes) < limit:
            nodes.append(session.nodes[end])
            end = session.nodes[end].parent_id
        summary = session.summaries.get(nodes[0].id) if nodes and before is None else None
        shown = session.nodes[summary] if summary else None
        return Path(tuple(reversed(nodes)), session.record.head, end is not None, shown)

    async def node(self, key: SessionKey, node_id: str) -> Node | None:
        require_text("the session's key or a message's id", str(key), node_id)
        await self._shelf.ready()
        session = self._shelf.sessions.get(key)
        if session is None:
            return None
        labelled = (node for node in session.nodes.values() if node.label == node_id)
        found = session.nodes.get(NodeId(node_id)) or next(labelled, None)
        return None if found is None or found.standing == "erased" else found

    async def tree(self, key: SessionKey, *, limit: int, archived: bool = False) -> Sequence[Node]:
        require_text("the session's key", str(key))
        await self._shelf.ready()
        session = self._shelf.sessions.get(key)
        if session is None:
            return ()
        wanted = {"shown", "archived"} if archived else {"shown"}
        seen = (node for node in reversed(session.nodes.values()) if node.standing in wanted)
        newest = islice(seen, max(0, limit))
        bare = [replace(node, message=Message(node.message.role)) for node in newest]
        return bare[::-1]

    async def move_head(
        self, key: SessionKey, to: NodeId, *, expected: NodeId | None, label: str | None = None
    ) -> bool:
        require_text("the label or a message's id", str(key), to, expected, label)
        await self._shelf.ready()
        session = self._shelf.sessions.get(key)
        if session is None:
            raise NotFound(f"session {key}")
        _node_of(session, to)
        if session.record.head != expected:
            return False
        session.record = replace(session.record, head=to)
        if label is not None:
            session.put_label(to, label)
        session.bring_back()
        return True


class MemorySummaries:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def append(self, key: SessionKey, node: Node, *, expected: NodeId | None) -> bool:
        require_summary(key, node, expected)
        await self._shelf.ready()
        session = self._shelf.sessions.get(key)
        if session is None:
            raise NotFound(f"session {key}")
        if session.record.head != expected:
            return False
        if node.id in self._shelf.node_ids:
            raise OperationFailed("memory: a node's id was used before")
        session.grow((node,), expected)
        self._shelf.node_ids.add(node.id)
        session.record = replace(session.record, head=node.id)
        return True


def _node_of(session: Session, node_id: NodeId) -> Node:
    node = session.nodes.get(node_id)
    if node is None or node.standing == "erased":
        raise NotFound(f"message {node_id}")
    return node


class MemorySessions:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def find(self, key: SessionKey) -> SessionRecord | None:
        require_text("the session's key", str(key))
        await self._shelf.ready()
        session = self._shelf.sessions.get(key)
        return None if session is None else session.record

    async def list(self, query: SessionQuery) -> SessionPage:
        require_text("the query", query.account, query.peer, query.text)
        require_text("the query", *(query.agents or ()), *(query.channels or ()))
        await self._shelf.ready()
        records = [session.record for session in self._shelf.sessions.values()]
        found = [record for record in records if _is_wanted(record, query)]
        found.sort(key=lambda record: record.updated_at, reverse=True)
        limit = max(0, query.limit)
        return SessionPage(tuple(found[:limit]), more=len(found) > limit)

    async def count(self) -> int:
        await self._shelf.ready()
        return len(self._shelf.sessions)

    async def close(self, key: SessionKey) -> None:
        require_text("the session's key", str(key))
        await self._shelf.ready()
        session = self._shelf.sessions.get(key)
        if session is None:
            raise NotFound(f"session {key}")
        session.record = replace(session.record, state="closed")


def _is_wanted(record: SessionRecord, query: SessionQuery) -> bool:
    key = record.key
    return (
        (query.agents is None or key.agent in query.agents)
        and (query.channels is None or key.channel in query.channels)
        and query.account in {None, key.account}
        and query.peer in {None, key.peer}
        and (query.text is None or query.text in str(key))
        and (query.before is None or record.updated_at < query.before)
    )
