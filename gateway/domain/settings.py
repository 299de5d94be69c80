"""What users set for all of their own queries, and what then holds for one of them. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.domain.agents import BOUNDS, AgentDef, Limits
from gateway.domain.subagents import SubagentDef

# The limits that a user may set, and a single request tighten.
USER_LIMITS = (
    "max_iterations",
    "soft_warning_percent",
    "token_budget",
    "token_warning_percent",
    "timeout_seconds",
    "max_tool_calls_per_turn",
    "max_parallel_tools",
)
MOST_NAME = 256  # characters of a model's name
RECORD_BYTES = 64 * 1024  # of what is kept for a user

_WHOLE: Mapping[str, tuple[float, float]] = {
    **{name: BOUNDS[name] for name in USER_LIMITS},
    "librarian_timeout": (1, 86_400),
    "max_context_nodes": (1, 10_000),
}
_MODELS = ("oracle_model", "subagent_model")


def problem_with(name: str, value: object) -> str | None:
    """What a known setting has to be instead; what nobody here knows may be anything."""
    if name in _WHOLE:
        least, most = _WHOLE[name]
        is_one = type(value) is int and least <= value <= most
        return None if is_one else f"has to be a whole number from {least} to {most}"
    if name in _MODELS:
        is_name = isinstance(value, str) and 0 < len(value) <= MOST_NAME
        return None if is_name else f"has to be a model's name, of up to {MOST_NAME} characters"
    if name == "thinking_enabled":
        return None if isinstance(value, bool) else "has to be true or false"
    return None


@dataclass(frozen=True, slots=True)
class Choosable:
    """What users can choose with this configuration. `usual`: whose models are named to them;
    `no_thinking`: why an agent's model cannot be asked to think."""

    usual: AgentDef
    agents: Sequence[AgentDef] = ()
    subagents: Sequence[SubagentDef] = ()
    no_thinking: Callable[[AgentDef], str | None] = lambda agent: None

    def problem_with(self, name: str, value: object) -> str | None:
        """Why a setting that is valid would change nothing here."""
        asked = {one.model for one in self._asked()}
        if name == "oracle_model" and value not in asked:
            return f"no agent asks this model; choose one of: {self._models()}"
        if name == "subagent_model" and not self.subagents:
            return "there are no subagents"
        if name == "subagent_model" and value not in asked | {one.model for one in self.subagents}:
            return f"no subagent can ask it; choose one of: {self._models()}"
        return self._why_not() if (name, value) == ("thinking_enabled", True) else None

    def _why_not(self) -> str | None:
        """Why no model can be asked to think."""
        reasons = [self.no_thinking(one) for one in self._asked()]
        return None if None in reasons else reasons[0]

    def _asked(self) -> Sequence[AgentDef]:
        return [one for agent in (self.usual, *self.agents) for one in chain_of(agent)]

    def _models(self) -> str:
        return ", ".join(dict.fromkeys(one.model for one in chain_of(self.usual)))


def chain_of(agent: AgentDef | None) -> Iterator[AgentDef]:
    """With its fallbacks."""
    while agent is not None:
        yield agent
        agent = agent.fallback


@dataclass(frozen=True, slots=True)
class UserSettings:
    """`kept` is what was set and nothing else, also what nobody here knows."""

    kept: Mapping[str, object] = field(default_factory=dict)

    def patched(self, patch: Mapping[str, object]) -> "UserSettings":
        """With the patch's values; None takes a setting back."""
        merged = {**self.kept, **patch}
        return UserSettings({name: one for name, one in merged.items() if one is not None})

    @property
    def valid(self) -> Mapping[str, object]:
        """Without what could not be set any more: for that the default holds again."""
        kept = self.kept.items()
        return {name: value for name, value in kept if problem_with(name, value) is None}

    def shown(self, agent: AgentDef) -> Mapping[str, object]:
        """The whole record; what was not set is as `agent` has it."""
        return {
            **{name: getattr(agent.limits, name) for name in USER_LIMITS},
            "oracle_model": agent.model,
            "subagent_model": None,
            "thinking_enabled": agent.thinking,
            "librarian_timeout": 1200,
            "max_context_nodes": agent.context.max_nodes,
            **self.valid,
        }


def as_wished(agent: AgentDef, settings: UserSettings, asked: Mapping[str, int]) -> AgentDef:
    """The agent for one query of this user, with the request's own limits."""
    valid = settings.valid
    if not valid and not asked:
        return agent
    chosen = _starting_with(agent, valid.get("oracle_model"))
    return replace(
        chosen,
        thinking=bool(valid.get("thinking_enabled", chosen.thinking)),
        limits=effective(agent.limits, settings, asked),
        context=replace(chosen.context, **_context(valid)),
    )


def _context(valid: Mapping[str, object]) -> dict[str, Any]:
    most = valid.get("max_context_nodes")
    return {} if most is None else {"max_nodes": most}


def _starting_with(agent: AgentDef, model: object) -> AgentDef:
    """The agent's own model, or that one of its fallbacks: a user chooses among what the operator
    has configured, and nothing else can be paid for."""
    one: AgentDef | None = agent
    while one is not None and one.model != model:
        one = one.fallback
    return one or agent


def effective(limits: Limits, settings: UserSettings, asked: Mapping[str, int]) -> Limits:
    """`limits` are the configuration's: a user's own go before them, within the bounds. A request
    may only tighten; looser values become what is allowed. Its budget alone may be below the least
    that can be set, down to 1."""
    own: dict[str, Any] = {name: settings.valid.get(name) for name in USER_LIMITS}
    held = replace(limits, **{name: value for name, value in own.items() if value is not None})
    tight: dict[str, Any] = {
        name: max(_least(name), min(asked[name], getattr(held, name)))
        for name in USER_LIMITS
        if name in asked
    }
    return replace(held, **tight)


def _least(name: str) -> int:
    return 1 if name == "token_budget" else int(BOUNDS[name][0])
