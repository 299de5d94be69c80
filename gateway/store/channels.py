"""What channels keep in SQLite: memos, messages answered without a turn, and who may talk."""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gateway.domain.channels import MOST_WAITING, ChannelMemo, Pairing, PairingState
from gateway.domain.errors import AlreadyHeard
from gateway.domain.ids import to_micros, to_time
from gateway.domain.inbox import HeardMessage, NewDelivery, NewEntry
from gateway.store.outbox import add_delivery
from gateway.store.tables import insert, where
from gateway.store.writer import Pen, SqliteStore, reading, writing


# --- who may talk --------------------------------------------------------------------------------
def _find_pairing(
    db: sqlite3.Connection, channel: str, account: str, person: str
) -> Pairing | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM pairing WHERE {_IS}", (channel, account, person))
    return _to_pairing(row.fetchone())


def _may_ask(db: sqlite3.Connection, asked: Pairing) -> bool:
    known = _find_pairing(db, asked.channel, asked.account, asked.person)
    if known is not None and (known.state != "asked" or known.expires_at > asked.asked_at):
        return False
    where = (asked.channel, asked.account, to_micros(asked.asked_at))
    return bool(db.execute(_WAITING, where).fetchone()[0] < MOST_WAITING)


def _ask(asked: Pairing, db: sqlite3.Connection) -> bool:
    if not _may_ask(db, asked):
        return False
    at = to_micros(asked.asked_at)
    db.execute("DELETE FROM pairing WHERE state = 'asked' AND expires_at <= ?", (at,))
    row = (asked.channel, asked.account, asked.person, asked.name, asked.state, asked.code_digest)
    db.execute(_ASK, (*row, at, to_micros(asked.expires_at), asked.is_owner))
    return True


def _decide_pairing(
    pen: Pen, code_digest: str, state: PairingState, *, is_owner: bool, now: datetime
) -> Pairing | None:
    values = (state, state, is_owner, code_digest, to_micros(now))
    return _to_pairing(pen.db.execute(_DECIDE, values).fetchone())


def _remove_pairing(
    pen: Pen, channel: str, account: str, person: str, *, state: PairingState | None = None
) -> bool:
    remove = f"DELETE FROM pairing WHERE {_IS} AND state = coalesce(?, state)"
    return pen.db.execute(remove, (channel, account, person, state)).rowcount > 0


def _block(pen: Pen, channel: str, account: str, person: str, *, now: datetime) -> Pairing:
    at = to_micros(now)
    blocked = _to_pairing(pen.db.execute(_BLOCK, (channel, account, person, at, at)).fetchone())
    assert blocked is not None
    return blocked


def _list_pairings(
    db: sqlite3.Connection, *, channel: str | None = None, limit: int
) -> Sequence[Pairing]:
    rows = db.execute(_LIST, (channel, channel, limit)).fetchall()
    return [one for one in map(_to_pairing, rows) if one is not None]


def _to_pairing(row: Sequence[Any] | None) -> Pairing | None:
    if row is None:
        return None
    channel, account, person, name, state, digest, asked_at, expires_at, is_owner = row
    times = (to_time(asked_at), to_time(expires_at))
    return Pairing(channel, account, person, name, state, digest, *times, bool(is_owner))


_COLUMNS = "channel, account, person, name, state, code_digest, asked_at, expires_at, is_owner"
_IS = "channel = ? AND account = ? AND person = ?"
_ASK = insert("pairing", _COLUMNS)
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
ORDER BY state = 'asked' DESC, asked_at DESC, channel, account, person LIMIT max(0, ?)
"""


# --- what was heard, and what is kept for the next call ------------------------------------------
def _read_memos(db: sqlite3.Connection, channel: str, account: str) -> Sequence[ChannelMemo]:
    return [ChannelMemo(channel, account, *row) for row in db.execute(_READ, (channel, account))]


def write_memos(pen: Pen, *memos: ChannelMemo) -> None:
    rows = [(memo.channel, memo.account, memo.slot, memo.text) for memo in memos]
    pen.db.executemany(_WRITE_MEMO, rows)


def require_unheard(entry: NewEntry, db: sqlite3.Connection) -> None:
    """Raises AlreadyHeard. For a message that came by a channel."""
    key, id_ = entry.session_key, entry.platform_id
    if db.execute(_IS_HEARD, (id_, key.channel, key.account)).fetchone():
        raise AlreadyHeard(
            f"message {id_!r} of {key.channel}:{key.account} was answered without a turn"
        )


def _knows(db: sqlite3.Connection, channel: str, account: str, platform_id: str) -> bool:
    name = (platform_id, channel, account)
    return any(db.execute(known, name).fetchone() for known in (_IS_HEARD, _IS_RUN))


def _hear(
    pen: Pen,
    heard: HeardMessage,
    deliveries: Sequence[NewDelivery] = (),
    memos: Sequence[ChannelMemo] = (),
    asked: Pairing | None = None,
) -> bool:
    write_memos(pen, *memos)
    is_known = _knows(pen.db, heard.channel, heard.account, heard.platform_id)
    name = (heard.platform_id, heard.channel, heard.account)
    if heard.outcome == "unreadable":
        is_known = is_known or pen.db.execute(_IS_THERE, name).fetchone() is not None
    if is_known or (asked is not None and not _ask(asked, pen.db)):
        return False
    at = to_micros(heard.at)
    pen.db.execute(_HEAR, (*name, at, heard.outcome, heard.detail, heard.why, heard.again))
    for new in deliveries:
        if pen.db.execute(_IS_DELIVERY, (new.id,)).fetchone() is None:
            add_delivery(new, at, pen.db)
    return True


def _unread(
    db: sqlite3.Connection, channel: str | None, *, platform_id: str | None = None, limit: int
) -> Sequence[HeardMessage]:
    terms = {"outcome = ?": "unreadable", "channel = ?": channel, "platform_id = ?": platform_id}
    condition, values = where(terms)
    rows = db.execute(f"{_LETTER} {condition} ORDER BY at DESC LIMIT ?", (*values, limit))
    return [
        HeardMessage(channel, account, id_, "unreadable", to_time(at), *told)
        for channel, account, id_, at, *told in rows
    ]


def _drop_unread(pen: Pen, one: HeardMessage) -> None:
    pen.db.execute(_DROP_UNREAD, (one.platform_id, one.channel, one.account))


def _count_unread(db: sqlite3.Connection) -> Mapping[str, int]:
    return dict(db.execute(_COUNT_UNREAD).fetchall())


def _forget_heard(pen: Pen, *, before: datetime, limit: int) -> int:
    return pen.db.execute(_FORGET, (to_micros(before), limit)).rowcount


class SqliteChannels(SqliteStore):
    """Implements the port ChannelStore."""

    knows = reading(_knows)
    hear = writing(_hear, durable=True)
    unread = reading(_unread)
    drop_unread = writing(_drop_unread, durable=True)
    count_unread = reading(_count_unread)
    forget_heard = writing(_forget_heard, durable=False)
    read_memos = reading(_read_memos)
    write_memos = writing(write_memos, durable=True)
    find_pairing = reading(_find_pairing)
    may_ask = reading(_may_ask)
    decide_pairing = writing(_decide_pairing, durable=True)
    remove_pairing = writing(_remove_pairing, durable=True)
    block = writing(_block, durable=True)
    list_pairings = reading(_list_pairings)


_READ = "SELECT slot, text FROM channel_memo WHERE channel = ? AND account = ? ORDER BY slot"
_WRITE_MEMO = insert("channel_memo", "channel, account, slot", "text")
_IS_THERE = "SELECT 1 FROM channel_heard WHERE platform_id = ? AND channel = ? AND account = ?"
# What could not be read may be taken in after all, once an operator says so.
_IS_HEARD = f"{_IS_THERE} AND outcome <> 'unreadable'"
_IS_RUN = "SELECT 1 FROM run WHERE platform_id = ? AND channel = ? AND account = ?"
_IS_DELIVERY = "SELECT 1 FROM delivery WHERE delivery_id = ?"
_HEAR = insert("channel_heard", "platform_id, channel, account", "at, outcome, detail, why, again")
_LETTER = "SELECT channel, account, platform_id, at, detail, why, again FROM channel_heard"
_DROP_UNREAD = """
DELETE FROM channel_heard
WHERE platform_id = ? AND channel = ? AND account = ? AND outcome = 'unreadable'
"""
_COUNT_UNREAD = """
SELECT channel, count(*) FROM channel_heard WHERE outcome = 'unreadable' GROUP BY channel
"""
_FORGET = """
DELETE FROM channel_heard WHERE (platform_id, channel, account) IN (
    SELECT platform_id, channel, account FROM channel_heard WHERE at < ? ORDER BY at LIMIT max(0, ?))
"""
