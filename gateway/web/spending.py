"""budget.*, usage.*: limits and what is left of them, what was spent, and GET /api/records."""

import csv
import io
from collections.abc import Iterable, Sequence
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
        """The rows of the day and the month."""
        return await self._rows(self._scopes())

    async def agent_rows(self) -> list[api.BudgetRow]:
        """With those of each agent."""
        return await self._rows(self._scopes(self.front.agents))

    async def all_rows(self) -> list[api.BudgetRow]:
        """With those of each token as well."""
        return await self._rows([*self._scopes(self.front.agents), *self._of_tokens()])

    def _scopes(self, agents: Iterable[str] = ()) -> list[Scope]:
        day = day_of(self.meter.clock.now())
        own = [Scope("agent", name) for name in sorted(agents)]
        return [Scope("day", day), Scope("month", day[:7]), *own]

    async def _rows(self, scopes: Sequence[Scope]) -> list[api.BudgetRow]:
        """A row for each scope and unit that has a limit; without one, its tokens."""
        tallies = await self.spending.tallies(scopes)
        rows: list[api.BudgetRow] = []
        for scope, tally in zip(scopes, tallies, strict=True):
            limit = self.meter.budgets.limit(tally.scope, tally.raised)
            rows += budget_rows(scope, tally, limit)
        return rows

    async def budget_status(self, call: Call, params: api.BudgetOf) -> api.BudgetStatus:
        scopes = self._scopes(one for one in self.front.agents if can_use(call.principal, one))
        if call.principal.agents is None:
            scopes += self._of_tokens()
        if params.session_key is not None:
            key = visible_key(call.principal, params.session_key)
            scopes.insert(0, Scope("session", str(key)))
        return api.BudgetStatus(budgets=await self._rows(scopes))

    def _of_tokens(self) -> list[Scope]:
        """The days and months of tokens in which they have a limit."""
        day, found = day_of(self.meter.clock.now()), list[Scope]()
        for name, budget in sorted(self.meter.budgets.tokens.items()):
            whole: Sequence[Scope] = (
                Scope("token_day", f"{day} {name}"),
                Scope("token_month", f"{day[:7]} {name}"),
            )
            kinds = budget.kinds()
            found += [one for one in whole if one.kind in kinds]
        return found

    async def budget_raise(self, call: Call, params: api.RaiseBudget) -> api.BudgetRaised:
        if not params.today:
            what = "raises until the end of the day only; `exogate budget set` changes a limit for good"
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
        rows = [build(api.UsageRow, **_figures(one), **{params.by: one.name}) for one in sums]
        return api.UsageReport(rows=rows, total=build(api.UsageFigures, **_figures(total)))

    async def budget_resync(self, call: Call, _: Params) -> api.BudgetResync:
        done = await self.meter.resync(call.principal.name)
        return build(api.BudgetResync, done, changed=done.is_changed, was=done.was or None)

    def routes(self) -> Sequence[Described]:
        return (Described(RECORDS, self.table),)

    async def table(self, request: Request) -> Response:
        principal = require_scope(request, "looking at records", "read")
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
    """Raises InvalidParams."""
    try:
        return None if text is None else moment_ago(text, now)
    except ValueError as error:
        raise wrong(name, str(error)) from None


def _figures(one: UsageSum) -> dict[str, object]:
    counts = {name: getattr(one, name) for name in ("calls", "input_tokens", "output_tokens")}
    cost = in_unit("usd", one.nano_usd)
    return {**counts, "cached_tokens": one.cached_tokens, "cost_usd": cost}


NOT_RAISED = (None, None)


def budget_rows(wanted: Scope, tally: Tally, limit: Limit) -> Sequence[api.BudgetRow]:
    """A row for each unit that is bounded; without any, one for tokens."""
    scope, why = tally.scope, _why_ahead(wanted, tally.scope)
    bounds: Sequence[tuple[Unit, int | None]] = limit.bounds() or [("tokens", None)]
    raises = {"tokens": (tally.raised or None, tally.raised_until)} if limit.tokens else {}
    return [
        api.BudgetRow(
            scope=str(scope),
            limit=None if bound is None else in_unit(unit, bound),
            used=in_unit(unit, tally.used.tokens if unit == "tokens" else tally.used.nano_usd),
            reserved=in_unit(unit, tally.held.tokens if unit == "tokens" else tally.held.nano_usd),
            period_start=scope.period_start or tally.since,
            resets_at=scope.resets_at,
            unit=unit,
            why=why,
            raised_by=raises.get(unit, NOT_RAISED)[0],
            until=raises.get(unit, NOT_RAISED)[1],
        )
        for unit, bound in bounds
    ]


def _why_ahead(wanted: Scope, counted: Scope) -> str | None:
    """Why another day or month counts than that of the clock."""
    if counted == wanted:
        return None
    return (
        f"the clock was at {counted.name} before, and says {wanted.name} now: spending goes on to "
        f"count in {counted.name}, so that nothing that was spent is free again. If {wanted.name} is "
        "right, run `exogate budget resync`"
    )


def _query(principal: Principal, params: api.BudgetRecords) -> RecordQuery:
    """Who may reach some agents only asks for one of them."""
    key = None if params.session_key is None else visible_key(principal, params.session_key)
    agent = params.agent
    if principal.agents is not None and key is None:
        if agent is None:
            raise InvalidParams("agent: your token reaches some agents only; say which")
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
