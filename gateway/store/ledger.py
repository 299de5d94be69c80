"""The ledger in SQLite: what is held, what was spent, a record of every call, and how it is looked at."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from heapq import nlargest
from operator import attrgetter
from typing import Any

import anyio

from gateway.domain.budgets import (
    SCOPE_KINDS,
    Amount,
    BudgetExceeded,
    Decide,
    Due,
    Ended,
    Grant,
    ModelSum,
    Payer,
    RecordPage,
    RecordQuery,
    Reservation,
    Resync,
    Scope,
    ScopeKind,
    Tally,
    TokenRecord,
    day_of,
    scopes_of,
    with_others,
)
from gateway.domain.errors import GatewayError
from gateway.domain.ids import EPOCH, MICROSECOND, RunId, SessionKey, to_micros, to_time
from gateway.store.tables import insert, where
from gateway.store.writer import Operation, Pen, Readers, SqliteStore, Writer

log = logging.getLogger(__name__)

NOTHING = Amount()
TEND_S = 0.25  # between two looks at slices and open calls
MOST_UNUSED = 6  # looks; then a slice that no call used is given back
_KNOWN = 4096  # scopes; about 0.5 kB each


@dataclass(slots=True)
class _Account:
    """A scope that has a limit, with what is not committed yet."""

    scope: Scope
    held: Amount  # for open calls
    aside: Amount  # slices, whether calls are held in them or not
    used: Amount = NOTHING
    warned: str = ""
    known: anyio.Event = field(default_factory=anyio.Event)  # what was used before is counted too

    def tally(self) -> Tally:
        return Tally(self.scope, self.used, self.held, None, self.warned)


@dataclass(slots=True, eq=False)
class _Slice:
    """A part of what its scopes have left, in the table as `row`: calls are granted out of it."""

    row: Reservation
    amount: Amount = NOTHING  # what the table has, or will have once it caught up
    held: Amount = NOTHING  # of this, for open calls
    growing: int = 0  # commits that calls wait for
    unused: int = 0  # looks since a call used it


_Spent = tuple[Amount, datetime | None, str]  # used, since when, the limit that was warned about
_Saved = tuple[Reservation, Amount | None]  # a row and what is left of its slice; None: it goes


class SqliteLedger(SqliteStore):
    """Implements the port Ledger. Grants calls in memory, out of slices that are committed.

    What is used and what is set aside never exceed a limit together, at no commit: so a process that
    dies and is charged with its slices leaves no limit exceeded. A slice belongs to one session on
    one day. It lasts until no call used it for a while, or until others need the room. A call that
    begins without a slice gets a row if it lasts, so that the next process knows of it.
    """

    def __init__(self, writer: Writer, readers: Readers, pen: Pen) -> None:
        super().__init__(writer, readers, pen)
        self._open = {one.id: one for one in map(_to_reservation, pen.unsettled)}
        self.latest = max([pen.last_day, *(one.day for one in self._open.values())])
        self._slices = {one.id: _Slice(one, one.held, one.held) for one in self._open.values()}
        self._kept: dict[tuple[SessionKey, str], _Slice] = {}
        self._accounts: dict[Scope, _Account] = {}
        self._timer: asyncio.TimerHandle | None = None

    # --- a call begins --------------------------------------------------------------------------
    def begin(self, wanted: Reservation) -> Reservation:
        if wanted.day < self.latest:
            wanted = replace(wanted, day=self.latest)
        self._hold(wanted)
        if self._accounts:
            for account in self._accounts_of(wanted):
                account.aside += wanted.held
        return wanted

    async def reserve(
        self, wanted: Reservation, decide: Decide, kinds: Collection[ScopeKind] = SCOPE_KINDS
    ) -> tuple[Reservation, Grant]:
        while True:
            day = max(wanted.day, self.latest)
            scopes = [one for one in scopes_of(wanted.payer.session_key, day) if one.kind in kinds]
            accounts = [self._accounts[scope] for scope in scopes if scope in self._accounts]
            known = [one for one in accounts if one.known.is_set()]
            if len(known) == len(scopes):
                break
            await self._load_accounts(scopes)
        grant = decide([one.tally() for one in known])
        call = replace(wanted, day=day, held=grant.held)
        self._hold(call)
        part = self._kept.setdefault((call.payer.session_key, day), _Slice(call))
        part.held, part.unused = part.held + call.held, 0
        self._slices[call.id] = part
        is_covered = not part.growing and part.held.beyond(part.amount) == NOTHING
        try:
            if not is_covered:
                await self._cover(part, call, decide, known)
                is_covered = True
        finally:
            if not is_covered:
                del self._open[call.id]
                self._charge(call, call)
        return call, grant

    def _hold(self, call: Reservation) -> None:
        self._open[call.id] = call
        self.latest = call.day
        if self._accounts:
            for account in self._accounts_of(call):
                account.held += call.held
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TEND_S, self.tend)

    def _accounts_of(self, call: Reservation) -> list[_Account]:
        """Those that are in memory."""
        known = self._accounts
        scopes = scopes_of(call.payer.session_key, call.day)
        return [known[scope] for scope in scopes if scope in known]

    async def _load_accounts(self, scopes: Sequence[Scope]) -> None:
        """Reads what was used in scopes that are not in memory. Calls go on meanwhile: what they hold
        and use is added."""
        new = {
            scope: _Account(scope, self.held(scope).held, self._aside_in(scope))
            for scope in scopes
            if scope not in self._accounts
        }
        if not new:  # another call reads them
            for account in [self._accounts[scope] for scope in scopes]:
                await account.known.wait()
            return
        self._accounts |= new
        try:
            found = await self._writer.write(lambda pen: _spent(new, pen.db), durable=False)
            for account, (used, _, warned) in zip(new.values(), found, strict=True):
                account.used, account.warned = account.used + used, warned
                account.known.set()
        finally:
            for account in new.values():
                if not account.known.is_set() and self._accounts.get(account.scope) is account:
                    del self._accounts[account.scope]
                account.known.set()
        while len(self._accounts) > _KNOWN:
            del self._accounts[next(iter(self._accounts))]

    def held(self, scope: Scope) -> Tally:
        """What is held in a scope, and since when; nothing of what was used."""
        calls = [one for one in self._open.values() if _is_in(scope, one)]
        since = min((one.at for one in calls), default=None)
        return Tally(scope, held=sum((one.held for one in calls), NOTHING), since=since)

    def _aside_in(self, scope: Scope) -> Amount:
        parts = {id(one): one for one in [*self._kept.values(), *self._slices.values()]}
        aside = sum((one.amount for one in parts.values() if _is_in(scope, one.row)), NOTHING)
        bare = (one for one in self._open.values() if one.id not in self._slices)
        return sum((one.held for one in bare if _is_in(scope, one)), aside)

    # --- slices ---------------------------------------------------------------------------------
    async def _cover(
        self, part: _Slice, call: Reservation, decide: Decide, accounts: Sequence[_Account]
    ) -> None:
        """Commits a slice that is large enough. It is made larger than needed, for the next calls, if
        that leaves no limit exceeded; else what others do not need is given back."""
        need, spare = part.held.beyond(part.amount), dict[_Slice, Amount]()
        if accounts and _fits(decide, accounts, call, need + call.held):
            need += call.held
        elif not _fits(decide, accounts, call, need):
            spare = self._spare_besides(part)
        for other in spare:
            self._resize(other, other.held)
        self._resize(part, part.amount + need)
        part.growing += 1
        rows = [(one.row, one.amount) for one in (*spare, part)]
        try:
            await self._writer.write(partial(_save, rows), durable=False)
        except GatewayError:
            self._resize(part, part.amount.beyond(need))
            for other, amount in spare.items():
                if self._kept.get(_slot(other.row)) is other:
                    self._resize(other, other.amount + amount)
            raise
        finally:
            part.growing -= 1

    def _spare_besides(self, part: _Slice) -> dict[_Slice, Amount]:
        """What no call holds of the other slices."""
        others = [one for one in self._kept.values() if one is not part]
        return {one: one.amount - one.held for one in others if one.amount != one.held}

    def _resize(self, part: _Slice, amount: Amount) -> None:
        more, part.amount = amount - part.amount, amount
        for account in self._accounts_of(part.row):
            account.aside += more

    def tend(self) -> None:
        """Gives back slices that no call used for a while, and writes down calls that last."""
        self._timer, rows = None, list[_Saved]()
        for slot, part in list(self._kept.items()):
            part.unused += part.held == NOTHING
            if part.unused > MOST_UNUSED:
                del self._kept[slot]
                self._resize(part, NOTHING)
                rows.append((part.row, None))
        for call in self._open.values():
            if call.id not in self._slices:
                self._slices[call.id] = _Slice(call, call.held, call.held)
                rows.append((call, call.held))
        if rows:
            self._writer.write_soon(partial(_save, rows), _not_saved)
        if self._kept or self._open:
            self._timer = asyncio.get_running_loop().call_later(TEND_S, self.tend)

    def close(self) -> None:
        """Gives back all that no call holds; to be called before the writer stops."""
        if self._timer is not None:
            self._timer.cancel()
        save = partial(_save_exactly, list(self._open.values()))
        self._writer.write_soon(save, _not_saved)

    # --- a call ends ----------------------------------------------------------------------------
    def settle_soon(
        self, ended: Ended, failed: Callable[[Exception], None], due: Due | None = None
    ) -> Sequence[Tally]:
        call = self._open.pop(ended.id, None)
        if call is None:
            return ()
        rows, accounts = self._charge(call, ended)
        warnings: list[Tally] = []
        if due is not None:
            for account in accounts:
                if (limit := due(account.tally())) not in {"", account.warned}:
                    account.warned = limit
                    warnings.append(account.tally())
        if isinstance(ended, TokenRecord):
            operation: Operation[None] = partial(_record, ended, call, rows, warnings)
        elif rows:
            operation = partial(_save, rows)
        else:
            return warnings
        self._writer.write_soon(operation, partial(self._not_written, call, failed))
        return warnings

    async def settle(self, ended: Ended) -> None:
        failures: list[Exception] = []
        self.settle_soon(ended, failures.append)
        await self._writer.caught_up()
        if failures:
            raise failures[0]

    def _charge(self, call: Reservation, ended: Ended) -> tuple[list[_Saved], list[_Account]]:
        """Uses what a call came to, in memory: the rows that change, and its accounts."""
        part, rows = self._slices.pop(call.id, None), list[_Saved]()
        if part is None and not self._accounts:
            return rows, []
        used, accounts = ended.amount, self._accounts_of(call)
        for account in accounts:
            account.held -= call.held
            account.used += used
            if part is None:
                account.aside -= call.held
        if part is not None:
            part.held -= call.held
            is_kept = self._kept.get(_slot(part.row)) is part
            left = part.held + (part.amount - used).beyond(part.held) if is_kept else part.held
            if left != part.amount or not is_kept:
                self._resize(part, left)
                rows.append((part.row, None if left == NOTHING else left))
        return rows, accounts

    def _not_written(
        self, call: Reservation, failed: Callable[[Exception], None], error: Exception
    ) -> None:
        """It is held again; what its scopes have used is read anew."""
        self._open[call.id] = call
        for scope in scopes_of(call.payer.session_key, call.day):
            self._accounts.pop(scope, None)
        failed(error)

    async def resync(self, now: datetime) -> Resync:
        day, was = day_of(now), self.latest
        if was <= day:
            return Resync(day, was)
        self.latest = day
        self._accounts.clear()
        self._open = {
            id_: replace(one, day=day) if one.day > day else one for id_, one in self._open.items()
        }
        # Nothing more is granted out of slices of the day that is left.
        idle = [(one.row, None) for one in self._kept.values() if one.held == NOTHING]
        self._kept.clear()
        for part in self._slices.values():
            part.row = replace(part.row, day=min(part.row.day, day))
        try:
            return await self._writer.write(partial(_resync, day, was, now, idle), durable=True)
        except GatewayError:
            self.latest = was
            raise

    async def unsettled(self) -> Sequence[Reservation]:
        return sorted(self._open.values(), key=attrgetter("id"))

    async def tallies(self, scopes: Sequence[Scope]) -> Sequence[Tally]:
        await self._writer.caught_up()
        # A day or month that is not before the latest one.
        moved = [
            scope._replace(name=max(scope.name, self.latest[: len(scope.name)]))
            if scope.kind in {"day", "month"}
            else scope
            for scope in scopes
        ]
        held = [self.held(scope) for scope in moved]
        found = await self._readers.read(partial(_spent, moved))
        return [
            replace(one, used=used, since=since or one.since, warned=warned)
            for one, (used, since, warned) in zip(held, found, strict=True)
        ]

    async def models(self, limit: int) -> Sequence[ModelSum]:
        await self._writer.caught_up()
        rows = await self._readers.read(lambda db: db.execute(_MODELS).fetchall())
        return with_others([ModelSum(*name.split("/", 1), *sums) for name, *sums in rows], limit)

    async def records(self, query: RecordQuery) -> RecordPage:
        await self._writer.caught_up()
        return await self._readers.read(partial(_records, query))


def _slot(row: Reservation) -> tuple[SessionKey, str]:
    return row.payer.session_key, row.day


def _is_in(scope: Scope, call: Reservation) -> bool:
    return scope in scopes_of(call.payer.session_key, call.day)


def _fits(decide: Decide, accounts: Sequence[_Account], call: Reservation, more: Amount) -> bool:
    """Whether no limit is exceeded by all that is used and set aside, with so much more."""
    tallies = [
        Tally(one.scope, one.used, one.aside + more - call.held, None, one.warned)
        for one in accounts
    ]
    try:
        decide(tallies)
    except BudgetExceeded:
        return False
    return True


def _not_saved(error: Exception) -> None:
    log.warning("budget_slices_not_saved", extra={"why": str(error)})


# --- what is written ----------------------------------------------------------------------------
def _spent(scopes: Iterable[Scope], db: sqlite3.Connection) -> list[_Spent]:
    rows = [db.execute(_SPENT, scope).fetchone() for scope in scopes]
    unused: _Spent = (NOTHING, None, "")
    return [(Amount(*row[:2]), to_time(row[2]), row[3]) if row else unused for row in rows]


def _save(rows: Sequence[_Saved], pen: Pen) -> None:
    for row, left in rows:
        if left is None:
            pen.db.execute("DELETE FROM reservation WHERE id = ?", (row.id,))
            continue
        key, at = row.payer.session_key, to_micros(row.at)
        what = (row.id, str(key), row.payer.run_id, row.provider, row.model, at, row.day)
        pen.db.execute(_HOLD, (*what, row.input_tokens, left.tokens, left.nano_usd))
        pen.db.execute(_BEGIN, ("day", row.day, at))


def _save_exactly(calls: Sequence[Reservation], pen: Pen) -> None:
    pen.db.execute("DELETE FROM reservation")
    _save([(one, one.held) for one in calls], pen)


def _record(
    record: TokenRecord,
    call: Reservation,
    rows: Sequence[_Saved],
    warned: Sequence[Tally],
    pen: Pen,
) -> None:
    db, key, day = pen.db, str(record.session_key), call.day
    at, since = (record.at - EPOCH) // MICROSECOND, (call.at - EPOCH) // MICROSECOND
    tokens, more = (record.input_tokens, record.output_tokens), (record.nano_usd, since)
    names = (record.session_key.agent, record.provider, record.model)
    model = f"{record.provider}/{record.model}"
    whose = (key, names[0], day, day[:7], model)
    db.execute(_COUNT, (*whose, record.pricing != "unpriced", *tokens, *more))
    series = pen.series.get(names)
    if series is None:
        db.execute(_MAKE_SERIES, names)
        (series,) = db.execute(_FIND_SERIES, names).fetchone()
        pen.series[names] = series
    is_overrun = record.outcome == "overrun"  # of the outcomes the table knows the first four
    outcome = "broken" if is_overrun else record.outcome
    row = (record.id, at, series, key, record.run_id, day, outcome, *tokens)
    kept = (record.cached_tokens, record.reasoning_tokens, record.nano_usd, record.pricing)
    db.execute(_RECORD, (*row, *kept, record.estimated, is_overrun))
    if rows:
        _save(rows, pen)
    for tally in warned:
        db.execute(_WARN, (tally.warned, *tally.scope))


def _resync(day: str, was: str, now: datetime, idle: Sequence[_Saved], pen: Pen) -> Resync:
    db = pen.db
    _save(idle, pen)
    month, today = day[:7], datetime.fromisoformat(f"{day}T00:00:00+00:00")
    end = to_micros(today + timedelta(days=1))
    since = {("day", day): to_micros(today), ("month", month): to_micros(today.replace(day=1))}
    for (kind, name), start in since.items():
        mistaken = (start, end, name if kind == "day" else f"{month}-99")
        counts = db.execute(_MADE_WITHIN, mistaken).fetchone()
        db.execute(_BEGIN, (kind, name, to_micros(now)))
        db.execute(_COUNT_AGAIN, (*counts, kind, name))
    records = db.execute(_REDATE, (since["month", month], end, day)).rowcount
    db.execute("DELETE FROM spend WHERE kind = 'day' AND name > ?", (day,))
    db.execute("DELETE FROM spend WHERE kind = 'month' AND name > ?", (month,))
    db.execute("UPDATE reservation SET day = ? WHERE day > ?", (day, day))
    return Resync(day, was, records)


def _to_reservation(row: Sequence[Any]) -> Reservation:
    id_, session, run_id, provider, model, at, day, input_tokens, tokens, nano_usd = row
    payer = Payer(SessionKey.parse(session), RunId(run_id))
    held = Amount(tokens, nano_usd)
    return Reservation(id_, payer, provider, model, to_time(at), day, input_tokens, held)


_COUNTED = enumerate(("session", "agent", "day", "month", "model"), 1)
_HOLD = insert(
    "reservation",
    "id, session, run_id, provider, model, at, day, input_tokens",
    "held_tokens, held_nano_usd",
)
_SPENT = """
SELECT input_tokens + output_tokens, nano_usd, since, warned FROM spend
WHERE kind = ? AND name = ?
"""
_BEGIN = "INSERT OR IGNORE INTO spend (kind, name, since) VALUES (?, ?, ?)"
# In one statement: each hands the interpreter's lock over and back.
_COUNT = f"""
INSERT INTO spend (kind, name, calls, priced, input_tokens, output_tokens, nano_usd, since)
VALUES {", ".join(f"('{kind}', ?{place}, 1, ?6, ?7, ?8, ?9, ?10)" for place, kind in _COUNTED)}
ON CONFLICT (kind, name) DO UPDATE SET calls = calls + 1, priced = priced + excluded.priced,
    input_tokens = input_tokens + excluded.input_tokens,
    output_tokens = output_tokens + excluded.output_tokens, nano_usd = nano_usd + excluded.nano_usd
"""
_COUNT_AGAIN = """
UPDATE spend SET calls = calls + ?, priced = priced + ?, input_tokens = input_tokens + ?,
    output_tokens = output_tokens + ?, nano_usd = nano_usd + ?
WHERE kind = ? AND name = ?
"""
_MADE_WITHIN = """
SELECT count(*), coalesce(sum(pricing != 'unpriced'), 0), coalesce(sum(input_tokens), 0),
    coalesce(sum(output_tokens), 0), coalesce(sum(nano_usd), 0)
FROM token_record WHERE at >= ? AND at < ? AND day > ?
"""
_REDATE = """
UPDATE token_record SET day = strftime('%Y-%m-%d', at / 1000000, 'unixepoch')
WHERE at >= ? AND at < ? AND day > ?
"""
_WARN = "UPDATE spend SET warned = ? WHERE kind = ? AND name = ?"
_FIND_SERIES = "SELECT id FROM series WHERE agent = ? AND provider = ? AND model = ?"
_MAKE_SERIES = "INSERT OR IGNORE INTO series (agent, provider, model) VALUES (?, ?, ?)"
_RECORD = insert(
    "token_record",
    "id, at, series, session, run_id, day, outcome, input_tokens, output_tokens, cached_tokens, "
    "reasoning_tokens, nano_usd, pricing, estimated, overran",
)


# --- what is looked up ---------------------------------------------------------------------------
MOST_RECORDS = 1000  # a page

_Row = tuple[Any, ...]


def _records(query: RecordQuery, db: sqlite3.Connection) -> RecordPage:
    key = query.session_key
    terms: dict[str, object] = {
        "r.session = ?": None if key is None else str(key),
        "r.at >= ?": query.since,
        "r.at < ?": query.until,
    }
    if query.before is not None:
        row = db.execute("SELECT at FROM token_record WHERE seq = ?", (query.before,)).fetchone()
        if row is None:
            return RecordPage((), more=False)
        terms["r.at <= ? AND (r.at, r.seq) < (?, ?)"] = (row[0], row[0], query.before)
    limit, rows = max(0, min(query.limit, MOST_RECORDS)), list[_Row]()
    for series in _series_of(query, db):
        condition, values = where({**terms, "r.series = ?": series})
        rows += db.execute(f"{_PAGE} {condition} {_NEWEST}", (*values, limit + 1)).fetchall()
    newest = nlargest(limit + 1, rows, key=lambda row: (row[2], row[0]))
    return RecordPage(tuple(map(_to_record, newest[:limit])), more=len(newest) > limit)


def _series_of(query: RecordQuery, db: sqlite3.Connection) -> Sequence[int | None]:
    """The series whose records are wanted, for one index serves each; None: all."""
    agent = query.agent
    if query.session_key is not None:
        own = str(query.session_key.agent)
        if agent not in {None, own}:
            return []
        agent = own
    names = {"agent = ?": agent, "provider = ?": query.provider, "model = ?": query.model}
    condition, values = where(names)
    if not values:
        return [None]
    ids = db.execute(f"SELECT id FROM series {condition}", values)
    return [series for (series,) in ids]


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
