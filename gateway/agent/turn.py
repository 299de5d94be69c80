"""One turn of an agent: what to do next, and nothing about how it is done.

A turn never waits. It is told what happened and answers with what it wants; the driver does the
wanting. A turn that was cut short is resumed by telling a new one the same story again.
"""

from dataclasses import dataclass, field, replace
from typing import assert_never

from gateway.domain.agents import Limits
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.chunks import DoneReason
from gateway.domain.errors import FailureKind, ModelFailed
from gateway.domain.messages import ToolCall, ToolResult
from gateway.domain.model import ModelReply

# What the user reads when a run was stopped before the model said anything.
STOPPED: dict[DoneReason, str] = {
    "answered": "The model gave an empty answer.",
    "max_iterations": "Maximum iterations reached. Saving partial response.",
    "token_budget": "Token budget reached. Saving partial response.",
    "timeout": "Time limit reached. Saving partial response.",
    "cancelled": "Cancelled by user",
}

# What the user reads when the model failed: never a provider's own words.
BROKEN: dict[FailureKind, str] = {
    "auth": "The model service ({provider}) refused the key. The operator has to check it.",
    "rate": "The model service ({provider}) has no capacity for us right now. Try again later.",
    "overloaded": "The model service ({provider}) is overloaded. Try again later.",
    "server": "The model service ({provider}) had an internal error. Try again later.",
    "network": "The model service ({provider}) cannot be reached. Try again later.",
    "timeout": "The model service ({provider}) did not answer in time. Try again later.",
    "truncated": "The model service ({provider}) broke off its answer. Try again.",
    "protocol": "The model service ({provider}) answered in a form that is not understood.",
    "bad_request": "The model service ({provider}) refused the request.",
    "context_overflow": "This conversation is too long for the model ({provider}).",
    "not_found": "The model service ({provider}) does not know the model. The operator has to check it.",
    "unmetered": "The model service ({provider}) was not asked: the accounts cannot be kept. Try again later.",
    "refused_key": "There is no key for the model service ({provider}). The operator has to add it.",
}


@dataclass(frozen=True, slots=True)
class AskModel:
    """Wants the model's next reply."""


@dataclass(frozen=True, slots=True)
class CallTools:
    """Wants `calls` executed; `refused` are answered already. Results follow the calls' order."""

    calls: tuple[ToolCall, ...]
    refused: tuple[ToolResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """Wants to end. `notice` is told to the user before the end; `text` is never empty."""

    reason: DoneReason
    text: str
    partial: bool = False
    notice: str | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """Cannot go on: the model failed, or may not be asked. `told` is what the user is told of it;
    `text` is what reached the user before it broke, or else the same sentence."""

    failure: ModelFailed | BudgetExceeded
    told: str
    text: str


Wish = AskModel | CallTools | Finish | Fail


@dataclass(frozen=True, slots=True)
class ModelReplied:
    reply: ModelReply


@dataclass(frozen=True, slots=True)
class ModelBroke:
    """No complete reply; `heard` is the text that reached the user before it broke."""

    failure: ModelFailed
    heard: str = ""


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """The model was not asked."""

    refusal: BudgetExceeded


@dataclass(frozen=True, slots=True)
class ToolsReturned:
    results: tuple[ToolResult, ...]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The driver stopped it from outside; `heard` as in ModelBroke."""

    reason: DoneReason
    heard: str = ""


Event = ModelReplied | ModelBroke | BudgetSpent | ToolsReturned | Stopped


@dataclass(frozen=True, slots=True)
class TurnState:
    """All that a policy may look at."""

    iteration: int = 0
    tokens_used: int = 0


@dataclass(slots=True)
class Turn:
    limits: Limits
    state: TurnState = field(default_factory=TurnState)
    said: str = ""

    def begin(self) -> Wish:
        return AskModel()

    def on(self, event: Event) -> Wish:
        match event:
            case ModelReplied(reply):
                return self._replied(reply)
            case ToolsReturned():
                self.state = replace(self.state, iteration=self.state.iteration + 1)
                return self._next()
            case Stopped(reason, heard):
                return self._stop(reason, heard)
            case ModelBroke(failure, heard):
                told = BROKEN[failure.kind].format(provider=failure.provider)
                return Fail(failure, told, heard or told)
            case BudgetSpent(refusal):
                return self._refused(refusal)
            case _:
                assert_never(event)

    def _refused(self, refusal: BudgetExceeded) -> Wish:
        told = str(refusal)
        if self.state.iteration or self.said:  # what was done so far is kept
            return Finish("token_budget", self.said or told, partial=True, notice=told)
        return Fail(refusal, told, told)

    def _replied(self, reply: ModelReply) -> Wish:
        self.said = reply.text or self.said
        used = self.state.tokens_used + reply.usage.total
        self.state = replace(self.state, tokens_used=used)
        if not reply.tool_calls:
            return Finish("answered", self.said or STOPPED["answered"])
        most = self.limits.max_tool_calls_per_turn
        refused = tuple(_one_too_many(call, most) for call in reply.tool_calls[most:])
        return CallTools(reply.tool_calls[:most], refused)

    def _next(self) -> Wish:
        if self.state.iteration >= self.limits.max_iterations:
            return self._stop("max_iterations")
        if self.state.tokens_used >= self.limits.token_budget:
            return self._stop("token_budget")
        return AskModel()

    def _stop(self, reason: DoneReason, heard: str = "") -> Finish:
        notice = STOPPED[reason]
        return Finish(reason, heard or self.said or notice, partial=True, notice=notice)


def _one_too_many(call: ToolCall, most: int) -> ToolResult:
    why = f"Not executed: at most {most} tool calls a turn. Call it again in the next turn."
    return ToolResult(call.id, call.name, why, is_error=True)
