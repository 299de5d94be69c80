"""How far a run has come: its state, what it has used, what it was warned of, why it is stopped."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.agent.job import Job, add_usage
from gateway.agent.voice import Voice, warn
from gateway.agent.wishes import Moment
from gateway.agent.words import STOPS, WARNINGS, Reading, spent_reading, stop_text
from gateway.control.policy import AgentState, warning_at
from gateway.domain.agents import AgentDef, Limits
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.chunks import DoneReason
from gateway.domain.tokens import BYTES_A_TOKEN
from gateway.domain.usage import Usage

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
        self.live = 0.0  # tokens of the reply that is being heard, about
        self._calm = 0.0  # so many of them change nothing
        self._shown: int | None = None
        self._has_told_stop = False
        self.why = ""  # it is stopped, in words

    def at(self, moment: Moment) -> None:
        self.change(now=max(moment.at, self._changes.get("now", self._state.now)))

    # -- what is used

    def spend(self, usage: Usage) -> None:
        self.usage, self.live = add_usage(self.usage, usage), 0.0
        self.change(tokens_used=self.usage.total)
        self._watch_tokens()

    def hear(self, text: str) -> bool:
        """More of a reply; False if it is more than the budget allows."""
        size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        self.live += size / BYTES_A_TOKEN
        return self.live < self._calm or self._watch_tokens()

    def _watch_tokens(self) -> bool:
        most, used = self.limits.token_budget, self.usage.total
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
            run = Reading(kind, self.usage.total + int(self.live), limits.token_budget)
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
