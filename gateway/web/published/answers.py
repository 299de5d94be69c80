"""What is told over HTTP alone."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from gateway.domain.messages import DoneReason
from gateway.web.published.chunks import WhyFailed
from gateway.web.published.conversations import HistoryPage, TokenUsage
from gateway.web.published.values import Time


class Alive(TypedDict):
    status: Literal["ok"]


class ReadyForWork(TypedDict):
    status: Literal["ready"]


class NotReady(TypedDict):
    """`reasons` is for those who may read."""

    status: Literal["not_ready"]
    reasons: NotRequired[list[str]]


class CallMade(TypedDict):
    """A tool call of a run, and what came of it."""

    id: str
    name: str
    arguments: str
    status: Literal["success", "error"]
    result: str
    duration_ms: float


class _Ids(TypedDict):
    conversation_id: str
    run_id: str


class ChatAnswer(_Ids):
    """`usage` is of all models that worked for it; its cost is of those calls of which it is known."""

    response: str
    message_id: str
    tokens_used: int
    usage: TokenUsage
    model: str | None
    execution_time_ms: int
    reason: DoneReason
    merged_into: NotRequired[str]
    partial: bool
    tool_calls_made: list[CallMade]


class RunError(WhyFailed):
    """With what a run ended. `code` and `error_type` are its `type`, `user_facing_message` is its
    `message`: a sentence of ours, never a provider's words."""

    type: str
    code: str
    error_type: str
    message: str
    user_facing_message: str
    retryable: bool
    timestamp: Time


class FailedChat(_Ids):
    error: RunError


class LateChat(ChatAnswer):
    """The run reached its time limit: the error, and what there is."""

    error: RunError


class ConversationPage(HistoryPage):
    conversation_id: str
    session_key: str


class ErasedSession(TypedDict):
    """How much is gone, and under which id that is remembered."""

    session_key: str
    messages: int
    facts: int
    tombstone: str | None


class ErasedConversation(TypedDict):
    """A session for each agent that had it."""

    conversation_id: str
    erased: list[ErasedSession]


class _JsonRpc(TypedDict):
    jsonrpc: Literal["2.0"]


class McpMessage(_JsonRpc):
    """As the Model Context Protocol has it; without an `id`, a text or a number, it is a notification."""

    id: NotRequired[object]
    method: str
    params: NotRequired[dict[str, object] | None]


class McpError(TypedDict):
    code: int
    message: str
    data: NotRequired[object]


class McpFailure(_JsonRpc):
    id: str | float | None
    error: McpError


class McpResult(_JsonRpc):
    id: str | float
    result: dict[str, object]


McpAnswer = McpResult | McpFailure
