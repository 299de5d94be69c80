"""The ledger in SQLite: what is held, what was spent, a record of every call, and how it is looked at."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from heapq import nlargest
from typing import Any

from gateway.domain.budgets import (
    Amount,
    Decide,
    Due,
    Ended,
    Grant,
    ModelSum,
    RecordPage,
    RecordQuery,
    Reservation,
    Resync,
    Scope,
    Tally,
    TokenRecord,
    day_of,
    scopes_of,
    with_others,
)
from gateway.domain.ids import SessionKey, to_micros, to_time
from gateway.store.reader import Readers
from gateway.store.rows import require_text
from gateway.store.writer import RESERVATION, Pen, Writer, latest_day, reservations, tallies_of


class SqliteLedger:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def reserve(self, wanted: Reservation, decide: Decide) -> tuple[Reservation, Grant]:
        return await self._writer.write(partial(_reserve, wanted, decide), durable=False)

    async def settle(self, ended: Ended, due: Due) -> Sequence[Tally]:
        return await self._writer.write(partial(_settle, ended, due), durable=False)

    def settle_soon(self, ended: Ended, failed: Callable[[Exception], None]) -> None:
        self._writer.write_soon(partial(_settle, ended, None), failed)

    async def resync(self, now: datetime) -> Resync:
        return await self._writer.write(partial(_resync, now), durable=True)

    async def unsettled(self) -> Sequence[Reservation]:
        await self._writer.caught_up()
        return await self._readers.read(reservations)


def _reserve(wanted: Reservation, decide: Decide, pen: Pen) -> tuple[Reservation, Grant]:
    db, book, at = pen.db, pen.book, to_micros(wanted.at)
    day = max(wanted.day, book.latest)
    key = wanted.payer.session_key
    tallies = book.tallies(scopes_of(key, day))
    grant = decide(tallies)
    held = (grant.held.tokens, grant.held.nano_usd)
    row = (wanted.id, str(key), wanted.payer.run_id, wanted.provider, wanted.model, at, day)
    db.execute(_HOLD, (*row, wanted.input_tokens, *held))
    begun = [(one.scope.kind, one.scope.name, at) for one in tallies if one.since is None]
    if begun:
        db.executemany(_BEGIN, begun)
    reservation = replace(wanted, day=day, held=grant.held)
    book.hold(reservation, tallies)
    return reservation, grant


def _settle(ended: Ended, due: Due | None, pen: Pen) -> Sequence[Tally]:
    used = ended.amount if isinstance(ended, TokenRecord) else Amount()
    taken = pen.book.take(ended.id, used)
    if taken is None:
        return ()
    pen.db.execute("DELETE FROM reservation WHERE id = ?", (ended.id,))
    if isinstance(ended, Reservation):
        return ()
    reservation, tallies = taken
    _record(ended, reservation.day, tallies, pen.db)
    return [] if due is None else [one for tally in tallies if (one := _newly_due(tally, due, pen))]


def _resync(now: datetime, pen: Pen) -> Resync:
    db, day, was = pen.db, day_of(now), pen.book.latest
    if was <= day:
        return Resync(day, was)
    month, today = day[:7], datetime.fromisoformat(f"{day}T00:00:00+00:00")
    end = to_micros(today + timedelta(days=1))
    since = {("day", day): to_micros(today), ("month", month): to_micros(today.replace(day=1))}
    for (kind, name), start in since.items():
        mistaken = (start, end, name if kind == "day" else f"{month}-99")
        counts = db.execute(_MADE_WITHIN, mistaken).fetchone()
        db.execute(_BEGIN_AGAIN, (kind, name, to_micros(now)))
        db.execute(_COUNT, (*counts, kind, name))
    records = db.execute(_REDATE, (since["month", month], end, day)).rowcount
    db.execute("DELETE FROM spend WHERE kind = 'day' AND name > ?", (day,))
    db.execute("DELETE FROM spend WHERE kind = 'month' AND name > ?", (month,))
    db.execute("UPDATE reservation SET day = ? WHERE day > ?", (day, day))
    pen.refresh()
    return Resync(day, was, records)


def _record(
    record: TokenRecord, day: str, tallies: Sequence[Tally], db: sqlite3.Connection
) -> None:
    at, tokens = to_micros(record.at), (record.input_tokens, record.output_tokens)
    spent = (1, record.pricing != "unpriced", *tokens, record.nano_usd)
    db.executemany(_COUNT, [(*spent, one.scope.kind, one.scope.name) for one in tallies])
    db.execute(_COUNT_MODEL, (f"{record.provider}/{record.model}", *spent, at))
    whose = (_series(record, db), str(record.session_key), record.run_id, day)
    more = (record.cached_tokens, record.reasoning_tokens, record.nano_usd, record.pricing)
    overran = record.outcome == "overrun"  # of the outcomes the table knows the first four
    outcome = "broken" if overran else record.outcome
    row = (record.id, at, *whose, outcome, *tokens, *more, record.estimated, overran)
    db.execute(_RECORD, row)


def _newly_due(tally: Tally, due: Due, pen: Pen) -> Tally | None:
    limit = due(tally)
    if not limit or limit == tally.warned:
        return None
    pen.db.execute(_WARN, (limit, tally.scope.kind, tally.scope.name))
    warned = replace(tally, warned=limit)
    pen.book.warn(warned)
    return warned


def _series(record: TokenRecord, db: sqlite3.Connection) -> int:
    names = (record.session_key.agent, record.provider, record.model)
    row = db.execute(_FIND_SERIES, names).fetchone()
    row = row or db.execute(_MAKE_SERIES, names).fetchone()
    return int(row[0])


_HOLD = f"INSERT INTO reservation ({RESERVATION}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_BEGIN = "INSERT INTO spend (kind, name, since) VALUES (?, ?, ?)"
_COUNT = """
UPDATE spend SET calls = calls + ?, priced = priced + ?, input_tokens = input_tokens + ?,
    output_tokens = output_tokens + ?, nano_usd = nano_usd + ?
WHERE kind = ? AND name = ?
"""
_BEGIN_AGAIN = "INSERT OR IGNORE INTO spend (kind, name, since) VALUES (?, ?, ?)"
_MADE_WITHIN = """
SELECT count(*), coalesce(sum(pricing != 'unpriced'), 0), coalesce(sum(input_tokens), 0),
    coalesce(sum(output_tokens), 0), coalesce(sum(nano_usd), 0)
FROM token_record WHERE at >= ? AND at < ? AND day > ?
"""
_REDATE = """
UPDATE token_record SET day = strftime('%Y-%m-%d', at / 1000000, 'unixepoch')
WHERE at >= ? AND at < ? AND day > ?
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
    output_tokens, cached_tokens, reasoning_tokens, nano_usd, pricing, estimated,
    overran)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

MOST_RECORDS = 1000  # a page

_Row = tuple[Any, ...]
_Term = tuple[str, tuple[object, ...]]  # a condition and its values


class SqliteSpending:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def tallies(self, scopes: Sequence[Scope]) -> Sequence[Tally]:
        await self._writer.caught_up()
        return await self._readers.read(partial(_tallies, scopes))

    async def models(self, limit: int) -> Sequence[ModelSum]:
        await self._writer.caught_up()
        return await self._readers.read(partial(_models, limit))

    async def records(self, query: RecordQuery) -> RecordPage:
        require_query(query)
        await self._writer.caught_up()
        return await self._readers.read(partial(_records, query))


def require_query(query: RecordQuery) -> None:
    require_text("the query", query.agent, query.provider, query.model)
    require_text("the query", str(query.session_key or ""))


def moved_on(scope: Scope, latest: str) -> Scope:
    """A day or month that is not before the latest one."""
    if scope.kind not in {"day", "month"}:
        return scope
    return scope._replace(name=max(scope.name, latest[: len(scope.name)]))


def page(newest: Sequence[TokenRecord], limit: int) -> RecordPage:
    """Of the newest, one more than `limit`."""
    return RecordPage(tuple(newest[:limit]), more=len(newest) > limit)


def bounded(limit: int) -> int:
    return max(0, min(limit, MOST_RECORDS))


def _tallies(scopes: Sequence[Scope], db: sqlite3.Connection) -> Sequence[Tally]:
    latest = latest_day(db)
    return tallies_of([moved_on(scope, latest) for scope in scopes], db)


def _models(limit: int, db: sqlite3.Connection) -> Sequence[ModelSum]:
    rows = db.execute(_MODELS).fetchall()
    return with_others([ModelSum(*name.split("/", 1), *sums) for name, *sums in rows], limit)


def _records(query: RecordQuery, db: sqlite3.Connection) -> RecordPage:
    limit = bounded(query.limit)
    terms = _times(query, db)
    if terms is None:
        return RecordPage((), more=False)
    rows: list[_Row] = []
    for lane in _lanes(query, db):
        given = [*terms, *lane]
        where = f"WHERE {' AND '.join(term for term, _ in given)}" if given else ""
        values = [value for _, some in given for value in some]
        rows += db.execute(f"{_PAGE} {where} {_NEWEST}", (*values, limit + 1)).fetchall()
    newest = nlargest(limit + 1, rows, key=lambda row: (row[2], row[0]))
    return page([_to_record(row) for row in newest], limit)


def _times(query: RecordQuery, db: sqlite3.Connection) -> Sequence[_Term] | None:
    """None: the record to go on from is not there."""
    terms: list[_Term] = []
    if query.since is not None:
        terms.append(("r.at >= ?", (to_micros(query.since),)))
    if query.until is not None:
        terms.append(("r.at < ?", (to_micros(query.until),)))
    if query.before is not None:
        row = db.execute("SELECT at FROM token_record WHERE seq = ?", (query.before,)).fetchone()
        if row is None:
            return None
        terms.append(("r.at <= ? AND (r.at, r.seq) < (?, ?)", (row[0], row[0], query.before)))
    return terms


def _lanes(query: RecordQuery, db: sqlite3.Connection) -> Iterator[Sequence[_Term]]:
    """Conditions that one index serves each; together they find everything once."""
    session: list[_Term] = []
    agent = query.agent
    if query.session_key is not None:
        session = [("r.session = ?", (str(query.session_key),))]
        own = str(query.session_key.agent)
        if agent not in {None, own}:
            return
        agent = own
    names = {"agent": agent, "provider": query.provider, "model": query.model}
    given = {f"{name} = ?": value for name, value in names.items() if value is not None}
    if not given:
        yield []
        return
    ids = db.execute(f"SELECT id FROM series WHERE {' AND '.join(given)}", (*given.values(),))
    for (series,) in ids.fetchall():
        yield [*session, ("r.series = ?", (series,))]


def _to_record(row: _Row) -> TokenRecord:
    seq, id_, at, session, run_id, provider, model, *rest, estimated = row
    key = SessionKey.parse(session)
    record = TokenRecord(id_, to_time(at), key, run_id, provider, model, *rest)
    return replace(record, estimated=bool(estimated), seq=seq)


_MODELS = """
SELECT name, calls, input_tokens, output_tokens, nano_usd FROM spend
WHERE kind = 'model' ORDER BY calls DESC, name
"""
_PAGE = """
SELECT r.seq, r.id, r.at, r.session, r.run_id, s.provider, s.model,
       CASE WHEN r.overran THEN 'overrun' ELSE r.outcome END, r.input_tokens, r.output_tokens, r.cached_tokens, r.reasoning_tokens, r.nano_usd, r.pricing, r.estimated
FROM token_record r CROSS JOIN series s ON s.id = r.series
"""
_NEWEST = "ORDER BY r.at DESC, r.seq DESC LIMIT ?"
