"""What the gateway tells of itself, its agents and rules, and of what happens."""

from typing import NotRequired, Required

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from gateway.domain.agents import MatchedBy
from gateway.domain.channels import ChannelState
from gateway.domain.events import Severity
from gateway.domain.mcp import McpState
from gateway.domain.plugins import PluginState
from gateway.web.published.money import BudgetRow
from gateway.web.published.values import Time


class PluginBrief(TypedDict):
    name: str
    state: PluginState


class ChannelBrief(TypedDict):
    name: str
    state: ChannelState


class StoreBrief(TypedDict):
    url: str


class MemoryBacklog(TypedDict):
    """Sessions that wait to be looked at for facts, and to be found again."""

    backlog: int
    unindexed: int


class McpServer(TypedDict):
    name: str
    state: McpState
    version: str | None
    tools: int
    why: str | None


class Status(TypedDict):
    """What is optional is there for those who may read everything."""

    version: str
    uptime_s: float
    ready: bool
    reasons: list[str]
    agents: list[str]
    plugins: list[PluginBrief]
    channels: list[ChannelBrief]
    store: StoreBrief
    budget: NotRequired[list[BudgetRow]]
    sessions: NotRequired[int]
    pending: NotRequired[int]
    running: NotRequired[int]
    memory: NotRequired[MemoryBacklog]
    mcp: NotRequired[list[McpServer]]
    pid: NotRequired[int]
    config: NotRequired[str]
    problems: NotRequired[list[str]]


class AgentSoul(TypedDict):
    path: str
    token_count: int
    loaded_from: str
    loaded_at: Time


class Agent(TypedDict):
    """`tools` is what its list says, `offered` what its model is told of."""

    id: str
    provider: str
    model: str
    fallbacks: list[str]
    tools: list[str]
    offered: list[str]
    context_window: int
    soul: AgentSoul | None


class Subagent(TypedDict):
    """`provider` and `model` are null if they are its parent's."""

    name: str
    description: str
    provider: str | None
    model: str | None
    max_turns: int
    timeout_seconds: int
    tools: list[str]
    soul: AgentSoul | None


class AgentList(TypedDict):
    agents: list[Agent]
    subagents: list[Subagent]


class BindingRejected(TypedDict):
    index: int
    why: str


class RouteExplained(TypedDict):
    agent_id: str
    matched_by: MatchedBy
    binding_index: int | None
    session_key: str
    rejected: list[BindingRejected]


class Rule(TypedDict):
    id: str
    description: str
    on: list[str]
    core: bool
    enabled: bool
    priority: int
    source: str
    errors: int
    last_error: str | None
    quarantined: bool


class RuleFileRefused(TypedDict):
    file: str
    why: str


class RuleList(TypedDict):
    """In the order of firing."""

    rules: list[Rule]
    refused: list[RuleFileRefused]


@with_config(ConfigDict(extra="allow"))
class Settings(TypedDict):
    """A user's; what nobody here knows is kept as it was set."""

    max_iterations: int
    soft_warning_percent: int
    token_budget: int
    token_warning_percent: int
    timeout_seconds: int
    max_tool_calls_per_turn: int
    max_parallel_tools: int
    oracle_model: str
    subagent_model: str | None
    thinking_enabled: bool
    librarian_timeout: int
    max_context_nodes: int


class Introduced(TypedDict):
    """Who one is; `agents` is null if all can be reached."""

    principal: str
    scopes: list[str]
    agents: list[str] | None


class Subscribed(TypedDict):
    types: list[str] | None
    session_key: str | None


class Happening(TypedDict):
    """What happens in a run, or in the gateway, which has no session."""

    type: str
    severity: Severity
    source: str
    at: Time
    session_key: str | None
    run_id: str | None
    payload: dict[str, object]


class ProviderTested(TypedDict, total=False):
    """What came back; or `kind` and `message` of what went wrong."""

    ok: Required[bool]
    provider: str
    model: str
    text: str
    tokens: int
    estimated: bool
    kind: str
    message: str
