"""One turn of an agent as a pure machine: events go in, effects come out. Its loop is a behaviour tree.

A turn never waits and reads no clock. The driver carries out the effects, and passes the time with each
event. An interrupted turn is resumed by passing the same events to a new one."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
)
from gateway.agent.limits import LIMITS, PolicyBroke, RunState, plain_limits
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
    budget_warning,
    spent_reading,
)
from gateway.control.notices import Moment as Point
from gateway.control.trees.engine import BadWrite, PendingLeaf, Run, TreeHost, TreeOutcome
from gateway.control.trees.nodes import NODES, LeafCall
from gateway.domain.agents import peer_in
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import ModelFailed, TooLarge
from gateway.domain.events import Event
from gateway.domain.messages import (
    Chunk,
    DoneReason,
    Message,
    Spent,
    SystemType,
    ToolCall,
    ToolResult,
    Usage,
)
from gateway.domain.model import ModelReply, ToolSpec
from gateway.memory.context import message_tokens, paired
from gateway.tools import SPEC, ToolSource

log = logging.getLogger(__name__)

# Characters in a chunk. The model, the tool and the history get the whole text.
SHOWN_RESULT = 2_000
SHOWN_ARGUMENTS = 20_000
MOST_CITED = 500  # of a run
UNMETERED_S = 5.0  # the client may try again after it, if the ledger could not be written

EXECUTE = "tools.execute"  # a leaf of older trees that succeeds for error results too
_name_of, _RESULT = attrgetter("name"), attrgetter("result")
# Options of `llm-call`.
_NUMBERS = ("budget", "timeout", "idle-timeout")
_OPTIONS = ("model", "tools", *_NUMBERS)

# The roots with their keys. Trees and rules are checked against them before they run.
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


@dataclass(frozen=True, slots=True, eq=False)
class Variables(Mapping[str, object]):
    """The variables of rules, trees and notices. A root is made when it is read, so that its values are
    current."""

    turn: "Turn"

    def get(self, name: str, default: object = None) -> object:
        return _VIEWS[name](self.turn) if name in _VIEWS else default

    def __getitem__(self, name: str) -> object:
        return _VIEWS[name](self.turn)

    def __iter__(self) -> Iterator[str]:
        return iter(ROOTS)

    def __len__(self) -> int:
        return len(ROOTS)


def _config(its: "Turn") -> dict[str, object]:
    agent, tree = its.job.agent, its.job.plan.name
    said = {"agent": agent.id, "model": agent.model, "provider": agent.provider, "tree": tree}
    return plain_limits(its.state.limits) | said


def _usage(its: "Turn") -> dict[str, object]:
    used = its.state.usage
    sums = (used.input_tokens, used.output_tokens, used.total, used.cost_usd)
    return dict(zip(ROOTS["usage"], sums, strict=True))


def _context(its: "Turn") -> dict[str, object]:
    tokens, most = its.state.context_tokens, its.job.agent.context_window
    return {"tokens": tokens, "max_tokens": most, "percent": 100 * tokens / most}


def _turn(its: "Turn") -> dict[str, object]:
    return {
        "number": its.state.turn + 1,
        "tool_calls": [call.name for call in its.calls],
        "tools_done": [call.name for call in its.calls if call.id in its.results],
    }


def _user(its: "Turn") -> dict[str, object]:
    key = its.job.scope.session_key
    return {"id": its.job.scope.principal, "channel": key.channel, "peer": peer_in(key)}


_VIEWS: Mapping[str, Callable[["Turn"], dict[str, object]]] = {
    "state": lambda its: its.state.view(),
    "limits": lambda its: plain_limits(its.state.limits),
    "usage": _usage,
    "context": _context,
    "turn": _turn,
    "history": lambda its: {"messages": len(its.job.context.history)},
    "user": _user,
    "project": lambda its: {"id": its.state.project_id},
    "config": _config,
}


class Ticket(PendingLeaf):
    """An open effect; its leaf waits for it. `wanted` is set for a tool call."""

    def __init__(self, turn: "Turn", leaf: LeafCall, wanted: ToolCall | None = None) -> None:
        turn.last_ticket = self.number = turn.last_ticket + 1
        turn.open[self.number] = self
        self._state, self.turn, self.leaf, self.wanted = leaf.state, turn, leaf, wanted

    def halt(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.turn.cancel(self)


class Turn:
    """The state of one turn. The model sees `messages`; `said` becomes part of the conversation. `end` is
    set once the tree is over."""

    job: Job
    state: RunState
    system = ""
    replies = 0
    last: ModelReply | None = None
    last_text = ""  # of the last reply with text
    old_messages = 0  # the number of messages of the history
    is_answered = False  # the last message is a reply without calls
    calls: Sequence[ToolCall] = ()  # of the last reply, until its results are added
    last_ticket = 0
    end: End | None = None
    end_event: Event | None = None  # published once the end is durable
    failure: ModelBroke | None = None  # of the last model call

    def __init__(self, job: Job, emit: Emit, moment: Moment) -> None:
        """Raises PolicyBroke."""
        self.job, self.moment = job, moment
        variables = Variables(self)
        self.output = Output(job, emit, variables, self.interrupt, moment)
        self.state = RunState(job, self.output, moment)
        self.messages: list[Message] = []
        self.said: list[Message] = []
        self.queued: list[Steered] = []  # messages of people that came meanwhile
        self.taken: list[Steered] = []  # those of them that are added to `messages`
        self.noticed: list[int] = []  # tokens of each message with notices
        self.pieces: list[str] = []  # text of the incomplete reply
        self.results: dict[str, ToolResult] = {}  # of `calls`, by id
        self._executed: set[str] = set()  # ids of executed calls
        self._done: set[str] = set()  # tools whose calls ended since the last notices
        self._failures: dict[str, int] = {}  # in a row, by tool
        self._cited: set[tuple[str, str | None]] = set()
        self.uncited: list[tuple[ToolSource, str]] = []  # sources to send to the user
        self.effects: list[Effect] = []  # not begun by the driver
        self.open: dict[int, Ticket] = {}
        self.tools = list(map(_name_of, job.tools))
        given = {
            "query": job.context.question.text,
            "user_id": job.scope.principal,
            "context_id": job.context_id,
            "model": job.agent.model,
            "max_tokens": job.agent.max_tokens,
            "messages": self.messages,
            "tools": self.tools,
        }
        host = TreeHost(
            now=lambda: self.moment.at,
            roots=variables,
            emit=partial(self.output.event, source=f"tree:{job.plan.name}"),
            arguments=(self,),
        )
        self.run = Run(job.plan, host, NODES)
        for key in job.plan.inputs or job.plan.schema:
            if key in given and job.plan.schema[key].type.accepts(given[key]):
                self.run.frame.values[key] = given[key]  # else the tree uses the name for its own

    # -- for the driver

    def on(self, event: TurnEvent, moment: Moment) -> None:
        """Handles an event. Afterwards there may be new effects, or the end."""
        self.moment = self.output.moment = moment
        if self.end is not None:
            return
        self.state.now = max(moment.at, self.state.now)
        match event:
            case ModelReplied():
                self._replied(event)
            case ModelBroke():
                self._broke(event)
            case ToolReturned():
                self._returned(event)
            case StopRequested():
                self._stopped(event)
            case Steered():
                self.queued.append(event)
            case TimePassed():
                self.run.state.wake()
            case _:
                assert_never(event)
        self.advance()

    def advance(self) -> None:
        """Ticks until the tree waits or is over. Interrupts a waiting tree if the run has to end."""
        while self.end is None:
            if self.run.step():
                assert self.run.outcome is not None
                self._ended(self.run.outcome)
            elif not self.run.state.is_awake:
                if self.state.reason is None or self.run.is_ending:
                    return
                self.run.interrupt(self.state.reason)

    def exceed(self, ticket: int) -> None:
        """Stops the turn if the incoming reply exceeds the token budget."""
        if self.state.watch_tokens() or self.open[ticket].leaf.option("interruptible") is False:
            return
        self.interrupt(reason="token_budget")
        self.advance()

    def interrupt(self, why: str | None = None, *, reason: DoneReason = "cancelled") -> None:
        """Ends the run at the next tick."""
        if self.end is None:
            self.state.terminate(reason, why)
            self.run.state.wake()

    def _stopped(self, event: StopRequested) -> None:
        if event.at_once:
            self.interrupt(reason=event.reason)
        else:
            self.state.stop_after = self.state.stop_after or event.reason
            self.state.is_cancelled = True

    def abort(self) -> None:
        """Ends the turn although the `:finally` of its tree is not done."""
        self.run.abandon()
        self.advance()

    # -- messages

    def add_message(self, message: Message, *, is_kept: bool = True) -> None:
        """Adds a message for the model. `is_kept` adds it to the conversation too."""
        self.messages.append(message)
        self.state.context_tokens += message_tokens(message)
        if is_kept:
            self.said.append(message)
            self.is_answered = message.role == "assistant" and not message.tool_calls
            if message.role == "assistant" and message.text:
                self.last_text = message.text

    def drain(self, point: Point) -> None:
        """Adds the due notices for the model. The conversation does not keep them."""
        notices, tools = self.output.notices, frozenset(self._done)
        self._done.clear()
        notices.turn = self.state.turn
        if notices.waiting and (text := self.output.drain(point, tools)):
            notice = Message("user", text)
            self.noticed.append(message_tokens(notice))
            self.add_message(notice, is_kept=False)

    # -- replies

    def ask(self, leaf: LeafCall) -> object:
        """Asks a model for a reply with the options of the leaf, if the limits allow it."""
        if self.open:
            return leaf.fail("a model is only asked when no other effect is open", "busy")
        state = self.state
        if self.calls:
            self.close_round()
        said = [Message("user", one.text) for one in self.queued] if self.queued else []
        if not state.may_ask(sum(map(message_tokens, said))):
            return leaf.fail(f"the run ends: {state.reason}", "stopped")
        self.failure = None
        self.pieces.clear()
        taken, self.queued = tuple(self.queued), []
        self.taken.extend(taken)
        for message in said:
            self.add_message(message)
        if state.context_tokens != state.shown:
            state.show_context()
        state.asked += 1
        state.sent = state.context_tokens
        state.watch_tokens()
        options, ticket = _options(leaf, self.job.agent.model), Ticket(self, leaf)
        shown, old = tuple(self.messages), self.old_messages
        if self.replies:  # the tree may have added messages between calls and their results
            shown = (*shown[:old], *paired(shown[old:]))
        ask = AskModel(
            ticket.number,
            self.replies,
            self.system,
            shown,
            self._offered(options["tools"]),
            self.output.model or options["model"],
            options["budget"],
            options["timeout"],
            options["idle-timeout"],
            taken,
        )
        self.effects.append(ask)
        return ticket

    def _offered(self, named: object) -> tuple[ToolSpec, ...]:
        """Returns the agent's tools that the leaf names and no rule has removed. Adds the tool `result` if
        a result is shown in part and its rest can be read."""
        tools, without = self.job.tools, self.output.without
        if isinstance(named, list) and named is not self.tools:
            tools = tuple([tool for tool in tools if tool.name in named])
        for result in filter(None, map(_RESULT, self.messages)):
            if result.excerpt and result.excerpt.reference:
                tools = (*[tool for tool in tools if tool.name != SPEC.name], SPEC)
                break
        return tuple([tool for tool in tools if tool.name not in without]) if without else tools

    def _replied(self, event: ModelReplied) -> None:
        """Handles a complete reply, and opens its calls."""
        ticket, reply = self.open.pop(event.ticket, None), event.reply
        if ticket is None:
            return
        output, state = self.output, self.state
        if reply.tool_calls:
            reply = with_distinct_ids(reply, self.said)
        self.last = reply
        if not event.was_heard:
            self._show_reply(reply)
        self.replies += 1
        self.pieces.clear()
        calls, thinking, extras = reply.tool_calls, reply.thinking, reply.extras
        self.add_message(Message("assistant", reply.text, calls, thinking=thinking, extras=extras))
        state.spend(reply)
        if reply.finish == "overrun":
            output.system("notice", OVERRUN.format(provider=reply.provider))
        for warning in reply.warnings:
            output.warn("budget.token.warning", state.turn, *budget_warning(warning))
        if calls:
            self._open_round(calls)
        else:
            output.event("agent.turn.ended", {"turn": state.turn})
        leaf, keys = ticket.leaf, ticket.leaf.plan.options.get("stream-to")
        try:
            leaf.write("tool_calls", self.waiting_calls() if calls else [])
            if keys is not None:
                self._stream_to(leaf, keys.constant, reply.text)
        except BadWrite as error:  # the tree has declared another type
            ticket.complete(error)
        ticket.complete()

    def _stream_to(self, leaf: LeafCall, keys: object, text: str) -> None:
        for key in keys if isinstance(keys, list) else ():
            leaf.write(key, text)

    def _show_reply(self, reply: ModelReply) -> None:
        if reply.thinking:
            self.output.emit(Chunk("thinking", {"content": reply.thinking}))
        if reply.text:
            self.output.emit(Chunk("content", {"content": reply.text}))

    def _broke(self, event: ModelBroke) -> None:
        ticket = self.open.pop(event.ticket, None)
        if ticket is None:
            return
        self.failure, state = event, self.state
        match event.failure:
            case BudgetExceeded() as refusal:
                self._count_cut(was_sent=False)
                is_first = state.refusal is None
                state.refusal = refusal
                if self.replies:  # the work so far is kept
                    state.terminate("token_budget", str(refusal))
                elif is_first:
                    facts = spent_reading(refusal).payload(str(refusal))
                    self.output.event("budget.token.exceeded", facts)
            case failure:
                self._count_cut(was_sent=failure.started)
                facts = {"kind": failure.kind, "provider": failure.provider}
                self.output.event("model.failed", facts)
        ticket.complete(outcome=False)

    def _count_cut(self, *, was_sent: bool = True) -> None:
        """Counts the estimated usage of a call without a complete reply: its prompt if it was sent, and the
        part of the reply that has arrived."""
        self.state.sent = 0
        if was_sent or self.state.live:
            agent, came = self.job.agent, ceil(self.state.live)
            usage = Usage(self.state.context_tokens, came, estimated=True)
            model = self.output.model or agent.model
            usage = replace(usage, cost_usd=self.job.price(agent.provider, model, usage))
            self.state.spend(Spent(usage, agent.provider, model))

    # -- tool calls: a round is the calls of one reply, with their results

    def _open_round(self, calls: Sequence[ToolCall]) -> None:
        """Shows every call as pending. Calls beyond the limit are answered at once."""
        most = self.state.limits.max_tool_calls_per_turn
        self.calls, self.results, self._executed = calls, {}, set()
        for call in calls:
            arguments = call.arguments[:SHOWN_ARGUMENTS]
            shown = {"id": call.id, "name": call.name, "arguments": arguments, "status": "pending"}
            self.output.emit(Chunk("tool_call", {"tool_call": shown}))
        for call in calls[most:]:
            why = f"Not executed: at most {most} tool calls a turn. Call it again in the next turn."
            self.refuse(call, why)

    def waiting_calls(self) -> list[dict[str, str]]:
        """Returns the calls without a result, in the form for a tree."""
        return [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in self.calls
            if call.id not in self.results
        ]

    def call_tool(self, leaf: LeafCall, named: object) -> object:
        """Executes the call that a value of the tree names, or uses its known result."""
        id_ = named.get("id") if isinstance(named, Mapping) else None
        wanted = self._call(id_)
        if wanted is None:
            return leaf.fail("the model did not ask for this call", "unknown_call")
        known = self.results.get(wanted.id)
        if known is None and self.state.reason is not None:
            return leaf.fail(f"the run ends: {self.state.reason}", "stopped")
        if known is None and any(one.wanted == wanted for one in self.open.values()):
            return leaf.fail("this call is running already", "busy")
        step = self.replies - 1
        known = known or self._refused(step, wanted)
        if known is not None:
            return _pass_result(leaf, known)
        self._executed.add(wanted.id)
        arguments = wanted.arguments[:SHOWN_ARGUMENTS]
        facts = {"tool": wanted.name, "call_id": wanted.id, "arguments": arguments}
        self.output.event("tool.call.started", facts, source="tools")
        ticket, timeout = Ticket(self, leaf, wanted), number(leaf.option("timeout"))
        self.effects.append(CallTool(ticket.number, step, wanted, timeout))
        return ticket

    def _call(self, call_id: object) -> ToolCall | None:
        return next((call for call in self.calls if call.id == call_id), None)

    def _refused(self, step: int, wanted: ToolCall) -> ToolResult | None:
        """Answers a call that must not begin. A call with a result of an earlier attempt begins, and gets
        that result."""
        if self.queued and self.job.known(step, wanted) is None:
            return self.refuse(wanted, SKIPPED)
        return self.refuse(wanted, TAKEN_AWAY) if wanted.name in self.output.without else None

    def refuse(self, call: ToolCall, why: str) -> ToolResult:
        """Answers a call without executing it."""
        result = self.results[call.id] = ToolResult(call.id, call.name, why, is_error=True)
        return result

    def cancel(self, ticket: Ticket) -> None:
        """Cancels an effect that the tree no longer waits for."""
        del self.open[ticket.number]
        self.effects.append(Cancel(ticket.number))
        call = ticket.wanted
        if call is None:
            self._count_cut()
        else:
            self._executed.discard(call.id)
            known = self.job.known(self.replies - 1, call)
            self.results[call.id] = known or self.refuse(call, INTERRUPTED)

    def _returned(self, event: ToolReturned) -> None:
        """Handles the result of a call."""
        ticket, result = self.open.pop(event.ticket, None), event.result
        if ticket is None or ticket.wanted is None:
            return
        call = ticket.wanted
        self.results[call.id] = result
        self._done.add(call.name)
        self._show_result(result)
        for source in event.sources[: MOST_CITED - len(self._cited)]:
            if (source.id, source.url) not in self._cited:
                self._cited.add((source.id, source.url))
                self.uncited.append((source, call.id))
        facts: dict[str, object] = {"tool": call.name, "call_id": call.id}
        if result.is_error:
            self._failures[call.name] = count = self._failures.get(call.name, 0) + 1
            facts |= {"error": result.content[:SHOWN_RESULT], "failures": count}
            self.output.event("tool.call.failure", facts, source="tools")
        else:
            self._failures.pop(call.name, None)
            size = len(result.content)
            facts |= {"duration_ms": result.duration_ms, "items": event.items, "size": size}
            self.output.event("tool.call.success", facts, source="tools")
        for spent in result.spent:
            self.state.spend(spent)
        ticket.complete(_pass_result(ticket.leaf, result))

    def close_round(self) -> None:
        """Adds the results of the last reply's calls to the messages, in the order of the calls."""
        calls, self.calls = self.calls, ()
        executed = []
        for call in calls:
            result = self.results.get(call.id) or self.refuse(call, NOT_EXECUTED)
            if call.id in self._executed:
                executed.append((call, result))
            else:
                self._show_result(result)
        for call in calls:
            self.add_message(Message("tool", result=self.results[call.id]))
            self.state.show_context()
        if calls:
            self.state.end_turn(executed)

    def _show_result(self, result: ToolResult) -> None:
        shown = {
            "id": result.call_id,
            "name": result.name,
            "status": "error" if result.is_error else "success",
            "result": result.content[:SHOWN_RESULT],
            "duration_ms": result.duration_ms,
        }
        self.output.emit(Chunk("tool_result", {"tool_call": shown}))

    def send_sources(self) -> None:
        """Sends the sources of the results so far, each once a run."""
        for source, call_id in self.uncited:
            shown = {"id": source.id, "title": source.title, "url": source.url}
            self.output.emit(Chunk("source", {"source": {**shown, "tool_call_id": call_id}}))
        self.uncited.clear()

    # -- the end

    def find_reason(self) -> None:
        """Stops the run if a loop without an answer has reached a limit: of the run, or of the tree."""
        state = self.state
        if state.reason is None and self.failure is None and not self.is_answered:
            failed = self.run.state.failure
            if state.may_continue() and failed is not None and failed["type"] == "limit":
                state.terminate("max_iterations")

    def _ended(self, outcome: TreeOutcome) -> None:
        state = self.state
        try:
            if self.calls:
                self.close_round()
            if state.stop_after is not None:
                state.terminate(state.stop_after)
            if not self.is_answered:
                self.find_reason()
        except PolicyBroke as error:
            outcome = TreeOutcome(outcome.status, "internal_error", str(error))
        self.end = end = self._end(outcome)
        if state.reason is not None:
            state.report_stop()
        if self.uncited:
            self.send_sources()
        shown = tuple(self.output.shown)
        if shown or not self.is_answered or self.said[-1].text != end.text:
            self.said[:] = with_last_word(self.said, end.text, shown)
        facts = {
            "reason": end.reason,
            "exchange_saved": True,
            "cancelled": end.reason == "cancelled",
            "partial": end.partial,
        }
        self.end_event = self.output.finish(facts)

    def _end(self, outcome: TreeOutcome) -> End:
        """Makes the end. A reason to stop outranks a failure, and a failure outranks the answer."""
        piece = "".join(self.pieces)
        if self.state.reason is not None:
            text = piece or self.last_text or self.state.why
            return Finish(self.state.reason, text, partial=True)
        if self.failure is not None:
            return _failed(self.failure.failure, piece)
        if outcome.reason == "done" and self.is_answered:
            return Finish("answered", self.last_text if self.last_text.strip() else self._excuse())
        return self._unanswered(outcome, piece)

    def _unanswered(self, outcome: TreeOutcome, piece: str) -> Fail:
        facts = {"tree": self.job.plan.name, "why": outcome.detail, "failure": outcome.failure}
        log.error("tree_without_answer", extra=facts)
        message = DEFECT if outcome.reason == "internal_error" else NO_END
        return Fail(message, piece or self.last_text or message, "internal_error")

    def _excuse(self) -> str:
        """Returns the text in the place of an empty answer."""
        if self.last is not None and self.last.finish == "overrun":
            return OVERRUN.format(provider=self.last.provider)
        return EMPTY


def _failed(failure: ModelFailed | BudgetExceeded, piece: str) -> Fail:
    """Makes the end after a failure. `piece` is the part of the reply that reached the user."""
    if isinstance(failure, BudgetExceeded):
        why, retryable = str(failure), failure.retryable
        return Fail(why, why, "budget_exceeded", retryable=retryable, refusal=failure)
    message = BROKEN[failure.kind].format(provider=failure.provider)
    if failure.kind == "unmetered":  # no provider's fault
        text = piece or message
        return Fail(message, text, "internal_error", retryable=True, retry_after_s=UNMETERED_S)
    if isinstance(failure, TooLarge):
        message = f"This does not fit the model: {failure.detail}."
    return Fail(
        message,
        piece or message,
        retryable=failure.retryable,
        retry_after_s=failure.retry_after_s,
        provider=failure.provider,
        status=failure.status,
    )


def _pass_result(leaf: LeafCall, result: ToolResult) -> bool:
    """Passes the result to the loop around the leaf. True if the leaf succeeds."""
    leaf.set_result({"id": result.call_id, "name": result.name, "content": result.content})
    offered = leaf.plan.function
    return not result.is_error or (offered is not None and offered.name == EXECUTE)


def _options(leaf: LeafCall, usual: str) -> dict[str, Any]:
    """Returns the valid options of a model call. `usual` is the agent's model."""
    options: dict[str, Any] = dict.fromkeys(_OPTIONS)
    for name in leaf.plan.options.keys() & options.keys():
        value = leaf.option(name)
        options[name] = number(value) if name in _NUMBERS else value
    options["budget"] = int(options["budget"] or 0) or None
    if not isinstance(options["model"], str) or options["model"] in {"", usual}:
        options["model"] = None
    return options


def number(value: object) -> float | None:
    """Returns the value as a number; None if it is none."""
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def with_distinct_ids(reply: ModelReply, said: Sequence[Message]) -> ModelReply:
    """Makes the ids of calls distinct, because some models reuse an id in a reply or run."""
    taken = {call.id for message in said for call in message.tool_calls}
    calls: list[ToolCall] = []
    for call in reply.tool_calls:
        number, distinct = len(taken), call.id
        while distinct in taken:
            distinct, number = f"{call.id}-{number}", number + 1
        taken.add(distinct)
        calls.append(replace(call, id=distinct) if distinct != call.id else call)
    return replace(reply, tool_calls=tuple(calls))


def with_last_word(
    said: Sequence[Message], text: str, notices: tuple[tuple[SystemType, str], ...] = ()
) -> tuple[Message, ...]:
    """Makes the answer the last message. It replaces an empty reply."""
    *before, last = said or [Message("assistant")]
    if last.role != "assistant" or (last.text.strip() and last.text != text):
        before, last = [*before, last], Message("assistant")
    if (last.text, last.notices) != (text, notices):
        last = replace(last, text=text, notices=notices)
    return (*before, last)
