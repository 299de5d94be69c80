"""The output of a turn: chunks to the user, events to rules and listeners, notices to the model, and their texts.

An event is built only if a rule of the run or a listener wants its type."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple

from gateway.agent.effects import Emit, Job, Moment
from gateway.control import rules as acts
from gateway.control.expressions import ExpressionFailed, ExpressionInvalid, compile_expression
from gateway.control.notices import MAX_NOTICES as MOST_WAITING
from gateway.control.notices import Bus, Notices, notice_block, notice_chunk
from gateway.control.notices import Moment as Point
from gateway.control.rules import ROOTS, RunRules
from gateway.domain.agents import Limits
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import FailureKind
from gateway.domain.events import Event, Notice, Severity, kind_named
from gateway.domain.messages import Chunk, DoneReason, SystemType
from gateway.domain.model import BudgetWarning

EMPTY = "The model gave an empty answer."
DEFECT = "Something went wrong inside the gateway; the operator finds it in the log."
NO_END = "The agent's tree ended without an answer; the operator finds the reason in the log."
OVERRUN = "The model service ({provider}) wrote more than was reserved for it and was cut off."
SKIPPED = "Skipped due to queued user message."
TAKEN_AWAY = "Not executed: this tool is not available any more in this run."
NOT_EXECUTED = "Not executed: the run went on without it."
CUT_OFF = (
    "Cut off when the gateway stopped: it may have been carried out all the same. Look before you "
    "call it again."
)
INTERRUPTED = "Interrupted: whether it took effect is not known."

# The texts for the user after a failure of the model. They never hold a provider's own words.
BROKEN: Mapping[FailureKind, str] = {
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
    "unmetered": "The gateway cannot keep its accounts at the moment, so no model was asked. Try again later.",
    "unpriced": "The model service ({provider}) was not asked: its model has no price, and a budget in USD holds. The operator has to add it.",
    "refused_key": "There is no key for the model service ({provider}). The operator has to add it.",
}


@dataclass(frozen=True, slots=True)
class LimitReading:
    """A value and its limit."""

    limit_type: str
    current: float
    limit: float
    facts: Mapping[str, object] = field(default_factory=dict)  # more fields

    @property
    def percent(self) -> float:
        return round(100 * self.current / self.limit, 1) if self.limit else 100.0

    def payload(self, message: str) -> Mapping[str, object]:
        """Returns the fields of an event."""
        values = {"current": self.current, "max": self.limit, "percent": self.percent}
        return {**values, "message": message, "limit_type": self.limit_type, **self.facts}

    def metadata(self) -> Mapping[str, object]:
        """Returns the fields of a chunk."""
        values = {"current_value": self.current, "limit_value": self.limit, "percent": self.percent}
        return {**values, "limit_type": self.limit_type, **self.facts}


class StopKind(NamedTuple):
    """The chunk, limit and event of a reason to stop."""

    system_type: SystemType
    limit: str | None = None  # a field of Limits
    event: str | None = None


STOPS: Mapping[DoneReason, StopKind] = {
    "max_iterations": StopKind("limit_reached", "max_iterations", "budget.iteration.exceeded"),
    "token_budget": StopKind("limit_reached", "token_budget", "budget.token.exceeded"),
    "timeout": StopKind("limit_reached", "timeout_seconds"),
    "no_progress": StopKind("no_progress", "no_progress_repeats"),
    "error_limit": StopKind("error_limit", "error_limit"),
    "cancelled": StopKind("notice"),
    "superseded": StopKind("notice"),
}
STOP_TEXTS: Mapping[DoneReason, str] = {
    "max_iterations": "Maximum iterations reached. Saving partial response.",
    "token_budget": "Token budget reached. Saving partial response.",
    "timeout": "Time limit reached. Saving partial response.",
    "no_progress": "No progress detected - same action attempted {limit} times.",
    "error_limit": "Tool calls failed in {limit} turns in a row. Saving partial response.",
    "cancelled": "Cancelled by user",
    "superseded": "A newer message took the place of this one.",
}

# Warnings by limit: the type of the event, and the text for the user.
_WRAP_UP = "({current}/{limit}). Consider wrapping up."
_WINDOW = "Approaching the model's context window ({current}/{limit} tokens)."
WARNINGS: Mapping[str, tuple[str, str]] = {
    "max_iterations": ("budget.iteration.warning", f"Approaching iteration limit {_WRAP_UP}"),
    "token_budget": ("budget.token.warning", f"Approaching token budget {_WRAP_UP}"),
    "context_window": ("context.approaching_limit", _WINDOW),
}


def stop_text(reason: DoneReason, limits: Limits) -> str:
    limit = STOPS[reason].limit
    return STOP_TEXTS[reason].format(limit=getattr(limits, limit) if limit else "")


def spent_reading(refusal: BudgetExceeded) -> LimitReading:
    """Returns the reading of a budget beyond the run."""
    return LimitReading(f"budget.{refusal.scope}", refusal.taken, refusal.limit, refusal.facts)


def budget_warning(warning: BudgetWarning) -> tuple[str, LimitReading]:
    """Returns the text for the user, and the reading."""
    facts = {"scope": warning.scope, "unit": warning.unit}
    reading = LimitReading(f"budget.{warning.scope}", warning.used, warning.limit, facts)
    unit = "tokens" if warning.unit == "tokens" else "USD"
    text = f"{reading.percent:g} % of the {warning.scope} budget is used"
    return f"{text} ({warning.used}/{warning.limit} {unit}).", reading


log = logging.getLogger(__name__)

_compiled = lru_cache(maxsize=256)(partial(compile_expression, roots=ROOTS))

LEVELS = logging.getLevelNamesMapping()


class Output:
    """The output of one turn. `moment` is the time of all output."""

    def __init__(
        self,
        job: Job,
        emit: Emit,
        variables: Mapping[str, object],
        interrupt: Callable[[str], None],
        moment: Moment,
    ) -> None:
        self._job, self.emit, self._variables, self._interrupt = job, emit, variables, interrupt
        self.moment = moment
        self.notices = Notices()
        self.posts: list[Notice] = []  # for other sessions
        self.shown: list[tuple[SystemType, str]] = []  # system chunks, in order
        self.verdicts: list[Mapping[str, object]] = []
        self.model: str | None = None  # chosen by a rule
        self.without: set[str] = set()  # tools that a rule has removed
        self._rules: RunRules | None = None  # made for the first event that a rule wants
        self.kept: Mapping[str, object] | None = None  # new state of the rules; None: unchanged
        self._bus: Bus | None = None  # made for the first event that a rule wants
        self._is_over = False

    # -- to the user

    def system(
        self, system_type: SystemType, message: str, reading: LimitReading | None = None
    ) -> None:
        data = {
            "system_type": system_type,
            "system_message": message,
            "metadata": reading.metadata() if reading else {},
            "timestamp": self.moment.wall,
        }
        self._show(system_type, Chunk("system", data))

    def _show(self, system_type: SystemType, chunk: Chunk) -> None:
        self.emit(chunk)
        self.shown.append((system_type, str(chunk.data["system_message"])))

    def verdict(self, kind: str, turn: int, **facts: object) -> None:
        """Keeps a decision about the run for `run.inspect`."""
        self.verdicts.append({"kind": kind, "turn": turn, **facts})

    def warn(self, event: str, turn: int, message: str, reading: LimitReading) -> None:
        """Warns user, rules and listeners that a value comes near its limit."""
        self.verdict(event, turn, message=message)
        self.system("limit_warning", message, reading)
        self.event(event, reading.payload(message))

    # -- to rules and listeners

    def event(
        self,
        type_: str,
        payload: Mapping[str, object],
        *,
        severity: Severity | None = None,
        source: str = "agent",
    ) -> None:
        """Publishes an event. Events that rules cause come after it, for every listener."""
        job, bus = self._job, self._bus
        is_ruled = bool(job.rules.by_event[type_])
        if self._is_over or not (is_ruled or bus or job.hears(type_)):
            return
        kind = kind_named(type_)
        severity = severity or (kind.severity if kind else "info")
        run = (job.scope.session_key, job.scope.run_id)
        event = Event(type_, severity, source, self.moment.wall, *run, payload)
        if bus is None and is_ruled:
            bus = self._bus = Bus()
            bus.subscribe(self._ask_rules)
            bus.subscribe(job.publish)
        (job.publish if bus is None else bus.publish)(event)

    def finish(self, payload: Mapping[str, object]) -> Event:
        """Passes the event of the end to the rules, and returns it for the listeners, who get it once the
        end is durable. Ends the output, and drops the references to the turn, so that it is freed at once."""
        scope, at = self._job.scope, self.moment.wall
        run = (scope.session_key, scope.run_id)
        event = Event("session.end", "info", "agent", at, *run, payload)
        if self._job.rules.by_event[event.type]:
            self._ask_rules(event)
        self._bus, self._variables, self._interrupt = None, {}, lambda why: None
        self._is_over = True
        return event

    def _ask_rules(self, event: Event) -> None:
        job, rules = self._job, self._rules
        if rules is None:
            rules = self._rules = RunRules(job.rules, only=job.agent.rules, kept=job.kept)
        for act in rules.on(event, self._variables):
            self._apply(act)
        self.kept = rules.kept

    def _apply(self, act: acts.Act) -> None:
        values = act.values
        match act.kind:  # RunRules keeps the state that rules set
            case "notify":
                self._notify(values["notice"])
            case "log":
                level = LEVELS[values["level"].upper()]
                log.log(level, "rule_logged", extra={"said": values["message"]})
            case "emit_event":
                severity = values["severity"]
                self.event(values["type"], values["payload"], severity=severity, source="rule")
            case "interrupt":
                self._interrupt(values["why"])
            case "set_model":
                self.model = values["model"]
            case "add_tool":
                self.without.discard(values["name"])
            case "remove_tool":
                self.without.add(values["name"])

    # -- to the model

    def drain(self, point: Point, tools: frozenset[str]) -> str:
        """Shows the due notices to the client. Returns the text for the model."""
        now, turn = self.moment.wall, self.notices.turn
        due = self.notices.drain(point, turn=turn, tools=tools, now=now, holds=self._holds)
        for notice in due:
            if notice.to != "model":
                self._show("notice", notice_chunk(notice, now))
        return notice_block(due)

    def _holds(self, text: str) -> bool:
        try:
            return _compiled(text).holds(self._variables)
        except (ExpressionInvalid, ExpressionFailed) as error:
            log.warning("notice_refused", extra={"why": str(error)})
            return True

    def _notify(self, notice: Notice) -> None:
        """Queues a notice. A notice for the client alone that is not deferred is shown at once."""
        now = self.moment.wall
        if notice.inject_at == "cross_session":
            if len(self.posts) < MOST_WAITING and self.notices.is_new(notice, now):
                self.posts.append(notice)
        elif notice.to != "client" or notice.inject_at == "deferred":
            self.notices.push(notice, now)
        elif self.notices.is_new(notice, now):
            self._show("notice", notice_chunk(notice, now))
