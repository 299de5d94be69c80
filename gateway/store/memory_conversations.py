"""What is done to whole conversations in memory, besides talking."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gateway.domain.conversations import Erased, TakenIn, not_there_yet
from gateway.domain.errors import NotFound
from gateway.domain.facts import Erasure, tombstone_of
from gateway.domain.ids import NodeId, RunId, SessionKey
from gateway.domain.messages import Message, Node
from gateway.domain.outbox import DeliveryState
from gateway.domain.sessions import SessionRecord
from gateway.store.conversations import require_nodes
from gateway.store.erasure import busy
from gateway.store.inbox import spoken
from gateway.store.memory_facts import MemoryFacts
from gateway.store.memory_shelf import Session, Shelf
from gateway.store.memory_turns import MemoryTurns
from gateway.store.rows import require_text, to_micros, to_time


class MemoryConversations:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def begin(self, key: SessionKey, *, now: datetime) -> None:
        require_text("the session's key", str(key))
        await self._shelf.ready()
        session = self._shelf.sessions.get(key) or self._make(key, now, now)
        if session.record.head is not None:
            self._touch(session, now, head=None, state="active")

    async def label(self, key: SessionKey, node: NodeId, label: str | None) -> None:
        require_text("the label or a message's id", str(key), node, label)
        await self._shelf.ready()
        session = self._with(key, node)
        session.put_label(node, label)
        session.bring_back()

    async def checkpoint(self, key: SessionKey, node: NodeId, *, is_kept: bool) -> None:
        require_text("a message's id", str(key), node)
        await self._shelf.ready()
        session = self._with(key, node)
        session.nodes[node] = replace(session.nodes[node], is_checkpoint=is_kept)
        session.bring_back()

    async def take_in(self, key: SessionKey, nodes: Sequence[Node], *, now: datetime) -> TakenIn:
        require_nodes(key, nodes)
        await self._shelf.ready()
        session = self._shelf.sessions.get(key)
        new = self._new(key, nodes, session.nodes if session else {})
        if session is None:
            first = min((node.created_at for node in new), default=now)
            session = self._make(key, min(first, now), now)
        head = session.record.head
        for node in new:
            session.grow((node,), node.parent_id)
            self._shelf.node_ids.add(node.id)
            head = node.id if head == node.parent_id else head
        session.last_run = session.last_run or int(bool(session.nodes))
        count = session.record.message_count + spoken(new)
        self._touch(session, now, head=head, message_count=count)
        return TakenIn(len(new), head)

    def _new(
        self, key: SessionKey, nodes: Sequence[Node], known: Mapping[NodeId, Node]
    ) -> list[Node]:
        def is_known(name: NodeId) -> bool | None:
            if name in known and known[name].standing != "erased":
                return True
            return None if name in self._shelf.node_ids else False

        return not_there_yet(key, nodes, is_known)

    def _make(self, key: SessionKey, created: datetime, now: datetime) -> Session:
        updated = to_time(self._shelf.stamps.take(to_micros(now)))
        record = SessionRecord(key, created, updated, 0, 0, 0, None, "active", None)
        made = self._shelf.sessions[key] = Session(record)
        return made

    def _touch(self, session: Session, now: datetime, **changes: object) -> None:
        updated = to_time(self._shelf.stamps.take(to_micros(now)))
        session.record = replace(session.record, updated_at=updated, **changes)  # type: ignore[arg-type]  # by name

    def _with(self, key: SessionKey, node: NodeId) -> Session:
        session = self._shelf.sessions.get(key)
        if session is None:
            raise NotFound(f"session {key}")
        if node not in session.nodes or session.nodes[node].standing == "erased":
            raise NotFound(f"message {node}")
        return session


class MemoryErasures:
    def __init__(self, shelf: Shelf, facts: MemoryFacts, turns: MemoryTurns) -> None:
        self._shelf, self._facts, self._turns = shelf, facts, turns

    async def erase(self, key: SessionKey, *, by: str, dry_run: bool, now: datetime) -> Erased:
        require_text("the session's key or who erases it", str(key), by)
        await self._shelf.ready()
        session, what = self._shelf.sessions.get(key), Erasure(session_key=key, by=by)
        if session is None:
            raise NotFound(f"session {key}")
        ids = [node.id for node in session.nodes.values() if node.standing != "erased"]
        if dry_run:
            return Erased(len(ids), self._facts.count_of(what))
        runs = {
            id_ for id_, run in self._shelf.runs.items() if run.record.entry.new.session_key == key
        }
        if not runs.isdisjoint(self._shelf.open_runs):
            raise busy(key)
        self._empty(key, session, runs)
        facts = self._facts.erase_now(what, now)
        await self._turns.forget(key, ids)
        return Erased(len(ids), facts, tombstone_of(what, now))

    def _empty(self, key: SessionKey, session: Session, runs: set[RunId]) -> None:
        shelf = self._shelf
        for node in tuple(session.nodes.values()):
            bare = Message("assistant" if node.message.role == "summary" else node.message.role)
            session.nodes[node.id] = replace(
                node, message=bare, label=None, is_checkpoint=False, standing="erased"
            )
        session.summaries.clear()
        session.record = replace(session.record, head=None, message_count=0, state="closed")
        for run_id in runs:
            run = shelf.runs[run_id]
            new = replace(run.record.entry.new, content="", digest="", whence=None)
            entry = replace(run.record.entry, new=new)
            run.record = replace(run.record, entry=entry, log=b"", summary="")
            shelf.journal.pop(run_id, None)
            shelf.tapes.pop(run_id, None)
        shelf.forget_originals(key)
        for id_, one in shelf.deliveries.items():
            if one.session_key == key:
                state: DeliveryState = "failed" if one.state == "pending" else one.state
                emptied = replace(one.new, text="", whence=None)
                told = replace(one, new=emptied, receipt=None, why="erased")
                shelf.deliveries[id_] = replace(told, state=state)
        shelf.rule_states.pop(key, None)
        shelf.posted[:] = [one for one in shelf.posted if one.session_key != key]
