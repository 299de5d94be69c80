"""What channels keep in SQLite: memos, messages answered without a turn, and who may talk."""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from gateway.domain.channels import MOST_WAITING, ChannelMemo, Pairing, PairingState
from gateway.domain.errors import AlreadyHeard
from gateway.domain.ids import to_micros, to_time
from gateway.domain.inbox import HeardMessage, NewDelivery, NewEntry
from gateway.store.outbox import add_delivery, require_delivery
from gateway.store.reader import SqliteStore
from gateway.store.rows import require_text
from gateway.store.writer import Pen

_Who = tuple[str, str, str]


class SqlitePairings(SqliteStore):
    async def find_pairing(self, channel: str, account: str, person: str) -> Pairing | None:
        return await self._readers.read(partial(_find, (channel, account, person)))

    async def may_ask(self, asked: Pairing) -> bool:
        return await self._readers.read(partial(_may_ask, asked))

    async def decide_pairing(
        self, code_digest: str, state: PairingState, *, is_owner: bool, now: datetime
    ) -> Pairing | None:
        decide = partial(_decide, code_digest, state, is_owner, to_micros(now))
        return await self._writer.write(decide, durable=True)

    async def remove_pairing(
        self, channel: str, account: str, person: str, *, state: PairingState | None = None
    ) -> bool:
        remove = partial(_remove, (channel, account, person), state)
        return await self._writer.write(remove, durable=True)

    async def block(self, channel: str, account: str, person: str, *, now: datetime) -> Pairing:
        require_text("whoever is blocked", channel, account, person)
        block = partial(_block, (channel, account, person), to_micros(now))
        return await self._writer.write(block, durable=True)

    async def list_pairings(self, *, channel: str | None = None, limit: int) -> Sequence[Pairing]:
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


def _ask(asked: Pairing, pen: Pen) -> bool:
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


class SqliteChannels(SqliteStore):
    async def read_memos(self, channel: str, account: str) -> Sequence[ChannelMemo]:
        return await self._readers.read(partial(_read, channel, account))

    async def write_memos(self, *memos: ChannelMemo) -> None:
        require_memos(memos)
        await self._writer.write(partial(write_memos, memos), durable=True)

    async def knows(self, channel: str, account: str, platform_id: str) -> bool:
        return await self._readers.read(partial(_knows, (platform_id, channel, account)))

    async def hear(
        self,
        heard: HeardMessage,
        deliveries: Sequence[NewDelivery] = (),
        memos: Sequence[ChannelMemo] = (),
        asked: Pairing | None = None,
    ) -> bool:
        require_memos(memos)
        said = (heard.channel, heard.account, heard.platform_id)
        require_text("a channel's message", *said, heard.detail, heard.why, heard.again)
        for new in deliveries:
            require_delivery(new)
        if asked is not None:
            require_text("whoever asks", asked.channel, asked.account, asked.person, asked.name)
        hear = partial(_hear, heard, deliveries, memos, asked)
        return await self._writer.write(hear, durable=True)

    async def unread(self, channel: str | None, *, limit: int) -> Sequence[HeardMessage]:
        return await self._readers.read(partial(_unread, channel, limit))

    async def find_unread(self, platform_id: str, channel: str | None) -> Sequence[HeardMessage]:
        return await self._readers.read(partial(_find_unread, (platform_id, channel, channel)))

    async def drop_unread(self, one: HeardMessage) -> None:
        name = (one.platform_id, one.channel, one.account)
        await self._writer.write(lambda pen: pen.db.execute(_DROP_UNREAD, name), durable=True)

    async def count_unread(self) -> Mapping[str, int]:
        return await self._readers.read(lambda db: dict(db.execute(_COUNT_UNREAD).fetchall()))

    async def forget_heard(self, *, before: datetime, limit: int) -> int:
        forget = partial(_forget, to_micros(before), max(0, limit))
        return await self._writer.write(forget, durable=False)


def require_memos(memos: Sequence[ChannelMemo]) -> None:
    for memo in memos:
        require_text("what a channel keeps", memo.channel, memo.account, memo.text)


def require_unheard(entry: NewEntry, db: sqlite3.Connection) -> None:
    """Raises AlreadyHeard. For a message with a platform id that came by a channel."""
    key, id_ = entry.session_key, entry.platform_id
    if db.execute(_IS_HEARD, (id_, key.channel, key.account)).fetchone():
        raise AlreadyHeard(
            f"message {id_!r} of {key.channel}:{key.account} was answered without a turn"
        )


def write_memos(memos: Sequence[ChannelMemo], pen: Pen) -> None:
    rows = [(memo.channel, memo.account, memo.slot, memo.text) for memo in memos]
    pen.db.executemany(_WRITE_MEMO, rows)


def _read(channel: str, account: str, db: sqlite3.Connection) -> Sequence[ChannelMemo]:
    return [ChannelMemo(channel, account, *row) for row in db.execute(_READ, (channel, account))]


def _knows(name: tuple[str, str, str], db: sqlite3.Connection) -> bool:
    return any(db.execute(known, name).fetchone() for known in (_IS_HEARD, _IS_RUN))


def _hear(
    heard: HeardMessage,
    deliveries: Sequence[NewDelivery],
    memos: Sequence[ChannelMemo],
    asked: Pairing | None,
    pen: Pen,
) -> bool:
    write_memos(memos, pen)
    name = (heard.platform_id, heard.channel, heard.account)
    is_known = _knows(name, pen.db)
    if heard.outcome == "unreadable":
        is_known = is_known or pen.db.execute(_IS_THERE, name).fetchone() is not None
    if is_known or (asked is not None and not _ask(asked, pen)):
        return False
    at = to_micros(heard.at)
    pen.db.execute(_HEAR, (*name, at, heard.outcome, heard.detail, heard.why, heard.again))
    for new in deliveries:
        if pen.db.execute(_IS_DELIVERY, (new.id,)).fetchone() is None:
            add_delivery(new, at, pen.db)
    return True


def _unread(channel: str | None, limit: int, db: sqlite3.Connection) -> Sequence[HeardMessage]:
    return [_to_unread(row) for row in db.execute(_UNREAD, (channel, channel, limit))]


def _find_unread(
    name: tuple[str, str | None, str | None], db: sqlite3.Connection
) -> list[HeardMessage]:
    return [_to_unread(row) for row in db.execute(_FIND_UNREAD, name)]


def _to_unread(row: Sequence[Any]) -> HeardMessage:
    channel, account, id_, at, *told = row
    return HeardMessage(channel, account, id_, "unreadable", to_time(at), *told)


def _forget(before: int, limit: int, pen: Pen) -> int:
    return pen.db.execute(_FORGET, (before, limit)).rowcount


_READ = "SELECT slot, text FROM channel_memo WHERE channel = ? AND account = ? ORDER BY slot"
_WRITE_MEMO = """
INSERT INTO channel_memo (channel, account, slot, text) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET text = excluded.text
"""
_IS_THERE = "SELECT 1 FROM channel_heard WHERE platform_id = ? AND channel = ? AND account = ?"
# What could not be read may be taken in after all, once an operator says so.
_IS_HEARD = f"{_IS_THERE} AND outcome <> 'unreadable'"
_IS_RUN = "SELECT 1 FROM run WHERE platform_id = ? AND channel = ? AND account = ?"
_IS_DELIVERY = "SELECT 1 FROM delivery WHERE delivery_id = ?"
_HEAR = """
INSERT INTO channel_heard (platform_id, channel, account, at, outcome, detail, why, again)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET at = excluded.at, outcome = excluded.outcome, detail = excluded.detail,
    why = excluded.why, again = excluded.again
"""
_LETTER = "SELECT channel, account, platform_id, at, detail, why, again FROM channel_heard"
_UNREAD = f"""
{_LETTER} WHERE outcome = 'unreadable' AND (? IS NULL OR channel = ?) ORDER BY at DESC LIMIT ?
"""
_FIND_UNREAD = f"""
{_LETTER} WHERE outcome = 'unreadable' AND platform_id = ? AND (? IS NULL OR channel = ?)
"""
_DROP_UNREAD = """
DELETE FROM channel_heard
WHERE platform_id = ? AND channel = ? AND account = ? AND outcome = 'unreadable'
"""
_COUNT_UNREAD = """
SELECT channel, count(*) FROM channel_heard WHERE outcome = 'unreadable' GROUP BY channel
"""
_FORGET = """
DELETE FROM channel_heard WHERE (platform_id, channel, account) IN (
    SELECT platform_id, channel, account FROM channel_heard WHERE at < ? ORDER BY at LIMIT ?)
"""
