"""budget.*, usage.*, token.*: limits, their remainders and spending; tokens created while the gateway runs,
valid at once until they expire or are revoked; and GET /api/records."""

import csv
import io
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Protocol

import anyio
from pydantic_core import to_jsonable_python
from starlette.requests import Request
from starlette.responses import Response

from gateway.api import spending as api
from gateway.api.declarations import Params, build, plain
from gateway.api.errors import Forbidden, InvalidParams, wrong
from gateway.api.http import RECORDS, RecordsQuery
from gateway.budgets import LiveBudgets
from gateway.domain.budgets import (
    OPERATORS,
    Budgets,
    Limit,
    Raise,
    RecordQuery,
    Resync,
    Scope,
    ScopeKind,
    Tally,
    TokenBudget,
    TokenRecord,
    Unit,
    UsageSum,
    day_of,
    in_unit,
)
from gateway.domain.errors import Conflict, NotFound
from gateway.domain.events import AuditEvent
from gateway.domain.ports import Clock, Ledger, TokenStore
from gateway.domain.text import choose, moment_ago, moment_in, no_formula
from gateway.domain.tokens import HINT, CreatedToken, digest_of, is_token_name, new_secret
from gateway.sessions.intake import Front
from gateway.web.asgi import Described, query_of, require_scope
from gateway.web.identity import (
    AGENT,
    SCOPES,
    Identities,
    Principal,
    can_use,
    principal,
    visible_key,
)
from gateway.web.responses import json_response
from gateway.web.rpc import Call
from gateway.web.settings import TokenDef

log = logging.getLogger(__name__)


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
        amount = attrgetter("tokens" if is_tokens else "nano_usd")
        rows.append(
            api.BudgetRow(
                scope=str(scope),
                limit=None if bound is None else in_unit(unit, bound),
                used=in_unit(unit, amount(tally.used)),
                reserved=in_unit(unit, amount(tally.held)),
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


# --- tokens --------------------------------------------------------------------------------------
LINGERS = timedelta(days=1)  # the limits of a revoked token stay for its accepted runs
NOTED_S = 60.0  # between two notes of the latest use of a token


@dataclass(slots=True)
class TokenRegistry:
    """The created tokens of the store. It passes them to authentication and their limits to the budgets."""

    store: TokenStore
    ledger: Ledger
    limits: LiveBudgets
    clock: Clock
    tokens: Sequence[CreatedToken] = ()
    publish: Callable[[], object] = lambda: None  # makes other gateways read the store
    _identities: list[Identities] = field(default_factory=list)
    _version: int = 0
    _noted: dict[bytes, float] = field(default_factory=dict)
    _turn: anyio.Lock = field(default_factory=anyio.Lock)

    def attach(self, identities: Identities) -> None:
        """Keeps these identities up to date with the tokens."""
        self._identities.append(identities)
        identities.replace_created(self.tokens)

    async def load(self) -> None:
        """Reads the tokens. Raises StoreUnavailable."""
        async with self._turn:  # an earlier read must not replace a later one
            self.tokens = await self.store.tokens()
            self.limits.of_created(self._budgets())
            for identities in self._identities:
                identities.replace_created(self.tokens)

    def _budgets(self) -> Mapping[str, TokenBudget]:
        since = self.clock.now() - LINGERS
        lingering = [one for one in self.tokens if one.revoked_at and one.revoked_at > since]
        in_force = [one for one in self.tokens if one.revoked_at is None]
        found = {one.name: one.budget for one in (*lingering, *in_force)}
        return {name: budget for name, budget in found.items() if budget is not None}

    async def refresh(self) -> None:
        """Reads the tokens and raises that another gateway has changed in the shared store."""
        version = await self.store.version()
        if version != self._version:
            await self.load()
            await self.ledger.load_raises(self.clock.now())
            self._version = version

    def note_use(self, digest: bytes) -> None:
        now = self.clock.monotonic()
        if now - self._noted.get(digest, -NOTED_S) < NOTED_S:
            return
        self._noted[digest] = now
        if any(one.digest == digest for one in self.tokens):
            self.store.note_use(digest, self.clock.now())


@dataclass(frozen=True, slots=True)
class TokenMethods:
    keys: TokenRegistry
    identities: Identities
    agents: Collection[str]

    async def token_create(self, call: Call, params: api.CreateToken) -> api.TokenCreated:
        keys, clock, by = self.keys, self.keys.clock, call.principal
        scopes = self._scopes(by, params)
        self._require_free(params.name)
        secret, now = new_secret(os.urandom(32)), clock.now()
        expires_at = None if params.expires is None else _expiry(params.expires, now)
        token = CreatedToken(
            digest=digest_of(secret),
            name=params.name,
            hint=secret[:HINT],
            scopes=scopes,
            created_at=now,
            created_by=by.name,
            budget=None if params.budget is None else _budget(params.budget),
            expires_at=expires_at,
        )
        detail = {
            "name": token.name,
            "scopes": sorted(scopes),
            "expires_at": expires_at and expires_at.isoformat(),
            "budget": _limits(token.budget),
            "inherits": params.inherit,
        }
        event = AuditEvent(now, "token.created", by.name, detail)
        await keys.store.create(token, event, inherits=params.inherit)
        keys.publish()
        log.info("token_created", extra={"principal": token.name, "by": by.name})
        await keys.load()
        return build(api.TokenCreated, _row(token, now), token=secret)

    async def token_list(self, call: Call, _: api.ListTokens) -> api.TokenList:
        await self.keys.load()
        now = self.keys.clock.now()
        rows = [_row(one, now) for one in self.keys.tokens]
        of_file = [_file_row(one, now, self.keys.limits) for one in self.identities.file_tokens]
        return api.TokenList(tokens=[*of_file, *rows])

    async def token_revoke(self, call: Call, params: api.RevokeToken) -> api.TokenRevoked:
        name, now = params.name, self.keys.clock.now()
        is_created = any(one.name == name and one.revoked_at is None for one in self.keys.tokens)
        if not is_created and name in self._file_names:
            raise Conflict(
                f"the token {name!r} is in the configuration file: remove its [[tokens]]"
            )
        event = AuditEvent(now, "token.revoked", call.principal.name, {"name": name})
        await self.keys.store.revoke(name, event)
        self.keys.publish()
        log.info("token_revoked", extra={"principal": name, "by": call.principal.name})
        await self.keys.load()
        return api.TokenRevoked(name=name, state="revoked", revoked_at=now)

    @property
    def _file_names(self) -> frozenset[str]:
        return frozenset(one.name for one in self.identities.file_tokens)

    def _require_free(self, name: str) -> None:
        if not is_token_name(name):
            raise wrong("name", "write 1 to 64 letters, digits, dots, hyphens and underscores")
        if name in OPERATORS:
            raise Conflict(f"{name!r} is the name of the local operator: choose another name")
        if name in self._file_names:
            raise Conflict(f"the configuration file has a token {name!r}: choose another name")

    def _scopes(self, by: Principal, params: api.CreateToken) -> frozenset[str]:
        """Returns the scopes of a new token. It reaches at most the agents of its creator."""
        given = frozenset([*(params.scopes or ("chat",)), *map(AGENT.__add__, params.agents or ())])
        wanted = principal(params.name, given)
        if unknown := sorted(wanted.scopes - SCOPES):
            one = unknown[0]
            raise wrong(
                "scopes", f"no scope {one[:64]!r}; {choose(one, (*sorted(SCOPES), 'agent:ID'))}"
            )
        if not wanted.scopes:
            raise wrong("scopes", "name at least one scope besides agent:ID")
        agents = wanted.agents or frozenset()
        if missing := sorted(agents - {*self.agents}):
            raise NotFound(f"agent {missing[0][:64]!r}")
        if by.agents is not None and not (agents and agents <= by.agents):
            raise Forbidden("your token reaches only some agents: name some of them with --agent")
        return given


def _expiry(text: str, now: datetime) -> datetime:
    """Raises InvalidParams."""
    try:
        found = moment_in(text, now)
    except ValueError as error:
        raise wrong("expires", str(error)) from None
    if found <= now:
        raise wrong("expires", "the time is in the past")
    return found


def _budget(given: int | api.TokenLimits) -> TokenBudget:
    if isinstance(given, int):
        return TokenBudget(daily=Limit(given))
    return TokenBudget(Limit(given.session), Limit(given.daily), Limit(given.monthly))


def _limits(budget: TokenBudget | None) -> dict[str, object] | None:
    """Returns the limits that are set."""
    if budget is None:
        return None
    limits = {name: getattr(budget, name) for name in ("session", "daily", "monthly")}
    found: dict[str, object] = {}
    for name, limit in limits.items():
        bounds = {unit: in_unit(unit, bound) for unit, bound in limit.bounds()}
        if bounds:
            found[name] = bounds["tokens"] if bounds.keys() == {"tokens"} else bounds
    return found


def _row(token: CreatedToken, now: datetime) -> api.TokenRow:
    rights = _rights(token.name, token.scopes, token.budget)
    return build(api.TokenRow, rights, token, source="created", state=token.state(now))


def _file_row(token: TokenDef, now: datetime, limits: LiveBudgets) -> api.TokenRow:
    is_over = token.expires_at is not None and token.expires_at <= now
    rights = _rights(token.name, token.scopes, limits.now.tokens.get(token.name))
    unknown = dict.fromkeys(("hint", "created_at", "created_by", "revoked_at", "last_used_at"))
    state = "expired" if is_over else "active"
    return build(api.TokenRow, rights, unknown, token, source="file", state=state)


def _rights(name: str, scopes: frozenset[str], budget: TokenBudget | None) -> dict[str, object]:
    who = principal(name, scopes)
    agents, own = sorted(who.agents or ()), sorted(who.scopes)
    return {"name": name, "scopes": own, "agents": agents, "budget": _limits(budget)}
