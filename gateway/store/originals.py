"""Whole results of tools in SQLite, packed by the threads that write and read them."""

import sqlite3
import zlib
from functools import partial

from gateway.domain.ids import RunId, SessionKey
from gateway.domain.subagents import Original
from gateway.store.pen import Pen
from gateway.store.reader import Readers
from gateway.store.rows import to_micros, to_time
from gateway.store.writer import Writer

_FAST = 1  # of zlib's levels
_ANY = "surrogatepass"  # a tool may say what is no text


class SqliteOriginals:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def keep(self, original: Original) -> None:
        await self._writer.write(partial(_keep, original), durable=False)

    async def read(self, session_key: SessionKey, reference: str) -> Original | None:
        return await self._readers.read(partial(_read, session_key, reference))

    async def forget(self, session_key: SessionKey) -> None:
        await self._writer.write(partial(forget_originals, session_key), durable=False)


def forget_originals(key: SessionKey, pen: Pen) -> None:
    pen.db.execute("DELETE FROM original WHERE session = ?", (str(key),))


def sweep_originals(before: int, limit: int, pen: Pen) -> int:
    """Those that were kept before; gives how many."""
    return pen.db.execute(_SWEEP, (before, max(0, limit))).rowcount


def _keep(original: Original, pen: Pen) -> None:
    one = original
    packed = zlib.compress(one.content.encode("utf-8", _ANY), _FAST)
    at = to_micros(one.at)
    pen.db.execute(_KEEP, (one.reference, str(one.session_key), one.run_id, one.tool, packed, at))


def _read(key: SessionKey, reference: str, db: sqlite3.Connection) -> Original | None:
    row = db.execute(_READ, (reference, str(key))).fetchone()
    if row is None:
        return None
    run_id, tool, packed, at = row
    content = zlib.decompress(packed).decode("utf-8", _ANY)
    return Original(reference, key, RunId(run_id), tool, content, to_time(at))


_KEEP = """
INSERT INTO original (reference, session, run_id, tool, content, at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_READ = "SELECT run_id, tool, content, at FROM original WHERE reference = ? AND session = ?"
_SWEEP = """
DELETE FROM original WHERE id IN (SELECT id FROM original WHERE at < ? ORDER BY at LIMIT ?)
"""
