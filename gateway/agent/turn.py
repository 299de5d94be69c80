"""One turn of an agent as a pure machine: events go in, effects come out. The loop is a behaviour tree.

A turn never waits and reads no clock: the driver carries out the effects and passes the time with each
event. A turn that was cut short is resumed by giving the same events to a new one."""

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
    nearly_spent,
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
from gateway.tools.results import SPEC, ToolSource

log = logging.getLogger(__name__)

# Characters in a chunk; the model, the tool and the history get all of it.
SHOWN_RESULT = 2_000
SHOWN_ARGUMENTS = 20_000
MOST_CITED = 500  # of a run
UNMETERED_S = 5.0  # after which the ledger may be written again

EXECUTE = "tools.execute"  # a leaf of older trees, which fails for no result
_name_of, _RESULT = attrgetter("name"), attrgetter("result")
# Options of `llm-call`.
_NUMBERS = ("budget", "timeout", "idle-timeout")
_OPTIONS = ("model", "tools", *_NUMBERS)

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


@dataclass(frozen=True, slots=True, eq=False)
class Variables(Mapping[str, object]):
    """What rules, trees and notices can look up; each root is made when it is asked for, so that it
    shows what is true now."""

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
    """An effect that is being carried out; its leaf waits for it. `wanted` is the call of a tool."""

    def __init__(self, turn: "Turn", leaf: LeafCall, wanted: ToolCall | None = None) -> None:
        turn.last_ticket = self.number = turn.last_ticket + 1
        turn.open[self.number] = self
        self._state, self.turn, self.leaf, self.wanted = leaf.state, turn, leaf, wanted

    def halt(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.turn.cancel(self)


class Turn:
    """`messages` are shown to the model; `said` is what becomes part of the conversation. `end` is set
    once the tree is over."""

    job: Job
    state: RunState
    system = ""
    replies = 0
    last: ModelReply | None = None
    last_text = ""  # of the last reply that had one
    old_messages = 0  # at the beginning of `messages`: the history
    is_answered = False  # the last message is a reply without calls
    calls: Sequence[ToolCall] = ()  # of the last reply, until their results are among the messages
    last_ticket = 0
    end: End | None = None
    end_event: Event | None = None  # to be published once the end is durable
    failure: ModelBroke | None = None  # of the last question to a model

    def __init__(self, job: Job, emit: Emit, moment: Moment) -> None:
        """Raises PolicyBroke."""
        self.job, self.moment = job, moment
        variables = Variables(self)
        self.output = Output(job, emit, variables, self.interrupt, moment)
        self.state = RunState(job, self.output, moment)
        self.messages: list[Message] = []
        self.said: list[Message] = []
        self.queued: list[Steered] = []  # people said it meanwhile
        self.taken: list[Steered] = []  # they said it, and it is among the messages
        self.noticed: list[int] = []  # tokens of each message with notices
        self.pieces: list[str] = []  # of the text of a reply that is not complete
        self.results: dict[str, ToolResult] = {}  # of `calls`, by id
        self._executed: set[str] = set()  # ids of those that were
        self._done: set[str] = set()  # tools whose calls ended since notices were told last
        self._failures: dict[str, int] = {}  # in a row, by tool
        self._cited: set[tuple[str, str | None]] = set()
        self.uncited: list[tuple[ToolSource, str]] = []  # sources that the user was not told yet
        self.effects: list[Effect] = []  # that the driver has not begun
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
                self.run.frame.values[key] = given[key]  # one of another type is the tree's own

    # -- for the driver

    def on(self, event: TurnEvent, moment: Moment) -> None:
        """Takes an event; then there may be new effects, or the end."""
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
        """Ticks until the tree waits or is over. Interrupts a tree that waits although the run is to
        end."""
        while self.end is None:
            if self.run.step():
                assert self.run.outcome is not None
                self._ended(self.run.outcome)
            elif not self.run.state.is_awake:
                if self.state.reason is None or self.run.is_ending:
                    return
                self.run.interrupt(self.state.reason)

    def exceed(self, ticket: int) -> None:
        """Stops the turn if the reply that is being heard goes beyond the token budget."""
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
        """Ends it although the `:finally` of its tree is not done."""
        self.run.abandon()
        self.advance()

    # -- messages

    def add_message(self, message: Message, *, is_kept: bool = True) -> None:
        """Shows a message to the model; `is_kept` makes it part of the conversation."""
        self.messages.append(message)
        self.state.context_tokens += message_tokens(message)
        if is_kept:
            self.said.append(message)
            self.is_answered = message.role == "assistant" and not message.tool_calls
            if message.role == "assistant" and message.text:
                self.last_text = message.text

    def drain(self, point: Point) -> None:
        """Tells the notices that are due. The model sees them; the conversation does not keep them."""
        notices, tools = self.output.notices, frozenset(self._done)
        self._done.clear()
        notices.turn = self.state.turn
        told = self.output.drain(point, tools) if notices.waiting else ""
        if told:
            notice = Message("user", told)
            self.noticed.append(message_tokens(notice))
            self.add_message(notice, is_kept=False)

    # -- replies

    def ask(self, leaf: LeafCall) -> object:
        """Asks a model for a reply, with the options of the leaf, unless the turn may not ask any more."""
        if self.open:
            return leaf.fail("a model is asked when nothing else is at work", "busy")
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
        if self.replies:  # the tree may have put anything between calls and their results
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
        """The agent's tools that the leaf names and no rule has taken away; and the tool that reads on,
        where the model sees a part of a result and may read the rest."""
        tools, without = self.job.tools, self.output.without
        if isinstance(named, list) and named is not self.tools:
            tools = tuple([tool for tool in tools if tool.name in named])
        for result in filter(None, map(_RESULT, self.messages)):
            if result.excerpt and result.excerpt.reference:
                tools = (*[tool for tool in tools if tool.name != SPEC.name], SPEC)
                break
        return tuple([tool for tool in tools if tool.name not in without]) if without else tools

    def _replied(self, event: ModelReplied) -> None:
        """Takes a complete reply and opens its calls."""
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
            output.warn("budget.token.warning", state.turn, *nearly_spent(warning))
        if calls:
            self._open_round(calls)
        else:
            output.event("agent.turn.ended", {"turn": state.turn})
        leaf, keys = ticket.leaf, ticket.leaf.plan.options.get("stream-to")
        try:
            leaf.write("tool_calls", self.waiting_calls() if calls else [])
            if keys is not None:
                self._stream_to(leaf, keys.constant, reply.text)
        except BadWrite as error:  # a text where the tree keeps a number
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
                if self.replies:  # what was done so far is kept
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
        """Counts a reply that will not come, by an estimate: the prompt was sent, and a part of the reply
        may have arrived."""
        self.state.sent = 0
        if was_sent or self.state.live:
            agent, heard = self.job.agent, ceil(self.state.live)
            usage = Usage(self.state.context_tokens, heard, estimated=True)
            model = self.output.model or agent.model
            usage = replace(usage, cost_usd=self.job.price(agent.provider, model, usage))
            self.state.spend(Spent(usage, agent.provider, model))

    # -- tool calls: a round is the calls of one reply with their results

    def _open_round(self, calls: Sequence[ToolCall]) -> None:
        """Shows every call as pending; those beyond the limit are answered at once."""
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
        """The calls that are still to be executed, as a tree sees them."""
        return [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in self.calls
            if call.id not in self.results
        ]

    def call_tool(self, leaf: LeafCall, named: object) -> object:
        """Has the call executed that a value of the tree names, or takes the result that there is."""
        id_ = named.get("id") if isinstance(named, Mapping) else None
        wanted = self._call(id_)
        if wanted is None:
            return leaf.fail("this is none of the calls that the model asked for", "unknown_call")
        known = self.results.get(wanted.id)
        if known is None and self.state.reason is not None:
            return leaf.fail(f"the run ends: {self.state.reason}", "stopped")
        if known is None and any(one.wanted == wanted for one in self.open.values()):
            return leaf.fail("this call is at work already", "busy")
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
        """Answers a call that must not begin. One that has a result of an earlier attempt begins, and
        gets it."""
        if self.queued and self.job.known(step, wanted) is None:
            return self.refuse(wanted, SKIPPED)
        return self.refuse(wanted, TAKEN_AWAY) if wanted.name in self.output.without else None

    def refuse(self, call: ToolCall, why: str) -> ToolResult:
        """Answers a call that is not executed."""
        result = self.results[call.id] = ToolResult(call.id, call.name, why, is_error=True)
        return result

    def cancel(self, ticket: Ticket) -> None:
        """Takes back an effect that the tree no longer waits for."""
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
        """Takes the result of a call."""
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
        """Finds out whether a loop that ended without an answer came to a limit: of the run, or one that
        the tree counts itself."""
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
        told = {
            "reason": end.reason,
            "exchange_saved": True,
            "cancelled": end.reason == "cancelled",
            "partial": end.partial,
        }
        self.end_event = self.output.finish(told)

    def _end(self, outcome: TreeOutcome) -> End:
        """A reason to stop comes before the answer, and that before a failure."""
        heard = "".join(self.pieces)
        if self.state.reason is not None:
            text = heard or self.last_text or self.state.why
            return Finish(self.state.reason, text, partial=True)
        if self.failure is not None:
            return _failed(self.failure.failure, heard)
        if outcome.reason == "done" and self.is_answered:
            return Finish("answered", self.last_text if self.last_text.strip() else self._excuse())
        return self._unanswered(outcome, heard)

    def _unanswered(self, outcome: TreeOutcome, heard: str) -> Fail:
        facts = {"tree": self.job.plan.name, "why": outcome.detail, "failure": outcome.failure}
        log.error("tree_without_answer", extra=facts)
        told = DEFECT if outcome.reason == "internal_error" else NO_END
        return Fail(told, heard or self.last_text or told, "internal_error")

    def _excuse(self) -> str:
        """What stands in the place of an empty answer."""
        if self.last is not None and self.last.finish == "overrun":
            return OVERRUN.format(provider=self.last.provider)
        return EMPTY


def _failed(failure: ModelFailed | BudgetExceeded, heard: str) -> Fail:
    """The end after a failure; `heard` is the part of the reply that reached the user."""
    if isinstance(failure, BudgetExceeded):
        told = str(failure)
        return Fail(told, told, "budget_exceeded", retryable=failure.retryable, refusal=failure)
    told = BROKEN[failure.kind].format(provider=failure.provider)
    if failure.kind == "unmetered":  # no provider's fault
        text = heard or told
        return Fail(told, text, "internal_error", retryable=True, retry_after_s=UNMETERED_S)
    if isinstance(failure, TooLarge):
        told = f"This does not fit the model: {failure.detail}."
    return Fail(
        told,
        heard or told,
        retryable=failure.retryable,
        retry_after_s=failure.retry_after_s,
        provider=failure.provider,
        status=failure.status,
    )


def _pass_result(leaf: LeafCall, result: ToolResult) -> bool:
    """Gives the result to the loop around the leaf; whether the leaf succeeds."""
    leaf.set_result({"id": result.call_id, "name": result.name, "content": result.content})
    offered = leaf.plan.function
    return not result.is_error or (offered is not None and offered.name == EXECUTE)


def _options(leaf: LeafCall, usual: str) -> dict[str, Any]:
    """The options of a question to a model, as far as they make sense. `usual` is the agent's model."""
    options: dict[str, Any] = dict.fromkeys(_OPTIONS)
    for name in leaf.plan.options.keys() & options.keys():
        value = leaf.option(name)
        options[name] = number(value) if name in _NUMBERS else value
    options["budget"] = int(options["budget"] or 0) or None
    if not isinstance(options["model"], str) or options["model"] in {"", usual}:
        options["model"] = None
    return options


def number(value: object) -> float | None:
    """The value as a number, if it is one."""
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def with_distinct_ids(reply: ModelReply, said: Sequence[Message]) -> ModelReply:
    """Some models reuse an id within a reply or a run; each result has to find its own call."""
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
    """Puts the answer at the end, once; it replaces an empty reply."""
    *before, last = said or [Message("assistant")]
    if last.role != "assistant" or (last.text.strip() and last.text != text):
        before, last = [*before, last], Message("assistant")
    if (last.text, last.notices) != (text, notices):
        last = replace(last, text=text, notices=notices)
    return (*before, last)
