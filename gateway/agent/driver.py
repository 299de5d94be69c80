"""Grants a turn's wishes through ports: the only place where an agent waits."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import anyio

from gateway.agent.job import (
    Answer,
    Emit,
    Job,
    add_usage,
    budget_chunk,
    open_calls,
    stop_chunk,
    usage_chunk,
    with_distinct_ids,
    with_last_word,
)
from gateway.agent.rounds import Rounds
from gateway.agent.story import Story
from gateway.agent.turn import (
    AskModel,
    BudgetSpent,
    CallTools,
    Fail,
    Finish,
    ModelBroke,
    ModelReplied,
    Stopped,
    ToolsReturned,
    Turn,
    Wish,
)
from gateway.domain.agents import AgentDef, Limits
from gateway.domain.budgets import BudgetExceeded, Payer
from gateway.domain.chunks import Chunk, DoneReason
from gateway.domain.errors import ModelFailed
from gateway.domain.messages import Message, ToolResult
from gateway.domain.model import Delta, ModelReply, ModelRequest, TextDelta, ThinkingDelta, Usage
from gateway.domain.ports import Clock, Model
from gateway.domain.tokens import estimate_tokens
from gateway.memory.context import message_tokens
from gateway.tools.gate import ToolGate

log = logging.getLogger(__name__)

_LIMITS = tuple(limit.name for limit in fields(Limits))


@dataclass(slots=True)
class Brake:
    """Stops a run from outside: at once, or when its current step is done."""

    reason: DoneReason | None = None
    scope: anyio.CancelScope | None = None

    def pull(self, reason: DoneReason, *, at_once: bool) -> None:
        self.reason = self.reason or reason
        if at_once and self.scope is not None:
            self.scope.cancel()


@dataclass(slots=True)
class Driver:
    """Drives one turn to its end. A driver is made for one run and thrown away."""

    job: Job
    model: Model
    gate: ToolGate
    story: Story
    clock: Clock
    emit: Emit
    brake: Brake = field(default_factory=Brake)
    turn: Turn = field(init=False)
    _rounds: Rounds = field(init=False)
    _said: list[Message] = field(default_factory=list)
    _heard: list[str] = field(default_factory=list)
    _usage: Usage = Usage()
    _last: tuple[str, str] = ("", "")
    _step: int = 0
    _in_flight: bool = False
    _has_thought: bool = False  # a model began to, and nothing it told of its usage came
    _context_tokens: int = 0
    _refused: BudgetExceeded | None = None
    _began: float = 0.0

    def __post_init__(self) -> None:
        self.turn = Turn(self.job.agent.limits)
        self._rounds = Rounds(self.job, self.gate, self.story, self.emit)

    async def drive(self) -> Answer:
        """Runs until the turn finishes, its time is up, or the brake is pulled."""
        job, turn = self.job, self.turn
        self._last = (job.agent.provider, job.agent.model)
        self._context_tokens = job.context.tokens
        self._began = self.clock.monotonic()
        self._show_context()
        end: Finish | Fail | None = None
        with anyio.move_on_after(job.agent.limits.timeout_seconds) as scope:
            self.brake.scope = scope
            end = await self._grant(turn)
        if end is None:
            end = self._stopped(turn, self.brake.reason or "timeout")
        self._close(end)
        provider, model = self._last
        return Answer(end, tuple(self._said), self._usage, model, provider)

    def progress(self) -> Mapping[str, object]:
        """How far the run is, for whoever inspects it."""
        limits, state = self.job.agent.limits, self.turn.state
        tokens = self._usage.total
        calls = [call.name for message in self._said for call in message.tool_calls]
        provider, model = self._last
        return {
            "turn": state.iteration,
            "tokens_used": tokens,
            "iteration_percent": round(100 * state.iteration / limits.max_iterations, 1),
            "token_percent": round(100 * tokens / limits.token_budget, 1),
            "recent_actions": calls[-3:],
            "provider": provider,
            "model": model,
            "config": {name: getattr(limits, name) for name in _LIMITS},
        }

    async def _grant(self, turn: Turn) -> Finish | Fail:
        wish: Wish = turn.begin()
        while True:
            if self.brake.reason is not None:
                return self._stopped(turn, self.brake.reason)
            match wish:
                case AskModel():
                    wish = turn.on(await self._ask())
                case CallTools(_, refused):
                    wish = turn.on(await self._call(refused))
                    self._step += 1
                case Finish() | Fail():
                    return wish

    def _stopped(self, turn: Turn, reason: DoneReason) -> Finish:
        end = turn.on(Stopped(reason, "".join(self._heard)))
        assert isinstance(end, Finish)
        return end

    async def _ask(self) -> ModelReplied | ModelBroke | BudgetSpent:
        told = self.story.reply(self._step)
        if told is not None:
            self._retell(told)
            return ModelReplied(told)
        self._heard.clear()
        self._in_flight, self._has_thought = True, False
        try:
            reply = await self._first_that_answers(self.job.agent)
        except BudgetExceeded as refusal:
            self._in_flight = False
            self._refused = refusal
            log.warning("budget exceeded", extra={"scope": refusal.scope, "why": str(refusal)})
            return BudgetSpent(refusal)
        except ModelFailed as failure:
            heard = "".join(self._heard)
            self._in_flight = failure.started or self._has_thought
            log.warning("model failed", extra={"kind": failure.kind, "why": str(failure)})
            return ModelBroke(failure, heard)
        self._in_flight = False
        if reply.tool_calls:
            reply = with_distinct_ids(reply, self._said)
        self._take(reply)
        if reply.tool_calls:
            await self.story.note_reply(self._step, reply)
        return ModelReplied(reply)

    async def _first_that_answers(self, agent: AgentDef) -> ModelReply:
        """Goes down the chain of fallbacks, as long as no text of a reply was heard."""
        while True:
            try:
                return await self.model.reply(self._request(agent), self._hear)
            except ModelFailed as failure:
                if failure.started or agent.fallback is None:
                    raise
                log.warning("falling back", extra={"from": agent.model, "why": str(failure)})
                agent = agent.fallback

    def _request(self, agent: AgentDef) -> ModelRequest:
        limit = self.job.agent.limits.timeout_seconds
        return ModelRequest(
            provider=agent.provider,
            model=agent.model,
            system=self.job.context.system,
            messages=(*self.job.context.messages, *self._said),
            tools=self.job.tools,
            max_tokens=agent.max_tokens,
            temperature=agent.temperature,
            thinking=agent.thinking,
            stream=agent.stream,
            deadline_s=max(0.0, limit - (self.clock.monotonic() - self._began)),
            payer=Payer(self.job.scope.session_key, self.job.scope.run_id),
        )

    def _hear(self, delta: Delta) -> None:
        if isinstance(delta, TextDelta):
            self._heard.append(delta.text)
            self.emit(Chunk("content", {"content": delta.text}))
        elif isinstance(delta, ThinkingDelta):
            self._has_thought = True
            self.emit(Chunk("thinking", {"content": delta.text}))
        else:
            self.emit(budget_chunk(delta, self.clock.now()))

    def _take(self, reply: ModelReply) -> None:
        self._heard.clear()
        self._usage = add_usage(self._usage, reply.usage)
        self._last = (reply.provider, reply.model)
        message = Message(
            "assistant", reply.text, reply.tool_calls, thinking=reply.thinking, extras=reply.extras
        )
        self._said.append(message)
        self._context_tokens += message_tokens(message)
        self.emit(usage_chunk(reply))

    def _retell(self, reply: ModelReply) -> None:
        """A reply of an earlier attempt: shown again, not asked for again."""
        if reply.thinking:
            self.emit(Chunk("thinking", {"content": reply.thinking}))
        if reply.text:
            self.emit(Chunk("content", {"content": reply.text}))
        self._take(reply)

    async def _call(self, refused: tuple[ToolResult, ...]) -> ToolsReturned:
        # What was journalled and shown to the model counts: its ids are distinct.
        asked = self._said[-1].tool_calls
        results = await self._rounds.run(self._step, asked, refused)
        for result in results:
            message = Message("tool", result=result)
            self._said.append(message)
            self._context_tokens += message_tokens(message)
            self._show_context()
        return ToolsReturned(results)

    def _show_context(self) -> None:
        most = self.job.agent.context_window
        chunk = {"context_tokens": self._context_tokens, "max_context_tokens": most}
        self.emit(Chunk("context_update", chunk))

    def _close(self, end: Finish | Fail) -> None:
        """Leaves a history that a model can read: no call without a result, an answer at the end."""
        for call in open_calls(self._said):
            self._said.append(Message("tool", result=self._rounds.settle(self._step, call)))
        if self._in_flight:
            # The prompt was sent and this much was heard: an estimate is nearer than nothing.
            cut = Usage(self._context_tokens, estimate_tokens("".join(self._heard)), estimated=True)
            self._usage = add_usage(self._usage, cut)
        self._said = with_last_word(self._said, end.text)
        if isinstance(end, Finish) and end.notice is not None:
            self.emit(stop_chunk(end, self.job.agent.limits, self._refused, self.clock.now()))
