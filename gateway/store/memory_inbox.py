"""Inbox, runs and journal in memory."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from gateway.domain.errors import Conflict, NotFound
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import (
    Accepted,
    Ending,
    EndState,
    Entry,
    JournalNote,
    NewEntry,
    RunRecord,
)
from gateway.domain.sessions import SessionRecord
from gateway.store.channels import already_heard
from gateway.store.commits import OperationFailed
from gateway.store.inbox import other_content, require_ending, require_entry, spoken, taken
from gateway.store.memory_aftermath import leave
from gateway.store.memory_shelf import Run, Session, Shelf
from gateway.store.rows import require_text, to_micros, to_time


class MemoryInbox:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def accept(self, entry: NewEntry, *, begin: bool) -> Accepted:
        require_entry(entry)
        await self._shelf.ready()
        accepted = self._accept(entry, begin=begin)
        self._shelf.keep_memos(entry.memos)
        return accepted

    def _accept(self, entry: NewEntry, *, begin: bool) -> Accepted:
        if entry.whence is not None and _once(entry) in self._shelf.told:
            raise already_heard(entry)
        if (earlier := self._earlier(entry)) is not None:
            return earlier
        if entry.run_id in self._shelf.runs:
            raise Conflict(taken(entry))
        session = self._session(entry)
        session.record = replace(session.record, state="active")
        session.last_run += 1
        entry = replace(entry, memos=())
        kept = Entry(entry, session.last_run, "running" if begin else "queued", int(begin))
        self._shelf.runs[entry.run_id] = Run(RunRecord(kept, None, b"", "", None))
        self._shelf.open_runs[entry.run_id] = None
        if entry.platform_id is not None:
            self._shelf.seen[_once(entry)] = entry.run_id
        return _accepted(kept, duplicate=False)

    def _earlier(self, entry: NewEntry) -> Accepted | None:
        if entry.platform_id is None:
            return None
        run_id = self._shelf.seen.get(_once(entry))
        if run_id is None:
            return None
        first = self._shelf.runs[run_id].record.entry
        if first.new.digest and first.new.digest != entry.digest:
            raise Conflict(other_content(entry))
        return _accepted(first, duplicate=True)

    def _session(self, entry: NewEntry) -> Session:
        key, at = entry.session_key, entry.accepted_at
        session = self._shelf.sessions.get(key)
        if session is None:
            updated = to_time(self._shelf.stamps.take(to_micros(at)))
            record = SessionRecord(key, at, updated, 0, 0, 0, None, "active", None)
            session = self._shelf.sessions[key] = Session(record)
        return session

    async def begin(self, run_id: RunId) -> int:
        await self._shelf.ready()
        run = self._shelf.runs.get(run_id)
        if run is None:
            raise NotFound(f"run {run_id}")
        if run_id not in self._shelf.open_runs:
            raise Conflict(f"run {run_id} has ended")
        entry = run.record.entry
        entry = replace(entry, state="running", attempts=entry.attempts + 1)
        run.record = replace(run.record, entry=entry)
        return entry.attempts

    async def finish(self, ending: Ending) -> bool:
        require_ending(ending)
        await self._shelf.ready()
        session = self._shelf.sessions.get(ending.session_key)
        if session is None:
            raise NotFound(f"session {ending.session_key}")
        if ending.grown_from is not None and ending.grown_from not in session.nodes:
            raise NotFound(f"message {ending.grown_from}")
        self._require_run(ending.run_id, ending.session_key)
        if ending.run_id not in self._shelf.open_runs:
            return False
        for one in ending.merged:
            self._require_run(one.run_id, ending.session_key)
            if one.run_id not in self._shelf.open_runs:
                raise Conflict(f"run {one.run_id} has ended")
        self._require_new(ending)
        moves = bool(ending.nodes) and (
            ending.take_head or session.record.head == ending.grown_from
        )
        self._append(session, ending)
        self._add_deliveries(ending)
        leave(ending, self._shelf)
        self._shelf.tapes[ending.run_id] = ending.tape()
        session.record = self._counted(session.record, ending, moves=moves)
        said = (ending.outcome, ending.log, ending.summary)
        self._end(ending.run_id, ending.state, said, ending.finished_at)
        for one in ending.merged:
            self._end(one.run_id, "done", ("merged", one.log, one.summary), ending.finished_at)
        session.prune(ending.most_nodes)
        return moves

    def _require_run(self, run_id: RunId, key: SessionKey) -> None:
        run = self._shelf.runs.get(run_id)
        if run is None or run.record.entry.new.session_key != key:
            raise NotFound(f"run {run_id}")

    def _end(
        self, run_id: RunId, state: EndState, said: tuple[str, bytes, str], at: datetime
    ) -> None:
        run = self._shelf.runs[run_id]
        entry = replace(run.record.entry, state=state)
        run.record = RunRecord(entry, *said, at)
        self._shelf.open_runs.pop(run_id, None)

    def _require_new(self, ending: Ending) -> None:
        ids = [node.id for node in ending.nodes]
        if len(set(ids)) < len(ids) or not self._shelf.node_ids.isdisjoint(ids):
            raise OperationFailed("memory: a node's id was used before")
        names = [new.id for new in ending.deliveries]
        if len(set(names)) < len(names) or any(name in self._shelf.deliveries for name in names):
            raise OperationFailed("memory: a delivery's id was used before")

    def _append(self, session: Session, ending: Ending) -> None:
        session.grow(ending.nodes, ending.grown_from)
        self._shelf.node_ids.update(node.id for node in ending.nodes)

    def _add_deliveries(self, ending: Ending) -> None:
        for new in ending.deliveries:
            run = (ending.run_id, ending.session_key)
            self._shelf.add_delivery(new, ending.finished_at, run)

    def _counted(self, record: SessionRecord, ending: Ending, *, moves: bool) -> SessionRecord:
        return replace(
            record,
            updated_at=to_time(self._shelf.stamps.take(to_micros(ending.finished_at))),
            message_count=record.message_count + spoken(ending.nodes),
            head=ending.nodes[-1].id if moves else record.head,
        )

    async def unfinished(self) -> Sequence[Entry]:
        await self._shelf.ready()
        return [self._shelf.runs[run_id].record.entry for run_id in self._shelf.open_runs]


def _once(entry: NewEntry) -> tuple[str, str, str]:
    return entry.session_key.channel, entry.session_key.account, entry.platform_id or ""


def _accepted(entry: Entry, *, duplicate: bool) -> Accepted:
    new, seq, attempts = entry.new, entry.seq, entry.attempts
    ids = (new.message_id, new.run_id, new.session_key)
    return Accepted(*ids, new.matched_by, seq, duplicate, attempts)


class MemoryRuns:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def find(self, run_id: RunId) -> RunRecord | None:
        await self._shelf.ready()
        run = self._shelf.runs.get(run_id)
        return None if run is None else run.record

    async def tape(self, run_id: RunId) -> bytes:
        await self._shelf.ready()
        return self._shelf.tapes.get(run_id, b"")


class MemoryJournal:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def note(self, run_id: RunId, note: JournalNote) -> None:
        require_text("a journal note", run_id, note.kind, note.payload)
        await self._shelf.ready()
        notes = self._shelf.journal.setdefault(run_id, [])
        if all((kept.step, kept.kind) != (note.step, note.kind) for kept in notes):
            notes.append(note)

    async def forgive(self, run_id: RunId) -> None:
        await self._shelf.ready()
        run = self._shelf.runs.get(run_id)
        if run is None or run.record.finished_at is not None:
            return
        entry = run.record.entry
        if entry.forgiven < entry.attempts:
            entry = replace(entry, forgiven=entry.forgiven + 1)
            run.record = replace(run.record, entry=entry)

    async def notes(self, run_id: RunId) -> Sequence[JournalNote]:
        await self._shelf.ready()
        return sorted(self._shelf.journal.get(run_id, ()), key=lambda note: note.step)
