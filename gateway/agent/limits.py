"""Limits of a run and their state: usage, warnings, the answers of its policy, and why a run stops."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields
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
from gateway.domain.messages import Chunk, DoneReason, Spent, ToolCall, ToolResult, Usage
from gateway.domain.model import ModelReply

log = logging.getLogger(__name__)

LIMITS = tuple(limit.name for limit in fields(Limits))
_limits_of = attrgetter(*LIMITS)
CONTEXT = "context_window"  # among the warnings of a run: it came near the window's end
# The fields of a state that a policy may change; the rest is what really happened.
OWN = ("recent_actions", "consecutive_errors", "judged", "circles", "extensions")
SHOWN = (*OWN, "turn", "tokens_used", "start_time", "started", "now", "is_cancelled", "warnings")

Answer = TypeVar("Answer")


class PolicyBroke(TreeAbort):
    """A decision tree raised something, or gave what it cannot; the run ends, and says so."""


def call_policy(policy: DecisionTree, method: str, kind: type[Answer], *given: object) -> Answer:
    """Raises PolicyBroke."""
    try:
        answer = getattr(policy, method)(*given)
    except Exception as error:  # a policy may be foreign code
        log.exception("decision_tree_failed", extra={"method": method})
        raise PolicyBroke(f"the decision tree failed in {method}") from error
    if not isinstance(answer, kind):
        name = type(answer).__name__
        raise PolicyBroke(f"the decision tree gave a {name} in {method}, not a {kind.__name__}")
    return answer


def plain_limits(limits: Limits) -> dict[str, object]:
    """The limits by name."""
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
    """Usage and limits of one run, and why it stops. A tree cannot lift these limits.

    It has the fields of an AgentState. The default policy reads them here; every other policy gets a snapshot."""

    project_id = "default"
    turn = 0  # turns that are over
    tokens_used = 0
    is_cancelled = False
    recent_actions: tuple[str, ...] = ()
    warnings: frozenset[str] = frozenset()
    consecutive_errors = 0
    judged = (-1, False)
    circles = LoopState()
    extensions: Mapping[str, object] = {}

    reason: DoneReason | None = None  # it is stopped
    why = ""  # in words
    stop_after: DoneReason | None = None  # at the end of the turn that is at work
    refusal: BudgetExceeded | None = None  # nothing more may be spent
    usage = Usage()
    context_tokens = 0
    asked = 0  # how often a model was asked
    sent = 0  # estimated tokens of the request that is being answered
    live = 0.0  # estimated tokens of the reply so far
    calm = 0.0  # `live` changes nothing as long as it is below this
    shown: int | None = None  # context tokens that the user was shown last
    _is_stop_sent = False

    def __init__(self, job: Job, output: Output, moment: Moment) -> None:
        """Raises PolicyBroke."""
        self._job, self._output, self._agent = job, output, job.agent
        self._policy, self.limits = job.decision(job.agent.limits), job.agent.limits
        self._is_foreign = type(self._policy) is not DefaultDecisionTree
        if self._is_foreign:
            self.limits = tighten(self.limits, call_policy(self._policy, "get_config", Limits))
        self.start_time, self.started, self.now = moment.wall.timestamp(), moment.at, moment.at
        self._warns_at = warning_at(self.limits.token_budget, self.limits.token_warning_percent)

    def snapshot(self) -> AgentState:
        """The state as it is now, for a policy that is not the default one."""
        shown = {name: getattr(self, name) for name in SHOWN}
        user, reason = self._job.scope.principal, self.reason
        return AgentState(user_id=user, config=self.limits, termination_reason=reason, **shown)

    def evolve(self, **changes: object) -> AgentState:
        """The next state, like AgentState.evolve."""
        return self.snapshot().evolve(**changes)

    def view(self) -> dict[str, object]:
        """The root `state` of rules and trees, and what an inspection shows."""
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
        """Counts what a model used, and tells it to the user."""
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
        """Warns when tokens come near the budget; False if they are beyond it."""
        most, used = self.limits.token_budget, self.tokens_used + self.sent
        tokens = used + int(self.live)
        if tokens >= self._warns_at and not self._is_stop_sent:
            self.warn("token_budget")
        self.calm = (self._warns_at if tokens < self._warns_at else most) - used
        return tokens < most

    def show_context(self) -> None:
        """Tells the user how full the window is, if that has changed."""
        tokens, agent = self.context_tokens, self._agent
        if tokens == self.shown:
            return
        self.shown = tokens
        shown = {"context_tokens": tokens, "max_context_tokens": agent.context_window}
        self._output.emit(Chunk("context_update", shown))
        if tokens < self._job.near_at:
            return
        if self._job.was_near:  # the run before has warned of it
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
        """Warns once a run."""
        if kind in self.warnings:
            return
        self.warnings |= {kind}
        if kind in WARNINGS:
            event, text = WARNINGS[kind]
            reading = self.reading(kind)
            message = text.format(current=reading.current, limit=reading.limit)
            self._output.warn(event, self.turn, message, reading)
        else:
            self._output.system("notice", kind)  # a foreign policy's own words

    def terminate(self, reason: DoneReason, why: str | None = None) -> None:
        """Stops the run. The first reason counts; `why` replaces its usual text."""
        if self.reason is None:
            self.reason, self.why = reason, why or stop_text(reason, self.limits)
            self._output.verdict("stop", self.turn, reason=reason)

    def report_stop(self) -> None:
        """Tells once why the run is stopped."""
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
        """Asks the policy whether another turn may begin. A cancel comes before its answer, limits after it."""
        seen = self.snapshot() if self._is_foreign else self
        answer = call_policy(self._policy, "should_continue", tuple, seen)
        match answer:
            case (bool() as may, str() as reason):
                pass
            case _:
                raise PolicyBroke(f"the decision tree gave {answer!r:.100} in should_continue")
        limit = self.exhausted
        if self.stop_after is not None:
            self.terminate(self.stop_after)
        elif not may:
            self._stop(reason)
        elif limit is not None:
            self.terminate(limit)
        return self.reason is None

    def may_ask(self, more: int) -> bool:
        """Whether a model may be asked, with so many tokens more than it is shown now."""
        reason = self.stop_after or self.exhausted
        room = self.limits.token_budget - self.tokens_used - self.context_tokens
        if reason is None and room <= more:
            reason = "token_budget"
        if reason is not None:
            self.terminate(reason)
        return self.reason is None

    @property
    def exhausted(self) -> DoneReason | None:
        """The limit that no policy and no tree goes beyond."""
        if self.asked >= self.limits.max_iterations:
            return "max_iterations"
        return "token_budget" if self.tokens_used >= self.limits.token_budget else None

    def _stop(self, reason: str) -> None:
        """Stops for a policy. A reason of its own keeps its words."""
        if reason in STOPS:
            self.terminate(cast(DoneReason, reason))
        else:
            self.terminate("cancelled", reason)

    def ask_policy(self, method: str, *given: object) -> None:
        """Lets the policy change the fields that are its own."""
        before = self.snapshot() if self._is_foreign else self
        after = call_policy(self._policy, method, object, before, *given)
        if after is before:
            return
        if not isinstance(after, AgentState):
            name = type(after).__name__
            raise PolicyBroke(f"the decision tree gave a {name} in {method}, not a AgentState")
        for name in OWN:
            setattr(self, name, getattr(after, name))
        for kind in sorted(after.warnings):
            self.warn(kind)
        if after.termination_reason is not None:
            self._stop(after.termination_reason)

    def end_turn(self, results: Sequence[tuple[ToolCall, ToolResult]]) -> None:
        """`results` of the calls that were executed, in order."""
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

    def refused(self, calls: Sequence[ToolCall]) -> frozenset[str]:
        """Looks whether the calls of a turn repeat earlier ones, and tells it; returns those that are not
        to be executed again. Stops a run that goes on all the same."""
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
        """Tells that the next call of this kind will be refused, once that is so."""
        most = self.limits.no_progress_repeats
        if not any(one.signature == mark and one.count == most for one in self.circles.repeats):
            return
        message = f"{tool} gave the same result {most} times. It is not executed again unchanged."
        facts = {"signature": mark, "tool": tool, "count": most, "message": message}
        self._output.event("agent.no_progress", facts)
        if not any(mark in turn.split("|") for turn in self.circles.reported):
            self._output.system("notice", message)
