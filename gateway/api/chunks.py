"""The chunks of a run. The WebSocket, HTTP streams and the stored log of a run carry the same chunks."""

from datetime import datetime
from typing import Annotated, Literal, get_args

from gateway.api.declarations import Check, Value, nullable, tagged
from gateway.domain.budgets import Unit
from gateway.domain.events import Priority
from gateway.domain.messages import DoneReason, ErrorType, SystemType


class OfRun(Value):
    run_id: str
    session_key: str
    seq: Annotated[int, Check(ge=1)]


class Thinking(OfRun):
    """A piece of the model's reasoning."""

    type: Literal["thinking"]
    content: str


class Content(OfRun):
    """A piece of the answer."""

    type: Literal["content"]
    content: str


class CitedSource(Value):
    id: str
    title: str
    url: str | None
    tool_call_id: str


class SourceCited(OfRun):
    """A source of a tool's result."""

    type: Literal["source"]
    source: CitedSource


class PendingCall(Value):
    id: str
    name: str
    arguments: str
    status: Literal["pending"]


class ToolCalled(OfRun):
    """A tool call that the model asked for. All calls of a reply come before the first result."""

    type: Literal["tool_call"]
    tool_call: PendingCall


class EndedCall(Value):
    id: str
    name: str
    status: Literal["success", "error"]
    result: str
    duration_ms: float


class ToolReturned(OfRun):
    """The result of a tool call, also of a call that was refused."""

    type: Literal["tool_result"]
    tool_call: EndedCall


class ContextUpdate(OfRun):
    """Tokens in the context and the size of the model's window."""

    type: Literal["context_update"]
    context_tokens: int
    max_context_tokens: int


class Spent(Value):
    """The budget that refused a call. `retry_after_s` is absent if the budget never resets."""

    scope: str | None = None
    used: float | None = None
    reserved: float | None = None
    limit: float | None = None
    unit: Unit | None = None
    resets_at: datetime | None = nullable()
    retry_after_s: float | None = None


class SystemMetadata(Spent):
    """Details of a system chunk: the limit and its use, the source of a notice, or the first `seq` to discard."""

    current_value: float | None = None
    limit_value: float | None = None
    percent: float | None = None
    limit_type: str | None = None
    source: str | None = None
    priority: Priority | None = None
    error_type: Literal["mcp_connection_error"] | None = None
    server: str | None = None
    discard_from_seq: int | None = None


class System(OfRun):
    """A message of the gateway to the user. Models do not see it."""

    type: Literal["system"]
    system_type: SystemType
    system_message: str
    metadata: SystemMetadata
    timestamp: datetime


class UsageTold(OfRun):
    """Tokens and cost of one model reply."""

    type: Literal["usage"]
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float | None
    model: str
    provider: str
    estimated: bool


class Done(OfRun):
    """The end of a run with a complete or partial answer."""

    type: Literal["done"]
    reason: DoneReason
    message_id: str
    context_id: str
    response: str
    tokens_used: int
    model: str | None
    execution_time_ms: int
    partial: bool
    timestamp: datetime
    truncated: Literal[True] | None = None  # `response` is cut
    cut: Literal[True] | None = None  # the reply reached `max_tokens`
    filtered: Literal[True] | None = None  # the model service withheld the rest
    merged_into: str | None = None


class WhyFailed(Spent):
    """Details of a failed model service or an exhausted budget."""

    provider: str | None = None
    provider_status: int | None = None


class Failed(WhyFailed, OfRun):
    """The end of a run without an answer."""

    type: Literal["error"]
    error_type: ErrorType
    message: str
    retryable: bool
    context_id: str
    timestamp: datetime


# A new chunk type needs a class above, an entry here, and the code in the turn that sends it.
_KINDS = (
    Thinking
    | Content
    | SourceCited
    | ToolCalled
    | ToolReturned
    | ContextUpdate
    | System
    | UsageTold
    | Done
    | Failed
)
CHUNK_TYPES = tuple(get_args(one.__annotations__["type"])[0] for one in get_args(_KINDS))
RunEvent = tagged(_KINDS)
