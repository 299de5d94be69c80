"""The keys of config.toml with their types and bounds: pydantic at the border, nowhere else."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.config.values import (
    GatewaySettings,
    LogFormat,
    LogLevel,
    ObservabilitySettings,
    ProviderDefaults,
    QueueSettings,
    StoreSettings,
    StoreUrl,
)
from gateway.domain.agents import AgentDef, ContextRules, Limits
from gateway.domain.ids import AgentId
from gateway.domain.providers import Wire

SECRET = {"format": "password"}

Text = Annotated[str, Field(min_length=1)]
SecretText = Annotated[str, Field(min_length=1, json_schema_extra=SECRET)]
TokenBudget = Annotated[int, Field(ge=4_000, le=128_000)] | Literal["auto"]
Seconds = Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)]

_GATEWAY = GatewaySettings()
_STORE = StoreSettings()
_PROVIDER = ProviderDefaults()
_LIMITS = Limits()
_CONTEXT = ContextRules()
_QUEUE = QueueSettings()
_OBSERVABILITY = ObservabilitySettings()
_AGENT = AgentDef(AgentId("main"), "", "")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class GatewaySection(Section):
    """Where the gateway listens and what it refuses."""

    bind: Text = Field(
        default=_GATEWAY.bind,
        description="Address to listen on. Anything but loopback needs a token.",
    )
    port: int = Field(
        default=_GATEWAY.port,
        ge=0,
        le=65_535,
        description="Port to listen on; 0 takes any free one.",
    )
    data_dir: Text = Field(
        default=str(_GATEWAY.data_dir), description="Directory for everything that is stored."
    )
    token: SecretText | None = Field(
        default=None,
        description="The operator's token, with every scope. EXOGATE_TOKEN comes first.",
    )
    allowed_origins: list[Text] = Field(
        default=[],
        description="Web origins that may connect besides our own, as scheme://host[:port].",
    )
    trusted_proxies: list[Text] = Field(
        default=[],
        description="Addresses or networks of proxies whose forwarding headers are believed.",
    )
    drain_s: float = Field(
        default=_GATEWAY.drain_s,
        ge=0,
        le=3_600,
        allow_inf_nan=False,
        description="Seconds that running turns get to finish when the gateway stops.",
    )
    max_connections: int = Field(
        default=_GATEWAY.max_connections,
        ge=1,
        le=1_000_000,
        description="Open connections at most.",
    )
    max_frame_bytes: int = Field(
        default=_GATEWAY.max_frame_bytes,
        ge=1_024,
        le=67_108_864,
        description="Largest WebSocket frame, in bytes.",
    )
    max_body_bytes: int = Field(
        default=_GATEWAY.max_body_bytes,
        ge=1_024,
        le=268_435_456,
        description="Largest HTTP body, in bytes.",
    )


class TokenSection(Section):
    """One more token, for a program or a person."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = Field(
        description="Whose token it is: letters, digits, dot, hyphen, underscore."
    )
    token: SecretText = Field(description="The token itself, best as a reference.")
    scopes: list[Text] = Field(
        default=["chat"],
        min_length=1,
        description="What it may do: chat, read, admin, impersonate, agent:<id>.",
    )


class StoreSection(Section):
    """Where conversations are kept."""

    url: StoreUrl = Field(
        default=_STORE.url,
        description="embedded (SQLite under data_dir) or memory (gone at the end).",
    )
    journal_days: int = Field(
        default=_STORE.journal_days,
        ge=1,
        le=3_650,
        description="Days that the journals of finished runs are kept; transcripts stay.",
    )


class ProviderSection(Section):
    """A preset's settings, or a provider of your own."""

    wire: Wire | None = Field(
        default=None, description="Protocol that it speaks; needed unless NAME is a preset."
    )
    base_url: Text | None = Field(
        default=None,
        description="Its address; needed unless NAME is a preset. https, or this machine.",
    )
    api_key: SecretText | None = Field(
        default=None,
        description="Its key, best as a reference. Environment and secret file come first.",
    )
    headers: dict[str, Annotated[str, Field(json_schema_extra=SECRET)]] = Field(
        default={}, description="Headers that are sent along; their values may hold references."
    )
    connect_timeout_s: Seconds = Field(
        default=_PROVIDER.connect_timeout_s, description="Seconds to wait for a connection."
    )
    idle_timeout_s: Seconds = Field(
        default=_PROVIDER.idle_timeout_s,
        description="Seconds to wait for the first byte, and between two.",
    )
    max_retries: int = Field(
        default=_PROVIDER.max_retries,
        ge=0,
        le=10,
        description="Tries again before anything of a reply was seen.",
    )


class LimitsSection(Section):
    """Bounds of one run."""

    max_iterations: int = Field(
        default=_LIMITS.max_iterations, ge=1, le=50, description="Model calls in one run."
    )
    token_budget: int = Field(
        default=_LIMITS.token_budget, ge=1_000, le=200_000, description="All tokens of one run."
    )
    timeout_seconds: int = Field(
        default=_LIMITS.timeout_seconds, ge=10, le=600, description="Seconds that one run may take."
    )
    max_tool_calls_per_turn: int = Field(
        default=_LIMITS.max_tool_calls_per_turn,
        ge=1,
        le=20,
        description="Tool calls that one reply of the model may ask for.",
    )
    max_parallel_tools: int = Field(
        default=_LIMITS.max_parallel_tools,
        ge=1,
        le=10,
        description="Tools that work at the same time.",
    )
    tool_timeout_s: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] = Field(
        default=_LIMITS.tool_timeout_s, description="Seconds that one tool call may take."
    )


class ContextSection(Section):
    """How much of a conversation a model is shown."""

    token_budget: TokenBudget = Field(
        default=_CONTEXT.token_budget,
        description='Tokens that are sent, estimated; "auto" is 0.8 of the model\'s window.',
    )
    recent_turns: int = Field(
        default=_CONTEXT.recent_turns, ge=1, le=1_000, description="Whole exchanges that are sent."
    )


class ModelSection(Section):
    """Which model answers, and how it is asked."""

    provider: Text | None = Field(
        default=None,
        description="A preset or one of [providers]. Absent: the one whose key is in the "
        "environment, else demo.",
    )
    model: Text | None = Field(
        default=None, description="The model's name. Absent: the preset's own."
    )
    max_tokens: int = Field(
        default=_AGENT.max_tokens, ge=1, description="Tokens of one reply at most."
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="From 0 to 2; only sent if it is set.",
    )
    context_window: int | None = Field(
        default=None,
        ge=1_024,
        le=100_000_000,
        description="Tokens that the model can read. Absent: what is known of the model.",
    )
    thinking: bool = Field(default=False, description="Ask the model to think first.")
    stream: bool = Field(default=True, description="Ask for the reply as it is made.")
    fallback: "FallbackSection | None" = Field(
        default=None, description="The model that answers when this one's provider cannot."
    )


class FallbackSection(ModelSection):
    """An agent again; what is not said here is the agent's."""

    provider: Text = Field(description="A preset or one of [providers].")


class AgentSection(ModelSection):
    """Who answers. [agent] is the default agent."""

    id: Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,64}$")] = Field(
        default="main", description="Its name: letters, digits and hyphens."
    )
    system_prompt: str = Field(default="", description="What it is told after its soul.")
    soul_path: Text | None = Field(
        default=None, description="Its character, a Markdown file. Absent: the one that is shipped."
    )
    tools: list[Text] = Field(default=[], description="Names of the tools that it has.")
    limits: LimitsSection = Field(
        default_factory=LimitsSection,
        description="Its own bounds; what is absent comes from [limits].",
    )
    context: ContextSection = Field(
        default_factory=ContextSection,
        description="Its own rules; what is absent comes from [context].",
    )


class NamedAgentSection(AgentSection):
    """One more agent; a binding leads to it."""

    id: Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,64}$")] = Field(
        description="Its name: letters, digits and hyphens."
    )


class BindingSection(Section):
    """Messages from there are answered by this agent; every field that is given must match."""

    agent_id: Text = Field(description="The agent that answers.")
    channel: Text | None = Field(default=None, description="The channel's name.")
    account_id: Text | None = Field(default=None, description="The account on that channel.")
    peer_id: Text | None = Field(default=None, description="The person or room.")
    guild_id: Text | None = Field(default=None, description="The server or guild.")
    team_id: Text | None = Field(default=None, description="The team or workspace.")


class QueueSection(Section):
    """How much may wait; beyond it a message is refused, never dropped."""

    max_pending: int = Field(
        default=_QUEUE.max_pending,
        ge=1,
        le=1_000_000,
        description="Messages that wait in one session.",
    )
    max_pending_total: int = Field(
        default=_QUEUE.max_pending_total,
        ge=1,
        le=100_000_000,
        description="Messages that wait in all.",
    )
    max_running: int = Field(
        default=_QUEUE.max_running, ge=1, le=100_000, description="Turns at work at the same time."
    )


class ObservabilitySection(Section):
    """What is told about the gateway's work."""

    log_level: LogLevel = Field(
        default=_OBSERVABILITY.log_level, description="The least that is logged."
    )
    log_format: LogFormat = Field(
        default=_OBSERVABILITY.log_format, description="auto: console on a terminal, else json."
    )


class ConfigFile(Section):
    """The configuration of exogate."""

    config_version: Literal[1] = Field(default=1, description="Version of this file's format.")
    gateway: GatewaySection = Field(
        default_factory=GatewaySection, description="Where the gateway listens and what it refuses."
    )
    tokens: list[TokenSection] = Field(default=[], description="More tokens, with fewer rights.")
    store: StoreSection = Field(
        default_factory=StoreSection, description="Where conversations are kept."
    )
    providers: dict[str, ProviderSection] = Field(
        default={},
        description="Model providers by name: presets anthropic, openai, gemini, openrouter, "
        "ollama, demo, or your own.",
    )
    agent: AgentSection | None = Field(
        default=None, description="The default agent: answers what no binding leads elsewhere."
    )
    agents: list[NamedAgentSection] = Field(default=[], description="More agents.")
    limits: LimitsSection = Field(
        default_factory=LimitsSection, description="Bounds of every agent's runs."
    )
    context: ContextSection = Field(
        default_factory=ContextSection,
        description="How much of a conversation every agent's model is shown.",
    )
    bindings: list[BindingSection] = Field(default=[], description="Which agent answers where.")
    queue: QueueSection = Field(default_factory=QueueSection, description="How much may wait.")
    observability: ObservabilitySection = Field(
        default_factory=ObservabilitySection, description="What is told about the gateway's work."
    )
