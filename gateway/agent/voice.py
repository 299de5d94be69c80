"""What a turn says: chunks to its user, events to rules and listeners, notices to its model."""

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

from gateway.agent.job import Emit, Job
from gateway.agent.wishes import Moment
from gateway.agent.words import Reading, system_chunk
from gateway.control.bus import Bus
from gateway.control.expressions import ExpressionFailed, ExpressionInvalid, compile_expression
from gateway.control.notices import MOST_WAITING, Notices, notice_chunk, told_to_model
from gateway.control.notices import Moment as Point
from gateway.control.rules import acts
from gateway.control.rules.compiling import ROOTS
from gateway.domain.chunks import Chunk, SystemType
from gateway.domain.events import Event, Severity, kind_named
from gateway.domain.notices import Notice

log = logging.getLogger(__name__)

_compiled = lru_cache(maxsize=256)(partial(compile_expression, roots=ROOTS))

LEVELS = logging.getLevelNamesMapping()


class Voice:
    """Of one turn. `moment` is the time that everything said now is said at."""

    def __init__(
        self,
        job: Job,
        emit: Emit,
        scope: Mapping[str, object],
        interrupt: Callable[[str], None],
        moment: Moment,
    ) -> None:
        self._job, self._emit, self._scope, self._interrupt = job, emit, scope, interrupt
        self.moment = moment
        self.notices = Notices()
        self.posts: list[Notice] = []  # for other sessions
        self.shown: list[tuple[SystemType, str]] = []  # what the user was told beside the answer
        self.verdicts: list[Mapping[str, object]] = []
        self.model: str | None = None  # another one, if a rule wants it
        self._without: set[str] = set()  # tools that a rule has taken away
        self._bus = Bus()
        self._bus.subscribe(self._ask_rules)
        self._bus.subscribe(job.publish)

    def chunk(self, type_: str, data: Mapping[str, object]) -> None:
        self._emit(Chunk(type_, data))  # type: ignore[arg-type]  # callers write a literal

    def system(self, system_type: SystemType, message: str, reading: Reading | None = None) -> None:
        metadata = reading.metadata() if reading else None
        self._show(system_type, system_chunk(system_type, message, self.moment.wall, metadata))

    def _show(self, system_type: SystemType, chunk: Chunk) -> None:
        self._emit(chunk)
        self.shown.append((system_type, str(chunk.data["system_message"])))

    def verdict(self, kind: str, turn: int, **facts: object) -> None:
        """What was decided about the run, for whoever inspects it."""
        self.verdicts.append({"kind": kind, "turn": turn, **facts})

    def event(
        self,
        type_: str,
        payload: Mapping[str, object],
        *,
        severity: Severity | None = None,
        source: str = "agent",
    ) -> None:
        self._bus.publish(self._event(type_, payload, severity, source))

    def farewell(self, payload: Mapping[str, object]) -> Event:
        """The end, as the rules hear it now and everybody else once it is durable."""
        event = self._event("session.end", payload, None, "agent")
        self._ask_rules(event)
        return event

    def _event(
        self, type_: str, payload: Mapping[str, object], severity: Severity | None, source: str
    ) -> Event:
        kind, scope = kind_named(type_), self._job.scope
        severity = severity or (kind.severity if kind else "info")
        at, key = self.moment.wall, scope.session_key
        return Event(type_, severity, source, at, key, scope.run_id, payload)

    def let_go(self) -> None:
        """Of everybody whom it tells something."""
        self._bus, self._scope, self._interrupt = Bus(), {}, lambda why: None

    def drain(self, point: Point, *, turn: int, tools: frozenset[str]) -> str:
        """Tells the client what is due, and gives what the model is to be told."""
        now = self.moment.wall
        due = self.notices.drain(point, turn=turn, tools=tools, now=now, holds=self._holds)
        for notice in due:
            if notice.to != "model":
                self._show("notice", notice_chunk(notice, now))
        return told_to_model(due)

    def allows(self, tool: str) -> bool:
        return tool not in self._without

    def _holds(self, text: str) -> bool:
        try:
            return _compiled(text).holds(self._scope)
        except (ExpressionInvalid, ExpressionFailed) as error:
            log.warning("a notice waits for nothing", extra={"why": str(error)})
            return True

    def _ask_rules(self, event: Event) -> None:
        for act in self._job.rules.on(event, self._scope):
            self._carry_out(act)

    def _carry_out(self, act: acts.Act) -> None:
        match act:
            case acts.Notify(notice):
                self._notify(notice)
            case acts.Log(level, message):
                log.log(LEVELS[level.upper()], "a rule says", extra={"said": message})
            case acts.Emit(type_, payload, severity):
                self.event(type_, payload, severity=severity, source="rule")
            case acts.Interrupt(why):
                self._interrupt(why)
            case acts.SetModel(model):
                self.model = model
            case acts.AddTool(name):
                self._without.discard(name)
            case acts.RemoveTool(name):
                self._without.add(name)
            case _:
                assert isinstance(act, acts.SetState)  # which the rules of the run keep themselves

    def _notify(self, notice: Notice) -> None:
        """What is for the client alone, and waits for nothing, is told at once."""
        now = self.moment.wall
        if notice.inject_at == "cross_session":
            if len(self.posts) < MOST_WAITING and self.notices.is_news(notice, now):
                self.posts.append(notice)
        elif notice.to != "client" or notice.inject_at == "deferred":
            self.notices.push(notice, now)
        elif self.notices.is_news(notice, now):
            self._show("notice", notice_chunk(notice, now))


def warn(voice: Voice, event: str, turn: int, told: str, reading: Reading) -> None:
    """Tells everybody what comes near its limit."""
    voice.verdict(event, turn, message=told)
    voice.system("limit_warning", told, reading)
    voice.event(event, reading.payload(told))
