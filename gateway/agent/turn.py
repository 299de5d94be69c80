"""One turn of an agent: a behaviour tree that is told what happened and answers with wishes.

A turn never waits and has no time of its own: whoever drives it grants its wishes and tells it so.
A turn that was cut short is resumed by telling a new one the same story again."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import ceil
from types import MappingProxyType
from typing import assert_never

from gateway.agent.effects import (
    AskModel,
    CallTool,
    Cancel,
    Emit,
    End,
    Fail,
    Finish,
    Job,
    ModelBroke,
    ModelReplied,
    Moment,
    Said,
    Stopped,
    Ticked,
    Told,
    ToolReturned,
    Wish,
    usage_chunk,
    with_distinct_ids,
    with_last_word,
)
from gateway.agent.limits import Course, Judge, PolicyBroke, asked
from gateway.agent.output import (
    BROKEN,
    DEFECT,
    EMPTY,
    INTERRUPTED,
    NO_END,
    NOT_EXECUTED,
    OVERRUN,
    SKIPPED,
    TAKEN_AWAY,
    Voice,
    nearly_spent,
    spent_reading,
    warn,
)
from gateway.control.notices import Moment as Point
from gateway.control.policy import tightened
from gateway.control.trees.engine import Host, Outcome, Run
from gateway.control.trees.nodes import BadWrite, Call, Pending
from gateway.control.trees.plan import Act, NodePlan
from gateway.domain.agents import Limits, peer_in
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import ModelFailed, TooLarge
from gateway.domain.events import Event
from gateway.domain.messages import Message, Spent, ToolCall, ToolResult, Usage
from gateway.domain.model import Delta, ModelReply, TextDelta, ToolSpec
from gateway.memory.window import message_tokens, paired
from gateway.tools.originals import SPEC
from gateway.tools.sources import Source

# Characters in a chunk; the model, the tool and the history get all of it.
SHOWN_RESULT = 2_000
SHOWN_ARGUMENTS = 20_000
MOST_CITED = 500  # of a run


class Round:
    """Of one turn; opened anew by each reply."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._calls: tuple[ToolCall, ...] = ()
        self._results: dict[str, ToolResult] = {}
        self._executed: set[str] = set()
        self._done: set[str] = set()  # tools whose calls ended since somebody asked
        self._failures: dict[str, int] = {}  # in a row, by tool
        self._sources: dict[tuple[str, str | None], tuple[Source, str]] = {}
        self._told_sources = 0

    @property
    def is_open(self) -> bool:
        return bool(self._calls)

    @property
    def calls(self) -> Sequence[ToolCall]:
        return self._calls

    def open(self, calls: Sequence[ToolCall], most: int) -> None:
        """Tells every call as pending; those beyond the limit are answered at once."""
        self._calls, self._results, self._executed = tuple(calls), {}, set()
        for call in calls:
            arguments = call.arguments[:SHOWN_ARGUMENTS]
            shown = {"id": call.id, "name": call.name, "arguments": arguments}
            self._voice.chunk("tool_call", {"tool_call": {**shown, "status": "pending"}})
        why = f"Not executed: at most {most} tool calls a turn. Call it again in the next turn."
        for call in calls[most:]:
            self._results[call.id] = ToolResult(call.id, call.name, why, is_error=True)

    def as_data(self) -> list[dict[str, str]]:
        """The calls that are still to be executed, as a tree sees them."""
        return [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in self._calls
            if call.id not in self._results
        ]

    def named(self, call_id: object) -> ToolCall | None:
        return next((call for call in self._calls if call.id == call_id), None)

    def result(self, call_id: str) -> ToolResult | None:
        return self._results.get(call_id)

    def begin(self, call: ToolCall) -> None:
        self._executed.add(call.id)
        arguments = call.arguments[:SHOWN_ARGUMENTS]
        facts = {"tool": call.name, "call_id": call.id, "arguments": arguments}
        self._voice.event("tool.call.started", facts, source="tools")

    def refuse(self, call: ToolCall, why: str) -> ToolResult:
        """It is not executed; the result says so."""
        result = self._results[call.id] = ToolResult(call.id, call.name, why, is_error=True)
        return result

    def interrupt(self, call: ToolCall, known: ToolResult | None) -> None:
        """It was at work and nobody waits for it any more: what is known of it counts."""
        self._executed.discard(call.id)
        if known is None:
            self.refuse(call, INTERRUPTED)
        else:
            self._results[call.id] = known

    def take(self, call: ToolCall, told: ToolReturned) -> None:
        """A result that came."""
        result = self._results[call.id] = told.result
        self._done.add(call.name)
        self._show(result)
        for source in told.sources[: MOST_CITED - len(self._sources)]:
            self._sources.setdefault((source.id, source.url), (source, call.id))
        facts: dict[str, object] = {"tool": call.name, "call_id": call.id}
        if result.is_error:
            self._failures[call.name] = count = self._failures.get(call.name, 0) + 1
            facts |= {"error": result.content[:SHOWN_RESULT], "failures": count}
            self._voice.event("tool.call.failure", facts, source="tools")
            return
        self._failures.pop(call.name, None)
        size = len(result.content)
        facts |= {"duration_ms": result.duration_ms, "items": told.items, "size": size}
        self._voice.event("tool.call.success", facts, source="tools")

    def close(self) -> list[tuple[ToolCall, ToolResult, bool]]:
        """Each call with its result, and whether it was executed."""
        closed = []
        for call in self._calls:
            result = self._results.get(call.id) or self.refuse(call, NOT_EXECUTED)
            was_executed = call.id in self._executed
            if not was_executed:
                self._show(result)
            closed.append((call, result, was_executed))
        self._calls = ()
        return closed

    def take_done(self) -> frozenset[str]:
        """The tools whose calls ended since this was asked last."""
        done, self._done = frozenset(self._done), set()
        return done

    def tell_sources(self) -> None:
        """What the results so far drew on, each once a run, whichever tool names it."""
        sources = list(self._sources.values())[self._told_sources :]
        self._told_sources = len(self._sources)
        for source, call_id in sources:
            shown = {"id": source.id, "title": source.title, "url": source.url}
            self._voice.chunk("source", {"source": {**shown, "tool_call_id": call_id}})

    def _show(self, result: ToolResult) -> None:
        shown = {
            "id": result.call_id,
            "name": result.name,
            "status": "error" if result.is_error else "success",
            "result": result.content[:SHOWN_RESULT],
            "duration_ms": result.duration_ms,
        }
        self._voice.chunk("tool_result", {"tool_call": shown})


@dataclass(slots=True)
class Exchange:
    """`messages` is what the model is shown; `said` is what stays of it."""

    job: Job
    voice: Voice
    course: Course
    judge: Judge
    round: Round
    system: str = ""
    messages: list[Message] = field(default_factory=list)
    said: list[Message] = field(default_factory=list)
    queued: list[Said] = field(default_factory=list)  # people said it meanwhile
    taken: list[Said] = field(default_factory=list)  # and these are among the messages now
    last: ModelReply | None = None
    noticed: list[int] = field(default_factory=list)  # tokens of what it was told beside it
    replies: int = 0
    _heard: list[str] = field(default_factory=list)
    _has_begun: bool = False  # the reply that is asked for

    def tell(self, message: Message, *, is_kept: bool = True) -> None:
        """Shows a message to the model; `is_kept` makes it part of the conversation."""
        self.messages.append(message)
        self.course.context_tokens += message_tokens(message)
        if is_kept:
            self.said.append(message)

    def asking(self, call: Call, ticket: int) -> AskModel:
        """Asks for the next reply, as a leaf says."""
        taken, self.queued = tuple(self.queued), []
        for said in taken:
            self.tell(Message("user", said.text))
        self.taken.extend(taken)
        self.course.show_context()
        self.course.asked += 1
        self.course.send()
        self._heard.clear()
        self._has_begun = False
        options = call.options
        model = self.voice.model or text(options, "model", self.job.agent.model)
        budget = int(number(options, "budget") or 0) or None
        return AskModel(
            ticket,
            self.replies,
            self.system,
            paired(tuple(self.messages)),  # whatever the tree put between them
            self._tools(options.get("tools")),
            model,
            budget,
            number(options, "timeout"),
            number(options, "idle-timeout"),
            taken,
        )

    @property
    def has_room(self) -> bool:
        """Whether the run's tokens are enough for what the next call sends."""
        queued = sum(message_tokens(Message("user", said.text)) for said in self.queued)
        used = self.course.usage.total + self.course.context_tokens + queued
        return used < self.course.limits.token_budget

    def _tools(self, named: object) -> tuple[ToolSpec, ...]:
        """Of the agent's, those that the leaf names and no rule has taken away; and the one that reads
        on where a result is shown in part."""
        wanted = named if isinstance(named, list) else [tool.name for tool in self.job.tools]
        tools = [tool for tool in self.job.tools if tool.name in wanted]
        for message in self.messages:
            excerpt = message.result.excerpt if message.result is not None else None
            if excerpt is not None and excerpt.reference:
                tools = [*(tool for tool in tools if tool.name != SPEC.name), SPEC]
                break
        return tuple([tool for tool in tools if self.voice.allows(tool.name)])

    def hear(self, delta: Delta) -> bool:
        """A piece of a reply; False if that is more than the budget allows."""
        self._has_begun = True
        if isinstance(delta, TextDelta):
            self._heard.append(delta.text)
            self.voice.chunk("content", {"content": delta.text})
        else:
            self.voice.chunk("thinking", {"content": delta.text})
        return self.course.hear(delta.text)

    def take(self, told: ModelReplied) -> None:
        """A complete reply; then its calls are open."""
        self.last = reply = with_distinct_ids(told.reply, self.said)
        for kind, said in (("thinking", reply.thinking), ("content", reply.text)):
            if said and not told.was_heard:
                self.voice.chunk(kind, {"content": said})
        self.replies += 1
        self._heard.clear()
        self._has_begun = False
        self.tell(
            Message(
                "assistant",
                reply.text,
                reply.tool_calls,
                thinking=reply.thinking,
                extras=reply.extras,
            )
        )
        self.voice.chunk("usage", usage_chunk(reply).data)
        self.course.spend(reply.usage)
        if reply.finish == "overrun":
            self.voice.system("notice", OVERRUN.format(provider=reply.provider))
        for warning in reply.warnings:
            turn = self.course.state.turn
            warn(self.voice, "budget.token.warning", turn, *nearly_spent(warning))
        self.round.open(reply.tool_calls, self.course.limits.max_tool_calls_per_turn)
        if not reply.tool_calls:
            self.voice.event("agent.turn.ended", {"turn": self.course.state.turn})

    def take_result(self, call: ToolCall, told: ToolReturned) -> None:
        self.round.take(call, told)
        self.take_spent(told.result.spent)

    def take_spent(self, spent: Sequence[Spent]) -> None:
        """What models used that worked for a tool, also if nobody waits for its result any more."""
        for one in spent:
            self.voice.chunk("usage", usage_chunk(one).data)
            self.course.spend(one.usage)

    def cut(self, *, was_sent: bool = True) -> None:
        """No reply will come. The prompt was sent and some may have been heard: an estimate is
        nearer than nothing."""
        self.course.sent = 0
        if was_sent or self._has_begun:
            agent, heard = self.job.agent, ceil(self.course.live)
            usage = Usage(self.course.context_tokens, heard, estimated=True)
            model = self.voice.model or agent.model
            usage = replace(usage, cost_usd=self.job.price(agent.provider, model, usage))
            spent = Spent(usage, agent.provider, model)
            self.voice.chunk("usage", usage_chunk(spent).data)
            self.course.spend(usage)
        self._has_begun = False

    def close_round(self) -> None:
        """Every call of the last reply has its result among the messages, in order."""
        if not self.round.is_open:
            return
        executed = []
        for call, result, was_executed in self.round.close():
            self.tell(Message("tool", result=result))
            self.course.show_context()
            if was_executed:
                executed.append((call, result))
        self.judge.end_turn(executed)

    def drain(self, point: Point) -> None:
        """Tells the notices that are due; the model sees them, the conversation does not keep them."""
        turn, tools = self.course.state.turn, self.round.take_done()
        told = self.voice.drain(point, turn=turn, tools=tools)
        if told:
            notice = Message("user", told)
            self.noticed.append(message_tokens(notice))
            self.tell(notice, is_kept=False)

    @property
    def heard(self) -> str:
        """Of a reply that did not come to its end."""
        return "".join(self._heard)

    @property
    def is_answered(self) -> bool:
        last = self.said[-1] if self.said else None
        return last is not None and last.role == "assistant" and not last.tool_calls

    @property
    def last_text(self) -> str:
        texts = (m.text for m in reversed(self.said) if m.role == "assistant" and m.text)
        return next(texts, "")


def number(options: Mapping[str, object], option: str) -> float | None:
    """An option of a leaf, if it is one."""
    value = options.get(option)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def text(options: Mapping[str, object], option: str, usual: str) -> str | None:
    """An option of a leaf, if it says something else than what is usual."""
    value = options.get(option)
    return value if isinstance(value, str) and value not in {"", usual} else None


View = Callable[[], Mapping[str, object]]

LIMITS = tuple(limit.name for limit in fields(Limits))
# Each root with its keys: what trees and rules are checked against before they run.
ROOTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "state": (
            "turn",
            "tokens_used",
            "iteration_percent",
            "token_percent",
            "elapsed_seconds",
            "consecutive_errors",
            "warned",
            "recent_actions",
            "reason",
        ),
        "limits": LIMITS,
        "usage": ("input_tokens", "output_tokens", "total_tokens", "cost_usd"),
        "context": ("tokens", "max_tokens", "percent"),
        "turn": ("number", "tool_calls", "tools_done"),
        "history": ("messages",),
        "user": ("id", "channel", "peer"),
        "project": ("id",),
        "config": (*LIMITS, "agent", "model", "provider", "tree"),
    }
)


class Sight(Mapping[str, object]):
    """Names to look up; each view is made anew, so that it shows what is true now."""

    def __init__(self) -> None:
        self.views: Mapping[str, View] = {}

    def __getitem__(self, name: str) -> object:
        return self.views[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(ROOTS)

    def __len__(self) -> int:
        return len(ROOTS)


def views(job: Job, course: Course, calls: Round) -> Mapping[str, View]:
    """Under each of ROOTS, what is true now."""
    key, agent = job.scope.session_key, job.agent
    limits = {name: getattr(course.limits, name) for name in LIMITS}
    said = {"agent": agent.id, "model": agent.model, "provider": agent.provider}
    config = {**limits, **said, "tree": job.plan.name}

    def usage() -> dict[str, object]:
        used = course.usage
        return {
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "total_tokens": used.total,
            "cost_usd": used.cost_usd,
        }

    def context() -> dict[str, object]:
        tokens, most = course.context_tokens, agent.context_window
        return {"tokens": tokens, "max_tokens": most, "percent": 100 * tokens / most}

    def turn() -> dict[str, object]:
        return {
            "number": course.state.turn + 1,
            "tool_calls": [call.name for call in calls.calls],
            "tools_done": [call.name for call in calls.calls if calls.result(call.id)],
        }

    return {
        "state": course.view,
        "limits": lambda: limits,
        "usage": usage,
        "context": context,
        "turn": turn,
        "history": lambda: {"messages": len(job.context.history)},
        "user": lambda: {"id": job.scope.principal, "channel": key.channel, "peer": peer_in(key)},
        "project": lambda: {"id": course.state.project_id},
        "config": lambda: config,
    }


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
        if reason is None and not self.exchange.has_room:
            reason = "token_budget"
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
        return Finish("answered", said if said.strip() else _empty(exchange))
    return _without_end(exchange, outcome)


def _empty(exchange: Exchange) -> str:
    """What stands for an answer without a word."""
    last = exchange.last
    if last is not None and last.finish == "overrun":
        return OVERRUN.format(provider=last.provider)
    return EMPTY


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
