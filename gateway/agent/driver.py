"""Carries out the effects of a turn through ports. It is the only place where an agent waits. It journals every
grant (reply, result, message), so that the next attempt gets the same grants."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from operator import attrgetter, itemgetter
from typing import Any

import anyio
from anyio.abc import TaskGroup

from gateway.agent.effects import (
    NAME_OF,
    AskModel,
    CallTool,
    Cancel,
    Emit,
    Gate,
    Job,
    ModelBroke,
    ModelReplied,
    Moment,
    RunResult,
    Steered,
    StopRequested,
    TimePassed,
    ToolReturned,
    TurnEvent,
)
from gateway.agent.leaves import Plans
from gateway.agent.limits import SLACK, fit, plain_limits
from gateway.agent.output import CUT_OFF
from gateway.agent.turn import Turn
from gateway.control.notices import unavailable_notice
from gateway.control.policy import DecisionTrees, choose_decision
from gateway.control.rules import RuleSet
from gateway.domain.agents import DELEGATE, AgentDef, Soul
from gateway.domain.budgets import BudgetExceeded, Payer
from gateway.domain.errors import ModelFailed, TooLarge
from gateway.domain.events import Event, Notice
from gateway.domain.figures import OTHER, CallTrace
from gateway.domain.ids import NodeId, RunId
from gateway.domain.journal import JournalEntry
from gateway.domain.mcp import FAMILY, UnreachableServer
from gateway.domain.messages import (
    BYTES_A_TOKEN,
    Chunk,
    DoneReason,
    Excerpt,
    Extras,
    Message,
    Node,
    Price,
    Spent,
    ToolCall,
    ToolResult,
    Usage,
    unpriced,
)
from gateway.domain.model import BudgetWarning, Delta, ModelReply, ModelRequest, TextDelta
from gateway.domain.ports import Allowance, Clock, Model, ToolScope
from gateway.domain.sessions import chain_of
from gateway.memory.context import NO_EXTRAS, ContextExtras, Packer, explained
from gateway.tools import MAY_BE_DONE

log = logging.getLogger(__name__)

PART = "@"  # the first character of each step of a part
ENDING_S = 5.0  # for `:finally` of a tree
SHOWN = ("turn", "tokens_used", "iteration_percent", "token_percent", "recent_actions", "warned")
_SHOWN, _RUN_ID = itemgetter(*SHOWN), attrgetter("run_id")


@dataclass(slots=True)
class RunControl:
    """Stops and steers a run. Requests wait until the run begins."""

    requests: deque[StopRequested | Steered] = field(default_factory=deque)
    wake: Callable[[], None] = lambda: None
    forget: Callable[[RunId], bool] = lambda _run_id: False
    record: Callable[..., None] = lambda kind, *values: None  # adds an entry to the journal
    is_closed: bool = False

    def stop(self, reason: DoneReason, *, at_once: bool) -> None:
        self._request(StopRequested(reason, at_once))

    def steer(self, said: Steered) -> bool:
        """Passes one more message to the run. Returns False if the run has ended."""
        if self.is_closed:
            return False
        self._request(said)
        return True

    def _request(self, one: StopRequested | Steered) -> None:
        self.record(one.kind, *astuple(one))
        self.requests.append(one)
        self.wake()

    def withdraw(self, run_id: RunId) -> bool:
        """Withdraws a message. Returns False if the run has taken it already."""
        was_there = drop_said(self.requests, run_id) or self.forget(run_id)
        if was_there:
            self.record("unsaid", run_id)
        return was_there

    def close(self) -> None:
        """Ends the control of a run, and drops its references to the run."""
        self.is_closed, self.wake, self.forget = True, lambda: None, lambda _run_id: False
        self.record = lambda kind, *values: None


def drop_said(queue: MutableSequence[Any], run_id: RunId) -> bool:
    """Removes a person's message from the queue. Returns False if it is not there."""
    for one in queue:
        if isinstance(one, Steered) and one.run_id == run_id:
            queue.remove(one)
            return True
    return False


@dataclass(slots=True)
class EventQueue:
    """Events that the turn has not received yet."""

    items: deque[TurnEvent] = field(default_factory=deque)
    came: anyio.Event | None = None  # set while the driver waits

    def put(self, event: TurnEvent) -> None:
        self.items.append(event)
        self.wake()

    def wake(self) -> None:
        """Ends the wait of the driver."""
        if self.came is not None:
            self.came.set()


class RunJournal:
    """The journal of one run, with the grants of its earlier attempts: a resumed run gets them again.

    This class records nothing. It serves runs inside other runs, and runs that are not kept. `part` names
    the call of the outer run that this run works on.
    """

    is_recorded = False
    is_played = False  # True in a replay: the record decides when events come

    def __init__(
        self,
        clock: Clock,
        earlier: Sequence[JournalEntry] = (),
        *,
        part: str = "",
        outer: "RunJournal | None" = None,
    ) -> None:
        self.clock, self.earlier, self.part, self.outer = clock, earlier, part, outer
        self.calls: list[CallTrace] = outer.calls if outer else []  # of inner runs too
        self.tick, self.store_s = clock.monotonic, 0.0  # seconds spent on the store
        self.has_sent = False  # True if the current model call used the network
        self.replies: dict[int, ModelReply] = {}  # by step
        self.results: dict[tuple[int, str], ToolResult] = {}
        self.begun: set[tuple[int, str]] = set()  # calls that must not be made twice
        self.taken: dict[RunId, tuple[int, Steered]] = {}
        for entry in earlier:
            if entry.kind == "sub":
                if entry.values[0] == part:
                    self._add(JournalEntry(entry.values[1], tuple(entry.values[2])))
            elif not part:
                self._add(entry)

    def _add(self, entry: JournalEntry) -> None:
        match entry:
            case JournalEntry("reply", (step, dict(reply))):
                self.replies[step] = reply_from(reply)
            case JournalEntry("result", (call_id, step, name, _, result)):
                self.results[step, call_id] = result_from(call_id, name, result)
            case JournalEntry("begun", (step, call_id)):
                self.begun.add((step, call_id))
            case JournalEntry("taken", (step, run_id, text)):
                self.taken[RunId(run_id)] = (step, Steered(RunId(run_id), text))
            case _:
                pass

    # -- time

    def moment(self) -> Moment:
        return Moment(self.clock.now(), self.clock.monotonic())

    async def wait(self, queue: EventQueue, seconds: float) -> bool:
        """Waits for an event. Returns False if none comes in time."""
        if queue.items:
            return True
        queue.came = anyio.Event()
        with anyio.move_on_after(seconds):
            await queue.came.wait()
            return True
        self("late")
        return False

    # -- entries

    def __call__(self, kind: str, *values: object) -> None:
        """Adds an entry that only a replay reads."""

    def hide(self, *secrets: str) -> None:
        """Keeps these texts out of the journal."""

    async def compare(self, job: Job, scene: Mapping[str, object]) -> None:
        """Compares a replay with the record. `scene` is the configuration of the run."""

    def asks(self, request: ModelRequest) -> None:
        """Records a request to a model."""

    def replied(self, step: int, reply: ModelReply) -> None:
        """Records a reply."""

    def failed(self, failure: Exception) -> None:
        """Records the failure of a model, or the refusal of a budget."""

    # -- grants: a resumed attempt gets them again

    async def grant(self, name: str, kind: str, *values: object) -> None:
        """Writes a grant before it takes effect."""
        if self.outer is not None:
            await self.outer.grant(self.part + name, "sub", self.part, kind, list(values))

    def result(self, step: int, call: ToolCall) -> ToolResult | None:
        return self.results.get((step, call.id))

    async def keep_taken(self, step: int, said: Steered) -> None:
        if said.run_id not in self.taken:
            self.taken[said.run_id] = (step, said)
            await self.grant(f"taken:{said.run_id}", "taken", step, said.run_id, said.text)

    async def keep_reply(self, step: int, reply: ModelReply) -> None:
        """Keeps a reply with tool calls. A reply without calls ends the run, so it needs no grant."""
        self.replies[step] = reply
        await self.grant(f"reply:{step}", "reply", step, asdict(reply))

    async def keep_result(self, step: int, call: ToolCall, result: ToolResult) -> None:
        self.results[step, call.id] = result
        plain = plain_result(result)
        values = (call.id, step, call.name, call.arguments, plain)
        await self.grant(f"result:{call.id}", "result", *values)

    def inner(self, part: str) -> "RunJournal":
        """Returns the journal of a run inside this one."""
        root = self.outer or self
        return RunJournal(self.clock, root.earlier, part=part, outer=root)


def part_of(within: str, call: ToolCall, step: int) -> str:
    """Returns the part of the inner run for a call. `within` is the part of the asking run."""
    name = blake2b(call.id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{within}{PART}{step}-{name}:"


def plain_result(result: ToolResult) -> dict[str, object]:
    """Returns the fields of a result that are not empty and not in its entry already."""
    plain = asdict(result)
    del plain["call_id"], plain["name"]
    return {name: value for name, value in plain.items() if value not in (None, ())}


def result_from(call_id: str, name: str, plain: Mapping[str, Any]) -> ToolResult:
    """Reads a result of `plain_result`. Raises TypeError."""
    values = dict(plain)
    spent, cut = values.pop("spent", ()), values.pop("excerpt", None)
    excerpt = Excerpt(**cut) if cut else None
    return ToolResult(call_id, name, **values, spent=tuple(map(spent_from, spent)), excerpt=excerpt)


def spent_from(value: Mapping[str, Any]) -> Spent:
    return Spent(Usage(**value["usage"]), value["provider"], value["model"])


def reply_from(plain: Mapping[str, Any]) -> ModelReply:
    """Reads a recorded reply. Raises TypeError or KeyError."""
    values = dict(plain)
    calls, usage, extras = values.pop("tool_calls"), values.pop("usage"), values.pop("extras")
    return ModelReply(
        **{**values, "warnings": tuple(BudgetWarning(**one) for one in values.get("warnings", ()))},
        tool_calls=tuple(ToolCall(**call) for call in calls),
        usage=Usage(**usage),
        extras=Extras(**extras) if extras else None,
    )


class Driver:
    """Drives one turn to its end. Each run has its own driver."""

    def __init__(
        self,
        job: Job,
        model: Model,
        gate: Gate,
        journal: RunJournal,
        emit: Emit,
        *,
        control: RunControl | None = None,
    ) -> None:
        self.job, self.model, self.gate, self.journal, self.emit = job, model, gate, journal, emit
        self.control = control or RunControl()
        self.turn = Turn(job, emit, journal.moment())
        self._queue = EventQueue()
        self._asking: anyio.CancelScope | None = None  # of a model call without a task
        self._tasks: dict[int, anyio.TaskHandle[None]] = {}  # of the other effects, by ticket
        self._silent: dict[int, CallTrace] = {}  # model calls without a first token, by ticket
        self._spent: dict[int, list[Spent]] = {}  # by running tools, by ticket
        self._slots: anyio.CapacityLimiter | None = None
        self._shares: dict[int, int] = {}  # tokens of subagents, by ticket
        self._last = (job.agent.provider, job.agent.model)  # of the last reply
        self._deadline = self.turn.moment.at + self.turn.state.limits.timeout_seconds
        self._ending_until: float | None = None

    async def drive(self) -> RunResult:
        """Runs the turn to its end. A cancellation cancels all effects too."""
        turn, control, queue = self.turn, self.control, self._queue
        control.wake = self._queue_requests
        control.forget = lambda run_id: any(
            drop_said(said, run_id) for said in (queue.items, turn.queued)
        )
        if self.journal.taken:
            self._recall_said(0)
        if control.requests:
            self._queue_requests()
        self._pass_events()
        turn.advance()
        # A turn without tool calls needs no task. The first tool call opens a task group.
        while (ask := self._begin(None)) is not None:
            await self._wait(ask)
        if turn.end is None:
            await self._drive_side_by_side()
        control.close()
        del turn.run  # without this reference cycle the turn is freed at once
        assert turn.end is not None
        provider, model = self._last
        return RunResult(
            turn.end,
            tuple(turn.said),
            turn.state.usage,
            model,
            provider,
            tuple(map(_RUN_ID, turn.taken)),
            tuple(turn.output.posts),
            turn.end_event,
            turn.output.kept,
            turn.replies > 0 or bool("".join(turn.pieces)) or turn.failure is not None,
            turn.last.finish if turn.last else None,
            turn.state.asked,
        )

    async def _drive_side_by_side(self) -> None:
        async with anyio.create_task_group() as group:
            ask = self._begin(group)
            while self.turn.end is None:
                await self._wait(ask)
                ask = self._begin(group)
            if self.turn.open:  # the turn has ended without these effects
                group.cancel_scope.cancel()

    def progress(self) -> Mapping[str, object]:
        """Returns the state of the turn for `run.inspect`."""
        state, job = self.turn.state, self.job
        provider, model = self._last
        return {
            **dict(zip(SHOWN, _SHOWN(state.view()), strict=True)),
            "provider": provider,
            "model": model,
            "tree": job.plan.name,
            "decision": job.agent.decision,
            "verdicts": list(self.turn.output.verdicts),
            "config": plain_limits(state.limits),
            "context": explained(job.agent, job.context, self.turn.noticed),
        }

    # -- events

    def _queue_requests(self) -> None:
        """Moves requests from outside into the queue. A stop cancels a model call without a task, unless
        the tree is at its `:finally`."""
        requests, asking = self.control.requests, self._asking
        while requests:
            one = requests.popleft()
            self._queue.put(one)
            is_stop = isinstance(one, StopRequested) and one.at_once
            if asking is not None and is_stop and not self.turn.run.is_ending:
                asking.cancel()

    def _recall_said(self, step: int) -> None:
        """Queues the messages that an earlier attempt took at this step."""
        for taken_at, said in self.journal.taken.values():
            if taken_at == step:
                self._queue.put(said)

    def _pass_events(self) -> None:
        """Passes the queued events to the turn."""
        events = self._queue.items
        if events:
            self.journal("told", list(map(NAME_OF, events)))
        while events:
            self.turn.on(events.popleft(), self.journal.moment())

    async def _wait(self, ask: AskModel | None) -> None:
        """Waits for the reply if there is an `ask`, else for an event or a deadline of the tree or run."""
        now, turn, journal, queue = self.turn.moment.at, self.turn, self.journal, self._queue
        is_ending = turn.state.reason is not None or turn.run.is_ending
        if is_ending and self._ending_until is None:
            self._ending_until = now + ENDING_S
        until = deadline = self._ending_until or self._deadline
        if ask is not None:
            with anyio.move_on_after(until - now) as self._asking:
                queue.items.append(await self._ask(ask))
            self._asking = None
            has_come = bool(queue.items or turn.effects)  # a delta may have stopped the turn
            if not has_come:
                journal("late")
        else:
            tree = turn.run.next_deadline()
            until = deadline if tree is None else min(deadline, tree)
            has_come = await journal.wait(queue, until - now)
        if not has_come:
            self._pass_time(deadline, is_ending=is_ending)
        self._pass_events()

    def _pass_time(self, deadline: float, *, is_ending: bool) -> None:
        if self.journal.moment().at < deadline:
            self._queue.put(TimePassed())
        elif is_ending:
            self.turn.abort()
        else:
            self._queue.put(StopRequested("timeout"))

    # -- effects

    def _begin(self, group: TaskGroup | None) -> AskModel | None:
        """Begins the effects of the turn. Returns a model call that is the only open effect, because it
        needs no task. Without a group it returns before the first effect that needs one."""
        turn, effects, alone = self.turn, self.turn.effects, None
        while effects:
            effect = effects[0]
            if isinstance(effect, Cancel):
                self._cancel(effect.ticket)
            elif effect.ticket in turn.open:  # else cancelled already
                is_lasting = bool(self.journal.is_played or turn.run.state.timers)
                if isinstance(effect, AskModel) and len(turn.open) == 1 and not is_lasting:
                    alone = effect
                elif group is None:
                    return None
                else:
                    self._tasks[effect.ticket] = group.create_task(self._carry_out(effect))
            del effects[0]
        return alone

    def _cancel(self, ticket: int) -> None:
        task = self._tasks.pop(ticket, None)
        if task is not None:
            task.cancel()
        for spent in self._spent.pop(ticket, ()):
            self.turn.state.spend(spent)

    async def _carry_out(self, effect: AskModel | CallTool) -> None:
        """Carries out an effect and queues its event."""
        work = self._ask(effect) if isinstance(effect, AskModel) else self._call(effect)
        self._queue.put(await work)

    async def _ask(self, ask: AskModel) -> ModelReplied | ModelBroke:
        """Returns the reply, or the failure."""
        known = self.journal.replies.get(ask.step)
        if known is not None:
            self._recall_said(ask.step + 1)
            return ModelReplied(ask.ticket, known, was_heard=False)
        for said in ask.taken:
            await self.journal.keep_taken(ask.step, said)
        if ask.timeout_s is None:
            return await self._answered(ask)
        try:
            with anyio.fail_after(ask.timeout_s):
                return await self._answered(ask)
        except TimeoutError:
            late = ModelFailed(self.job.agent.provider, "timeout", "no reply in the tree's time")
            return ModelBroke(ask.ticket, late)

    async def _answered(self, ask: AskModel) -> ModelReplied | ModelBroke:
        """Asks the agent's model, then its fallbacks, until one has begun a reply."""
        journal, ticket, on_delta = self.journal, ask.ticket, partial(self._on_delta, ask.ticket)
        agent, first = self.job.agent, None
        while True:
            call = CallTrace("model", agent.model, journal.tick(), journal.part, agent.provider)
            journal.calls.append(call)
            self._silent[ticket] = call
            try:
                call.request = request = self._request(agent, ask)
                call.name = request.model
                journal.asks(request)
                reply = await self.model.reply(request, on_delta)
            except BudgetExceeded as refusal:
                call.ended, call.outcome = journal.tick(), "budget_exceeded"
                journal.failed(refusal)
                return ModelBroke(ticket, refusal)
            except ModelFailed as failure:
                call.ended, call.outcome = journal.tick(), failure.kind
                first, following = self._fall_back(agent, failure, first)
                if following is None:
                    return ModelBroke(ticket, first)
                agent = following
            else:
                call.ended, call.outcome, call.reply = journal.tick(), "ok", reply
                journal.replied(ask.step, reply)
                self._last = (reply.provider, reply.model)
                if reply.tool_calls:
                    await journal.keep_reply(ask.step, reply)
                return ModelReplied(ticket, reply)

    def _on_delta(self, ticket: int, delta: Delta) -> None:
        """Sends a piece of the reply to the user and counts its tokens."""
        turn, state, text = self.turn, self.turn.state, delta.text
        kind = "content" if isinstance(delta, TextDelta) else "thinking"
        if not self.journal.has_sent:
            self.journal("text" if kind == "content" else kind, text)
        if ticket in self._silent:
            self._silent.pop(ticket).first = self.journal.tick()
        if ticket not in turn.open:
            return
        if kind == "content":
            turn.pieces.append(text)
        self.emit(Chunk(kind, {"content": text}))
        size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        state.live += size / BYTES_A_TOKEN
        if state.live >= state.calm:
            self._exceed(ticket)

    def _exceed(self, ticket: int) -> None:
        self.turn.exceed(ticket)
        if ticket not in self.turn.open:  # the turn has cancelled the call
            self._queue.wake()
            if self._asking is not None:
                self._asking.cancel()

    def _fall_back(
        self, agent: AgentDef, failure: ModelFailed, first: ModelFailed | None
    ) -> tuple[ModelFailed, AgentDef | None]:
        """Returns the failure to report, and the agent to ask next."""
        if not isinstance(failure, TooLarge):  # no model was asked
            self.journal.failed(failure)
        elif first is not None and agent.fallback is None:
            failure, first = first, None  # the failure of a model that was asked says more
        is_last = failure.started or failure.kind == "unmetered" or agent.fallback is None
        facts = {
            "provider": failure.provider,
            "model": agent.model,
            "kind": failure.kind,
            "status": failure.status,
            "attempts": failure.attempts,
            "why": failure.detail,
        }
        log.warning("model_failed" if is_last else "model_fallback", extra=facts)
        return (failure, None) if is_last else (first or failure, agent.fallback)

    def _request(self, agent: AgentDef, ask: AskModel) -> ModelRequest:
        """Makes a request that fits the window of this agent's model. Raises TooLarge."""
        scope, context, is_first = self.job.scope, self.job.context, agent is self.job.agent
        is_accepted = scope.is_kept and scope.depth == ask.step == 0
        now = self.turn.moment.at if is_first else self.journal.moment().at
        left_s = max(0.0, self._deadline - now)
        request = ModelRequest(
            provider=agent.provider,
            model=(ask.model if is_first else None) or agent.model,
            system=ask.system,
            messages=ask.messages,
            tools=ask.tools,
            max_tokens=min(agent.max_tokens, ask.max_tokens or agent.max_tokens),
            temperature=agent.temperature,
            thinking=agent.thinking,
            stream=agent.stream,
            idle_timeout_s=ask.idle_timeout_s,
            deadline_s=left_s if ask.timeout_s is None else min(left_s, ask.timeout_s),
            payer=Payer(scope.session_key, scope.run_id, scope.principal, is_accepted=is_accepted),
            record=self.journal if self.journal.is_recorded else None,
        )
        window = agent.context_window
        if request.model != agent.model:
            window = _window_of(agent, request.model)
        counted = self.turn.state.context_tokens  # with or without system text and tools
        most = counted + context.system_tokens + context.tools_tokens + SLACK
        return request if most + request.max_tokens <= window else fit(request, context, window)

    async def _call(self, effect: CallTool) -> ToolReturned:
        journal, step, call = self.journal, effect.step, effect.call
        result = journal.result(step, call)
        if result is None and (step, call.id) in journal.begun:
            result = ToolResult(call.id, call.name, CUT_OFF, is_error=True)
        if result is None:
            if self._slots is None:
                self._slots = anyio.CapacityLimiter(self.turn.state.limits.max_parallel_tools)
            async with self._slots:
                if not self._may_repeat(call.name):
                    await journal.grant(f"begun:{call.id}", "begun", step, call.id)
                result = await self._result(effect)
            await journal.keep_result(step, call, result)
        listed = self.gate.listed(result)
        return ToolReturned(effect.ticket, result, listed.sources, listed.items)

    async def _result(self, effect: CallTool) -> ToolResult:
        call, spent = effect.call, self._spent.setdefault(effect.ticket, [])
        journal = self.journal
        part = part_of(journal.part, call, effect.step)
        is_known = any(one.name == call.name for one in self.job.tools)
        trace = CallTrace("tool", call.name if is_known else OTHER, journal.tick(), journal.part)
        trace.id, trace.inner, trace.arguments = call.id, part, call.arguments
        journal.calls.append(trace)

        def spend(one: Spent) -> None:
            self.journal("spent", call.id, [asdict(one)])
            spent.append(one)

        seconds = self._deadline - self.turn.moment.at
        if effect.timeout_s is not None:
            seconds = min(seconds, effect.timeout_s)
        scope = replace(
            self.job.scope,
            agent=self.job.agent,
            question=self.job.context.question.text,
            part=part,
            allowance=partial(self._share, effect.ticket, seconds),
            spend=spend,
        )
        result: ToolResult | None = None
        with anyio.move_on_after(effect.timeout_s):
            result = await self.gate.call(self.job.agent, call, scope)
        if result is None:
            text = f"{call.name} did not answer within {effect.timeout_s:g} s."
            if not self._may_repeat(call.name):
                text = f"{text} {MAY_BE_DONE}"
            result = ToolResult(call.id, call.name, text, is_error=True, spent=tuple(spent))
        trace.ended, trace.result = journal.tick(), result
        trace.outcome = "error" if result.is_error else "ok"
        return result

    def _may_repeat(self, name: str) -> bool:
        return all(one.may_repeat for one in self.job.tools if one.name == name)

    def _share(self, ticket: int, seconds: float) -> Allowance:
        """Returns the allowance of a subagent: an equal share of the tokens for each waiting subagent and
        for the run itself. A subagent holds its share until the run has counted its usage."""
        open_, state = self.turn.open, self.turn.state
        self._shares = {one: its for one, its in self._shares.items() if one in open_}
        waiting = {
            one
            for one, its in open_.items()
            if one not in self._shares and its.wanted and its.wanted.name.startswith(DELEGATE)
        } | {ticket}
        left = state.limits.token_budget - state.usage.total - sum(self._shares.values())
        self._shares[ticket] = tokens = max(0, left // (len(waiting) + 1))
        return Allowance(tokens, seconds)


def _window_of(agent: AgentDef, model: str) -> int:
    """Returns the window of a model that a tree or a rule has chosen, as the agent or a fallback has it."""
    known = (one.context_window for one in chain_of(agent) if one.model == model)
    return next(known, agent.context_window)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A question for an agent, in a scope. `earlier` are the messages before it, oldest first; `notices`
    wait for the run; `kept` is the state of the session's rules."""

    agent: AgentDef
    question: Message
    scope: ToolScope
    soul: Soul | None = None
    earlier: tuple[Node, ...] = ()
    extras: ContextExtras = NO_EXTRAS
    notices: Sequence[Notice] = ()
    lacking: Sequence[UnreachableServer] = ()
    kept: Mapping[str, object] = field(default_factory=dict)
    context_id: NodeId | None = None


@dataclass(frozen=True, slots=True)
class Runner:
    """Builds the jobs of runs and drives them, for lanes, stateless callers and subagents. The model is
    metered: the session in the assignment's scope pays."""

    model: Model
    gate: Gate
    plans: Plans
    decisions: DecisionTrees
    rules: RuleSet
    publish: Callable[[Event], None] = field(default=lambda event: None)
    hears: Callable[[str], bool] = field(default=lambda event_type: True)  # has it a listener?
    price: Price = unpriced
    packer: Packer = field(default_factory=Packer)

    async def answer(
        self,
        assignment: Assignment,
        journal: RunJournal,
        emit: Emit,
        control: RunControl | None = None,
    ) -> RunResult:
        """Drives a run to its end. A cancellation cancels the turn."""
        control = control or RunControl()
        lacking = await self.lacking(assignment.agent, control)
        job = self.job(replace(assignment, lacking=lacking), journal)
        return await Driver(job, self.model, self.gate, journal, emit, control=control).drive()

    async def lacking(self, agent: AgentDef, control: RunControl) -> Sequence[UnreachableServer]:
        """Connects the agent's tool servers and returns the missing ones. A stop of the run ends the wait."""
        if FAMILY not in " ".join(agent.tools):
            return ()
        with anyio.CancelScope() as scope:

            def wake() -> None:
                if any(isinstance(one, StopRequested) for one in control.requests):
                    scope.cancel()

            control.wake = wake
            wake()
            return await self.gate.prepare(agent)
        return ()

    def job(self, assignment: Assignment, journal: RunJournal) -> Job:
        its, agent = assignment, assignment.agent
        tools, (plan, digest) = self.gate.offered(agent), self.plans.of(agent.id)
        decision = choose_decision(agent.decision, plan.decision)
        if decision != agent.decision:
            agent = replace(agent, decision=decision)
        return Job(
            agent=agent,
            plan=plan,
            plan_digest=digest,
            context=self.packer.pack(
                agent, its.soul, its.earlier, its.question, tools, extras=its.extras
            ),
            tools=tools,
            scope=its.scope,
            rules=self.rules,
            kept=its.kept,
            publish=self.publish,
            hears=self.hears,
            decision=self.decisions[decision],
            context_id=its.context_id,
            known=journal.result,
            waiting=(*its.notices, *map(unavailable_notice, its.lacking)),
            price=self.price,
            near_at=max(1, agent.context_window * agent.context.warning_percent // 100),
        )
