"""What a user reads when a run warns, stops or breaks: the same words everywhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gateway.domain.agents import Limits
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.chunks import Chunk, DoneReason, SystemType
from gateway.domain.errors import FailureKind
from gateway.domain.model import BudgetWarning

EMPTY = "The model gave an empty answer."
DEFECT = "Something went wrong inside the gateway; the operator finds it in the log."
NO_END = "The agent's tree ended without an answer; the operator finds out why in the log."
SKIPPED = "Skipped due to queued user message."
TAKEN_AWAY = "Not executed: this tool is not available any more in this run."
NOT_EXECUTED = "Not executed: the run went on without it."
CUT_OFF = (
    "Cut off when the gateway stopped: it may have been carried out all the same. Look before you "
    "call it again."
)
INTERRUPTED = "Interrupted: whether it took effect is not known."

# What the user reads when the model failed: never a provider's own words.
BROKEN: Mapping[FailureKind, str] = {
    "auth": "The model service ({provider}) refused the key. The operator has to check it.",
    "rate": "The model service ({provider}) has no capacity for us right now. Try again later.",
    "overloaded": "The model service ({provider}) is overloaded. Try again later.",
    "server": "The model service ({provider}) had an internal error. Try again later.",
    "network": "The model service ({provider}) cannot be reached. Try again later.",
    "timeout": "The model service ({provider}) did not answer in time. Try again later.",
    "truncated": "The model service ({provider}) broke off its answer. Try again.",
    "protocol": "The model service ({provider}) answered in a form that is not understood.",
    "bad_request": "The model service ({provider}) refused the request.",
    "context_overflow": "This conversation is too long for the model ({provider}).",
    "not_found": "The model service ({provider}) does not know the model. The operator has to check it.",
    "unmetered": "The gateway cannot keep its accounts at the moment, so no model was asked. Try again later.",
    "refused_key": "There is no key for the model service ({provider}). The operator has to add it.",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """A value beside its limit."""

    limit_type: str
    current: float
    limit: float
    facts: Mapping[str, object] = field(default_factory=dict)  # more that is told of it

    @property
    def percent(self) -> float:
        return round(100 * self.current / self.limit, 1) if self.limit else 100.0

    def payload(self, message: str) -> Mapping[str, object]:
        """As an event tells it."""
        return {
            "current": self.current,
            "max": self.limit,
            "percent": self.percent,
            "message": message,
            "limit_type": self.limit_type,
            **self.facts,
        }

    def metadata(self) -> Mapping[str, object]:
        """As a chunk tells it."""
        return {
            "current_value": self.current,
            "limit_value": self.limit,
            "percent": self.percent,
            "limit_type": self.limit_type,
            **self.facts,
        }


@dataclass(frozen=True, slots=True)
class Stopping:
    """What is said of a reason to stop, and the limit of that reason."""

    system_type: SystemType
    text: str
    limit: str | None = None  # a field of Limits
    event: str | None = None


STOPS: Mapping[DoneReason, Stopping] = {
    "max_iterations": Stopping(
        "limit_reached",
        "Maximum iterations reached. Saving partial response.",
        "max_iterations",
        "budget.iteration.exceeded",
    ),
    "token_budget": Stopping(
        "limit_reached",
        "Token budget reached. Saving partial response.",
        "token_budget",
        "budget.token.exceeded",
    ),
    "timeout": Stopping(
        "limit_reached", "Time limit reached. Saving partial response.", "timeout_seconds"
    ),
    "no_progress": Stopping(
        "no_progress",
        "No progress detected - same action attempted {limit} times.",
        "no_progress_repeats",
    ),
    "error_limit": Stopping(
        "error_limit",
        "Tool calls failed in {limit} turns in a row. Saving partial response.",
        "error_limit",
    ),
    "cancelled": Stopping("notice", "Cancelled by user"),
    "superseded": Stopping("notice", "A newer message took the place of this one."),
}

# What is warned of: the type of the event, and what the user reads.
WARNINGS: Mapping[str, tuple[str, str]] = {
    "max_iterations": (
        "budget.iteration.warning",
        "Approaching iteration limit ({current}/{limit}). Consider wrapping up.",
    ),
    "token_budget": (
        "budget.token.warning",
        "Approaching token budget ({current}/{limit}). Consider wrapping up.",
    ),
    "context_window": (
        "context.approaching_limit",
        "Approaching the model's context window ({current}/{limit} tokens).",
    ),
}


def stop_text(reason: DoneReason, limits: Limits) -> str:
    said = STOPS[reason]
    return said.text.format(limit=getattr(limits, said.limit) if said.limit else "")


def spent_reading(refusal: BudgetExceeded) -> Reading:
    """Of a budget that is for more than one run."""
    return Reading(f"budget.{refusal.scope}", refusal.used, refusal.limit, refusal.facts)


def nearly_spent(warning: BudgetWarning) -> tuple[str, Reading]:
    """What the user reads, and what programs do."""
    facts = {"scope": warning.scope, "unit": warning.unit}
    reading = Reading(f"budget.{warning.scope}", warning.used, warning.limit, facts)
    unit = "tokens" if warning.unit == "tokens" else "USD"
    told = f"{reading.percent:g} % of the {warning.scope} budget is used"
    return f"{told} ({warning.used}/{warning.limit} {unit}).", reading


def system_chunk(
    system_type: SystemType,
    message: str,
    at: datetime,
    metadata: Mapping[str, object] | None = None,
) -> Chunk:
    return Chunk(
        "system",
        {
            "system_type": system_type,
            "system_message": message,
            "metadata": metadata or {},
            "timestamp": at,
        },
    )
