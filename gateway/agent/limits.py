"""Limits of a run and their state: usage, warnings, the policy that is asked, and why a run stops."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from gateway.agent.effects import Job, Moment, add_usage
from gateway.agent.output import STOPS, WARNINGS, Reading, Voice, spent_reading, stop_text, warn
from gateway.control.policy import (
    AgentState,
    Asked,
    DecisionTree,
    digest,
    looked_at,
    signature,
    warning_at,
)
from gateway.control.trees.nodes import TreeAbort
from gateway.domain.agents import AgentDef, Limits
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.messages import BYTES_A_TOKEN, DoneReason, ToolCall, ToolResult, Usage

CONTEXT = "context_window"  # among the warnings of a run: it came near the window's end


def context_line(agent: AgentDef) -> int:
    """Tokens from which on the window counts as nearly full."""
    return max(1, agent.context_window * agent.context.warning_percent // 100)


class Course:
    """Of one turn. What a tree does not stop, this does."""

    def __init__(self, job: Job, voice: Voice, limits: Limits, moment: Moment) -> None:
        self._job, self._voice, self.limits = job, voice, limits
        self._state = AgentState(
            user_id=job.scope.principal,
            config=self.limits,
            start_time=moment.wall.timestamp(),
            started=moment.at,
            now=moment.at,
        )
        self._changes: dict[str, Any] = {}  # since then
        self.usage = Usage()
        self.context_tokens = 0
        self.refusal: BudgetExceeded | None = None  # nothing more may be spent
        self.asked = 0  # how often a model was asked
        self.stop_after: DoneReason | None = None  # once the turn that is at work is over
        self.sent = 0  # tokens that went in, of the call that is made right now, about
        self.live = 0.0  # tokens of the reply that is being heard, about
        self._calm = 0.0  # so many of them change nothing
        self._shown: int | None = None
        self._has_told_stop = False
        self.why = ""  # it is stopped, in words

    def at(self, moment: Moment) -> None:
        self.change(now=max(moment.at, self._changes.get("now", self._state.now)))

    # -- what is used

    def spend(self, usage: Usage) -> None:
        self.usage, self.sent, self.live = add_usage(self.usage, usage), 0, 0.0
        self.change(tokens_used=self.usage.total)
        self._watch_tokens()

    def hear(self, text: str) -> bool:
        """More of a reply; False if it is more than the budget allows."""
        size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        self.live += size / BYTES_A_TOKEN
        return self.live < self._calm or self._watch_tokens()

    @property
    def used_by_now(self) -> int:
        """With what the call in flight has taken so far."""
        return self.usage.total + self.sent + int(self.live)

    def send(self) -> None:
        """A call is made, with what the model is shown now."""
        self.sent = self.context_tokens
        self._watch_tokens()

    def _watch_tokens(self) -> bool:
        most, used = self.limits.token_budget, self.usage.total + self.sent
        warns_at = warning_at(most, self.limits.token_warning_percent)
        tokens = used + int(self.live)
        if tokens >= warns_at and not self._has_told_stop:
            self.warn("token_budget")
        self._calm = (warns_at if tokens < warns_at else most) - used
        return tokens < most

    def show_context(self) -> None:
        """Tells how full the window is, if that is another number than before."""
        most = self._job.agent.context_window
        if self.context_tokens == self._shown:
            return
        self._shown = self.context_tokens
        told = {"context_tokens": self.context_tokens, "max_context_tokens": most}
        self._voice.chunk("context_update", told)
        if self.context_tokens < context_line(self._job.agent):
            return
        if self._job.was_near:  # it was told when the line was crossed
            self.change(warnings=self.state.warnings | {CONTEXT})
        self.warn(CONTEXT)

    # -- warnings and the stop

    def reading(self, kind: str) -> Reading:
        limits, state = self.limits, self.state
        if kind == "max_iterations":
            return Reading(kind, min(state.turn + 1, limits.max_iterations), limits.max_iterations)
        if kind == "token_budget":
            run = Reading(kind, self.used_by_now, limits.token_budget)
            return run if self.refusal is None else spent_reading(self.refusal)
        if kind == "context_window":
            return Reading(kind, self.context_tokens, self._job.agent.context_window)
        if kind == "timeout":
            return Reading(kind, round(state.elapsed_seconds, 3), limits.timeout_seconds)
        if kind == "error_limit":
            return Reading(kind, state.consecutive_errors, limits.error_limit)
        return Reading(kind, limits.no_progress_repeats, limits.no_progress_repeats)

    def warn(self, kind: str) -> None:
        """Once a run."""
        if kind not in self.state.warnings:
            self.change(warnings=self.state.warnings | {kind})
            self.tell_warning(kind)

    def tell_warning(self, kind: str) -> None:
        if kind not in WARNINGS:
            self._voice.system("notice", kind)  # of a policy of somebody's own: its own words
            return
        event, text = WARNINGS[kind]
        reading = self.reading(kind)
        told = text.format(current=reading.current, limit=reading.limit)
        warn(self._voice, event, self.state.turn, told, reading)

    def terminate(self, reason: DoneReason, why: str | None = None) -> None:
        """The first reason counts; `why` is what is said of it, if that is not the usual."""
        if not self.state.is_terminal:
            self.change(termination_reason=reason)
            self.why = why or stop_text(reason, self.limits)
            self._voice.verdict("stop", self.state.turn, reason=reason)

    @property
    def reason(self) -> DoneReason | None:
        return self.state.termination_reason  # type: ignore[return-value]  # set by `terminate`

    def tell_stop(self) -> None:
        """Why it is stopped, once."""
        reason = self.reason
        if reason is None or self._has_told_stop:
            return
        self._has_told_stop = True
        said, told = STOPS[reason], self.why
        reading = self.reading(reason) if said.limit else None
        self._voice.system(said.system_type, told, reading)
        if said.event is not None and reading is not None:
            self._voice.event(said.event, reading.payload(told))

    # -- as others see it

    def view(self) -> Mapping[str, object]:
        state = self.state
        return {
            "turn": state.turn,
            "tokens_used": self.usage.total,
            "iteration_percent": round(state.iteration_percent, 1),
            "token_percent": round(100 * self.usage.total / self.limits.token_budget, 1),
            "elapsed_seconds": state.elapsed_seconds,
            "consecutive_errors": state.consecutive_errors,
            "warned": sorted(state.warnings),
            "recent_actions": list(state.recent_actions),
            "reason": state.termination_reason,
        }

    @property
    def state(self) -> AgentState:
        """As it is now: made when somebody asks, for all that has changed meanwhile."""
        if self._changes:
            self._state, self._changes = replace(self._state, **self._changes), {}
        return self._state

    def change(self, **changes: Any) -> None:
        """Also of a run that is about to end: what it has used goes on counting."""
        self._changes |= changes


log = logging.getLogger(__name__)


# Of a state, what is a policy's to change; the rest is what really happened.
OWN = ("recent_actions", "consecutive_errors", "judged", "circles", "extensions")

Answer = TypeVar("Answer")


class PolicyBroke(TreeAbort):
    """A decision tree raised something, or gave what it cannot; the run ends, and says so."""


def asked(policy: DecisionTree, method: str, kind: type[Answer], *given: object) -> Answer:
    """Raises PolicyBroke."""
    try:
        answer = getattr(policy, method)(*given)
    except Exception as error:  # a policy may be anybody's code
        log.exception("a decision tree failed", extra={"method": method})
        raise PolicyBroke(f"the decision tree failed in {method}") from error
    if not isinstance(answer, kind):
        name = type(answer).__name__
        raise PolicyBroke(f"the decision tree gave a {name} in {method}, not a {kind.__name__}")
    return answer


class Judge:
    """Of one turn."""

    def __init__(self, job: Job, policy: DecisionTree, course: Course, voice: Voice) -> None:
        self._job, self._policy, self._course, self._voice = job, policy, course, voice

    def may_continue(self) -> bool:
        """Of what it asks for to stop, a cancelling comes first; of what it does not, the limits."""
        course = self._course
        answer = asked(self._policy, "should_continue", tuple, course.state)
        match answer:
            case (bool() as may, str() as reason):
                pass
            case _:
                raise PolicyBroke(f"the decision tree gave {answer!r:.100} in should_continue")
        if course.stop_after is not None:
            course.terminate(course.stop_after)
        elif not may:
            self._stop(reason)
        elif self.exhausted is not None:
            course.terminate(self.exhausted)
        return course.reason is None

    @property
    def exhausted(self) -> DoneReason | None:
        """The limit that no policy and no tree goes beyond."""
        course = self._course
        if course.asked >= course.limits.max_iterations:
            return "max_iterations"
        return "token_budget" if course.usage.total >= course.limits.token_budget else None

    def _stop(self, reason: str) -> None:
        """A reason that only this policy has is told in its own words."""
        if reason in STOPS:
            self._course.terminate(cast(DoneReason, reason))
        else:
            self._course.terminate("cancelled", reason)

    def _judged(self, method: str, *given: object) -> None:
        before = self._course.state
        after = asked(self._policy, method, AgentState, before, *given)
        if after is before:
            return
        changes = {name: getattr(after, name) for name in OWN}
        self._course.change(**changes, warnings=before.warnings | after.warnings)
        for kind in sorted(after.warnings - before.warnings):
            self._course.tell_warning(kind)
        if after.termination_reason is not None:
            self._stop(after.termination_reason)

    def find_reason(self, failure: Mapping[str, object] | None, *, is_over: bool) -> None:
        """A loop that ended without an answer may have come to a limit: of the run, or one that the
        tree counts itself. `failure` is what failed last in the tree."""
        if is_over or self._course.reason is not None:
            return
        if self.may_continue() and failure is not None and failure["type"] == "limit":
            self._course.terminate("max_iterations")

    def start_turn(self) -> None:
        self._judged("on_turn_start")
        self._voice.event("agent.turn.started", {"turn": self._course.state.turn})

    def end_turn(self, results: Sequence[tuple[ToolCall, ToolResult]]) -> None:
        """`results` of the calls that were executed, in order."""
        for call, result in results:
            told = {
                "tool": call.name,
                "call_id": call.id,
                "signature": self.signature(call),
                "digest": digest(f"{result.is_error}{result.content}"),
                "is_error": result.is_error,
            }
            if not self._course.state.is_terminal:
                self._judged("on_tool_result", told)
                self._tell_repeat(str(told["signature"]), call.name)
        self._voice.event("agent.turn.ended", {"turn": self._course.state.turn})
        self._course.change(turn=self._course.state.turn + 1)

    def signature(self, call: ToolCall) -> str:
        return signature(call.name, call.arguments, self._job.decode)

    def refused(self, calls: Sequence[ToolCall]) -> frozenset[str]:
        """Looks whether the calls of a turn go in circles, and tells it; gives those that are not
        to be executed again. Stops a run that does not take the hint."""
        if not calls:
            return frozenset()
        limits = self._course.limits
        calls_asked = [Asked(call.id, self.signature(call)) for call in calls]
        circles, finding = looked_at(
            self._course.state.circles,
            calls_asked,
            window=limits.loop_window,
            threshold=limits.loop_threshold,
            repeats=limits.no_progress_repeats,
        )
        self._course.change(circles=circles)
        if finding.loop is not None:
            names = ", ".join(dict.fromkeys(call.name for call in calls))
            count = circles.turns.count(finding.loop)
            told = f"Loop detected: {names} with the same arguments, {count} times."
            self._tell_circle("agent.loop.detected", finding.loop, told, tools=names, count=count)
        if circles.is_stuck:
            self._course.terminate("no_progress")
        return finding.refused

    def _tell_repeat(self, mark: str, tool: str) -> None:
        """Once it has come so far that the next call would be refused."""
        most = self._course.limits.no_progress_repeats
        repeat = next(
            (one for one in self._course.state.circles.repeats if one.signature == mark), None
        )
        if repeat is None or repeat.count != most:
            return
        told = f"{tool} gave the same result {most} times. It is not executed again unchanged."
        facts = {"signature": mark, "tool": tool, "count": most, "message": told}
        self._voice.event("agent.no_progress", facts)
        if not any(mark in turn.split("|") for turn in self._course.state.circles.reported):
            self._voice.system("notice", told)

    def _tell_circle(self, event: str, mark: str, told: str, **facts: object) -> None:
        self._voice.verdict(event, self._course.state.turn, message=told)
        self._voice.system("notice", told)
        self._voice.event(event, {"signature": mark, "message": told, **facts})
