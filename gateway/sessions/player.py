"""Plays a journal: the model, the tools and the clock give what they gave when it was written."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import takewhile
from math import inf
from sys import maxsize
from typing import NoReturn

import anyio
from anyio.lowlevel import checkpoint

from gateway.agent.effects import Gate, Job, RunControl, Steered, TurnEvent
from gateway.agent.journal import EventQueue, RunJournal, reply_from, result_from, spent_from
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import Amount, BudgetExceeded, Scope, Tally
from gateway.domain.errors import ModelFailed
from gateway.domain.ids import EPOCH, to_time
from gateway.domain.journal import OVERRUN, Attempt, JournalEntry, JournalUnreadable, damaged
from gateway.domain.messages import Spent, ToolCall, ToolResult, Usage
from gateway.domain.model import (
    BudgetWarning,
    Hear,
    ModelReply,
    ModelRequest,
    ReplyProgress,
    TextDelta,
    ThinkingDelta,
)
from gateway.domain.ports import HttpAnswer, HttpCall, HttpFailed, Model, ToolScope
from gateway.sessions.journal import (
    Difference,
    RequestParts,
    parted,
    parts_at,
    parts_of,
    unequal,
)

STALL_S = 1.0  # side by side, another's entry may come first; but not for so long
_NOTHING = JournalEntry("over")
_CLOCKS = frozenset({"now", "at"})
_SKIPPED = frozenset({"taken", "begun", "sub"})  # only a resumed attempt needs them
_UNREAD = frozenset({"bytes", "end"})  # of an answer that nobody read to its end
# What may be left over in front of a entry: it is not asked for any more.
_LEFT: Mapping[str, frozenset[str]] = dict.fromkeys(
    ("sent", "metered", "reply", "failed", "refused"), _UNREAD
)
OTHERS = frozenset({"stop", "said", "unsaid"})  # what others did to the run
# Whoever is stopped may go one step further.
_UNHEARD = _UNREAD | OTHERS | {"sent", "spent", "over"}

Part = Callable[[Difference | JournalUnreadable], None]


class ReplayedClock:
    """Implements the Clock port: what the clocks said between two entries, in its order; whoever reads
    them more often gets the last again."""

    def __init__(self) -> None:
        self._now, self._tick = EPOCH, 0.0
        self._nows: deque[datetime] = deque()
        self._ticks: deque[float] = deque()

    def now(self) -> datetime:
        if self._nows:
            self._now = self._nows.popleft()
        return self._now

    def monotonic(self) -> float:
        if self._ticks:
            self._tick = self._ticks.popleft()
        return self._tick

    async def sleep(self, seconds: float) -> None:
        await checkpoint()

    def take(self, entries: Sequence[JournalEntry], place: int) -> int:
        """What they said from that place on; gives the place after it."""
        self._now = self._nows[-1] if self._nows else self._now
        self._tick = self._ticks[-1] if self._ticks else self._tick
        self._nows.clear()
        self._ticks.clear()
        while place < len(entries) and entries[place].kind in _CLOCKS:
            entry = entries[place]
            self._nows.append(to_time(entry.values[0]))
            if entry.kind == "at":
                self._ticks.append(entry.values[1])
            place += 1
        return place


class Player(RunJournal):
    """The journal of a run that is replayed. `part` is told where the run leaves the record, or what
    is wrong with it; the replay ends there."""

    def __init__(self, attempt: Attempt, control: RunControl, part: Part, soul: str) -> None:
        self.played = ReplayedClock()
        super().__init__(self.played, attempt.earlier)
        self._entries = [one for one in attempt.entries if one.kind not in _SKIPPED]
        self._control, self._part, self._soul = control, part, soul
        self._parts = RequestParts()
        self._moved = anyio.Event()
        self._ends_unread = 0
        self._place = self.played.take(self._entries, 0)

    # -- the record

    def coming(self) -> Iterator[JournalEntry]:
        """The entries from here on, without the clocks."""
        rest = (self._entries[place] for place in range(self._place, len(self._entries)))
        return (entry for entry in rest if entry.kind not in _CLOCKS)

    async def reach(self, *kinds: str, key: tuple[object, ...] = ()) -> JournalEntry:
        """The next entry, when it is of one of these kinds and its values begin so. Does not wait if
        it is there already."""
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
        self._place = self.played.take(self._entries, self._place + 1)
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    def forget_end(self) -> None:
        """Of an answer that nobody reads any more; it may stand a little further on."""
        self._ends_unread += 1
        self._skip_ends()

    def _skip_ends(self) -> None:
        while self._ends_unread and next(self.coming(), _NOTHING).kind == "end":
            self._ends_unread -= 1
            self.advance()

    async def cut(self) -> NoReturn:
        """What becomes of a call that has no end: its time was over, or nobody wanted it any more."""
        for entry in self.coming():
            if entry.kind == "told" and "ModelBroke" in entry.values[0]:
                raise TimeoutError
            if entry.kind in {"ask", "over"}:
                break
        while True:
            self._next()
            await self._stall("the end of a call")

    async def leave(self, difference: Difference | JournalUnreadable) -> NoReturn:
        self._part(difference)
        await anyio.sleep_forever()
        raise AssertionError("the replay has ended")

    def _next(self) -> JournalEntry:
        """The next entry. What others did before it is done."""
        self._skip_ends()
        while (entry := next(self.coming(), _NOTHING)).kind in OTHERS:
            self.advance()
            match entry:
                case JournalEntry("stop", (reason, at_once)):
                    self._control.stop(reason, at_once=at_once)
                case JournalEntry("said", (run_id, text)):
                    self._control.steer(Steered(run_id, text))
                case _:
                    self._control.withdraw(entry.values[0])
        return entry

    async def _stall(self, wanted: str, queue: EventQueue | None = None) -> None:
        """Until something else has had its turn."""
        with anyio.move_on_after(STALL_S) as scope:
            if queue is None:
                await self._moved.wait()
            else:
                await _either(self._moved, queue.came)
        if scope.cancelled_caught:
            found = next(self.coming(), _NOTHING).kind
            await self.leave(Difference("the order of what happened", found, wanted))

    # -- what the driver asks of it

    async def begins(
        self, job: Job, scene: Mapping[str, object], read: Mapping[str, object]
    ) -> None:
        """Compares what decides over the run, and what the first request will begin with."""
        recorded = (await self.reach("begin")).values[0]
        if (difference := unequal(recorded, scene)) is not None:
            await self.leave(difference)
        told = next((one.values[0] for one in self.coming() if one.kind == "ask"), None)
        if told is None:
            return
        first, now = await self._asked(told), parts_at(job)
        known = len(now.messages) - 1  # without the question, before which notices may stand
        if len(first.messages) > known:  # else it was made shorter to fit
            messages, now = first.messages[:known], replace(now, messages=now.messages[:known])
        else:
            messages, now = (), replace(now, messages=())
        first = replace(first, settings={}, messages=messages)
        if (difference := parted("call 1", first, now, self._soul)) is not None:
            await self.leave(difference)

    async def _asked(self, told: Mapping[str, object]) -> RequestParts:
        """What was asked; `told` is how it stands in the record."""
        try:
            return self._parts.then(told)
        except ValueError as error:
            await self.leave(damaged(error))

    async def keep(self, what: str) -> None:
        await self.reach("kept", key=(what,))

    async def compare(self, call: str, told: Mapping[str, object], now: RequestParts) -> None:
        """Compares what is asked with what was."""
        self._parts = await self._asked(told)
        if (difference := parted(call, self._parts, now, self._soul)) is not None:
            await self.leave(difference)

    async def wait(self, queue: EventQueue, seconds: float) -> bool:
        while True:
            queue.came = anyio.Event()
            entry = self._next()
            if entry.kind == "told" and entry.values[0] == names(queue.items):
                return True
            if entry.kind == "late":
                self.advance()
                return False
            await self._stall("something to tell", queue)

    def tells(self, events: Sequence[TurnEvent]) -> None:
        entry = next(self.coming(), _NOTHING)
        if entry.kind == "told" and entry.values[0] == names(events):
            self.advance()
        else:
            self._part(Difference("what the turn is told", entry.kind, names(events)))

    def ends(self) -> None:
        """All that was told has been told again, but for what nobody heard any more."""
        for entry in self.coming():
            if entry.kind not in _UNHEARD:
                self._part(Difference("the order of what happened", entry.kind, "the end"))
                break
            self.advance()
            if entry.kind == "over":
                break


def names(events: Iterable[TurnEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


async def _either(one: anyio.Event, other: anyio.Event) -> None:
    async with anyio.create_task_group() as group:

        async def until(event: anyio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        group.start_soon(until, one)
        group.start_soon(until, other)


_MOST_SENT = 64 * 1024 * 1024


class Reel:
    """What a provider's client stands on while its bytes come from a record: network, clock, random
    numbers, and an encoder that asks nobody anything."""

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
        """A retry that did not happen would have come too late."""
        return 0.0 if self._goes_on() else inf

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        return {}

    def body(self, request: ModelRequest) -> bytes:
        """As long as it was: estimates count on that."""
        sizes = (entry.values[0] for entry in self._player.coming() if entry.kind == "sent")
        return bytes(max(0, min(next(sizes, 0), _MOST_SENT)))

    def adapt(self, refusal: str) -> bool:
        return self._goes_on()

    def _goes_on(self) -> bool:
        """Whether more was sent within this call, or would have been if nobody had stopped it."""
        kinds = (entry.kind for entry in self._player.coming())
        return next((kind for kind in kinds if kind in _TURNS), "sent") not in _ENDS

    def send(self, call: HttpCall) -> AbstractAsyncContextManager[HttpAnswer]:
        return self._send()

    @asynccontextmanager
    async def _send(self) -> AsyncIterator[HttpAnswer]:
        self._has_ended = False
        await self._player.reach("sent")
        entry = await self._player.reach("head", "end")
        try:
            if entry.kind == "end":
                await self.ended(*entry.values)
            yield _Answer(self, self._player, *entry.values)
        finally:
            if not self._has_ended:
                self._player.forget_end()

    async def ended(self, how: str, detail: str) -> bytes:
        """What a read gives at the end of an answer."""
        self._has_ended = True
        if how == "complete":
            return b""
        if how != "cut":
            raise HttpFailed(how, detail)
        if not has_end(self._player):
            await self._player.cut()
        return b""


_ENDS = frozenset({"reply", "failed", "refused"})
_TURNS = _ENDS | {"sent", "ask", "over"}
_WORDS = ("text", "thinking")


def _reserved(player: Player) -> int:
    """The size by which the call that comes was cut off, if it was."""
    for entry in takewhile(lambda entry: entry.kind not in _ENDS, player.coming()):
        if entry.kind == "end" and entry.values[0] == OVERRUN and entry.values[1].isdecimal():
            return int(entry.values[1])
    return maxsize


def is_next(player: Player, *kinds: str) -> bool:
    entry = next(player.coming(), None)
    return entry is not None and entry.kind in kinds


def has_end(player: Player) -> bool:
    """Whether the call that is at work came to an end of its own."""
    kinds = (entry.kind for entry in player.coming())
    return next((kind for kind in kinds if kind in _TURNS), None) in _ENDS


class _Answer:
    def __init__(self, reel: Reel, player: Player, status: int, headers: Mapping[str, str]) -> None:
        self._reel, self._player = reel, player
        self.status, self.headers = status, headers

    @property
    def is_over(self) -> bool:
        return not is_next(self._player, "bytes")

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
    """Implements the Model port. `wired` makes the real clients over a reel."""

    def __init__(self, player: Player, wired: Callable[[Reel], Model]) -> None:
        self._player = player
        self._wired = wired(Reel(player))
        self.calls = 0

    async def reply(self, request: ModelRequest, hear: Hear) -> ModelReply:
        player = self._player
        entry = await player.reach("ask")
        self.calls += 1
        await player.compare(f"call {self.calls}", entry.values[0], parts_of(request))
        kinds = (one.kind for one in player.coming())
        if next((kind for kind in kinds if kind not in OTHERS), None) != "sent":
            return await self._told(hear)
        request = replace(request, progress=ReplyProgress(most=_reserved(player)))
        try:
            reply = await self._wired.reply(request, hear)
        except ModelFailed:
            entry = await player.reach("failed", "refused")
            if entry.kind == "refused":  # a retry, or another that nobody paid for
                raise await self._refusal(entry) from None
            raise
        within = takewhile(lambda entry: entry.kind not in _TURNS, player.coming())
        if any(entry.kind == "metered" for entry in within):
            reply = await self._metered(reply)
        await player.reach("reply")
        return reply

    async def _metered(self, reply: ModelReply) -> ModelReply:
        cost_usd, warned, told = (await self._player.reach("metered")).values
        try:
            warnings = tuple(BudgetWarning(**one) for one in warned)
            usage = reply.usage if told is None else Usage(**told)
        except TypeError as error:
            await self._player.leave(damaged(error))
        return replace(reply, usage=replace(usage, cost_usd=cost_usd), warnings=warnings)

    async def _refusal(self, entry: JournalEntry) -> BudgetExceeded:
        kind, name, unit, used, limit, held, after_s = entry.values
        amount = Amount if unit == "tokens" else partial(Amount, 0)
        try:
            tally = Tally(Scope(kind, name), amount(used), amount(held))
            return BudgetExceeded(tally, unit, limit, retry_after_s=after_s)
        except (KeyError, ValueError) as error:
            await self._player.leave(damaged(error))

    async def _told(self, hear: Hear) -> ModelReply:
        """By a model that has no bytes, or by one that was never reached."""
        while True:
            if not (is_next(self._player, *_WORDS) or has_end(self._player)):
                await self._player.cut()
            entry = await self._player.reach("text", "thinking", "reply", "failed", "refused")
            told = entry.values[0]
            if entry.kind == "refused":
                raise await self._refusal(entry)
            if entry.kind == "text":
                hear(TextDelta(told))
            elif entry.kind == "thinking":
                hear(ThinkingDelta(told))
            else:
                break
        try:
            if entry.kind == "reply":
                return reply_from(entry.values[1])
            failed = ModelFailed(**told)
        except (TypeError, KeyError, AssertionError) as error:
            await self._player.leave(damaged(error))
        raise failed


class ReplayedGate:
    """Gives recorded results in the order in which the tools gave them. What is offered is what
    would be today."""

    def __init__(self, player: Player, gate: Gate) -> None:
        self._player = player
        self.prepare, self.offered, self.listed = gate.prepare, gate.offered, gate.listed

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        reach, key = self._player.reach, (call.id,)
        while (entry := await reach("result", "spent", key=key)).kind == "spent":
            for one in await self._spent(entry):
                scope.spend(one)
        _, _, name, arguments, told = entry.values
        if (name, arguments) != (call.name, call.arguments):
            recorded, now = f"{name} {arguments}", f"{call.name} {call.arguments}"
            await self._player.leave(Difference(f"the tool call {call.id}", recorded, now))
        try:
            return result_from(call.id, name, told)
        except (TypeError, ValueError, KeyError) as error:
            await self._player.leave(damaged(error))

    async def _spent(self, entry: JournalEntry) -> tuple[Spent, ...]:
        try:
            return tuple(map(spent_from, entry.values[1]))
        except (TypeError, KeyError) as error:
            await self._player.leave(damaged(error))
