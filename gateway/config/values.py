"""The values of a configuration: frozen dataclasses, whose fields define the keys of config.toml."""

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
    """The address and the limits of the gateway."""

    bind: str = setting(
        "127.0.0.1",
        "Address to listen on. An address other than loopback needs a token.",
        form="host",
    )
    port: int = setting(7200, "Port to listen on; 0 selects any free port.", 0, 65_535)
    data_dir: Path = setting(  # absolute once it is loaded
        Path("~/.local/share/exogate"), "Directory of the database and all other data.", form="path"
    )
    token: Secret | None = setting(None, "The operator's token; EXOGATE_TOKEN overrides it.")
    allowed_origins: tuple[str, ...] = setting(
        (), "Web origins that may connect: scheme://host[:port].", form="origin"
    )
    trusted_proxies: tuple[str, ...] = setting(
        (), "Addresses or networks of proxies whose forwarding headers are trusted.", form="network"
    )
    drain_s: float = setting(20.0, "Seconds that running turns have to finish at a stop.", 0, 3_600)
    watch: bool = setting(True, "Reload changed files automatically.")
    max_connections: int = setting(12_000, "Maximum open connections.", 1, MILLION)
    max_connections_per_address: int = setting(
        1_000, "Maximum for one address or IPv6 /64, except loopback.", 1, MILLION
    )
    max_unauthenticated: int = setting(
        256, "Maximum connections without a valid token.", 1, MILLION
    )
    max_frame_bytes: int = setting(
        1_048_576, "Maximum WebSocket frame in bytes.", 1_024, 67_108_864
    )
    max_body_bytes: int = setting(4_194_304, "Maximum HTTP body in bytes.", 1_024, 268_435_456)


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """A token for a program or a person; `name` is the principal."""

    name: Annotated[
        str, Setting("Name of its owner: letters, digits, dot, hyphen, underscore.", form="token")
    ]
    token: Annotated[Secret, Setting("The token, preferably a reference.")]
    scopes: tuple[str, ...] = setting(
        ("chat",), "Scopes: chat, read, admin, impersonate, metrics, agent:ID.", 1
    )
    expires: datetime | None = setting(
        None, "Expiry: a date or a time, in UTC unless it has an offset."
    )
    budget: TokenBudget | None = setting(
        None, "Model tokens for a day, or a table with session, daily and monthly."
    )


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The store of conversations."""

    url: str = setting(
        "embedded",
        "embedded: SQLite under data_dir; memory: lost at the end; ws://HOST:PORT: SurrealDB.",
        form="store",
    )
    namespace: str = setting("exogate", "Namespace on the SurrealDB server.")
    database: str = setting("main", "Database in that namespace.")
    username: str | None = setting(None, "A user of the database, its namespace, or the server.")
    password: Secret | None = setting(None, "Password of the user, preferably a reference.")
    journal_days: int = setting(30, "Days that run journals are kept.", 1, 3_650)

    @property
    def is_shared(self) -> bool:
        """True if the store is a server, which several gateways may use."""
        return self.url.startswith(("ws:", "wss:"))


@dataclass(frozen=True, slots=True)
class Clustering:
    """The work of several gateways that share a store. Without this section a gateway works alone."""

    url: str | None = setting(
        None, "nats://HOST:PORT for hints between nodes. Absent: they poll the store.", 1
    )
    credentials: Secret | None = setting(
        None,
        "For NATS: USER:PASSWORD, a token, an nkey seed or credentials, preferably a reference.",
    )
    node: str | None = setting(
        None, "Label of this node. Absent: the name of the host.", 1, 63, form="token"
    )
    partitions: int = setting(
        64, "Number of parts of the work; fixed once the first node has started.", 1, 1_024
    )
    lease_s: float = setting(15.0, "Seconds until a silent node loses its work.", 3, 300)
    poll_s: float = setting(2.0, "Seconds between two polls of the store.", 0.2, 60)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The queues of messages that arrive while a turn runs. Full queues refuse messages."""

    mode: QueueMode = setting(
        "followup",
        "followup: a turn for each message; collect: one turn for all; steer: into the running "
        "turn; interrupt: stop the running turn.",
    )
    debounce_ms: int = setting(
        0, "Milliseconds that a first message waits for more; one turn answers all.", 0, 60_000
    )
    max_pending: int = setting(1_000, "Maximum queued messages of one session.", 1, MILLION)
    max_pending_total: int = setting(
        100_000, "Maximum queued messages of all sessions.", 1, HUNDRED_MILLION
    )
    max_pending_mb: int = setting(64, "Maximum MB of queued messages of one session.", 1, MILLION)
    max_pending_total_mb: int = setting(
        1_024, "Maximum MB of queued messages of all sessions.", 1, HUNDRED_MILLION
    )
    max_pending_per_principal: int = setting(
        5_000, "Maximum queued messages of one token or person.", 1, HUNDRED_MILLION
    )
    max_running: int = setting(256, "Maximum turns at the same time.", 1, 100_000)


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The worker processes of plugins."""

    workers: int = setting(1, "Number of worker processes.", 1, 16)
    idle_s: float = setting(300.0, "Seconds until an idle worker ends.", 1, 86_400)


@dataclass(frozen=True, slots=True)
class ObservabilitySettings:
    """Logs, metrics and traces."""

    log_level: LogLevel = setting("info", "Lowest level to log.")
    log_format: LogFormat = setting("auto", "auto: console on a terminal, else json.")
    log_keep_days: int = setting(7, "Days that log files are kept.", 1, 3_650)
    log_max_mb: int = setting(100, "Maximum MB of all log files; deletes the oldest.", 1, 100_000)
    metrics: bool = setting(True, "Serve GET /metrics.")
    otlp_endpoint: str | None = setting(
        None, "Collector of traces: http://HOST:4318. Absent: no traces.", form="collector"
    )
    otlp_headers: Annotated[
        Mapping[str, Secret],
        Setting("Headers for it; values may be references.", form="any", names="header"),
    ] = field(default_factory=dict)
    otlp_content: bool = setting(False, "Include the text of messages in traces.")


@dataclass(frozen=True, slots=True)
class McpSettings:
    """MCP servers whose tools agents use, and the tools that the gateway serves over MCP."""

    servers: tuple[McpServerDef, ...] = setting(
        (), "Servers by name.", names="plugin", by_name=True
    )
    serve: McpServing = setting(McpServing(), "Tools that the gateway serves at /mcp.")


@dataclass(frozen=True, slots=True)
class SecretKeys:
    """A secret that the host inserts into requests of a plugin. The plugin never sees it."""

    name: str
    value: Annotated[Secret, Setting("The secret, or a reference to it.")]
    hosts: tuple[str, ...] = setting((), "Hosts that receive it. Absent: the only granted host.")


@dataclass(frozen=True, slots=True)
class ActionKeys:
    """An action of a rule with its options."""

    notify: str | None = setting(None, "Text of a notice; {path} inserts a variable.")
    log: str | None = setting(None, "Text of a log line; {path} inserts a variable.")
    set_state: Mapping[str, Plain] | None = setting(
        None, "Variables to set; text values are expressions.", form="any", names="state"
    )
    emit: str | None = setting(None, "Publish an event of this type.")
    interrupt: str | None = setting(None, "Stop the run, with this reason.")
    set_model: str | None = setting(None, "Use this model for the rest of the run.")
    add_tool: str | None = setting(None, "Restore a tool that a rule removed.")
    remove_tool: str | None = setting(None, "Remove this tool.")
    inject_at: Point | None = setting(None, "notify: place in the run.")
    priority: Priority | None = setting(None, "notify: priority; critical notices come first.")
    to: To | None = setting(None, "notify: the audience.")
    after_tool: str | None = setting(None, "notify: wait until this tool has run.")
    after_turns: int | None = setting(None, "notify: wait for this many turns.", 1, 1_000)
    not_before: str | None = setting(None, "notify: wait until this expression is true.")
    expires_s: float | None = setting(
        None, "notify: drop the notice after this many seconds.", above=0, most=31_536_000
    )
    level: LogLevel | None = setting(None, "log: the level.")
    severity: Severity | None = setting(None, "emit: the severity.")
    payload: Mapping[str, Plain] | None = setting(
        None, "emit: the payload of the event.", form="any"
    )


@dataclass(frozen=True, slots=True)
class Preset:
    """A provider that the gateway knows by name. `key_variable` is None if it needs no key."""

    wire: Wire
    base_url: str
    key_variable: str | None = None
    default_model: str | None = None


@dataclass(frozen=True, slots=True)
class BundledPlugin:
    """A plugin that ships with the gateway. `is_usual`: the built-in agent has it. The `proofs` of a channel adapter
    are the keys that prove webhook calls; `is_called`: webhooks are its default transport."""

    file: Path
    needs: Sequence[str] = ()  # required capabilities
    is_usual: bool = False
    proofs: Sequence[str] = ()  # secrets.NAME, config.NAME
    is_called: bool = False
    mention_key: str | None = None  # key of `config` that it needs to recognize mentions


@dataclass(frozen=True, slots=True)
class RuleFolder:
    """The content of `rules_dir`; `problems` are those of the refused files."""

    path: Path
    rules: tuple[RuleDef, ...]
    refused: tuple[RefusedRules, ...]
    problems: tuple[ConfigProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """Facts from other rooms that a configuration is checked against."""

    presets: Mapping[str, Preset]  # the preferred one first; without `demo`
    bundled: Mapping[str, BundledPlugin]
    context_window: Callable[[str], int]
    output_limit: Callable[[str], int | None]
    # Returns why a model cannot think, from provider, wire (None: the demo), model and max_tokens.
    no_thinking: Callable[[str, Wire | None, str, int], str | None] = lambda *about: None
    trees: tuple[str, ...] = ("default",)
    decisions: tuple[str, ...] = ("default",)
    core_rules: Path | None = None  # the file of the core rules
    rule_problems: Callable[[RuleDef], Sequence[RuleProblem]] = lambda rule: ()
    has_mcp: bool = True  # this and the next three: whether the extra is installed
    has_surrealdb: bool = True
    has_nats: bool = True
    has_otel: bool = True
    is_priced: Callable[[ProviderDef, str], bool] = lambda provider, model: True


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values from the command line, which override file and environment."""

    data_dir: Path | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """The environment, folders and known names that a configuration is read with."""

    environment: Mapping[str, str]
    home: Path
    cwd: Path
    known: Known
    overrides: Overrides = field(default_factory=Overrides)
    is_named: bool = True  # the operator named the file; else a usual path had it
    # Secret files that are not yet written.
    pending: Mapping[str, str] = field(default_factory=dict)

    def path(self, text: str, folder: Path) -> Path:
        return resolve_path(text, folder, home=self.home)

    def name(self, path: Path) -> str:
        return short_name(path, home=self.home, cwd=self.cwd)


def resolve_path(text: str, folder: Path, *, home: Path) -> Path:
    """Returns the path that a configuration names: `~` is the home, relative paths start at `folder`."""
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return folder / text


def short_name(path: Path, *, home: Path, cwd: Path) -> str:
    """Returns a short name of a file for messages."""
    if path.is_relative_to(cwd) and cwd != cwd.parent:  # every path is below /
        return str(path.relative_to(cwd))
    if path.is_relative_to(home):
        return f"~/{path.relative_to(home)}"
    return str(path)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The whole configuration: the sections of config.toml and values derived from them. In a loaded one, `agents`
    starts with the default agent and `rules` with the core rules."""

    config_version: Literal[1] = setting(1, "Version of the file format.")
    gateway: GatewaySettings = setting(GatewaySettings(), "Address and limits of the gateway.")
    tokens: tuple[TokenGrant, ...] = setting((), "Tokens with limited rights.", unique="name")
    store: StoreSettings = setting(StoreSettings(), "The store of conversations.")
    cluster: Clustering | None = setting(None, "Gateways that share a store and its work.")
    providers: Annotated[
        Mapping[str, ProviderDef],
        Setting("Model providers by name: presets or your own.", names="provider"),
    ] = field(default_factory=dict)
    agent: AgentDef | None = setting(None, "The default agent, for messages that match no binding.")
    agents: tuple[AgentDef, ...] = setting((), "Further agents.", needs=("id",))
    projects: tuple[ProjectDef, ...] = setting(
        (), "Agents that answer only selected users.", unique="id"
    )
    subagents: tuple[SubagentDef, ...] = setting((), "Subagents that agents can call.")
    delegation: Delegation = setting(Delegation(), "Tool results that a subagent summarizes first.")
    limits: Limits = setting(Limits(), "Limits of the runs of all agents.")
    context: ContextRules = setting(ContextRules(), "Context of the models of all agents.")
    budgets: Budgets = setting(Budgets(), "Hard limits on spending.")
    plugins: tuple[PluginDef, ...] = setting((), "Plugins and their permissions.", unique="name")
    sandbox: SandboxSettings = setting(SandboxSettings(), "The worker processes of plugins.")
    mcp: McpSettings = setting(McpSettings(), "MCP servers to use, and tools to serve.")
    channels: tuple[ChannelDef, ...] = setting(
        (), "Channels by name.", names="plugin", by_name=True
    )
    bindings: tuple[Binding, ...] = setting((), "Rules that choose the agent of a message.")
    rules: tuple[RuleDef, ...] = setting((), "Rules: actions at events of a run.")
    rules_dir: str | None = setting(None, "Folder with further rules in *.toml files.", form="path")
    queue: QueueSettings = setting(QueueSettings(), "Messages that arrive while a turn is running.")
    observability: ObservabilitySettings = setting(
        ObservabilitySettings(), "Logs, metrics and traces."
    )
    default_agent: AgentId | None = None
    # Origin of the key of each provider.
    key_origins: Mapping[str, str] = field(default_factory=dict)
    origin: Path | None = None  # None: there is no file
    rule_folder: RuleFolder | None = None
    notices: tuple[ConfigFinding, ...] = ()  # warnings for the operator
    secret_folders: tuple[Path, ...] = ()  # folders of ${file:NAME}; the first with the file wins
    other_files: tuple[Path, ...] = ()  # further files and folders that a reload watches

    @property
    def further_agents(self) -> tuple[AgentDef, ...]:
        """The agents of a loaded configuration without the default one."""
        return self.agents[self.agent is not None :]
