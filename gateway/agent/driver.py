"""Carries out what a turn wants through ports: the only place where an agent waits."""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
from anyio.abc import TaskGroup

from gateway.agent.effects import (
    Answer,
    AskModel,
    CallTool,
    Cancel,
    Emit,
    Gate,
    Job,
    ModelBroke,
    ModelReplied,
    Moment,
    Reins,
    Stop,
    Stopped,
    Story,
    Ticked,
    Told,
    ToolReturned,
    drop_said,
    part_of,
)
from gateway.agent.fitting import SLACK, fitted
from gateway.agent.leaves import LEAVES
from gateway.agent.output import CUT_OFF
from gateway.agent.turn import LIMITS, Turn
from gateway.domain.agents import DELEGATE, AgentDef
from gateway.domain.budgets import BudgetExceeded, Payer
from gateway.domain.errors import ModelFailed, TooLarge
from gateway.domain.messages import Spent, ToolCall, ToolResult
from gateway.domain.model import Delta, ModelReply, ModelRequest
from gateway.domain.ports import Allowance, Clock, Model
from gateway.memory.context import explained


@dataclass(slots=True)
class News:
    """What has happened and was not told yet."""

    items: deque[Told] = field(default_factory=deque)
    came: anyio.Event = field(default_factory=anyio.Event)

    def put(self, told: Told) -> None:
        self.items.append(told)
        self.came.set()

    def expect(self) -> None:
        self.came = anyio.Event()


class Pace:
    """In real time."""

    async def begins(self, job: Job, scene: Mapping[str, object]) -> None:
        """The run begins; `scene` is what decides over it besides the job, plain."""

    async def wait(self, news: News, seconds: float) -> bool:
        """Until there is something to tell, or to do; False: not within that time."""
        if news.items:
            return True
        news.expect()
        with anyio.move_on_after(seconds):
            await news.came.wait()
            return True
        return False

    def tells(self, told: Sequence[Told]) -> None:
        """The turn is told this now."""

    def ends(self) -> None:
        """Nothing more will be told."""


@dataclass(slots=True)
class Carving:
    """Of one run: who has a share has it until the run has counted what was spent of it."""

    _shares: dict[int, int] = field(default_factory=dict)  # tokens, by ticket

    def share(self, ticket: int, turn: Turn, seconds: float) -> Allowance:
        """As many tokens for each that waits for its share, and for the run itself: it has to make
        something of what they find."""
        open_, course = turn.tickets.open, turn.course
        self._shares = {one: its for one, its in self._shares.items() if one in open_}
        waiting = {
            one
            for one, its in open_.items()
            if one not in self._shares and its.wanted is not None and delegates(its.wanted)
        } | {ticket}
        left = course.limits.token_budget - course.usage.total - sum(self._shares.values())
        self._shares[ticket] = tokens = max(0, left // (len(waiting) + 1))
        return Allowance(tokens, seconds)


def delegates(call: ToolCall) -> bool:
    return call.name.startswith(DELEGATE)


log = logging.getLogger(__name__)

ENDING_S = 5.0  # for what a tree does at its end
TOLD = ("turn", "tokens_used", "iteration_percent", "token_percent", "recent_actions", "warned")


@dataclass(slots=True)
class Driver:
    """Drives one turn to its end. A driver is made for one run and thrown away."""

    job: Job
    model: Model
    gate: Gate
    story: Story
    clock: Clock
    emit: Emit
    reins: Reins = field(default_factory=Reins)
    pace: Pace = field(default_factory=Pace)
    turn: Turn = field(init=False)
    _news: News = field(default_factory=News)
    _granting: dict[int, anyio.TaskHandle[None]] = field(default_factory=dict)
    _spent: dict[int, list[Spent]] = field(default_factory=dict)  # behind tools, as it goes
    _slots: anyio.CapacityLimiter = field(init=False)
    _carving: Carving = field(default_factory=Carving)
    _last: tuple[str, str] = ("", "")  # provider and model of the last reply
    _deadline: float = 0.0
    _ending_until: float | None = None

    def __post_init__(self) -> None:
        self._last = (self.job.agent.provider, self.job.agent.model)
        self.turn = Turn(self.job, self.emit, self._moment(), LEAVES)
        limits = self.turn.course.limits
        self._deadline = self.turn.moment.at + limits.timeout_seconds
        self._slots = anyio.CapacityLimiter(limits.max_parallel_tools)

    async def drive(self) -> Answer:
        """Until the tree is over. Whoever cancels this cancels what it waits for."""
        turn, self.reins.wake = self.turn, self._take_reins
        self.reins.forget = lambda run_id: any(
            drop_said(said, run_id) for said in (self._news.items, turn.exchange.queued)
        )
        self._recall_said(0)
        self._take_reins()
        async with anyio.create_task_group() as group:
            self._hand_over()
            turn.begin()
            while self._carry_out(group):
                await self._wait()
                self._hand_over()
            if turn.tickets.open:  # whoever still works is wanted no more
                group.cancel_scope.cancel()
        self.reins.let_go()
        del turn.run  # nothing in a turn refers to itself then: it goes when the last lets go
        turn.voice.let_go()
        assert turn.end is not None
        provider, model = self._last
        return Answer(
            turn.end,
            tuple(turn.exchange.said),
            turn.course.usage,
            model,
            provider,
            tuple(said.run_id for said in turn.exchange.taken),
            tuple(turn.voice.posts),
            turn.farewell,
            self.job.rules.kept,
            turn.exchange.replies > 0 or bool(turn.exchange.heard) or turn.failure is not None,
            turn.exchange.last.finish if turn.exchange.last else None,
        )

    def progress(self) -> Mapping[str, object]:
        """How far the run is, for whoever inspects it."""
        course, voice = self.turn.course, self.turn.voice
        provider, model = self._last
        view = course.view()
        return {
            **{name: view[name] for name in TOLD},
            "provider": provider,
            "model": model,
            "tree": self.job.plan.name,
            "decision": self.job.agent.decision,
            "verdicts": list(voice.verdicts),
            "config": {name: getattr(course.limits, name) for name in LIMITS},
            "context": explained(self.job.agent, self.job.context, self.turn.exchange.noticed),
        }

    # -- waiting

    def _moment(self) -> Moment:
        return Moment(self.clock.now(), self.clock.monotonic())

    def _tell(self, told: Told) -> None:
        self._news.put(told)

    def _take_reins(self) -> None:
        pulled = self.reins.pulled
        while pulled:
            one = pulled.popleft()
            if isinstance(one, Stop):
                self._tell(Stopped(one.reason, at_once=one.at_once))
            else:
                self._tell(one)

    def _hand_over(self) -> None:
        items = self._news.items
        self.pace.tells(items)
        while items:
            self.turn.on(items.popleft(), self._moment())

    def _recall_said(self, step: int) -> None:
        """What the attempt before had taken at this step is there again."""
        for said in self.story.said(step):
            self._tell(said)

    async def _wait(self) -> None:
        """For news, or for a time that the tree or the run waits for."""
        is_ending = self.turn.course.reason is not None or self.turn.run.is_ending
        if is_ending and self._ending_until is None:
            self._ending_until = self.clock.monotonic() + ENDING_S
        deadline = self._ending_until or self._deadline
        tree = self.turn.run.next_deadline()
        seconds = min(deadline, tree or deadline) - self.clock.monotonic()
        if await self.pace.wait(self._news, seconds):
            return
        if self.clock.monotonic() < deadline:
            self._tell(Ticked())
        elif is_ending:
            self.turn.give_up()
        else:
            self._tell(Stopped("timeout"))

    # -- granting

    def _carry_out(self, group: TaskGroup) -> bool:
        """Begins what the turn wishes; False once it is over."""
        for wish in self.turn.tickets.take_new():
            if isinstance(wish, Cancel):
                self._granting.pop(wish.ticket).cancel()
                self.turn.exchange.take_spent(self._spent.pop(wish.ticket, ()))
            else:
                work = self._ask(wish) if isinstance(wish, AskModel) else self._call(wish)
                self._granting[wish.ticket] = group.create_task(work)
        return self.turn.end is None

    async def _ask(self, wish: AskModel) -> None:
        told = self.story.reply(wish.step)
        if told is not None:
            self._recall_said(wish.step + 1)
            self._tell(ModelReplied(wish.ticket, told, was_heard=False))
            return
        for said in wish.taken:
            await self.story.note_said(wish.step, said)
        in_time = nullcontext() if wish.timeout_s is None else anyio.fail_after(wish.timeout_s)
        try:
            with in_time:
                reply = await self._first_that_answers(wish)
        except BudgetExceeded as refusal:
            log.warning("budget exceeded", extra={"scope": refusal.scope, "why": str(refusal)})
            self._tell(ModelBroke(wish.ticket, refusal))
            return
        except ModelFailed as failure:
            log.warning("model failed", extra={"kind": failure.kind, "why": str(failure)})
            self._tell(ModelBroke(wish.ticket, failure))
            return
        except TimeoutError:
            late = ModelFailed(self.job.agent.provider, "timeout", "no reply in the tree's time")
            self._tell(ModelBroke(wish.ticket, late))
            return
        self._last = (reply.provider, reply.model)
        if reply.tool_calls:
            await self.story.note_reply(wish.step, reply)
        self._tell(ModelReplied(wish.ticket, reply))

    async def _first_that_answers(self, wish: AskModel) -> ModelReply:
        """Goes down the chain of fallbacks, as long as no text of a reply was heard."""
        agent = self.job.agent

        def hear(delta: Delta) -> None:
            self.turn.hear(wish.ticket, delta)
            if wish.ticket not in self.turn.tickets.open:
                self._news.came.set()  # it has stopped the turn

        first: ModelFailed | None = None
        while True:
            try:
                return await self.model.reply(self._fitting(agent, wish), hear)
            except ModelFailed as failure:
                if isinstance(failure, TooLarge) and first is not None and agent.fallback is None:
                    raise first from failure  # which says more of what was asked for
                if failure.started or failure.kind == "unmetered" or agent.fallback is None:
                    raise
                first = first or failure
                log.warning("falling back", extra={"from": agent.model, "why": str(failure)})
                agent = agent.fallback

    def _fitting(self, agent: AgentDef, wish: AskModel) -> ModelRequest:
        """Fits the window of this agent's model, or raises TooLarge."""
        request, context = self._request(agent, wish), self.job.context
        window = agent.context_window
        if request.model != agent.model:
            window = _window_of(agent, request.model)
        told = self.turn.course.context_tokens  # which may count system and tools, or may not
        most = told + context.system_tokens + context.tools_tokens + SLACK
        if most + request.max_tokens <= window:
            return request
        return fitted(request, context, window)

    def _request(self, agent: AgentDef, wish: AskModel) -> ModelRequest:
        is_first, scope = agent is self.job.agent, self.job.scope
        is_accepted = scope.is_kept and scope.depth == wish.step == 0
        left_s = max(0.0, self._deadline - self.clock.monotonic())
        return ModelRequest(
            provider=agent.provider,
            model=(wish.model if is_first else None) or agent.model,
            system=wish.system,
            messages=wish.messages,
            tools=wish.tools,
            max_tokens=min(agent.max_tokens, wish.max_tokens or agent.max_tokens),
            temperature=agent.temperature,
            thinking=agent.thinking,
            stream=agent.stream,
            idle_timeout_s=wish.idle_timeout_s,
            deadline_s=left_s if wish.timeout_s is None else min(left_s, wish.timeout_s),
            payer=Payer(scope.session_key, scope.run_id, is_accepted=is_accepted),
        )

    async def _call(self, wish: CallTool) -> None:
        result, call = self.story.result(wish.step, wish.call), wish.call
        if result is None and self.story.has_begun(wish.step, call):
            result = ToolResult(call.id, call.name, CUT_OFF, is_error=True)
        if result is None:
            async with self._slots:
                if not all(one.may_repeat for one in self.job.tools if one.name == call.name):
                    await self.story.note_begun(wish.step, call)
                result = await self._result(wish)
            await self.story.note_result(wish.step, result)
        listed = self.gate.listed(result)
        self._tell(ToolReturned(wish.ticket, result, listed.sources, listed.items))

    async def _result(self, wish: CallTool) -> ToolResult:
        call, spent = wish.call, self._spent.setdefault(wish.ticket, [])
        seconds = self._deadline - self.turn.moment.at  # no look at the clock: a tape keeps each
        seconds = min(seconds, seconds if wish.timeout_s is None else wish.timeout_s)
        scope = replace(
            self.job.scope,
            agent=self.job.agent,
            question=self.job.context.question.text,
            part=part_of(self.story.part, call, wish.step),
            carve=partial(self._carving.share, wish.ticket, self.turn, seconds),
            spend=spent.append,
        )
        with anyio.move_on_after(wish.timeout_s):
            return await self.gate.call(self.job.agent, call, scope)
        told = f"{call.name} did not answer within {wish.timeout_s:g} s."
        return ToolResult(call.id, call.name, told, is_error=True, spent=tuple(spent))


def _window_of(agent: AgentDef, model: str) -> int:
    """Of a model that a tree or a rule may have chosen: as the agent or one of its fallbacks has it."""
    one: AgentDef | None = agent
    while one is not None and one.model != model:
        one = one.fallback
    return (one or agent).context_window
