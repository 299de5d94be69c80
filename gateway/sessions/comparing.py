"""Asks another model what a run was asked, with the results that its tools gave then."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import zip_longest
from typing import Any

import anyio

from gateway.agent.job import Gate
from gateway.agent.reins import Reins
from gateway.control.bus import Bus
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import NotFound
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import JournalNote, RunRecord
from gateway.domain.messages import ToolCall, ToolResult
from gateway.domain.model import Hear, ModelReply, ModelRequest
from gateway.domain.notices import Notice
from gateway.domain.ports import Decode, Encode, Model, ToolScope
from gateway.domain.tape import Tape
from gateway.sessions.asked import Difference, apart
from gateway.sessions.remembering import recollection_on
from gateway.sessions.replayed import notice_from, recorded_result
from gateway.sessions.replaying import Replayed, Replays
from gateway.sessions.runs import LiveRuns
from gateway.sessions.work import Work

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
