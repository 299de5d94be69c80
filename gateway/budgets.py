"""The budgets: every model call is reserved before it is made and settled after it.

The meter stands before each provider. It estimates a call, asks the ledger for room within all limits,
waits in a queue while other calls hold the room, and records what the call came to.
"""

import logging
from bisect import insort_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import takewhile
from math import ceil

from anyio import Event, get_cancelled_exc_class, move_on_after

from gateway.domain.agents import share_of
from gateway.domain.budgets import (
    NANO,
    PERIODIC,
    Amount,
    BudgetExceeded,
    Budgets,
    Ended,
    Grant,
    Outcome,
    Prices,
    Raise,
    Reservation,
    Resync,
    Scope,
    ScopeKind,
    Tally,
    TokenBudget,
    TokenRecord,
    Unit,
    day_of,
    in_unit,
    scopes_of,
)
from gateway.domain.errors import Conflict, ModelFailed, NeverSent, NotFound, StoreUnavailable
from gateway.domain.events import AuditEvent, Recurrences
from gateway.domain.figures import Figures
from gateway.domain.ids import SessionKey
from gateway.domain.messages import BYTES_A_TOKEN, MESSAGE_OVERHEAD, Usage
from gateway.domain.model import BudgetWarning, ModelReply, ModelRequest, OnDelta, ReplyProgress
from gateway.domain.ports import Audit, Clock, Ids, Ledger, Model

log = logging.getLogger(__name__)

# -- the queue of calls that wait for tokens which other calls have reserved

Scopes = frozenset[Scope]
NO_SCOPES: Scopes = frozenset()


def without_period(scopes: Iterable[Scope]) -> Scopes:
    """Returns the scopes without the names of days and months, which do not matter to waiting calls."""
    return frozenset(
        scope._replace(name=scope.name[len(scope.period) :]) if scope.kind in PERIODIC else scope
        for scope in scopes
    )


@dataclass(slots=True, eq=False)
class QueuePlace:
    """The place of one waiting call. `blocked`: the scopes without room when it last tried."""

    scopes: Scopes
    turn: int  # counted by principal; the lowest goes first
    blocked: Scopes = NO_SCOPES
    is_due: bool = False  # something changed since, so it may try again
    is_trying: bool = True
    woken: Event = field(default_factory=Event)

    @property
    def claims(self) -> Scopes:
        """Returns the scopes in which no later call may go first."""
        return self.scopes if self.is_trying else self.blocked


# Every call has a day and a month. If one of them is claimed, no call behind it may try.
_COMMON = frozenset({Scope("day", ""), Scope("month", "")})


class BudgetQueue:
    """One queue for all budgets. The ledger decides whether a call fits; the queue knows no amounts."""

    def __init__(self) -> None:
        self.places: list[QueuePlace] = []  # in the order in which they are served
        self._turns: dict[Hashable, int] = {}  # the last of each principal, while calls wait
        self._claims: Counter[Scope] = Counter()
        self.changes = 0  # number of events that may let a waiting call try again

    def claimed(self, scopes: Scopes, place: QueuePlace | None) -> Scopes:
        """Returns the scopes that an earlier call waits for."""
        if place is None:
            return frozenset(scope for scope in scopes if scope in self._claims)
        earlier = takewhile(lambda other: other is not place, self.places)
        return scopes & NO_SCOPES.union(*(other.claims for other in earlier))

    def join(self, scopes: Scopes, whose: Hashable) -> QueuePlace:
        """Adds a call that has tried, behind the other calls of its principal and before calls with a later
        turn."""
        first = self.places[0].turn if self.places else 0
        turn = max(first, self._turns.get(whose, -1) + 1)
        place = QueuePlace(scopes, turn)
        self._turns[whose] = turn
        insort_right(self.places, place, key=lambda other: other.turn)
        self._claims.update(place.claims)
        return place

    def block(self, place: QueuePlace, blocked: Scopes, seen: int) -> None:
        """Notes that a try failed. `seen`: `changes` when the try began."""
        is_due, released = self.changes != seen, place.claims - blocked
        self._claims -= Counter(place.claims)
        place.blocked, place.is_trying = blocked, False
        place.is_due, place.woken = is_due, Event()
        self._claims.update(blocked)
        self.release(released, self.places.index(place) + 1)

    def leave(self, place: QueuePlace) -> None:
        """Removes a call that was granted or no longer waits."""
        at = self.places.index(place)
        del self.places[at]
        self._claims -= Counter(place.claims)
        if not self.places:
            self._turns.clear()
        self.release(place.claims, at)

    @property
    def waited_for(self) -> Scopes:
        return frozenset(self._claims)

    def release(self, scopes: Scopes, first: int = 0) -> None:
        """Lets calls from the place `first` on try again if one of the scopes blocks them, each at its turn.
        Called when a reservation is settled or a call no longer claims the scopes."""
        self.changes += 1
        for place in self.places[first:]:
            place.is_due = place.is_due or not place.blocked.isdisjoint(scopes)
        claimed: set[Scope] = set()
        for place in self.places:
            if place.is_due and not place.is_trying and claimed.isdisjoint(place.scopes):
                self._claims -= Counter(place.claims)
                place.is_due, place.is_trying = False, True
                self._claims.update(place.claims)
                place.woken.set()
            claimed |= place.claims
            if not claimed.isdisjoint(_COMMON):
                return


# -- estimates of the tokens of a prompt, corrected by what providers report

KEPT = 4096  # sessions and models; about 0.3 kB each
# The first estimate is rather too high. The excess is released when the call ends.
FIRST = 1.25
# The weight of the old correction if a report is below it. A report above it counts at once.
_MEMORY = 0.8
# A reply is cut off only if it is certainly too long. So a token of a reply counts more bytes than one
# of a prompt: at least BYTES_OF_REPLY, and more for a model whose replies had more, with a margin.
BYTES_OF_REPLY, MOST_OF_REPLY, MARGIN = 4.0, 8.0, 1.1
WITHOUT_LIMIT = 32  # bytes a token where no limit holds: only an endless reply is cut off
LEAST_LEARNED = 512  # bytes; shorter replies teach nothing
# Tokens. A provider may add a fixed cost to every prompt, so a shorter prompt says little about long ones.
SHORT = 100
# Bounds of a correction: cheap text must not make a dense prompt look cheap.
_BOUNDS = (0.5, 50.0)


class Estimates:
    """Corrections of estimates by session and model. A new session begins with the correction of its
    model. `densities` are upper bounds of the bytes a token in replies of a model."""

    def __init__(self) -> None:
        self._corrections: OrderedDict[tuple[SessionKey | None, str], float] = OrderedDict()
        self.densities: OrderedDict[str, float] = OrderedDict()

    def of(self, raw: int, session: SessionKey, model: str) -> int:
        """Returns the corrected estimate. `raw` is `prompt_tokens` of the request."""
        known = self._corrections
        correction = known.get((session, model)) or known.get((None, model)) or FIRST
        return ceil(raw * correction)

    def learn_reply(self, size: int, model: str, reported: int) -> None:
        """Learns the density of a reply of `size` bytes with `reported` tokens, without hidden reasoning."""
        if reported <= 0:
            return
        seen = min(MOST_OF_REPLY, MARGIN * size / reported)
        if seen > self.densities.get(model, BYTES_OF_REPLY):
            self.densities[model] = seen
            if len(self.densities) > KEPT:
                self.densities.popitem(last=False)

    def learn(self, raw: int, session: SessionKey, model: str, reported: int) -> None:
        if raw <= 0 or reported <= 0:
            return
        lowest, highest = _BOUNDS
        padding = max(0, SHORT - raw)
        taught: dict[tuple[SessionKey | None, str], float] = {(session, model): reported / raw}
        taught[None, model] = (reported + padding * FIRST) / (raw + padding)
        for key, ratio in taught.items():
            seen = min(highest, max(lowest, ratio))
            old = self._corrections.pop(key, seen)
            self._corrections[key] = max(seen, old * _MEMORY + seen * (1 - _MEMORY))
        while len(self._corrections) > KEPT:
            self._corrections.popitem(last=False)


def prompt_tokens(request: ModelRequest) -> int:
    """Estimates the tokens of a prompt from its bytes, without correction."""
    size = len(request.system.encode())
    for tool in request.tools:
        size += len((tool.name + tool.description + tool.parameters).encode())
    for message in request.messages:
        if "size" not in message.kept:  # counted once
            texts = [message.text, message.thinking]
            for call in message.tool_calls:
                texts += (call.id, call.name, call.arguments)
            if message.result is not None:
                texts += (message.result.call_id, message.result.for_model)
            message.kept["size"] = len("".join(texts).encode())
        size += message.kept["size"]
    return ceil(size / BYTES_A_TOKEN) + MESSAGE_OVERHEAD * len(request.messages)


# -- whether a call may be made, with how long a reply, and when to warn; pure

# The wait before a retry if only reservations are in the way: some have ended by then.
HELD_RETRY_S = 5.0
LEAST_REPLY = 256  # tokens; a shorter reply is not worth its prompt
WARNING_PERCENT = 80
NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class ReserveRequest:
    """Estimates for a call: its prompt alone, and its prompt with the longest reply."""

    input_tokens: int
    max_tokens: int
    prompt_nano_usd: int = 0
    whole_nano_usd: int = 0
    at: datetime = field(kw_only=True)

    @property
    def reply_nano_usd(self) -> int:
        return self.whole_nano_usd - self.prompt_nano_usd

    def amount(self, reply: int) -> Amount:
        money = -(-self.reply_nano_usd * reply // max(1, self.max_tokens))
        return Amount(self.input_tokens + reply, self.prompt_nano_usd + money)


def grant(
    budgets: Budgets, ask: ReserveRequest, tallies: Sequence[Tally], claimed: Scopes = NO_SCOPES
) -> Grant:
    """Grants the longest reply that fits beside what is used, in every scope.

    Raises BudgetExceeded with the tightest scope if not even a short reply fits. Raises it with
    `waits_for` if the call fits only after other calls are settled, or if an earlier call waits for
    the same scopes (`claimed`).
    """
    bounds = [
        (tally, *one)
        for tally in tallies
        for one in budgets.limit(tally.scope, tally.raised).bounds()
    ]
    if not bounds:
        return Grant(ask.max_tokens, ask.amount(ask.max_tokens))
    rooms = [(_longest_reply(ask, *one), one) for one in bounds]
    fits, (tally, unit, bound) = min(rooms, key=lambda room: room[0])
    if fits < min(LEAST_REPLY, ask.max_tokens):
        resets = tally.scope.resets_at
        left_s = None if resets is None else max(0.0, (resets - ask.at).total_seconds())
        raise BudgetExceeded(tally, unit, bound, retry_after_s=left_s)
    reply = min(fits, ask.max_tokens)
    held = ask.amount(reply)
    _require_free(ask, held, bounds, claimed)
    return Grant(reply, held, is_limited=True)


_Bound = tuple[Tally, Unit, int]


def _require_free(
    ask: ReserveRequest, held: Amount, bounds: Sequence[_Bound], claimed: Scopes
) -> None:
    """Raises BudgetExceeded with the scopes to wait for."""
    full = []
    for tally, unit, bound in bounds:
        is_full = (tally.used + tally.held + held).of(unit) > bound and held.of(unit) > 0
        if is_full or without_period([tally.scope]) & claimed:
            full.append((tally, unit, bound))
    if full:
        tally, unit, bound = min(full, key=lambda one: _longest_reply(ask, *one, held=one[0].held))
        blocked = without_period(one[0].scope for one in full)
        raise BudgetExceeded(tally, unit, bound, retry_after_s=HELD_RETRY_S, waits_for=blocked)


def _longest_reply(
    ask: ReserveRequest, tally: Tally, unit: Unit, bound: int, *, held: Amount = NOTHING
) -> int:
    """Returns the longest reply in tokens beside the used and `held` amounts; negative if not even the
    prompt fits. Only a bound in money converts money into tokens."""
    if unit == "usd" and bound and not ask.whole_nano_usd:
        return ask.max_tokens  # a call that costs nothing fits
    left = bound - tally.used.of(unit) - held.of(unit)
    if left <= 0:
        return left - ask.input_tokens - 1
    if unit == "tokens":
        return left - ask.input_tokens
    if ask.whole_nano_usd <= left:
        return ask.max_tokens
    return (left - ask.prompt_nano_usd) * ask.max_tokens // max(1, ask.reply_nano_usd)


def due(budgets: Budgets, tally: Tally) -> str:
    """Returns the limit as text if a warning is due, else an empty text."""
    limit = budgets.limit(tally.scope, tally.raised)
    shares = [(tally.used.of(unit) * 100, bound) for unit, bound in limit.bounds()]
    is_due = any(used >= bound * WARNING_PERCENT for used, bound in shares)
    return f"{limit.tokens}/{limit.nano_usd}" if is_due else ""


def fullest(budgets: Budgets, tally: Tally) -> tuple[Unit, int, int]:
    """Returns (unit, used, limit) of the nearest bound. The scope must have one."""
    bounds = dict(budgets.limit(tally.scope, tally.raised).bounds())
    unit = max(bounds, key=lambda unit: tally.used.of(unit) / max(1, bounds[unit]))
    return unit, tally.used.of(unit), bounds[unit]


# -- the limits in force

NO_TOKENS: Mapping[str, TokenBudget] = {}


class LiveBudgets:
    """The limits of the configuration and of tokens, from the file or created at run time. A call is bound
    by the limits at its time, also in a run that began before a change."""

    def __init__(self, budgets: Budgets, tokens: Mapping[str, TokenBudget] = NO_TOKENS) -> None:
        self.now = budgets
        self._created = NO_TOKENS
        self.configure(budgets, tokens)

    def configure(self, budgets: Budgets, tokens: Mapping[str, TokenBudget] = NO_TOKENS) -> None:
        """Replaces the limits. `tokens` are the tokens of the file that have a budget."""
        self._file = tokens
        self.kinds: dict[str, Sequence[ScopeKind]] = {}  # scopes with a limit, by agent
        self.now = replace(budgets, tokens={**self._created, **tokens})

    def of_created(self, tokens: Mapping[str, TokenBudget]) -> None:
        self._created = tokens
        self.configure(self.now, self._file)


# -- the meter

# A call stops waiting this long before its deadline, so that the refusal still reaches the client.
LAST_S = 0.5
MOST_UNWRITTEN = 1000  # records that wait for the store; the next start settles others


@dataclass(slots=True)
class Meter:
    """One meter for all providers."""

    ledger: Ledger
    limits: LiveBudgets
    prices: Prices
    clock: Clock
    ids: Ids
    audit: Audit
    estimates: Estimates = field(default_factory=Estimates)
    queue: BudgetQueue = field(default_factory=BudgetQueue)
    refusals: Counter[str] = field(default_factory=Counter)  # by scope
    figures: Figures = field(default_factory=Figures)
    publish: Callable[[], object] = lambda: None  # makes other nodes read the ledger
    _recurrences: Recurrences = field(default_factory=Recurrences)
    _unwritten: dict[str, Ended] = field(default_factory=dict)

    @property
    def budgets(self) -> Budgets:
        return self.limits.now

    def renew(self, prices: Prices) -> None:
        """Replaces the prices, and lets waiting calls try under the current limits."""
        self.prices = prices
        self.queue.release(frozenset(scope for one in self.queue.places for scope in one.scopes))

    def around(self, model: Model) -> Model:
        return Metered(self, model)

    async def settle_lost(self) -> None:
        """Records the reservations of the process before as spent. Called at the start."""
        lost = await self.ledger.unsettled()
        for one in lost:
            sent = min(one.input_tokens, one.held.tokens)
            usage = Usage(sent, one.held.tokens - sent, estimated=True)
            record = self.record(one, "lost", usage)
            await self.ledger.settle(replace(record, nano_usd=one.held.nano_usd or record.nano_usd))
        if lost:
            log.warning("lost_calls_settled", extra={"calls": len(lost)})

    def try_again(self) -> None:
        """Lets waiting calls try again, because another node may have made room."""
        if self.queue.places:
            blocked = (one.blocked for one in self.queue.places)
            self.queue.release(NO_SCOPES.union(*blocked))

    async def resync(self, actor: str) -> Resync:
        """Sets the ledger back to the day of the clock, which was ahead before. Raises StoreUnavailable."""
        now = self.clock.now()
        done = await self.ledger.resync(now)
        if done.is_changed:
            detail = {"day": done.day, "was": done.was, "records": done.records}
            await self.audit.append(AuditEvent(now, "budget.resynced", actor, detail))
            self.queue.release(_COMMON)
        return done

    async def raise_today(self, scope: str, tokens: int, actor: str) -> Raise:
        """Raises a limit at once, until the end of the day. The raises of a day add up. Raises NotFound
        or Conflict if there is no such limit, and StoreUnavailable."""
        self._require_limit(scope)
        now = self.clock.now()
        done = await self.ledger.raise_today(
            scope, tokens, AuditEvent(now, "budget.raised", actor, {})
        )
        self.publish()
        log.info(
            "budget_raised",
            extra={"scope": scope, "by": tokens, "raised_by": done.tokens, "actor": actor},
        )
        self.queue.release(self.queue.waited_for)
        return done

    def _require_limit(self, scope: str) -> None:
        kind, _, name = scope.partition(":")
        budgets = self.limits.now
        match kind:
            case "session" | "daily" | "monthly" if not name:
                limits = [getattr(budgets, kind)]
            case "agent":
                limits = [budgets.limit(Scope("agent", name))]
            case "token" if (budget := budgets.tokens.get(name)) is not None:
                limits = [budget.session, budget.daily, budget.monthly]
            case _:
                raise NotFound(f"budget {scope[:100]!r}")
        if all(limit.tokens is None for limit in limits):
            raise Conflict(f"{scope} has no limit in tokens, so there is nothing to raise")

    async def reserve(self, request: ModelRequest, raw: int) -> tuple[Reservation, Grant]:
        """Reserves a call. Waits while other calls have reserved the room. Raises BudgetExceeded, and
        ModelFailed if the ledger cannot be written."""
        payer, now = request.payer, self.clock.now()
        assert payer is not None, "the request has no payer"
        expected = self.estimates.of(raw, payer.session_key, request.model)
        asked = (self.ids.new(), payer, request.provider, request.model, now, now.isoformat()[:10])
        wanted = Reservation(*asked, expected, held=Amount(expected + request.max_tokens))
        key, limits = payer.session_key, self.limits
        if (kinds := limits.kinds.get(key.agent)) is None:
            kinds = limits.kinds[key.agent] = limits.now.kinds(key.agent)
        if key.account in limits.now.tokens:
            kinds = [*kinds, *limits.now.kinds_of_token(key)]
        try:
            if self._unwritten:
                await self.write_unwritten()
            if not kinds and payer.is_accepted:
                return self.ledger.begin(wanted), Grant(request.max_tokens, wanted.held)
            return await self._hold(wanted, kinds, self._ask(request, wanted), request.deadline_s)
        except get_cancelled_exc_class():
            self.settle(wanted)  # the ledger may have reserved it
            raise
        except BudgetExceeded as refusal:
            self._log_refusal(refusal, wanted)
            raise
        except StoreUnavailable as error:
            self.settle(wanted)  # here too
            detail = f"not asked, because the ledger cannot be written: {error}"
            raise NeverSent(request.provider, "unmetered", detail) from error

    def _ask(self, request: ModelRequest, wanted: Reservation) -> ReserveRequest:
        """Estimates the call, in money too if a limit is in money."""
        sent, most = wanted.input_tokens, request.max_tokens
        key = wanted.payer.session_key
        if not self.limits.now.in_money(key):
            return ReserveRequest(sent, most, at=wanted.at)
        names = (request.provider, request.model)
        prompt, whole = (
            self.prices.cost(*names, usage, wanted.at) for usage in (Usage(sent), Usage(sent, most))
        )
        for scope in () if whole else scopes_of(key, ""):
            # The model was chosen after the configuration was checked.
            if self.limits.now.limit(scope).nano_usd is not None:
                why = f"the {scope} budget is in USD, and {request.model} has no price"
                fix = f"add prices for it to [providers.{request.provider}]"
                raise NeverSent(request.provider, "unpriced", f"not asked: {why}; {fix}")
        nano = (one[0] if one else 0 for one in (prompt, whole))
        return ReserveRequest(sent, most, *nano, at=wanted.at)

    async def _hold(
        self,
        wanted: Reservation,
        kinds: Sequence[ScopeKind],
        ask: ReserveRequest,
        deadline_s: float,
    ) -> tuple[Reservation, Grant]:
        """Reserves a call with a limit. Waits while reservations or earlier calls are in the way."""
        place = until = None
        key = wanted.payer.session_key
        limited = frozenset(scope for scope in scopes_of(key, "") if scope.kind in kinds)
        try:
            while True:
                seen, claimed = self.queue.changes, NO_SCOPES
                if self.queue.places:
                    claimed = self.queue.claimed(limited, place)
                decide = partial(grant, self.limits.now, ask, claimed=claimed)
                try:
                    return await self.ledger.reserve(wanted, decide, kinds)
                except BudgetExceeded as refusal:
                    last_s = min(LAST_S, deadline_s / 20)
                    until = until or self.clock.monotonic() + deadline_s - last_s
                    wait_s = self._wait_s(refusal, until, ask.at)
                    place = place or self.queue.join(limited, share_of(key, None)[0])
                    self.queue.block(place, refusal.waits_for & place.scopes, seen)
                with move_on_after(wait_s):
                    await place.woken.wait()
                await self.write_unwritten()
                now = self.clock.now()
                wanted, ask = replace(wanted, at=now, day=day_of(now)), replace(ask, at=now)
        finally:
            if place is not None:
                self.queue.leave(place)

    def _wait_s(self, refusal: BudgetExceeded, until: float, now: datetime) -> float:
        """Returns the seconds until the deadline or the end of the period. Raises the refusal if waiting
        cannot help."""
        left_s = until - self.clock.monotonic()
        if not refusal.waits_for or left_s <= 0:
            raise refusal
        resets = refusal.resets_at
        return left_s if resets is None else min(left_s, (resets - now).total_seconds())

    def _release(self, ended: Ended) -> None:
        """Lets calls that wait for this one try again."""
        payer = ended.payer if isinstance(ended, Reservation) else ended
        self.queue.release(frozenset(scopes_of(payer.session_key, "")))

    def _log_refusal(self, refusal: BudgetExceeded, wanted: Reservation) -> None:
        self.refusals[refusal.scope.partition(":")[0]] += 1
        scope, session = refusal.tally.scope, wanted.payer.session_key
        times = self._recurrences.worth(f"{scope.kind} {scope.name} {session}", wanted.at)
        if not times:
            return
        facts, model = refusal.facts, f"{wanted.provider}/{wanted.model}"
        named = {name: facts[name] for name in ("scope", "used", "reserved", "limit", "unit")}
        log.warning("budget_refused", extra={**named, "model": model, "times": times})
        detail = {**named, "run_id": wanted.payer.run_id, "model": model, "times": times}
        self.audit.append_soon(AuditEvent(wanted.at, "budget.refused", str(session), detail))

    def record(self, reservation: Reservation, outcome: Outcome, usage: Usage) -> TokenRecord:
        """Makes the record of a call, priced by the provider or the price table."""
        payer, provider, model = reservation.payer, reservation.provider, reservation.model
        if usage.cost_usd is None:
            cost = self.prices.cost(provider, model, usage, reservation.at) or (0, "unpriced")
        else:
            cost = (round(usage.cost_usd * NANO), "provider")
        call = (payer.session_key, payer.run_id, provider, model, outcome)
        tokens = (usage.input_tokens, usage.output_tokens)
        shares = (usage.cached_tokens, usage.reasoning_tokens)
        now, is_guess, person = self.clock.now(), usage.estimated, payer.person
        return TokenRecord(
            reservation.id, now, *call, *tokens, *shares, *cost, is_guess, person=person
        )

    def count(self, record: TokenRecord, progress: ReplyProgress) -> None:
        """Counts a sent request for `GET /metrics`."""
        figures, agent = self.figures, record.session_key.agent
        label = (record.provider, figures.models.of(record.model))
        figures.model_calls.add((*label, record.outcome))
        figures.model_s.observe(label, self.clock.monotonic() - progress.began)
        for kind, amount in (
            ("input", record.input_tokens),
            ("output", record.output_tokens),
            ("cached", record.cached_tokens),
            ("reasoning", record.reasoning_tokens),
        ):
            if amount:
                figures.model_tokens.add((agent, *label, kind), amount)
        if record.nano_usd:
            figures.model_cost.add((agent, *label), record.nano_usd / NANO)

    def cost_usd(self, provider: str, model: str, usage: Usage) -> float | None:
        """Returns the cost of an unsettled reply; None without a known price."""
        found = self.prices.cost(provider, model, usage, self.clock.now())
        return None if found is None else found[0] / NANO

    def settle(self, ended: Ended, *, warns: bool = False) -> tuple[BudgetWarning, ...]:
        """Settles in memory; the record is written with the next commit."""
        due_now = self.ledger.settle_soon(
            ended, partial(self._keep, ended), partial(due, self.limits.now) if warns else None
        )
        if self.queue.places:
            self._release(ended)
        return tuple([self._warning(tally) for tally in due_now]) if due_now else ()

    def _keep(self, ended: Ended, error: Exception) -> None:
        """Keeps an unwritten record for the next call to write. Its reservation stays until then."""
        log.warning("model_call_not_recorded", extra={"why": str(error)})
        if isinstance(error, StoreUnavailable) and len(self._unwritten) < MOST_UNWRITTEN:
            self._unwritten[ended.id] = ended
        self._release(ended)  # the next call writes it first

    async def write_unwritten(self) -> None:
        """Writes the records that waited for the store. Raises StoreUnavailable."""
        for ended in tuple(self._unwritten.values()):
            await self.ledger.settle(ended)
            self._unwritten.pop(ended.id, None)
            self._release(ended)

    def _warning(self, tally: Tally) -> BudgetWarning:
        unit, used, limit = fullest(self.limits.now, tally)
        log.warning("budget_nearly_spent", extra={"scope": str(tally.scope), "used": used})
        return BudgetWarning(str(tally.scope), unit, in_unit(unit, used), in_unit(unit, limit))


class Metered:
    """Implements the Model port: meters another model."""

    def __init__(self, meter: Meter, model: Model) -> None:
        self._meter, self._model = meter, model

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        meter, raw, progress = self._meter, prompt_tokens(request), ReplyProgress()
        reservation, granted = await meter.reserve(request, raw)
        most = granted.max_tokens
        dense = meter.estimates.densities.get(request.model, BYTES_OF_REPLY)
        progress.most = int(most * (dense if granted.is_limited else WITHOUT_LIMIT))
        reply: ModelReply | None = None
        outcome: Outcome | None = "broken"
        progress.began = meter.clock.monotonic()
        try:
            allowed = replace(request, max_tokens=most, progress=progress)
            reply = await self._model.reply(allowed, on_delta)
        except ModelFailed as failed:
            if not failed.sent:
                outcome = None
            elif failed.status is not None and not progress.size:
                outcome = "failed"  # the provider refused, and charges nothing
            raise
        finally:
            if reply is None:
                # A reply that is not streamed may be complete before any of it arrives.
                least = 0 if request.stream else most
                self._settle_broken(reservation, outcome, progress, least)
        return self._settle_reply(reply, reservation, raw, progress, granted)

    def _settle_broken(
        self, call: Reservation, outcome: Outcome | None, progress: ReplyProgress, least: int
    ) -> None:
        """Settles a call without a reply. `outcome` is None if nothing was sent."""
        meter, usage = self._meter, Usage()
        if outcome == "broken":
            output = max(least, ceil(progress.size / BYTES_A_TOKEN))
            usage = _estimated_usage(progress.reported or Usage(call.input_tokens), output)
        if outcome is None:
            model = meter.figures.models.of(call.model)
            meter.figures.model_calls.add((call.provider, model, "not_sent"))
            meter.settle(call)
        else:
            record = meter.record(call, outcome, usage)
            meter.count(record, progress)
            meter.settle(record)

    def _settle_reply(
        self,
        reply: ModelReply,
        call: Reservation,
        raw: int,
        progress: ReplyProgress,
        granted: Grant,
    ) -> ModelReply:
        """Records an answer and learns from it."""
        meter, usage, estimates = self._meter, reply.usage, self._meter.estimates
        is_overrun = reply.finish == "overrun"
        if is_overrun:
            dense = estimates.densities.get(call.model, BYTES_OF_REPLY)
            output = ceil(progress.size / dense)
            usage = _overrun_usage(usage, call.input_tokens, output)
        elif not usage.estimated:
            estimates.learn(raw, call.payer.session_key, call.model, usage.input_tokens)
            if progress.size >= LEAST_LEARNED:
                shown_tokens = usage.output_tokens - usage.reasoning_tokens
                estimates.learn_reply(progress.size, call.model, shown_tokens)
        is_longer = is_overrun or usage.output_tokens > granted.max_tokens
        record = meter.record(call, "overrun" if is_longer else "answered", usage)
        meter.count(record, progress)
        warnings = meter.settle(record, warns=granted.is_limited)
        if usage.cost_usd is None and record.pricing != "unpriced":
            usage = replace(usage, cost_usd=record.nano_usd / NANO)
        if usage is reply.usage and not warnings:
            return reply
        return replace(reply, usage=usage, warnings=warnings)


def _overrun_usage(counted: Usage, expected: int, output: int) -> Usage:
    """Returns the usage of a reply that was cut off: as the provider counted, or an estimate."""
    known = Usage(expected) if counted.estimated else counted
    return known if known.output_tokens >= output else _estimated_usage(known, output)


def _estimated_usage(known: Usage, output: int) -> Usage:
    """Returns an estimate by the size of the received reply. Only its input may be exact."""
    return replace(known, output_tokens=output, reasoning_tokens=0, estimated=True)
