"""[budgets], and what limits a start without any agent."""

from typing import Any

from gateway.config.environment import DEMO, Choice
from gateway.config.problems import Code, Report, choose, quoted
from gateway.config.schema import BudgetsSection, LimitSection
from gateway.domain.budgets import NANO, Budgets, Limit

DEMO_DAILY = 20_000
USUAL_DAILY = 200_000


def add_usual_budget(content: dict[str, Any], choice: Choice) -> None:
    """For whoever has said nothing and must not be surprised by a bill."""
    daily = DEMO_DAILY if choice.provider == DEMO else USUAL_DAILY
    content.setdefault("budgets", {"daily": daily})


def resolve_budgets(section: BudgetsSection, agent_ids: tuple[str, ...], report: Report) -> Budgets:
    for name in section.agent:
        if name not in agent_ids:
            message, fix = f"no agent has id {quoted(name)}", choose(name, agent_ids)
            report.wrong(Code.UNKNOWN_NAME, ("budgets", "agent", name), message, fix, at="key")
    return Budgets(
        session=_limit(section.session),
        daily=_limit(section.daily),
        monthly=_limit(section.monthly),
        per_agent=_limit(section.per_agent),
        agents={name: _limit(limit) for name, limit in section.agent.items()},
    )


def _limit(section: LimitSection | None) -> Limit:
    if section is None:
        return Limit()
    return Limit(section.tokens, None if section.usd is None else round(section.usd * NANO))
