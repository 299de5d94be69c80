"""Chat, sessions and runs: `chat.*`, `session.*`, `run.*`, `context.explain`."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from gateway.api.declarations import (
    CHAT,
    NOT_BLANK,
    READS,
    Check,
    Key,
    Method,
    Moment,
    Page,
    Params,
    Text,
    Value,
    Verb,
    nullable,
    whole,
)
from gateway.domain.agents import MatchedBy
from gateway.domain.ids import SessionKey
from gateway.domain.inbox import EntryState
from gateway.domain.messages import NodeStatus, Role, SystemType
from gateway.domain.sessions import SessionState

LONGEST_TEXT = 400_000  # characters of a message
Tighter = Annotated[int, whole(ge=1)] | None


class OwnLimits(Params):
    """Limits of one request. They can only lower the configured limits."""

    max_iterations: Tighter = None
    soft_warning_percent: Tighter = None
    token_budget: Tighter = None
    token_warning_percent: Tighter = None
    timeout_seconds: Tighter = None
    max_tool_calls_per_turn: Tighter = None
    max_parallel_tools: Tighter = None


class ChatSend(Params):
    """Send a message; the events of its run follow."""

    content: Annotated[str, Check(min_length=1, max_length=LONGEST_TEXT, says=NOT_BLANK)]
    channel: Text = "websocket"
    account: Text | None = None
    peer: Text = "main"
    guild: Text | None = None
    team: Text | None = None
    thread: Text | None = None
    idempotency_key: Text | None = None
    context_id: Text | None = None
    agent: Text | None = None
    limits: OwnLimits | None = None
    traceparent: Annotated[Text, "The caller's W3C trace context."] | None = None


class Sent(Value):
    """A message that is stored durably. `duplicate`: it was already stored before this request."""

    message_id: str
    run_id: str
    session_key: SessionKey
    agent_id: str
    matched_by: MatchedBy
    duplicate: bool


class ChatAbort(Params):
    """Stop a run."""

    run_id: Text
    mode: Literal["immediate", "after_turn"] = "immediate"


class Aborted(Value):
    """`aborted` is true if the run was still active."""

    run_id: str
    aborted: bool


class ChatHistory(Params):
    """Show a page of a conversation, up to its HEAD."""

    session_key: Annotated[str, Check(min_length=1, max_length=4096)]
    before: Text | None = None
    limit: Page = 50


class CalledFunction(Value):
    name: str
    arguments: str


class MessageCall(Value):
    """A tool call that a model asked for."""

    id: str
    function: CalledFunction
    type: Literal["function"]


class MessageMetadata(Value):
    token_count: int
    tool_calls: list[MessageCall] | None = None
    model: str | None = None


class MessageNotice(Value):
    """A system message that the user received with an answer. Models do not see it."""

    system_type: SystemType
    system_message: str


class HistoryMessage(Value):
    id: str
    seq: int
    role: Literal["user", "assistant", "tool"]
    content: str
    tool_calls: list[MessageCall] | None
    run_id: str
    parent_id: str | None
    status: NodeStatus
    created_at: datetime
    token_count: int
    model: str | None
    metadata: MessageMetadata
    tool_call_id: str | None = None  # this and the next three fields: only of a tool's message
    name: str | None = None
    is_error: bool | None = None
    duration_ms: float | None = None
    notices: list[MessageNotice] | None = None
    truncated: Literal[True] | None = None


class HistoryPage(Value):
    """Messages on the path to `head`, oldest first. `more`: older messages exist."""

    messages: list[HistoryMessage]
    head: str | None
    more: bool


class ChatResume(Params):
    """Receive the missed events of a run, then its new events."""

    run_id: Text
    after_seq: Annotated[int, whole(ge=0)] = 0


class Resumed(Value):
    """`live` is true if more events will follow."""

    run_id: str
    live: bool


# -- sessions


class SessionList(Params):
    """List conversations, the most recently used first."""

    agent: Text | None = None
    channel: Text | None = None
    query: Annotated[Text, "Part of the session key."] | None = None
    before: Moment | None = None
    limit: Annotated[int, Check(ge=1, le=500)] = 50


class TokenUsage(Value):
    input_tokens: int
    output_tokens: int
    cost_usd: float | None


class Session(Value):
    session_key: SessionKey
    agent_id: str
    channel: str
    account: str
    peer: str
    created_at: datetime
    updated_at: datetime
    message_count: int
    token_usage: TokenUsage
    state: SessionState
    head: str | None


class SessionPage(Value):
    sessions: list[Session]
    more: bool


class OfSession(Params):
    session_key: Key


class SessionGet(OfSession):
    """Show one session."""


class GetTree(OfSession):
    """Show the messages of a session with their branches."""

    archived: bool = False


class TreeNode(Value):
    id: str
    parent_id: str | None
    role: Role
    run_id: str
    label: str | None
    checkpoint: bool
    archived: bool
    created_at: datetime


class SessionTree(Value):
    nodes: list[TreeNode]
    head: str | None


class SessionBranch(OfSession):
    """Branch from an earlier message. The next message follows that one."""

    node_id: Text
    label: Annotated[Text, "A name for that message."] | None = None


class HeadMoved(Value):
    head: str


class Branched(HeadMoved):
    label: str | None


class SessionCheckout(OfSession):
    """Continue from a message, given by its id or label."""

    node_id: Text | None = None
    label: Text | None = None


class SessionCreate(OfSession):
    """Start a new tree in a session. Its earlier messages stay."""


class Created(Value):
    session_key: SessionKey
    head: None


class SessionLabel(OfSession):
    """Give a message a name, or remove its name."""

    node_id: Text
    label: Text | None


class Labelled(Value):
    node_id: str
    label: str | None


class SessionCheckpoint(OfSession):
    """Protect a message and its ancestors from archiving."""

    node_id: Text | None = None
    checkpoint: bool = True


class Checkpointed(Labelled):
    checkpoint: bool


class SessionClose(OfSession):
    """Close a session until its next message."""


class Closed(Value):
    session_key: SessionKey
    state: Literal["closed"]


# -- import and export of conversations

OVERFLOW = 1.1  # tokens_used may exceed token_budget by this factor
LEAST_BUDGET, MOST_BUDGET = 4_000, 128_000
Id = Annotated[str, Check(min_length=1, max_length=128)]
Said = Annotated[str, Check(max_length=LONGEST_TEXT)]


class Lenient(Params):
    """Parameters whose unknown fields are ignored."""

    __pydantic_config__ = {**Params.__pydantic_config__, "extra": "ignore"}


class ImportedFunction(Lenient):
    name: Text
    arguments: Said = "{}"


class ImportedCall(Lenient):
    id: Id
    function: ImportedFunction


class ImportedMessage(Lenient):
    """A message as `chat.history` shows it; derived fields are ignored. A message without `parent_id` follows
    the message before it."""

    id: Id
    role: Literal["user", "assistant", "tool"]
    content: Said
    created_at: Moment
    parent_id: Id | None = ""
    tool_calls: Annotated[list[ImportedCall], Check(max_length=100)] | None = None
    tool_call_id: Id | None = None
    name: Annotated[str, Check(max_length=256)] = ""
    is_error: bool = False
    duration_ms: Annotated[float, Check(ge=0, le=1e12, allow_inf_nan=False)] = 0.0
    status: NodeStatus = "complete"
    token_count: Annotated[int, Check(ge=1, le=100_000_000)] | None = None
    model: Text | None = None


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def _says_something(content: str, before: Any) -> str:
    if not content.strip() and before.get("role") != "tool":
        raise ValueError("content is empty")
    return content


def _names_its_call(call_id: str | None, before: Any) -> str | None:
    if call_id is None and before.get("role") == "tool":
        raise ValueError("a message of a tool needs tool_call_id")
    return call_id


def _is_within_its_budget(used: int, before: Any) -> int:
    if used > OVERFLOW * before.get("token_budget", used):
        raise ValueError(f"tokens_used is more than {OVERFLOW} times token_budget")
    return used


def _has_a_call_for_each_result(exchanges: Any) -> Any:
    known: set[str | None] = {None}
    for one in exchanges:
        known.update(call.id for call in one.tool_calls or ())
        if one.tool_call_id not in known:
            raise ValueError(f"no message before {one.id[:64]!r} has the call that it answers")
    return exchanges


Time = Annotated[datetime, Check(after=_utc)]
Name = Annotated[str, Check(min_length=1)]
Count = Annotated[int, whole(ge=0)]
OracleStatus = Literal["active", "suspended", "closed"]


class OracleCall(Params):
    id: Name
    name: Name
    arguments: dict[str, Any]
    result: str | None = None
    status: Literal["pending", "success", "error"] = "pending"
    duration_ms: Count | None = None


class OracleExchange(Params):
    """A question, or an answer with its tool calls."""

    __pydantic_config__ = {**Params.__pydantic_config__, "validate_default": True}

    id: Name
    role: Literal["user", "assistant", "tool"]
    content: Annotated[str, Check(among=_says_something)]
    timestamp: Time
    token_count: Annotated[int, whole(ge=1)]
    tool_calls: tuple[OracleCall, ...] | None = None
    tool_call_id: Annotated[Name | None, Check(among=_names_its_call)] = None
    key_insight: str | None = None
    mentioned_symbols: tuple[str, ...] = ()
    mentioned_files: tuple[str, ...] = ()


class OracleContext(Params):
    id: Name
    user_id: Name
    project_id: Name
    session_start: Time
    last_activity: Time | None = None
    last_model: str | None = None
    token_budget: Annotated[int, whole(ge=LEAST_BUDGET, le=MOST_BUDGET)] = 16_000
    tokens_used: Annotated[int, whole(ge=0, among=_is_within_its_budget)] = 0
    compressed_summary: str | None = None
    recent_exchanges: Annotated[
        tuple[OracleExchange, ...], Check(after=_has_a_call_for_each_result)
    ] = ()
    key_decisions: tuple[str, ...] = ()
    mentioned_symbols: str | None = None
    mentioned_files: str | None = None
    status: OracleStatus = "active"
    compression_count: Count = 0


class SessionImport(OfSession):
    """Import messages of another conversation into a session."""

    messages: Annotated[list[ImportedMessage], Check(max_length=500)] | None = None
    context: OracleContext | None = None


class Imported(Value):
    session_key: SessionKey
    imported: int
    head: str | None


class SessionExport(OfSession):
    """Export the latest messages of a conversation as one OracleContext."""


class OracleExport(Value):
    context: OracleContext


# -- runs


class RunInspect(Params):
    """Show the progress of a run, or its end."""

    run_id: Text


class Verdict(Value):
    """A decision of the policy or a rule about a run."""

    kind: str
    turn: int
    reason: str | None = None
    message: str | None = None


class RunTimings(Value):
    accepted_at: datetime
    started_at: datetime | None = nullable()
    queued_s: float | None = None


class RunInspected(Value):
    """The state of a run. The optional fields are present once its turn has started."""

    run_id: str
    session_key: str
    agent_id: str
    state: EntryState | Literal["ended"]
    turn: int
    tokens_used: int
    iteration_percent: float
    token_percent: float
    elapsed_s: float
    recent_actions: list[str]
    verdicts: list[Verdict]
    termination_reason: str | None
    tree: str | None
    decision: str | None
    config: dict[str, float]
    timings: RunTimings
    attempt: int | None = None
    events: int | None = None
    warned: list[str] | None = None
    provider: str | None = nullable()
    model: str | None = nullable()
    merged_into: str | None = None


class ContextExplain(Params):
    """Show the parts of the context that the model of a run received."""

    run_id: Text


class ContextItem(Value):
    id: str
    tokens: int
    why: str


class ContextPart(Value):
    kind: Literal[
        "soul", "system", "summary", "facts", "recall", "window", "notices", "tools", "question"
    ]
    tokens: int
    items: list[ContextItem]


class ContextExplained(Value):
    """The context of a run by part; the tokens of the parts add up to `total_tokens`."""

    run_id: str
    model: str | None
    max_context_tokens: int
    total_tokens: int
    parts: list[ContextPart]


class Replay(Params):
    """Replay a recorded run; exit 1 if it diverges."""

    run_id: Text
    model: Annotated[Text, "Ask this model now and compare: MODEL or PROVIDER/MODEL."] | None = None


class Divergence(Value):
    """The first place where the replay differs from the journal, with both values."""

    at: str
    recorded: object
    now: object
    seq: int | None


class RunReplay(Value):
    """The result of a replay. `response` and `tokens_used` come from the other model, if the request named one."""

    run_id: str
    identical: bool
    divergence: Divergence | None
    chunks: int
    calls: int
    response: str | None = nullable()
    tokens_used: int | None = nullable()


METHODS = (
    Method("chat.send", ChatSend, CHAT, Sent),
    Method("chat.abort", ChatAbort, CHAT, Aborted),
    Method("chat.history", ChatHistory, READS, HistoryPage),
    Method("chat.resume", ChatResume, READS, Resumed),
    Method(
        "session.list",
        SessionList,
        READS,
        SessionPage,
        http="/api/sessions",
        errors=(422,),
        verb=Verb(
            columns="session_key state message_count token_usage updated_at",
            empty="no conversations",
        ),
    ),
    Method(
        "session.get", SessionGet, READS, Session, http="/api/sessions/{key:path}", errors=(404,)
    ),
    Method("session.tree", GetTree, READS, SessionTree),
    Method("session.branch", SessionBranch, CHAT, Branched, verb=Verb("session_key node_id")),
    Method("session.checkout", SessionCheckout, CHAT, HeadMoved, verb=Verb("session_key node_id")),
    Method("session.create", SessionCreate, CHAT, Created),
    Method("session.label", SessionLabel, CHAT, Labelled),
    Method("session.checkpoint", SessionCheckpoint, CHAT, Checkpointed),
    Method("session.close", SessionClose, CHAT, Closed),
    Method("session.import", SessionImport, CHAT, Imported),
    Method("session.export", SessionExport, READS, OracleExport),
    Method("run.inspect", RunInspect, READS, RunInspected),
    Method("context.explain", ContextExplain, READS, ContextExplained),
    # Asking another model may take as long as a run.
    Method(
        "run.replay",
        Replay,
        READS,
        RunReplay,
        verb=Verb("run_id", holds="identical", answer_s=900.0, name="replay"),
    ),
)
