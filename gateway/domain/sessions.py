"""Sessions and conversations: how they are listed, marked, summed up, and set by their users."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal

from gateway.domain.agents import BOUNDS, AgentDef, Limits, SubagentDef
from gateway.domain.errors import GatewayError
from gateway.domain.ids import NodeId, RunId, SessionKey
from gateway.domain.messages import Node

SessionState = Literal["active", "closed"]


@dataclass(frozen=True, slots=True)
class SessionRecord:
    key: SessionKey
    created_at: datetime
    updated_at: datetime
    message_count: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    state: SessionState
    head: NodeId | None


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Also the wall between principals, so that no page is spent on what must not be seen: None
    means any."""

    agents: tuple[str, ...] | None = None
    channels: tuple[str, ...] | None = None
    account: str | None = None
    peer: str | None = None
    text: str | None = None  # occurs in the key
    before: datetime | None = None  # updated before
    limit: int = 50


@dataclass(frozen=True, slots=True)
class SessionPage:
    sessions: tuple[SessionRecord, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Path:
    """Nodes along the path to `head`, oldest first; `more`: older ones exist. `summary` is the newest
    one on it, however far up; it is looked for only from the path's own end."""

    nodes: tuple[Node, ...]
    head: NodeId | None
    more: bool
    summary: Node | None = None


IMPORTED = RunId("imported")  # of messages that no run of ours made
_MOST_NAMES = 9


class SettingsRefused(GatewayError):
    """More than is kept for a user."""

    code = "invalid_params"

    def __init__(self, most: int) -> None:
        super().__init__(
            f"patch: these settings would be more than {most} bytes, nothing was changed; "
            "set some of them to null"
        )


class ImportRefused(GatewayError):
    """It names the place in what was given; nothing was taken in."""

    code = "bad_import"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """`added`: the others were there before."""

    added: int
    head: NodeId | None


@dataclass(frozen=True, slots=True)
class Erased:
    """What went, or would go; the tombstone tells nobody what it was."""

    messages: int
    facts: int
    tombstone: str | None = None


def not_there_yet(
    key: SessionKey, nodes: Sequence[Node], is_known: Callable[[NodeId], bool | None]
) -> list[Node]:
    """Those that the session does not know, with the ids that they get: their own, or another one
    where that is taken. `is_known` says None of an id that is taken by somebody else. Raises
    ImportRefused."""
    names: dict[NodeId, NodeId] = {}
    new: list[Node] = []
    of_session = sha256(str(key).encode()).hexdigest()[:8]

    def name_of(place: int, given: NodeId) -> tuple[NodeId, bool]:
        others = (f"{given}~{of_session}{number}" for number in range(1, _MOST_NAMES))
        for name in (given, *map(NodeId, others)):
            known = is_known(name)
            if known is not None:
                return name, known
        raise ImportRefused(f"messages[{place}].id: {given[:64]!r} is taken: give it another one")

    for place, node in enumerate(nodes):
        parent = node.parent_id
        if parent is not None and parent not in names:
            names[parent], known = name_of(place, parent)
            if not known:
                where = f"messages[{place}].parent_id: {parent[:64]!r}"
                raise ImportRefused(f"{where} is neither in this session nor before it")
        if node.id not in names:
            names[node.id], known = name_of(place, node.id)
            if not known:
                above = None if parent is None else names[parent]
                new.append(replace(node, id=names[node.id], parent_id=above))
    return new


@dataclass(frozen=True, slots=True)
class Summary:
    """Stands for everything up to the node `covers`. `made` counts it and those folded into it."""

    covers: NodeId
    goal: str = ""
    decisions: tuple[str, ...] = ()  # all that were ever made
    facts: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    key_insight: str = ""
    symbols: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    made: int = 1
    text: str = ""  # as somebody else wrote it, whole


def to_plain(summary: Summary) -> dict[str, object]:
    return asdict(summary)


def from_plain(plain: object) -> Summary:
    """Raises ValueError for what `to_plain` never gives."""
    if not isinstance(plain, dict) or not isinstance(plain.get("covers"), str):
        raise ValueError("it is no summary")
    values: dict[str, Any] = {
        name: tuple(map(str, value)) if isinstance(value, list | tuple) else value
        for name, value in plain.items()
    }
    try:
        return Summary(**values)
    except TypeError as error:
        raise ValueError("it is no summary") from error


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
        asked = list(chain_of(self.usual, *self.agents))
        models, problem = {one.model for one in asked}, "no agent asks this model"
        match name:
            case "thinking_enabled" if value is True:
                reasons = list(map(self.no_thinking, asked))
                return None if None in reasons else reasons[0]
            case "subagent_model" if not self.subagents:
                return "there are no subagents"
            case "subagent_model":
                models |= {one.model for one in self.subagents if one.model}
                problem = "no subagent can ask it"
        if name not in _MODELS or value in models:
            return None
        named = ", ".join(dict.fromkeys(one.model for one in chain_of(self.usual)))
        return f"{problem}; choose one of: {named}"


def chain_of(*agents: AgentDef | None) -> Iterator[AgentDef]:
    """Each of these agents, followed by its fallbacks."""
    for agent in agents:
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


def with_settings(agent: AgentDef, settings: UserSettings, asked: Mapping[str, int]) -> AgentDef:
    """The agent for one query of this user, with the request's own limits. A user chooses among the
    models that the operator has configured for it: nothing else can be paid for."""
    if not settings.kept and not asked:
        return agent
    valid: Mapping[str, Any] = settings.valid
    model = valid.get("oracle_model")
    chosen = next((one for one in chain_of(agent) if one.model == model), agent)
    nodes = valid.get("max_context_nodes", chosen.context.max_nodes)
    return replace(
        chosen,
        thinking=valid.get("thinking_enabled", chosen.thinking),
        limits=effective(agent.limits, settings, asked),
        context=replace(chosen.context, max_nodes=nodes),
    )


def effective(limits: Limits, settings: UserSettings, asked: Mapping[str, int]) -> Limits:
    """`limits` are the configuration's: a user's own go before them, within the bounds. A request
    may only tighten; looser values become what is allowed. Its budget alone may be below the least
    that can be set, down to 1."""
    own: dict[str, Any] = {name: one for name, one in settings.valid.items() if name in USER_LIMITS}
    held = replace(limits, **own)
    tight: dict[str, Any] = {}
    for name in asked.keys() & set(USER_LIMITS):
        least = 1 if name == "token_budget" else int(BOUNDS[name][0])
        tight[name] = max(least, min(asked[name], getattr(held, name)))
    return replace(held, **tight)
