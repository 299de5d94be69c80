"""The operator's replay of a run, and its comparison with another model."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import zip_longest
from typing import Any

import anyio

from gateway.agent.effects import Gate, Reins
from gateway.control.notices import Bus
from gateway.domain.agents import AgentDef, ContextRules
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import Conflict, NotFound
from gateway.domain.events import Notice
from gateway.domain.ids import NodeId, RunId, SessionKey
from gateway.domain.inbox import JournalNote, RunRecord
from gateway.domain.messages import ToolCall, ToolResult
from gateway.domain.model import Hear, ModelReply, ModelRequest
from gateway.domain.ports import Decode, Encode, Model, Runs, ToolScope, Transcript
from gateway.domain.tape import Tape
from gateway.memory.episodes import Episode
from gateway.sessions.journal import MOST_BYTES, Difference, TapeUnreadable, apart, unpacked_aside
from gateway.sessions.lanes import Batch, Waiting
from gateway.sessions.player import (
    Player,
    Reel,
    ReplayedGate,
    ReplayedModel,
    ReplayedStore,
    notice_from,
    recorded_result,
)
from gateway.sessions.runs import LiveRun, LiveRuns
from gateway.sessions.worker import Means, Work, recollection_on

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
class Replays:
    means: Means
    runs: Runs
    transcript: Transcript
    wired: Wired
    providers: frozenset[str]

    async def replay(self, record: RunRecord) -> Replayed:
        """With the agent, soul, tools and limits of today, and what it was told then. Raises
        Conflict, NotFound, TapeUnreadable."""
        tape = await self.tape(record)
        batch = await self.batch(record, tape)
        episode = await self.episode(batch)
        means, new, run = self.means, record.entry.new, batch.run
        agent = means.agents.get(new.session_key.agent)
        soul = means.souls.of(new.session_key.agent)
        scope = anyio.CancelScope(deadline=anyio.current_time() + LONGEST_S)
        parting = _Parting(record, scope)
        player = Player(tape, run.reins, parting, soul.loaded_from if soul else "none")
        run.listen(lambda event, _last: parting.hear(event))
        model, store = ReplayedModel(player, self.wired), ReplayedStore(player)
        played = replace(
            means,
            model=model,
            gate=ReplayedGate(player, means.gate, means.decode),
            clock=player.clock,
            journal=store,
            rule_states=store,
            notices=store,
            recollection=recollection_on(tape),
            rules=means.fresh_rules,
            pace=player,
            bus=Bus(),  # whoever subscribes has heard of it before
        )
        run.start(record.entry.attempts, player.clock.now(), player.clock.monotonic())
        with scope:
            work = Work(played, LiveRuns(means.encode))
            end = await work.end_of(batch, agent, episode)
            parting.end(run.seal(end.terminal).split(b"\n"))
        run.let_go()
        if parting.found is None and scope.cancelled_caught:
            raise Conflict(f"the replay did not end within {LONGEST_S:g} s")
        if isinstance(parting.found, TapeUnreadable):
            raise parting.found
        return Replayed(parting.found, parting.heard, model.calls)

    def other(self, agent: AgentDef, model: str) -> AgentDef:
        """The agent with another model: of another provider if its name stands in front of a `/`."""
        provider, slash, rest = model.partition("/")
        if slash and provider in self.providers:
            return replace(agent, provider=provider, model=rest, fallback=None)
        return replace(agent, model=model, fallback=None)

    async def tape(self, record: RunRecord) -> Tape:
        run_id = record.entry.new.run_id
        if record.finished_at is None:
            raise Conflict("the run has not ended yet")
        if record.outcome == "merged":
            raise Conflict("another run answered it: its last event names that one")
        data = await self.runs.tape(run_id)
        if not data or not record.log:
            raise NotFound(f"the recording of run {run_id[:64]!r}, which is kept for journal_days,")
        tape = await unpacked_aside(data, self.means.decode)
        if tape.is_cut:
            most = MOST_BYTES // 1024 // 1024
            raise TapeUnreadable(f"the run was told more than the {most} MiB that are recorded")
        return tape

    async def batch(self, record: RunRecord, tape: Tape) -> Batch:
        """What it answered, and what was said to it on its way."""
        before = [await self._waiting(run_id) for run_id in tape.asked[:-1]]
        said = [mark.values[0] for mark in tape.marks if mark.kind == "said"]
        behind = [one for run_id in said if (one := await self._waiting(run_id))]
        asked = [one for one in before if one is not None]
        return Batch([*asked, self._as_waiting(record)], lambda: behind)

    async def _waiting(self, run_id: str) -> Waiting | None:
        record = await self.runs.find(RunId(run_id))
        return None if record is None else self._as_waiting(record)

    def _as_waiting(self, record: RunRecord) -> Waiting:
        new = record.entry.new
        run = LiveRun(new.run_id, new.session_key, self.means.encode, new.accepted_at)
        return Waiting(record.entry, run, lambda: None, ((), ""))

    async def episode(self, batch: Batch) -> Episode:
        """The conversation as far as it had come."""
        means, new = self.means, batch.asked[0].entry.new
        question = await self.transcript.node(new.session_key, NodeId(new.message_id))
        if question is None:
            raise NotFound(f"the question of run {new.run_id[:64]!r}")
        if question.parent_id is None:
            return Episode(None)
        agent = means.agents.get(new.session_key.agent)
        rules = agent.context if agent else ContextRules()
        return await means.episodes.recall(new.session_key, rules, upto=question.parent_id)


class _Parting:
    """Keeps the first place where the run parts from its record, and ends the replay there."""

    def __init__(self, record: RunRecord, scope: anyio.CancelScope) -> None:
        self._events, self._first = record.log.split(b"\n"), record.first_seq
        self._scope = scope
        self.found: Difference | TapeUnreadable | None = None
        self.heard = 0

    def __call__(self, found: Difference | TapeUnreadable) -> None:
        self.found = self.found or found
        self._scope.cancel()

    def hear(self, event: bytes) -> None:
        self._compare(self.heard, event)
        self.heard += 1

    def end(self, events: list[bytes]) -> None:
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


async def compare(replays: Replays, record: RunRecord, model: str) -> Replayed:
    """The other model is asked for real. What differs is what it does and says, not how it is cut
    into events. A call whose result is not on the tape ends it. Raises as `replay` does,
    and BudgetExceeded."""
    tape = await replays.tape(record)
    batch = await replays.batch(record, tape)
    episode = await replays.episode(batch)
    means, new, run = replays.means, record.entry.new, batch.run
    agent = means.agents.get(new.session_key.agent)
    if agent is None:
        raise NotFound(f"agent {new.session_key.agent!r}")
    asked = _Counted(means.model)
    gate = KnownResults(tape, run.reins, means.gate, means.encode, means.decode)
    then = _AsThen(tape)
    live = replace(
        means,
        model=asked,
        gate=gate,
        journal=then,
        rule_states=then,
        notices=then,
        recollection=recollection_on(tape),
        rules=means.fresh_rules,
        bus=Bus(),
    )
    run.start(1, means.clock.now(), means.clock.monotonic())
    work = Work(live, LiveRuns(means.encode))
    end = await work.end_of(batch, replays.other(agent, model), episode)
    events = run.seal(end.terminal).split(b"\n")
    run.let_go()
    if asked.refusal is not None:
        raise asked.refusal
    steps = [_steps(one, gate) for one in (record.log.split(b"\n"), events)]
    return Replayed(_parting(*steps), len(events), asked.calls, end.text, end.usage.total)


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
        self, tape: Tape, reins: Reins, gate: Gate, encode: Encode, decode: Decode
    ) -> None:
        self._reins, self._encode, self.decode = reins, encode, decode
        self.offered, self.listed = gate.offered, gate.listed
        self.prepare = gate.prepare
        self._known: dict[tuple[str, str], deque[Sequence[Any]]] = defaultdict(deque)
        for mark in tape.marks:
            if mark.kind == "result":
                _, name, arguments, *told = mark.values
                self._known[name, self.same(arguments)].append(told)

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        known = self._known.get((call.name, self.same(call.arguments)))
        if not known:
            self._reins.stop("cancelled", at_once=True)
            await anyio.sleep_forever()
            raise AssertionError("it was stopped")
        return recorded_result(call, known[0] if len(known) == 1 else known.popleft())

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


class _AsThen:
    """What the run was given at its start; it leaves nothing to anybody."""

    def __init__(self, tape: Tape) -> None:
        first = {mark.kind: mark.values for mark in reversed(tape.marks)}
        self._kept: str | None = first.get("kept", (None,))[0]
        self._waiting = first.get("waiting", ([],))[0]

    async def note(self, run_id: RunId, note: JournalNote) -> None: ...

    async def notes(self, run_id: RunId) -> Sequence[JournalNote]:
        return ()

    async def forgive(self, run_id: RunId) -> None: ...

    async def of(self, key: SessionKey) -> str | None:
        return self._kept

    async def claim(
        self, person: str, session_key: SessionKey, run_id: RunId, *, now: datetime
    ) -> Sequence[Notice]:
        return [notice_from(**told) for told in self._waiting]
