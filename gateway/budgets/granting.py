"""Whether a call may be made, with how long a reply, and when to warn. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.domain.budgets import Amount, BudgetExceeded, Budgets, Grant, Tally, Unit

LEAST_REPLY = 256  # tokens; a shorter reply is not worth its prompt
WARNING_PERCENT = 80
NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class Ask:
    """What a call may come to, estimated: its prompt, and its prompt with the longest reply."""

    input_tokens: int
    max_tokens: int
    prompt_nano_usd: int = 0
    whole_nano_usd: int = 0

    @property
    def reply_nano_usd(self) -> int:
        return self.whole_nano_usd - self.prompt_nano_usd

    def amount(self, reply: int) -> Amount:
        money = -(-self.reply_nano_usd * reply // max(1, self.max_tokens))
        return Amount(self.input_tokens + reply, self.prompt_nano_usd + money)


def grant(budgets: Budgets, ask: Ask, tallies: Sequence[Tally]) -> Grant:
    """The longest reply that fits into every scope. Raises BudgetExceeded with the tightest scope
    if not even a short one does."""
    rooms = [
        (_longest_reply(ask, unit, bound, tally), tally, unit, bound)
        for tally in tallies
        for unit, bound in budgets.limit(tally.scope).bounds()
    ]
    if rooms:
        fits, tally, unit, bound = min(rooms, key=lambda room: room[0])
        if fits < min(LEAST_REPLY, ask.max_tokens):
            raise BudgetExceeded(tally, unit, bound)
        reply = min(fits, ask.max_tokens)
    else:
        reply = ask.max_tokens
    held = ask.amount(reply)
    near = (due(budgets, tally, tally.held + held) not in {"", tally.warned} for tally in tallies)
    return Grant(reply, held, any(near))


def _longest_reply(ask: Ask, unit: Unit, bound: int, tally: Tally) -> int:
    """In tokens, and negative where not even the prompt fits. Money is turned into tokens only
    where it is the bound."""
    left = bound - _of(tally.used, unit) - _of(tally.held, unit)
    if left <= 0:
        return left - ask.input_tokens - 1
    if unit == "tokens":
        return left - ask.input_tokens
    if ask.whole_nano_usd <= left:
        return ask.max_tokens
    return (left - ask.prompt_nano_usd) * ask.max_tokens // max(1, ask.reply_nano_usd)


def due(budgets: Budgets, tally: Tally, more: Amount = NOTHING) -> str:
    """The limit, as text, of which so much is used that somebody should know; else nothing."""
    limit = budgets.limit(tally.scope)
    for unit, bound in limit.bounds():
        if (_of(tally.used, unit) + _of(more, unit)) * 100 >= bound * WARNING_PERCENT:
            return f"{limit.tokens}/{limit.nano_usd}"
    return ""


def fullest(budgets: Budgets, tally: Tally) -> tuple[Unit, int, int]:
    """(unit, used, limit) of the bound that is nearest. Only for a scope that has one."""
    bounds = dict(budgets.limit(tally.scope).bounds())
    unit = max(bounds, key=lambda unit: _of(tally.used, unit) / max(1, bounds[unit]))
    return unit, _of(tally.used, unit), bounds[unit]


def _of(amount: Amount, unit: Unit) -> int:
    return amount.tokens if unit == "tokens" else amount.nano_usd
