"""budget.*, usage.*: limits, their remainders and spending; and GET /api/records."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pydantic_core import to_jsonable_python
from starlette.requests import Request
from starlette.responses import Response

from gateway.api import spending as api
from gateway.api.declarations import Params, build, plain
from gateway.api.errors import InvalidParams, wrong
from gateway.api.http import RECORDS, RecordsQuery
from gateway.domain.budgets import (
    Budgets,
    Limit,
    Raise,
    RecordQuery,
    Resync,
    Scope,
    ScopeKind,
    Tally,
    TokenRecord,
    Unit,
    UsageSum,
    day_of,
    in_unit,
)
from gateway.domain.errors import NotFound
from gateway.domain.ports import Clock, Ledger
from gateway.domain.text import moment_ago, no_formula
from gateway.sessions.intake import Front
from gateway.web.asgi import Described, query_of, require_scope
from gateway.web.identity import Principal, can_use, visible_key
from gateway.web.responses import json_response
from gateway.web.rpc import Call


class Metering(Protocol):
    clock: Clock

    @property
    def budgets(self) -> Budgets: ...
    async def resync(self, actor: str) -> Resync: ...
    async def raise_today(self, scope: str, tokens: int, actor: str) -> Raise: ...


@dataclass(frozen=True, slots=True)
class BudgetMethods:
    front: Front
    spending: Ledger
    meter: Metering

    async def period_rows(self) -> list[api.BudgetRow]:
        """Returns the rows of the day and the month."""
        return await self._rows(self._scopes())

    async def agent_rows(self) -> list[api.BudgetRow]:
        """Returns the rows of the day, the month and each agent."""
        return await self._rows(self._scopes(self.front.agents))

    async def all_rows(self) -> list[api.BudgetRow]:
        """Returns the rows of the day, the month, each agent and each token with a limit."""
        return await self._rows([*self._scopes(self.front.agents), *self._token_scopes()])

    def _scopes(self, agents: Iterable[str] = ()) -> list[Scope]:
        day = day_of(self.meter.clock.now())
        of_agents = [Scope("agent", name) for name in sorted(agents)]
        return [Scope("day", day), Scope("month", day[:7]), *of_agents]

    async def _rows(self, scopes: Sequence[Scope]) -> list[api.BudgetRow]:
        """Returns a row for each scope and unit that has a limit; for a scope without a limit, its tokens."""
        tallies = await self.spending.tallies(scopes)
        rows: list[api.BudgetRow] = []
        for scope, tally in zip(scopes, tallies, strict=True):
            limit = self.meter.budgets.limit(tally.scope, tally.raised)
            rows += budget_rows(scope, tally, limit)
        return rows

    async def budget_status(self, call: Call, params: api.BudgetOf) -> api.BudgetStatus:
        scopes = self._scopes(one for one in self.front.agents if can_use(call.principal, one))
        if call.principal.agents is None:
            scopes += self._token_scopes()
        if params.session_key is not None:
            key = visible_key(call.principal, params.session_key)
            scopes.insert(0, Scope("session", str(key)))
        return api.BudgetStatus(budgets=await self._rows(scopes))

    def _token_scopes(self) -> list[Scope]:
        """Returns the day and the month of each token that has such a limit."""
        day = day_of(self.meter.clock.now())
        periods: Mapping[ScopeKind, str] = {"token_day": day, "token_month": day[:7]}
        return [
            Scope(kind, f"{period} {name}")
            for name, budget in sorted(self.meter.budgets.tokens.items())
            for kind, period in periods.items()
            if kind in budget.kinds()
        ]

    async def budget_raise(self, call: Call, params: api.RaiseBudget) -> api.BudgetRaised:
        if not params.today:
            what = "must be true: a raise ends with the day; `exogate budget set` changes a limit"
            raise wrong("today", what)
        done = await self.meter.raise_today(params.scope, params.by, call.principal.name)
        return api.BudgetRaised(scope=done.scope, raised_by=done.tokens, until=done.until)

    async def usage_report(self, call: Call, params: api.ReportUsage) -> api.UsageReport:
        now = self.meter.clock.now()
        since, until = (
            _moment(name, text, now)
            for name, text in (("since", params.since), ("until", params.until))
        )
        sums = await self.spending.usage(params.by, since, until)
        total = sum(sums, UsageSum(""))
        rows = [
            build(api.UsageRow, one, cost_usd=in_unit("usd", one.nano_usd), **{params.by: one.name})
            for one in sums
        ]
        whole = build(api.UsageFigures, total, cost_usd=in_unit("usd", total.nano_usd))
        return api.UsageReport(rows=rows, total=whole)

    async def budget_resync(self, call: Call, _: Params) -> api.BudgetResync:
        done = await self.meter.resync(call.principal.name)
        return build(api.BudgetResync, done, changed=done.is_changed, was=done.was or None)

    def routes(self) -> Sequence[Described]:
        return (Described(RECORDS, self.table),)

    async def table(self, request: Request) -> Response:
        principal = require_scope(request, "reading records", "read")
        params = query_of(request, RecordsQuery)
        accepted = "csv" if "text/csv" in request.headers.get("accept", "") else "json"
        page = await self._page(principal, params)
        if (params.format or accepted) == "json":
            return json_response(page)
        headers = {"x-exogate-more": str(page.more).lower()}
        return Response(as_csv(page.records), headers=headers, media_type="text/csv")

    async def budget_records(self, call: Call, params: api.BudgetRecords) -> api.SpendingPage:
        return await self._page(call.principal, params)

    async def _page(self, principal: Principal, params: api.BudgetRecords) -> api.SpendingPage:
        page = await self.spending.records(_query(principal, params))
        return api.SpendingPage(
            records=[spending_record(one) for one in page.records], more=page.more
        )


def _moment(name: str, text: str | None, now: datetime) -> datetime | None:
    """Parses a time. Raises InvalidParams."""
    try:
        return None if text is None else moment_ago(text, now)
    except ValueError as error:
        raise wrong(name, str(error)) from None


def budget_rows(wanted: Scope, tally: Tally, limit: Limit) -> Sequence[api.BudgetRow]:
    """Returns a row for each unit with a limit; without any, one for tokens."""
    scope, why = tally.scope, _why_ahead(wanted, tally.scope)
    bounds: Sequence[tuple[Unit, int | None]] = limit.bounds() or [("tokens", None)]
    rows = []
    for unit, bound in bounds:
        is_tokens = unit == "tokens"
        is_raised = is_tokens and bool(limit.tokens)
        rows.append(
            api.BudgetRow(
                scope=str(scope),
                limit=None if bound is None else in_unit(unit, bound),
                used=in_unit(unit, tally.used.tokens if is_tokens else tally.used.nano_usd),
                reserved=in_unit(unit, tally.held.tokens if is_tokens else tally.held.nano_usd),
                period_start=scope.period_start or tally.since,
                resets_at=scope.resets_at,
                unit=unit,
                why=why,
                raised_by=tally.raised or None if is_raised else None,
                until=tally.raised_until if is_raised else None,
            )
        )
    return rows


def _why_ahead(wanted: Scope, counted: Scope) -> str | None:
    """Returns why another day or month counts than that of the clock; None if it is the same."""
    if counted == wanted:
        return None
    return (
        f"the clock was set back from {counted.name} to {wanted.name}: spending still counts in "
        f"{counted.name}, so that a spent budget stays spent. If {wanted.name} is right, run "
        "`exogate budget resync`"
    )


def _query(principal: Principal, params: api.BudgetRecords) -> RecordQuery:
    """Returns the query for records. A principal that reaches only some agents must name one of them."""
    key = None if params.session_key is None else visible_key(principal, params.session_key)
    agent = params.agent
    if principal.agents is not None and key is None:
        if agent is None:
            raise InvalidParams("agent: your token reaches only some agents; name one of them")
        if agent not in principal.agents:
            raise NotFound(f"agent {agent[:64]!r}")
    return build(RecordQuery, params, session_key=key, since=params.from_, until=params.to)


def spending_record(one: TokenRecord) -> api.SpendingRecord:
    agent, cost = one.session_key.agent, in_unit("usd", one.nano_usd)
    return build(api.SpendingRecord, one, timestamp=one.at, agent_id=agent, cost_estimate_usd=cost)


def as_csv(rows: Sequence[api.SpendingRecord]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [name for name, _ in api.SpendingRecord.defaults])
    writer.writeheader()
    for row in rows:
        shown = to_jsonable_python(plain(row))
        writer.writerow({name: no_formula(value) for name, value in shown.items()})
    return text.getvalue()
