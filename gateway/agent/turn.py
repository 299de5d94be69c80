"""One turn of an agent as a pure machine: events go in, wishes come out. The loop is a behaviour tree.

A turn never waits and reads no clock: the driver grants the wishes and passes the time with each event.
A turn that was cut short is resumed by giving the same events to a new one."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import ceil
from operator import attrgetter
from types import MappingProxyType
from typing import Any, assert_never

from gateway.agent.effects import (
    AskModel,
    CallTool,
    Cancel,
    Effect,
    Emit,
    End,
    Fail,
    Finish,
    Job,
    ModelBroke,
    ModelReplied,
    Moment,
    Steered,
    StopRequested,
    TimePassed,
    ToolReturned,
    TurnEvent,
    usage_chunk,
    with_distinct_ids,
    with_last_word,
)
from gateway.agent.limits import PolicyBroke, RunState
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
    Output,
    nearly_spent,
    spent_reading,
)
from gateway.control.notices import Moment as Point
from gateway.control.trees.engine import Run, TreeOutcome
from gateway.control.trees.nodes import LeafCall
from gateway.control.trees.plan import BadWrite, PendingLeaf, TreeHost
from gateway.domain.agents import Limits, peer_in
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import ModelFailed, TooLarge
from gateway.domain.events import Event
from gateway.domain.messages import (
    BYTES_A_TOKEN,
    Chunk,
    ChunkType,
    Message,
    Spent,
    ToolCall,
    ToolResult,
    Usage,
)
from gateway.domain.model import Delta, ModelReply, TextDelta, ToolSpec
from gateway.memory.window import message_tokens, paired
from gateway.tools.originals import SPEC
from gateway.tools.sources import ToolSource

log = logging.getLogger(__name__)

# Characters in a chunk; the model, the tool and the history get all of it.
SHOWN_RESULT = 2_000
SHOWN_ARGUMENTS = 20_000
MOST_CITED = 500  # of a run
UNMETERED_S = 5.0  # after which the ledger may be written again

EXECUTE = "tools.execute"  # a leaf of older trees, which fails for no result
_name_of = attrgetter("name")
# Options of `llm-call`.
_NUMBERS = ("budget", "timeout", "idle-timeout")
_OPTIONS = ("model", "tools", *_NUMBERS)


class Round:
    """The tool calls of the last reply and their results; opened anew by each reply with calls."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.calls: tuple[ToolCall, ...] = ()
        self.results: dict[str, ToolResult] = {}
        self.done: set[str] = set()  # tools whose calls ended since notices were told last
        self._executed: set[str] = set()
        self._failures: dict[str, int] = {}  # in a row, by tool
        self._cited: set[tuple[str, str | None]] = set()
        self.uncited: list[
            tuple[ToolSource, str]
        ] = []  # sources of results, which nobody was told of

    def open(self, calls: Sequence[ToolCall], most: int) -> None:
        """Tells every call as pending; those beyond the limit are answered at once."""
        self.calls, self.results, self._executed = tuple(calls), {}, set()
        for call in calls:
            arguments = call.arguments[:SHOWN_ARGUMENTS]
            shown = {"id": call.id, "name": call.name, "arguments": arguments}
            self._output.emit(Chunk("tool_call", {"tool_call": {**shown, "status": "pending"}}))
        for call in calls[most:]:
            why = f"Not executed: at most {most} tool calls a turn. Call it again in the next turn."
            self.refuse(call, why)

    def as_data(self) -> list[dict[str, str]]:
        """The calls that are still to be executed, as a tree sees them."""
        return [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in self.calls
            if call.id not in self.results
        ]

    def named(self, call_id: object) -> ToolCall | None:
        return next((call for call in self.calls if call.id == call_id), None)

    def begin(self, call: ToolCall) -> None:
        self._executed.add(call.id)
        arguments = call.arguments[:SHOWN_ARGUMENTS]
        facts = {"tool": call.name, "call_id": call.id, "arguments": arguments}
        self._output.event("tool.call.started", facts, source="tools")

    def refuse(self, call: ToolCall, why: str) -> ToolResult:
        """Answers a call that is not executed."""
        result = self.results[call.id] = ToolResult(call.id, call.name, why, is_error=True)
        return result

    def interrupt(self, call: ToolCall, known: ToolResult | None) -> None:
        """Answers a call that was running when it was halted, with its result if one is known."""
        self._executed.discard(call.id)
        self.results[call.id] = known or self.refuse(call, INTERRUPTED)

    def take(self, call: ToolCall, told: ToolReturned) -> None:
        """Takes the result of a call."""
        result = self.results[call.id] = told.result
        self.done.add(call.name)
        self._show(result)
        for source in told.sources[: MOST_CITED - len(self._cited)]:
            if (source.id, source.url) not in self._cited:
                self._cited.add((source.id, source.url))
                self.uncited.append((source, call.id))
        facts: dict[str, object] = {"tool": call.name, "call_id": call.id}
        if result.is_error:
            self._failures[call.name] = count = self._failures.get(call.name, 0) + 1
            facts |= {"error": result.content[:SHOWN_RESULT], "failures": count}
            self._output.event("tool.call.failure", facts, source="tools")
            return
        self._failures.pop(call.name, None)
        size = len(result.content)
        facts |= {"duration_ms": result.duration_ms, "items": told.items, "size": size}
        self._output.event("tool.call.success", facts, source="tools")

    def close(self) -> list[tuple[ToolCall, ToolResult, bool]]:
        """Ends the round: each call with its result, and whether it was executed."""
        closed = []
        for call in self.calls:
            result = self.results.get(call.id) or self.refuse(call, NOT_EXECUTED)
            was_executed = call.id in self._executed
            if not was_executed:
                self._show(result)
            closed.append((call, result, was_executed))
        self.calls = ()
        return closed

    def tell_sources(self) -> None:
        """Sends the sources of the results so far, each once a run."""
        for source, call_id in self.uncited:
            shown = {"id": source.id, "title": source.title, "url": source.url}
            self._output.emit(Chunk("source", {"source": {**shown, "tool_call_id": call_id}}))
        self.uncited.clear()

    def _show(self, result: ToolResult) -> None:
        shown = {
            "id": result.call_id,
            "name": result.name,
            "status": "error" if result.is_error else "success",
            "result": result.content[:SHOWN_RESULT],
            "duration_ms": result.duration_ms,
        }
        self._output.emit(Chunk("tool_result", {"tool_call": shown}))


class RunMessages:
    """The messages of a turn: `messages` are shown to the model, `said` become part of the conversation."""

    last: ModelReply | None = None
    replies = 0
    has_begun = False  # the reply that is asked for
    is_answered = False  # the last that was said is a reply without calls
    last_text = ""  # of a reply that had one
    system = ""

    def __init__(self, job: Job, output: Output, state: RunState) -> None:
        self._job, self._output, self._state = job, output, state
        self.round = Round(output)
        self.messages: list[Message] = []
        self.said: list[Message] = []
        self.queued: list[Steered] = []  # people said it meanwhile
        self.taken: list[Steered] = []  # and these are among the messages now
        self.noticed: list[int] = []  # tokens of what it was told beside it
        self.pieces: list[str] = []  # of a reply that did not come to its end
        self.tools = list(map(_name_of, job.tools))

    def tell(self, message: Message, *, is_kept: bool = True) -> None:
        """Shows a message to the model; `is_kept` makes it part of the conversation."""
        self.messages.append(message)
        self._state.context_tokens += message_tokens(message)
        if is_kept:
            self.said.append(message)
            self.is_answered = message.role == "assistant" and not message.tool_calls
            if message.role == "assistant" and message.text:
                self.last_text = message.text

    def asking(self, leaf: LeafCall, ticket: int) -> AskModel:
        """The request for the next reply, with the options of its leaf."""
        taken, options = tuple(self.queued), dict[str, Any].fromkeys(_OPTIONS)
        for name in leaf.plan.options.keys() & options.keys():
            value = leaf.option(name)
            options[name] = number(value) if name in _NUMBERS else value
        self.queued = []
        for said in taken:
            self.tell(Message("user", said.text))
        self.taken.extend(taken)
        if self._state.context_tokens != self._state.shown:
            self._state.show_context()
        self._state.asked += 1
        self._state.sent = self._state.context_tokens
        self._state.watch_tokens()
        self.pieces.clear()
        self.has_begun = False
        model = options["model"]
        if not isinstance(model, str) or model in {"", self._job.agent.model}:
            model = None
        return AskModel(
            ticket,
            self.replies,
            self.system,
            paired(tuple(self.messages)),  # whatever the tree put between them
            self._tools(options["tools"]),
            self._output.model or model,
            int(options["budget"] or 0) or None,
            options["timeout"],
            options["idle-timeout"],
            taken,
        )

    def _tools(self, named: object) -> tuple[ToolSpec, ...]:
        """The agent's tools that the leaf names and no rule has taken away; and the tool that reads on,
        where a result is shown in part."""
        tools, without = self._job.tools, self._output.without
        if isinstance(named, list) and named is not self.tools:
            tools = tuple([tool for tool in tools if tool.name in named])
        if self._has_excerpt():
            tools = (*[tool for tool in tools if tool.name != SPEC.name], SPEC)
        return tuple([tool for tool in tools if tool.name not in without]) if without else tools

    def _has_excerpt(self) -> bool:
        """Whether the model sees a part of a result, and may read the rest."""
        for message in self.messages:
            result = message.result
            if result is not None and result.excerpt is not None and result.excerpt.reference:
                return True
        return False

    def take(self, told: ModelReplied) -> None:
        """Takes a complete reply and opens its calls."""
        output, state = self._output, self._state
        self.last = reply = with_distinct_ids(told.reply, self.said)
        if not told.was_heard:
            if reply.thinking:
                output.emit(Chunk("thinking", {"content": reply.thinking}))
            if reply.text:
                output.emit(Chunk("content", {"content": reply.text}))
        self.replies += 1
        self.pieces.clear()
        self.has_begun = False
        calls, thinking, extras = reply.tool_calls, reply.thinking, reply.extras
        self.tell(Message("assistant", reply.text, calls, thinking=thinking, extras=extras))
        output.emit(usage_chunk(reply))
        state.spend(reply.usage)
        if reply.finish == "overrun":
            output.system("notice", OVERRUN.format(provider=reply.provider))
        for warning in reply.warnings:
            output.warn("budget.token.warning", state.turn, *nearly_spent(warning))
        if calls:
            self.round.open(calls, state.limits.max_tool_calls_per_turn)
        else:
            output.event("agent.turn.ended", {"turn": state.turn})

    def take_spent(self, spent: Sequence[Spent]) -> None:
        """Counts what models used on behalf of a tool, also if the tool was halted."""
        for one in spent:
            self._output.emit(usage_chunk(one))
            self._state.spend(one.usage)

    def cut(self, *, was_sent: bool = True) -> None:
        """Counts a reply that will not come, by an estimate: the prompt was sent, and a part of the reply
        may have arrived."""
        self._state.sent = 0
        if was_sent or self.has_begun:
            agent, heard = self._job.agent, ceil(self._state.live)
            usage = Usage(self._state.context_tokens, heard, estimated=True)
            model = self._output.model or agent.model
            usage = replace(usage, cost_usd=self._job.price(agent.provider, model, usage))
            self.take_spent([Spent(usage, agent.provider, model)])
        self.has_begun = False

    def close_round(self) -> None:
        """Adds the results of the last reply's calls to the messages, in the order of the calls."""
        if not self.round.calls:
            return
        executed = []
        for call, result, was_executed in self.round.close():
            self.tell(Message("tool", result=result))
            self._state.show_context()
            if was_executed:
                executed.append((call, result))
        self._state.end_turn(executed)

    def drain(self, point: Point) -> None:
        """Tells the notices that are due. The model sees them; the conversation does not keep them."""
        notices, turn = self._output.notices, self._state.turn
        tools = frozenset(self.round.done)
        self.round.done.clear()
        notices.turn = turn
        told = self._output.drain(point, tools) if notices.waiting else ""
        if told:
            notice = Message("user", told)
            self.noticed.append(message_tokens(notice))
            self.tell(notice, is_kept=False)

    @property
    def heard(self) -> str:
        """The text so far of a reply that is not complete."""
        return "".join(self.pieces)


def number(value: object) -> float | None:
    """The value as a number, if it is one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]  # it is one


LIMITS = tuple(limit.name for limit in fields(Limits))
_limits_of = attrgetter(*LIMITS)
# Each root with its keys: what trees and rules are checked against before they run.
ROOTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "state": (
            *("turn", "tokens_used", "iteration_percent", "token_percent", "elapsed_seconds"),
            *("consecutive_errors", "warned", "recent_actions", "reason"),
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


class Variables(Mapping[str, object]):
    """What rules, trees and notices can look up; each root is made when it is asked for, so that it
    shows what is true now."""

    def __init__(self, turn: "Turn") -> None:
        self._turn = turn

    def get(self, name: str, default: object = None) -> object:
        return _VIEWS[name](self._turn) if name in _VIEWS else default

    def __getitem__(self, name: str) -> object:
        return _VIEWS[name](self._turn)

    def __iter__(self) -> Iterator[str]:
        return iter(ROOTS)

    def __len__(self) -> int:
        return len(ROOTS)


def _limits(its: "Turn") -> dict[str, object]:
    return dict(zip(LIMITS, _limits_of(its.state.limits), strict=True))


def _config(its: "Turn") -> Mapping[str, object]:
    agent, tree = its.job.agent, its.job.plan.name
    said = {"agent": agent.id, "model": agent.model, "provider": agent.provider, "tree": tree}
    return {**dict(zip(LIMITS, _limits_of(its.state.limits), strict=True)), **said}


def _usage(its: "Turn") -> Mapping[str, object]:
    used = its.state.usage
    return {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "total_tokens": used.total,
        "cost_usd": used.cost_usd,
    }


def _context(its: "Turn") -> Mapping[str, object]:
    tokens, most = its.state.context_tokens, its.job.agent.context_window
    return {"tokens": tokens, "max_tokens": most, "percent": 100 * tokens / most}


def _turn(its: "Turn") -> Mapping[str, object]:
    calls, results = its.round.calls, its.round.results
    return {
        "number": its.state.turn + 1,
        "tool_calls": [call.name for call in calls],
        "tools_done": [call.name for call in calls if call.id in results],
    }


def _user(its: "Turn") -> Mapping[str, object]:
    key = its.job.scope.session_key
    return {"id": its.job.scope.principal, "channel": key.channel, "peer": peer_in(key)}


_VIEWS: Mapping[str, Callable[["Turn"], Mapping[str, object]]] = {
    "state": lambda its: its.state.view(),
    "limits": _limits,
    "usage": _usage,
    "context": _context,
    "turn": _turn,
    "history": lambda its: {"messages": len(its.job.context.history)},
    "user": _user,
    "project": lambda its: {"id": its.state.project_id},
    "config": _config,
}


class Open(PendingLeaf):
    """A wish that is not granted yet; its leaf waits for it. `wanted` is the call of a tool."""

    def __init__(self, turn: "Turn", leaf: LeafCall, wanted: ToolCall | None = None) -> None:
        tickets = turn.tickets
        tickets.last = self.ticket = tickets.last + 1
        tickets.open[self.ticket] = self
        self._ground, self.turn, self.leaf, self.wanted = leaf.ground, turn, leaf, wanted

    def halt(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.turn.halted(self)


@dataclass(slots=True)
class Tickets:
    """The wishes of a turn by their numbers."""

    new: list[Effect] = field(default_factory=list)
    open: dict[int, Open] = field(default_factory=dict)
    last: int = 0

    def take_new(self) -> Sequence[Effect]:
        new, self.new = self.new, []
        return new


class Turn:
    """`end` is set once the tree is over; then `exchange.said` is what stays of the turn."""

    job: Job
    state: RunState

    def __init__(self, job: Job, emit: Emit, moment: Moment) -> None:
        """Raises PolicyBroke."""
        self.job, self.moment = job, moment
        variables = Variables(self)
        self.output = output = Output(job, emit, variables, self._stop_by_rule, moment)
        self.state = RunState(job, output, moment)
        self.exchange = RunMessages(job, output, self.state)
        self.round = self.exchange.round
        self.tickets = Tickets()
        self.end: End | None = None
        self.farewell: Event | None = None  # to be told once the end is durable
        self.failure: ModelBroke | None = None
        host = TreeHost(
            now=lambda: self.moment.at,
            roots=variables,
            emit=partial(output.event, source=f"tree:{job.plan.name}"),
            given=(self,),
        )
        self.run = Run(job.plan, host)
        self._give_inputs()

    # -- for the driver

    def begin(self) -> None:
        self._advance()

    def on(self, told: TurnEvent, moment: Moment) -> None:
        """Takes an event; then there may be new wishes, or the end."""
        self.moment = self.output.moment = moment
        if self.end is not None:
            return
        self.state.now = max(moment.at, self.state.now)
        match told:
            case ModelReplied():
                self._replied(told)
            case ModelBroke():
                self._broke(told)
            case ToolReturned():
                self._returned(told)
            case StopRequested():
                self._stopped(told)
            case Steered():
                self.exchange.queued.append(told)
            case TimePassed():
                self.run.ground.wake()
            case _:
                assert_never(told)
        self._advance()

    def hear(self, ticket: int, delta: Delta) -> None:
        """Passes a piece of a reply to the user, and stops the turn if it is beyond the token budget."""
        found = self.tickets.open.get(ticket)
        if found is None:
            return
        text, exchange, state = delta.text, self.exchange, self.state
        exchange.has_begun = True
        if isinstance(delta, TextDelta):
            exchange.pieces.append(text)
        kind: ChunkType = "content" if isinstance(delta, TextDelta) else "thinking"
        self.output.emit(Chunk(kind, {"content": text}))
        size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        state.live += size / BYTES_A_TOKEN
        if state.live < state.calm or state.watch_tokens():
            return
        if found.leaf.option("interruptible") is not False:
            self._stopped(StopRequested("token_budget"))
            self._advance()

    def give_up(self) -> None:
        """Ends it although the `:finally` of its tree is not done."""
        self.run.give_up()
        self._advance()

    # -- for leaves

    def ask(self, leaf: LeafCall) -> object:
        """Wishes for a reply, unless the turn may not ask any more."""
        if self.tickets.open:
            return leaf.failed("a model is asked when nothing else is at work", "busy")
        state = self.state
        if self.round.calls:
            self.exchange.close_round()
        reason = state.stop_after or state.exhausted
        room = state.limits.token_budget - state.tokens_used - state.context_tokens
        for said in self.exchange.queued:
            room -= message_tokens(Message("user", said.text))
        if reason is None and room <= 0:
            reason = "token_budget"
        if reason is not None:
            state.terminate(reason)
        if state.reason is not None:
            return leaf.failed(f"the run ends: {state.reason}", "stopped")
        self.failure = None
        open_ = Open(self, leaf)
        self.tickets.new.append(self.exchange.asking(leaf, open_.ticket))
        return open_

    def call_tool(self, leaf: LeafCall, wanted: ToolCall) -> object:
        """Wishes for a result, or takes the one that is there already."""
        known = self.round.results.get(wanted.id)
        if known is None and self.state.reason is not None:
            return leaf.failed(f"the run ends: {self.state.reason}", "stopped")
        if known is None and any(one.wanted == wanted for one in self.tickets.open.values()):
            return leaf.failed("this call is at work already", "busy")
        step = self.exchange.replies - 1
        known = known or self._refused(step, wanted)
        if known is not None:
            return _given(leaf, known)
        self.round.begin(wanted)
        open_, timeout = Open(self, leaf, wanted), number(leaf.option("timeout"))
        self.tickets.new.append(CallTool(open_.ticket, step, wanted, timeout))
        return open_

    # -- what happened

    def _give_inputs(self) -> None:
        """Sets the keys that the tree declares as inputs."""
        job, plan = self.job, self.job.plan
        given = {
            "query": job.context.question.text,
            "user_id": job.scope.principal,
            "context_id": job.context_id,
            "model": job.agent.model,
            "max_tokens": job.agent.max_tokens,
            "messages": self.exchange.messages,
            "tools": self.exchange.tools,
        }
        for key in plan.inputs or plan.schema:
            if key in given and plan.schema[key].type.accepts(given[key]):
                self.run.frame.values[key] = given[key]  # one of another type is the tree's own

    def _advance(self) -> None:
        """Ticks until the tree waits or is over. Interrupts a tree that waits although the run is to
        end."""
        while self.end is None:
            if self.run.step():
                assert self.run.outcome is not None
                self._ended(self.run.outcome)
            elif not self.run.ground.is_awake:
                if self.state.reason is None or self.run.is_ending:
                    return
                self.run.interrupt(self.state.reason)

    def halted(self, open_: Open) -> None:
        """Takes back a wish that the tree no longer waits for."""
        del self.tickets.open[open_.ticket]
        self.tickets.new.append(Cancel(open_.ticket))
        if open_.wanted is None:
            self.exchange.cut()
        else:
            known = self.job.known(self.exchange.replies - 1, open_.wanted)
            self.round.interrupt(open_.wanted, known)

    def _replied(self, told: ModelReplied) -> None:
        found = self.tickets.open.pop(told.ticket, None)
        if found is None:
            return
        self.exchange.take(told)
        leaf, keys = found.leaf, found.leaf.plan.options.get("stream-to")
        try:
            leaf.write("tool_calls", self.round.as_data() if told.reply.tool_calls else [])
            for key in keys.constant if keys and isinstance(keys.constant, list) else ():
                leaf.write(key, told.reply.text)
        except BadWrite as error:  # a text where the tree keeps a number
            found.complete(error)
        found.complete()

    def _broke(self, told: ModelBroke) -> None:
        found = self.tickets.open.pop(told.ticket, None)
        if found is None:
            return
        self.failure, state = told, self.state
        match told.failure:
            case BudgetExceeded() as refusal:
                self.exchange.cut(was_sent=False)
                is_first = state.refusal is None
                state.refusal = refusal
                if self.exchange.replies:  # what was done so far is kept
                    state.terminate("token_budget", str(refusal))
                elif is_first:
                    facts = spent_reading(refusal).payload(str(refusal))
                    self.output.event("budget.token.exceeded", facts)
            case failure:
                self.exchange.cut(was_sent=failure.started)
                facts = {"kind": failure.kind, "provider": failure.provider}
                self.output.event("model.failed", facts)
        found.complete(outcome=False)

    def _returned(self, told: ToolReturned) -> None:
        found = self.tickets.open.pop(told.ticket, None)
        if found is not None and found.wanted is not None:
            self.round.take(found.wanted, told)
            self.exchange.take_spent(told.result.spent)
            found.complete(_given(found.leaf, told.result))

    def _stopped(self, told: StopRequested) -> None:
        if told.at_once:
            self.state.terminate(told.reason)
            self.run.ground.wake()
        else:
            self.state.stop_after = self.state.stop_after or told.reason
            self.state.is_cancelled = True

    def _stop_by_rule(self, why: str) -> None:
        if self.end is None:
            self.state.terminate("cancelled", why)
            self.run.ground.wake()

    def _refused(self, step: int, wanted: ToolCall) -> ToolResult | None:
        """Answers a call that must not begin. One that has a result of an earlier attempt begins, and gets it."""
        if self.exchange.queued and self.job.known(step, wanted) is None:
            return self.round.refuse(wanted, SKIPPED)
        if wanted.name in self.output.without:
            return self.round.refuse(wanted, TAKEN_AWAY)
        return None

    def find_reason(self) -> None:
        """A loop that ended without an answer may have come to a limit: of the run, or one that the
        tree counts itself."""
        state = self.state
        if state.reason is None and self.failure is None and not self.exchange.is_answered:
            failed = self.run.ground.failure
            if state.may_continue() and failed is not None and failed["type"] == "limit":
                state.terminate("max_iterations")

    # -- the end

    def _ended(self, outcome: TreeOutcome) -> None:
        exchange, state = self.exchange, self.state
        try:
            if self.round.calls:
                exchange.close_round()
            if state.stop_after is not None:
                state.terminate(state.stop_after)
            self.find_reason()
        except PolicyBroke as error:
            outcome = TreeOutcome(outcome.status, "internal_error", str(error))
        self.end = end = self._end(outcome)
        if state.reason is not None:
            state.tell_stop()
        if self.round.uncited:
            self.round.tell_sources()
        exchange.said[:] = with_last_word(exchange.said, end.text, tuple(self.output.shown))
        reason = end.reason if isinstance(end, Finish) else end.error_type
        told = {
            "reason": reason,
            "exchange_saved": True,
            "cancelled": reason == "cancelled",
            "partial": end.partial if isinstance(end, Finish) else True,
        }
        self.farewell = self.output.farewell(told)

    def _end(self, outcome: TreeOutcome) -> End:
        """A reason to stop comes before the answer, and that before a failure."""
        exchange, state = self.exchange, self.state
        if state.reason is not None:
            said = exchange.heard or exchange.last_text or state.why
            return Finish(state.reason, said, partial=True)
        if self.failure is not None:
            return _failed(exchange, self.failure.failure)
        if outcome.reason == "done" and exchange.is_answered:
            return Finish("answered", _answer(exchange))
        facts = {"tree": self.job.plan.name, "why": outcome.detail, "failure": outcome.failure}
        log.error("a tree ended without an answer", extra=facts)
        told = DEFECT if outcome.reason == "internal_error" else NO_END
        return Fail(told, exchange.heard or exchange.last_text or told, "internal_error")


def _answer(exchange: RunMessages) -> str:
    """The last text, or what replaces it if it is empty."""
    text, last = exchange.last_text, exchange.last
    if text.strip():
        return text
    is_overrun = last is not None and last.finish == "overrun"
    return OVERRUN.format(provider=last.provider) if last and is_overrun else EMPTY


def _failed(exchange: RunMessages, failure: ModelFailed | BudgetExceeded) -> Fail:
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


def _given(leaf: LeafCall, result: ToolResult) -> bool:
    """Gives the result to the loop around the leaf; whether the leaf succeeds."""
    leaf.give({"id": result.call_id, "name": result.name, "content": result.content})
    offered = leaf.plan.offered
    return not result.is_error or (offered is not None and offered.name == EXECUTE)
