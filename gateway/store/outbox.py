"""The outbox in SQLite: deliveries, in order within a session."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic_core import to_json

from gateway.domain.errors import Conflict, NotFound
from gateway.domain.ids import RunId, SessionKey, to_micros, to_time
from gateway.domain.inbox import NewDelivery
from gateway.domain.outbox import TWICE, Delivery, DeliveryState
from gateway.store.tables import insert
from gateway.store.writer import Pen, SqliteStore, reading, writing

NO_CHANNEL = "there is no channel of this name and account any more"


def add_delivery(
    new: NewDelivery,
    due: int,
    db: sqlite3.Connection,
    *,
    run: tuple[RunId, int] | None = None,
) -> None:
    """`run`: the run that it answers, with its session; None if no run made it."""
    to = (new.channel, new.account, new.peer, new.thread)
    db.execute(_ADD, (new.id, *(run or (None, None)), *to, new.text, new.whence, "pending", due))


def _select(statement: str, values: Any, db: sqlite3.Connection) -> Sequence[Delivery]:
    return [_to_delivery(row) for row in db.execute(statement, values).fetchall()]


def _to_delivery(row: Sequence[Any]) -> Delivery:
    run_id, key, state, attempts, due_at, receipt, why, arrived, settled_at, place, safe = row[7:]
    new, session = NewDelivery(*row[:7]), None if key is None else SessionKey.parse(key)
    said = (state, attempts, to_time(due_at), receipt, why, arrived)
    settled = None if settled_at is None else to_time(settled_at)
    return Delivery(new, run_id, session, *said, settled, place, bool(safe))


def _due(db: sqlite3.Connection, channel: str, *, now: datetime, limit: int) -> Sequence[Delivery]:
    return _select(_DUE, (channel, to_micros(now), limit), db)


def _interrupted(db: sqlite3.Connection) -> Sequence[Delivery]:
    return _select(_INTERRUPTED, (), db)


def _dead_letters(
    db: sqlite3.Connection, channel: str | None, *, before: int | None, limit: int
) -> Sequence[Delivery]:
    return _select(_DEAD, {"channel": channel, "before": before, "limit": limit}, db)


def _tally(db: sqlite3.Connection) -> Mapping[tuple[str, DeliveryState], int]:
    return {(channel, state): count for channel, state, count in db.execute(_TALLY)}


def _sending(
    pen: Pen,
    delivery_id: str,
    arrived: int,
    *,
    is_safe: bool = False,
    receipt: str | None = None,
) -> None:
    part = {"id": delivery_id, "arrived": arrived, "safe": is_safe, "receipt": receipt}
    if pen.db.execute(_SENDING, part).rowcount == 0:
        _require_delivery(delivery_id, "pending", pen.db)


def _arrived(pen: Pen, delivery_id: str, arrived: int, *, receipt: str | None) -> None:
    part = {"id": delivery_id, "arrived": arrived, "receipt": receipt}
    if pen.db.execute(_ARRIVED, part).rowcount == 0:
        _require_delivery(delivery_id, "pending", pen.db)


def _require_delivery(delivery_id: str, state: str | None, db: sqlite3.Connection) -> None:
    """Raises NotFound, and Conflict where the delivery must be in a state that it is not in."""
    row = db.execute("SELECT state FROM delivery WHERE delivery_id = ?", (delivery_id,)).fetchone()
    if row is None:
        raise NotFound(f"delivery {delivery_id}")
    if state is not None:
        raise Conflict(f"delivery {delivery_id} is {row[0]}, not {state}")


def _settle(  # noqa: PLR0913  # as the port has it
    pen: Pen,
    delivery_id: str,
    state: DeliveryState,
    *,
    at: datetime,
    receipt: str | None = None,
    why: str | None = None,
    due_at: datetime | None = None,
) -> None:
    if state == "sending":
        raise Conflict("a delivery is not settled by sending it: call `sending`")
    due = None if due_at is None else to_micros(due_at)
    said = {"id": delivery_id, "state": state, "receipt": receipt, "why": why}
    if pen.db.execute(_SETTLE, {**said, "due": due, "at": to_micros(at)}).rowcount == 0:
        _require_delivery(delivery_id, None, pen.db)  # one that is settled for good stays as it is


def _strand(pen: Pen, accounts: Collection[tuple[str, str]], *, at: datetime) -> int:
    strand = (to_micros(at), NO_CHANNEL, to_json(list(accounts)).decode())
    return pen.db.execute(_STRAND, strand).rowcount


def _resubmit(pen: Pen, delivery_id: str, *, now: datetime) -> None:
    if pen.db.execute(_RESUBMIT, (to_micros(now), TWICE, TWICE, delivery_id)).rowcount == 0:
        if pen.db.execute(_IS_ERASED, (delivery_id,)).fetchone():
            raise Conflict(f"what dead letter {delivery_id} said is erased: drop it")
        raise NotFound(f"dead letter {delivery_id}")


def _drop(pen: Pen, delivery_id: str) -> None:
    if pen.db.execute(_DROP, (delivery_id,)).rowcount == 0:
        raise NotFound(f"dead letter {delivery_id}")


class SqliteOutbox(SqliteStore):
    """Implements the port Outbox."""

    due = reading(_due)
    interrupted = reading(_interrupted)
    dead_letters = reading(_dead_letters)
    tally = reading(_tally)
    sending = writing(_sending, durable=True)
    arrived = writing(_arrived, durable=False)
    settle = writing(_settle, durable=False)
    strand = writing(_strand, durable=True)
    resubmit = writing(_resubmit, durable=True)
    drop = writing(_drop, durable=True)


_DELIVERY = """
SELECT d.delivery_id, d.channel, d.account, d.peer, d.thread, d.text, d.whence, d.run_id,
       s.key, d.state, d.attempts, d.due_at, d.receipt, d.why, d.arrived, d.settled_at, d.id,
       d.is_safe
FROM delivery d LEFT JOIN session s ON s.id = d.session
"""
_DUE = f"""
{_DELIVERY}
WHERE d.state = 'pending' AND d.channel = ? AND d.due_at <= ?
  AND NOT EXISTS (SELECT 1 FROM delivery e WHERE e.session = d.session AND e.id < d.id
                  AND e.state IN ('pending', 'sending'))
ORDER BY d.id LIMIT max(0, ?)
"""
# The first term lets the index of open deliveries serve: it is small, the table is not.
_INTERRUPTED = f"""
{_DELIVERY}
WHERE d.state IN ('pending', 'sending') AND d.state = 'sending' ORDER BY d.id
"""
_ADD = insert(
    "delivery",
    "delivery_id, run_id, session, channel, account, peer, thread, text, whence, state, due_at",
)
_SENDING = """
UPDATE delivery SET state = 'sending', arrived = :arrived, is_safe = :safe, receipt = :receipt,
    attempts = CASE WHEN arrived < :arrived THEN 1 ELSE attempts + (state = 'pending') END
WHERE delivery_id = :id AND (state = 'pending' AND arrived <= :arrived
    OR state = 'sending' AND (arrived < :arrived
        OR arrived = :arrived AND receipt IS NOT NULL AND :receipt IS NULL))
"""
_ARRIVED = """
UPDATE delivery SET state = 'pending', arrived = :arrived, receipt = :receipt, attempts = 0
WHERE delivery_id = :id AND state IN ('pending', 'sending') AND arrived < :arrived
    AND why IS NOT 'erased'
"""
_SETTLE = """
UPDATE delivery
SET state = CASE WHEN why = 'erased' AND :state = 'pending' THEN 'failed' ELSE :state END,
    receipt = coalesce(:receipt, receipt), due_at = coalesce(:due, due_at),
    why = CASE WHEN why = 'erased' THEN why ELSE coalesce(:why, why) END,
    settled_at = coalesce(settled_at, :at)
WHERE delivery_id = :id AND state NOT IN ('sent', 'failed')
"""
_STRAND = """
UPDATE delivery SET state = 'failed', settled_at = coalesce(settled_at, ?),
    why = ?
WHERE state = 'pending' AND NOT EXISTS (
    SELECT 1 FROM json_each(?) k WHERE json_extract(k.value, '$[0]') = delivery.channel
    AND json_extract(k.value, '$[1]') = delivery.account)
"""
_DEAD = f"""
{_DELIVERY}
WHERE d.state IN ('unknown', 'failed') AND d.id < coalesce(:before, d.id + 1)
  AND d.channel = coalesce(:channel, d.channel)
ORDER BY d.id DESC LIMIT max(0, :limit)
"""
_IS_ERASED = """
SELECT 1 FROM delivery
WHERE delivery_id = ? AND state IN ('unknown', 'failed') AND why = 'erased'
"""
_RESUBMIT = """
UPDATE delivery SET state = 'pending', attempts = 0, due_at = ?, settled_at = NULL,
    why = CASE WHEN state = 'unknown' OR why LIKE '%' || ? THEN ? END
WHERE delivery_id = ? AND state IN ('unknown', 'failed') AND why IS NOT 'erased'
"""
_DROP = "DELETE FROM delivery WHERE delivery_id = ? AND state IN ('unknown', 'failed')"
# Two halves, so that the small indexes serve and not the whole table.
_TALLY = """
SELECT channel, state, count(*) FROM delivery
WHERE state IN ('pending', 'sending') GROUP BY channel, state
UNION ALL
SELECT channel, state, count(*) FROM delivery
WHERE state IN ('unknown', 'failed') GROUP BY channel, state
"""
