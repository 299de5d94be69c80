"""Sessions and conversations: queries, imports, summaries, and the settings of their users."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """Selects sessions; None means any. The store applies the permissions of a principal as part of
    the query, so that pages contain only visible sessions."""

    agents: tuple[str, ...] | None = None
    channels: tuple[str, ...] | None = None
    account: str | None = None
    peer: str | None = None
    text: str | None = None  # a part of the key
    before: datetime | None = None  # updated before
    limit: int = 50


@dataclass(frozen=True, slots=True)
class SessionPage:
    sessions: tuple[SessionRecord, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Path:
    """Nodes along the path to `head`, oldest first; `more`: older nodes exist. `summary` is the
    newest summary on the path, at any distance; it is read only for the end of the path."""

    nodes: tuple[Node, ...]
    head: NodeId | None
    more: bool
    summary: Node | None = None


IMPORTED = RunId("imported")  # run of imported messages
_MOST_NAMES = 9


class SettingsRefused(GatewayError):
    """The settings of a user would be too large."""

    code = "invalid_params"

    def __init__(self, most: int) -> None:
        super().__init__(
            f"patch: these settings would be more than {most} bytes, nothing was changed; "
            "set some of them to null"
        )


class ImportRefused(GatewayError):
    """The import is invalid and changed nothing; the text names the place of the mistake."""

    code = "bad_import"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """`added` counts the new nodes; the session already had the others."""

    added: int
    head: NodeId | None


@dataclass(frozen=True, slots=True)
class Erased:
    """The numbers of erased messages and facts; the tombstone does not reveal what was erased."""

    messages: int
    facts: int
    tombstone: str | None = None


def select_new_nodes(
    key: SessionKey, nodes: Sequence[Node], is_known: Callable[[NodeId], bool | None]
) -> list[Node]:
    """Returns the nodes that the session does not have, with their final ids: their own, or another
    one if that id is taken. `is_known` returns None for an id that another session uses. Raises
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
    """The summary of all messages up to the node `covers`. `made` counts it and the summaries
    folded into it."""

    covers: NodeId
    goal: str = ""
    decisions: tuple[str, ...] = ()  # all decisions so far
    facts: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    key_insight: str = ""
    symbols: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    made: int = 1
    text: str = ""  # a summary that the client wrote, as one text


def from_plain(plain: object) -> Summary:
    """Inverts `asdict` of a summary. Raises ValueError for any other value."""
    if not isinstance(plain, dict) or not isinstance(plain.get("covers"), str):
        raise ValueError("not a summary")
    values: dict[str, Any] = {
        name: tuple(map(str, value)) if isinstance(value, list | tuple) else value
        for name, value in plain.items()
    }
    try:
        return Summary(**values)
    except TypeError as error:
        raise ValueError("not a summary") from error


# Limits that a user may set and that a request may tighten.
USER_LIMITS = (
    "max_iterations",
    "soft_warning_percent",
    "token_budget",
    "token_warning_percent",
    "timeout_seconds",
    "max_tool_calls_per_turn",
    "max_parallel_tools",
)
MOST_NAME = 256  # most characters of a model's name
RECORD_BYTES = 64 * 1024  # most bytes of a user's settings

_WHOLE: Mapping[str, tuple[float, float]] = {
    **{name: BOUNDS[name] for name in USER_LIMITS},
    "librarian_timeout": (1, 86_400),
    "max_context_nodes": (1, 10_000),
}
_MODELS = ("oracle_model", "subagent_model")


def problem_with(name: str, value: object) -> str | None:
    """Returns the rule that the value of a known setting breaks; unknown settings may have any
    value."""
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
    """The choices that this configuration gives to users. `usual` is the agent whose models errors
    list; `no_thinking` returns why an agent's model cannot think."""

    usual: AgentDef
    agents: Sequence[AgentDef] = ()
    subagents: Sequence[SubagentDef] = ()
    no_thinking: Callable[[AgentDef], str | None] = lambda agent: None

    def problem_with(self, name: str, value: object) -> str | None:
        """Returns why a valid setting would have no effect here."""
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
    """Yields each of these agents, followed by its fallbacks."""
    for agent in agents:
        while agent is not None:
            yield agent
            agent = agent.fallback


@dataclass(frozen=True, slots=True)
class UserSettings:
    """The settings that a user has set; `kept` also holds unknown names."""

    kept: Mapping[str, object] = field(default_factory=dict)

    def patched(self, patch: Mapping[str, object]) -> "UserSettings":
        """Returns the settings with the patch applied; None resets a setting."""
        merged = {**self.kept, **patch}
        return UserSettings({name: one for name, one in merged.items() if one is not None})

    @property
    def valid(self) -> Mapping[str, object]:
        """The settings that are still valid; for others the default applies."""
        kept = self.kept.items()
        return {name: value for name, value in kept if problem_with(name, value) is None}

    def shown(self, agent: AgentDef) -> Mapping[str, object]:
        """Returns all settings; a setting that is absent has the agent's value."""
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
    """Returns the agent for one query of this user, with the request's own limits. Users choose
    only among models that the operator configured for the agent, so no other model is paid for."""
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
    """Returns the limits of one query. `limits` come from the configuration; the user's own
    override them within the bounds. A request only tightens: looser values become the allowed
    value. Only its budget may be below the least value that can be configured, down to 1."""
    own: dict[str, Any] = {name: one for name, one in settings.valid.items() if name in USER_LIMITS}
    held = replace(limits, **own)
    tight: dict[str, Any] = {}
    for name in asked.keys() & set(USER_LIMITS):
        least = 1 if name == "token_budget" else int(BOUNDS[name][0])
        tight[name] = max(least, min(asked[name], getattr(held, name)))
    return replace(held, **tight)
