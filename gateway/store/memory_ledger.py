"""The ledger in memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import nlargest
from operator import add

from gateway.domain.accounts import Decide, Due, Ended
from gateway.domain.budgets import (
    NANO,
    Amount,
    Grant,
    ModelSum,
    RecordPage,
    RecordQuery,
    Reservation,
    Scope,
    Tally,
    TokenRecord,
    scopes_of,
    with_others,
)
from gateway.domain.errors import StoreUnavailable
from gateway.domain.sessions import SessionRecord
from gateway.store.memory_shelf import Shelf
from gateway.store.spending import bounded, moved_on, page, require_query


class MemoryLedger:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def reserve(self, wanted: Reservation, decide: Decide) -> tuple[Reservation, Grant]:
        shelf = self._shelf
        await shelf.ready()
        day = max(wanted.day, shelf.last_day)
        scopes = scopes_of(wanted.payer.session_key, day)
        tallies = [shelf.tallies.get(scope) or Tally(scope) for scope in scopes]
        grant = decide(tallies)
        for one in tallies:
            held, since = one.held + grant.held, one.since or wanted.at
            shelf.tallies[one.scope] = Tally(one.scope, one.used, held, since, one.warned)
        reservation = replace(wanted, day=day, held=grant.held)
        shelf.reservations[wanted.id], shelf.last_day = reservation, day
        return reservation, grant

    async def settle(self, ended: Ended, due: Due) -> Sequence[Tally]:
        await self._shelf.ready()
        return self._settle(ended, due)

    def settle_soon(self, ended: Ended, failed: Callable[[Exception], None]) -> None:
        try:
            self._shelf.require_open()
        except StoreUnavailable as error:
            failed(error)
        else:
            self._settle(ended, lambda _: "")

    async def unsettled(self) -> Sequence[Reservation]:
        await self._shelf.ready()
        return sorted(self._shelf.reservations.values(), key=lambda one: one.id)

    def _settle(self, ended: Ended, due: Due) -> Sequence[Tally]:
        shelf = self._shelf
        taken = shelf.reservations.pop(ended.id, None)
        if taken is None:
            return ()
        spent = Amount()
        if isinstance(ended, TokenRecord):
            spent = ended.amount
            shelf.records.append(replace(ended, seq=len(shelf.records) + 1))
            if session := shelf.sessions.get(ended.session_key):
                session.record = _counted(session.record, ended)
        found: list[Tally] = []
        for scope in scopes_of(taken.payer.session_key, taken.day):
            old = shelf.tallies[scope]
            used, held = old.used + spent, old.held - taken.held
            tally = Tally(scope, used, held, old.since, old.warned)
            limit = due(tally)
            if limit and limit != tally.warned:
                tally = replace(tally, warned=limit)
                found.append(tally)
            shelf.tallies[scope] = tally
        return found


class MemorySpending:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def tallies(self, scopes: Sequence[Scope]) -> Sequence[Tally]:
        await self._shelf.ready()
        moved = [moved_on(scope, self._shelf.last_day) for scope in scopes]
        return [self._shelf.tallies.get(scope) or Tally(scope) for scope in moved]

    async def models(self, limit: int) -> Sequence[ModelSum]:
        await self._shelf.ready()
        sums: dict[tuple[str, str], tuple[int, ...]] = {}
        for one in self._shelf.records:
            more = (1, one.input_tokens, one.output_tokens, one.nano_usd)
            before = sums.get((one.provider, one.model), (0, 0, 0, 0))
            sums[one.provider, one.model] = tuple(map(add, before, more))
        found = [ModelSum(*name, *counts) for name, counts in sums.items()]
        found.sort(key=lambda one: (-one.calls, one.provider, one.model))
        return with_others(found, limit)

    async def records(self, query: RecordQuery) -> RecordPage:
        require_query(query)
        await self._shelf.ready()
        records, limit = self._shelf.records, bounded(query.limit)
        last: TokenRecord | None = None
        if query.before is not None:
            if not 0 < query.before <= len(records):
                return RecordPage((), more=False)
            last = records[query.before - 1]
        matching = (one for one in records if _matches(one, query, last))
        return page(nlargest(limit + 1, matching, key=_place), limit)


def _counted(session: SessionRecord, record: TokenRecord) -> SessionRecord:
    cost = session.cost_usd
    if record.pricing != "unpriced":
        cost = (cost or 0.0) + record.nano_usd / NANO
    return replace(
        session,
        input_tokens=session.input_tokens + record.input_tokens,
        output_tokens=session.output_tokens + record.output_tokens,
        cost_usd=cost,
    )


def _matches(record: TokenRecord, query: RecordQuery, last: TokenRecord | None) -> bool:
    wanted = (
        (query.session_key, record.session_key),
        (query.agent, record.session_key.agent),
        (query.provider, record.provider),
        (query.model, record.model),
    )
    return (
        all(asked in {None, had} for asked, had in wanted)
        and (query.since is None or record.at >= query.since)
        and (query.until is None or record.at < query.until)
        and (last is None or _place(record) < _place(last))
    )


def _place(record: TokenRecord) -> tuple[object, ...]:
    return record.at, record.seq
