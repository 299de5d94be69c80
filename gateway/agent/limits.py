"""The limits of a run and their state: usage, warnings, answers of the policy, and the reason of a stop; and the
window of its model, into which each request has to fit."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import TypeVar, cast

from gateway.agent.effects import Job, Moment
from gateway.agent.output import STOPS, WARNINGS, LimitReading, Output, spent_reading, stop_text
from gateway.control.policy import (
    AgentState,
    DecisionTree,
    DefaultDecisionTree,
    LoopState,
    digest,
    signature,
    tighten,
    warning_at,
)
from gateway.control.trees.nodes import TreeAbort
from gateway.domain.agents import Limits
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import TooLarge
from gateway.domain.messages import (
    Chunk,
    DoneReason,
    Excerpt,
    Message,
    Spent,
    ToolCall,
    ToolResult,
    Usage,
    estimate_tokens,
)
from gateway.domain.model import ModelReply, ModelRequest
from gateway.memory.context import (
    HEAD,
    SUMMARY_OPENING,
    TAIL,
    Context,
    message_tokens,
    reply_room,
    tool_tokens,
)

log = logging.getLogger(__name__)


# --- limits --------------------------------------------------------------------------------------
LIMITS = tuple(limit.name for limit in fields(Limits))
_limits_of = attrgetter(*LIMITS)
CONTEXT = "context_window"  # the warning that the context window is nearly full
# The fields of a state that a policy may change. The other fields are facts.
OWN = ("recent_actions", "consecutive_errors", "judged", "circles", "extensions")
SHOWN = (*OWN, "turn", "tokens_used", "start_time", "started", "now", "is_cancelled", "warnings")

Answer = TypeVar("Answer")


class PolicyBroke(TreeAbort):
    """A decision tree raised an error or returned an invalid value. The run ends with that reason."""


def call_policy(policy: DecisionTree, method: str, kind: type[Answer], *given: object) -> Answer:
    """Calls a method of the policy. Raises PolicyBroke."""
    try:
        answer = getattr(policy, method)(*given)
    except Exception as error:  # a policy may be foreign code
        log.exception("decision_tree_failed", extra={"method": method})
        raise PolicyBroke(f"the decision tree failed in {method}") from error
    if not isinstance(answer, kind):
        name = type(answer).__name__
        raise PolicyBroke(f"{method} of the decision tree returned {name}, not {kind.__name__}")
    return answer


def plain_limits(limits: Limits) -> dict[str, object]:
    """Returns the limits by name."""
    return dict(zip(LIMITS, _limits_of(limits), strict=True))


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


class RunState:
    """Usage and limits of one run, and the reason of its stop. A tree cannot lift these limits.

    It has the fields of an AgentState. The default policy reads them here; other policies get a snapshot."""

    project_id = "default"
    turn = 0  # finished turns
    tokens_used = 0
    is_cancelled = False
    recent_actions: tuple[str, ...] = ()
    warnings: frozenset[str] = frozenset()
    consecutive_errors = 0
    judged = (-1, False)
    circles = LoopState()
    extensions: Mapping[str, object] = {}

    reason: DoneReason | None = None  # set once the run is stopped
    why = ""  # the reason in words
    stop_after: DoneReason | None = None  # stops the run at the end of the current turn
    refusal: BudgetExceeded | None = None  # set once a budget refused a call
    usage = Usage()
    context_tokens = 0
    asked = 0  # questions to a model
    sent = 0  # estimated tokens of the open request
    live = 0.0  # estimated tokens of its reply so far
    calm = 0.0  # below this value of `live` there is nothing to check
    shown: int | None = None  # context tokens in the last chunk for the user
    _is_stop_sent = False

    def __init__(self, job: Job, output: Output, moment: Moment) -> None:
        """Asks another policy for its limits. Raises PolicyBroke."""
        self._job, self._output, self._agent = job, output, job.agent
        self._policy, self.limits = job.decision(job.agent.limits), job.agent.limits
        self._is_foreign = type(self._policy) is not DefaultDecisionTree
        if self._is_foreign:
            self.limits = tighten(self.limits, call_policy(self._policy, "get_config", Limits))
        self.start_time, self.started, self.now = moment.wall.timestamp(), moment.at, moment.at
        self._warns_at = warning_at(self.limits.token_budget, self.limits.token_warning_percent)

    def snapshot(self) -> AgentState:
        """Returns the state for a policy other than the default one."""
        shown = {name: getattr(self, name) for name in SHOWN}
        user, reason = self._job.scope.principal, self.reason
        return AgentState(user_id=user, config=self.limits, termination_reason=reason, **shown)

    def evolve(self, **changes: object) -> AgentState:
        """Returns the next state, like AgentState.evolve."""
        return self.snapshot().evolve(**changes)

    def view(self) -> dict[str, object]:
        """Returns the root `state` of rules and trees, which `run.inspect` shows too."""
        limits = self.limits
        return {
            "turn": self.turn,
            "tokens_used": self.tokens_used,
            "iteration_percent": round(100 * self.turn / limits.max_iterations, 1),
            "token_percent": round(100 * self.tokens_used / limits.token_budget, 1),
            "elapsed_seconds": self.now - self.started,
            "consecutive_errors": self.consecutive_errors,
            "warned": sorted(self.warnings),
            "recent_actions": list(self.recent_actions),
            "reason": self.reason,
        }

    # -- usage

    def spend(self, spent: ModelReply | Spent) -> None:
        """Counts the usage of a model, and sends it to the user."""
        usage = spent.usage
        shown = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": usage.cost_usd,
            "model": spent.model,
            "provider": spent.provider,
            "estimated": usage.estimated,
        }
        self._output.emit(Chunk("usage", shown))
        self.usage, self.sent, self.live = add_usage(self.usage, usage), 0, 0.0
        self.tokens_used = self.usage.total
        self.watch_tokens()

    def watch_tokens(self) -> bool:
        """Warns if the tokens come near the budget. Returns False if they exceed it."""
        most, used = self.limits.token_budget, self.tokens_used + self.sent
        tokens = used + int(self.live)
        if tokens >= self._warns_at and not self._is_stop_sent:
            self.warn("token_budget")
        self.calm = (self._warns_at if tokens < self._warns_at else most) - used
        return tokens < most

    def show_context(self) -> None:
        """Sends the user the fill of the context window, if it has changed."""
        tokens, agent = self.context_tokens, self._agent
        if tokens == self.shown:
            return
        self.shown = tokens
        shown = {"context_tokens": tokens, "max_context_tokens": agent.context_window}
        self._output.emit(Chunk("context_update", shown))
        if tokens < self._job.near_at:
            return
        if self._job.was_near:  # the run before has warned
            self.warnings |= {CONTEXT}
        self.warn(CONTEXT)

    # -- warnings and the stop

    def reading(self, kind: str) -> LimitReading:
        limits, run = self.limits, self.tokens_used + self.sent + int(self.live)
        if kind == "token_budget" and self.refusal is not None:
            return spent_reading(self.refusal)
        current, limit = {
            "max_iterations": (min(self.turn + 1, limits.max_iterations), limits.max_iterations),
            "token_budget": (run, limits.token_budget),
            "context_window": (self.context_tokens, self._agent.context_window),
            "timeout": (round(self.now - self.started, 3), limits.timeout_seconds),
            "error_limit": (self.consecutive_errors, limits.error_limit),
            "no_progress": (limits.no_progress_repeats, limits.no_progress_repeats),
        }[kind]
        return LimitReading(kind, current, limit)

    def warn(self, kind: str) -> None:
        """Warns of a limit, once a run."""
        if kind in self.warnings:
            return
        self.warnings |= {kind}
        if kind in WARNINGS:
            event, text = WARNINGS[kind]
            reading = self.reading(kind)
            message = text.format(current=reading.current, limit=reading.limit)
            self._output.warn(event, self.turn, message, reading)
        else:
            self._output.system("notice", kind)  # a foreign policy uses its own words

    def terminate(self, reason: DoneReason, why: str | None = None) -> None:
        """Stops the run, unless it is stopped already. `why` replaces the usual text of the reason."""
        if self.reason is None:
            self.reason, self.why = reason, why or stop_text(reason, self.limits)
            self._output.verdict("stop", self.turn, reason=reason)

    def report_stop(self) -> None:
        """Sends the reason of the stop, once."""
        reason = self.reason
        if reason is None or self._is_stop_sent:
            return
        self._is_stop_sent = True
        system_type, limit, event = STOPS[reason]
        reading = self.reading(reason) if limit else None
        self._output.system(system_type, self.why, reading)
        if event is not None and reading is not None:
            self._output.event(event, reading.payload(self.why))

    # -- the policy

    def may_continue(self) -> bool:
        """Asks the policy whether another turn may begin. A cancel outranks its answer, and its answer
        outranks the limits."""
        seen = self.snapshot() if self._is_foreign else self
        answer = call_policy(self._policy, "should_continue", tuple, seen)
        match answer:
            case (bool() as may, str() as reason):
                pass
            case _:
                raise PolicyBroke(f"should_continue of the decision tree returned {answer!r:.100}")
        limit = self.exhausted
        if self.stop_after is not None:
            self.terminate(self.stop_after)
        elif not may:
            self._stop(reason)
        elif limit is not None:
            self.terminate(limit)
        return self.reason is None

    def may_ask(self, more: int) -> bool:
        """True if a model may be asked, with `more` tokens than the context has now."""
        reason = self.stop_after or self.exhausted
        room = self.limits.token_budget - self.tokens_used - self.context_tokens
        if reason is None and room <= more:
            reason = "token_budget"
        if reason is not None:
            self.terminate(reason)
        return self.reason is None

    @property
    def exhausted(self) -> DoneReason | None:
        """Returns the exceeded limit that no policy and no tree can lift."""
        if self.asked >= self.limits.max_iterations:
            return "max_iterations"
        return "token_budget" if self.tokens_used >= self.limits.token_budget else None

    def _stop(self, reason: str) -> None:
        """Stops the run for a policy, which may have a reason of its own."""
        if reason in STOPS:
            self.terminate(cast(DoneReason, reason))
        else:
            self.terminate("cancelled", reason)

    def ask_policy(self, method: str, *given: object) -> None:
        """Lets the policy change its own fields."""
        before = self.snapshot() if self._is_foreign else self
        after = call_policy(self._policy, method, object, before, *given)
        if after is before:
            return
        if not isinstance(after, AgentState):
            name = type(after).__name__
            raise PolicyBroke(f"{method} of the decision tree returned {name}, not AgentState")
        for name in OWN:
            setattr(self, name, getattr(after, name))
        for kind in sorted(after.warnings):
            self.warn(kind)
        if after.termination_reason is not None:
            self._stop(after.termination_reason)

    def end_turn(self, results: Sequence[tuple[ToolCall, ToolResult]]) -> None:
        """Ends a turn. `results` holds the executed calls in order."""
        for call, result in results:
            mark = signature(call.name, call.arguments)
            facts = {
                "tool": call.name,
                "call_id": call.id,
                "signature": mark,
                "digest": digest(f"{result.is_error}{result.content}"),
                "is_error": result.is_error,
            }
            if self.reason is None:
                self.ask_policy("on_tool_result", facts)
                self._report_repeat(mark, call.name)
        self._output.event("agent.turn.ended", {"turn": self.turn})
        self.turn += 1

    # -- loops

    def refuse_repeats(self, calls: Sequence[ToolCall]) -> frozenset[str]:
        """Reports calls that repeat earlier ones, and stops a run that continues to repeat them. Returns
        the ids of calls that must not be executed again."""
        if not calls:
            return frozenset()
        marks = {one.id: signature(one.name, one.arguments) for one in calls}
        self.circles, loop, refused = self.circles.after_calls(marks, self.limits)
        if loop is not None:
            names = ", ".join(dict.fromkeys(call.name for call in calls))
            count = self.circles.turns.count(loop)
            message = f"Loop detected: {names} with the same arguments, {count} times."
            facts = {"signature": loop, "message": message, "tools": names, "count": count}
            self._output.verdict("agent.loop.detected", self.turn, message=message)
            self._output.system("notice", message)
            self._output.event("agent.loop.detected", facts)
        if self.circles.is_stuck:
            self.terminate("no_progress")
        return refused

    def _report_repeat(self, mark: str, tool: str) -> None:
        """Warns that the next equal call will be refused."""
        most = self.limits.no_progress_repeats
        if not any(one.signature == mark and one.count == most for one in self.circles.repeats):
            return
        message = f"{tool} gave the same result {most} times. It is not executed again unchanged."
        facts = {"signature": mark, "tool": tool, "count": most, "message": message}
        self._output.event("agent.no_progress", facts)
        if not any(mark in turn.split("|") for turn in self.circles.reported):
            self._output.system("notice", message)


# --- the window ----------------------------------------------------------------------------------
SLACK = 400  # tokens of the tool `result`, which may be offered in addition


def fit(request: ModelRequest, context: Context, window: int) -> ModelRequest:
    """Returns a request that fits the window. It leaves out, until the rest fits: facts and recalled turns,
    the oldest exchanges, the summary; then the middle of this turn's results, the oldest first. Raises
    TooLarge."""
    request = replace(request, max_tokens=reply_room(request.max_tokens, window))
    system, tools = estimate_tokens(request.system), sum(map(tool_tokens, request.tools))
    messages = list(request.messages)
    excess = request.max_tokens + system + tools + sum(map(message_tokens, messages)) - window
    for optional in _optional(context):
        if excess <= 0:
            break
        ids = set(map(id, optional))
        excess -= sum(message_tokens(one) for one in messages if id(one) in ids)
        messages = [one for one in messages if id(one) not in ids]
    excess = _shorten(messages, context, excess)
    if excess > 0:
        fixed = {"the system text": system, "the list of tools": tools}
        raise _too_large(request, messages, context, window, fixed)
    return replace(request, messages=tuple(messages))


def _optional(context: Context) -> Iterator[Sequence[Message]]:
    """Yields groups of messages in the order in which they are left out. Unanswered questions at the end
    of the history stay."""
    if context.memory is not None:
        yield [context.memory]
    summary = [one for one in context.history[:1] if one.text.startswith(SUMMARY_OPENING)]
    exchanges: list[list[Message]] = []
    before = "assistant"
    for message in context.history[len(summary) :]:
        if message.role == "user" and before == "assistant":
            exchanges.append([])
        if exchanges:
            exchanges[-1].append(message)
        before = message.role
    yield from (one for one in exchanges if one[-1].role == "assistant")
    yield summary


def _shorten(messages: list[Message], context: Context, excess: int) -> int:
    """Shortens results of this turn, the oldest first, until they fit. Returns the remaining excess."""
    old = set(map(id, context.history))
    for place, one in enumerate(messages):
        result = one.result
        if excess <= 0:
            break
        if result is None or id(one) in old or len(result.content) <= HEAD + TAIL + 100:
            continue
        known = result.excerpt or Excerpt(0, 0, len(result.content))
        result = replace(result, excerpt=replace(known, head=HEAD, tail=TAIL))
        messages[place] = replace(one, result=result, kept={})
        excess -= message_tokens(one) - message_tokens(messages[place])
    return excess


def _too_large(
    request: ModelRequest,
    messages: Sequence[Message],
    context: Context,
    window: int,
    fixed: Mapping[str, int],
) -> TooLarge:
    """Makes the error, which names the largest part of the request."""
    kept = {id(context.question), *map(id, context.history)}
    question = sum(message_tokens(one) for one in messages if id(one) in kept)
    parts = {"the question": question, **fixed}
    for one in messages:
        if id(one) in kept:
            continue
        name = "what was said in this run"
        if one.result is not None:
            name = f"what the tool {one.result.name[:64]} gave in this run"
        parts[name] = parts.get(name, 0) + message_tokens(one)
    largest = max(parts, key=lambda name: parts[name])
    what = (
        f"{largest} is {parts[largest]:,} tokens, the window of {request.model} is {window:,}, of "
        f"which {request.max_tokens:,} are for the reply"
    )
    return TooLarge(request.provider, what)
