"""The operator's replay of a run, and its comparison with another model."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import anyio

from gateway.agent.effects import Gate, RunControl
from gateway.agent.journal import RunJournal, result_from
from gateway.agent.runner import Runner
from gateway.control.notices import Bus
from gateway.control.rules import RuleSet
from gateway.domain.agents import AgentDef, ContextRules
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import Conflict, NotFound
from gateway.domain.ids import NodeId, RunId
from gateway.domain.inbox import RunRecord
from gateway.domain.journal import MOST_BYTES, Attempt, JournalUnreadable
from gateway.domain.messages import ToolCall, ToolResult
from gateway.domain.model import Hear, ModelReply, ModelRequest
from gateway.domain.ports import Decode, Encode, Inbox, Model, SessionStore, ToolScope
from gateway.memory.window import Episode
from gateway.sessions.journal import Difference, apart, last_attempt, read_in
from gateway.sessions.lanes import QueuedMessage, TurnBatch
from gateway.sessions.player import Player, Reel, ReplayedGate, ReplayedModel
from gateway.sessions.runs import LiveRun
from gateway.sessions.worker import RunWorker

LONGEST_S = 60.0
_SHOWN = 500  # bytes of an event

Wired = Callable[[Reel], Model]  # the real clients of all providers, over a reel


@dataclass(frozen=True, slots=True)
class Replayed:
    """`divergence` is the first; None: all events are the same, byte for byte."""

    divergence: Difference | None
    chunks: int
    calls: int
    response: str | None = None  # of another model that was asked, with the tokens that it took
    tokens_used: int | None = None


@dataclass(frozen=True, slots=True)
class Replayer:
    worker: RunWorker
    runs: Inbox
    transcript: SessionStore
    wired: Wired
    providers: frozenset[str]

    async def replay(self, record: RunRecord) -> Replayed:
        """With the agent, soul, tools and limits of today, and what it was told then. Raises
        Conflict, NotFound, JournalUnreadable."""
        attempt = await self.attempt(record)
        batch = await self.batch(record, attempt)
        episode = await self.episode(batch)
        worker, new, run = self.worker, record.entry.new, batch.run
        agent, runner = worker.agents.get(new.session_key.agent), worker.runner
        soul = worker.souls.of(new.session_key.agent)
        scope = anyio.CancelScope(deadline=anyio.current_time() + LONGEST_S)
        parting = _Parting(record, scope)
        player = Player(attempt, run.control, parting, soul.loaded_from if soul else "none")
        run.listen(lambda event, _last: parting.hear(event))
        model = ReplayedModel(player, self.wired)
        played = replace(runner, model=model, gate=ReplayedGate(player, runner.gate))
        alone = self._alone(played)
        if agent is not None:
            await runner.gate.prepare(agent)  # so that what is offered today can be offered
        run.start(record.entry.attempts, player.moment())
        with scope:
            end = await alone.end_of(batch, agent, episode, player, read_in(attempt))
            run.seal(end.terminal)
            parting.end(run.events)
        run.release()
        if parting.found is None and scope.cancelled_caught:
            raise Conflict(f"the replay did not end within {LONGEST_S:g} s")
        if isinstance(parting.found, JournalUnreadable):
            raise parting.found
        return Replayed(parting.found, parting.heard, model.calls)

    async def compare(self, record: RunRecord, model: str) -> Replayed:
        """Asks another model for real. What differs is what it does and says, not how it is cut into
        events. A call whose result is not recorded ends it. Raises as `replay` does, and
        BudgetExceeded."""
        attempt = await self.attempt(record)
        batch = await self.batch(record, attempt)
        episode = await self.episode(batch)
        worker, new, run = self.worker, record.entry.new, batch.run
        agent, runner = worker.agents.get(new.session_key.agent), worker.runner
        if agent is None:
            raise NotFound(f"agent {new.session_key.agent!r}")
        asked = _Counted(runner.model)
        gate = KnownResults(attempt, run.control, runner.gate, worker.encode, worker.decode)
        alone = self._alone(replace(runner, model=asked, gate=gate))
        journal = RunJournal(worker.clock)
        lacking = tuple(await runner.gate.prepare(agent))
        run.start(1, journal.moment())
        other, read = self._with_model(agent, model), replace(read_in(attempt), lacking=lacking)
        end = await alone.end_of(batch, other, episode, journal, read)
        run.seal(end.terminal)
        run.release()
        if asked.refusal is not None:
            raise asked.refusal
        steps = [_steps(one, gate) for one in (record.log.split(b"\n"), run.events)]
        return Replayed(
            _parting(*steps),
            len(run.events),
            asked.calls,
            end.text,
            end.result.usage.total if end.result else 0,
        )

    def _alone(self, runner: Runner) -> RunWorker:
        """Everything for a run that leaves nothing to anybody: subscribers have heard of it, and
        failures of rules count nowhere else."""

        def rules() -> RuleSet:
            known = runner.rules()
            return RuleSet(known.rules, known.refused)

        bus = Bus()
        alone = replace(runner, rules=rules, publish=bus.publish, hears=bus.hears)
        return replace(self.worker, runner=alone)

    def _with_model(self, agent: AgentDef, model: str) -> AgentDef:
        """The agent with another model: of another provider if its name stands in front of a `/`."""
        provider, slash, rest = model.partition("/")
        if slash and provider in self.providers:
            return replace(agent, provider=provider, model=rest, fallback=None)
        return replace(agent, model=model, fallback=None)

    async def attempt(self, record: RunRecord) -> Attempt:
        run_id = record.entry.new.run_id
        if record.finished_at is None:
            raise Conflict("the run has not ended yet")
        if record.outcome == "merged":
            raise Conflict("another run answered it: its last event names that one")
        parts = await self.worker.journal.read(run_id)
        if not parts:
            if record.log:
                told = "an earlier version recorded this run, and this one cannot replay it"
                raise JournalUnreadable(told)
            raise NotFound(f"the recording of run {run_id[:64]!r}, which is kept for journal_days,")
        attempt = await last_attempt(parts, self.worker.decode)
        if attempt.is_cut:
            most = MOST_BYTES // 1024 // 1024
            raise JournalUnreadable(f"the run was told more than the {most} MiB that are recorded")
        return attempt

    async def batch(self, record: RunRecord, attempt: Attempt) -> TurnBatch:
        """What it answered, and what was said to it on its way."""
        before = [await self._waiting(run_id) for run_id in attempt.asked[:-1]]
        said = [entry.values[0] for entry in attempt.entries if entry.kind == "said"]
        behind = [one for run_id in said if (one := await self._waiting(run_id))]
        asked = [one for one in before if one is not None]
        return TurnBatch([*asked, self._as_waiting(record)], lambda: behind)

    async def _waiting(self, run_id: str) -> QueuedMessage | None:
        record = await self.runs.find_run(RunId(run_id))
        return None if record is None else self._as_waiting(record)

    def _as_waiting(self, record: RunRecord) -> QueuedMessage:
        new = record.entry.new
        run = LiveRun(new.run_id, new.session_key, self.worker.encode, new.accepted_at)
        return QueuedMessage(record.entry, run)

    async def episode(self, batch: TurnBatch) -> Episode:
        """The conversation as far as it had come."""
        worker, new = self.worker, batch.asked[0].entry.new
        question = await self.transcript.node(new.session_key, NodeId(new.message_id))
        if question is None:
            raise NotFound(f"the question of run {new.run_id[:64]!r}")
        if question.parent_id is None:
            return Episode(None)
        agent = worker.agents.get(new.session_key.agent)
        rules = agent.context if agent else ContextRules()
        return await worker.episodes.recall(new.session_key, rules, upto=question.parent_id)


class _Parting:
    """Keeps the first place where the run parts from its record, and ends the replay there."""

    def __init__(self, record: RunRecord, scope: anyio.CancelScope) -> None:
        self._events, self._first = record.log.split(b"\n"), record.first_seq
        self._scope = scope
        self.found: Difference | JournalUnreadable | None = None
        self.heard = 0

    def __call__(self, found: Difference | JournalUnreadable) -> None:
        self.found = self.found or found
        self._scope.cancel()

    def hear(self, event: bytes) -> None:
        self._compare(self.heard, event)
        self.heard += 1

    def end(self, events: Sequence[bytes]) -> None:
        """With the last event, which nobody is told."""
        self._compare(len(events) - 1, events[-1])
        self.heard = len(events)
        if len(events) < len(self._events):
            self._compare(len(events), b"")

    def _compare(self, place: int, event: bytes) -> None:
        recorded = self._events[place] if place < len(self._events) else b""
        if recorded != event and self.found is None:
            seq = self._first + place
            self(Difference(f"event {seq}", _text(recorded), _text(event), seq))


def _text(event: bytes) -> str | None:
    return event[:_SHOWN].decode("utf-8", "replace") or None


Steps = Sequence[tuple[str, str]]  # each tool call and the answer: its name, and what it says


def _parting(recorded: Steps, now: Steps) -> Difference | None:
    for number, (one, other) in enumerate(zip_longest(recorded, now), 1):
        if one == other:
            continue
        if one and other and one[0] == other[0]:
            return apart(f"step {number}: {one[0]}", one[1], other[1])
        return Difference(f"step {number}", one and one[0], other and other[0])
    return None


def _steps(events: Sequence[bytes], gate: "KnownResults") -> Steps:
    steps: list[tuple[str, str]] = []
    for event in map(gate.decode, events):
        match event:
            case {"type": "tool_call", "tool_call": {"name": str(name), "arguments": str(given)}}:
                steps.append((f"call of {name}", gate.same(given)))
            case {"type": "done", "response": str(text)} | {"type": "error", "message": str(text)}:
                steps.append(("the answer", text))
    return steps


class KnownResults:
    """Implements the Gate port: the same call gets what it got. One that was never made stops it."""

    def __init__(
        self,
        attempt: Attempt,
        control: RunControl,
        gate: Gate,
        encode: Encode,
        decode: Decode,
    ) -> None:
        self._control, self._encode, self.decode = control, encode, decode
        self.offered, self.listed = gate.offered, gate.listed
        self.prepare = gate.prepare
        self._known: dict[tuple[str, str], deque[Mapping[str, Any]]] = defaultdict(deque)
        for entry in attempt.entries:
            if entry.kind == "result":
                _, _, name, arguments, told = entry.values
                self._known[name, self.same(arguments)].append(told)

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        known = self._known.get((call.name, self.same(call.arguments)))
        if not known:
            self._control.stop("cancelled", at_once=True)
            await anyio.sleep_forever()
            raise AssertionError("it was stopped")
        told = known[0] if len(known) == 1 else known.popleft()
        return result_from(call.id, call.name, told)

    def same(self, arguments: str) -> str:
        """One text for all that mean the same."""
        try:
            return self._encode(_sorted(self.decode(arguments))).decode()
        except ValueError:
            return arguments


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value


class _Counted:
    def __init__(self, model: Model) -> None:
        self._model, self.calls = model, 0
        self.refusal: BudgetExceeded | None = None

    async def reply(self, request: ModelRequest, hear: Hear) -> ModelReply:
        self.calls += 1
        try:
            return await self._model.reply(request, hear)
        except BudgetExceeded as refusal:
            self.refusal = refusal
            raise
