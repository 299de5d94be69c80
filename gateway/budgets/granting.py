"""Whether a call may be made, with how long a reply, and when to warn. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.domain.budgets import Amount, BudgetExceeded, Budgets, Grant, Tally, Unit

LEAST_REPLY = 256  # tokens; a shorter reply is not worth its prompt
WARNING_PERCENT = 80


@dataclass(frozen=True, slots=True)
class Ask:
    """What a call may come to. `cost` gives billionths of a dollar for input and output tokens."""

    input_tokens: int
    max_tokens: int
    cost: Callable[[int, int], int]

    def amount(self, reply: int) -> Amount:
        return Amount(self.input_tokens + reply, self.cost(self.input_tokens, reply))


def grant(budgets: Budgets, ask: Ask, tallies: Sequence[Tally]) -> Grant:
    """The longest reply that fits into every scope. Raises BudgetExceeded with the tightest scope
    if not even a short one does."""
    rooms = [
        (_longest_reply(ask, unit, bound, tally), tally, unit, bound)
        for tally in tallies
        for unit, bound in budgets.limit(tally.scope).bounds().items()
    ]
    if rooms:
        fits, tally, unit, bound = min(rooms, key=lambda room: room[0])
        if fits < min(LEAST_REPLY, ask.max_tokens):
            raise BudgetExceeded(tally, unit, bound)
        reply = min(fits, ask.max_tokens)
    else:
        reply = ask.max_tokens
    return Grant(reply, ask.amount(reply))


def _longest_reply(ask: Ask, unit: Unit, bound: int, tally: Tally) -> int:
    """In tokens, and negative where not even the prompt fits. Money is turned into tokens only
    where it is the bound."""
    left = bound - _of(tally.used, unit) - _of(tally.held, unit)
    if left <= 0:
        return left - ask.input_tokens - 1
    if unit == "tokens":
        return left - ask.input_tokens
    whole = ask.amount(ask.max_tokens).nano_usd
    if whole <= left:
        return ask.max_tokens
    prompt = ask.amount(0).nano_usd
    return (left - 1 - prompt) * ask.max_tokens // max(1, whole - prompt)


def due(budgets: Budgets, tally: Tally) -> str:
    """The limit, as text, of which so much is used that somebody should know; else nothing."""
    limit = budgets.limit(tally.scope)
    bounds = limit.bounds().items()
    if any(_of(tally.used, unit) * 100 >= bound * WARNING_PERCENT for unit, bound in bounds):
        return f"{limit.tokens}/{limit.nano_usd}"
    return ""


def fullest(budgets: Budgets, tally: Tally) -> tuple[Unit, int, int]:
    """(unit, used, limit) of the bound that is nearest. Only for a scope that has one."""
    bounds = budgets.limit(tally.scope).bounds()
    unit = max(bounds, key=lambda unit: _of(tally.used, unit) / max(1, bounds[unit]))
    return unit, _of(tally.used, unit), bounds[unit]


def _of(amount: Amount, unit: Unit) -> int:
    return amount.tokens if unit == "tokens" else amount.nano_usd
