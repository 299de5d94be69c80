"""Budgets and their use, records of model calls and their sums, and tokens for clients."""

from datetime import datetime
from typing import Annotated, Literal

from gateway.api.declarations import (
    ADMIN,
    READ,
    Check,
    Flag,
    Key,
    Method,
    Moment,
    Params,
    Text,
    Value,
    Verb,
    whole,
)
from gateway.domain.budgets import Grouping, Outcome, Pricing, Unit
from gateway.domain.ids import SessionKey
from gateway.domain.tokens import TokenState

# -- budgets and records


class BudgetOf(Params):
    """Show the use and the rest of each budget."""

    session_key: Annotated[Key, "Also show the budget of this session."] | None = None


class BudgetRow(Value):
    """A scope in one unit; `limit` is null if it has no limit. A raise of `raised_by` tokens holds `until` that time."""

    scope: str
    limit: float | None
    used: float
    reserved: float
    period_start: datetime | None
    resets_at: datetime | None
    unit: Unit
    raised_by: int | None = None
    until: datetime | None = None
    why: str | None = None  # set if the counted day or month differs from the clock's


class BudgetStatus(Value):
    budgets: list[BudgetRow]


class RaiseBudget(Params):
    """Raise a limit until the end of the day (UTC). The configuration does not change."""

    scope: Text
    by: Annotated[int, whole(ge=1, le=2**53)]
    today: Annotated[bool, Check(strict=True, says={"enum": [True]})]


class BudgetRaised(Value):
    """The raise of a limit. `raised_by` sums all raises of this day."""

    scope: str
    raised_by: int
    until: datetime


class ResyncBudget(Params):
    """Count spending by the clock again, after the clock was far ahead."""


class BudgetResync(Value):
    """The result of a resync. `was` is the day that counted before; `records` is the number of records that moved
    to another day."""

    changed: bool
    day: str
    was: str | None
    records: int


class BudgetRecords(Params):
    """List the calls of models, newest first."""

    session_key: Key | None = None
    agent: Text | None = None
    provider: Text | None = None
    model: Text | None = None
    from_: Moment | None = None
    to: Moment | None = None
    before: Annotated[int, Check(ge=1, lt=2**63)] | None = None
    limit: Annotated[int, Check(ge=1, le=1_000)] = 100


class SpendingRecord(Value):
    """One call of a model."""

    seq: int
    id: str
    timestamp: datetime
    session_key: SessionKey
    agent_id: str
    run_id: str
    provider: str
    model: str
    outcome: Outcome
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost_estimate_usd: float
    pricing: Pricing
    estimated: bool


class SpendingPage(Value):
    """Records, newest first."""

    records: list[SpendingRecord]
    more: bool


# The published patterns are narrower than the parsers, which also accept ISO 8601 times and the scope `agent:ID`.
Ago = Annotated[str, Check(min_length=1, max_length=256, says={"pattern": "^[0-9]{1,3}[smhdw]$"})]
Later = Annotated[
    str, Check(min_length=1, max_length=256, says={"pattern": "^[1-9][0-9]{0,2}[smhdw]$"})
]
_SCOPES = {"pattern": "^(admin|chat|impersonate|metrics|read)$"}
TokenScope = Annotated[str, Check(min_length=1, max_length=256, says=_SCOPES)]
_NAMES = {"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}
TokenName = Annotated[str, Check(min_length=1, max_length=256, says=_NAMES)]


class ReportUsage(Params):
    """Sum up the calls of models by agent, model, provider, person, channel or day."""

    by: Grouping = "agent"
    since: Annotated[Ago, "Start: 90s, 12h or 7d ago, or a time."] | None = None
    until: Annotated[Ago, "End, exclusive, in the same form."] | None = None


class UsageFigures(Value):
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float


class UsageRow(UsageFigures):
    """A sum of calls; the field that the report groups by has its value."""

    agent: str | None = None
    model: str | None = None
    provider: str | None = None
    person: str | None = None
    channel: str | None = None
    day: str | None = None


class UsageReport(Value):
    rows: list[UsageRow]
    total: UsageFigures


# -- tokens

Amount = Annotated[int, whole(ge=0, le=2**53)]


class TokenLimits(Params):
    """The model tokens that a token may use: in each session, a day and a month (UTC)."""

    session: Amount | None = None
    daily: Amount | None = None
    monthly: Amount | None = None


class CreateToken(Params):
    """Create a token for a program or a person. It is shown once."""

    name: TokenName
    scopes: Annotated[list[TokenScope], Check(min_length=1, max_length=100)] | None = None
    agents: Annotated[list[Text], Check(max_length=100)] | None = None
    expires: Later | None = None
    budget: Amount | TokenLimits | None = None
    inherit: Flag = False


class TokenRow(Value):
    """A token. `source` is `file` if the configuration defines it; its creation and use are then unknown.
    `hint` is the start of the token. `agents` lists the agents that it may reach; empty: all."""

    name: str
    scopes: list[str]
    agents: list[str]
    source: Literal["created", "file"]
    state: TokenState
    hint: str | None
    created_at: datetime | None
    created_by: str | None
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    budget: dict[str, object] | None


class TokenCreated(TokenRow):
    token: str


class ListTokens(Params):
    """List tokens with their scopes, expiry and last use."""


class TokenList(Value):
    tokens: list[TokenRow]


class RevokeToken(Params):
    """Revoke a token. Its connections are closed; its accepted runs finish."""

    name: Text


class TokenRevoked(Value):
    name: str
    state: Literal["revoked"]
    revoked_at: datetime


METHODS = (
    Method(
        "budget.status",
        BudgetOf,
        READ,
        BudgetStatus,
        verb=Verb(columns="scope unit used reserved limit raised_by resets_at why"),
    ),
    Method("budget.records", BudgetRecords, READ, SpendingPage),
    Method("budget.raise", RaiseBudget, ADMIN, BudgetRaised, all_agents=True),
    Method("usage.report", ReportUsage, READ, UsageReport, all_agents=True),
    Method("token.create", CreateToken, ADMIN, TokenCreated),
    Method(
        "token.list",
        ListTokens,
        ADMIN,
        TokenList,
        all_agents=True,
        verb=Verb(
            columns="name state scopes agents budget created_at created_by expires_at last_used_at source",
            empty="no tokens; create one with `exogate token create NAME`",
        ),
    ),
    Method(
        "token.revoke", RevokeToken, ADMIN, TokenRevoked, all_agents=True, verb=Verb(takes="name")
    ),
    Method("budget.resync", ResyncBudget, ADMIN, BudgetResync, verb=Verb()),
)
