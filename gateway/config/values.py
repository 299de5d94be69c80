"""What a configuration is once it is read: frozen values, whose fields say how config.toml has them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from gateway.config.problems import ConfigFinding, ConfigProblem
from gateway.domain.agents import (
    AgentDef,
    Binding,
    ContextRules,
    Delegation,
    Limits,
    ProjectDef,
    SubagentDef,
)
from gateway.domain.budgets import Budgets, TokenBudget
from gateway.domain.channels import ChannelDef
from gateway.domain.events import Point, Priority, RefusedRules, RuleDef, RuleProblem, Severity, To
from gateway.domain.ids import AgentId, Secret
from gateway.domain.inbox import QueueMode
from gateway.domain.logs import LogLevel
from gateway.domain.mcp import McpServerDef, McpServing
from gateway.domain.model import ProviderDef, Wire
from gateway.domain.plugins import PluginDef
from gateway.domain.settings import Setting, setting

LogFormat = Literal["auto", "json", "console"]
Plain = str | bool | int | float

MILLION, HUNDRED_MILLION = 1_000_000, 100_000_000


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Where the gateway listens and what it refuses."""

    bind: str = setting(
        "127.0.0.1", "Address to listen on. Anything but loopback needs a token.", form="host"
    )
    port: int = setting(7200, "Port to listen on; 0 takes any free one.", 0, 65_535)
    data_dir: Path = setting(  # absolute once it is loaded
        Path("~/.local/share/exogate"), "Directory of the database and all other data.", form="path"
    )
    token: Secret | None = setting(None, "The operator's token; EXOGATE_TOKEN comes first.")
    allowed_origins: tuple[str, ...] = setting(
        (), "Web origins that may connect: scheme://host[:port].", form="origin"
    )
    trusted_proxies: tuple[str, ...] = setting(
        (), "Addresses or networks of proxies whose forwarding headers count.", form="network"
    )
    drain_s: float = setting(20.0, "Seconds that running turns get to finish at a stop.", 0, 3_600)
    watch: bool = setting(True, "Whether files that change are reloaded by themselves.")
    max_connections: int = setting(12_000, "Open connections, at most.", 1, MILLION)
    max_connections_per_address: int = setting(
        1_000, "Connections of one address or IPv6 /64; loopback is exempt.", 1, MILLION
    )
    max_unauthenticated: int = setting(
        256, "Connections without a valid token, at most.", 1, MILLION
    )
    max_frame_bytes: int = setting(
        1_048_576, "Largest WebSocket frame, in bytes.", 1_024, 67_108_864
    )
    max_body_bytes: int = setting(4_194_304, "Largest HTTP body, in bytes.", 1_024, 268_435_456)


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """One more token, for a program or a person; `name` is the principal."""

    name: Annotated[
        str,
        Setting("Whose token it is: letters, digits, dot, hyphen, underscore.", form="token"),
    ]
    token: Annotated[Secret, Setting("The token itself, best as a reference.")]
    scopes: tuple[str, ...] = setting(
        ("chat",), "Scopes: chat, read, admin, impersonate, metrics, agent:ID.", 1
    )
    expires: datetime | None = setting(
        None, "When it is no longer accepted: a date or a time, UTC unless it says otherwise."
    )
    budget: TokenBudget | None = setting(
        None, "Tokens that it may use a day; or a table with session, daily, monthly."
    )


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where conversations are kept."""

    url: str = setting(
        "embedded",
        "embedded: SQLite under data_dir; memory: gone at the end; ws://HOST:PORT: SurrealDB.",
        form="store",
    )
    namespace: str = setting("exogate", "Namespace on the SurrealDB server.")
    database: str = setting("main", "Database in that namespace.")
    username: str | None = setting(None, "A user of the database, its namespace, or the server.")
    password: Secret | None = setting(None, "Its password, best as a reference.")
    journal_days: int = setting(30, "Days that run journals are kept.", 1, 3_650)

    @property
    def is_shared(self) -> bool:
        """Whether it is a server, which others may use too."""
        return self.url.startswith(("ws:", "wss:"))


@dataclass(frozen=True, slots=True)
class Clustering:
    """How several gateways share the work over one store; without the section a gateway is alone."""

    url: str | None = setting(
        None, "nats://HOST:PORT of hints between nodes; without it they look into the store.", 1
    )
    credentials: Secret | None = setting(
        None, "For NATS: USER:PASSWORD, a token, an nkey seed or credentials, best as a reference."
    )
    node: str | None = setting(
        None, "A label of this node; the host's name if absent.", 1, 63, form="token"
    )
    partitions: int = setting(
        64, "Parts of the work; the first node decides for as long as the store lasts.", 1, 1_024
    )
    lease_s: float = setting(15.0, "Seconds until a silent node's work is taken over.", 3, 300)
    poll_s: float = setting(2.0, "Seconds between two looks into the store.", 0.2, 60)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Messages that arrive while a turn is running; beyond the bounds refused, never dropped."""

    mode: QueueMode = setting(
        "followup",
        "One turn each, one for all, into the running turn, or stopping it.",
    )
    debounce_ms: int = setting(
        0, "Milliseconds that a first message waits for more; one turn answers all.", 0, 60_000
    )
    max_pending: int = setting(1_000, "Queued messages of one session, at most.", 1, MILLION)
    max_pending_total: int = setting(
        100_000, "Queued messages of all sessions, at most.", 1, HUNDRED_MILLION
    )
    max_pending_mb: int = setting(64, "MB of queued messages of one session.", 1, MILLION)
    max_pending_total_mb: int = setting(
        1_024, "MB of queued messages of all sessions.", 1, HUNDRED_MILLION
    )
    max_pending_per_principal: int = setting(
        5_000, "Queued messages of one token or person.", 1, HUNDRED_MILLION
    )
    max_running: int = setting(256, "Turns that run at the same time.", 1, 100_000)


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The worker processes of plugins."""

    workers: int = setting(1, "Worker processes.", 1, 16)
    idle_s: float = setting(300.0, "Seconds until an idle worker ends.", 1, 86_400)


@dataclass(frozen=True, slots=True)
class ObservabilitySettings:
    """What is told about the gateway's work."""

    log_level: LogLevel = setting("info", "The lowest level that is logged.")
    log_format: LogFormat = setting("auto", "auto: console on a terminal, else json.")
    log_keep_days: int = setting(7, "Days that the log files are kept.", 1, 3_650)
    log_max_mb: int = setting(100, "MB of all log files; the oldest go first.", 1, 100_000)
    metrics: bool = setting(True, "Whether GET /metrics answers.")
    otlp_endpoint: str | None = setting(
        None, "Where traces go: a collector, as http://HOST:4318.", form="collector"
    )
    otlp_headers: Annotated[
        Mapping[str, Secret],
        Setting("Sent to it; values may hold references.", form="any", names="header"),
    ] = field(default_factory=dict)
    otlp_content: bool = setting(False, "Whether traces hold what was said.")


@dataclass(frozen=True, slots=True)
class McpSettings:
    """Tools of other programs, and ours for them, over the Model Context Protocol."""

    servers: tuple[McpServerDef, ...] = setting(
        (), "Servers by name.", names="plugin", by_name=True
    )
    serve: McpServing = setting(McpServing(), "What the gateway serves at /mcp.")


@dataclass(frozen=True, slots=True)
class SecretKeys:
    """A secret that the host fills into what the plugin sends; the plugin never has it."""

    name: str
    value: Annotated[Secret, Setting("The secret, or a reference to it.")]
    hosts: tuple[str, ...] = setting((), "Hosts that receive it. Absent: the one granted host.")


@dataclass(frozen=True, slots=True)
class ActionKeys:
    """One thing that a rule does, with its options."""

    notify: str | None = setting(None, "A notice: a text with {path} in it.")
    log: str | None = setting(None, "A line in the gateway's log, also with {path}.")
    set_state: Mapping[str, Plain] | None = setting(
        None, "Variables to set; text values are expressions.", form="any", names="state"
    )
    emit: str | None = setting(None, "Publish an event of this type.")
    interrupt: str | None = setting(None, "Stop the run, with this reason.")
    set_model: str | None = setting(None, "Use this model from now on.")
    add_tool: str | None = setting(None, "Give back a tool that a rule removed.")
    remove_tool: str | None = setting(None, "Remove this tool.")
    inject_at: Point | None = setting(None, "notify: where in the run.")
    priority: Priority | None = setting(None, "notify: priority; critical notices come first.")
    to: To | None = setting(None, "notify: the audience.")
    after_tool: str | None = setting(None, "notify: wait until this tool has run.")
    after_turns: int | None = setting(None, "notify: wait for this many turns.", 1, 1_000)
    not_before: str | None = setting(None, "notify: wait until this expression is true.")
    expires_s: float | None = setting(
        None, "Of notify: then it is too late.", above=0, most=31_536_000
    )
    level: LogLevel | None = setting(None, "log: the level.")
    severity: Severity | None = setting(None, "emit: the severity.")
    payload: Mapping[str, Plain] | None = setting(
        None, "emit: the payload of the event.", form="any"
    )


@dataclass(frozen=True, slots=True)
class Preset:
    """A provider that is known by name. `key_variable` is None where no key is needed."""

    wire: Wire
    base_url: str
    key_variable: str | None = None
    default_model: str | None = None


@dataclass(frozen=True, slots=True)
class BundledPlugin:
    """A plugin that ships with the gateway. `is_usual`: a start without any agent has it. `proofs` of a
    channel adapter prove who calls its webhook, which it `is_called` at unless told otherwise."""

    file: Path
    needs: Sequence[str] = ()  # capabilities without which it cannot work
    is_usual: bool = False
    proofs: Sequence[str] = ()  # secrets.NAME, config.NAME
    is_called: bool = False
    mention_key: str | None = None  # of `config`, without which it knows no mention in a room


@dataclass(frozen=True, slots=True)
class RuleFolder:
    """What `rules_dir` held when it was read; `problems` are those of the refused files."""

    path: Path
    rules: tuple[RuleDef, ...]
    refused: tuple[RefusedRules, ...]
    problems: tuple[ConfigProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """What other rooms know and a configuration is checked against."""

    presets: Mapping[str, Preset]  # in order of preference; without `demo`
    bundled: Mapping[str, BundledPlugin]
    context_window: Callable[[str], int]
    output_limit: Callable[[str], int | None]
    # why a model cannot be asked to think: provider, wire (None: the demo), model, max_tokens
    no_thinking: Callable[[str, Wire | None, str, int], str | None] = lambda *about: None
    trees: tuple[str, ...] = ("default",)
    decisions: tuple[str, ...] = ("default",)
    core_rules: Path | None = None  # a file of rules that nobody can change
    rule_problems: Callable[[RuleDef], Sequence[RuleProblem]] = lambda rule: ()
    has_mcp: bool = True  # the SDK is an extra
    has_surrealdb: bool = True  # so is its data format
    has_nats: bool = True  # and so are hints between nodes
    has_otel: bool = True  # so is the format of traces
    is_priced: Callable[[ProviderDef, str], bool] = lambda provider, model: True


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says; it wins over file and environment."""

    data_dir: Path | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a configuration is read in."""

    environment: Mapping[str, str]
    home: Path
    cwd: Path
    known: Known
    overrides: Overrides = field(default_factory=Overrides)
    is_named: bool = True  # the file: else it is the one that was found in the usual places
    pending: Mapping[str, str] = field(default_factory=dict)  # secret files that are to be written

    def path(self, text: str, folder: Path) -> Path:
        return placed_at(text, folder, home=self.home)

    def name(self, path: Path) -> str:
        return shorter_name(path, home=self.home, cwd=self.cwd)


def placed_at(text: str, folder: Path, *, home: Path) -> Path:
    """As a configuration writes it: `~` is the home, anything relative starts at `folder`."""
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return folder / text


def shorter_name(path: Path, *, home: Path, cwd: Path) -> str:
    """A file as messages call it: as short as it is clear."""
    if path.is_relative_to(cwd) and cwd != cwd.parent:  # every path is below the root
        return str(path.relative_to(cwd))
    if path.is_relative_to(home):
        return f"~/{path.relative_to(home)}"
    return str(path)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything that the gateway was told: config.toml, and what was concluded from it. Once it is
    loaded, `agents` begins with the default agent, and `rules` with the core ones."""

    config_version: Literal[1] = setting(1, "Version of this file's format.")
    gateway: GatewaySettings = setting(GatewaySettings(), "Where the gateway listens.")
    tokens: tuple[TokenGrant, ...] = setting((), "More tokens, with fewer rights.", unique="name")
    store: StoreSettings = setting(StoreSettings(), "Where conversations are kept.")
    cluster: Clustering | None = setting(None, "Several gateways share the work over one store.")
    providers: Annotated[
        Mapping[str, ProviderDef],
        Setting("Model providers by name: presets or your own.", names="provider"),
    ] = field(default_factory=dict)
    agent: AgentDef | None = setting(None, "The agent of all messages that match no binding.")
    agents: tuple[AgentDef, ...] = setting((), "Further agents.", needs=("id",))
    projects: tuple[ProjectDef, ...] = setting(
        (), "Agents that answer only selected users.", unique="id"
    )
    subagents: tuple[SubagentDef, ...] = setting((), "Subagents that agents can call.")
    delegation: Delegation = setting(Delegation(), "Tool results that a subagent summarizes first.")
    limits: Limits = setting(Limits(), "Limits of every agent's runs.")
    context: ContextRules = setting(ContextRules(), "What every agent's model is shown.")
    budgets: Budgets = setting(Budgets(), "Hard limits of spending.")
    plugins: tuple[PluginDef, ...] = setting(
        (), "Third-party plugins, and what they may do.", unique="name"
    )
    sandbox: SandboxSettings = setting(SandboxSettings(), "The worker processes of plugins.")
    mcp: McpSettings = setting(McpSettings(), "MCP servers to use, and tools to serve.")
    channels: tuple[ChannelDef, ...] = setting(
        (), "Channels by name.", names="plugin", by_name=True
    )
    bindings: tuple[Binding, ...] = setting((), "Rules that choose the agent of a message.")
    rules: tuple[RuleDef, ...] = setting((), "Rules: actions at events of a run.")
    rules_dir: str | None = setting(
        None, "A folder of further rules, in files *.toml.", form="path"
    )
    queue: QueueSettings = setting(QueueSettings(), "Messages that arrive while a turn is running.")
    observability: ObservabilitySettings = setting(ObservabilitySettings(), "Logs and metrics.")
    default_agent: AgentId | None = None
    key_origins: Mapping[str, str] = field(
        default_factory=dict
    )  # provider -> where its key is from
    origin: Path | None = None  # None: a start without a file
    rule_folder: RuleFolder | None = None
    notices: tuple[ConfigFinding, ...] = ()  # what an operator should know that is no error
    secret_folders: tuple[Path, ...] = ()  # of ${file:NAME}; the first that has it counts
    other_files: tuple[Path, ...] = ()  # and folders, that it is or would be made of besides
