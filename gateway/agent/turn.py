"""One turn of an agent: a behaviour tree that is told what happened and answers with wishes.

A turn never waits and has no time of its own: whoever drives it grants its wishes and tells it so.
A turn that was cut short is resumed by telling a new one the same story again.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

from gateway.agent.course import Course
from gateway.agent.exchange import Exchange, number
from gateway.agent.job import Emit, Job, with_last_word
from gateway.agent.judge import Judge, PolicyBroke, asked
from gateway.agent.reins import Said
from gateway.agent.round import Round
from gateway.agent.sight import Sight, views
from gateway.agent.voice import Voice
from gateway.agent.wishes import (
    CallTool,
    Cancel,
    End,
    Fail,
    Finish,
    ModelBroke,
    ModelReplied,
    Moment,
    Stopped,
    Ticked,
    Told,
    ToolReturned,
    Wish,
)
from gateway.agent.words import BROKEN, DEFECT, EMPTY, NO_END, SKIPPED, TAKEN_AWAY, spent_reading
from gateway.control.policy import tightened
from gateway.control.trees.blackboard import BadWrite
from gateway.control.trees.calls import Call, Pending
from gateway.control.trees.plan import NodePlan
from gateway.control.trees.registry import Act
from gateway.control.trees.run import Host, Outcome, Run
from gateway.domain.agents import Limits
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import ModelFailed, TooLarge
from gateway.domain.events import Event
from gateway.domain.messages import ToolCall, ToolResult
from gateway.domain.model import Delta

log = logging.getLogger(__name__)

UNMETERED_S = 5.0  # after which the ledger may be written again

EXECUTE = "tools.execute"  # a leaf of older trees, which fails for no result
Leaves = Mapping[str, Callable[["Turn", Call], object]]


@dataclass(frozen=True, slots=True)
class Open:
    """A wish that is not granted yet, and the leaf that waits for it; `wanted` of a tool call."""

    leaf: Call
    pending: Pending
    wanted: ToolCall | None


@dataclass(slots=True)
class Tickets:
    """The wishes of a turn: each has a number, under which it is granted or no longer wanted."""

    new: list[Wish] = field(default_factory=list)
    open: dict[int, Open] = field(default_factory=dict)
    _last: int = 0

    def draw(
        self, leaf: Call, on_halt: Callable[[int], None], wanted: ToolCall | None = None
    ) -> int:
        self._last = ticket = self._last + 1
        self.open[ticket] = Open(leaf, leaf.pending(lambda: on_halt(ticket)), wanted)
        return ticket

    def take_new(self) -> Sequence[Wish]:
        new, self.new = self.new, []
        return new


class Turn:
    """`end` is set once the tree is over; then `exchange.said` is what stays of the turn."""

    def __init__(self, job: Job, emit: Emit, moment: Moment, leaves: Leaves) -> None:
        self.job, self.moment = job, moment
        policy = job.decision(job.agent.limits)
        limits = tightened(job.agent.limits, asked(policy, "get_config", Limits))
        sight = Sight()
        self.voice = Voice(job, emit, sight, self._stop_by_rule, moment)
        self.course = Course(job, self.voice, limits, moment)
        self.judge = Judge(job, policy, self.course, self.voice)
        self.round = Round(self.voice)
        self.exchange = Exchange(job, self.voice, self.course, self.judge, self.round)
        sight.views = views(job, self.course, self.round)
        self.tickets = Tickets()
        self.saved: str | None = None  # what the tree wants to be kept: "exchange" or "partial"
        self.end: End | None = None
        self.farewell: Event | None = None  # to be told once the end is durable
        self.failure: ModelBroke | None = None
        host = Host(
            now=lambda: self.moment.at,
            roots=sight,
            emit=partial(self.voice.event, source=f"tree:{job.plan.name}"),
            find_act=partial(_bound, leaves, self),
        )
        self.run = Run(job.plan, host, _inputs(job, self.exchange))

    # -- for whoever drives it

    def begin(self) -> None:
        self._advance()

    def on(self, told: Told, moment: Moment) -> None:
        """What happened; then there may be new wishes, or the end."""
        self.moment = self.voice.moment = moment
        if self.end is not None:
            return
        self.course.at(moment)
        match told:
            case ModelReplied():
                self._replied(told)
            case ModelBroke():
                self._broke(told)
            case ToolReturned():
                self._returned(told)
            case Stopped():
                self._stopped(told)
            case Said():
                self.exchange.queued.append(told)
            case Ticked():
                self.run.ground.wake()
            case _:
                assert_never(told)
        self._advance()

    def hear(self, ticket: int, delta: Delta) -> None:
        """A piece of a reply. It may stop the turn."""
        found = self.tickets.open.get(ticket)
        if found is None or self.exchange.hear(delta):
            return
        if found.leaf.options.get("interruptible", True) is not False:
            self._stopped(Stopped("token_budget"))
            self._advance()

    def give_up(self) -> None:
        """Its ending has had its time."""
        self.run.give_up()
        self._advance()

    # -- for leaves

    def ask(self, leaf: Call) -> object:
        """A wish for a reply, unless the turn may not ask any more."""
        if self.tickets.open:
            return leaf.failed("a model is asked when nothing else is at work", "busy")
        self.exchange.close_round()
        course = self.course
        reason = course.stop_after or self.judge.exhausted
        if reason is not None:
            course.terminate(reason)
        if course.reason is not None:
            return leaf.failed(f"the run ends: {course.reason}", "stopped")
        self.failure = None
        ticket = self.tickets.draw(leaf, self._halted)
        self.tickets.new.append(self.exchange.asking(leaf, ticket))
        return self.tickets.open[ticket].pending

    def call_tool(self, leaf: Call, wanted: ToolCall) -> object:
        """A wish for a result, or the one that is there already."""
        known = self.round.result(wanted.id)
        if known is None and self.course.reason is not None:
            return leaf.failed(f"the run ends: {self.course.reason}", "stopped")
        if known is None and any(one.wanted == wanted for one in self.tickets.open.values()):
            return leaf.failed("this call is at work already", "busy")
        step = self.exchange.replies - 1
        known = known or _refused(self, step, wanted)
        if known is not None:
            return _given(leaf, known)
        self.round.begin(wanted)
        ticket = self.tickets.draw(leaf, self._halted, wanted)
        self.tickets.new.append(CallTool(ticket, step, wanted, number(leaf.options, "timeout")))
        return self.tickets.open[ticket].pending

    # -- what happened

    def _advance(self) -> None:
        """Ticks until the tree waits or is over. One that goes on although the run is to end is
        interrupted."""
        while self.end is None:
            if self.run.step():
                assert self.run.outcome is not None
                self._ended(self.run.outcome)
            elif not self.run.ground.is_awake:
                if self.course.reason is None or self.run.is_ending:
                    return
                self.run.interrupt(self.course.reason)

    def _halted(self, ticket: int) -> None:
        """The tree no longer waits for it."""
        found = self.tickets.open.pop(ticket)
        self.tickets.new.append(Cancel(ticket))
        if found.wanted is not None:
            known = self.job.known(self.exchange.replies - 1, found.wanted)
            self.round.interrupt(found.wanted, known)
        else:
            self.exchange.cut()

    def _replied(self, told: ModelReplied) -> None:
        found = self.tickets.open.pop(told.ticket, None)
        if found is None:
            return
        self.exchange.take(told)
        keys = found.leaf.options.get("stream-to")
        try:
            found.leaf.write("tool_calls", self.round.as_data())
            for key in keys if isinstance(keys, list) else ():
                found.leaf.write(key, told.reply.text)
        except BadWrite as error:  # a text where the tree keeps a number
            found.pending.complete(error)
        found.pending.complete()

    def _broke(self, told: ModelBroke) -> None:
        found = self.tickets.open.pop(told.ticket, None)
        if found is None:
            return
        self.failure = told
        match told.failure:
            case BudgetExceeded() as refusal:
                self.exchange.cut(was_sent=False)
                is_first = self.course.refusal is None
                self.course.refusal = refusal
                if self.exchange.replies:  # what was done so far is kept
                    self.course.terminate("token_budget", str(refusal))
                elif is_first:
                    facts = spent_reading(refusal).payload(str(refusal))
                    self.voice.event("budget.token.exceeded", facts)
            case failure:
                self.exchange.cut(was_sent=failure.started)
                facts = {"kind": failure.kind, "provider": failure.provider}
                self.voice.event("model.failed", facts)
        found.pending.complete(False)  # noqa: FBT003  # a leaf's answer

    def _returned(self, told: ToolReturned) -> None:
        found = self.tickets.open.pop(told.ticket, None)
        if found is not None and found.wanted is not None:
            self.exchange.take_result(found.wanted, told)
            found.pending.complete(_given(found.leaf, told.result))

    def _stopped(self, told: Stopped) -> None:
        if told.at_once:
            self.course.terminate(told.reason)
            self.run.ground.wake()
        else:
            self.course.stop_after = self.course.stop_after or told.reason
            self.course.change(is_cancelled=True)

    def _stop_by_rule(self, why: str) -> None:
        if self.end is None:
            self.course.terminate("cancelled", why)
            self.run.ground.wake()

    def _ended(self, outcome: Outcome) -> None:
        try:
            self.exchange.close_round()
            if self.course.stop_after is not None:
                self.course.terminate(self.course.stop_after)
            is_over = self.exchange.is_answered or self.failure is not None
            self.judge.find_reason(self.run.ground.failure, is_over=is_over)
        except PolicyBroke as error:
            outcome = Outcome(outcome.status, "internal_error", str(error))
        self.end = _end(self.exchange, self.failure, outcome)
        self.course.tell_stop()
        self.round.tell_sources()
        shown = tuple(self.voice.shown)
        self.exchange.said[:] = with_last_word(self.exchange.said, self.end.text, shown)
        self.farewell = self.voice.farewell(farewell(self.end))


def farewell(end: End) -> Mapping[str, object]:
    """What `session.end` tells."""
    reason = end.reason if isinstance(end, Finish) else end.error_type
    partial = end.partial if isinstance(end, Finish) else True
    cancelled = reason == "cancelled"
    return {"reason": reason, "exchange_saved": True, "cancelled": cancelled, "partial": partial}


def _end(exchange: Exchange, broke: ModelBroke | None, outcome: Outcome) -> End:
    """A reason to stop comes before the answer, and that before a failure."""
    course = exchange.course
    if course.reason is not None:
        said = exchange.heard or exchange.last_text or course.why
        return Finish(course.reason, said, partial=True)
    if broke is not None:
        return _failed(exchange, broke.failure)
    if exchange.is_answered and outcome.reason == "done":
        said = exchange.last_text
        return Finish("answered", said if said.strip() else EMPTY)
    return _without_end(exchange, outcome)


def _failed(exchange: Exchange, failure: ModelFailed | BudgetExceeded) -> Fail:
    if isinstance(failure, BudgetExceeded):
        told = str(failure)
        return Fail(told, told, "budget_exceeded", retryable=failure.retryable, refusal=failure)
    told = BROKEN[failure.kind].format(provider=failure.provider)
    if failure.kind == "unmetered":  # no provider's fault
        text = exchange.heard or told
        return Fail(told, text, "internal_error", retryable=True, retry_after_s=UNMETERED_S)
    if isinstance(failure, TooLarge):
        told = f"This does not fit the model: {failure.detail}."
    return Fail(
        told,
        exchange.heard or told,
        retryable=failure.retryable,
        retry_after_s=failure.retry_after_s,
        provider=failure.provider,
        status=failure.status,
    )


def _without_end(exchange: Exchange, outcome: Outcome) -> Fail:
    facts = {"tree": exchange.job.plan.name, "why": outcome.detail, "failure": outcome.failure}
    log.error("a tree ended without an answer", extra=facts)
    told = DEFECT if outcome.reason == "internal_error" else NO_END
    return Fail(told, exchange.heard or exchange.last_text or told, "internal_error")


def _bound(leaves: Leaves, turn: Turn, plan: NodePlan) -> Act | None:
    return partial(leaves[plan.offered.name], turn) if plan.offered else None


def _inputs(job: Job, exchange: Exchange) -> Mapping[str, object]:
    """What a tree is given, of that which it declares."""
    given = {
        "query": job.context.question.text,
        "user_id": job.scope.principal,
        "context_id": job.context_id,
        "model": job.agent.model,
        "max_tokens": job.agent.max_tokens,
        "messages": exchange.messages,
        "tools": [tool.name for tool in job.tools],
    }
    schema = job.plan.schema
    allowed = set(job.plan.inputs or schema) & schema.keys()  # one of another type is its own
    return {
        key: value
        for key, value in given.items()
        if key in allowed and schema[key].type.accepts(value)
    }


def _given(leaf: Call, result: ToolResult) -> bool:
    """The answer of a leaf that has a result."""
    leaf.give({"id": result.call_id, "name": result.name, "content": result.content})
    offered = leaf.plan.offered
    return not result.is_error or (offered is not None and offered.name == EXECUTE)


def _refused(turn: Turn, step: int, wanted: ToolCall) -> ToolResult | None:
    """Why a call is not begun; one that has run in an attempt before keeps its result."""
    if turn.exchange.queued and turn.job.known(step, wanted) is None:
        return turn.round.refuse(wanted, SKIPPED)
    if not turn.voice.allows(wanted.name):
        return turn.round.refuse(wanted, TAKEN_AWAY)
    return None
