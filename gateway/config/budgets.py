"""[budgets], and what limits a start without any agent."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from gateway.config.environment import DEMO, Choice
from gateway.config.kinds import Id, Section, key
from gateway.config.problems import Code, Report, choose, quoted
from gateway.domain.budgets import NANO, Budgets, Limit

DEMO_DAILY = 20_000
DEMO_TURNS = 4  # older ones are recalled; so that a day is long enough to try things
USUAL_DAILY = 200_000


class PriceSection(Section):
    """What a model costs."""

    input: float = key(..., "USD for a million tokens that are sent.", ge=0, le=1e6)
    output: float = key(..., "USD for a million tokens of reply.", ge=0, le=1e6)


class LimitSection(Section):
    """A limit; 0: nothing is allowed."""

    tokens: int | None = key(None, "Tokens, sent and received.", ge=0, le=2**53)
    usd: float | None = key(None, "US dollars, as far as prices are known.", ge=0, le=1e9)


def _as_limit(value: object) -> object:
    return {"tokens": value} if isinstance(value, int) else value


LimitOrTokens = Annotated[
    LimitSection, BeforeValidator(_as_limit, json_schema_input_type=int | LimitSection)
]


class BudgetsSection(Section):
    """Hard limits of what is spent: no model is asked beyond them. Absent: unlimited."""

    session: LimitOrTokens | None = key(None, "Of every session, for ever.")
    daily: LimitOrTokens | None = key(None, "Of all, a day of UTC.")
    monthly: LimitOrTokens | None = key(None, "Of all, a month of UTC.")
    per_agent: LimitOrTokens | None = key(None, "Of every agent, for ever.")
    agent: dict[Id, LimitOrTokens] = key({}, "Of an agent by its id, instead of per_agent.")


def add_usual_budget(content: dict[str, Any], choice: Choice) -> None:
    """For whoever has said nothing of a day and must not be surprised by a bill."""
    daily = DEMO_DAILY if choice.provider == DEMO else USUAL_DAILY
    own = content.setdefault("budgets", {})
    if isinstance(own, dict):  # else the schema will say so
        own.setdefault("daily", daily)
    context = content.setdefault("context", {})
    if choice.provider == DEMO and isinstance(context, dict):
        context.setdefault("recent_turns", DEMO_TURNS)


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
