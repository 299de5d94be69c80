"""The inbox, its runs and their journals in SQLite. Accept and finish are one commit each."""

import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from pydantic_core import from_json, to_json

from gateway.domain.errors import Conflict, NotFound
from gateway.domain.events import Batching, Notice
from gateway.domain.ids import EPOCH, MICROSECOND, RunId, SessionKey, to_micros, to_time
from gateway.domain.inbox import Accepted, Ending, Entry, NewEntry, RunRecord
from gateway.domain.journal import chunks_of
from gateway.store.channels import require_unheard, write_memos
from gateway.store.conversations import prune
from gateway.store.outbox import add_delivery
from gateway.store.rows import COUNT_NODES, SEQ_BITS, SessionRow, append
from gateway.store.tables import insert
from gateway.store.writer import Pen, SqliteStore, reading, writing


# --- the journals of runs, and what runs leave to later ones -------------------------------------
def add_part(pen: Pen, run_id: RunId, part: int, pack: Callable[[], bytes]) -> None:
    pen.db.execute(_ADD_PART, (run_id, part, pack()))


def _forgive(pen: Pen, run_id: RunId) -> None:
    pen.db.execute(_FORGIVE, (run_id,))


def _parts(db: sqlite3.Connection, run_id: RunId) -> Sequence[bytes]:
    return [row[0] for row in db.execute(_PARTS, (run_id,))]


def _rule_state(db: sqlite3.Connection, key: SessionKey) -> str | None:
    row = db.execute(_STATE, (str(key),)).fetchone()
    return None if row is None else str(row[0])


class SqliteJournal(SqliteStore):
    """Implements the port Journal."""

    append = writing(add_part, durable=False)
    forgive = writing(_forgive, durable=False)
    read = reading(_parts)
    rule_state = reading(_rule_state)

    async def claim_notices(
        self, person: str, session_key: SessionKey, run_id: RunId, *, now: datetime
    ) -> Sequence[Notice]:
        """Without notices nothing is written, and mostly nothing is read."""
        if not self._pen.may_hold_notices:
            return ()
        free = (session_key.agent, person, str(session_key), run_id, to_micros(now))
        if not await self._readers.read(lambda db: db.execute(_HAS_FREE, free).fetchone()[0]):
            return ()
        rows = await self._writer.write(
            lambda pen: pen.db.execute(_CLAIM, (run_id, *free)).fetchall(), durable=False
        )
        return [unpack_notice(expires_at, packed) for _, expires_at, packed in sorted(rows)]


MOST_POSTED = 100  # of an agent and a person, unclaimed; beyond it the oldest go

_PLAIN = tuple(one.name for one in fields(Notice) if one.name not in {"data", "expires_at"})


def pack_notice(notice: Notice) -> str:
    """A notice as JSON, without `expires_at`."""
    plain = {name: getattr(notice, name) for name in _PLAIN}
    return to_json({**plain, "data": dict(notice.data)}, fallback=str).decode()


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


_FORGIVE = """
UPDATE run SET forgiven = forgiven + 1
WHERE run_id = ? AND finished_at IS NULL AND forgiven < attempts
"""
_ADD_PART = insert("journal", "run_id, part", "data")
_PARTS = "SELECT data FROM journal WHERE run_id = ? ORDER BY part"
_STATE = "SELECT r.json FROM rule_state r JOIN session s ON s.id = r.session WHERE s.key = ?"
_KEEP_STATE = insert("rule_state", "session", "json")
_FORGET = "DELETE FROM notice WHERE claimed_by = ?"
_RELEASE = "UPDATE notice SET claimed_by = NULL WHERE claimed_by = ?"
_POST = insert("notice", "agent, person, session, expires_at, json")
_TRIM = """
DELETE FROM notice WHERE agent = ? AND person = ? AND claimed_by IS NULL AND id <= (
    SELECT id FROM notice WHERE agent = ? AND person = ? AND claimed_by IS NULL
    ORDER BY id DESC LIMIT 1 OFFSET ?)
"""
_FREE = """
WHERE agent = ? AND person = ? AND session IS NOT (SELECT id FROM session WHERE key = ?)
  AND (claimed_by IS NULL OR claimed_by = ?) AND (expires_at IS NULL OR expires_at > ?)
"""
_HAS_FREE = f"SELECT EXISTS (SELECT 1 FROM notice {_FREE})"
_CLAIM = f"UPDATE notice SET claimed_by = ? {_FREE} RETURNING id, expires_at, json"


# --- a message is accepted -----------------------------------------------------------------------
def _accept(pen: Pen, entry: NewEntry, *, begin: bool) -> Accepted:
    if entry.whence is not None:
        require_unheard(entry, pen.db)
    key, at = entry.session_key, (entry.accepted_at - EPOCH) // MICROSECOND
    session = pen.session(key)
    # Checked first, so that a repeat under another key makes no empty session.
    accepted = _earlier(entry, pen.db) if session is None else None
    if accepted is None:
        session = session or pen.make_session(key, at)
        seq, attempts = session.last_run + 1, int(begin)
        ids = (entry.run_id, entry.message_id, session.id, seq)
        state = ("running" if begin else "queued", attempts, at)
        where = (entry.matched_by, key.channel, key.account, entry.platform_id, entry.digest)
        limits = to_json(entry.limits).decode() if entry.limits else None
        what = (entry.sender, entry.context_id, limits, entry.whence, entry.content)
        added = pen.db.execute(_ADD_RUN, (*ids, *state, *where, *what)).fetchone()
        if added is not None:
            (pen.accepted,) = added
            if session.is_closed:
                pen.db.execute(_REOPEN, (session.id,))
                session.is_closed = False
            session.last_run = seq
            names = (entry.message_id, entry.run_id, key, entry.matched_by)
            accepted = Accepted(*names, seq, attempts=attempts)
        else:
            accepted = _earlier(entry, pen.db)
            assert accepted is not None
    if entry.memos:
        write_memos(pen, *entry.memos)
    return accepted


def _earlier(entry: NewEntry, db: sqlite3.Connection) -> Accepted | None:
    """The first message of the same (channel, account, platform id). Raises Conflict if its content
    differs, or if there is none and the run is another message's."""
    key = entry.session_key
    row = db.execute(_FIND_EARLIER, (entry.platform_id, key.channel, key.account)).fetchone()
    if row is not None:
        message_id, run_id, first, matched_by, seq, attempts, digest = row
        if digest and digest != entry.digest:  # empty: the content is erased
            raise Conflict(
                f"key {entry.platform_id!r} of {key.channel}:{key.account} was used before for "
                "another message: send it under a new key"
            )
        key = SessionKey.parse(first)
        return Accepted(message_id, run_id, key, matched_by, seq, duplicate=True, attempts=attempts)
    if db.execute(_HAS_RUN, (entry.run_id,)).fetchone() is not None:
        raise Conflict(f"run {entry.run_id} was accepted before: take a new id")
    return None


def _begin(pen: Pen, run_id: RunId) -> int:
    row = pen.db.execute(_BEGIN_RUN, (run_id,)).fetchone()
    if row is not None:
        return int(row[0])
    if pen.db.execute(_HAS_RUN, (run_id,)).fetchone() is None:
        raise NotFound(f"run {run_id}")
    raise Conflict(f"run {run_id} has ended")


# --- a run ends ----------------------------------------------------------------------------------
def _finish(pen: Pen, ending: Ending) -> bool:
    session = pen.session(ending.session_key)
    if session is None:
        raise NotFound(f"session {ending.session_key}")
    is_head = ending.grown_from == session.head_id
    parent = session.head if is_head else pen.place(session, ending.grown_from)
    if parent is None and ending.grown_from is not None:
        raise NotFound(f"message {ending.grown_from}")
    for one in ending.merged:
        if _is_open(ending.run_id, session, pen.db) and not _is_open(one.run_id, session, pen.db):
            raise Conflict(f"run {one.run_id} has ended")
    at = (ending.finished_at - EPOCH) // MICROSECOND
    end = (ending.state, at, ending.outcome, ending.summary)
    if pen.db.execute(_END_RUN, (*end, ending.run_id, session.id)).rowcount == 0:
        _is_open(ending.run_id, session, pen.db)
        return False
    pen.db.execute(_ADD_PART, (ending.run_id, ending.part, ending.journal()))
    for one in ending.merged:
        end = ("done", at, "merged", one.summary)
        pen.db.execute(_END_RUN, (*end, one.run_id, session.id))
        pen.db.execute(_ADD_PART, (one.run_id, 0, one.journal))
    return _grow(ending, session, parent, at, pen)


def _is_open(run_id: RunId, session: SessionRow, db: sqlite3.Connection) -> bool:
    """Whether a run has not ended. Raises NotFound if the session has no such run."""
    row = db.execute(_IS_OPEN, (run_id, session.id)).fetchone()
    if row is None:
        raise NotFound(f"run {run_id}")
    return bool(row[0])


def _grow(ending: Ending, session: SessionRow, parent: int | None, at: int, pen: Pen) -> bool:
    """Writes what a run leaves to its session. Returns whether HEAD moves."""
    moves = bool(ending.nodes) and (ending.take_head or session.head == parent)
    count = append(ending.nodes, parent, session, pen.db)
    for new in ending.deliveries:
        add_delivery(new, at, pen.db, run=(ending.run_id, session.id))
    if pen.may_hold_notices or ending.posts or ending.rule_state is not None:
        _leave(ending, session, pen)
    if moves:
        session.head = session.id << SEQ_BITS | session.last_seq
        session.head_id = ending.nodes[-1].id
    pen.db.execute(COUNT_NODES, (pen.stamp(at), count, session.last_seq, session.head, session.id))
    if session.is_forked:
        prune(session, ending.most_nodes, pen.db)
    return moves


# --- what is read --------------------------------------------------------------------------------
def _unfinished(db: sqlite3.Connection) -> Sequence[Entry]:
    rows = db.execute(f"{_RUN} WHERE r.finished_at IS NULL ORDER BY r.id").fetchall()
    return [_to_entry(row) for row in rows]


# Logs of earlier versions have fractions of milliseconds. Quotes within a text are escaped.
_FRACTION = re.compile(rb'("execution_time_ms":\d+)\.\d+')


def _find(db: sqlite3.Connection, run_id: RunId) -> RunRecord | None:
    row = db.execute(f"{_RUN} WHERE r.run_id = ?", (run_id,)).fetchone()
    if row is None:
        return None
    at, outcome, log, summary = row[-4:]
    # The log of a run that an earlier version ended stands in its row.
    log = _FRACTION.sub(rb"\1", log) if log else chunks_of(_parts(db, run_id))
    return RunRecord(_to_entry(row), outcome, log, summary, None if at is None else to_time(at))


def _to_entry(row: Sequence[Any]) -> Entry:
    message_id, run_id, key, content, at, *more, limits, whence = row[:12]
    limits = from_json(limits) if limits else {}
    what = (SessionKey.parse(key), content, to_time(at), *more, limits, whence)
    return Entry(NewEntry(message_id, run_id, *what), *row[12:16])


class SqliteInbox(SqliteStore):
    """Implements the port Inbox."""

    accept = writing(_accept, durable=True)
    begin = writing(_begin, durable=False)
    finish = writing(_finish, durable=True)
    unfinished = reading(_unfinished)
    find_run = reading(_find)


# In the order of NewEntry, Entry and RunRecord.
_RUN = """
SELECT r.message_id, r.run_id, s.key, r.content, r.accepted_at, r.matched_by, r.platform_id,
       r.digest, r.context_id, r.sender, r.limits, r.whence, r.seq, r.state, r.attempts, r.forgiven,
       r.finished_at, r.outcome, r.log, r.summary
FROM run r JOIN session s ON s.id = r.session
"""
_ADD_RUN = insert(
    "run",
    "run_id, message_id, session, seq, state, attempts, accepted_at, matched_by, channel, account, "
    "platform_id, digest, sender, context_id, limits, whence, content",
)
_ADD_RUN += " ON CONFLICT DO NOTHING RETURNING id"
_IS_OPEN = "SELECT finished_at IS NULL FROM run WHERE run_id = ? AND session = ?"
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
