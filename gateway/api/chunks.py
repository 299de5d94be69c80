"""The chunks of a run: the same on the WebSocket, in streams of HTTP, and in the run's stored log."""

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
    """What a model thinks aloud."""

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
    """What a tool's result drew on."""

    type: Literal["source"]
    source: CitedSource


class PendingCall(Value):
    id: str
    name: str
    arguments: str
    status: Literal["pending"]


class ToolCalled(OfRun):
    """A call that the model wants; every call of a reply is told before the first result."""

    type: Literal["tool_call"]
    tool_call: PendingCall


class EndedCall(Value):
    id: str
    name: str
    status: Literal["success", "error"]
    result: str
    duration_ms: float


class ToolReturned(OfRun):
    """What came of a call, also if it was not executed."""

    type: Literal["tool_result"]
    tool_call: EndedCall


class ContextUpdate(OfRun):
    """How full the model's window is."""

    type: Literal["context_update"]
    context_tokens: int
    max_context_tokens: int


class Spent(Value):
    """Facts of a budget that refused a call. `retry_after_s` is not there if it never resets."""

    scope: str | None = None
    used: float | None = None
    reserved: float | None = None
    limit: float | None = None
    unit: Unit | None = None
    resets_at: datetime | None = nullable()
    retry_after_s: float | None = None


class SystemMetadata(Spent):
    """A limit and how near it is, who gives notice, or from where on to throw away."""

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
    """What the gateway says beside the answer; no model is shown it."""

    type: Literal["system"]
    system_type: SystemType
    system_message: str
    metadata: SystemMetadata
    timestamp: datetime


class UsageTold(OfRun):
    """What one reply of a model took."""

    type: Literal["usage"]
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float | None
    model: str
    provider: str
    estimated: bool


class Done(OfRun):
    """The end of a run that has an answer, be it a part."""

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
    truncated: Literal[True] | None = None  # `response` is
    cut: Literal[True] | None = None  # the model had more to say than `max_tokens` allows
    filtered: Literal[True] | None = None  # the model's service held the rest back
    merged_into: str | None = None


class WhyFailed(Spent):
    """Of a model service that failed, or of a budget that is spent."""

    provider: str | None = None
    provider_status: int | None = None


class Failed(WhyFailed, OfRun):
    """The end of a run that has no answer."""

    type: Literal["error"]
    error_type: ErrorType
    message: str
    retryable: bool
    context_id: str
    timestamp: datetime


# A new type of chunk is declared above and listed here, and told where a turn sends it.
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
