"""[budgets], and what limits a start without any agent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from gateway.config.environment import DEMO, Choice
from gateway.config.kinds import Id, Section, key
from gateway.config.problems import Code, Finding, KeyPath, Report
from gateway.domain.agents import DELEGATE, AgentDef, SubagentDef
from gateway.domain.budgets import NANO, Budgets, Limit
from gateway.domain.model import ProviderDef
from gateway.domain.text import choose, quoted

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
    usd: float | None = key(None, "US dollars; every model needs a price.", ge=0, le=1e9)


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


@dataclass(frozen=True, slots=True)
class PriceCheck:
    """A limit in USD holds nothing back where no price is known: that is an error."""

    budgets: Budgets
    providers: Mapping[str, ProviderDef]
    is_priced: Callable[[ProviderDef, str], bool]
    report: Report
    reader: str | None  # the subagent that reads large results, for every agent

    def agents(
        self, places: Sequence[KeyPath], agents: Sequence[AgentDef], helpers: Sequence[SubagentDef]
    ) -> None:
        if self.budgets.in_money:  # looking for prices is slow
            for place, agent in zip(places, agents, strict=False):
                self._agent(place, agent, helpers)

    def _agent(self, path: KeyPath, agent: AgentDef, helpers: Sequence[SubagentDef]) -> None:
        """With its fallbacks, and the subagents that it asks with models of their own."""
        limit = self._limit_of(agent)
        if limit is None:
            return
        link: AgentDef | None = agent
        while link is not None:
            self._model(path, link.provider, link.model, limit)
            path, link = (*path, "fallback"), link.fallback
        for index, helper in enumerate(helpers):
            if helper.model and (
                helper.name == self.reader or DELEGATE + helper.name in agent.tools
            ):
                where: KeyPath = ("subagents", index)
                self._model(where, helper.provider or agent.provider, helper.model, limit)

    def _limit_of(self, agent: AgentDef) -> str | None:
        """The key of a limit in USD that holds for it."""
        own = self.budgets.agents.get(agent.id)
        limits = {
            "session": self.budgets.session,
            "daily": self.budgets.daily,
            "monthly": self.budgets.monthly,
            f"agent.{agent.id}" if own else "per_agent": own or self.budgets.per_agent,
        }
        return next((name for name, one in limits.items() if one.nano_usd is not None), None)

    def _model(self, path: KeyPath, provider: str, model: str, limit: str) -> None:
        definition = self.providers.get(provider)
        if definition is None or not model or self.is_priced(definition, model):
            return  # demo costs nothing, and what does not exist is told already
        told = f"budgets.{limit} is in USD, and {quoted(model)} of {quoted(provider)} has no price"
        fix = (
            f"in [providers.{provider}] add prices = {{ {quoted(model)} = {{ input = USD, output = "
            "USD } }, for a million tokens each; 0 if it costs nothing"
        )
        found = Finding(Code.MISSING, (*path, "model"), told, fix)
        if found not in self.report.findings:
            self.report.findings.append(found)


def _limit(section: LimitSection | None) -> Limit:
    if section is None:
        return Limit()
    return Limit(section.tokens, None if section.usd is None else round(section.usd * NANO))
