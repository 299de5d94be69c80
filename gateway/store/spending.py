"""The ledger in SQLite as it is looked at: tallies of scopes, pages of records."""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import nlargest
from typing import Any

from gateway.domain.budgets import (
    ModelSum,
    RecordPage,
    RecordQuery,
    Scope,
    Tally,
    TokenRecord,
    with_others,
)
from gateway.domain.ids import SessionKey
from gateway.store.book import latest_day, tallies_of
from gateway.store.reader import Readers
from gateway.store.rows import require_text, to_micros, to_time
from gateway.store.writer import Writer

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
    return replace(scope, name=max(scope.name, latest[: len(scope.name)]))


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
