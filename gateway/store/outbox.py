"""The outbox in SQLite: answers on their way, in order within a session."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from gateway.domain.errors import Conflict, NotFound
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import NewDelivery
from gateway.domain.outbox import Delivery, DeliveryState
from gateway.store.pen import Pen
from gateway.store.reader import Readers
from gateway.store.rows import require_text, to_micros, to_time
from gateway.store.writer import Writer


class SqliteOutbox:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def due(self, *, now: datetime, limit: int) -> Sequence[Delivery]:
        """A session whose oldest open delivery is being sent, or waits, has none due."""
        return await self._readers.read(partial(_due, to_micros(now), limit))

    async def sending(self, delivery_id: str) -> None:
        """Raises Conflict if it is not pending, so that no two senders take the same one."""
        await self._writer.write(partial(_sending, delivery_id), durable=True)

    async def settle(
        self,
        delivery_id: str,
        state: DeliveryState,
        *,
        receipt: str | None = None,
        why: str | None = None,
        due_at: datetime | None = None,
    ) -> None:
        """What was sent or has failed stays so. Not fsynced: after a power loss it is found in
        `sending`, which is what `interrupted` is for."""
        require_settled(state)
        require_text("the receipt", receipt, why)
        due = None if due_at is None else to_micros(due_at)
        settle = partial(_settle, delivery_id, state, (receipt, why, due))
        await self._writer.write(settle, durable=False)

    async def interrupted(self) -> Sequence[Delivery]:
        return await self._readers.read(_interrupted)


def require_delivery(new: NewDelivery) -> None:
    """Raises TextRefused before anything is written."""
    require_text("a delivery", new.id, new.channel, new.account, new.peer, new.thread, new.text)
    require_text("a delivery", new.whence)


def add_delivery(
    new: NewDelivery,
    due: int,
    db: sqlite3.Connection,
    *,
    run: tuple[RunId, int] | None = None,
) -> None:
    """`run` that it answers, with its session; None: no turn made it."""
    whither = (new.channel, new.account, new.peer, new.thread)
    db.execute(_ADD, (new.id, *(run or (None, None)), *whither, new.text, new.whence, due))


def require_settled(state: DeliveryState) -> None:
    if state == "sending":
        raise Conflict("a delivery is not settled by sending it: call `sending`")


def _due(now: int, limit: int, db: sqlite3.Connection) -> Sequence[Delivery]:
    return [_to_delivery(row) for row in db.execute(_DUE, (now, max(0, limit))).fetchall()]


def _interrupted(db: sqlite3.Connection) -> Sequence[Delivery]:
    return [_to_delivery(row) for row in db.execute(_INTERRUPTED).fetchall()]


def _sending(delivery_id: str, pen: Pen) -> None:
    if pen.db.execute(_SENDING, (delivery_id,)).rowcount == 0:
        raise Conflict(not_pending(delivery_id, _state(delivery_id, pen.db)))


def not_pending(delivery_id: str, state: str) -> str:
    return f"delivery {delivery_id} is {state}, not pending"


def _settle(
    delivery_id: str, state: str, said: tuple[str | None, str | None, int | None], pen: Pen
) -> None:
    if pen.db.execute(_SETTLE, (state, *said, delivery_id)).rowcount == 0:
        _state(delivery_id, pen.db)  # settled for good, or not there at all


def _state(delivery_id: str, db: sqlite3.Connection) -> str:
    row = db.execute("SELECT state FROM delivery WHERE delivery_id = ?", (delivery_id,)).fetchone()
    if row is None:
        raise NotFound(f"delivery {delivery_id}")
    return str(row[0])


def _to_delivery(row: Sequence[Any]) -> Delivery:
    run_id, key, state, attempts, due_at, receipt, why = row[7:]
    new, session = NewDelivery(*row[:7]), None if key is None else SessionKey.parse(key)
    return Delivery(new, run_id, session, state, attempts, to_time(due_at), receipt, why)


_DELIVERY = """
SELECT d.delivery_id, d.channel, d.account, d.peer, d.thread, d.text, d.whence, d.run_id,
       s.key, d.state, d.attempts, d.due_at, d.receipt, d.why
FROM delivery d LEFT JOIN session s ON s.id = d.session
"""
_DUE = f"""
{_DELIVERY}
WHERE d.state = 'pending' AND d.due_at <= ?
  AND NOT EXISTS (SELECT 1 FROM delivery e WHERE e.session = d.session AND e.id < d.id
                  AND e.state IN ('pending', 'sending'))
ORDER BY d.id LIMIT ?
"""
# The first term lets the index of open deliveries serve: it is small, the table is not.
_INTERRUPTED = f"""
{_DELIVERY}
WHERE d.state IN ('pending', 'sending') AND d.state = 'sending' ORDER BY d.id
"""
_ADD = """
INSERT INTO delivery (delivery_id, run_id, session, channel, account, peer, thread, text, whence,
                      state, due_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', ?)
"""
_SENDING = """
UPDATE delivery SET state = 'sending', attempts = attempts + 1
WHERE delivery_id = ? AND state = 'pending'
"""
_SETTLE = """
UPDATE delivery
SET state = ?, receipt = coalesce(?, receipt), why = coalesce(?, why), due_at = coalesce(?, due_at)
WHERE delivery_id = ? AND state NOT IN ('sent', 'failed')
"""
