"""What an opened SQLite store needs from whoever runs it: a probe, a sweep, an end."""

from datetime import datetime
from functools import partial

from anyio import CancelScope, to_thread

from gateway.domain.ids import AgentId
from gateway.domain.ports import Clock
from gateway.store.originals import sweep_originals
from gateway.store.pen import Pen
from gateway.store.reader import Readers
from gateway.store.rows import to_micros
from gateway.store.writer import Writer


class SqliteCare:
    def __init__(self, writer: Writer, readers: Readers, clock: Clock) -> None:
        self._writer, self._readers, self._clock = writer, readers, clock

    async def probe(self) -> None:
        now = to_micros(self._clock.now())
        await self._writer.write(partial(_probe, now), durable=False)  # an fsync wears a disk

    async def sweep(self, *, before: datetime, limit: int) -> int:
        """Oldest first; gives how many runs were swept, less than `limit` when none is left."""
        sweep = partial(_sweep, to_micros(before), limit)
        return await self._writer.write(sweep, durable=False)

    async def expire(self, agent: AgentId, *, before: datetime, limit: int) -> int:
        expire = partial(_expire, agent, to_micros(before), limit)
        return await self._writer.write(expire, durable=False)

    async def close(self) -> None:
        """Writes what is waiting, refuses what comes; a second close does nothing."""
        with CancelScope(shield=True):
            self._writer.stop("the store is closed")
            self._readers.stop()
            await to_thread.run_sync(self._join)

    def _join(self) -> None:
        self._writer.join()
        self._readers.join()


def _probe(now: int, pen: Pen) -> None:
    pen.db.execute("UPDATE pulse SET probed_at = ?", (now,))


def _sweep(before: int, limit: int, pen: Pen) -> int:
    rows = pen.db.execute(_OLD, (before, max(0, limit))).fetchall()
    ids = [(run_id,) for _, run_id in rows]
    pen.db.executemany("DELETE FROM journal WHERE run_id = ?", ids)
    forget = "UPDATE run SET log = NULL, tape = NULL WHERE id = ?"
    pen.db.executemany(forget, [(row,) for row, _ in rows])
    return max(len(rows), sweep_originals(before, limit, pen))


def _expire(agent: AgentId, before: int, limit: int, pen: Pen) -> int:
    return pen.db.execute(_EXPIRE, (agent, before, max(0, limit))).rowcount


_EXPIRE = """
UPDATE session SET state = 'closed' WHERE id IN (
    SELECT id FROM session INDEXED BY session_active
    WHERE state = 'active' AND agent = ? AND updated_at < ? LIMIT ?)
"""
_OLD = """
SELECT id, run_id FROM run WHERE log IS NOT NULL AND finished_at < ? ORDER BY finished_at LIMIT ?
"""
