"""The values of a turn: its Job, its events and effects, and its RunResult."""

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
from gateway.tools import Listed, ToolSource

# -- events


class Moment(NamedTuple):
    """The time of an event, by both clocks. A turn has no other clock."""

    wall: datetime
    at: float


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """A complete reply. `was_heard`: the user got it in pieces while it came."""

    ticket: int
    reply: ModelReply
    was_heard: bool = True


@dataclass(frozen=True, slots=True)
class ModelBroke:
    """A failed model call. After BudgetExceeded no model was asked."""

    ticket: int
    failure: ModelFailed | BudgetExceeded


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """The result of a tool call."""

    ticket: int
    result: ToolResult
    sources: tuple[ToolSource, ...] = ()
    items: int | None = None  # number of entries, if the result is a list


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A stop of the run: at once, or at the end of the current turn."""

    kind: ClassVar = "stop"  # of the journal entry

    reason: DoneReason
    at_once: bool = True


@dataclass(frozen=True, slots=True)
class Steered:
    """A message of a person that comes during the run, with the id of its own run."""

    kind: ClassVar = "said"

    run_id: RunId
    text: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A time that the tree waits for has passed."""


TurnEvent = ModelReplied | ModelBroke | ToolReturned | StopRequested | Steered | TimePassed
NAME_OF = attrgetter("__class__.__name__")  # the name of an event in a journal


# -- effects


@dataclass(frozen=True, slots=True)
class AskModel:
    """Asks a model for a reply. `messages` include the newly `taken` messages of people. `step` is the
    number of replies so far."""

    ticket: int
    step: int
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    model: str | None = None  # None: the agent's
    max_tokens: int | None = None
    timeout_s: float | None = None
    idle_timeout_s: float | None = None  # between two pieces of the reply
    taken: tuple[Steered, ...] = ()


@dataclass(frozen=True, slots=True)
class CallTool:
    """Executes one call. `step` is the step of the reply that asked for it."""

    ticket: int
    step: int
    call: ToolCall
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancels the effect with this ticket."""

    ticket: int


Effect = AskModel | CallTool | Cancel


# -- the end


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a turn with an answer or a stop. `text` is never empty."""

    reason: DoneReason
    text: str
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """The end of a turn after a failure. `message` is for the user. `text` is the part of the answer that
    reached the user, or else the same message."""

    partial: ClassVar = True

    message: str
    text: str
    error_type: ErrorType = "provider_error"
    retryable: bool = False
    retry_after_s: float | None = None
    refusal: BudgetExceeded | None = None
    provider: str | None = None  # the provider that failed
    status: int | None = None  # of its HTTP answer

    @property
    def reason(self) -> ErrorType:
        return self.error_type


End = Finish | Fail


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a turn. `said` are its messages after the question, in order, the answer last. `taken`
    are the runs of messages that it took on its way. `posts` are notices for other sessions. `finish` is
    the reason why the last reply ended."""

    end: End
    said: tuple[Message, ...]
    usage: Usage = Usage()
    model: str = ""  # of the last reply, or the agent's
    provider: str = ""
    taken: tuple[RunId, ...] = ()
    posts: tuple[Notice, ...] = ()
    end_event: Event | None = None  # published once the end is durable
    kept: Mapping[str, object] | None = None  # new state of the rules
    has_read_notices: bool = True  # True if a model has read the waiting notices
    finish: FinishReason | None = None
    iterations: int = 0


# -- the input of a turn

Emit = Callable[[Chunk], None]


class Gate(Protocol):
    """The part of the tool gate that a run uses."""

    async def prepare(self, agent: AgentDef) -> Sequence[UnreachableServer]:
        """Connects the agent's tool servers. Returns the missing ones."""
        ...

    def offered(self, agent: AgentDef) -> tuple[ToolSpec, ...]: ...

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult: ...

    def listed(self, result: ToolResult) -> Listed: ...


@dataclass(frozen=True, slots=True)
class Job:
    """The input of a turn: agent, tree, context, tools and surroundings."""

    agent: AgentDef
    plan: TreePlan
    context: Context
    tools: tuple[ToolSpec, ...]
    scope: ToolScope
    rules: RuleSet
    publish: Callable[[Event], None]
    decision: MakeDecisionTree = DefaultDecisionTree
    plan_digest: str = ""  # of the text of the tree
    kept: Mapping[str, object] = field(default_factory=dict)  # state of the session's rules
    context_id: NodeId | None = None  # the node that the message continues from
    known: Callable[[int, ToolCall], ToolResult | None] = lambda step, call: None  # earlier result
    waiting: tuple[Notice, ...] = ()  # from other sessions
    price: Price = unpriced
    near_at: int = maxsize  # context tokens at which the window counts as nearly full
    was_near: bool = False  # the run before ended above `near_at`
    hears: Callable[[str], bool] = lambda type_: True  # True if events of this type have a listener
