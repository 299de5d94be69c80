"""How far facts were looked for in what people said, in memory."""

from collections.abc import Mapping, Sequence

from gateway.domain.hearing import Heard, Said
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node
from gateway.store.memory_shelf import Shelf
from gateway.store.rows import require_text


class MemoryHearing:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def behind(self) -> Sequence[SessionKey]:
        await self._shelf.ready()
        heard, sessions = self._shelf.heard, self._shelf.sessions
        late = [key for key, one in sessions.items() if len(one.nodes) > heard.get(key, 0)]
        return sorted(late, key=lambda key: sessions[key].record.updated_at, reverse=True)

    async def next(self, key: SessionKey, *, limit: int) -> Heard:
        return await self._next(key, self._shelf.heard.get(key, 0), limit)

    async def looked(self, upto: Mapping[SessionKey, NodeId]) -> None:
        require_text("a message's id", *upto.values())
        await self._shelf.ready()
        for key, node in upto.items():
            self._shelf.heard[key] = max(self._shelf.heard.get(key, 0), self._seq(key, node))

    async def owe(self, key: SessionKey, since: NodeId) -> None:
        require_text("a message's id", since)
        await self._shelf.ready()
        place = self._seq(key, since) - 1
        seq, is_owed = self._shelf.unread.get(key, (0, False))
        if place >= 0:
            self._shelf.unread[key] = (seq if is_owed else max(seq, place), True)

    async def owed(self) -> Sequence[SessionKey]:
        await self._shelf.ready()
        return [key for key, (_, is_owed) in self._shelf.unread.items() if is_owed]

    async def next_owed(self, key: SessionKey, *, limit: int) -> Heard:
        seq, is_owed = self._shelf.unread.get(key, (0, False))
        return await self._next(key, seq, limit) if is_owed else Heard()

    async def read(self, key: SessionKey, upto: NodeId) -> bool:
        require_text("a message's id", upto)
        await self._shelf.ready()
        place = self._seq(key, upto)
        if not place or key not in self._shelf.unread:
            return False
        is_owed = place < len(self._shelf.sessions[key].nodes)
        self._shelf.unread[key] = (max(self._shelf.unread[key][0], place), is_owed)
        return is_owed

    async def _next(self, key: SessionKey, seq: int, limit: int) -> Heard:
        require_text("the session's key", str(key))
        await self._shelf.ready()
        session = self._shelf.sessions.get(key)
        nodes = list(session.nodes.values())[seq : seq + max(0, limit)] if session else []
        said = (self._said(node) for node in nodes if node.message.role == "user")
        return Heard(tuple(one for one in said if one), nodes[-1].id if nodes else None)

    def _said(self, node: Node) -> Said | None:
        """Of what stands there as a user's, only that was said which was accepted or imported."""
        run = self._shelf.runs.get(node.run_id)
        new = run.record.entry.new if run else None
        if new is not None and str(new.message_id) != str(node.id):
            return None
        sender = new.sender if new else None
        return Said(node.id, node.run_id, sender, node.message.text, node.created_at)

    def _seq(self, key: SessionKey, node_id: NodeId) -> int:
        """0: there is no such node."""
        session = self._shelf.sessions.get(key)
        nodes = session.nodes if session else ()
        return next((seq for seq, one in enumerate(nodes, 1) if one == node_id), 0)
