"""Asks the policy of a run, and looks whether the run goes in circles."""

import logging
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from gateway.agent.course import Course
from gateway.agent.job import Job
from gateway.agent.voice import Voice
from gateway.agent.words import STOPS
from gateway.control.loops import Asked, digest, looked_at, signature
from gateway.control.policy import AgentState, DecisionTree
from gateway.control.trees.calls import TreeAbort
from gateway.domain.chunks import DoneReason
from gateway.domain.messages import ToolCall, ToolResult

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
