"""Who may talk in direct chats, and who waits to, in SQLite."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from gateway.domain.pairing import MOST_WAITING, Pairing, PairingState
from gateway.store.pen import Pen
from gateway.store.reader import Readers
from gateway.store.rows import require_text, to_micros, to_time
from gateway.store.writer import Writer

_Who = tuple[str, str, str]


class SqlitePairings:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def find(self, channel: str, account: str, person: str) -> Pairing | None:
        return await self._readers.read(partial(_find, (channel, account, person)))

    async def may_ask(self, asked: Pairing) -> bool:
        return await self._readers.read(partial(_may_ask, asked))

    async def decide(
        self, code_digest: str, state: PairingState, *, is_owner: bool, now: datetime
    ) -> Pairing | None:
        decide = partial(_decide, code_digest, state, is_owner, to_micros(now))
        return await self._writer.write(decide, durable=True)

    async def remove(
        self, channel: str, account: str, person: str, *, state: PairingState | None = None
    ) -> bool:
        remove = partial(_remove, (channel, account, person), state)
        return await self._writer.write(remove, durable=True)

    async def block(self, channel: str, account: str, person: str, *, now: datetime) -> Pairing:
        require_text("whoever is blocked", channel, account, person)
        block = partial(_block, (channel, account, person), to_micros(now))
        return await self._writer.write(block, durable=True)

    async def list(self, *, channel: str | None = None, limit: int) -> Sequence[Pairing]:
        return await self._readers.read(partial(_list, channel, max(0, limit)))


def _find(who: _Who, db: sqlite3.Connection) -> Pairing | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM pairing WHERE {_IS}", who).fetchone()
    return None if row is None else _to_pairing(row)


def _may_ask(asked: Pairing, db: sqlite3.Connection) -> bool:
    now = to_micros(asked.asked_at)
    known = _find((asked.channel, asked.account, asked.person), db)
    if known is not None and (known.state != "asked" or to_micros(known.expires_at) > now):
        return False
    (waiting,) = db.execute(_WAITING, (asked.channel, asked.account, now)).fetchone()
    return bool(waiting < MOST_WAITING)


def require_asked(asked: Pairing) -> None:
    require_text("whoever asks", asked.channel, asked.account, asked.person, asked.name)


def ask(asked: Pairing, pen: Pen) -> bool:
    if not _may_ask(asked, pen.db):
        return False
    at = to_micros(asked.asked_at)
    pen.db.execute("DELETE FROM pairing WHERE state = 'asked' AND expires_at <= ?", (at,))
    row = (asked.channel, asked.account, asked.person, asked.name, asked.state, asked.code_digest)
    times = (at, to_micros(asked.expires_at))
    pen.db.execute(
        f"INSERT INTO pairing ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row, *times, asked.is_owner),
    )
    return True


def _decide(digest: str, state: PairingState, is_owner: bool, now: int, pen: Pen) -> Pairing | None:  # noqa: FBT001  # as `partial` gives it
    row = pen.db.execute(_DECIDE, (state, state, is_owner, digest, now)).fetchone()
    return None if row is None else _to_pairing(row)


def _remove(who: _Who, state: PairingState | None, pen: Pen) -> bool:
    removed = pen.db.execute(
        f"DELETE FROM pairing WHERE {_IS} AND state = coalesce(?, state)", (*who, state)
    )
    return removed.rowcount > 0


def _block(who: _Who, now: int, pen: Pen) -> Pairing:
    return _to_pairing(pen.db.execute(_BLOCK, (*who, now, now)).fetchone())


def _list(channel: str | None, limit: int, db: sqlite3.Connection) -> Sequence[Pairing]:
    return [_to_pairing(row) for row in db.execute(_LIST, (channel, channel, limit)).fetchall()]


def _to_pairing(row: Sequence[Any]) -> Pairing:
    *who, name, state, digest, asked_at, expires_at, is_owner = row
    channel, account, person = who
    times = (to_time(asked_at), to_time(expires_at))
    return Pairing(channel, account, person, name, state, digest, *times, bool(is_owner))


_COLUMNS = "channel, account, person, name, state, code_digest, asked_at, expires_at, is_owner"
_IS = "channel = ? AND account = ? AND person = ?"
_WAITING = """
SELECT count(*) FROM pairing
WHERE channel = ? AND account = ? AND state = 'asked' AND expires_at > ?
"""
_DECIDE = f"""
UPDATE pairing SET state = ?, is_owner = ? = 'paired' AND (? OR NOT EXISTS (
    SELECT 1 FROM pairing other WHERE other.channel = pairing.channel
    AND other.account = pairing.account AND other.state = 'paired'))
WHERE code_digest = ? AND state = 'asked' AND expires_at > ? RETURNING {_COLUMNS}
"""
_BLOCK = f"""
INSERT INTO pairing ({_COLUMNS}) VALUES (?, ?, ?, NULL, 'denied', '', ?, ?, 0)
ON CONFLICT DO UPDATE SET state = 'denied', code_digest = '', is_owner = 0
RETURNING {_COLUMNS}
"""
_LIST = f"""
SELECT {_COLUMNS} FROM pairing WHERE channel = ? OR ? IS NULL
ORDER BY state = 'asked' DESC, asked_at DESC, channel, account, person LIMIT ?
"""
