"""The meter: reserves budget before every model call and records what the call came to."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from math import ceil

from anyio import get_cancelled_exc_class, move_on_after

from gateway.budgets.estimates import LEAST_LEARNED, WITHOUT_LIMIT, Estimates, prompt_tokens
from gateway.budgets.granting import ReserveRequest, due, fullest, grant
from gateway.budgets.queue import NO_SCOPES, BudgetQueue
from gateway.domain.agents import share_of
from gateway.domain.budgets import (
    NANO,
    Amount,
    BudgetExceeded,
    Budgets,
    Ended,
    Grant,
    Outcome,
    Prices,
    Pricing,
    Reservation,
    Resync,
    Scope,
    ScopeKind,
    Tally,
    TokenRecord,
    day_of,
    scopes_of,
    shown,
)
from gateway.domain.errors import ModelFailed, NeverSent, StoreUnavailable
from gateway.domain.events import Deed, Recurrences
from gateway.domain.messages import BYTES_A_TOKEN, Usage
from gateway.domain.model import BudgetWarning, Hear, ModelReply, ModelRequest, ReplyProgress
from gateway.domain.ports import Audit, Clock, Ids, Ledger, Model

log = logging.getLogger(__name__)

# A call stops waiting so long before its deadline, so that the refusal still reaches the client.
LAST_S = 0.5
MOST_UNWRITTEN = 1000  # records that wait for the store; the next start settles the rest


@dataclass(slots=True)
class Meter:
    """One meter for all providers."""

    ledger: Ledger
    budgets: Budgets
    prices: Prices
    clock: Clock
    ids: Ids
    audit: Audit
    estimates: Estimates = field(default_factory=Estimates)
    queue: BudgetQueue = field(default_factory=BudgetQueue)
    refusals: Counter[str] = field(default_factory=Counter)  # by scope
    _recurrences: Recurrences = field(default_factory=Recurrences)
    _unwritten: dict[str, Ended] = field(default_factory=dict)

    def around(self, model: Model) -> Model:
        return Metered(self, model)

    async def settle_lost(self) -> None:
        """Records as spent what the process before this one held. Called at a start."""
        lost = await self.ledger.unsettled()
        for one in lost:
            sent = min(one.input_tokens, one.held.tokens)
            usage = Usage(sent, one.held.tokens - sent, estimated=True)
            record = self.record(one, "lost", usage)
            await self.ledger.settle(replace(record, nano_usd=one.held.nano_usd or record.nano_usd))
        if lost:
            log.warning("calls of the last run are taken as spent", extra={"calls": len(lost)})

    async def resync(self, actor: str) -> Resync:
        """Goes back to the day of the clock, which was ahead before. Raises StoreUnavailable."""
        now = self.clock.now()
        done = await self.ledger.resync(now)
        if done.is_changed:
            detail = {"day": done.day, "was": done.was, "records": done.records}
            await self.audit.append(Deed(now, "budget.resynced", actor, detail))
            self.queue.freed(frozenset({Scope("day", ""), Scope("month", "")}))
        return done

    async def reserve(self, request: ModelRequest, raw: int) -> tuple[Reservation, Grant]:
        """Waits while other calls have reserved the room. Raises BudgetExceeded, and ModelFailed if
        the ledger cannot be written."""
        payer, now = request.payer, self.clock.now()
        assert payer is not None, "a model was asked on nobody's account"
        expected = self.estimates.of(raw, payer.session_key, request.model)
        most = Amount(expected + request.max_tokens)
        wanted = Reservation(
            id=self.ids.new(),
            payer=payer,
            provider=request.provider,
            model=request.model,
            at=now,
            day=now.isoformat()[:10],
            input_tokens=expected,
            held=most,
        )
        kinds = self.budgets.kinds(payer.session_key.agent)
        try:
            if self._unwritten:
                await self._write_what_waits()
            if not kinds and payer.is_accepted:
                return self.ledger.begin(wanted), Grant(request.max_tokens, most)
            return await self._hold(wanted, kinds, self._ask(request, wanted), request.deadline_s)
        except get_cancelled_exc_class():
            self.settle(wanted)  # the ledger may hold it all the same
            raise
        except BudgetExceeded as refusal:
            self._note(refusal, wanted)
            raise
        except StoreUnavailable as error:
            told = f"not asked, for the ledger cannot be written: {error}"
            raise NeverSent(request.provider, "unmetered", told) from error

    def _ask(self, request: ModelRequest, wanted: Reservation) -> ReserveRequest:
        """Estimates the call, in money too if a limit is in money."""
        prompt_nano = whole_nano = 0
        if self.budgets.in_money:
            names, sent = (request.provider, request.model), wanted.input_tokens
            prompt_nano, _ = self._price(*names, Usage(sent), wanted.at)
            whole = Usage(sent, request.max_tokens)
            whole_nano, pricing = self._price(*names, whole, wanted.at)
            scopes = scopes_of(wanted.payer.session_key, "") if pricing == "unpriced" else ()
            for scope in scopes:  # the model was chosen after the configuration was checked
                if self.budgets.limit(scope).nano_usd is not None:
                    told = f"the {scope} budget is in USD, and {request.model} has no price"
                    fix = f"add prices for it to [providers.{request.provider}]"
                    raise NeverSent(request.provider, "unpriced", f"not asked: {told}; {fix}")
        return ReserveRequest(
            wanted.input_tokens, request.max_tokens, prompt_nano, whole_nano, at=wanted.at
        )

    async def _hold(
        self,
        wanted: Reservation,
        kinds: Sequence[ScopeKind],
        ask: ReserveRequest,
        deadline_s: float,
    ) -> tuple[Reservation, Grant]:
        """Waits while reservations or earlier calls are in the way."""
        place = until = None
        key = wanted.payer.session_key
        limited = frozenset(scope for scope in scopes_of(key, "") if scope.kind in kinds)
        try:
            while True:
                seen, claimed = self.queue.changes, NO_SCOPES
                if self.queue.places:
                    claimed = self.queue.claimed(limited, place)
                decide = partial(grant, self.budgets, ask, claimed=claimed)
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
                await self._write_what_waits()
                now = self.clock.now()
                wanted, ask = replace(wanted, at=now, day=day_of(now)), replace(ask, at=now)
        finally:
            if place is not None:
                self.queue.leave(place)

    def _wait_s(self, refusal: BudgetExceeded, until: float, now: datetime) -> float:
        """How long to wait: until the deadline, or until the period ends. Raises the refusal if
        waiting cannot help."""
        left_s = until - self.clock.monotonic()
        if not refusal.waits_for or left_s <= 0:
            raise refusal
        resets = refusal.resets_at
        return left_s if resets is None else min(left_s, (resets - now).total_seconds())

    def _freed(self, ended: Ended) -> None:
        """Lets calls that wait for this one try again."""
        payer = ended.payer if isinstance(ended, Reservation) else ended
        self.queue.freed(frozenset(scopes_of(payer.session_key, "")))

    def _note(self, refusal: BudgetExceeded, wanted: Reservation) -> None:
        self.refusals[refusal.scope.partition(":")[0]] += 1
        scope, session = refusal.tally.scope, wanted.payer.session_key
        times = self._recurrences.worth(f"{scope.kind} {scope.name} {session}", wanted.at)
        if not times:
            return
        facts, model = refusal.facts, f"{wanted.provider}/{wanted.model}"
        told = {name: facts[name] for name in ("scope", "used", "reserved", "limit", "unit")}
        detail = {**told, "run_id": wanted.payer.run_id, "model": model, "times": times}
        self.audit.append_soon(Deed(wanted.at, "budget.refused", str(session), detail))

    def record(self, reservation: Reservation, outcome: Outcome, usage: Usage) -> TokenRecord:
        provider, model = reservation.provider, reservation.model
        if usage.cost_usd is None:
            nano_usd, pricing = self._price(provider, model, usage, reservation.at)
        else:
            nano_usd, pricing = round(usage.cost_usd * NANO), "provider"
        return TokenRecord(
            id=reservation.id,
            at=self.clock.now(),
            session_key=reservation.payer.session_key,
            run_id=reservation.payer.run_id,
            provider=provider,
            model=model,
            outcome=outcome,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            nano_usd=nano_usd,
            pricing=pricing,
            estimated=usage.estimated,
        )

    def _price(self, provider: str, model: str, usage: Usage, at: datetime) -> tuple[int, Pricing]:
        return self.prices.cost(provider, model, usage, at) or (0, "unpriced")

    def cost_usd(self, provider: str, model: str, usage: Usage) -> float | None:
        """The cost of a reply that is not settled yet; None if no price is known."""
        found = self.prices.cost(provider, model, usage, self.clock.now())
        return None if found is None else found[0] / NANO

    def settle(self, ended: Ended, *, warns: bool = False) -> tuple[BudgetWarning, ...]:
        """Settles in memory; the record is written with the next commit."""
        due_now = self.ledger.settle_soon(
            ended, partial(self._wait, ended), partial(due, self.budgets) if warns else None
        )
        if self.queue.places:
            self._freed(ended)
        return tuple(map(self._warning, due_now))

    def _wait(self, ended: Ended, error: Exception) -> None:
        """Keeps what could not be written, for the next call to write. Until then it is held."""
        log.warning("a provider call is not recorded yet", extra={"why": str(error)})
        if isinstance(error, StoreUnavailable) and len(self._unwritten) < MOST_UNWRITTEN:
            self._unwritten[ended.id] = ended
        self._freed(ended)  # the next call writes it first

    async def _write_what_waits(self) -> None:
        for ended in tuple(self._unwritten.values()):
            await self.ledger.settle(ended)
            self._unwritten.pop(ended.id, None)
            self._freed(ended)

    def _warning(self, tally: Tally) -> BudgetWarning:
        unit, used, limit = fullest(self.budgets, tally)
        log.warning("a budget is nearly spent", extra={"scope": str(tally.scope), "used": used})
        return BudgetWarning(str(tally.scope), unit, shown(unit, used), shown(unit, limit))


class Metered:
    """Implements the Model port over one that asks a provider once."""

    def __init__(self, meter: Meter, model: Model) -> None:
        self._meter, self._model = meter, model

    async def reply(self, request: ModelRequest, hear: Hear) -> ModelReply:
        meter, raw, progress = self._meter, prompt_tokens(request), ReplyProgress()
        reservation, granted = await meter.reserve(request, raw)
        most, dense = granted.max_tokens, meter.estimates.bytes_a_token(request.model)
        progress.most = int(most * (dense if granted.is_limited else WITHOUT_LIMIT))
        expected = reservation.input_tokens
        outcome: Outcome | None = "broken"
        try:
            granted_request = replace(request, max_tokens=most, progress=progress)
            reply = await self._model.reply(granted_request, hear)
            outcome = "answered"
        except ModelFailed as failed:
            outcome = _outcome_of(failed, progress)
            raise
        finally:
            if outcome is None:
                meter.settle(reservation)
            elif outcome != "answered":
                # A reply that is not streamed may be complete before any of it arrives.
                unheard = 0 if request.stream else most
                guess = _guessed(progress, expected, unheard, BYTES_A_TOKEN)
                usage = guess if outcome == "broken" else Usage()
                meter.settle(meter.record(reservation, outcome, usage))
        return self._paid(reply, reservation, raw, progress, granted)

    def _paid(
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
            output = ceil(progress.size / estimates.bytes_a_token(call.model))
            usage = _overrun(usage, call.input_tokens, output)
        elif not usage.estimated:
            estimates.learn(raw, call.payer.session_key, call.model, usage.input_tokens)
            if progress.size >= LEAST_LEARNED:
                shown = usage.output_tokens - usage.reasoning_tokens
                estimates.learn_reply(progress.size, call.model, shown)
        is_longer = is_overrun or usage.output_tokens > granted.max_tokens
        record = meter.record(call, "overrun" if is_longer else "answered", usage)
        warnings = meter.settle(record, warns=granted.is_limited)
        if usage.cost_usd is None and record.pricing != "unpriced":
            usage = replace(usage, cost_usd=record.nano_usd / NANO)
        if usage is reply.usage and not warnings:
            return reply
        return replace(reply, usage=usage, warnings=warnings)


def _overrun(counted: Usage, expected: int, output: int) -> Usage:
    """Of a reply that was cut off: what the provider counted of it, or an estimate by its size."""
    told = Usage(expected) if counted.estimated else counted
    if told.output_tokens >= output:
        return told
    return replace(told, output_tokens=output, reasoning_tokens=0, estimated=True)


def _outcome_of(failed: ModelFailed, progress: ReplyProgress) -> Outcome | None:
    """None: nothing was sent."""
    if not failed.sent:
        return None
    # Else the provider refused, and charges nothing.
    return "broken" if failed.status is None or progress.size else "failed"


def _guessed(progress: ReplyProgress, expected: int, least: int, bytes_a_token: float) -> Usage:
    """An estimate. Only its input may be certain."""
    told = progress.told or Usage(expected)
    output = max(least, ceil(progress.size / bytes_a_token))
    return replace(told, output_tokens=output, reasoning_tokens=0, estimated=True)
