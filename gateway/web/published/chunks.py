"""The events of a run: the same on the WebSocket, in streams of HTTP, and in the run's stored log."""

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from gateway.domain.budgets import Unit
from gateway.domain.events import Priority
from gateway.domain.messages import DoneReason, ErrorType, SystemType
from gateway.web.published.values import Time


class _OfRun(TypedDict):
    run_id: str
    session_key: str
    seq: Annotated[int, Field(ge=1)]


class Thinking(_OfRun):
    """What a model thinks aloud."""

    type: Literal["thinking"]
    content: str


class Content(_OfRun):
    """A piece of the answer."""

    type: Literal["content"]
    content: str


class CitedSource(TypedDict):
    id: str
    title: str
    url: str | None
    tool_call_id: str


class SourceCited(_OfRun):
    """What a tool's result drew on."""

    type: Literal["source"]
    source: CitedSource


class PendingCall(TypedDict):
    id: str
    name: str
    arguments: str
    status: Literal["pending"]


class ToolCalled(_OfRun):
    """A call that the model wants; every call of a reply is told before the first result."""

    type: Literal["tool_call"]
    tool_call: PendingCall


class EndedCall(TypedDict):
    id: str
    name: str
    status: Literal["success", "error"]
    result: str
    duration_ms: float


class ToolReturned(_OfRun):
    """What came of a call, also if it was not executed."""

    type: Literal["tool_result"]
    tool_call: EndedCall


class ContextUpdate(_OfRun):
    """How full the model's window is."""

    type: Literal["context_update"]
    context_tokens: int
    max_context_tokens: int


class SystemMetadata(TypedDict, total=False):
    """A limit and how near it is, who gives notice, or from where on to throw away."""

    current_value: float
    limit_value: float
    percent: float
    limit_type: str
    scope: str
    used: float
    reserved: float
    limit: float
    unit: Unit
    resets_at: Time | None
    retry_after_s: float
    source: str
    priority: Priority
    error_type: Literal["mcp_connection_error"]
    server: str
    discard_from_seq: int


class System(_OfRun):
    """What the gateway says beside the answer; no model is shown it."""

    type: Literal["system"]
    system_type: SystemType
    system_message: str
    metadata: SystemMetadata
    timestamp: Time


class UsageTold(_OfRun):
    """What one reply of a model took."""

    type: Literal["usage"]
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float | None
    model: str
    provider: str
    estimated: bool


class Done(_OfRun):
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
    timestamp: Time
    truncated: NotRequired[Literal[True]]  # `response` is
    cut: NotRequired[Literal[True]]  # the model had more to say than `max_tokens` allows
    filtered: NotRequired[Literal[True]]  # the model's service held the rest back
    merged_into: NotRequired[str]


class WhyFailed(TypedDict, total=False):
    """Of a model service that failed, or of a budget that is spent."""

    provider: str
    provider_status: int
    retry_after_s: float
    scope: str
    used: float
    reserved: float
    limit: float
    unit: Unit
    resets_at: Time | None


class Failed(_OfRun, WhyFailed):
    """The end of a run that has no answer."""

    type: Literal["error"]
    error_type: ErrorType
    message: str
    retryable: bool
    context_id: str
    timestamp: Time


RunEvent = Annotated[
    Thinking
    | Content
    | SourceCited
    | ToolCalled
    | ToolReturned
    | ContextUpdate
    | System
    | UsageTold
    | Done
    | Failed,
    Field(discriminator="type"),
]
