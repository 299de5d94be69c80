"""What the gateway tells of itself, and what operators do: status, agents, plugins, channels, people who are let
in, money, the audit, rules, events."""

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
from gateway.domain.logs import LogLevel
from gateway.domain.mcp import McpStatus
from gateway.domain.outbox import DeliveryState
from gateway.domain.plugins import PluginState


class Auth(Params):
    """Present a token."""

    token: str


class Introduced(Value):
    """Who one is; `agents` is null if all can be reached."""

    principal: str
    scopes: list[str]
    agents: list[str] | None


# The method of the socket itself: it may be asked for by nobody yet.
AUTH = Method("auth", Auth, None, Introduced)


class Ping(Params):
    """Check that the gateway answers."""


# -- the audit


class AuditTail(Params):
    """Show changes to permissions and budgets, the newest first."""

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
    """Newest first."""

    entries: list[AuditRow]
    more: bool


class AuditVerify(Params):
    """Check that no entry was changed or removed. Exit 1 if one was."""

    head: (
        Annotated[str, Check(pattern="^[0-9a-f]{64}$"), "A hash told earlier, which must be there."]
        | None
    ) = None


class AuditVerdict(Value):
    """`entries` and `head` are of the part that is whole."""

    ok: bool
    entries: int
    head: str | None
    why: str | None


# -- the log

MOST_LINES = 10_000


class TailLogs(Params):
    """Show what the gateway logged, the oldest line first; of a run also what its journal tells."""

    since: Annotated[Text, "90s, 15m, 1h, 7d ago, or a moment in ISO 8601."] | None = None
    level: Annotated[LogLevel, "The lowest level."] = "debug"
    run: Annotated[Text, "One run."] | None = None
    session: Annotated[Text, "One session."] | None = None
    channel: Annotated[Text, "One channel."] | None = None
    event: Annotated[Text, "One kind of event."] | None = None
    limit: Annotated[int, Check(ge=1, le=MOST_LINES), "The newest lines."] = 1_000


class LogPage(Value):
    """Oldest first. A line has `at`, `level`, `event` and `logger`, and what is known of it."""

    lines: list[object]
    more: bool


# -- the gateway and its agents


class GetStatus(Params):
    """Show the status of the gateway; exit 1 if it is not ready."""


class PluginBrief(Value):
    name: str
    state: PluginState


class ChannelBrief(Value):
    name: str
    state: ChannelState


class StoreBrief(Value):
    url: str


class MemoryBacklog(Value):
    """Sessions that wait to be looked at for facts, and to be found again."""

    backlog: int
    unindexed: int


class ConfigError(Value):
    """What is wrong with the configuration; `line` and `column` are left out where there is no file."""

    code: str
    source: str
    key: str
    message: str
    fix: str
    line: int | None = None
    column: int | None = None


class ConfigState(Value):
    """The configuration of now. With `errors` the one before is in force; a restart is needed for the keys in
    `restart_needed` alone."""

    path: str | None
    errors: list[ConfigError]
    restart_needed: list[str]


class ReloadConfig(Params):
    """Reload the configuration and all files that it names; exit 78 if it is bad."""

    dry_run: Annotated[Flag, "Say what would change, and change nothing."] = False
    path: Annotated[
        str | None, Check(min_length=1, max_length=4096), "With dry_run: another file."
    ] = None


class Reloaded(Value):
    """The generation in force, the keys that changed, and what needs a restart. With `errors` nothing was
    changed."""

    generation: int
    changed: list[str]
    restart_needed: list[str]
    errors: list[ConfigError]


class Status(Value):
    """What is optional is there for those who may read everything. `healthy`: nothing wants an operator."""

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
    """`partitions` are how many it works on; `config` is a digest: nodes of one cluster have the same."""

    node: str
    seen_at: datetime
    partitions: int
    ready: bool
    config: str


class PartitionState(Value):
    """A partition that nobody works on has no node."""

    partition: int
    node: str | None
    epoch: int
    expires_at: datetime | None
    pending: int


class ClusterStatus(Value):
    """`lag_s`: since when the oldest message waits that nobody has begun. Without [cluster] there are no nodes."""

    nodes: list[ClusterNodeState]
    partitions: list[PartitionState]
    lag_s: float
    degraded: list[str]


class ShowCluster(Params):
    """Show the gateways that share the store, and their work."""


class ProposeConfig(Params):
    """Show what a change of the configuration would be; nothing is written."""

    patch: dict[str, Any]
    secrets: dict[str, str] | None = None


class Proposed(Value):
    """The change as a diff, the errors that the file would have, and what `config.apply` takes."""

    diff: str
    errors: list[ConfigError]
    hash: str


class ApplyConfig(Params):
    """Write a proposed change and put it into force."""

    hash: Annotated[str, Check(pattern="^[0-9a-f]{64}$")]


class Applied(Value):
    """The generation that has it."""

    generation: int


class RunDoctor(Params):
    """Check the installation and the configuration; change nothing. `live`: only what a gateway at work knows."""

    live: Flag = False


class DoctorFinding(Value):
    """What is wrong, and the command of a shell that mends it."""

    id: str
    severity: Literal["error", "warning"]
    path: str
    message: str
    fix: str


class DoctorReport(Value):
    """`passed`: how many checks found nothing."""

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
    """`tools` is what its list says, `offered` what its model is told of."""

    id: str
    provider: str
    model: str
    fallbacks: list[str]
    tools: tuple[str, ...]
    offered: list[str]
    context_window: int
    soul: AgentSoul | None


class Subagent(Value):
    """`provider` and `model` are null if they are its parent's."""

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
    """Explain which agent answers, and why no other does."""

    channel: Text
    account: Annotated[Text, "local for websocket, default for a platform."] | None = None
    peer: Annotated[Text, "A room: room:ID."] = "main"
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
    """Ask a provider a tiny question and show the answer. About 30 tokens, metered."""

    provider: Text | None = None
    model: Text | None = None


class ProviderTested(Value):
    """What came back; or `kind` and `message` of what went wrong."""

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
    """One that nobody can be offered has a `reason` instead of its `parameters`."""

    name: str
    description: str
    category: str | None
    agent_scope: tuple[str, ...]
    parameters: object | None = None
    reason: str | None = None


class Plugin(Value):
    """`reason`: why it was refused."""

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
    """Show a plugin, its permissions and their use."""

    name: Text


class CallPlugin(Params):
    """Call a tool of a plugin and show its result."""

    name: Text
    tool: Text
    arguments: dict[str, Any] | None = None


class PluginCalled(Value):
    """What the tool gave; of a call that failed, why."""

    ok: bool
    output: str


class PluginImport(Value):
    """`needs`: the capability, null for none."""

    name: str
    needs: str | None
    denied: bool


class PluginInspected(Plugin):
    """A plugin, and what it can touch: by capability how often it was `used` and `denied`."""

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
    """In the order of firing."""

    rules: list[Rule]
    refused: list[RuleFileRefused]


EVENT_NAMES = tuple(
    name for kind in KINDS for name in (kind.type, kind.constant, kind.hook) if name
)
# In whatever spelling; what is none is told what was meant.
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
    """`refused` counts by reason; `pending` answers are not sent yet; `dead` ones are letters, as are
    `unread` messages that came in."""

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
    """List failed messages and answers."""

    channel: Text | None = None
    before: Place | None = None
    limit: Page = 50


class DeadLetter(Value):
    """An answer that did not arrive; `arrived` characters of it did."""

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
    """What a platform sent and could not be taken; `why` is null where nobody wrote it down."""

    id: str
    channel: str
    account: str
    why: str | None
    text: str
    at: datetime


class LetterCounts(Value):
    """All there are, of the channel that was asked for."""

    outgoing: int
    incoming: int


class DeadLetterPage(Value):
    letters: list[DeadLetter]
    more: bool
    unread: list[UnreadMessage]
    counts: LetterCounts


class OfLetter(Params):
    id: Text
    channel: Text | None = None  # of one that came in; ids of platforms are alike


class ResubmitLetter(OfLetter):
    """Send a dead letter again, or accept it again."""


class DropLetter(OfLetter):
    """Delete a dead letter."""


class LetterSettled(Value):
    id: str
    state: Literal["pending", "taken", "dropped"]


class PairList(Params):
    """List people who wait, then people approved or denied."""

    channel: Text | None = None
    limit: Page = 100


class Paired(Value):
    """One person on one channel; `expires_at` is the code's, while it waits."""

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
    """Approve the person with that code. The first person of an account owns it."""

    code: Text
    owner: Flag = False


class PairDeny(Params):
    """Deny a person, by CODE or by --channel and --person. An approved person is a stranger again."""

    code: Text | None = None
    channel: Text | None = None
    account: Text = "default"
    person: Text | None = None


class OfPerson(Params):
    channel: Text
    person: Text
    account: Text = "default"


class PairBlock(OfPerson):
    """Block a person, known or not. ID is CHANNEL:ACCOUNT:PERSON."""


class PairUnblock(OfPerson):
    """Let a blocked or denied person ask again. ID is CHANNEL:ACCOUNT:PERSON."""


class PairRevoke(OfPerson):
    """Revoke the approval of a person. ID is CHANNEL:ACCOUNT:PERSON."""


class PairingRevoked(Value):
    channel: str
    account: str
    person: str
    state: Literal["revoked", "unblocked"]


# -- backups


class CreateBackup(Params):
    """Write the store of this moment and the configuration to an archive."""

    file: (
        Annotated[
            str,
            Check(min_length=1, max_length=4096, pattern=r"^[^\x00]+$"),
            "A new file; else DATA_DIR/backups/DATE.zip.",
        ]
        | None
    ) = None
    with_secrets: Annotated[Flag, "Secret files, and secrets in the configuration, as well."] = (
        False
    )


class BackupCreated(Value):
    """`sha256` is of all before it in the file, which ends in it; `accepted`: messages so far; `left_out`:
    what the configuration names and could not be read."""

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
            columns="id provider model fallbacks tools soul | name provider model tools soul",
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
            empty="no channel is configured; `exogate channel add KIND` adds one",
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
