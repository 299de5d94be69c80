"""What channels keep in SQLite: memos, and which messages were answered without a turn."""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from gateway.domain.channel_events import Heard
from gateway.domain.channels import ChannelMemo
from gateway.domain.errors import AlreadyHeard
from gateway.domain.inbox import NewDelivery, NewEntry
from gateway.domain.pairing import Pairing
from gateway.store.outbox import add_delivery, require_delivery
from gateway.store.pairings import ask, require_asked
from gateway.store.pen import Pen
from gateway.store.reader import Readers
from gateway.store.rows import require_text, to_micros, to_time
from gateway.store.writer import Writer


class SqliteChannels:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def read(self, channel: str, account: str) -> Sequence[ChannelMemo]:
        return await self._readers.read(partial(_read, channel, account))

    async def write(self, *memos: ChannelMemo) -> None:
        require_memos(memos)
        await self._writer.write(partial(write_memos, memos), durable=True)

    async def knows(self, channel: str, account: str, platform_id: str) -> bool:
        return await self._readers.read(partial(_knows, (platform_id, channel, account)))

    async def hear(
        self,
        heard: Heard,
        deliveries: Sequence[NewDelivery] = (),
        memos: Sequence[ChannelMemo] = (),
        asked: Pairing | None = None,
    ) -> bool:
        require_heard(heard, deliveries, memos, asked)
        hear = partial(_hear, heard, deliveries, memos, asked)
        return await self._writer.write(hear, durable=True)

    async def unread(self, channel: str | None, *, limit: int) -> Sequence[Heard]:
        return await self._readers.read(partial(_unread, channel, limit))

    async def find_unread(self, platform_id: str, channel: str | None) -> Sequence[Heard]:
        return await self._readers.read(partial(_find_unread, (platform_id, channel, channel)))

    async def drop_unread(self, one: Heard) -> None:
        name = (one.platform_id, one.channel, one.account)
        await self._writer.write(lambda pen: pen.db.execute(_DROP_UNREAD, name), durable=True)

    async def count_unread(self) -> Mapping[str, int]:
        return await self._readers.read(lambda db: dict(db.execute(_COUNT_UNREAD).fetchall()))

    async def forget(self, *, before: datetime, limit: int) -> int:
        forget = partial(_forget, to_micros(before), max(0, limit))
        return await self._writer.write(forget, durable=False)


def require_memos(memos: Sequence[ChannelMemo]) -> None:
    for memo in memos:
        require_text("what a channel keeps", memo.channel, memo.account, memo.text)


def require_heard(
    heard: Heard,
    deliveries: Sequence[NewDelivery],
    memos: Sequence[ChannelMemo],
    asked: Pairing | None,
) -> None:
    if asked is not None:
        require_asked(asked)
    require_text("a channel's message", heard.channel, heard.account, heard.platform_id)
    require_text("a channel's message", heard.detail, heard.why, heard.again)
    for new in deliveries:
        require_delivery(new)
    require_memos(memos)


def already_heard(entry: NewEntry) -> AlreadyHeard:
    key = entry.session_key
    return AlreadyHeard(
        f"message {entry.platform_id!r} of {key.channel}:{key.account} was answered without a turn"
    )


def require_unheard(entry: NewEntry, db: sqlite3.Connection) -> None:
    """Raises AlreadyHeard; only what came by a channel can have been."""
    if entry.whence is None or entry.platform_id is None:
        return
    key = entry.session_key
    if db.execute(_IS_HEARD, (entry.platform_id, key.channel, key.account)).fetchone():
        raise already_heard(entry)


def write_memos(memos: Sequence[ChannelMemo], pen: Pen) -> None:
    rows = [(memo.channel, memo.account, memo.slot, memo.text) for memo in memos]
    pen.db.executemany(_WRITE_MEMO, rows)


def _read(channel: str, account: str, db: sqlite3.Connection) -> Sequence[ChannelMemo]:
    return [ChannelMemo(channel, account, *row) for row in db.execute(_READ, (channel, account))]


def _knows(name: tuple[str, str, str], db: sqlite3.Connection) -> bool:
    return any(db.execute(known, name).fetchone() for known in (_IS_HEARD, _IS_RUN))


def _hear(
    heard: Heard,
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
    if is_known or (asked is not None and not ask(asked, pen)):
        return False
    at = to_micros(heard.at)
    pen.db.execute(_HEAR, (*name, at, heard.outcome, heard.detail, heard.why, heard.again))
    for new in deliveries:
        if pen.db.execute(_IS_DELIVERY, (new.id,)).fetchone() is None:
            add_delivery(new, at, pen.db)
    return True


def _unread(channel: str | None, limit: int, db: sqlite3.Connection) -> Sequence[Heard]:
    return [_to_unread(row) for row in db.execute(_UNREAD, (channel, channel, limit))]


def _find_unread(name: tuple[str, str | None, str | None], db: sqlite3.Connection) -> list[Heard]:
    return [_to_unread(row) for row in db.execute(_FIND_UNREAD, name)]


def _to_unread(row: Sequence[Any]) -> Heard:
    channel, account, id_, at, *told = row
    return Heard(channel, account, id_, "unreadable", to_time(at), *told)


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
