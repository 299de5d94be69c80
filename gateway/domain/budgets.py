"""Token budgets: limits, scopes, reservations and records of model calls, and the ports that keep them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Literal, NamedTuple, Protocol, get_args

from gateway.domain.agents import OWN_CHANNELS
from gateway.domain.errors import GatewayError
from gateway.domain.ids import RunId, SessionKey, decode_part
from gateway.domain.messages import Usage
from gateway.domain.settings import Setting, setting

NANO = 1_000_000_000  # money is counted in whole billionths of a dollar, so that sums are exact

ScopeKind = Literal["session", "agent", "day", "month", "token_session", "token_day", "token_month"]
SCOPE_KINDS: tuple[ScopeKind, ...] = get_args(ScopeKind)
Unit = Literal["tokens", "usd"]
Pricing = Literal["provider", "config", "table", "unpriced"]  # who said what a call cost
# lost: the process died meanwhile. overrun: it wrote more than was reserved.
Outcome = Literal["answered", "failed", "broken", "lost", "overrun"]
OPERATORS = frozenset({"local", "operator"})  # principals that are nobody's token


@dataclass(frozen=True, slots=True)
class Payer:
    """Who pays for a model call. `person` is who speaks, where that is known."""

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
        """By how much each unit is more than the other's."""
        return Amount(max(0, self.tokens - other.tokens), max(0, self.nano_usd - other.nano_usd))


@dataclass(frozen=True, slots=True)
class Limit:
    """None: no bound in this unit."""

    tokens: int | None = setting(None, "Tokens, input plus output.", 0, 2**53)
    nano_usd: int | None = setting(
        None, "US dollars; every model needs a price.", 0, 1e9, key="usd", scale=NANO
    )

    def bounds(self) -> Sequence[tuple[Unit, int]]:
        pairs: Sequence[tuple[Unit, int | None]] = [("tokens", self.tokens), ("usd", self.nano_usd)]
        return [(unit, bound) for unit, bound in pairs if bound is not None]


class Scope(NamedTuple):
    """What a limit holds for: a session by its key, an agent by its id, a day or a month of UTC; of
    a token each of its sessions by its key, and its days and months as `2026-11-19 NAME`."""

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
        """Of which token."""
        if self.kind == "token_session":
            return decode_part(self.name.split(":")[2])
        return self.name.partition(" ")[2]

    @property
    def period(self) -> str:
        """Its day or month; empty: it has none."""
        return self.name.partition(" ")[0] if self.kind in PERIODIC else ""

    def at_least(self, day: str) -> "Scope":
        """The same scope in a period that is not before that day."""
        period = self.period
        moved = max(period, day[: len(period)])
        return self if moved == period else self._replace(name=moved + self.name[len(period) :])

    @property
    def period_start(self) -> datetime | None:
        """None: it has no period."""
        if not (period := self.period):
            return None
        start = date.fromisoformat(f"{period}-01"[:10])
        return datetime(start.year, start.month, start.day, tzinfo=UTC)

    @property
    def resets_at(self) -> datetime | None:
        """When its next period begins; None: it never resets by itself."""
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
    """The scopes of a call: four, and those of a token whose call it is."""
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
    """What one token may spend."""

    session: Limit = setting(Limit(), "Lifetime limit per session.")
    daily: Limit = setting(Limit(), "Limit per day (UTC).")
    monthly: Limit = setting(Limit(), "Limit per month (UTC).")

    def kinds(self) -> Sequence[ScopeKind]:
        return [kind for kind, name in _OF_TOKEN.items() if getattr(self, name) != Limit()]


_OF_TOKEN: Mapping[ScopeKind, str] = {
    "token_session": "session",
    "token_day": "daily",
    "token_month": "monthly",
}
NO_BUDGET = TokenBudget()


@dataclass(frozen=True, slots=True)
class Budgets:
    """The limits of the configuration, and of `tokens` by name."""

    session: Limit = setting(Limit(), "Lifetime limit per session.", usual=None)
    daily: Limit = setting(Limit(), "Limit per day (UTC), all sessions together.", usual=None)
    monthly: Limit = setting(Limit(), "Limit per month (UTC), all sessions together.", usual=None)
    per_agent: Limit = setting(Limit(), "Lifetime limit per agent.", usual=None)
    agents: Annotated[
        Mapping[str, Limit],
        Setting("Limit of one agent by id, instead of per_agent.", key="agent", names="id"),
    ] = field(default_factory=dict)
    tokens: Mapping[str, TokenBudget] = field(default_factory=dict)

    def kinds(self, agent: str) -> Sequence[ScopeKind]:
        """The kinds of scope in which a call of this agent has a limit, whoever asked for it."""
        found: list[ScopeKind] = []
        limits = (self.session, self.agents.get(agent, self.per_agent), self.daily, self.monthly)
        for kind, limit in zip(SCOPE_KINDS, limits, strict=False):
            if limit.tokens is not None or limit.nano_usd is not None:
                found.append(kind)
        return found

    def kinds_of_token(self, key: SessionKey) -> Sequence[ScopeKind]:
        """Those in which the token has a limit whose session this is."""
        is_own = key.channel in OWN_CHANNELS
        return self.tokens.get(key.account, NO_BUDGET).kinds() if is_own else ()

    def in_money(self, key: SessionKey) -> bool:
        """Whether a call of this session may have a limit in money."""
        limits = [self.session, self.daily, self.monthly, self.per_agent, *self.agents.values()]
        if (own := self.tokens.get(key.account)) is not None:
            limits += (own.session, own.daily, own.monthly)
        return any(limit.nano_usd is not None for limit in limits)

    def limit(self, scope: Scope, raised: int = 0) -> Limit:
        """`raised`: by how many tokens today."""
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
    """What a scope has used, and what is held for open calls."""

    scope: Scope
    used: Amount = Amount()
    held: Amount = Amount()
    since: datetime | None = None  # its first call; None: there was none
    warned: str = ""  # the limit about which somebody was warned
    raised: int = 0  # tokens more than its limit, until then
    raised_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """A call may be made: with so many tokens of reply, and this held for it until it is settled.
    `is_limited`: some limit holds for it."""

    max_tokens: int
    held: Amount
    is_limited: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is held for one call. `day` is never before that of an earlier reservation."""

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
        """What a call came to that was not sent."""
        return Amount()


@dataclass(frozen=True, slots=True)
class Resync:
    """The day that counts, and the one that did before. `records` are now counted where they belong:
    they were made today or this month, and counted in a day to come."""

    day: str
    was: str
    records: int = 0

    @property
    def is_changed(self) -> bool:
        return self.was > self.day


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One provider call, for ever. `id` is its reservation's."""

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
    person: str | None = None  # who spoke, where that was known

    @property
    def amount(self) -> Amount:
        return Amount(self.input_tokens + self.output_tokens, self.nano_usd)


@dataclass(frozen=True, slots=True)
class ModelSum:
    """All calls of a model so far."""

    provider: str
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    nano_usd: int


def with_others(models: Sequence[ModelSum], limit: int) -> Sequence[ModelSum]:
    """The first `limit` models, and the sum of the others as `other`."""
    told, rest = models[:limit], models[limit:]
    if not rest:
        return told
    calls, sent, received, cost = (
        sum(getattr(one, name) for one in rest)
        for name in ("calls", "input_tokens", "output_tokens", "nano_usd")
    )
    return [*told, ModelSum("other", "other", calls, sent, received, cost)]


Grouping = Literal["agent", "model", "provider", "person", "channel", "day"]


@dataclass(frozen=True, slots=True)
class UsageSum:
    """All calls of one agent, model … in some time. `name` says which."""

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
    """By how much a scope's limit is raised today in all, and when that ends."""

    scope: str
    tokens: int
    until: datetime


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Newest first; None means any. `before` is the `seq` of the last one of the page before."""

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


def shown(unit: Unit, amount: int) -> int | float:
    return amount if unit == "tokens" else amount / NANO


class BudgetExceeded(GatewayError):
    """Refused before anything was sent."""

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
        """`waits_for`: it fits as soon as others are done in these scopes, whatever their period."""
        used, reserved = tally.used.of(unit), tally.held.of(unit)
        self.scope, self.unit = str(tally.scope), unit
        self.tally, self.bound, self.waits_for = tally, limit, waits_for
        self.used, self.reserved, self.limit = (shown(unit, one) for one in (used, reserved, limit))
        self.taken = shown(unit, used + reserved)
        self.resets_at = tally.scope.resets_at
        self.retry_after_s = retry_after_s
        self.retryable = retry_after_s is not None or self.resets_at is not None
        money = "" if unit == "tokens" else " USD"
        super().__init__(f"token budget exceeded ({self.scope}: {self.taken}/{self.limit}{money})")

    @property
    def facts(self) -> Mapping[str, object]:
        """What a program wants to know of it."""
        names = ("scope", "used", "reserved", "limit", "unit", "resets_at")
        facts = {name: getattr(self, name) for name in names}
        after_s = self.retry_after_s
        return facts if after_s is None else facts | {"retry_after_s": after_s}


Decide = Callable[[Sequence[Tally]], Grant]  # pure; raises BudgetExceeded
Due = Callable[[Tally], str]  # pure; the limit that somebody has to be warned about, or nothing
Ended = TokenRecord | Reservation  # what a call came to, or what was held for one that was not sent


class Prices(Protocol):
    def cost(
        self, provider: str, model: str, usage: Usage, at: datetime
    ) -> tuple[int, Pricing] | None:
        """Billionths of a dollar, and who says so; None: nobody knows."""
        ...
