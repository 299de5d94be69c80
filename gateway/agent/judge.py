"""Asks the policy of a run, and looks whether the run goes in circles."""

import logging
from collections.abc import Sequence
from typing import Any

from gateway.agent.course import Course
from gateway.agent.job import Job
from gateway.agent.voice import Voice
from gateway.agent.words import STOPS
from gateway.control.loops import Asked, digest, looked_at, signature
from gateway.control.policy import DecisionTree
from gateway.domain.chunks import DoneReason
from gateway.domain.errors import GatewayError
from gateway.domain.messages import ToolCall, ToolResult

log = logging.getLogger(__name__)


class PolicyBroke(GatewayError):
    """A decision tree raised something; the run ends, and says so."""


def asked(policy: DecisionTree, method: str, *given: object) -> Any:
    """Raises PolicyBroke."""
    try:
        return getattr(policy, method)(*given)
    except Exception as error:  # a policy may be anybody's code
        log.exception("a decision tree failed", extra={"method": method})
        raise PolicyBroke(f"the decision tree failed in {method}") from error


class Judge:
    """Of one turn."""

    def __init__(self, job: Job, policy: DecisionTree, course: Course, voice: Voice) -> None:
        self._job, self._policy, self._course, self._voice = job, policy, course, voice

    def may_continue(self) -> bool:
        may, reason = asked(self._policy, "should_continue", self._course.state)
        if not may:
            known: DoneReason = reason if reason in STOPS else "cancelled"
            self._course.terminate(self._course.stop_after or known)
        return bool(may)

    def find_reason(self, *, is_over: bool) -> None:
        """A loop that ended without an answer may have come to a limit by its own count."""
        if not is_over and self._course.reason is None:
            self.may_continue()

    def start_turn(self) -> None:
        before = self._course.state.warnings
        self._course.state = asked(self._policy, "on_turn_start", self._course.state)
        for kind in sorted(self._course.state.warnings - before):
            self._course.tell_warning(kind)
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
                self._course.state = asked(self._policy, "on_tool_result", self._course.state, told)
                self._tell_repeat(str(told["signature"]), call.name)
        self._voice.event("agent.turn.ended", {"turn": self._course.state.turn})
        self._course.change(turn=self._course.state.turn + 1)

    def signature(self, call: ToolCall) -> str:
        return signature(call.name, call.arguments, self._job.decode)

    def refused(self, calls: Sequence[ToolCall]) -> frozenset[str]:
        """Looks whether the calls of a turn go in circles, and tells it; gives those that are not
        to be executed again. Stops a run that does not take the hint."""
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
