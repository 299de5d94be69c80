"""budget.status, budget.records, GET /api/records: what was spent, and what is left."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.errors import Forbidden, InvalidParams
from gateway.domain.budgets import Budgets, RecordQuery, Resync, Scope, day_of
from gateway.domain.errors import NotFound
from gateway.domain.ports import Clock, Ledger
from gateway.sessions.intake import Front
from gateway.web.asgi import principal_of, query_of
from gateway.web.given import Moment, Place
from gateway.web.identity import Principal, may, may_use
from gateway.web.methods.chat import Text, visible_key
from gateway.web.methods.sessions import Key
from gateway.web.published.money import (
    BudgetResync,
    BudgetRow,
    BudgetStatus,
    SpendingPage,
    SpendingRecord,
)
from gateway.web.published.operations import Answer, Described, Header, Operation
from gateway.web.responses import json_response
from gateway.web.rpc import Call, Method, NoParams
from gateway.web.shapes import budget, token_record

MORE = Header("X-Exogate-More", "Whether there are older ones.", "^(true|false)$", is_sure=True)
COLUMNS = tuple(SpendingRecord.__annotations__)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


class BudgetsOf(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    session_key: Key | None = None


class Records(BaseModel):
    """Not strict: in an address everything is text."""

    model_config = ConfigDict(extra="forbid", populate_by_name=False)

    session_key: Key | None = None
    agent: Text | None = None
    provider: Text | None = None
    model: Text | None = None
    since: Moment | None = Field(default=None, alias="from")
    until: Moment | None = Field(default=None, alias="to")
    before: Place | None = None
    limit: int = Field(default=100, ge=1, le=1_000)


class Table(Records):
    format: Literal["json", "csv"] | None = None


TABLE = Operation(
    "GET",
    "/api/records",
    "What was spent, newest first: a record for each call of a model.",
    (
        Answer(200, "The records.", SpendingPage),
        Answer(
            200, "With `format=csv`, or if asked for: a table.", media="text/csv", headers=(MORE,)
        ),
    ),
    query=Table,
    refusals=(404, 422),
)


class Metering(Protocol):
    budgets: Budgets
    clock: Clock

    async def resync(self, actor: str) -> Resync: ...


@dataclass(frozen=True, slots=True)
class BudgetMethods:
    front: Front
    spending: Ledger
    meter: Metering

    def all(self) -> Sequence[Method]:
        return (
            Method("budget.status", BudgetsOf, ("read",), self.status),
            Method("budget.records", Records, ("read",), self.records),
            Method("budget.resync", NoParams, ("admin",), self.resync),
        )

    def routes(self) -> Sequence[Described]:
        return (Described(TABLE, self.table),)

    async def periods(self) -> list[BudgetRow]:
        """The rows of the day and the month."""
        return await self._rows(self._scopes())

    async def everything(self) -> list[BudgetRow]:
        """With those of each agent."""
        return await self._rows(self._scopes(self.front.agents))

    def _scopes(self, agents: Iterable[str] = ()) -> list[Scope]:
        day = day_of(self.meter.clock.now())
        own = [Scope("agent", name) for name in sorted(agents)]
        return [Scope("day", day), Scope("month", day[:7]), *own]

    async def _rows(self, scopes: Sequence[Scope]) -> list[BudgetRow]:
        """A row for each scope and unit that has a limit; without one, its tokens."""
        tallies = await self.spending.tallies(scopes)
        rows: list[BudgetRow] = []
        for scope, tally in zip(scopes, tallies, strict=True):
            found = budget(tally, self.meter.budgets.limit(tally.scope))
            why = _why_ahead(scope, tally.scope)
            rows += [{**row, "why": why} for row in found] if why else found
        return rows

    async def status(self, call: Call, params: BudgetsOf) -> BudgetStatus:
        """What is spent and left, in every scope."""
        scopes = self._scopes(one for one in self.front.agents if may_use(call.principal, one))
        if params.session_key is not None:
            key = visible_key(call.principal, params.session_key)
            scopes.insert(0, Scope("session", str(key)))
        return {"budgets": await self._rows(scopes)}

    async def resync(self, call: Call, _: NoParams) -> BudgetResync:
        """Goes back to the day of the clock, where it was far ahead before."""
        done = await self.meter.resync(call.principal.name)
        return {
            "changed": done.is_changed,
            "day": done.day,
            "was": done.was or None,
            "records": done.records,
        }

    async def records(self, call: Call, params: Records) -> SpendingPage:
        """Every call of a model, the newest first."""
        page = await self.spending.records(_query(call.principal, params))
        return {"records": [token_record(one) for one in page.records], "more": page.more}

    async def table(self, request: Request) -> Response:
        principal = principal_of(request)
        if not may(principal, "read"):
            raise Forbidden("looking at records needs the scope 'read'")
        params = query_of(request, Table)
        accepted = "csv" if "text/csv" in request.headers.get("accept", "") else "json"
        page = await self.spending.records(_query(principal, params))
        rows = [token_record(one) for one in page.records]
        if (params.format or accepted) == "json":
            told: SpendingPage = {"records": rows, "more": page.more}
            return json_response(told)
        headers = {"x-exogate-more": str(page.more).lower()}
        return Response(as_csv(rows), headers=headers, media_type="text/csv")


def _why_ahead(wanted: Scope, counted: Scope) -> str | None:
    """Why another day or month counts than that of the clock."""
    if counted == wanted:
        return None
    return (
        f"the clock was at {counted.name} before, and says {wanted.name} now: spending goes on to "
        f"count in {counted.name}, so that nothing that was spent is free again. If {wanted.name} is "
        "right, run `exogate budget resync`"
    )


def _query(principal: Principal, params: Records) -> RecordQuery:
    """Who may reach some agents only asks for one of them."""
    key = None if params.session_key is None else visible_key(principal, params.session_key)
    agent = params.agent
    if principal.agents is not None and key is None:
        if agent is None:
            raise InvalidParams("agent: your token reaches some agents only; say which")
        if agent not in principal.agents:
            raise NotFound(f"agent {agent[:64]!r}")
    return RecordQuery(
        session_key=key,
        agent=agent,
        provider=params.provider,
        model=params.model,
        since=params.since,
        until=params.until,
        before=params.before,
        limit=params.limit,
    )


def as_csv(rows: Sequence[SpendingRecord]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows({name: _no_formula(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _no_formula(value: object) -> object:
    """Names that users choose must not be run by the spreadsheet that opens them."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
