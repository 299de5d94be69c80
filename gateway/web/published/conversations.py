"""Sessions, and the messages of their conversations."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from gateway.domain.messages import NodeStatus, Role, SystemType
from gateway.domain.sessions import SessionState
from gateway.web.oracle import OracleContext
from gateway.web.published.values import Time


class CalledFunction(TypedDict):
    name: str
    arguments: str


class MessageCall(TypedDict):
    """A call of a tool that a model asked for."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class MessageMetadata(TypedDict):
    token_count: int
    tool_calls: NotRequired[list[MessageCall]]
    model: NotRequired[str]


class MessageNotice(TypedDict):
    """What the user was told beside an answer, and no model is shown."""

    system_type: SystemType
    system_message: str


class HistoryMessage(TypedDict):
    id: str
    seq: int
    role: Literal["user", "assistant", "tool"]
    content: str
    tool_calls: list[MessageCall] | None
    run_id: str
    parent_id: str | None
    status: NodeStatus
    created_at: Time
    token_count: int
    model: str | None
    metadata: MessageMetadata
    tool_call_id: NotRequired[str]  # this and the next three: of a tool's message
    name: NotRequired[str]
    is_error: NotRequired[bool]
    duration_ms: NotRequired[float]
    notices: NotRequired[list[MessageNotice]]
    truncated: NotRequired[Literal[True]]


class HistoryPage(TypedDict):
    """Oldest first, along the path to `head`; `more`: older ones exist."""

    messages: list[HistoryMessage]
    head: str | None
    more: bool


class TokenUsage(TypedDict):
    input_tokens: int
    output_tokens: int
    cost_usd: float | None


class Session(TypedDict):
    session_key: str
    agent_id: str
    channel: str
    account: str
    peer: str
    created_at: Time
    updated_at: Time
    message_count: int
    token_usage: TokenUsage
    state: SessionState
    head: str | None


class SessionPage(TypedDict):
    sessions: list[Session]
    more: bool


class TreeNode(TypedDict):
    id: str
    parent_id: str | None
    role: Role
    run_id: str
    label: str | None
    checkpoint: bool
    archived: bool
    created_at: Time


class SessionTree(TypedDict):
    nodes: list[TreeNode]
    head: str | None


class HeadMoved(TypedDict):
    head: str


class Branched(HeadMoved):
    label: str | None


class Created(TypedDict):
    session_key: str
    head: None


class Labelled(TypedDict):
    node_id: str
    label: str | None


class Checkpointed(Labelled):
    checkpoint: bool


class Closed(TypedDict):
    session_key: str
    state: Literal["closed"]


class Imported(TypedDict):
    session_key: str
    imported: int
    head: str | None


class OracleExport(TypedDict):
    context: OracleContext
