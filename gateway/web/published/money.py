"""What was spent, what is left, and the audit."""

from typing import NotRequired

from typing_extensions import TypedDict

from gateway.domain.budgets import Outcome, Pricing, Unit
from gateway.web.published.values import Time


class BudgetRow(TypedDict):
    """A scope in one unit; `limit` is null if there is none."""

    scope: str
    limit: float | None
    used: float
    reserved: float
    period_start: Time | None
    resets_at: Time | None
    unit: Unit
    why: NotRequired[str]  # another day or month counts than that of the clock


class BudgetResync(TypedDict):
    """`was`: the day that counted before; `records`: how many are counted in another day now."""

    changed: bool
    day: str
    was: str | None
    records: int


class BudgetStatus(TypedDict):
    budgets: list[BudgetRow]


class SpendingRecord(TypedDict):
    """One call of a model."""

    seq: int
    id: str
    timestamp: Time
    session_key: str
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


class SpendingPage(TypedDict):
    """Newest first."""

    records: list[SpendingRecord]
    more: bool


class AuditRow(TypedDict):
    seq: int
    at: Time
    kind: str
    actor: str
    detail: object
    hash: str


class AuditPage(TypedDict):
    """Newest first."""

    entries: list[AuditRow]
    more: bool


class AuditVerdict(TypedDict):
    """`entries` and `head` are of the part that is whole."""

    ok: bool
    entries: int
    head: str | None
    why: str | None
