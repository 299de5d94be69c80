"""What a turn is given (Job), told (events), wants (effects) and comes to (Answer); how it is controlled."""

from collections import deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from gateway.control.policy import DefaultDecisionTree, MakeDecisionTree
from gateway.control.rules import Act
from gateway.control.trees.plan import TreePlan
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import ModelFailed
from gateway.domain.events import Event, Notice
from gateway.domain.ids import NodeId, RunId
from gateway.domain.mcp import Lacking
from gateway.domain.messages import (
    Chunk,
    DoneReason,
    ErrorType,
    Message,
    Price,
    Spent,
    SystemType,
    ToolCall,
    ToolResult,
    Usage,
    unpriced,
)
from gateway.domain.model import FinishReason, ModelReply, ToolSpec
from gateway.domain.ports import Decode, ToolScope
from gateway.memory.context import Context
from gateway.tools.sources import Listed, ToolSource


@dataclass(frozen=True, slots=True)
class Steered:
    """One more message of a person, under the run that it was accepted with."""

    run_id: RunId
    text: str


@dataclass(frozen=True, slots=True)
class StopRequest:
    reason: DoneReason
    at_once: bool


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A message was taken back before the run took it."""

    run_id: RunId


@dataclass(slots=True)
class RunControl:
    """Stops and steers a run. A request that comes before the run begins waits for it."""

    requests: deque[StopRequest | Steered] = field(default_factory=deque)
    wake: Callable[[], None] = lambda: None
    forget: Callable[[RunId], bool] = lambda _run_id: False
    on_request: Callable[[StopRequest | Steered | Withdrawn], None] = lambda one: None
    is_closed: bool = False

    def stop(self, reason: DoneReason, *, at_once: bool) -> None:
        self._request(StopRequest(reason, at_once))

    def steer(self, said: Steered) -> bool:
        """Gives the run one more message; False if it takes none any more."""
        if self.is_closed:
            return False
        self._request(said)
        return True

    def _request(self, one: StopRequest | Steered) -> None:
        self.on_request(one)
        self.requests.append(one)
        self.wake()

    def withdraw(self, run_id: RunId) -> bool:
        """Takes a message back; False if the run has taken it already."""
        was_there = drop_said(self.requests, run_id) or self.forget(run_id)
        if was_there:
            self.on_request(Withdrawn(run_id))
        return was_there

    def close(self) -> None:
        """The run has ended; nothing is kept alive for it."""
        self.is_closed, self.wake, self.forget = True, lambda: None, lambda _run_id: False
        self.on_request = lambda one: None


def drop_said(queue: MutableSequence[Any], run_id: RunId) -> bool:
    """Takes a person's message out of those that wait; False if it is not there."""
    for one in queue:
        if isinstance(one, Steered) and one.run_id == run_id:
            queue.remove(one)
            return True
    return False


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
    taken: tuple[Steered, ...] = ()


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


Effect = AskModel | CallTool | Cancel


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
    sources: tuple[ToolSource, ...] = ()
    items: int | None = None  # how many entries the result lists, if it is a list of something


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody stopped it: now, or when the turn that is at work is over."""

    reason: DoneReason
    at_once: bool = True


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time has passed that the tree waited for."""


TurnEvent = ModelReplied | ModelBroke | ToolReturned | StopRequested | Steered | TimePassed


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

Emit = Callable[[Chunk], None]


class Gate(Protocol):
    """What a run needs of the gate in front of the tools."""

    async def prepare(self, agent: AgentDef) -> Sequence[Lacking]:
        """Before `offered`: what it has and cannot have now."""
        ...

    def offered(self, agent: AgentDef) -> tuple[ToolSpec, ...]: ...

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult: ...

    def listed(self, result: ToolResult) -> Listed: ...


class Rules(Protocol):
    """Those that apply to a run."""

    @property
    def hearing(self) -> Mapping[str, Sequence[object]]:
        """Those that hear a type of event; every type has an entry."""
        ...

    def on(self, event: Event, scope: Mapping[str, object], /) -> Sequence[Act]: ...

    @property
    def kept(self) -> Mapping[str, object] | None:
        """What they keep of the session from now on; None: as it was."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One run: who answers, by which tree, what it is shown, which tools it is told of."""

    agent: AgentDef
    plan: TreePlan
    context: Context
    tools: tuple[ToolSpec, ...]
    scope: ToolScope
    rules: Rules
    publish: Callable[[Event], None]
    decode: Decode
    decision: MakeDecisionTree = DefaultDecisionTree
    context_id: NodeId | None = None  # the node that the message wants to grow from
    known: Callable[[int, ToolCall], ToolResult | None] = lambda step, call: None  # has it run?
    waiting: tuple[Notice, ...] = ()  # from other sessions
    price: Price = unpriced
    was_near: bool = False  # the window's end, when the run before ended, and is still
    hears: Callable[[str], bool] = lambda type_: True  # does anybody listen to events of this type?


@dataclass(frozen=True, slots=True)
class RunResult:
    """`said` are the messages of the run after the question, in order, the answer last. `taken` are
    the runs whose messages were heard in it; `posts` are notices for other sessions. `finish`:
    why the last reply ended."""

    end: End
    said: tuple[Message, ...]
    usage: Usage
    model: str
    provider: str
    taken: tuple[RunId, ...] = ()
    posts: tuple[Notice, ...] = ()
    farewell: Event | None = None  # to be told once the end is durable
    kept: Mapping[str, object] | None = None  # by the rules
    has_told: bool = True  # a model what was waiting for it: that one said something, or refused
    finish: FinishReason | None = None


def add_usage(one: Usage, other: Usage) -> Usage:
    cost = other.cost_usd if one.cost_usd is None else one.cost_usd
    if one.cost_usd is not None and other.cost_usd is not None:
        cost = one.cost_usd + other.cost_usd
    return Usage(
        one.input_tokens + other.input_tokens,
        one.output_tokens + other.output_tokens,
        one.cached_tokens + other.cached_tokens,
        one.reasoning_tokens + other.reasoning_tokens,
        cost,
        one.estimated or other.estimated,
    )


def usage_chunk(reply: ModelReply | Spent) -> Chunk:
    usage = reply.usage
    return Chunk(
        "usage",
        {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": usage.cost_usd,
            "model": reply.model,
            "provider": reply.provider,
            "estimated": usage.estimated,
        },
    )


def with_distinct_ids(reply: ModelReply, said: Sequence[Message]) -> ModelReply:
    """Some models reuse an id within a reply or a run; each result has to find its own call."""
    if not reply.tool_calls:
        return reply
    taken = {call.id for message in said for call in message.tool_calls}
    calls: list[ToolCall] = []
    for call in reply.tool_calls:
        number, distinct = len(taken), call.id
        while distinct in taken:
            distinct, number = f"{call.id}-{number}", number + 1
        taken.add(distinct)
        calls.append(replace(call, id=distinct) if distinct != call.id else call)
    return replace(reply, tool_calls=tuple(calls))


def with_last_word(
    said: Sequence[Message], text: str, notices: tuple[tuple[SystemType, str], ...] = ()
) -> tuple[Message, ...]:
    """The answer stands at the end, once; an empty reply gives way to what the user was told."""
    *before, last = said or [Message("assistant")]
    if last.role != "assistant" or (last.text.strip() and last.text != text):
        before, last = [*before, last], Message("assistant")
    if (last.text, last.notices) != (text, notices):
        last = replace(last, text=text, notices=notices)
    return (*before, last)
