"""Values of a turn: what it is given (Job), its events and effects, and what it comes to (RunResult)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from sys import maxsize
from typing import ClassVar, NamedTuple, Protocol

from gateway.control.policy import DefaultDecisionTree, MakeDecisionTree
from gateway.control.rules import RuleSet
from gateway.control.trees.engine import TreePlan
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import ModelFailed
from gateway.domain.events import Event, Notice
from gateway.domain.ids import NodeId, RunId
from gateway.domain.mcp import UnreachableServer
from gateway.domain.messages import (
    Chunk,
    DoneReason,
    ErrorType,
    Message,
    Price,
    ToolCall,
    ToolResult,
    Usage,
    unpriced,
)
from gateway.domain.model import FinishReason, ModelReply, ToolSpec
from gateway.domain.ports import ToolScope
from gateway.memory.context import Context
from gateway.tools.results import Listed, ToolSource

# -- events


class Moment(NamedTuple):
    """The time of an event, by both clocks; a turn has no other time."""

    wall: datetime
    at: float


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """`was_heard`: the user got it in pieces while it came."""

    ticket: int
    reply: ModelReply
    was_heard: bool = True


@dataclass(frozen=True, slots=True)
class ModelBroke:
    """There is no complete reply. After BudgetExceeded no model was asked."""

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
    """Somebody stopped the run: now, or at the end of the turn that is at work."""

    kind: ClassVar = "stop"  # of its entry in a journal

    reason: DoneReason
    at_once: bool = True


@dataclass(frozen=True, slots=True)
class Steered:
    """One more message of a person, under the run that it was accepted with."""

    kind: ClassVar = "said"

    run_id: RunId
    text: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time has passed that the tree waited for."""


TurnEvent = ModelReplied | ModelBroke | ToolReturned | StopRequested | Steered | TimePassed
NAME_OF = attrgetter("__class__.__name__")  # of an event, as a journal has it


# -- effects


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


# -- the end


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a turn that came to an answer or was stopped. `text` is never empty."""

    reason: DoneReason
    text: str
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """The end of a turn that could not go on. `told` is the sentence for the user; `text` is what
    reached the user before, or else the same sentence."""

    partial: ClassVar = True

    message: str
    text: str
    error_type: ErrorType = "provider_error"
    retryable: bool = False
    retry_after_s: float | None = None
    refusal: BudgetExceeded | None = None
    provider: str | None = None  # whose failure it is, and the status that it answered with
    status: int | None = None

    @property
    def reason(self) -> ErrorType:
        return self.error_type


End = Finish | Fail


@dataclass(frozen=True, slots=True)
class RunResult:
    """`said` are the messages of the run after the question, in order, the answer last. `taken` are
    the runs whose messages were taken in it; `posts` are notices for other sessions. `finish`:
    why the last reply ended."""

    end: End
    said: tuple[Message, ...]
    usage: Usage = Usage()
    model: str = ""  # that replied last, if one was asked
    provider: str = ""
    taken: tuple[RunId, ...] = ()
    posts: tuple[Notice, ...] = ()
    end_event: Event | None = None  # to be published once the end is durable
    kept: Mapping[str, object] | None = None  # by the rules
    has_read_notices: bool = True  # a model has read the notices that waited for the run
    finish: FinishReason | None = None
    iterations: int = 0


# -- what a turn is given

Emit = Callable[[Chunk], None]


class Gate(Protocol):
    """What a run needs of the gate in front of the tools."""

    async def prepare(self, agent: AgentDef) -> Sequence[UnreachableServer]:
        """Connects the agent's tool servers; returns those that are missing now."""
        ...

    def offered(self, agent: AgentDef) -> tuple[ToolSpec, ...]: ...

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult: ...

    def listed(self, result: ToolResult) -> Listed: ...


@dataclass(frozen=True, slots=True)
class Job:
    """One run: who answers, by which tree, what it is shown, which tools it is told of."""

    agent: AgentDef
    plan: TreePlan
    context: Context
    tools: tuple[ToolSpec, ...]
    scope: ToolScope
    rules: RuleSet
    publish: Callable[[Event], None]
    decision: MakeDecisionTree = DefaultDecisionTree
    plan_digest: str = ""  # another one for every other text of the tree
    kept: Mapping[str, object] = field(default_factory=dict)  # set before by rules of this session
    context_id: NodeId | None = None  # the node that the message wants to grow from
    known: Callable[[int, ToolCall], ToolResult | None] = lambda step, call: None  # has it run?
    waiting: tuple[Notice, ...] = ()  # from other sessions
    price: Price = unpriced
    near_at: int = maxsize  # tokens from which on the window counts as nearly full
    was_near: bool = False  # the run before ended that near
    hears: Callable[[str], bool] = lambda type_: True  # does anybody listen to events of this type?
