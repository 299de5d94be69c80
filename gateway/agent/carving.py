"""Shares out what is left of a run among those who work for it at the same time."""

from dataclasses import dataclass, field

from gateway.agent.turn import Turn
from gateway.domain.messages import ToolCall
from gateway.domain.ports import Allowance
from gateway.domain.subagents import DELEGATE


@dataclass(slots=True)
class Carving:
    """Of one run: who has a share has it until the run has counted what was spent of it."""

    _shares: dict[int, int] = field(default_factory=dict)  # tokens, by ticket

    def share(self, ticket: int, turn: Turn, seconds: float) -> Allowance:
        """As many tokens for each that waits for its share, and for the run itself: it has to make
        something of what they find."""
        open_, course = turn.tickets.open, turn.course
        self._shares = {one: its for one, its in self._shares.items() if one in open_}
        waiting = {
            one
            for one, its in open_.items()
            if one not in self._shares and its.wanted is not None and delegates(its.wanted)
        } | {ticket}
        left = course.limits.token_budget - course.usage.total - sum(self._shares.values())
        self._shares[ticket] = tokens = max(0, left // (len(waiting) + 1))
        return Allowance(tokens, seconds)


def delegates(call: ToolCall) -> bool:
    return call.name.startswith(DELEGATE)
