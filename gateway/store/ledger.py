"""The ledger: reservations, counters, a record of every model call, and the queries over them."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from heapq import nlargest
from operator import attrgetter, itemgetter

import anyio

from gateway.domain.agents import speaker_in
from gateway.domain.budgets import (
    SCOPE_KINDS,
    USAGE,
    Amount,
    BudgetExceeded,
    Decide,
    Due,
    Ended,
    Grant,
    Grouping,
    ModelSum,
    Payer,
    Raise,
    RecordPage,
    RecordQuery,
    Reservation,
    Resync,
    Scope,
    ScopeKind,
    Tally,
    TokenRecord,
    UsageSum,
    day_of,
    scopes_of,
    with_others,
)
from gateway.domain.errors import Conflict, GatewayError
from gateway.domain.events import AuditEvent
from gateway.domain.ids import EPOCH, MICROSECOND, SessionKey
from gateway.store.audit import append_event, note_change
from gateway.store.transaction import Fields, Row, Transaction, keep_newest, without_none
from gateway.store.writer import Engine, Operation, StorePart, T, reading

log = logging.getLogger(__name__)

_OF_CALL = Fields("id provider model at day input_tokens")
_SUMS = ("input_tokens", "output_tokens", "nano_usd")
_OF_RECORD = Fields(
    "id run_id person input_tokens output_tokens cached_tokens reasoning_tokens nano_usd pricing "
    "estimated"
)

NOTHING = Amount()
TEND_S = 0.25  # between two checks of slices and open calls
MOST_UNUSED = 6  # checks without a call; then a slice is given back
_KNOWN = 4096  # scopes, about 0.5 kB each


@dataclass(slots=True)
class _Account:
    """A scope with a limit, including uncommitted changes."""

    scope: Scope
    held: Amount  # for open calls
    reserved: Amount  # slices, used or not
    used: Amount = NOTHING
    warned: str = ""
    known: anyio.Event = field(default_factory=anyio.Event)  # set once earlier usage is counted too

    def tally(self) -> Tally:
        return Tally(self.scope, self.used, self.held, None, self.warned)


@dataclass(slots=True, eq=False)
class _Slice:
    """A part of what its scopes have left, in the table as `row`. Calls are granted from it."""

    row: Reservation
    amount: Amount = NOTHING  # of the table, including queued writes
    held: Amount = NOTHING  # of this, for open calls
    growing: int = 0  # running commits that enlarge it
    unused: int = 0  # checks since a call used it


_Saved = tuple[Reservation, Amount | None]  # a row and the rest of its slice; None deletes it


# --- queries -------------------------------------------------------------------------------------
MOST_RECORDS = 1000  # a page


def _model_sums(tx: Transaction, limit: int) -> Sequence[ModelSum]:
    rows = tx.find("spend", {"kind": "model"}, order="-calls name")
    sums = itemgetter("calls", *_SUMS)
    return with_others([ModelSum(*row["name"].split("/", 1), *sums(row)) for row in rows], limit)


def _record_page(tx: Transaction, query: RecordQuery) -> RecordPage:
    key = query.session_key
    terms = without_none({"session": key, "at >=": query.since, "at <": query.until})
    last = None if query.before is None else tx.first("token_record", {"seq": query.before}, "at")
    if last is not None:
        terms |= {"at <=": last["at"], "at,seq <": (last["at"], query.before)}
    elif query.before is not None:
        return RecordPage((), more=False)
    agent = query.agent or (key and key.agent)
    wanted = without_none({"agent": agent, "provider": query.provider, "model": query.model})
    series = {one["id"]: one for one in tx.find("series", wanted)}
    limit, rows = max(0, min(query.limit, MOST_RECORDS)), list[Row]()
    # One index serves each series; unfiltered records are in one order.
    for id_ in series if wanted else (None,):
        own = without_none({**terms, "series": id_})
        rows += tx.find("token_record", own, order="-at -seq", limit=limit + 1)
    newest = nlargest(limit + 1, rows, key=itemgetter("at", "seq"))
    page = [_to_record(row, series[row["series"]]) for row in newest[:limit]]
    return RecordPage(tuple(page), more=len(newest) > limit)


def _to_record(row: Row, series: Row) -> TokenRecord:
    return TokenRecord(
        session_key=row["session"],
        at=row["at"],
        seq=row["seq"],
        provider=series["provider"],
        model=series["model"],
        outcome="overrun" if row["overran"] else row["outcome"],
        **_OF_RECORD.values(row),
    )


# The columns that separate the sums; a series is agent, provider and model.
_GROUPED: Mapping[Grouping, str] = {
    **dict.fromkeys(("agent", "model", "provider"), "series"),
    "person": "session person",
    "channel": "session",
    "day": "day",
}


def _usage(
    tx: Transaction, by: Grouping, since: datetime | None, until: datetime | None
) -> Sequence[UsageSum]:
    """Reads only the records of that period."""
    terms = without_none({"at >=": since, "at <": until})
    found = tx.sums("token_record", terms, _GROUPED[by], " ".join(USAGE[1:]), index="by_time")
    series = {one["id"]: one for one in tx.find("series", {})} if _GROUPED[by] == "series" else {}
    sums: dict[str, UsageSum] = {}
    for row in found:
        name = series[row["series"]][by] if series else _name_of(by, row)
        more = UsageSum(name, *(row[one] for one in USAGE))
        sums[name] = sums[name] + more if name in sums else more
    return [sums[name] for name in sorted(sums)]


def _name_of(by: Grouping, row: Row) -> str:
    match by:
        case "person":
            return str(row["person"] or speaker_in(row["session"], None))
        case "channel":
            return str(row["session"].channel)
        case _:
            return str(row[by])


# --- the base of both ledgers --------------------------------------------------------------------
class LedgerBase(StorePart, ABC):
    """The queries and raised limits that every ledger has."""

    latest: str  # the newest day with a call
    _raised: Mapping[str, int] = {}  # of one day: tokens by scope
    _raised_on = ""

    models = reading(_model_sums, caught_up=True)
    records = reading(_record_page, caught_up=True)
    usage = reading(_usage, caught_up=True)

    @abstractmethod
    def settle_soon(
        self, ended: Ended, failed: Callable[[Exception], None], due: Due | None = None
    ) -> Sequence[Tally]: ...

    async def settle(self, ended: Ended) -> None:
        failures: list[Exception] = []
        self.settle_soon(ended, failures.append)
        await self.caught_up()
        if failures:
            raise failures[0]

    async def tallies(self, scopes: Sequence[Scope]) -> Sequence[Tally]:
        await self.caught_up()
        moved = [scope.at_least(self.latest) for scope in scopes]
        found = self._with_held(await self._readers.read(partial(tallies_of, scopes=moved)))
        return self._with_raises(found, max([self.latest, *(one.period for one in moved)]))

    def _with_held(self, tallies: list[Tally]) -> list[Tally]:
        """Adds reservations that the tables do not have."""
        return tallies

    def _to_warn_of(self, tallies: list[Tally], day: str, due: Due) -> list[Tally]:
        """Returns the tallies that have come near a limit without a warning so far."""
        return [
            replace(tally, warned=limit)
            for tally in self._with_raises(tallies, day)
            if (limit := due(tally)) not in {"", tally.warned}
        ]

    async def resync(self, now: datetime) -> Resync:
        day, was = day_of(now), self.latest
        if was <= day:
            return Resync(day, was)
        self.latest = day
        days = partial(resync_days, day=day, was=was, now=now, idle=self._move_to(day))
        try:
            return await self._writer.write(days, durable=True)
        except GatewayError:
            self.latest = was
            raise

    def _move_to(self, day: str) -> Sequence[_Saved]:
        """Moves the state in memory to an earlier day. Returns the slices to give back."""
        return ()

    # --- limits raised for a day -----------------------------------------------------------------
    async def raise_today(self, scope: str, tokens: int, event: AuditEvent) -> Raise:
        day = max(day_of(event.at), self.latest)
        until = _end_of(day)
        more = partial(_raise, scope=scope, day=day, tokens=tokens, event=event, until=until)
        raised = await self._writer.write(more, durable=True)
        self._raised, self._raised_on = raised, day
        return Raise(scope, raised[scope], until)

    async def load_raises(self, now: datetime) -> None:
        day = max(day_of(now), self.latest)
        self._raised = await self._readers.read(partial(_raises, day=day))
        self._raised_on = day

    def _with_raises(self, tallies: list[Tally], day: str) -> list[Tally]:
        if not self._raised or day != self._raised_on:
            return tallies
        raised, until = self._raised, _end_of(day)
        return [
            replace(one, raised=more, raised_until=until)
            if (more := raised.get(str(one.scope)))
            else one
            for one in tallies
        ]


class StoredLedger(LedgerBase):
    """Implements the port Ledger. Grants calls in memory, from committed slices.

    Usage plus slices never exceed a limit, at any commit: if the process dies and its slices are
    charged, no limit is exceeded. A slice belongs to one session on one day. It lasts until it is
    idle for a while or others need its room. A call that begins without a slice gets a row if it
    lasts, so that the next process finds it.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._open = {one.id: one for one in map(to_reservation, self._state.unsettled)}
        self.latest = max([self._state.last_day, *(one.day for one in self._open.values())])
        self._slices = {one.id: _Slice(one, one.held, one.held) for one in self._open.values()}
        self._kept: dict[tuple[SessionKey, str], _Slice] = {}
        self._days: set[str] = set()  # days of the kept slices
        self._accounts: dict[Scope, _Account] = {}
        self._timer: asyncio.TimerHandle | None = None

    # --- beginning a call ------------------------------------------------------------------------
    def begin(self, wanted: Reservation) -> Reservation:
        if wanted.day < self.latest:
            wanted = replace(wanted, day=self.latest)
        self._hold(wanted)
        if self._accounts:
            for account in self._accounts_of(wanted):
                account.reserved += wanted.held
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
        grant = decide(self._with_raises([one.tally() for one in known], day))
        call = replace(wanted, day=day, held=grant.held)
        self._hold(call)
        part = self._kept.setdefault((call.payer.session_key, day), _Slice(call))
        self._days.add(day)
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
        """Returns the accounts of its scopes that are in memory."""
        known = self._accounts
        scopes = scopes_of(call.payer.session_key, call.day)
        return [known[scope] for scope in scopes if scope in known]

    async def _load_accounts(self, scopes: Sequence[Scope]) -> None:
        """Reads the usage of scopes that are not in memory. Calls continue meanwhile, and their
        reservations and usage are added."""
        new = {
            scope: _Account(scope, _held_by(self._calls_in(scope)), self._reserved_in(scope))
            for scope in scopes
            if scope not in self._accounts
        }
        if not new:  # another call is reading them
            for account in [self._accounts[scope] for scope in scopes]:
                await account.known.wait()
            return
        self._accounts |= new
        try:
            for found in await self._in_order(partial(tallies_of, scopes=new)):
                account = new[found.scope]
                account.used, account.warned = account.used + found.used, found.warned
                account.known.set()
        finally:
            for account in new.values():
                if not account.known.is_set() and self._accounts.get(account.scope) is account:
                    del self._accounts[account.scope]
                account.known.set()
        keep_newest(self._accounts, _KNOWN)

    def _calls_in(self, scope: Scope) -> list[Reservation]:
        return [one for one in self._open.values() if _is_in(scope, one)]

    def _with_held(self, tallies: list[Tally]) -> list[Tally]:
        found = list[Tally]()
        for one in tallies:
            calls = self._calls_in(one.scope)
            since = one.since or min((call.at for call in calls), default=None)
            found.append(replace(one, held=_held_by(calls), since=since))
        return found

    def _reserved_in(self, scope: Scope) -> Amount:
        kept: Iterable[_Slice] = self._kept.values()
        if scope.kind in {"session", "token_session"}:  # there may be thousands of other slices
            slots = [(SessionKey.parse(scope.name), day) for day in self._days]
            kept = [self._kept[slot] for slot in slots if slot in self._kept]
        parts = {id(one): one for one in [*kept, *self._slices.values()]}
        reserved = sum((one.amount for one in parts.values() if _is_in(scope, one.row)), NOTHING)
        return reserved + _held_by(
            one for one in self._calls_in(scope) if one.id not in self._slices
        )

    # --- slices ----------------------------------------------------------------------------------
    async def _cover(
        self, part: _Slice, call: Reservation, decide: Decide, accounts: Sequence[_Account]
    ) -> None:
        """Commits a slice that is large enough. Makes it larger than needed for the next calls if
        no limit is exceeded; otherwise gives back the spare part of other slices if this one does
        not fit."""
        need, spare = part.held.beyond(part.amount), dict[_Slice, Amount]()
        if accounts and self._fits(decide, accounts, call, need + call.held):
            need += call.held
        elif not self._fits(decide, accounts, call, need):
            spare = self._spare_except(part)
        for other in spare:
            self._resize(other, other.held)
        self._resize(part, part.amount + need)
        part.growing += 1
        rows = [(one.row, one.amount) for one in (*spare, part)]
        try:
            await self._in_order(partial(_save, rows=rows))
        except GatewayError:
            self._resize(part, part.amount.beyond(need))
            for other, amount in spare.items():
                if self._kept.get(_slot(other.row)) is other:
                    self._resize(other, other.amount + amount)
            raise
        finally:
            part.growing -= 1

    async def _in_order(self, operation: Operation[T]) -> T:
        """Runs the operation before later ones of `write_soon`: on a server an awaited write may
        come after them."""
        results, failures = list[T](), list[Exception]()
        self._writer.write_soon(lambda tx: results.append(operation(tx)), failures.append)
        await self._writer.caught_up()
        if failures:
            raise failures[0]
        return results[-1]

    def _fits(
        self, decide: Decide, accounts: Sequence[_Account], call: Reservation, more: Amount
    ) -> bool:
        """True if usage and slices with `more` in addition exceed no limit."""
        tallies = [
            Tally(one.scope, one.used, one.reserved + more - call.held, None, one.warned)
            for one in accounts
        ]
        try:
            decide(self._with_raises(tallies, call.day))
        except BudgetExceeded:
            return False
        return True

    def _spare_except(self, part: _Slice) -> dict[_Slice, Amount]:
        """Returns the unused amounts of the other slices."""
        others = (one for one in self._kept.values() if one is not part)
        return {one: one.amount - one.held for one in others if one.amount != one.held}

    def _resize(self, part: _Slice, amount: Amount) -> None:
        more, part.amount = amount - part.amount, amount
        for account in self._accounts_of(part.row):
            account.reserved += more

    def tend(self) -> None:
        """Gives back idle slices, and writes down the reservations of calls that last."""
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
        self._days = {day for _, day in self._kept}
        if rows:
            self._writer.write_soon(partial(_save, rows=rows), not_saved)
        if self._kept or self._open:
            self._timer = asyncio.get_running_loop().call_later(TEND_S, self.tend)

    def close(self) -> None:
        """Gives back every amount that no call holds. Must run before the writer stops."""
        if self._timer is not None:
            self._timer.cancel()
        save = partial(_save_exactly, calls=list(self._open.values()))
        self._writer.write_soon(save, not_saved)

    # --- ending a call ---------------------------------------------------------------------------
    def settle_soon(
        self, ended: Ended, failed: Callable[[Exception], None], due: Due | None = None
    ) -> Sequence[Tally]:
        call = self._open.pop(ended.id, None)
        if call is None:
            return ()
        rows, accounts = self._charge(call, ended)
        warnings = self._to_warn_of([one.tally() for one in accounts], call.day, due) if due else []
        for tally in warnings:
            self._accounts[tally.scope].warned = tally.warned
        operation: Operation[None] | None = partial(_save, rows=rows) if rows else None
        if isinstance(ended, TokenRecord):
            operation = partial(record_call, record=ended, call=call, rows=rows, warned=warnings)
        if operation is not None:
            self._writer.write_soon(operation, partial(self._not_written, call, failed))
        return warnings

    def _charge(self, call: Reservation, ended: Ended) -> tuple[list[_Saved], list[_Account]]:
        """Counts the amount of an ended call in memory. Returns the changed rows and the accounts
        of the call."""
        part, rows = self._slices.pop(call.id, None), list[_Saved]()
        if part is None and not self._accounts:
            return rows, []
        used, accounts = ended.amount, self._accounts_of(call)
        for account in accounts:
            account.held -= call.held
            account.used += used
            if part is None:
                account.reserved -= call.held
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
        """Holds the call again; the usage of its scopes is read again."""
        self._open[call.id] = call
        for scope in scopes_of(call.payer.session_key, call.day):
            self._accounts.pop(scope, None)
        failed(error)

    def _move_to(self, day: str) -> Sequence[_Saved]:
        self._accounts.clear()
        self._open = {id_: replace(one, day=min(one.day, day)) for id_, one in self._open.items()}
        # No slice of the later day grants another call.
        idle = [(one.row, None) for one in self._kept.values() if one.held == NOTHING]
        self._kept.clear()
        for part in self._slices.values():
            part.row = replace(part.row, day=min(part.row.day, day))
        return idle

    async def unsettled(self) -> Sequence[Reservation]:
        if any(row["node"] for row in self._state.unsettled):
            await self._writer.write(_clear_nodes, durable=True)
        return sorted(self._open.values(), key=attrgetter("id"))


def _end_of(day: str) -> datetime:
    return datetime.fromisoformat(f"{day}T00:00:00+00:00") + timedelta(days=1)


def _held_by(calls: Iterable[Reservation]) -> Amount:
    return sum((one.held for one in calls), NOTHING)


def _slot(row: Reservation) -> tuple[SessionKey, str]:
    return row.payer.session_key, row.day


def _is_in(scope: Scope, call: Reservation) -> bool:
    return scope in scopes_of(call.payer.session_key, call.day)


def not_saved(error: Exception) -> None:
    log.warning("budget_slices_not_saved", extra={"why": str(error)})


# --- operations ----------------------------------------------------------------------------------
def _raise(
    tx: Transaction, *, scope: str, day: str, tokens: int, event: AuditEvent, until: datetime
) -> Mapping[str, int]:
    raised = dict(_raises(tx, day))
    raised[scope] = raised.get(scope, 0) + tokens
    if raised[scope] > MOST_RAISED:
        raise Conflict(f"{scope} would be raised by more than {MOST_RAISED} tokens today")
    row = {"day": day, "scope": scope, "tokens": raised[scope]}
    tx.put("budget_raise", row)
    note_change(tx)
    detail = {"scope": scope, "by": tokens, "raised_by": raised[scope], "until": until.isoformat()}
    append_event(tx, replace(event, detail=detail))
    return raised


def _raises(tx: Transaction, day: str) -> Mapping[str, int]:
    return {row["scope"]: row["tokens"] for row in tx.find("budget_raise", {"day": day})}


MOST_RAISED = 2**53


def tallies_of(tx: Transaction, scopes: Iterable[Scope]) -> list[Tally]:
    """Returns the tallies by the counters. Only nodes that share a store keep reservations in
    counters."""
    found = list[Tally]()
    for scope in scopes:
        row = tx.first("spend", counter_of(scope))
        if row is None:
            found.append(Tally(scope))
            continue
        used = Amount(row["input_tokens"] + row["output_tokens"], row["nano_usd"])
        held = Amount(row["held_tokens"], row["held_nano_usd"])
        found.append(Tally(scope, used, held, row["since"], row["warned"]))
    return found


def counter_of(scope: Scope) -> Mapping[str, str]:
    """Returns the key of the counter. The session's counter serves its token there too."""
    return {"kind": "session" if scope.kind == "token_session" else scope.kind, "name": scope.name}


def held_row(call: Reservation, held: Amount) -> Row:
    payer = call.payer
    paid_by = {"session": payer.session_key, "run_id": payer.run_id, "person": payer.person}
    amounts = {"held_tokens": held.tokens, "held_nano_usd": held.nano_usd}
    return {**_OF_CALL.row(call), **paid_by, **amounts}


@lru_cache(maxsize=1024)
def counters_of(key: SessionKey, day: str) -> Sequence[Mapping[str, str]]:
    """Returns the keys of all counters of a call, each once: the session's counter is also that of
    its token."""
    return [counter_of(one) for one in scopes_of(key, day) if one.kind != "token_session"]


def release_held(tx: Transaction, row: Row) -> None:
    """Removes a call from the counters of a shared store. A call of a single gateway is in none."""
    if not row["node"]:
        return
    back = {"held_tokens +": -row["held_tokens"], "held_nano_usd +": -row["held_nano_usd"]}
    for counter in counters_of(row["session"], row["day"]):
        tx.change("spend", counter, back)


def hold_in(tx: Transaction, counters: Sequence[Mapping[str, str]], row: Row) -> None:
    """Adds the amounts of a reservation to these counters."""
    amounts = {name: row[name] for name in ("held_tokens", "held_nano_usd")}
    tx.add("spend", [{**one, **amounts, "since": row["at"]} for one in counters], amounts)


def _clear_nodes(tx: Transaction) -> None:
    """Turns reservations of a cluster into those of a single gateway, which are known by their rows
    alone."""
    for row in tx.find("reservation", {}):
        release_held(tx, row)
        tx.change("reservation", {"id": row["id"]}, {"node": ""})


def _save(tx: Transaction, rows: Sequence[_Saved]) -> None:
    for row, left in rows:
        if left is None:
            tx.delete("reservation", {"id": row.id})
            continue
        tx.put("reservation", held_row(row, left))
        tx.insert("spend", {"kind": "day", "name": row.day, "since": row.at}, on_conflict="keep")


def _save_exactly(tx: Transaction, calls: Sequence[Reservation]) -> None:
    tx.delete("reservation", {})
    _save(tx, [(one, one.held) for one in calls])


def record_call(
    tx: Transaction,
    *,
    record: TokenRecord,
    call: Reservation,
    rows: Sequence[_Saved],
    warned: Sequence[Tally],
) -> None:
    key, model = record.session_key, {"kind": "model", "name": f"{record.provider}/{record.model}"}
    series = (key.agent, record.provider, record.model)
    sums = {
        "calls": 1,
        "priced": record.pricing != "unpriced",
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "nano_usd": record.nano_usd,
    }
    since = (call.at - EPOCH) // MICROSECOND
    counters = [*counters_of(key, call.day), model]
    tx.add("spend", [{**one, **sums, "since": since} for one in counters], sums)
    is_overrun = record.outcome == "overrun"  # the table's check knows the first four outcomes
    row = {
        **_OF_RECORD.row(record),
        "at": (record.at - EPOCH) // MICROSECOND,
        "series": tx.series.get(series) or tx.series_of(*series),
        "session": key,
        "day": call.day,
        "outcome": "broken" if is_overrun else record.outcome,
        "overran": is_overrun,
    }
    tx.insert("token_record", row)
    if rows:
        _save(tx, rows)
    for tally in warned:
        tx.change("spend", tally.scope._asdict(), {"warned": tally.warned})


def resync_days(
    tx: Transaction, *, day: str, was: str, now: datetime, idle: Sequence[_Saved]
) -> Resync:
    _save(tx, idle)
    today = datetime.fromisoformat(f"{day}T00:00:00+00:00")
    made = {"at >=": today.replace(day=1), "at <": today + timedelta(days=1)}
    late = tx.find("token_record", {**made, "day >": day})
    for row in late:
        _count_again(tx, row, day, now)
        tx.change("token_record", {"seq": row["seq"]}, {"day": day_of(row["at"])})
    for kind, name in (("day", day), ("month", day[:7])):
        tx.delete("spend", {"kind": kind, "name >": name})
        # sorts after the names of this period
        tx.delete("spend", {"kind": f"token_{kind}", "name >": f"{name}~"})
    tx.delete("budget_raise", {"day >": day})
    for row in tx.find("reservation", {"day >": day}):
        tx.change("reservation", {"id": row["id"]}, {"day": day})
        if row["node"]:
            known = counters_of(row["session"], row["day"])
            moved = [one for one in counters_of(row["session"], day) if one not in known]
            hold_in(tx, moved, row)
    return Resync(day, was, len(late))


def _count_again(tx: Transaction, row: Row, day: str, now: datetime) -> None:
    """Counts a record in this day and month if it was counted in a later one."""
    kinds = {"day", "token_day"} if day_of(row["at"]) == day else set()
    if row["day"][:7] > day[:7]:
        kinds |= {"month", "token_month"}
    sums = {"calls": 1, "priced": row["pricing"] != "unpriced", **{one: row[one] for one in _SUMS}}
    for one in counters_of(row["session"], day):
        if one["kind"] in kinds:
            tx.add("spend", [{**one, **sums, "since": now}], sums)


def to_reservation(row: Row) -> Reservation:
    held = Amount(row["held_tokens"], row["held_nano_usd"])
    payer = Payer(row["session"], row["run_id"], row["person"])
    return Reservation(payer=payer, held=held, **_OF_CALL.values(row))
