"""What a configuration is once it is read: frozen values with their defaults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gateway.domain.agents import AgentDef, Binding, Delegation, ProjectDef, SubagentDef
from gateway.domain.budgets import Budgets
from gateway.domain.channels import ChannelDef
from gateway.domain.events import RefusedRules, RuleDef, RuleProblem
from gateway.domain.ids import AgentId, Secret
from gateway.domain.inbox import QueueMode
from gateway.domain.mcp import McpServerDef, McpServing
from gateway.domain.model import ProviderDef, Wire
from gateway.domain.plugins import PluginDef

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]
StoreUrl = Literal["embedded", "memory"]


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Where the gateway listens and what it refuses."""

    bind: str = "127.0.0.1"
    port: int = 7200
    data_dir: Path = Path("~/.local/share/exogate")  # always absolute once loaded
    token: Secret | None = None
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    drain_s: float = 20.0
    max_connections: int = 12_000
    max_connections_per_address: int = 1_000
    max_unauthenticated: int = 256
    max_frame_bytes: int = 1_048_576
    max_body_bytes: int = 4_194_304


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """Who may do what; `name` is the principal."""

    name: str
    token: Secret
    scopes: tuple[str, ...] = ("chat",)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    url: StoreUrl = "embedded"
    journal_days: int = 30


@dataclass(frozen=True, slots=True)
class QueueSettings:
    mode: QueueMode = "followup"
    debounce_ms: int = 0
    max_pending: int = 1_000
    max_pending_total: int = 100_000
    max_pending_mb: int = 64
    max_pending_total_mb: int = 1_024
    max_pending_per_principal: int = 5_000
    max_running: int = 256


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The processes that run the code of plugins."""

    workers: int = 1
    idle_s: float = 300.0  # then a worker that has nothing to do ends


@dataclass(frozen=True, slots=True)
class ObservabilitySettings:
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"
    metrics: bool = True


@dataclass(frozen=True, slots=True)
class StartNotice:
    """Something an operator should know that is no error."""

    code: str
    path: str
    message: str
    fix: str
    place: tuple[str | int, ...] = ()  # the same path, part by part


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
    needs: tuple[str, ...] = ()  # capabilities without which it cannot work
    is_usual: bool = False
    proofs: tuple[str, ...] = ()  # secrets.NAME, config.NAME
    is_called: bool = False
    mention_key: str | None = None  # of `config`, without which it knows no mention in a room


@dataclass(frozen=True, slots=True)
class RuleFolder:
    """What `rules_dir` held when it was read."""

    path: Path
    rules: tuple[RuleDef, ...]
    refused: tuple[RefusedRules, ...]


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
    if path.is_relative_to(cwd):
        return str(path.relative_to(cwd))
    if path.is_relative_to(home):
        return f"~/{path.relative_to(home)}"
    return str(path)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything that the gateway was told. `origin` is None for a start without a file."""

    gateway: GatewaySettings
    agents: tuple[AgentDef, ...]
    default_agent: AgentId | None
    providers: Mapping[str, ProviderDef]
    key_origins: Mapping[str, str]  # provider -> where its key comes from, in words
    origin: Path | None = None
    tokens: tuple[TokenGrant, ...] = ()
    plugins: tuple[PluginDef, ...] = ()
    channels: tuple[ChannelDef, ...] = ()
    bindings: tuple[Binding, ...] = ()
    projects: tuple[ProjectDef, ...] = ()
    subagents: tuple[SubagentDef, ...] = ()
    delegation: Delegation = field(default_factory=Delegation)
    rules: tuple[RuleDef, ...] = ()  # core ones, then those of the file
    rule_folder: RuleFolder | None = None
    budgets: Budgets = field(default_factory=Budgets)
    mcp_servers: tuple[McpServerDef, ...] = ()
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    mcp_serving: McpServing = field(default_factory=McpServing)
    observability: ObservabilitySettings = field(default_factory=ObservabilitySettings)
    notices: tuple[StartNotice, ...] = ()
