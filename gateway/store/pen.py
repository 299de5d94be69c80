"""What only the writer's thread may touch: its connection, and what it knows by heart."""

import sqlite3
from collections import OrderedDict
from dataclasses import dataclass

from gateway.domain.ids import SessionKey
from gateway.store.book import Book
from gateway.store.rows import Stamps, place_of, seq_of

_KNOWN = 4096  # sessions; about 0.5 kB each


@dataclass(slots=True)
class SessionRow:
    """A session's counters as the database has them, uncommitted writes of this batch included."""

    id: int
    last_run: int  # seq of the newest run; 1 also if there is none, but something was taken in
    last_seq: int  # seq of the newest node
    head: int | None  # place
    head_id: str | None
    is_forked: bool = False  # some message does not follow on the one before it
    is_pruned: bool = False  # every branch that may be is archived


class Pen:
    """Every change goes through here, one transaction at a time."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.accepted = 0
        self.has_erased = False  # so that the log must not keep what the database no longer has
        self._sessions: OrderedDict[SessionKey, SessionRow] = OrderedDict()
        self.stamps = Stamps()
        self.refresh()

    def refresh(self) -> None:
        """Reads everything anew: after an undone transaction nothing known by heart holds."""
        self._sessions.clear()
        self.book = Book(self.db)
        row = self.db.execute(
            "SELECT coalesce(max(id), 0), (SELECT coalesce(max(updated_at), 0) FROM session) FROM run"
        ).fetchone()
        self.accepted, self.stamps = row[0], Stamps(row[1])
        notices = self.db.execute("SELECT EXISTS (SELECT 1 FROM notice)").fetchone()
        self.may_hold_notices = bool(notices[0])  # anybody may look at this

    def session(self, key: SessionKey) -> SessionRow | None:
        known = self._sessions.get(key)
        if known is not None:
            self._sessions.move_to_end(key)
            return known
        row = self.db.execute(_FIND_SESSION, (str(key),)).fetchone()
        return None if row is None else self._remember(key, SessionRow(*row))

    def make_session(self, key: SessionKey, at: int) -> SessionRow:
        """Only for a key that `session` does not know."""
        stamp = self.stamps.take(at)
        made = self.db.execute(
            _MAKE_SESSION, (str(key), key.agent, key.channel, key.account, key.peer, at, stamp)
        )
        assert made.lastrowid is not None
        return self._remember(key, SessionRow(made.lastrowid, 0, 0, None, None))

    def _remember(self, key: SessionKey, session: SessionRow) -> SessionRow:
        self._sessions[key] = session
        if len(self._sessions) > _KNOWN:
            self._sessions.popitem(last=False)
        return session

    def place(self, session: SessionRow, node_id: str | None) -> int | None:
        """Where a node of this session is; None if there is none such."""
        if node_id is None:
            return None
        if node_id == session.head_id:
            return session.head
        row = self.db.execute(_FIND_NODE, (node_id,)).fetchone()
        if row is None or place_of(session.id, seq_of(row[0])) != row[0]:
            return None
        return int(row[0])


_FIND_NODE = "SELECT place FROM node WHERE id = ? AND standing < 2"
_FIND_SESSION = """
SELECT s.id, coalesce((SELECT max(r.seq) FROM run r WHERE r.session = s.id), s.last_seq > 0), s.last_seq,
       s.head, (SELECT n.id FROM node n WHERE n.place = s.head),
       (SELECT count(*) FROM (
            SELECT 1 FROM node INDEXED BY node_fork
            WHERE parent IS NOT place - 1 AND place > s.id << 32 AND place < (s.id + 1) << 32
            LIMIT 2)) > 1
FROM session s WHERE s.key = ?
"""
_MAKE_SESSION = """
INSERT INTO session (key, agent, channel, account, peer, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
