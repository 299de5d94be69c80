"""What was said in memory, found by looking at all of it."""

from collections.abc import Sequence
from dataclasses import replace

from gateway.domain.errors import NotFound
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node
from gateway.domain.recall import Found, Hits, Trail, Turn
from gateway.domain.words import words_of
from gateway.store.memory_facts import stem
from gateway.store.memory_shelf import Session, Shelf
from gateway.store.rows import require_text
from gateway.store.turns import INDEXED_CHARS, SAID_BY, SHOWN_CHARS, names_by, trail_of


class MemoryTurns:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._words: dict[SessionKey, list[frozenset[str]]] = {}  # of each node that was looked at

    async def find(
        self,
        key: SessionKey,
        words: Sequence[str],
        *,
        messages: Sequence[str] = (),
        upto: NodeId | None = None,
        limit: int,
    ) -> Found:
        require_text("the session's key or a message's id", str(key), upto, *messages)
        await self._shelf.ready()
        session = self._shelf.sessions.get(key)
        if session is None:
            return Found()
        head = upto or session.record.head
        if head is not None and head not in session.nodes:
            raise NotFound(f"message {head}")
        tip = session.nodes[head].seq if head else None
        trail = trail_of(session.forks(), tip, len(session.nodes))
        known = _depths_of(messages, session, trail)
        hits = {word: self._hits(key, word, trail, limit) for word in words}
        return Found(
            trail,
            {
                word: hit
                for word, hit in hits.items()
                if hit.depths and trail.tells_apart(hit.total)
            },
            known,
        )

    def _hits(self, key: SessionKey, word: str, trail: Trail, limit: int) -> Hits:
        form = stem(word)
        looked_at = self._words.get(key, ())
        found = [trail.depth_of(seq) for seq, words in enumerate(looked_at, 1) if form in words]
        seen = [depth for depth in found if depth is not None]
        newest = frozenset(seen[-limit:])
        if len(newest) < limit:
            return Hits(newest, len(seen))
        return Hits(newest, len(seen) * trail.length // trail.count_to(len(looked_at)))

    async def fetch(self, key: SessionKey, trail: Trail, depths: Sequence[int]) -> Sequence[Turn]:
        await self._shelf.ready()
        session = self._shelf.sessions.get(key)
        wanted = {trail.seq_at(depth): depth for depth in depths}
        nodes = session.nodes.values() if session else ()
        return [
            self._turn(node, wanted[node.seq])
            for node in nodes
            if node.seq in wanted and node.message.role in SAID_BY and node.message.text
            if not self._is_forgotten(key, node)
        ]

    def _is_forgotten(self, key: SessionKey, node: Node) -> bool:
        run = self._shelf.runs.get(node.run_id)
        new = run.record.entry.new if run else None
        turn = replace(self._turn(node, 0), sender=new.sender if new else None)
        names = names_by(key, turn, new.message_id if new else None)
        return self._shelf.is_forgotten(names, node.created_at)

    def _turn(self, node: Node, depth: int) -> Turn:
        message, run = node.message, self._shelf.runs.get(node.run_id)
        sender = run.record.entry.new.sender if run and message.role == "user" else None
        text = message.text[:SHOWN_CHARS]
        return Turn(depth, node.id, message.role, text, node.created_at, sender)

    async def behind(self, *, limit: int) -> Sequence[SessionKey]:
        await self._shelf.ready()
        return [key for key in self._shelf.sessions if self._is_behind(key)][:limit]

    async def advance(self, keys: Sequence[SessionKey], *, limit: int) -> Sequence[SessionKey]:
        await self._shelf.ready()
        known = [key for key in dict.fromkeys(keys) if key in self._shelf.sessions]
        for key in known:
            held = self._words.setdefault(key, [])
            new = list(self._shelf.sessions[key].nodes.values())[len(held) :][:limit]
            held += map(_words_in, new)
            limit -= len(new)
        return [key for key in known if self._is_behind(key)]

    async def forget(self, key: SessionKey, ids: Sequence[str]) -> None:
        require_text("the session's key or a message's id", str(key), *ids)
        await self._shelf.ready()
        session, held = self._shelf.sessions.get(key), self._words.get(key, [])
        for node in (session.nodes.get(NodeId(one)) for one in ids) if session else ():
            if node is not None and node.seq <= len(held):
                held[node.seq - 1] = frozenset()

    def _is_behind(self, key: SessionKey) -> bool:
        return len(self._shelf.sessions[key].nodes) > len(self._words.get(key, ()))


def _depths_of(messages: Sequence[str], session: Session, trail: Trail) -> dict[str, int]:
    nodes = {name: session.nodes.get(NodeId(name)) for name in messages}
    depths = {name: trail.depth_of(node.seq) for name, node in nodes.items() if node}
    return {name: depth for name, depth in depths.items() if depth is not None}


def _words_in(node: Node) -> frozenset[str]:
    text = node.message.text if node.message.role in SAID_BY else ""
    return frozenset(stem(word) for word in words_of(text[:INDEXED_CHARS]))
