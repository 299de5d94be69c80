"""The ledger in SQLite: what is held, what was spent, and a record of every call."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gateway.domain.accounts import Decide, Due
from gateway.domain.budgets import (
    Amount,
    Grant,
    Payer,
    Reservation,
    Scope,
    Tally,
    TokenRecord,
    scopes_of,
)
from gateway.domain.ids import RunId, SessionKey
from gateway.store.pen import Pen
from gateway.store.reader import Readers
from gateway.store.rows import to_micros, to_time
from gateway.store.writer import Writer


class SqliteLedger:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def reserve(self, wanted: Reservation, decide: Decide) -> tuple[Reservation, Grant]:
        return await self._writer.write(partial(_reserve, wanted, decide), durable=False)

    async def settle(self, record: TokenRecord, due: Due) -> Sequence[Tally]:
        return await self._writer.write(partial(_settle, record, due), durable=False)

    async def release(self, reservation_id: str) -> None:
        await self._writer.write(partial(_release, reservation_id), durable=False)

    async def unsettled(self) -> Sequence[Reservation]:
        return await self._readers.read(_unsettled)


def _reserve(wanted: Reservation, decide: Decide, pen: Pen) -> tuple[Reservation, Grant]:
    db = pen.db
    day = max(wanted.day, latest_day(db))
    key, at = wanted.payer.session_key, to_micros(wanted.at)
    scopes = scopes_of(key, day)
    grant = decide(tallies_of(scopes, db))
    held = (grant.held.tokens, grant.held.nano_usd)
    row = (wanted.id, str(key), wanted.payer.run_id, wanted.provider, wanted.model, at, day)
    db.execute(_HOLD, (*row, wanted.input_tokens, *held))
    db.executemany(_COUNT_HELD, [(scope.kind, scope.name, *held, at) for scope in scopes])
    return replace(wanted, day=day, held=grant.held), grant


def _settle(record: TokenRecord, due: Due, pen: Pen) -> Sequence[Tally]:
    db, at = pen.db, to_micros(record.at)
    is_priced = record.pricing != "unpriced"
    spent = (1, is_priced, record.input_tokens, record.output_tokens, record.nano_usd)
    taken = _take(record.id, spent, db)
    if taken is None:
        return ()
    db.execute(_COUNT_MODEL, (f"{record.provider}/{record.model}", *spent, at))
    whose = (_series(record, db), str(record.session_key), record.run_id, taken.day)
    what = (record.outcome, record.input_tokens, record.output_tokens)
    more = (record.cached_tokens, record.reasoning_tokens, record.nano_usd, record.pricing)
    db.execute(_RECORD, (record.id, at, *whose, *what, *more, record.estimated))
    tallies = tallies_of(scopes_of(taken.payer.session_key, taken.day), db)
    return [tally for one in tallies if (tally := _newly_due(one, due, db))]


def _newly_due(tally: Tally, due: Due, db: sqlite3.Connection) -> Tally | None:
    limit = due(tally)
    if not limit or limit == tally.warned:
        return None
    db.execute(_WARN, (limit, tally.scope.kind, tally.scope.name))
    return replace(tally, warned=limit)


def _release(reservation_id: str, pen: Pen) -> None:
    _take(reservation_id, (0, 0, 0, 0, 0), pen.db)


def _take(reservation_id: str, spent: Sequence[int], db: sqlite3.Connection) -> Reservation | None:
    """Lets go of what is held, and counts what was spent instead; None if nothing is held."""
    row = db.execute(_LET_GO, (reservation_id,)).fetchone()
    if row is None:
        return None
    taken = _to_reservation(row)
    change = (*spent, taken.held.tokens, taken.held.nano_usd)
    scopes = scopes_of(taken.payer.session_key, taken.day)
    db.executemany(_COUNT_USED, [(*change, scope.kind, scope.name) for scope in scopes])
    return taken


def _unsettled(db: sqlite3.Connection) -> Sequence[Reservation]:
    rows = db.execute(f"SELECT {_RESERVATION} FROM reservation ORDER BY id").fetchall()
    return [_to_reservation(row) for row in rows]


def _to_reservation(row: Sequence[Any]) -> Reservation:
    id_, session, run_id, provider, model, at, day, input_tokens, tokens, nano_usd = row
    payer = Payer(SessionKey.parse(session), RunId(run_id))
    held = Amount(tokens, nano_usd)
    return Reservation(id_, payer, provider, model, to_time(at), day, input_tokens, held)


def _series(record: TokenRecord, db: sqlite3.Connection) -> int:
    names = (record.session_key.agent, record.provider, record.model)
    row = db.execute(_FIND_SERIES, names).fetchone()
    row = row or db.execute(_MAKE_SERIES, names).fetchone()
    return int(row[0])


def latest_day(db: sqlite3.Connection) -> str:
    """The latest that anything was reserved in: what is spent is never opened again."""
    row = db.execute("SELECT max(name) FROM spend WHERE kind = 'day'").fetchone()
    return row[0] or ""


def tallies_of(scopes: Sequence[Scope], db: sqlite3.Connection) -> Sequence[Tally]:
    """One for each, in their order."""
    query = " UNION ALL ".join([_TALLY] * len(scopes))
    names = [part for scope in scopes for part in (scope.kind, scope.name)]
    rows = {(kind, name): rest for kind, name, *rest in db.execute(query, names)} if scopes else {}
    return [_tally(scope, rows.get((scope.kind, scope.name))) for scope in scopes]


def _tally(scope: Scope, row: Sequence[Any] | None) -> Tally:
    if row is None:
        return Tally(scope)
    used, held = Amount(*row[:2]), Amount(*row[2:4])
    return Tally(scope, used, held, to_time(row[4]), row[5])


_RESERVATION = (
    "id, session, run_id, provider, model, at, day, input_tokens, held_tokens, held_nano_usd"
)
_TALLY = """
SELECT kind, name, input_tokens + output_tokens, nano_usd, held_tokens, held_nano_usd, since,
       warned
FROM spend WHERE kind = ? AND name = ?
"""
_HOLD = f"INSERT INTO reservation ({_RESERVATION}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_LET_GO = f"DELETE FROM reservation WHERE id = ? RETURNING {_RESERVATION}"
_COUNT_HELD = """
INSERT INTO spend (kind, name, held_tokens, held_nano_usd, since) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET held_tokens = held_tokens + excluded.held_tokens,
    held_nano_usd = held_nano_usd + excluded.held_nano_usd
"""
_COUNT_USED = """
UPDATE spend SET calls = calls + ?, priced = priced + ?, input_tokens = input_tokens + ?,
    output_tokens = output_tokens + ?, nano_usd = nano_usd + ?,
    held_tokens = held_tokens - ?, held_nano_usd = held_nano_usd - ?
WHERE kind = ? AND name = ?
"""
_COUNT_MODEL = """
INSERT INTO spend (kind, name, calls, priced, input_tokens, output_tokens, nano_usd, since)
VALUES ('model', ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET calls = calls + 1, priced = priced + excluded.priced,
    input_tokens = input_tokens + excluded.input_tokens,
    output_tokens = output_tokens + excluded.output_tokens, nano_usd = nano_usd + excluded.nano_usd
"""
_WARN = "UPDATE spend SET warned = ? WHERE kind = ? AND name = ?"
_FIND_SERIES = "SELECT id FROM series WHERE agent = ? AND provider = ? AND model = ?"
_MAKE_SERIES = "INSERT INTO series (agent, provider, model) VALUES (?, ?, ?) RETURNING id"
_RECORD = """
INSERT INTO token_record (id, at, series, session, run_id, day, outcome, input_tokens,
    output_tokens, cached_tokens, reasoning_tokens, nano_usd, pricing, estimated)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
