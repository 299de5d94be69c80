"""Whether a call may be made, with how long a reply, and when to warn. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gateway.budgets.queue import NO_SCOPES, Scopes, without_period
from gateway.domain.budgets import Amount, BudgetExceeded, Budgets, Grant, Tally, Unit

# After so long a call that only reservations refused may be made again: some have ended by then.
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
        (tally, unit, bound)
        for tally in tallies
        for unit, bound in budgets.limit(tally.scope).bounds()
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
    full = [
        one for one in bounds if _is_full(*one, held) or without_period([one[0].scope]) & claimed
    ]
    if full:
        tally, unit, bound = min(full, key=lambda one: _longest_reply(ask, *one, held=one[0].held))
        blocked = without_period(one[0].scope for one in full)
        raise BudgetExceeded(tally, unit, bound, retry_after_s=HELD_RETRY_S, waits_for=blocked)


def _is_full(tally: Tally, unit: Unit, bound: int, more: Amount) -> bool:
    """Whether a call has to wait until reservations are settled."""
    return _of(tally.used + tally.held + more, unit) > bound and _of(more, unit) > 0


def _longest_reply(
    ask: ReserveRequest, tally: Tally, unit: Unit, bound: int, *, held: Amount = NOTHING
) -> int:
    """The longest reply in tokens, beside what is used and `held`; negative if not even the prompt
    fits. Money becomes tokens only where money is the bound."""
    if unit == "usd" and bound and not ask.whole_nano_usd:
        return ask.max_tokens  # a call that costs nothing fits
    left = bound - _of(tally.used, unit) - _of(held, unit)
    if left <= 0:
        return left - ask.input_tokens - 1
    if unit == "tokens":
        return left - ask.input_tokens
    if ask.whole_nano_usd <= left:
        return ask.max_tokens
    return (left - ask.prompt_nano_usd) * ask.max_tokens // max(1, ask.reply_nano_usd)


def due(budgets: Budgets, tally: Tally) -> str:
    """The limit as text if a warning is due, else an empty text."""
    limit = budgets.limit(tally.scope)
    for unit, bound in limit.bounds():
        if _of(tally.used, unit) * 100 >= bound * WARNING_PERCENT:
            return f"{limit.tokens}/{limit.nano_usd}"
    return ""


def fullest(budgets: Budgets, tally: Tally) -> tuple[Unit, int, int]:
    """(unit, used, limit) of the nearest bound. The scope must have one."""
    bounds = dict(budgets.limit(tally.scope).bounds())
    unit = max(bounds, key=lambda unit: _of(tally.used, unit) / max(1, bounds[unit]))
    return unit, _of(tally.used, unit), bounds[unit]


def _of(amount: Amount, unit: Unit) -> int:
    return amount.tokens if unit == "tokens" else amount.nano_usd
