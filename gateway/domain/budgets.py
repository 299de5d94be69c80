"""Token budgets: limits, scopes, reservations and records of model calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, Protocol, get_args

from gateway.domain.agents import OWN_CHANNELS
from gateway.domain.errors import GatewayError
from gateway.domain.ids import RunId, SessionKey, decode_part
from gateway.domain.messages import Usage
from gateway.domain.settings import setting

NANO = 1_000_000_000  # money is counted in whole billionths of a dollar, so that sums are exact

ScopeKind = Literal["session", "agent", "day", "month", "token_session", "token_day", "token_month"]
SCOPE_KINDS: tuple[ScopeKind, ...] = get_args(ScopeKind)
Unit = Literal["tokens", "usd"]
Pricing = Literal["provider", "config", "table", "unpriced"]  # source of a call's price
# lost: the process died during the call. overrun: the reply exceeded its reservation.
Outcome = Literal["answered", "failed", "broken", "lost", "overrun"]
OPERATORS = frozenset({"local", "operator"})  # principals without a token


@dataclass(frozen=True, slots=True)
class Payer:
    """The session, run and person that a model call is charged to."""

    session_key: SessionKey
    run_id: RunId
    person: str | None = field(default=None, compare=False)
    # The first call of a run whose message was just committed.
    is_accepted: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Amount:
    tokens: int = 0
    nano_usd: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.tokens + other.tokens, self.nano_usd + other.nano_usd)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.tokens - other.tokens, self.nano_usd - other.nano_usd)

    def of(self, unit: Unit) -> int:
        return self.tokens if unit == "tokens" else self.nano_usd

    def beyond(self, other: "Amount") -> "Amount":
        """Returns, for each unit, by how much this amount exceeds the other."""
        return Amount(max(0, self.tokens - other.tokens), max(0, self.nano_usd - other.nano_usd))


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit in tokens and money; None means no limit in that unit."""

    tokens: int | None = setting(None, "Tokens, input plus output.", 0, 2**53)
    nano_usd: int | None = setting(
        None, "US dollars; every model needs a price.", 0, 1e9, key="usd", scale=NANO
    )

    def bounds(self) -> Sequence[tuple[Unit, int]]:
        pairs: Sequence[tuple[Unit, int | None]] = [("tokens", self.tokens), ("usd", self.nano_usd)]
        return [(unit, bound) for unit, bound in pairs if bound is not None]


NO_LIMIT = Limit()


class Scope(NamedTuple):
    """The subject of a limit. `name` is a session's key, an agent's id, or a UTC day or month. For
    a token it is the key of one of its sessions, or a day or month and the token's name, as in
    `2026-11-19 NAME`."""

    kind: ScopeKind
    name: str

    def __str__(self) -> str:
        match self.kind:
            case "agent":
                return f"agent:{self.name}"
            case "token_session" | "token_day" | "token_month":
                return f"token:{self.token}"
        return {"session": "session", "day": "daily", "month": "monthly"}[self.kind]

    @property
    def token(self) -> str:
        """The name of the token."""
        if self.kind == "token_session":
            return decode_part(self.name.split(":")[2])
        return self.name.partition(" ")[2]

    @property
    def period(self) -> str:
        """The day or month of the scope; empty if it has none."""
        return self.name.partition(" ")[0] if self.kind in PERIODIC else ""

    def at_least(self, day: str) -> "Scope":
        """Returns the same scope with a period not before that day."""
        period = self.period
        moved = max(period, day[: len(period)])
        return self if moved == period else self._replace(name=moved + self.name[len(period) :])

    @property
    def period_start(self) -> datetime | None:
        """The first moment of the period, or None for a scope without one."""
        if not self.period:
            return None
        return datetime.fromisoformat(f"{self.period}-01"[:10]).replace(tzinfo=UTC)

    @property
    def resets_at(self) -> datetime | None:
        """The start of the next period. None: the scope never resets."""
        start = self.period_start
        if start is None:
            return None
        if len(self.period) == len("2026-11-19"):
            return start + timedelta(days=1)
        return (start + timedelta(days=31)).replace(day=1)


PERIODIC = frozenset[ScopeKind]({"day", "month", "token_day", "token_month"})


def day_of(at: datetime) -> str:
    return at.astimezone(UTC).date().isoformat()


def scopes_of(session_key: SessionKey, day: str) -> tuple[Scope, ...]:
    """Returns the four scopes of a call, and the scopes of its token if it has one."""
    key, account = str(session_key), session_key.account
    scopes = (
        Scope("session", key),
        Scope("agent", str(session_key.agent)),
        Scope("day", day),
        Scope("month", day[:7]),
    )
    if session_key.channel not in OWN_CHANNELS or account in OPERATORS:
        return scopes
    days = (Scope("token_day", f"{day} {account}"), Scope("token_month", f"{day[:7]} {account}"))
    return (*scopes, Scope("token_session", key), *days)


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The limits of one token."""

    session: Limit = setting(Limit(), "Lifetime limit per session.")
    daily: Limit = setting(Limit(), "Limit per day (UTC).")
    monthly: Limit = setting(Limit(), "Limit per month (UTC).")

    def kinds(self) -> Sequence[ScopeKind]:
        return [kind for kind, name in _OF_TOKEN.items() if getattr(self, name) != NO_LIMIT]


_OF_TOKEN: Mapping[ScopeKind, str] = {
    "token_session": "session",
    "token_day": "daily",
    "token_month": "monthly",
}
NO_BUDGET = TokenBudget()


@dataclass(frozen=True, slots=True)
class Budgets:
    """The configured limits; `tokens` holds the limits of tokens by name."""

    session: Limit = setting(Limit(), "Lifetime limit per session.", usual=None)
    daily: Limit = setting(Limit(), "Limit per day (UTC), all sessions together.", usual=None)
    monthly: Limit = setting(Limit(), "Limit per month (UTC), all sessions together.", usual=None)
    per_agent: Limit = setting(Limit(), "Lifetime limit per agent.", usual=None)
    agents: Mapping[str, Limit] = setting(
        {}, "Limit of one agent by id, instead of per_agent.", key="agent", names="id"
    )
    tokens: Mapping[str, TokenBudget] = field(default_factory=dict)

    def kinds(self, agent: str) -> Sequence[ScopeKind]:
        """Returns the kinds of scope in which calls of this agent have a limit."""
        limits = (self.session, self.agents.get(agent, self.per_agent), self.daily, self.monthly)
        pairs = zip(SCOPE_KINDS, limits, strict=False)
        return [kind for kind, limit in pairs if limit != NO_LIMIT]

    def kinds_of_token(self, key: SessionKey) -> Sequence[ScopeKind]:
        """Returns the kinds of scope in which the token of this session has a limit."""
        is_own = key.channel in OWN_CHANNELS
        return self.tokens.get(key.account, NO_BUDGET).kinds() if is_own else ()

    def in_money(self, key: SessionKey) -> bool:
        """True if a call of this session may have a limit in money."""
        limits = [self.session, self.daily, self.monthly, self.per_agent, *self.agents.values()]
        if (own := self.tokens.get(key.account)) is not None:
            limits += (own.session, own.daily, own.monthly)
        return any(limit.nano_usd is not None for limit in limits)

    def limit(self, scope: Scope, raised: int = 0) -> Limit:
        """Returns the limit of a scope; `raised` is the number of tokens added today."""
        limit = self._limit(scope)
        if not raised or limit.tokens is None:
            return limit
        return Limit(limit.tokens + raised, limit.nano_usd)

    def _limit(self, scope: Scope) -> Limit:
        match scope.kind:
            case "session":
                return self.session
            case "agent":
                return self.agents.get(scope.name, self.per_agent)
            case "day":
                return self.daily
            case "month":
                return self.monthly
        budget = self.tokens.get(scope.token, NO_BUDGET)
        return getattr(budget, _OF_TOKEN[scope.kind])  # type: ignore[no-any-return]  # a limit each


@dataclass(frozen=True, slots=True)
class Tally:
    """The usage of a scope, and the amount held for open calls."""

    scope: Scope
    used: Amount = Amount()
    held: Amount = Amount()
    since: datetime | None = None  # its first call; None: there was none
    warned: str = ""  # the limit that was warned about
    raised: int = 0  # tokens added to the limit until `raised_until`
    raised_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission for a call, with the tokens that the reply may have and the amount held until the
    call is settled. `is_limited`: a limit applies to the call."""

    max_tokens: int
    held: Amount
    is_limited: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """The amount held for one call. `day` is never before the day of an earlier reservation."""

    id: str
    payer: Payer
    provider: str
    model: str
    at: datetime
    day: str
    input_tokens: int  # estimated
    held: Amount = Amount()

    @property
    def amount(self) -> Amount:
        """The usage of a call that was not sent."""
        return Amount()


@dataclass(frozen=True, slots=True)
class Resync:
    """The day that counts now, and the day that counted before. `records` is the number of calls of
    today or this month that were counted in a later day and are now counted in their own."""

    day: str
    was: str
    records: int = 0

    @property
    def is_changed(self) -> bool:
        return self.was > self.day


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """The permanent record of one model call. `id` is the id of its reservation."""

    id: str
    at: datetime
    session_key: SessionKey
    run_id: RunId
    provider: str
    model: str
    outcome: Outcome
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    nano_usd: int = 0
    pricing: Pricing = "unpriced"
    estimated: bool = False
    seq: int = 0  # order in the ledger; the store gives it
    person: str | None = None  # the speaker, if known

    @property
    def amount(self) -> Amount:
        return Amount(self.input_tokens + self.output_tokens, self.nano_usd)


@dataclass(frozen=True, slots=True)
class ModelSum:
    """The sum of all calls of a model."""

    provider: str
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    nano_usd: int


def with_others(models: Sequence[ModelSum], limit: int) -> Sequence[ModelSum]:
    """Returns the first `limit` models, and the sum of all others as `other`."""
    first, rest = models[:limit], models[limit:]
    if not rest:
        return first
    calls, sent, received, cost = (
        sum(getattr(one, name) for one in rest)
        for name in ("calls", "input_tokens", "output_tokens", "nano_usd")
    )
    return [*first, ModelSum("other", "other", calls, sent, received, cost)]


Grouping = Literal["agent", "model", "provider", "person", "channel", "day"]


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The sum of the calls of one group, such as an agent or a model, in some time."""

    name: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    nano_usd: int = 0

    def __add__(self, other: "UsageSum") -> "UsageSum":
        sums = (getattr(self, one) + getattr(other, one) for one in USAGE)
        return UsageSum(self.name, *sums)


USAGE = ("calls", "input_tokens", "output_tokens", "cached_tokens", "nano_usd")


@dataclass(frozen=True, slots=True)
class Raise:
    """The tokens added to a scope's limit today in all, and the end of the raise."""

    scope: str
    tokens: int
    until: datetime


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Selects records, newest first; None means any. `before` is the `seq` of the last record of
    the previous page."""

    session_key: SessionKey | None = None
    agent: str | None = None
    provider: str | None = None
    model: str | None = None
    since: datetime | None = None
    until: datetime | None = None  # exclusive
    before: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class RecordPage:
    records: tuple[TokenRecord, ...]
    more: bool


def in_unit(unit: Unit, amount: int) -> int | float:
    """Returns an amount in tokens or, from billionths, in US dollars."""
    return amount if unit == "tokens" else amount / NANO


class BudgetExceeded(GatewayError):
    """A call was refused before anything was sent."""

    code = "budget_exceeded"

    def __init__(
        self,
        tally: Tally,
        unit: Unit,
        limit: int,
        *,
        retry_after_s: float | None = None,
        waits_for: frozenset[Scope] = frozenset(),
    ) -> None:
        """`waits_for`: the scopes in which the call fits once other calls have ended, whatever
        their period."""
        used, reserved = tally.used.of(unit), tally.held.of(unit)
        self.scope, self.unit = str(tally.scope), unit
        self.tally, self.bound, self.waits_for = tally, limit, waits_for
        amounts = (used, reserved, limit, used + reserved)
        self.used, self.reserved, self.limit, self.taken = (in_unit(unit, one) for one in amounts)
        self.resets_at = tally.scope.resets_at
        self.retry_after_s = retry_after_s
        self.retryable = retry_after_s is not None or self.resets_at is not None
        money = "" if unit == "tokens" else " USD"
        super().__init__(f"token budget exceeded ({self.scope}: {self.taken}/{self.limit}{money})")

    @property
    def facts(self) -> Mapping[str, object]:
        """The data of the refusal for programs."""
        names = ["scope", "used", "reserved", "limit", "unit", "resets_at"]
        names += ["retry_after_s"] if self.retry_after_s is not None else []
        return {name: getattr(self, name) for name in names}


Decide = Callable[[Sequence[Tally]], Grant]  # pure; raises BudgetExceeded
Due = Callable[[Tally], str]  # pure; the limit to warn about, or ""
Ended = TokenRecord | Reservation  # a call's record, or the reservation of one never sent


class Prices(Protocol):
    def cost(
        self, provider: str, model: str, usage: Usage, at: datetime
    ) -> tuple[int, Pricing] | None:
        """Returns billionths of a dollar and the source of the price, or None if it is unknown."""
        ...
