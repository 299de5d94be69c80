"""Carries out the effects of a turn through ports: the only place where an agent waits."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter, itemgetter

import anyio
from anyio.abc import TaskGroup

from gateway.agent.effects import (
    AskModel,
    CallTool,
    Cancel,
    Emit,
    Gate,
    Job,
    ModelBroke,
    ModelReplied,
    Moment,
    RunControl,
    RunResult,
    StopRequest,
    StopRequested,
    TimePassed,
    ToolReturned,
    TurnEvent,
    drop_said,
)
from gateway.agent.fitting import SLACK, fitted
from gateway.agent.journal import EventQueue, RunJournal, part_of
from gateway.agent.output import CUT_OFF
from gateway.agent.turn import LIMITS, Turn
from gateway.domain.agents import DELEGATE, AgentDef, Limits
from gateway.domain.budgets import BudgetExceeded, Payer
from gateway.domain.errors import ModelFailed, TooLarge
from gateway.domain.messages import Spent, ToolCall, ToolResult
from gateway.domain.model import Delta, ModelRequest, TextDelta
from gateway.domain.ports import Allowance, Model
from gateway.memory.context import explained

log = logging.getLogger(__name__)

ENDING_S = 5.0  # for what a tree does at its end
SHOWN = ("turn", "tokens_used", "iteration_percent", "token_percent", "recent_actions", "warned")
_SHOWN, _RUN_ID, _LIMITS = itemgetter(*SHOWN), attrgetter("run_id"), attrgetter(*LIMITS)


def plain_limits(limits: Limits) -> Mapping[str, object]:
    return dict(zip(LIMITS, _LIMITS(limits), strict=True))


def delegates(call: ToolCall) -> bool:
    return call.name.startswith(DELEGATE)


@dataclass(slots=True)
class Driver:
    """Drives one turn to its end. A driver is made for one run and thrown away."""

    job: Job
    model: Model
    gate: Gate
    journal: RunJournal
    emit: Emit
    begun: Moment
    control: RunControl = field(default_factory=RunControl)
    turn: Turn = field(init=False)
    _queue: EventQueue = field(default_factory=EventQueue)
    _tasks: dict[int, anyio.TaskHandle[None]] = field(default_factory=dict)
    _spent: dict[int, list[Spent]] = field(default_factory=dict)  # by tools at work
    _slots: anyio.CapacityLimiter | None = None
    _shares: dict[int, int] = field(default_factory=dict)  # tokens of subagents, by ticket
    _last: tuple[str, str] = ("", "")  # provider and model of the last reply
    _deadline: float = 0.0
    _ending_until: float | None = None

    def __post_init__(self) -> None:
        self._last = (self.job.agent.provider, self.job.agent.model)
        self.turn = Turn(self.job, self.emit, self.begun)
        self._deadline = self.turn.moment.at + self.turn.state.limits.timeout_seconds

    async def drive(self) -> RunResult:
        """Runs until the tree is over. Cancelling it cancels everything that it waits for."""
        turn, control, queue = self.turn, self.control, self._queue
        control.wake = self._take_requests
        control.forget = lambda run_id: any(
            drop_said(said, run_id) for said in (queue.items, turn.exchange.queued)
        )
        self._recall_said(0)
        self._take_requests()
        async with anyio.create_task_group() as group:
            self._hand_over()
            turn.begin()
            while self._carry_out(group):
                await self._wait()
                self._hand_over()
            if turn.tickets.open:  # nothing that still runs is wanted
                group.cancel_scope.cancel()
        control.close()
        del turn.run  # nothing in a turn refers to itself then, so it is freed at once
        turn.output.let_go()
        assert turn.end is not None
        provider, model = self._last
        return RunResult(
            turn.end,
            tuple(turn.exchange.said),
            turn.state.usage,
            model,
            provider,
            tuple(map(_RUN_ID, turn.exchange.taken)),
            tuple(turn.output.posts),
            turn.farewell,
            self.job.rules.kept,
            turn.exchange.replies > 0 or bool(turn.exchange.heard) or turn.failure is not None,
            turn.exchange.last.finish if turn.exchange.last else None,
        )

    def progress(self) -> Mapping[str, object]:
        """How far the run is, for `run.inspect`."""
        state, output = self.turn.state, self.turn.output
        provider, model = self._last
        view = state.view()
        return {
            **dict(zip(SHOWN, _SHOWN(view), strict=True)),
            "provider": provider,
            "model": model,
            "tree": self.job.plan.name,
            "decision": self.job.agent.decision,
            "verdicts": list(output.verdicts),
            "config": plain_limits(state.limits),
            "context": explained(self.job.agent, self.job.context, self.turn.exchange.noticed),
        }

    # -- events

    def _take_requests(self) -> None:
        requests = self.control.requests
        while requests:
            one = requests.popleft()
            if isinstance(one, StopRequest):
                self._queue.put(StopRequested(one.reason, at_once=one.at_once))
            else:
                self._queue.put(one)

    def _hand_over(self) -> None:
        events = self._queue.items
        if events:
            self.journal.tells(events)
        while events:
            self.turn.on(events.popleft(), self.journal.moment())

    def _recall_said(self, step: int) -> None:
        """Gives the turn what an earlier attempt took at this step."""
        for said in self.journal.taken(step):
            self._queue.put(said)

    async def _wait(self) -> None:
        """Waits for an event, or for a time that the tree or the run waits for."""
        now, turn = self.turn.moment.at, self.turn
        is_ending = turn.state.reason is not None or turn.run.is_ending
        if is_ending and self._ending_until is None:
            self._ending_until = now + ENDING_S
        deadline = self._ending_until or self._deadline
        tree = turn.run.next_deadline()
        until = deadline if tree is None else min(deadline, tree)
        if await self.journal.wait(self._queue, until - now):
            return
        event: TurnEvent = TimePassed()
        if self.journal.moment().at >= deadline:
            if is_ending:
                turn.give_up()
                return
            event = StopRequested("timeout")
        self._queue.put(event)

    # -- effects

    def _carry_out(self, group: TaskGroup) -> bool:
        """Begins the effects that the turn wants; False once the turn is over."""
        for effect in self.turn.tickets.take_new():
            if isinstance(effect, Cancel):
                self._tasks.pop(effect.ticket).cancel()
                self.turn.exchange.take_spent(self._spent.pop(effect.ticket, ()))
            else:
                task = self._ask(effect) if isinstance(effect, AskModel) else self._call(effect)
                self._tasks[effect.ticket] = group.create_task(task)
        return self.turn.end is None

    async def _ask(self, ask: AskModel) -> None:
        known = self.journal.granted.replies.get(ask.step)
        if known is not None:
            self._recall_said(ask.step + 1)
            self._queue.put(ModelReplied(ask.ticket, known, was_heard=False))
            return
        for said in ask.taken:
            await self.journal.take(ask.step, said)
        if ask.timeout_s is None:
            self._queue.put(await self._answered(ask))
            return
        try:
            with anyio.fail_after(ask.timeout_s):
                event = await self._answered(ask)
        except TimeoutError:
            late = ModelFailed(self.job.agent.provider, "timeout", "no reply in the tree's time")
            event = ModelBroke(ask.ticket, late)
        self._queue.put(event)

    async def _answered(self, ask: AskModel) -> ModelReplied | ModelBroke:
        """Goes down the chain of fallbacks, as long as no text of a reply was heard."""
        journal, hear, ticket = self.journal, self.turn.hear, ask.ticket
        open_ = self.turn.tickets.open

        def heard(delta: Delta) -> None:
            if not journal.has_sent:
                journal("text" if isinstance(delta, TextDelta) else "thinking", delta.text)
            hear(ticket, delta)
            if ticket not in open_:
                self._queue.came.set()  # it has stopped the turn

        agent = self.job.agent
        first: ModelFailed | None = None
        while True:
            try:
                request = self._fitting(agent, ask)
                journal.asks(request)
                reply = await self.model.reply(request, heard)
            except BudgetExceeded as refusal:
                journal.failed(refusal)
                why = {"scope": refusal.scope, "why": str(refusal)}
                log.warning("budget exceeded", extra=why)
                return ModelBroke(ticket, refusal)
            except ModelFailed as failure:
                first, fallback = self._fall_back(agent, failure, first)
                if fallback is None:
                    return ModelBroke(ticket, first)
                agent = fallback
            else:
                journal.replied(ask.step, reply)
                self._last = (reply.provider, reply.model)
                if reply.tool_calls:
                    await journal.keep_reply(ask.step, reply)
                return ModelReplied(ticket, reply)

    def _fall_back(
        self, agent: AgentDef, failure: ModelFailed, first: ModelFailed | None
    ) -> tuple[ModelFailed, AgentDef | None]:
        """The failure to tell so far, and the agent to ask next."""
        if not isinstance(failure, TooLarge):  # of that, nobody was asked
            self.journal.failed(failure)
        elif first is not None and agent.fallback is None:
            failure, first = first, None  # which says more of what was asked for
        is_last = failure.started or failure.kind == "unmetered" or agent.fallback is None
        told = {"kind": failure.kind, "model": agent.model, "why": str(failure)}
        log.warning("model failed" if is_last else "falling back", extra=told)
        return (failure, None) if is_last else (first or failure, agent.fallback)

    def _fitting(self, agent: AgentDef, ask: AskModel) -> ModelRequest:
        """Fits the window of this agent's model, or raises TooLarge."""
        request, context = self._request(agent, ask), self.job.context
        window = agent.context_window
        if request.model != agent.model:
            window = _window_of(agent, request.model)
        told = self.turn.state.context_tokens  # which may count system and tools, or may not
        most = told + context.system_tokens + context.tools_tokens + SLACK
        if most + request.max_tokens <= window:
            return request
        return fitted(request, context, window)

    def _request(self, agent: AgentDef, ask: AskModel) -> ModelRequest:
        is_first, scope = agent is self.job.agent, self.job.scope
        is_accepted = scope.is_kept and scope.depth == ask.step == 0
        now = self.turn.moment.at if is_first else self.journal.moment().at
        left_s = max(0.0, self._deadline - now)
        return ModelRequest(
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
            payer=Payer(scope.session_key, scope.run_id, is_accepted=is_accepted),
            record=self.journal if self.journal.is_recorded else None,
        )

    async def _call(self, effect: CallTool) -> None:
        journal, step, call = self.journal, effect.step, effect.call
        result = journal.result(step, call)
        if result is None and (step, call.id) in journal.granted.begun:
            result = ToolResult(call.id, call.name, CUT_OFF, is_error=True)
        if result is None:
            if self._slots is None:
                most = self.turn.state.limits.max_parallel_tools
                self._slots = anyio.CapacityLimiter(most)
            async with self._slots:
                if not all(one.may_repeat for one in self.job.tools if one.name == call.name):
                    await journal.begin_call(step, call)
                result = await self._result(effect)
            await journal.keep_result(step, call, result)
        listed = self.gate.listed(result)
        self._queue.put(ToolReturned(effect.ticket, result, listed.sources, listed.items))

    async def _result(self, effect: CallTool) -> ToolResult:
        call, spent = effect.call, self._spent.setdefault(effect.ticket, [])

        def spend(one: Spent) -> None:
            self.journal.spends(call, one)
            spent.append(one)

        seconds = self._deadline - self.turn.moment.at
        seconds = min(seconds, seconds if effect.timeout_s is None else effect.timeout_s)
        scope = replace(
            self.job.scope,
            agent=self.job.agent,
            question=self.job.context.question.text,
            part=part_of(self.journal.part, call, effect.step),
            carve=partial(self._share, effect.ticket, seconds),
            spend=spend,
        )
        with anyio.move_on_after(effect.timeout_s):
            return await self.gate.call(self.job.agent, call, scope)
        told = f"{call.name} did not answer within {effect.timeout_s:g} s."
        return ToolResult(call.id, call.name, told, is_error=True, spent=tuple(spent))

    def _share(self, ticket: int, seconds: float) -> Allowance:
        """The allowance of a subagent: as many tokens for each one that waits for its share, and for
        the run itself, which has to make something of what they find. A subagent has its share until
        the run has counted what was spent of it."""
        open_, state = self.turn.tickets.open, self.turn.state
        self._shares = {one: its for one, its in self._shares.items() if one in open_}
        waiting = {
            one
            for one, its in open_.items()
            if one not in self._shares and its.wanted is not None and delegates(its.wanted)
        } | {ticket}
        left = state.limits.token_budget - state.usage.total - sum(self._shares.values())
        self._shares[ticket] = tokens = max(0, left // (len(waiting) + 1))
        return Allowance(tokens, seconds)


def _window_of(agent: AgentDef, model: str) -> int:
    """Of a model that a tree or a rule may have chosen: as the agent or one of its fallbacks has it."""
    one: AgentDef | None = agent
    while one is not None and one.model != model:
        one = one.fallback
    return (one or agent).context_window
