"""What a turn wants and what it is told: values only, so that a turn can be played on paper."""

from dataclasses import dataclass
from datetime import datetime

from gateway.agent.reins import Said
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.chunks import DoneReason, ErrorType
from gateway.domain.errors import ModelFailed
from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.domain.model import ModelReply, ToolSpec
from gateway.tools.sources import Source


@dataclass(frozen=True, slots=True)
class Moment:
    """When a turn is told something, by both clocks; a turn has no other time."""

    wall: datetime
    at: float


@dataclass(frozen=True, slots=True)
class AskModel:
    """Wants a reply to these messages. `taken` is what people said meanwhile and is now among them.
    `step` counts the replies so far."""

    ticket: int
    step: int
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    model: str | None = None  # another than the agent's
    max_tokens: int | None = None
    timeout_s: float | None = None
    idle_timeout_s: float | None = None  # between two pieces of the reply
    taken: tuple[Said, ...] = ()


@dataclass(frozen=True, slots=True)
class CallTool:
    """Wants one call executed; `step` is that of the reply that asked for it."""

    ticket: int
    step: int
    call: ToolCall
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """No longer wants what this ticket was for."""

    ticket: int


Wish = AskModel | CallTool | Cancel


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """`was_heard`: it came in pieces that were told as they came."""

    ticket: int
    reply: ModelReply
    was_heard: bool = True


@dataclass(frozen=True, slots=True)
class ModelBroke:
    """No complete reply; of a spent budget: nobody was asked."""

    ticket: int
    failure: ModelFailed | BudgetExceeded


@dataclass(frozen=True, slots=True)
class ToolReturned:
    ticket: int
    result: ToolResult
    sources: tuple[Source, ...] = ()
    items: int | None = None  # how many entries the result lists, if it is a list of something


@dataclass(frozen=True, slots=True)
class Stopped:
    """Somebody stopped it: now, or when the turn that is at work is over."""

    reason: DoneReason
    at_once: bool = True


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed that the tree waited for."""


Told = ModelReplied | ModelBroke | ToolReturned | Stopped | Said | Ticked


@dataclass(frozen=True, slots=True)
class Finish:
    """How a turn ends that came to an end of its own or was stopped. `text` is never empty."""

    reason: DoneReason
    text: str
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """It could not go on. `told` is what the user is told of it; `text` is what reached the user
    before it broke, or else the same sentence."""

    told: str
    text: str
    error_type: ErrorType = "provider_error"
    retryable: bool = False
    retry_after_s: float | None = None
    refusal: BudgetExceeded | None = None
    provider: str | None = None  # whose failure it is, and the status that it answered with
    status: int | None = None


End = Finish | Fail
