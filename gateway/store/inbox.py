"""The inbox, its runs and their journal in SQLite. Accept and finish are one commit each."""

import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial
from typing import Any

from pydantic_core import from_json, to_json

from gateway.domain.errors import Conflict, NotFound
from gateway.domain.events import Batching, Notice
from gateway.domain.ids import EPOCH, MICROSECOND, RunId, SessionKey, to_micros, to_time
from gateway.domain.inbox import Accepted, Ending, Entry, NewEntry, RunRecord
from gateway.domain.journal import chunks_of
from gateway.domain.messages import Node
from gateway.store.channels import require_memos, require_unheard, write_memos
from gateway.store.outbox import add_delivery, require_delivery
from gateway.store.pruning import Span, branches_off, kept_spans, outdated
from gateway.store.reader import SqliteStore
from gateway.store.rows import (
    SEQ_BITS,
    TextRefused,
    message_texts,
    pack_message,
    place_of,
    require_text,
    seq_of,
)
from gateway.store.turns import forks_of
from gateway.store.writer import Pen, SessionRow


class SqliteEntries(SqliteStore):
    async def append(self, run_id: RunId, part: int, pack: Callable[[], bytes]) -> None:
        await self._writer.write(partial(add_part, run_id, part, pack), durable=False)

    async def forgive(self, run_id: RunId) -> None:
        await self._writer.write(partial(_forgive, run_id), durable=False)

    async def read(self, run_id: RunId) -> Sequence[bytes]:
        return await self._readers.read(partial(_parts, run_id))


def add_part(run_id: RunId, part: int, pack: Callable[[], bytes], pen: Pen) -> None:
    pen.db.execute(_ADD_PART, (run_id, part, pack()))


def _forgive(run_id: RunId, pen: Pen) -> None:
    pen.db.execute(_FORGIVE, (run_id,))


def _parts(run_id: RunId, db: sqlite3.Connection) -> Sequence[bytes]:
    return [row[0] for row in db.execute(_PARTS, (run_id,))]


_FORGIVE = """
UPDATE run SET forgiven = forgiven + 1
WHERE run_id = ? AND finished_at IS NULL AND forgiven < attempts
"""
_ADD_PART = "INSERT INTO journal (run_id, part, data) VALUES (?, ?, ?)"
_ADD_PART += " ON CONFLICT (run_id, part) DO UPDATE SET data = excluded.data"
_PARTS = "SELECT data FROM journal WHERE run_id = ? ORDER BY part"

MOST_POSTED = 100  # of an agent and a person, unclaimed; beyond it the oldest go

_PLAIN = tuple(one.name for one in fields(Notice) if one.name not in {"data", "expires_at"})


class SqliteRuleStates(SqliteStore):
    async def rule_state(self, key: SessionKey) -> str | None:
        require_text("the session's key", str(key))
        return await self._readers.read(partial(_rule_state, str(key)))


class SqliteNotices(SqliteStore):
    async def claim_notices(
        self, person: str, session_key: SessionKey, run_id: RunId, *, now: datetime
    ) -> Sequence[Notice]:
        """Without notices nothing is written, and mostly nothing is read."""
        if not self._pen.may_hold_notices:
            return ()
        require_text("the person or the run", person, str(session_key), run_id)
        where = (session_key.agent, person, str(session_key), run_id, to_micros(now))
        if not await self._readers.read(partial(_has_some, where)):
            return ()
        rows = await self._writer.write(partial(_claim, run_id, where), durable=False)
        return [unpack_notice(expires_at, packed) for _, expires_at, packed in sorted(rows)]


def pack_notice(notice: Notice) -> str:
    """A notice as JSON, without `expires_at`. Raises TextRefused."""
    plain = {name: getattr(notice, name) for name in _PLAIN}
    try:
        return to_json({**plain, "data": dict(notice.data)}, fallback=str).decode()
    except ValueError as error:
        raise TextRefused("a notice") from error


def unpack_notice(expires_at: int | None, packed: str) -> Notice:
    until = None if expires_at is None else to_time(expires_at)
    kept = from_json(packed)
    return Notice(**{**kept, "batching": Batching(**kept["batching"])}, expires_at=until)


def _leave(ending: Ending, session: SessionRow, pen: Pen) -> None:
    """Writes notices and the state of rules, in the commit that ends a run."""
    db = pen.db
    if pen.may_hold_notices:
        db.execute(_RELEASE if ending.leaves_claimed else _FORGET, (ending.run_id,))
    if ending.rule_state is not None:
        db.execute(_KEEP_STATE, (session.id, ending.rule_state))
    if not ending.posts:
        return
    pen.may_hold_notices = True
    who = (ending.session_key.agent, ending.person)
    for notice in ending.posts:
        until = None if notice.expires_at is None else to_micros(notice.expires_at)
        db.execute(_POST, (*who, session.id, until, pack_notice(notice)))
    db.execute(_TRIM, (*who, *who, MOST_POSTED))


def _rule_state(key: str, db: sqlite3.Connection) -> str | None:
    row = db.execute(_STATE, (key,)).fetchone()
    return None if row is None else str(row[0])


def _has_some(where: tuple[object, ...], db: sqlite3.Connection) -> bool:
    row = db.execute(f"SELECT EXISTS (SELECT 1 FROM notice {_FREE})", where).fetchone()
    return bool(row[0])


def _claim(run_id: RunId, where: tuple[object, ...], pen: Pen) -> list[tuple[Any, ...]]:
    return pen.db.execute(
        f"{_MARK} {_FREE} RETURNING id, expires_at, json", (run_id, *where)
    ).fetchall()


_STATE = """
SELECT r.json FROM rule_state r JOIN session s ON s.id = r.session WHERE s.key = ?
"""
_KEEP_STATE = """
INSERT INTO rule_state (session, json) VALUES (?, ?)
ON CONFLICT (session) DO UPDATE SET json = excluded.json
"""
_FORGET = "DELETE FROM notice WHERE claimed_by = ?"
_RELEASE = "UPDATE notice SET claimed_by = NULL WHERE claimed_by = ?"
_POST = "INSERT INTO notice (agent, person, session, expires_at, json) VALUES (?, ?, ?, ?, ?)"
_TRIM = """
DELETE FROM notice WHERE agent = ? AND person = ? AND claimed_by IS NULL AND id <= (
    SELECT id FROM notice WHERE agent = ? AND person = ? AND claimed_by IS NULL
    ORDER BY id DESC LIMIT 1 OFFSET ?)
"""
_MARK = "UPDATE notice SET claimed_by = ?"
_FREE = """
WHERE agent = ? AND person = ? AND session IS NOT (SELECT id FROM session WHERE key = ?)
  AND (claimed_by IS NULL OR claimed_by = ?) AND (expires_at IS NULL OR expires_at > ?)
"""


def put_label(session: SessionRow, place: int, label: str | None, db: sqlite3.Connection) -> None:
    if label is not None:
        bounds = (label, place_of(session.id, 0), place_of(session.id + 1, 0))
        db.execute(_TAKE_LABEL, bounds)
    db.execute("UPDATE node SET label = ? WHERE place = ?", (label, place))


def prune(session: SessionRow, most: int, db: sqlite3.Connection) -> None:
    """Archives branches of a tree that has more than `most` nodes. The cost does not depend on the
    length of the session."""
    if session.head is None or not (most and session.is_forked) or session.is_pruned:
        return
    forks = forks_of(session.id, db)
    kept = kept_spans(forks, _tips(session, db))
    tree, branches = branches_off(forks, seq_of(session.head), kept, session.last_seq)

    def shown(spans: Sequence[Span]) -> int:
        gone = sum(db.execute(_GONE, _places(session, span)).fetchone()[0] for span in spans)
        return sum(last - first + 1 for first, last in spans) - int(gone)

    gone = outdated(tree, branches, shown, most)
    for span in gone:
        db.execute(_ARCHIVE, _places(session, span))
    session.is_pruned = len(gone) == sum(map(len, branches))


def bring_back(session: SessionRow, db: sqlite3.Connection) -> None:
    """Shows the paths to HEAD, labels and checkpoints again."""
    session.is_pruned = False
    bounds = (place_of(session.id, 0), place_of(session.id + 1, 0))
    if db.execute(_HAS_GONE, bounds).fetchone()[0]:
        for span in kept_spans(forks_of(session.id, db), _tips(session, db)).items():
            db.execute(_SHOW, _places(session, span))


def _tips(session: SessionRow, db: sqlite3.Connection) -> list[int]:
    bounds = (place_of(session.id, 0), place_of(session.id + 1, 0))
    tips = [seq_of(place) for (place,) in db.execute(_KEPT, bounds)]
    return tips if session.head is None else [*tips, seq_of(session.head)]


def _places(session: SessionRow, span: Span) -> tuple[int, int]:
    return place_of(session.id, span[0]), place_of(session.id, span[1])


_TAKE_LABEL = "UPDATE node SET label = NULL WHERE label = ? AND place >= ? AND place < ?"
_KEPT = """
SELECT place FROM node INDEXED BY node_kept
WHERE (label IS NOT NULL OR checkpoint) AND place > ? AND place < ?
"""
_GONE = (
    "SELECT count(*) FROM node INDEXED BY node_archived WHERE standing AND place BETWEEN ? AND ?"
)
_HAS_GONE = """
SELECT EXISTS (SELECT 1 FROM node INDEXED BY node_archived
               WHERE standing AND place > ? AND place < ?)
"""
_ARCHIVE = "UPDATE node SET standing = 1 WHERE place BETWEEN ? AND ? AND standing = 0"
_SHOW = """
UPDATE node SET standing = 0
WHERE place IN (SELECT place FROM node INDEXED BY node_archived
                WHERE standing AND place BETWEEN ? AND ?)
  AND standing = 1
"""


class SqliteMessages(SqliteStore):
    async def accept(self, entry: NewEntry, *, begin: bool) -> Accepted:
        require_text("the message", entry.content)
        ids = (entry.message_id, entry.run_id, entry.context_id, entry.platform_id, entry.digest)
        address = (*entry.session_key, entry.sender, entry.whence)
        require_text("the message's address or ids", *address, *ids)
        if entry.memos:
            require_memos(entry.memos)
        return await self._writer.write(partial(_accept, entry, int(begin)), durable=True)

    async def begin(self, run_id: RunId) -> int:
        return await self._writer.write(partial(_begin, run_id), durable=False)

    async def finish(self, ending: Ending) -> bool:
        _require_ending(ending)
        return await self._writer.write(partial(_finish, ending), durable=True)

    async def unfinished(self) -> Sequence[Entry]:
        return await self._readers.read(_unfinished)


class SqliteRuns(SqliteStore):
    async def find_run(self, run_id: RunId) -> RunRecord | None:
        return await self._readers.read(partial(_find, run_id))


def _require_ending(ending: Ending) -> None:
    """Raises TextRefused before anything is written."""
    record = [ending.run_id, ending.outcome, ending.summary, ending.person, ending.rule_state]
    for one in ending.merged:
        record += (one.run_id, one.summary)
    require_text("what the run leaves", *record)
    said: list[str | None] = []
    for node in ending.nodes:
        said += (node.id, node.run_id, node.model, node.label, *message_texts(node.message))
    require_text("an answer", *said)
    for new in ending.deliveries:
        require_delivery(new)
    for notice in ending.posts:
        pack_notice(notice)


def _accept(entry: NewEntry, attempts: int, pen: Pen) -> Accepted:
    if entry.whence is not None and entry.platform_id is not None:
        require_unheard(entry, pen.db)
    accepted = _take_in(entry, attempts, pen)
    if entry.memos:
        write_memos(entry.memos, pen)
    return accepted


def _take_in(entry: NewEntry, attempts: int, pen: Pen) -> Accepted:
    key, at = entry.session_key, (entry.accepted_at - EPOCH) // MICROSECOND
    session = pen.session(key)
    if session is None:
        # Checked first, so that a repeat under another key makes no empty session.
        if (earlier := _earlier(entry, pen.db)) is not None:
            return earlier
        if pen.db.execute(_HAS_RUN, (entry.run_id,)).fetchone() is not None:
            raise _taken(entry)
        session = pen.make_session(key, at)
    seq = session.last_run + 1
    ids = (entry.run_id, entry.message_id, session.id, seq)
    state = ("running" if attempts else "queued", attempts, at)
    where = (entry.matched_by, key.channel, key.account, entry.platform_id, entry.digest)
    limits = to_json(entry.limits).decode() if entry.limits else None
    what = (entry.sender, entry.context_id, limits, entry.whence, entry.content)
    added = pen.db.execute(_ADD_RUN, (*ids, *state, *where, *what))
    if added.rowcount == 0:
        earlier = _earlier(entry, pen.db)
        if earlier is None:
            raise _taken(entry)
        return earlier
    pen.db.execute(_REOPEN, (session.id,))
    session.last_run = seq
    pen.accepted = added.lastrowid or pen.accepted
    return Accepted(entry.message_id, entry.run_id, key, entry.matched_by, seq, attempts=attempts)


def _earlier(entry: NewEntry, db: sqlite3.Connection) -> Accepted | None:
    """The first message of the same (channel, account, platform id). Raises Conflict if its content
    differs."""
    if entry.platform_id is None:
        return None
    key = entry.session_key
    row = db.execute(_FIND_EARLIER, (entry.platform_id, key.channel, key.account)).fetchone()
    if row is None:
        return None
    message_id, run_id, first, matched_by, seq, attempts, digest = row
    if digest and digest != entry.digest:  # empty: the content is erased
        raise Conflict(
            f"key {entry.platform_id!r} of {key.channel}:{key.account} was used before for another "
            "message: send it under a new key"
        )
    key = SessionKey.parse(first)
    return Accepted(message_id, run_id, key, matched_by, seq, duplicate=True, attempts=attempts)


def _taken(entry: NewEntry) -> Conflict:
    return Conflict(f"run {entry.run_id} was accepted before: take a new id")


def _begin(run_id: RunId, pen: Pen) -> int:
    row = pen.db.execute(_BEGIN_RUN, (run_id,)).fetchone()
    if row is not None:
        return int(row[0])
    raise _not_open(run_id, pen.db)


def _not_open(run_id: RunId, db: sqlite3.Connection) -> Conflict | NotFound:
    known = db.execute(_HAS_RUN, (run_id,)).fetchone()
    return NotFound(f"run {run_id}") if known is None else Conflict(f"run {run_id} has ended")


def _finish(ending: Ending, pen: Pen) -> bool:
    session = pen.session(ending.session_key)
    if session is None:
        raise NotFound(f"session {ending.session_key}")
    parent = pen.place(session, ending.grown_from)
    if parent is None and ending.grown_from is not None:
        raise NotFound(f"message {ending.grown_from}")
    if ending.merged:
        _require_open(ending, session, pen.db)
    at = (ending.finished_at - EPOCH) // MICROSECOND
    end = (ending.state, at, ending.outcome, ending.summary)
    if pen.db.execute(_END_RUN, (*end, ending.run_id, session.id)).rowcount == 0:
        _require_ended(ending.run_id, session, pen.db)
        return False
    pen.db.execute(_ADD_PART, (ending.run_id, ending.part, ending.journal()))
    for one in ending.merged:
        end = ("done", at, "merged", one.summary)
        pen.db.execute(_END_RUN, (*end, one.run_id, session.id))
        pen.db.execute(_ADD_PART, (one.run_id, 0, one.journal))
    return _grow(ending, session, parent, at, pen)


def _grow(ending: Ending, session: SessionRow, parent: int | None, at: int, pen: Pen) -> bool:
    """Writes what a run leaves to its session. Returns whether HEAD moves."""
    moves = bool(ending.nodes) and (ending.take_head or session.head == parent)
    append(ending.nodes, parent, session, pen.db)
    for new in ending.deliveries:
        add_delivery(new, at, pen.db, run=(ending.run_id, session.id))
    if pen.may_hold_notices or ending.posts or ending.rule_state is not None:
        _leave(ending, session, pen)
    session.last_seq += len(ending.nodes)
    if moves:
        session.head = session.id << SEQ_BITS | session.last_seq
        session.head_id = ending.nodes[-1].id
    sums = (pen.stamps.take(at), spoken(ending.nodes), session.last_seq, session.head)
    pen.db.execute(_COUNT, (*sums, session.id))
    if session.is_forked:
        prune(session, ending.most_nodes, pen.db)
    return moves


def _require_open(ending: Ending, session: SessionRow, db: sqlite3.Connection) -> None:
    """Raises Conflict if a merged run has ended, unless the run itself has ended."""
    if not _is_open(ending.run_id, session, db):
        return
    for one in ending.merged:
        if not _is_open(one.run_id, session, db):
            _require_ended(one.run_id, session, db)
            raise Conflict(f"run {one.run_id} has ended")


def _is_open(run_id: RunId, session: SessionRow, db: sqlite3.Connection) -> bool:
    return db.execute(_IS_OPEN, (run_id, session.id)).fetchone() is not None


def _require_ended(run_id: RunId, session: SessionRow, db: sqlite3.Connection) -> None:
    row = db.execute("SELECT session FROM run WHERE run_id = ?", (run_id,)).fetchone()
    if row is None or row[0] != session.id:
        raise NotFound(f"run {run_id}")


def append(
    nodes: Sequence[Node], parent: int | None, session: SessionRow, db: sqlite3.Connection
) -> None:
    place = session.id << SEQ_BITS | session.last_seq
    if nodes and session.last_seq and parent != place:
        session.is_forked, session.is_pruned = True, False
    found = db.execute("SELECT summary FROM node WHERE place = ?", (parent,)).fetchone()
    summary, rows = found and found[0], []
    for node in nodes:
        place += 1
        message = node.message
        role = message.role
        if role == "summary":
            role, summary = "tool", place
        said = (role, message.text, pack_message(message))
        at = (node.created_at - EPOCH) // MICROSECOND
        about = (node.status, node.token_count, node.model, at, node.label)
        rows.append((place, node.id, parent, node.run_id, *said, *about, summary))
        parent = place
    db.executemany(_ADD_NODE, rows)


def spoken(nodes: Sequence[Node]) -> int:
    """How many of the nodes count as messages of a conversation: those of a person or the agent."""
    return len([node for node in nodes if node.message.role in {"user", "assistant"}])


def _unfinished(db: sqlite3.Connection) -> Sequence[Entry]:
    rows = db.execute(f"{_RUN} WHERE r.finished_at IS NULL ORDER BY r.id").fetchall()
    return [_to_entry(row) for row in rows]


# Logs of earlier versions have fractions of milliseconds. Quotes within a text are escaped.
_FRACTION = re.compile(rb'("execution_time_ms":\d+)\.\d+')


def _find(run_id: RunId, db: sqlite3.Connection) -> RunRecord | None:
    row = db.execute(f"{_RUN} WHERE r.run_id = ?", (run_id,)).fetchone()
    if row is None:
        return None
    at, outcome, log, summary = row[-4:]
    # The log of a run that an earlier version ended stands in its row.
    log = _FRACTION.sub(rb"\1", log) if log else chunks_of(_parts(run_id, db))
    return RunRecord(_to_entry(row), outcome, log, summary, None if at is None else to_time(at))


def _to_entry(row: Sequence[Any]) -> Entry:
    message_id, run_id, key, content, at, *more, limits, whence = row[:12]
    limits = from_json(limits) if limits else {}
    what = (SessionKey.parse(key), content, to_time(at), *more, limits, whence)
    return Entry(NewEntry(message_id, run_id, *what), *row[12:16])


# In the order of NewEntry, Entry and RunRecord.
_RUN = """
SELECT r.message_id, r.run_id, s.key, r.content, r.accepted_at, r.matched_by, r.platform_id,
       r.digest, r.context_id, r.sender, r.limits, r.whence, r.seq, r.state, r.attempts, r.forgiven,
       r.finished_at, r.outcome, r.log, r.summary
FROM run r JOIN session s ON s.id = r.session
"""
_ADD_RUN = """
INSERT INTO run (run_id, message_id, session, seq, state, attempts, accepted_at, matched_by,
                 channel, account, platform_id, digest, sender, context_id, limits, whence, content)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_IS_OPEN = "SELECT 1 FROM run WHERE run_id = ? AND session = ? AND finished_at IS NULL"
_HAS_RUN = "SELECT 1 FROM run WHERE run_id = ?"
_FIND_EARLIER = """
SELECT r.message_id, r.run_id, s.key, r.matched_by, r.seq, r.attempts, r.digest
FROM run r JOIN session s ON s.id = r.session
WHERE r.platform_id = ? AND r.channel = ? AND r.account = ?
"""
_BEGIN_RUN = """
UPDATE run SET attempts = attempts + 1, state = 'running'
WHERE run_id = ? AND finished_at IS NULL
RETURNING attempts
"""
_END_RUN = """
UPDATE run SET state = ?, finished_at = ?, outcome = ?, summary = ?, has_journal = 1
WHERE run_id = ? AND session = ? AND finished_at IS NULL
"""
_REOPEN = "UPDATE session SET state = 'active' WHERE id = ? AND state = 'closed'"
_ADD_NODE = """
INSERT INTO node (place, id, parent, run_id, role, text, packed, status, tokens, model, created_at,
                  label, summary)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_COUNT = """
UPDATE session
SET updated_at = ?, message_count = message_count + ?, last_seq = ?, head = ?
WHERE id = ?
"""
