"""The keys of config.toml with their types and bounds: pydantic at the border, nowhere else."""

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.config.budgets import BudgetsSection, PriceSection
from gateway.config.delegation import DelegationSection
from gateway.config.kinds import (
    Header,
    HeaderName,
    Host,
    Id,
    Network,
    Origin,
    PathText,
    Plain,
    PluginName,
    PluginSecretText,
    ProviderName,
    Scopes,
    Seconds,
    SecretName,
    SecretText,
    Section,
    Sha256,
    StateName,
    Text,
    TokenBudget,
    Url,
    key,
)
from gateway.config.mcp import McpSection
from gateway.config.reaching import (
    BindingSection,
    ChannelSection,
    ProjectSection,
    SubagentSection,
)
from gateway.config.values import (
    GatewaySettings,
    LogFormat,
    LogLevel,
    ObservabilitySettings,
    QueueSettings,
    SandboxSettings,
    StoreSettings,
    StoreUrl,
)
from gateway.domain.agents import BOUNDS, AgentDef, ContextRules, Extraction, FactScope, Limits
from gateway.domain.events import Batch, OncePer, Point, Priority, Severity, To
from gateway.domain.ids import AgentId
from gateway.domain.inbox import QueueMode
from gateway.domain.model import ProviderDef, ToolMarkup, Wire
from gateway.domain.plugins import PluginLimits

TokenName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]

_GATEWAY = GatewaySettings()
_STORE = StoreSettings()
_PROVIDER = ProviderDef("", "openai", "")
_LIMITS = Limits()
_CONTEXT = ContextRules()
_QUEUE = QueueSettings()
_PLUGIN = PluginLimits()
_SANDBOX = SandboxSettings()
_BATCH = Batch()
_OBSERVABILITY = ObservabilitySettings()
_AGENT = AgentDef(AgentId("main"), "", "")


class GatewaySection(Section):
    """Where the gateway listens and what it refuses."""

    bind: Host = key(_GATEWAY.bind, "Address to listen on. Anything but loopback needs a token.")
    port: int = key(_GATEWAY.port, "Port to listen on; 0 takes any free one.", ge=0, le=65_535)
    data_dir: PathText = key(str(_GATEWAY.data_dir), "Directory for everything that is stored.")
    token: SecretText | None = key(None, "The operator's token; EXOGATE_TOKEN comes first.")
    allowed_origins: list[Origin] = key([], "Web origins that may connect: scheme://host[:port].")
    trusted_proxies: list[Network] = key([], "Addresses or networks of proxies that are believed.")
    drain_s: float = key(_GATEWAY.drain_s, "Seconds that turns get to finish.", ge=0, le=3_600)
    max_connections: int = key(_GATEWAY.max_connections, "Open connections.", ge=1, le=1_000_000)
    max_connections_per_address: int = key(
        _GATEWAY.max_connections_per_address,
        "Of one address, or IPv6 /64; loopback is exempt.",
        ge=1,
        le=1_000_000,
    )
    max_unauthenticated: int = key(
        _GATEWAY.max_unauthenticated, "Without a valid token, in all.", ge=1, le=1_000_000
    )
    max_frame_bytes: int = key(
        _GATEWAY.max_frame_bytes, "Largest WebSocket frame, in bytes.", ge=1_024, le=67_108_864
    )
    max_body_bytes: int = key(
        _GATEWAY.max_body_bytes, "Largest HTTP body, in bytes.", ge=1_024, le=268_435_456
    )


class TokenSection(Section):
    """One more token, for a program or a person."""

    name: TokenName = key(..., "Whose token it is: letters, digits, dot, hyphen, underscore.")
    token: SecretText = key(..., "The token itself, best as a reference.")
    scopes: Scopes = key(["chat"], "Out of chat, read, admin, impersonate, metrics, agent:ID.")


class StoreSection(Section):
    """Where conversations are kept."""

    url: StoreUrl = key(_STORE.url, "embedded: SQLite under data_dir; memory: gone at the end.")
    journal_days: int = key(_STORE.journal_days, "Days that journals are kept.", ge=1, le=3_650)


class ProviderSection(Section):
    """A preset's settings, or a provider of your own."""

    wire: Wire | None = key(None, "Protocol that it speaks; needed unless NAME is a preset.")
    base_url: Url | None = key(None, "https, or this machine; needed unless NAME is a preset.")
    api_key: SecretText | None = key(None, "Environment and secret file come first.")
    headers: dict[HeaderName, Header] = key({}, "Sent along; their values may hold references.")
    connect_timeout_s: Seconds = key(_PROVIDER.connect_timeout_s, "Seconds for a connection.")
    idle_timeout_s: Seconds = key(_PROVIDER.idle_timeout_s, "Seconds between two bytes.")
    max_retries: int = key(_PROVIDER.max_retries, "Tries again before any reply.", ge=0, le=10)
    prices: dict[Text, PriceSection] = key({}, "Prices by model; they come before public ones.")
    tool_markup: ToolMarkup = key(
        _PROVIDER.tool_markup, "recover: tool calls that a model writes as text are called."
    )


def limit(name: str, description: str) -> Any:  # as pydantic's Field
    least, most = BOUNDS[name]
    return key(getattr(_LIMITS, name), description, ge=least, le=most)


class LimitsSection(Section):
    """Bounds of one run."""

    max_iterations: int = limit("max_iterations", "Model calls.")
    soft_warning_percent: int = limit("soft_warning_percent", "Warns so far into them.")
    token_budget: int = limit("token_budget", "All tokens.")
    token_warning_percent: int = limit("token_warning_percent", "Warns so far into them.")
    timeout_seconds: int = limit("timeout_seconds", "Seconds in all.")
    max_tool_calls_per_turn: int = limit(
        "max_tool_calls_per_turn", "Tool calls that one reply may ask for."
    )
    max_parallel_tools: int = limit("max_parallel_tools", "Tools at a time.")
    tool_timeout_s: float = limit("tool_timeout_s", "Seconds of one tool call.")
    error_limit: int = limit("error_limit", "Turns in a row in which every tool call failed.")
    loop_window: int = limit("loop_window", "Turns in which repeated calls are looked for.")
    loop_threshold: int = limit("loop_threshold", "The same calls so often in them are a loop.")
    no_progress_repeats: int = limit(
        "no_progress_repeats", "The same call with the same result so often in a row."
    )


class ContextSection(Section):
    """How much of a conversation a model is shown."""

    token_budget: TokenBudget = key(
        _CONTEXT.token_budget, 'Estimated tokens; "auto" is 0.8 of the model\'s window.'
    )
    recent_turns: int = key(_CONTEXT.recent_turns, "Whole exchanges.", ge=1, le=1_000)
    max_nodes: int = key(
        _CONTEXT.max_nodes,
        "Of a tree with branches; beyond it those off the path are archived.",
        ge=1,
        le=10_000,
    )
    expire_days: int | None = key(
        None, "A session unused for so long is closed. Absent: never.", ge=1, le=36_500
    )
    warning_percent: int = key(
        _CONTEXT.warning_percent, "Warns when so much of the model's window is used.", ge=50, le=95
    )
    extraction: Extraction = key(
        _CONTEXT.extraction,
        "Who looks for facts: patterns; model, which is asked after each turn; auto, patterns and "
        "a model where one compacts anyway; off.",
    )
    fact_scope: FactScope = key(
        _CONTEXT.fact_scope,
        "Whose facts are known: the person's own, or all that the agent was told.",
    )
    facts: int = key(_CONTEXT.facts, "Facts that are shown at most.", ge=0, le=100)
    semantic: bool = key(
        _CONTEXT.semantic, "Look for facts and earlier turns that fit the question."
    )
    compact_percent: int = key(
        _CONTEXT.compact_percent,
        "Of token_budget: beyond it the older part is summed up.",
        ge=30,
        le=95,
    )


class ModelSection(Section):
    """Which model answers, and how it is asked."""

    provider: Text | None = key(None, "Absent: the preset whose key is at hand, else demo.")
    model: Text | None = key(None, "The model's name. Absent: the preset's own.")
    max_tokens: int = key(_AGENT.max_tokens, "Tokens of one reply at most.", ge=1)
    temperature: float | None = key(None, "From 0 to 2; only sent if it is set.", ge=0, le=2)
    context_window: int | None = key(
        None, "Tokens that the model can read. Absent: what is known.", ge=1_024, le=100_000_000
    )
    thinking: bool = key(_AGENT.thinking, "Ask the model to think first.")
    stream: bool = key(_AGENT.stream, "Ask for the reply as it is made.")
    fallback: "FallbackSection | None" = key(None, "The model that answers when this one cannot.")


class FallbackSection(ModelSection):
    """An agent again; what is not said here is the agent's."""

    provider: Text = key(..., "A preset or one of [providers].")


class AgentSection(ModelSection):
    """Who answers. [agent] is the default agent."""

    id: Id = key("main", "Its name: letters, digits and hyphens.")
    system_prompt: str = key("", "What it is told after its soul.")
    soul_path: PathText | None = key(
        None, "Its character, a Markdown file. Absent: the shipped one."
    )
    prompt_template: PathText | None = key(None, "A Markdown file: how its system text is made.")
    tools: list[Text] = key(
        [], "Plugins, each with all of its tools, or PLUGIN/TOOL; mcp:SERVER, or mcp:SERVER/TOOL."
    )
    subagents: list[Text] = key([], "Names of [[subagents]] that it may give tasks to.")
    project: Id = key(_AGENT.project, "default: it answers everybody; else one of [[projects]].")
    tree: PathText = key("default", "Its loop: default, oracle-agent, or a .bt file of your own.")
    decision: Text = key(
        "default", "Who judges whether a run goes on: default, or an installed one."
    )
    rules: list[Text] = key([], "Ids of the rules for it, besides core ones. Empty: all of them.")
    limits: LimitsSection = key(LimitsSection, "Its own; what is absent comes from [limits].")
    context: ContextSection = key(ContextSection, "Its own; what is absent comes from [context].")


class NamedAgentSection(AgentSection):
    """One more agent; a binding leads to it."""

    id: Id = key(..., "Its name: letters, digits and hyphens.")


class PluginLimitsSection(Section):
    """Bounds of one call of a plugin, and of calls at a time."""

    timeout_s: float = key(_PLUGIN.timeout_s, "Seconds.", gt=0, le=60)
    memory_mb: int = key(_PLUGIN.memory_mb, "MiB of memory.", ge=1, le=512)
    fuel: int | None = key(
        None, "Instructions, about. Absent: what fits into the time.", ge=1, le=2**62
    )
    output_kb: int = key(_PLUGIN.output_kb, "KiB of its answer.", ge=1, le=8_192)
    concurrency: int = key(_PLUGIN.concurrency, "Calls at a time; more wait.", ge=1, le=1_024)


class PluginSection(Section):
    """Code of others in a sandbox: it can do only what it is granted here."""

    name: PluginName = key(..., "Its name: lower-case letters, digits, - and single _, 32 at most.")
    path: PathText = key(..., "Its file, or bundled:NAME for one that is shipped.")
    capabilities: list[Text] = key([], "What it may do: http:HOST, store:NAME, host_function:NAME.")
    sha256: Sha256 | None = key(None, "Of its file; another file is refused.")
    config: dict[str, Any] = key({}, "Given to the plugin as it is.")
    secrets: dict[SecretName, PluginSecretText] = key(
        {}, "Filled in by the host, never given to the plugin."
    )
    limits: PluginLimitsSection = key(PluginLimitsSection, "Bounds of one call.")
    enabled: bool = key(default=True, description="Whether it is loaded.")
    deny_unused: bool = key(
        default=False, description="Load it although it imports what it was not granted."
    )


class SandboxSection(Section):
    """The processes that run the code of plugins."""

    workers: int = key(_SANDBOX.workers, "Processes.", ge=1, le=16)
    idle_s: float = key(_SANDBOX.idle_s, "Seconds until an idle one ends.", ge=1, le=86_400)


class ActionSection(Section):
    """One thing that a rule does, with its options."""

    notify: Text | None = key(None, "A notice: a text with {path} in it.")
    log: Text | None = key(None, "A line in the gateway's log, also with {path}.")
    set_state: dict[StateName, Plain] | None = key(
        None, "Names with values; texts are expressions."
    )
    emit: Text | None = key(None, "An event of this type.")
    interrupt: Text | None = key(None, "Stop the run; the text says why.")
    set_model: Text | None = key(None, "Ask this model from now on.")
    add_tool: Text | None = key(None, "A tool that a rule took away: the model has it again.")
    remove_tool: Text | None = key(None, "A tool that it has no more.")
    inject_at: Point | None = key(None, "Of notify: where in the run.")
    priority: Priority | None = key(None, "Of notify: critical ones are told first.")
    to: To | None = key(None, "Of notify: whom it tells.")
    after_tool: Text | None = key(None, "Of notify: wait until this tool ran.")
    after_turns: int | None = key(None, "Of notify: wait so many turns.", ge=1, le=1_000)
    not_before: Text | None = key(None, "Of notify: wait until this expression holds.")
    expires_s: float | None = key(None, "Of notify: then it is too late.", gt=0, le=31_536_000)
    level: LogLevel | None = key(None, "Of log.")
    severity: Severity | None = key(None, "Of emit.")
    payload: dict[Text, Plain] | None = key(None, "Of emit: what the event holds.")


class BatchSection(Section):
    """What happens when the same comes often."""

    window_ms: int = key(
        _BATCH.window_ms, "Notices of so long are told as one.", ge=0, le=3_600_000
    )
    max: int = key(_BATCH.max, "At most so many.", ge=1, le=1_000)
    dedupe: str = key(_BATCH.dedupe, "Paths, with colons between, that make notices the same.")
    dedupe_ms: int = key(_BATCH.dedupe_ms, "The same only counts later.", ge=1, le=86_400_000)


class RuleSection(Section):
    """What is done when something happens in a run."""

    id: Id = key(..., "Its name: letters, digits and hyphens.")
    description: str = key("", "What it is for.")
    core: bool = key(default=False, description="Whether every agent has it, always.")
    enabled: bool = key(default=True, description="Whether it is in force.")
    priority: int = key(0, "Higher ones first.", ge=-1_000_000, le=1_000_000)
    on: list[Text] = key(..., "Types of events; * for any part.")
    min_severity: Severity = key("debug", "The least severe event that counts.")
    when: Text | None = key(None, "An expression that has to hold.")
    once_per: OncePer = key("never", "How often it may fire: once a run, a session, or always.")
    batch: BatchSection = key(BatchSection, "What happens when the same comes often.")
    do: list[ActionSection] = key(..., "What is done, in order.")


class QueueSection(Section):
    """Messages that come while a turn is at work; beyond the bounds refused, never dropped."""

    mode: QueueMode = key(
        _QUEUE.mode, "A turn each, one for all that wait, said to the one at work, or stopping it."
    )
    debounce_ms: int = key(
        _QUEUE.debounce_ms, "How long a first message waits for more.", ge=0, le=60_000
    )
    max_pending: int = key(_QUEUE.max_pending, "Messages in one session.", ge=1, le=1_000_000)
    max_pending_total: int = key(_QUEUE.max_pending_total, "In all.", ge=1, le=100_000_000)
    max_pending_mb: int = key(_QUEUE.max_pending_mb, "MB in one session.", ge=1, le=1_000_000)
    max_pending_total_mb: int = key(_QUEUE.max_pending_total_mb, "MB in all.", ge=1, le=100_000_000)
    max_pending_per_principal: int = key(
        _QUEUE.max_pending_per_principal, "Messages of one token or person.", ge=1, le=100_000_000
    )
    max_running: int = key(_QUEUE.max_running, "Turns at work at a time.", ge=1, le=100_000)


class ObservabilitySection(Section):
    """What is told about the gateway's work."""

    log_level: LogLevel = key(_OBSERVABILITY.log_level, "The least that is logged.")
    log_format: LogFormat = key(
        _OBSERVABILITY.log_format, "auto: console on a terminal, else json."
    )
    metrics: bool = key(_OBSERVABILITY.metrics, "Whether GET /metrics answers.")


class ConfigFile(Section):
    """The configuration of exogate."""

    config_version: Literal[1] = key(1, "Version of this file's format.")
    gateway: GatewaySection = key(GatewaySection, "Where the gateway listens.")
    tokens: list[TokenSection] = key([], "More tokens, with fewer rights.")
    store: StoreSection = key(StoreSection, "Where conversations are kept.")
    providers: dict[ProviderName, ProviderSection] = key(
        {}, "Model providers by name: presets or your own."
    )
    agent: AgentSection | None = key(None, "Answers what no binding leads elsewhere.")
    agents: list[NamedAgentSection] = key([], "More agents.")
    projects: list[ProjectSection] = key([], "Agents that answer only some.")
    limits: LimitsSection = key(LimitsSection, "Bounds of every agent's runs.")
    context: ContextSection = key(ContextSection, "How much every agent's model is shown.")
    budgets: BudgetsSection = key(BudgetsSection, "Hard limits of what is spent.")
    plugins: list[PluginSection] = key([], "Code of others, and what it may do.")
    sandbox: SandboxSection = key(SandboxSection, "The processes that run the code of plugins.")
    mcp: McpSection = key(McpSection, "Tools of other programs, and ours for them.")
    channels: dict[PluginName, ChannelSection] = key({}, "Where people write, by name.")
    bindings: list[BindingSection] = key([], "Which agent answers where.")
    subagents: list[SubagentSection] = key([], "Agents that work for agents.")
    delegation: DelegationSection = key(
        DelegationSection, "Results of tools that a subagent reads first."
    )
    rules: list[RuleSection] = key([], "What is done when something happens in a run.")
    rules_dir: PathText | None = key(None, "A folder with more rules, in files *.toml.")
    queue: QueueSection = key(QueueSection, "Messages that come while a turn is at work.")
    observability: ObservabilitySection = key(ObservabilitySection, "What is told about the work.")


for _section in (AgentSection, NamedAgentSection, FallbackSection):
    _section.model_rebuild()  # their annotations name each other
