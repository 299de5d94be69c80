"""Replays the journal of a run with its recorded replies, results and times; compares a run with another model."""

import json
from collections import defaultdict, deque
from collections.abc import (
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import takewhile, zip_longest
from math import inf
from sys import maxsize
from typing import Any, NoReturn, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from gateway.agent.driver import (
    EventQueue,
    RunControl,
    RunJournal,
    Runner,
    reply_from,
    result_from,
    spent_from,
)
from gateway.agent.effects import NAME_OF, Gate, Job, Steered
from gateway.codec import decode
from gateway.control.notices import Bus
from gateway.control.rules import RuleSet
from gateway.domain.agents import AgentDef, ContextRules
from gateway.domain.budgets import Amount, BudgetExceeded, Scope, Tally
from gateway.domain.errors import Conflict, ModelFailed, NotFound
from gateway.domain.ids import EPOCH, NodeId, RunId, to_time
from gateway.domain.inbox import RunRecord
from gateway.domain.journal import (
    MOST_BYTES,
    OVERRUN,
    Attempt,
    JournalEntry,
    JournalUnreadable,
    damaged,
)
from gateway.domain.messages import ToolCall, ToolResult, Usage
from gateway.domain.model import (
    BudgetWarning,
    ModelReply,
    ModelRequest,
    OnDelta,
    ReplyProgress,
    TextDelta,
    ThinkingDelta,
)
from gateway.domain.ports import HttpAnswer, HttpCall, HttpFailed, Model, SessionStore, ToolScope
from gateway.memory.context import Episode
from gateway.sessions.journal import (
    FAILURE,
    NO_REQUEST,
    Difference,
    RequestParts,
    RunInputs,
    last_attempt,
    parts_after,
    parts_at,
    parts_of,
    read_inputs,
    request_difference,
    text_difference,
    value_difference,
)
from gateway.sessions.lanes import TurnBatch
from gateway.sessions.runs import LiveRun
from gateway.sessions.worker import RunEnd, RunWorker

T = TypeVar("T")

LONGEST_S = 60.0
STALL_S = 1.0  # a call waits so long for the entries of calls beside it
_SHOWN = 500  # bytes of an event in a difference
_MOST_SENT = 64 * 1024 * 1024
_NOTHING = JournalEntry("over")

# Kinds of entries, by their role in a replay.
_CLOCKS = frozenset({"now", "at"})
_SKIPPED = frozenset({"taken", "begun", "sub"})  # only a resumed attempt needs them
_UNREAD = frozenset({"bytes", "end"})  # the rest of an answer that was not read to its end
_OTHERS = frozenset({"stop", "said", "unsaid"})  # requests to the run from outside
_WORDS = frozenset({"text", "thinking"})
_ENDS = frozenset({"reply", "failed", "refused"})
_TURNS = _ENDS | {"sent", "ask", "over"}
# Entries that may be left unread before an entry of these kinds.
_LEFT = dict.fromkeys(("sent", "metered", "reply", "failed", "refused"), _UNREAD)
# Entries that may be left unread at the end: a stopped run may have gone one step further.
_UNREAD_AT_END = _UNREAD | _OTHERS | {"sent", "spent", "over"}

OnDifference = Callable[[Difference | JournalUnreadable], None]


class Player(RunJournal):
    """The journal and the clock of a replayed run. The clock returns the recorded readings between two
    entries in their order, and then repeats the last one. The replay ends at the first difference or
    damage, and `on_difference` is called with it."""

    is_played = True

    def __init__(
        self, attempt: Attempt, control: RunControl, on_difference: OnDifference, soul: str
    ) -> None:
        super().__init__(self, attempt.earlier)
        self.tick = float  # durations of a replay are not measured
        self._entries = [one for one in attempt.entries if one.kind not in _SKIPPED]
        self._control, self._on_difference, self._soul = control, on_difference, soul
        self._parts = NO_REQUEST
        self._moved = anyio.Event()
        self._queue = EventQueue()  # the driver waits on it
        self._ends_unread = 0
        self._nows, self._ticks = deque([EPOCH]), deque([0.0])  # the first reading counts as used
        self._go_to(0)

    # -- the clock

    def now(self) -> datetime:
        if len(self._nows) > 1:
            self._nows.popleft()
        return self._nows[0]

    def monotonic(self) -> float:
        if len(self._ticks) > 1:
            self._ticks.popleft()
        return self._ticks[0]

    async def sleep(self, seconds: float) -> None:
        await checkpoint()

    def _go_to(self, place: int) -> None:
        """Moves to the next entry that is no clock reading, from that place on."""
        self._nows, self._ticks = deque([self._nows[-1]]), deque([self._ticks[-1]])
        while place < len(self._entries) and self._entries[place].kind in _CLOCKS:
            entry = self._entries[place]
            self._nows.append(to_time(entry.values[0]))
            if entry.kind == "at":
                self._ticks.append(entry.values[1])
            place += 1
        self._place = place

    # -- the record

    def coming(self) -> Iterator[JournalEntry]:
        """Yields the entries from here on, without clock readings."""
        rest = (self._entries[place] for place in range(self._place, len(self._entries)))
        return (entry for entry in rest if entry.kind not in _CLOCKS)

    def peek(self) -> JournalEntry:
        return next(self.coming(), _NOTHING)

    def next_of(self, kinds: Container[str]) -> str | None:
        """Returns the first of these kinds that comes."""
        return next((entry.kind for entry in self.coming() if entry.kind in kinds), None)

    def has_end(self) -> bool:
        """True if the running call has a recorded end."""
        return self.next_of(_TURNS) in _ENDS

    async def reach(self, *kinds: str, key: tuple[object, ...] = ()) -> JournalEntry:
        """Waits until the next entry has one of these kinds and values that begin with `key`. Returns at
        once if it does already."""
        while True:
            entry = self._next()
            if entry.kind in kinds and entry.values[: len(key)] == key:
                self.advance()
                return entry
            if entry.kind in _LEFT.get(kinds[0], ()):
                self.advance()
            else:
                await self._stall(" or ".join(kinds))

    def advance(self) -> None:
        self._go_to(self._place + 1)
        moved, self._moved = self._moved, anyio.Event()
        moved.set()
        self._queue.wake()

    def skip_end(self) -> None:
        """Skips the end of an unread answer, which may stand a little further on."""
        self._ends_unread += 1
        self._skip_ends()

    def _skip_ends(self) -> None:
        while self._ends_unread and self.peek().kind == "end":
            self._ends_unread -= 1
            self.advance()

    async def cut(self) -> NoReturn:
        """Ends a call without a recorded end: raises TimeoutError if it timed out, or waits until the turn
        cancels it."""
        for entry in self.coming():
            if entry.kind == "told" and "ModelBroke" in entry.values[0]:
                raise TimeoutError
            if entry.kind in {"ask", "over"}:
                break
        while True:
            self._next()
            await self._stall("the end of a call")

    async def leave(self, difference: Difference | JournalUnreadable) -> NoReturn:
        self._on_difference(difference)
        await anyio.sleep_forever()
        raise AssertionError("the replay has ended")

    async def read(self, make: Callable[[], T]) -> T:
        """Returns the value that `make` makes of an entry. Ends the replay if the entry is damaged."""
        try:
            return make()
        except (TypeError, KeyError, ValueError, AssertionError) as error:
            await self.leave(damaged(error))

    def _next(self) -> JournalEntry:
        """Returns the next entry, after it has carried out the requests from outside before it."""
        self._skip_ends()
        while (entry := self.peek()).kind in _OTHERS:
            self.advance()
            match entry:
                case JournalEntry("stop", (reason, at_once)):
                    self._control.stop(reason, at_once=at_once)
                case JournalEntry("said", (run_id, text)):
                    self._control.steer(Steered(run_id, text))
                case _:
                    self._control.withdraw(entry.values[0])
        return entry

    async def _stall(self, wanted: str, event: anyio.Event | None = None) -> None:
        """Waits until another call has moved on. Ends the replay after STALL_S."""
        with anyio.move_on_after(STALL_S) as scope:
            await (event or self._moved).wait()
        if scope.cancelled_caught:
            found = self.peek().kind
            await self.leave(Difference("the order of the entries", found, wanted))

    # -- for the driver

    async def compare(self, job: Job, scene: Mapping[str, object]) -> None:
        """Compares the configuration of the run, and the beginning of the first request."""
        recorded = (await self.reach("begin")).values[0]
        if (difference := value_difference(recorded, scene)) is not None:
            await self.leave(difference)
        ask = next((one for one in self.coming() if one.kind == "ask"), None)
        if ask is None:
            return
        first = await self.read(partial(parts_after, NO_REQUEST, ask.values[0]))
        now = parts_at(job)
        # Notices may stand before the question. A shortened request has other messages.
        known = len(now["messages"]) - 1
        known = known if len(first["messages"]) > known else 0
        begins = [
            {**one, "settings": None, "messages": one["messages"][:known]} for one in (first, now)
        ]
        await self._compare("call 1", *begins)

    async def grant(self, name: str, kind: str, *values: object) -> None:
        await self.reach("kept", key=(name,))

    async def asked(self, call: str, request: ModelRequest) -> None:
        """Compares a request with the recorded one."""
        entry = await self.reach("ask")
        self._parts = await self.read(partial(parts_after, self._parts, entry.values[0]))
        await self._compare(call, self._parts, parts_of(request))

    async def _compare(self, call: str, recorded: RequestParts, now: RequestParts) -> None:
        if (difference := request_difference(call, recorded, now, self._soul)) is not None:
            await self.leave(difference)

    async def wait(self, queue: EventQueue, seconds: float) -> bool:
        self._queue = queue
        while True:
            queue.came = anyio.Event()
            entry = self._next()
            if entry == JournalEntry("told", (list(map(NAME_OF, queue.items)),)):
                return True
            if entry.kind == "late":
                self.advance()
                return False
            await self._stall("an event", queue.came)

    def __call__(self, kind: str, *values: object) -> None:
        if kind == "told":
            entry = self.peek()
            if entry == JournalEntry(kind, values):
                self.advance()
            else:
                self._on_difference(Difference("the events of the turn", entry.kind, values[0]))
        elif kind == "over":
            self._end()

    def _end(self) -> None:
        """Reports a difference unless the remaining entries may be left unread."""
        for entry in self.coming():
            if entry.kind not in _UNREAD_AT_END:
                difference = Difference("the order of the entries", entry.kind, "the end")
                self._on_difference(difference)
                break
            self.advance()
            if entry.kind == "over":
                break


class Reel:
    """The surroundings of a provider client in a replay: network, clock, random numbers and encoder, all
    from the record."""

    path = ""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._has_ended = False

    def now(self) -> datetime:
        return self._player.clock.now()

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await self._player.clock.sleep(seconds)

    def random(self) -> float:
        """Returns a pause factor: infinite if the record has no retry."""
        return 0.0 if self._goes_on() else inf

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        return {}

    def body(self, request: ModelRequest) -> bytes:
        """Returns a body of the recorded length, which estimates use."""
        sizes = (entry.values[0] for entry in self._player.coming() if entry.kind == "sent")
        return bytes(max(0, min(next(sizes, 0), _MOST_SENT)))

    def adapt(self, refusal: str) -> bool:
        return self._goes_on()

    def _goes_on(self) -> bool:
        """True if the call sent another request, or would have without a stop."""
        return not self._player.has_end()

    async def send(self, call: HttpCall) -> HttpAnswer:
        self._has_ended = False
        await self._player.reach("sent")
        entry = await self._player.reach("head", "end")
        if entry.kind == "end":
            await self.ended(*entry.values)
        return _Answer(self, self._player, *entry.values)

    def close(self) -> None:
        if not self._has_ended:
            self._player.skip_end()

    async def ended(self, how: str, detail: str) -> bytes:
        """Returns the result of a read at the end of an answer, or raises its failure."""
        self._has_ended = True
        if how == "complete":
            return b""
        if how != "cut":
            raise HttpFailed(how, detail)
        if not self._player.has_end():
            await self._player.cut()
        return b""


class _Answer:
    def __init__(self, reel: Reel, player: Player, status: int, headers: Mapping[str, str]) -> None:
        self._reel, self._player = reel, player
        self.status, self.headers = status, headers
        self.close = reel.close

    @property
    def is_over(self) -> bool:
        return self._player.peek().kind != "bytes"

    async def read_some(self) -> bytes:
        entry = await self._player.reach("bytes", "end")
        if entry.kind == "end":
            return await self._reel.ended(*entry.values)
        data: str = entry.values[0]
        return data.encode("latin-1")

    async def read_into(self, take: Callable[[bytes], bool]) -> bool:
        while data := await self.read_some():
            if not take(data):
                return False
        return True


class ReplayedModel:
    """Implements the Model port. `wired` makes the real provider clients over a reel."""

    def __init__(self, player: Player, wired: Callable[[Reel], Model]) -> None:
        self._player = player
        self._wired = wired(Reel(player))
        self.calls = 0

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        player = self._player
        self.calls += 1
        await player.asked(f"call {self.calls}", request)
        kinds = (one.kind for one in player.coming() if one.kind not in _OTHERS)
        if next(kinds, None) != "sent":
            return await self._read(on_delta)
        request = replace(request, progress=ReplyProgress(most=self._most()))
        try:
            reply = await self._wired.reply(request, on_delta)
        except ModelFailed:
            entry = await player.reach("failed", "refused")
            if entry.kind == "refused":  # a budget refused the retry
                raise await player.read(partial(_refusal, *entry.values)) from None
            raise
        if player.next_of(_TURNS | {"metered"}) == "metered":
            entry = await player.reach("metered")
            reply = await player.read(partial(_metered, reply, *entry.values))
        await player.reach("reply")
        return reply

    def _most(self) -> int:
        """Returns the size at which the next call was cut off, if it was."""
        for entry in takewhile(lambda entry: entry.kind not in _ENDS, self._player.coming()):
            if entry.kind == "end" and entry.values[0] == OVERRUN and entry.values[1].isdecimal():
                return int(entry.values[1])
        return maxsize

    async def _read(self, on_delta: OnDelta) -> ModelReply:
        """Returns a recorded reply without bytes: of the demo model, or of a model that was not reached."""
        player = self._player
        while True:
            if not (player.peek().kind in _WORDS or player.has_end()):
                await player.cut()
            entry = await player.reach("text", "thinking", "reply", "failed", "refused")
            match entry.kind:
                case "text":
                    on_delta(TextDelta(entry.values[0]))
                case "thinking":
                    on_delta(ThinkingDelta(entry.values[0]))
                case "reply":
                    return await player.read(partial(reply_from, entry.values[1]))
                case "failed":
                    raise await player.read(partial(_failure, entry.values[0]))
                case _:
                    raise await player.read(partial(_refusal, *entry.values))


def _failure(values: Mapping[str, Any]) -> ModelFailed:
    failed = ModelFailed(**{name: values[name] for name in FAILURE})
    failed.attempts = values.get("attempts", 1)
    return failed


def _metered(
    reply: ModelReply,
    cost_usd: float | None,
    warned: Sequence[Mapping[str, Any]],
    overrun: Mapping[str, Any] | None,
) -> ModelReply:
    warnings = tuple(BudgetWarning(**one) for one in warned)
    usage = reply.usage if overrun is None else Usage(**overrun)
    return replace(reply, usage=replace(usage, cost_usd=cost_usd), warnings=warnings)


def _refusal(kind: Any, name: str, unit: Any, *amounts: Any) -> BudgetExceeded:
    used, limit, held, after_s = amounts
    amount = Amount if unit == "tokens" else partial(Amount, 0)
    tally = Tally(Scope(kind, name), amount(used), amount(held))
    return BudgetExceeded(tally, unit, limit, retry_after_s=after_s)


class ReplayedGate:
    """Implements the Gate port. Returns the recorded results in the order in which they came. The offered
    tools are those of today."""

    def __init__(self, player: Player, gate: Gate) -> None:
        self._player = player
        self.prepare, self.offered, self.listed = gate.prepare, gate.offered, gate.listed

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        player = self._player
        while (entry := await player.reach("result", "spent", key=(call.id,))).kind == "spent":
            for plain in entry.values[1]:
                scope.spend(await player.read(partial(spent_from, plain)))
        _, _, name, arguments, plain = entry.values
        if (name, arguments) != (call.name, call.arguments):
            recorded, now = f"{name} {arguments}", f"{call.name} {call.arguments}"
            await player.leave(Difference(f"the tool call {call.id}", recorded, now))
        return await player.read(partial(result_from, call.id, name, plain))


# -- the operator's replay, and the comparison with another model


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay. `divergence` is the first difference; None if all events are the same, byte
    for byte."""

    divergence: Difference | None
    chunks: int
    calls: int
    response: str | None = None  # of the other model in a comparison
    tokens_used: int | None = None  # by the other model


@dataclass(frozen=True, slots=True)
class Replayer:
    """Replays recorded runs. `wired` makes the real clients of all providers over a reel."""

    worker: RunWorker
    sessions: SessionStore
    wired: Callable[[Reel], Model]
    providers: frozenset[str]

    async def replay(self, record: RunRecord) -> Replayed:
        """Replays a run with the agent, soul, tools and limits of today. Raises Conflict, NotFound and
        JournalUnreadable."""
        attempt = await self.attempt(record)
        batch = await self._batch(record, attempt)
        runner, run, agent_id = self.worker.runner, batch.run, batch.run.session_key.agent
        agent, soul = self.worker.agents.get(agent_id), self.worker.souls.by_agent.get(agent_id)
        scope = anyio.CancelScope(deadline=anyio.current_time() + LONGEST_S)
        comparison = _Comparison(record, scope)
        player = Player(attempt, run.control, comparison, soul.loaded_from if soul else "none")
        run.listen(lambda event, _last: comparison.add(event))
        model = ReplayedModel(player, self.wired)
        if agent is not None:
            await runner.gate.prepare(agent)  # so that the tools of today can be offered
        run.start(record.entry.attempts, player.moment())
        with scope:
            runner = replace(runner, model=model, gate=ReplayedGate(player, runner.gate))
            await self._end_of(batch, agent, runner, player, read_inputs(attempt))
            comparison.end(run.events)
        run.release()
        if comparison.found is None and scope.cancelled_caught:
            raise Conflict(f"the replay did not end within {LONGEST_S:g} s")
        if isinstance(comparison.found, JournalUnreadable):
            raise comparison.found
        return Replayed(comparison.found, comparison.count, model.calls)

    async def compare(self, record: RunRecord, model: str) -> Replayed:
        """Asks another model, and compares its tool calls and answer with the recorded ones. A tool call
        without a recorded result ends the run. Raises as `replay` does, and BudgetExceeded."""
        attempt = await self.attempt(record)
        batch = await self._batch(record, attempt)
        worker, runner, run = self.worker, self.worker.runner, batch.run
        agent = worker.agents.get(run.session_key.agent)
        if agent is None:
            raise NotFound(f"agent {run.session_key.agent!r}")
        asked, gate = _Counted(runner.model), KnownResults(attempt, run.control, runner.gate)
        journal = RunJournal(worker.clock)
        read = replace(read_inputs(attempt), lacking=tuple(await runner.gate.prepare(agent)))
        run.start(1, journal.moment())
        other, runner = self._with_model(agent, model), replace(runner, model=asked, gate=gate)
        end = await self._end_of(batch, other, runner, journal, read)
        run.release()
        if asked.refusal is not None:
            raise asked.refusal
        steps = [_steps(map(decode, log)) for log in (record.log.split(b"\n"), run.events)]
        text, tokens = end.result.end.text, end.result.usage.total
        return Replayed(_first_difference(*steps), len(run.events), asked.calls, text, tokens)

    async def _end_of(
        self,
        batch: TurnBatch,
        agent: AgentDef | None,
        runner: Runner,
        journal: RunJournal,
        read: RunInputs,
    ) -> RunEnd:
        """Drives the run again, without effect elsewhere: no event reaches subscribers, and failures of
        rules are not counted."""
        known, bus = runner.rules, Bus()
        rules = RuleSet(known.rules, known.refused)
        alone = replace(runner, rules=rules, publish=bus.publish, hears=bus.has_listener)
        worker, episode = replace(self.worker, runner=alone), await self._episode(batch)
        end = await worker.end_of(batch, agent, episode, journal, read)
        batch.run.seal(end.terminal)
        return end

    def _with_model(self, agent: AgentDef, model: str) -> AgentDef:
        """Returns the agent with another model. `model` may be `PROVIDER/MODEL`."""
        provider, slash, rest = model.partition("/")
        if not slash or provider not in self.providers:
            provider, rest = agent.provider, model
        return replace(agent, provider=provider, model=rest, fallback=None)

    async def attempt(self, record: RunRecord) -> Attempt:
        run_id = record.entry.new.run_id
        if record.finished_at is None:
            raise Conflict("the run has not ended yet")
        if record.outcome == "merged":
            raise Conflict("another run answered it; the last event of this run names that run")
        parts = await self.worker.journal.read(run_id)
        if not parts and record.log:
            why = "an earlier version recorded this run, and this one cannot replay it"
            raise JournalUnreadable(why)
        if not parts:
            raise NotFound(f"the recording of run {run_id[:64]!r}, which is kept for journal_days,")
        attempt = await last_attempt(parts)
        if attempt.is_cut:
            most = MOST_BYTES // 1024 // 1024
            raise JournalUnreadable(f"the run received more than the {most} MiB that are recorded")
        return attempt

    async def _batch(self, record: RunRecord, attempt: Attempt) -> TurnBatch:
        """Returns the messages that the run answered, and those that came during the run."""
        said = [entry.values[0] for entry in attempt.entries if entry.kind == "said"]
        asked, behind = [await self._queued(ids) for ids in (attempt.asked[:-1], said)]
        return TurnBatch(LiveRun(record.entry), asked, behind)

    async def _queued(self, ids: Sequence[str]) -> Sequence[LiveRun]:
        records = [await self.worker.inbox.find_run(RunId(run_id)) for run_id in ids]
        return [LiveRun(one.entry) for one in records if one is not None]

    async def _episode(self, batch: TurnBatch) -> Episode:
        """Returns the conversation before the question."""
        new = (*batch.earlier, batch.run)[0].new
        question = await self.sessions.node(new.session_key, NodeId(new.message_id))
        if question is None:
            raise NotFound(f"the question of run {new.run_id[:64]!r}")
        if question.parent_id is None:
            return Episode(None)
        agent = self.worker.agents.get(new.session_key.agent)
        rules = agent.context if agent else ContextRules()
        return await self.worker.episodes.recall(new.session_key, rules, upto=question.parent_id)


class _Comparison:
    """Compares the events of a replay with the record. Keeps the first difference and ends the replay."""

    def __init__(self, record: RunRecord, scope: anyio.CancelScope) -> None:
        self._events, self._first = record.log.split(b"\n"), record.first_seq
        self._scope = scope
        self.found: Difference | JournalUnreadable | None = None
        self.count = 0  # of events

    def __call__(self, found: Difference | JournalUnreadable) -> None:
        self.found = self.found or found
        self._scope.cancel()

    def add(self, event: bytes) -> None:
        """Compares the next event with the recorded one. An empty event stands for the end."""
        place = self.count
        recorded = self._events[place] if place < len(self._events) else b""
        if recorded != event and self.found is None:
            shown, now = (
                one[:_SHOWN].decode("utf-8", "replace") or None for one in (recorded, event)
            )
            seq = self._first + place
            self(Difference(f"event {seq}", shown, now, seq))
        self.count += bool(event)

    def end(self, events: Sequence[bytes]) -> None:
        """Compares the last event, which no listener receives."""
        self.add(events[-1])
        if len(events) < len(self._events):
            self.add(b"")


Steps = Sequence[tuple[str, str]]  # name and text of each tool call and of the answer


def _first_difference(recorded: Steps, now: Steps) -> Difference | None:
    for number, (one, other) in enumerate(zip_longest(recorded, now), 1):
        if one == other:
            continue
        if one and other and one[0] == other[0]:
            return text_difference(f"step {number}: {one[0]}", one[1], other[1])
        return Difference(f"step {number}", one and one[0], other and other[0])
    return None


def _steps(events: Iterable[Any]) -> Steps:
    steps: list[tuple[str, str]] = []
    for event in events:
        match event:
            case {"type": "tool_call", "tool_call": {"name": str(name), "arguments": str(given)}}:
                steps.append((f"call of {name}", _canonical(given)))
            case {"type": "done", "response": str(text)} | {"type": "error", "message": str(text)}:
                steps.append(("the answer", text))
    return steps


def _canonical(arguments: str) -> str:
    """Returns one text for all equal arguments."""
    try:
        value = json.loads(arguments)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


class KnownResults:
    """Implements the Gate port with recorded results. A call without one stops the run."""

    def __init__(self, attempt: Attempt, control: RunControl, gate: Gate) -> None:
        self._control = control
        self.prepare, self.offered, self.listed = gate.prepare, gate.offered, gate.listed
        self._known: dict[tuple[str, str], deque[Mapping[str, Any]]] = defaultdict(deque)
        for entry in attempt.entries:
            if entry.kind == "result":
                _, _, name, arguments, plain = entry.values
                self._known[name, _canonical(arguments)].append(plain)

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        known = self._known.get((call.name, _canonical(call.arguments)))
        if not known:
            self._control.stop("cancelled", at_once=True)
            await anyio.sleep_forever()
            raise AssertionError("the run was stopped")
        return result_from(call.id, call.name, known[0] if len(known) == 1 else known.popleft())


class _Counted:
    def __init__(self, model: Model) -> None:
        self._model, self.calls = model, 0
        self.refusal: BudgetExceeded | None = None

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        self.calls += 1
        try:
            return await self._model.reply(request, on_delta)
        except BudgetExceeded as refusal:
            self.refusal = refusal
            raise
