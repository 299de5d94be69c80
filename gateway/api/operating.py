"""Methods for operators: status, configuration, agents, plugins, channels, pairings, audit, log, rules, events
and backups."""

from datetime import datetime
from typing import Annotated, Any, Literal

from gateway.api.declarations import (
    ADMIN,
    READ,
    READS,
    Check,
    Flag,
    Key,
    Method,
    Page,
    Params,
    Place,
    Text,
    Value,
    Verb,
)
from gateway.api.spending import BudgetRow
from gateway.domain.agents import MatchedBy
from gateway.domain.backups import ArchiveMember, OmittedFile
from gateway.domain.channels import ChannelState, FlowProgress, PairingState, TransportKind
from gateway.domain.events import KINDS
from gateway.domain.ids import PluginKind, SessionKey
from gateway.domain.inbox import DeliveryState
from gateway.domain.logs import LogLevel
from gateway.domain.mcp import McpStatus
from gateway.domain.plugins import PluginState


class Auth(Params):
    """Present a token."""

    token: str


class Introduced(Value):
    """The caller's identity. `agents` is null if the token may reach all agents."""

    principal: str
    scopes: list[str]
    agents: list[str] | None


# The socket handles this method itself, before it knows the caller.
AUTH = Method("auth", Auth, None, Introduced)


class Ping(Params):
    """Check that the gateway answers."""


# -- the audit


class AuditTail(Params):
    """Show changes to permissions and budgets, newest first."""

    before: Place | None = None
    limit: Page = 50


class AuditRow(Value):
    seq: int
    at: datetime
    kind: str
    actor: str
    detail: object
    hash: str


class AuditPage(Value):
    """Audit entries, newest first."""

    entries: list[AuditRow]
    more: bool


class AuditVerify(Params):
    """Check that no entry was changed or removed. Exit 1 if one was."""

    head: (
        Annotated[
            str, Check(pattern="^[0-9a-f]{64}$"), "A hash from an earlier check; must be present."
        ]
        | None
    ) = None


class AuditVerdict(Value):
    """The result of the check. `entries` and `head` describe the intact part of the log."""

    ok: bool
    entries: int
    head: str | None
    why: str | None


# -- the log

MOST_LINES = 10_000


class TailLogs(Params):
    """Show the log, oldest line first; for a run also the events of its journal."""

    since: Annotated[Text, "Start: 90s, 15m, 1h or 7d ago, or an ISO 8601 time."] | None = None
    level: Annotated[LogLevel, "Lowest level to show."] = "debug"
    run: Annotated[Text, "Only this run."] | None = None
    session: Annotated[Text, "Only this session."] | None = None
    channel: Annotated[Text, "Only this channel."] | None = None
    event: Annotated[Text, "Only this log event."] | None = None
    limit: Annotated[int, Check(ge=1, le=MOST_LINES), "Number of newest lines."] = 1_000


class LogPage(Value):
    """Log lines, oldest first. A line has `at`, `level`, `event`, `logger` and the fields of its event."""

    lines: list[object]
    more: bool


# -- the gateway and its agents


class GetStatus(Params):
    """Show the status of the gateway; exit 1 if it is not healthy."""


class PluginBrief(Value):
    name: str
    state: PluginState


class ChannelBrief(Value):
    name: str
    state: ChannelState


class StoreBrief(Value):
    url: str


class MemoryBacklog(Value):
    """Sessions that wait for fact extraction (`backlog`) and for the search index (`unindexed`)."""

    backlog: int
    unindexed: int


class ConfigError(Value):
    """A problem of the configuration; `line` and `column` are absent if there is no file."""

    code: str
    source: str
    key: str
    message: str
    fix: str
    line: int | None = None
    column: int | None = None


class ConfigState(Value):
    """The state of the configuration. With `errors` the previous configuration stays in force. Only the keys in
    `restart_needed` need a restart."""

    path: str | None
    errors: list[ConfigError]
    restart_needed: list[str]


class ReloadConfig(Params):
    """Reload the configuration and all files that it names; exit 78 if it has errors."""

    dry_run: Annotated[Flag, "Show what would change; change nothing."] = False
    path: Annotated[
        str | None, Check(min_length=1, max_length=4096), "With dry_run: check this file instead."
    ] = None


class Reloaded(Value):
    """The generation in force, the changed keys, and the keys that need a restart. With `errors` nothing
    changed."""

    generation: int
    changed: list[str]
    restart_needed: list[str]
    errors: list[ConfigError]


class Status(Value):
    """The status of the gateway. The optional fields need the scope `read`. `healthy` is true if no problem needs an
    operator."""

    version: str
    uptime_s: float
    ready: bool
    reasons: list[str]
    agents: list[str]
    plugins: list[PluginBrief]
    channels: list[ChannelBrief]
    store: StoreBrief
    budget: list[BudgetRow] | None = None
    sessions: int | None = None
    pending: int | None = None
    running: int | None = None
    memory: MemoryBacklog | None = None
    mcp: list[McpStatus] | None = None
    pid: int | None = None
    healthy: bool | None = None
    generation: int | None = None
    config: ConfigState | None = None
    problems: list[str] | None = None


class ClusterNodeState(Value):
    """A gateway of the cluster. `partitions` is the number that it works on. `config` is a digest, which all nodes of
    a cluster share."""

    node: str
    seen_at: datetime
    partitions: int
    ready: bool
    config: str


class PartitionState(Value):
    """A partition; `node` is null if no gateway works on it."""

    partition: int
    node: str | None
    epoch: int
    expires_at: datetime | None
    pending: int


class ClusterStatus(Value):
    """The state of the cluster. `lag_s` is the age in seconds of the oldest message that no gateway has started.
    Without [cluster] there are no nodes."""

    nodes: list[ClusterNodeState]
    partitions: list[PartitionState]
    lag_s: float
    degraded: list[str]


class ShowCluster(Params):
    """Show the gateways that share the store and their partitions."""


class ProposeConfig(Params):
    """Show the effect of a configuration change; write nothing."""

    patch: dict[str, Any]
    secrets: dict[str, str] | None = None


class Proposed(Value):
    """A proposed change: its diff, the errors that the file would have, and the hash for `config.apply`."""

    diff: str
    errors: list[ConfigError]
    hash: str


class ApplyConfig(Params):
    """Write a proposed change and reload."""

    hash: Annotated[str, Check(pattern="^[0-9a-f]{64}$")]


class Applied(Value):
    """The generation that contains the change."""

    generation: int


class RunDoctor(Params):
    """Check the installation and the configuration; change nothing. `live`: only the checks that need a running gateway."""

    live: Flag = False


class DoctorFinding(Value):
    """A problem and the shell command that fixes it."""

    id: str
    severity: Literal["error", "warning"]
    path: str
    message: str
    fix: str


class DoctorReport(Value):
    """The problems, and the number of checks that passed."""

    findings: list[DoctorFinding]
    passed: int


class ListAgents(Params):
    """List agents with their models, souls and subagents."""


class AgentSoul(Value):
    path: str
    token_count: int
    loaded_from: str
    loaded_at: datetime


class Agent(Value):
    """An agent. `tools` is its configured list, `offered` the tools that its model sees."""

    id: str
    provider: str
    model: str
    fallbacks: list[str]
    tools: tuple[str, ...]
    offered: list[str]
    context_window: int
    soul: AgentSoul | None


class Subagent(Value):
    """A subagent. `provider` and `model` are null if it uses those of its parent."""

    name: str
    description: str
    provider: str | None
    model: str | None
    max_turns: int
    timeout_seconds: int
    tools: tuple[str, ...]
    soul: AgentSoul | None


class AgentList(Value):
    agents: list[Agent]
    subagents: list[Subagent]


class RouteExplain(Params):
    """Explain which agent answers, and why the others do not."""

    channel: Text
    account: Annotated[Text, "Absent: local for websocket, default for a platform."] | None = None
    peer: Annotated[Text, "A person, or room:ID."] = "main"
    guild: Text | None = None
    team: Text | None = None


class BindingRejected(Value):
    index: int
    why: str


class RouteExplained(Value):
    agent_id: str
    matched_by: MatchedBy
    binding_index: int | None
    session_key: SessionKey
    rejected: list[BindingRejected]


class ProviderTest(Params):
    """Send a short question to a provider and show the answer. It counts about 30 tokens."""

    provider: Text | None = None
    model: Text | None = None


class ProviderTested(Value):
    """The answer; on failure the `kind` of error and a `message`."""

    ok: bool
    provider: str | None = None
    model: str | None = None
    text: str | None = None
    tokens: int | None = None
    estimated: bool | None = None
    kind: str | None = None
    message: str | None = None


# -- plugins


class ListPlugins(Params):
    """List the plugins of the running gateway."""


class Tool(Value):
    """A tool of a plugin. A tool that no agent can use has a `reason` instead of `parameters`."""

    name: str
    description: str
    category: str | None
    agent_scope: tuple[str, ...]
    parameters: object | None = None
    reason: str | None = None


class Plugin(Value):
    """A plugin; `reason` explains why it was refused."""

    name: str
    kind: PluginKind | None
    version: str | None
    description: str
    tools: list[Tool]
    capabilities: tuple[str, ...]
    sha256: str | None
    state: PluginState
    reason: str | None = None


class InspectPlugin(Params):
    """Show a plugin with its permissions and their use."""

    name: Text


class CallPlugin(Params):
    """Call a tool of a plugin and show its result."""

    name: Text
    tool: Text
    arguments: dict[str, Any] | None = None


class PluginCalled(Value):
    """The output of the tool, or the reason of the failure."""

    ok: bool
    output: str


class PluginImport(Value):
    """An import of a plugin. `needs` is the capability that it requires, null for none."""

    name: str
    needs: str | None
    denied: bool


class PluginInspected(Plugin):
    """A plugin with its access; `used` and `denied` count calls by capability."""

    guest: str | None
    imports: list[PluginImport]
    used: dict[str, int]
    denied: dict[str, int]


# -- rules and events


class ListRules(Params):
    """List rules and their errors."""


class Rule(Value):
    id: str
    description: str
    on: tuple[str, ...]
    core: bool
    enabled: bool
    priority: int
    source: str
    errors: int
    last_error: str | None
    quarantined: bool


class RuleFileRefused(Value):
    file: str
    why: str


class RuleList(Value):
    """The rules in the order in which they fire, and the refused rule files."""

    rules: list[Rule]
    refused: list[RuleFileRefused]


EVENT_NAMES = tuple(
    name for kind in KINDS for name in (kind.type, kind.constant, kind.hook) if name
)
# The handler accepts any spelling, and suggests a name for an unknown event.
EventName = Annotated[str, Check(min_length=1, max_length=256, says={"enum": list(EVENT_NAMES)})]


class EventsSubscribe(Params):
    """Receive events until the connection ends."""

    types: Annotated[list[EventName], Check(min_length=1, max_length=len(EVENT_NAMES))] | None = (
        None
    )
    session_key: Key | None = None


class Subscribed(Value):
    types: list[str] | None
    session_key: str | None


# -- channels


class ListChannels(Params):
    """List the channels of the running gateway with their state."""


class Channel(Value):
    """A channel. `refused` counts messages by reason. `pending` answers wait for delivery; `dead` answers and
    `unread` incoming messages are dead letters."""

    name: str
    plugin: str
    account: str
    transport: TransportKind | None
    state: ChannelState
    why: str | None
    receiving: FlowProgress
    sending: FlowProgress
    refused: dict[str, int]
    pending: int
    dead: int
    unread: int


class ChannelList(Value):
    channels: list[Channel]


class DeadLetters(Params):
    """List answers that could not be delivered and messages that could not be read."""

    channel: Text | None = None
    before: Place | None = None
    limit: Page = 50


class DeadLetter(Value):
    """An answer that was not delivered; `arrived` is the number of characters that were."""

    id: str
    place: int
    channel: str
    account: str
    peer: str
    state: DeliveryState
    why: str | None
    attempts: int
    text: str
    arrived: int
    run_id: str | None
    at: datetime


class UnreadMessage(Value):
    """An incoming message that was not accepted; `why` is null if no reason was recorded."""

    id: str
    channel: str
    account: str
    why: str | None
    text: str
    at: datetime


class LetterCounts(Value):
    """The number of all dead letters of the requested channel."""

    outgoing: int
    incoming: int


class DeadLetterPage(Value):
    letters: list[DeadLetter]
    more: bool
    unread: list[UnreadMessage]
    counts: LetterCounts


class OfLetter(Params):
    id: Text
    channel: Text | None = None  # of an incoming message whose id several channels have


class ResubmitLetter(OfLetter):
    """Deliver a dead letter again, or accept an incoming one again."""


class DropLetter(OfLetter):
    """Delete a dead letter."""


class LetterSettled(Value):
    id: str
    state: Literal["pending", "taken", "dropped"]


class PairList(Params):
    """List people who wait for approval, then people who were approved or denied."""

    channel: Text | None = None
    limit: Page = 100


class Paired(Value):
    """A person on a channel. `expires_at` is the expiry of the code while the person waits."""

    channel: str
    account: str
    person: str
    name: str | None
    state: PairingState
    owner: bool
    asked_at: datetime
    expires_at: datetime | None


class PairingList(Value):
    pairings: list[Paired]


class PairApprove(Params):
    """Approve the person with this code. The first person of an account becomes its owner."""

    code: Text
    owner: Flag = False


class PairDeny(Params):
    """Deny a person, by CODE or by --channel and --person. An approved person loses the approval."""

    code: Text | None = None
    channel: Text | None = None
    account: Text = "default"
    person: Text | None = None


class OfPerson(Params):
    channel: Text
    person: Text
    account: Text = "default"


class PairBlock(OfPerson):
    """Block a person, also one who never wrote. ID is CHANNEL:ACCOUNT:PERSON."""


class PairUnblock(OfPerson):
    """Unblock a blocked or denied person, who may ask again. ID is CHANNEL:ACCOUNT:PERSON."""


class PairRevoke(OfPerson):
    """Revoke the approval of a person. ID is CHANNEL:ACCOUNT:PERSON."""


class PairingRevoked(Value):
    channel: str
    account: str
    person: str
    state: Literal["revoked", "unblocked"]


# -- backups


class CreateBackup(Params):
    """Write the store and the configuration to an archive."""

    file: (
        Annotated[
            str,
            Check(min_length=1, max_length=4096, pattern=r"^[^\x00]+$"),
            "The new file. Absent: DATA_DIR/backups/DATE.zip.",
        ]
        | None
    ) = None
    with_secrets: Annotated[Flag, "Include secret files and the secrets in the configuration."] = (
        False
    )


class BackupCreated(Value):
    """A finished backup. The file ends in `sha256`, the digest of all bytes before it. `accepted` counts the
    accepted messages; `left_out` lists the configured files that could not be read."""

    file: str
    sha256: str
    bytes: int
    created_at: datetime
    accepted: int
    secrets: bool
    members: tuple[ArchiveMember, ...]
    left_out: tuple[OmittedFile, ...]


METHODS = (
    Method("ping", Ping, READS, Literal["pong"]),
    Method("status", GetStatus, READS, Status, verb=Verb(holds="healthy", watch_s=2.0)),
    Method("config.reload", ReloadConfig, ADMIN, Reloaded, all_agents=True),
    Method(
        "agent.list",
        ListAgents,
        READS,
        AgentList,
        verb=Verb(
            columns="id provider model fallbacks tools soul.loaded_from"
            " | name provider model tools soul.loaded_from",
            json="agents",
        ),
    ),
    Method("route.explain", RouteExplain, READ, RouteExplained, verb=Verb(columns="index why")),
    Method("provider.test", ProviderTest, ADMIN, ProviderTested),
    Method(
        "plugin.list",
        ListPlugins,
        READ,
        list[Plugin],
        verb=Verb(columns="name state version kind tools capabilities reason"),
    ),
    Method("plugin.inspect", InspectPlugin, READ, PluginInspected),
    Method("plugin.call", CallPlugin, ADMIN, PluginCalled, all_agents=True),
    Method("config.propose", ProposeConfig, ADMIN, Proposed, all_agents=True),
    Method("config.apply", ApplyConfig, ADMIN, Applied, all_agents=True),
    Method("doctor.run", RunDoctor, ADMIN, DoctorReport, all_agents=True),
    Method("rule.list", ListRules, READ, RuleList),
    Method("events.subscribe", EventsSubscribe, READS, Subscribed),
    Method(
        "audit.tail",
        AuditTail,
        ADMIN,
        AuditPage,
        all_agents=True,
        verb=Verb(columns="seq at kind actor detail"),
    ),
    Method("logs.tail", TailLogs, ADMIN, LogPage, all_agents=True),
    Method(
        "audit.verify", AuditVerify, ADMIN, AuditVerdict, all_agents=True, verb=Verb(holds="ok")
    ),
    Method(
        "channel.list",
        ListChannels,
        READ,
        ChannelList,
        all_agents=True,
        verb=Verb(
            columns="name plugin account transport state pending dead unread why",
            empty="no channels; add one with `exogate channel add KIND`",
        ),
    ),
    Method(
        "cluster.status",
        ShowCluster,
        READ,
        ClusterStatus,
        all_agents=True,
        verb=Verb(
            columns="node seen_at partitions ready config | partition node epoch expires_at pending",
            empty="no other gateway shares the store; see [cluster] in the configuration",
        ),
    ),
    Method("channel.dead_letters", DeadLetters, ADMIN, DeadLetterPage, all_agents=True),
    Method("channel.resubmit", ResubmitLetter, ADMIN, LetterSettled, all_agents=True),
    Method("channel.drop", DropLetter, ADMIN, LetterSettled, all_agents=True),
    Method("backup.create", CreateBackup, ADMIN, BackupCreated, all_agents=True),
    Method("pair.list", PairList, ADMIN, PairingList, all_agents=True),
    Method("pair.approve", PairApprove, ADMIN, Paired, all_agents=True),
    Method("pair.deny", PairDeny, ADMIN, Paired | PairingRevoked, all_agents=True),
    Method("pair.block", PairBlock, ADMIN, Paired, all_agents=True),
    Method("pair.unblock", PairUnblock, ADMIN, PairingRevoked, all_agents=True),
    Method("pair.revoke", PairRevoke, ADMIN, PairingRevoked, all_agents=True),
)
