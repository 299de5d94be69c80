"""Plays a journal: each port gives back what it gave when the journal was made."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import takewhile
from math import inf
from sys import maxsize
from typing import Any, NoReturn

import anyio
from anyio.lowlevel import checkpoint

from gateway.agent.driver import News, Pace
from gateway.agent.effects import Gate, Job, Reins, Said, Told, reply_from, result_from, spent_from
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import Amount, BudgetExceeded, Scope, Tally
from gateway.domain.errors import ModelFailed
from gateway.domain.events import Batching, Notice
from gateway.domain.ids import EPOCH, RunId, SessionKey, to_time
from gateway.domain.inbox import JournalNote
from gateway.domain.mcp import Lacking
from gateway.domain.messages import Excerpt, Spent, ToolCall, ToolResult, Usage
from gateway.domain.model import (
    BudgetWarning,
    Hear,
    ModelReply,
    ModelRequest,
    Progress,
    TextDelta,
    ThinkingDelta,
)
from gateway.domain.ports import Decode, HttpAnswer, HttpCall, HttpFailed, Model, ToolScope
from gateway.domain.tape import OVERRUN, Mark, MarkKind, Tape
from gateway.sessions.journal import (
    Difference,
    Parts,
    TapeUnreadable,
    damaged,
    names,
    parted,
    parts_at,
    parts_of,
    unequal,
)

STALL_S = 1.0  # side by side, another's mark may come first; but not for so long
_NOTHING = Mark("over")
_CLOCKS = frozenset({"now", "tick"})
_UNREAD = frozenset({"bytes", "end"})  # of an answer that nobody read to its end
# What may be left over in front of a mark: it is not asked for any more.
_LEFT: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("sent", "metered", "reply", "failed", "refused"), _UNREAD),
    "kept": frozenset({"remembered"}),
    "begin": frozenset({"kept", "remembered"}),
}
OTHERS = frozenset({"stop", "said", "unsaid"})  # what others did to the run
# Whoever is stopped may go one step further.
_UNHEARD = _UNREAD | OTHERS | {"sent", "spent", "over"}

Part = Callable[[Difference | TapeUnreadable], None]


class ReplayedClock:
    """Implements the Clock port: what the clocks said between two marks, in its order; whoever reads
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

    def take(self, marks: Sequence[Mark], place: int) -> int:
        """What they said from that place on; gives the place after it."""
        self._now = self._nows[-1] if self._nows else self._now
        self._tick = self._ticks[-1] if self._ticks else self._tick
        self._nows.clear()
        self._ticks.clear()
        while place < len(marks) and marks[place].kind in _CLOCKS:
            mark = marks[place]
            if mark.kind == "now":
                self._nows.append(to_time(mark.values[0]))
            else:
                self._ticks.append(mark.values[0])
            place += 1
        return place


class Player(Pace):
    """The pace of a run that is replayed. `part` is told where the run leaves the tape, or what is
    wrong with it; the replay ends there."""

    def __init__(self, tape: Tape, reins: Reins, part: Part, soul: str) -> None:
        self._marks = tape.marks
        self._reins, self._part, self._soul = reins, part, soul
        self._parts = Parts()
        self._moved = anyio.Event()
        self._ends_unread = 0
        self.clock = ReplayedClock()
        self._place = self.clock.take(self._marks, 0)

    # -- the tape

    def coming(self) -> Iterator[Mark]:
        """The marks from here on, without the clocks."""
        rest = (self._marks[place] for place in range(self._place, len(self._marks)))
        return (mark for mark in rest if mark.kind not in _CLOCKS)

    async def reach(self, *kinds: MarkKind, key: tuple[object, ...] = ()) -> Mark:
        """The next mark, when it is of one of these kinds and its values begin so. Does not wait if
        it is there already."""
        while True:
            mark = self._next()
            if mark.kind in kinds and mark.values[: len(key)] == key:
                self.advance()
                return mark
            if mark.kind in _LEFT.get(kinds[0], ()):
                self.advance()
            else:
                await self._wait(" or ".join(kinds))

    def advance(self) -> None:
        self._place = self.clock.take(self._marks, self._place + 1)
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
        for mark in self.coming():
            if mark.kind == "told" and "ModelBroke" in mark.values[0]:
                raise TimeoutError
            if mark.kind in {"ask", "over"}:
                break
        while True:
            self._next()
            await self._wait("the end of a call")

    async def leave(self, difference: Difference | TapeUnreadable) -> NoReturn:
        self._part(difference)
        await anyio.sleep_forever()
        raise AssertionError("the replay has ended")

    def _next(self) -> Mark:
        """The next mark. What others did before it is done."""
        self._skip_ends()
        while (mark := next(self.coming(), _NOTHING)).kind in OTHERS:
            self.advance()
            match mark:
                case Mark("stop", (reason, at_once)):
                    self._reins.stop(reason, at_once=at_once)
                case Mark("said", (run_id, text)):
                    self._reins.say(Said(run_id, text))
                case _:
                    self._reins.unsay(mark.values[0])
        return mark

    async def _wait(self, wanted: str, news: News | None = None) -> None:
        """Until something else has had its turn."""
        with anyio.move_on_after(STALL_S) as scope:
            if news is None:
                await self._moved.wait()
            else:
                await _either(self._moved, news.came)
        if scope.cancelled_caught:
            found = next(self.coming(), _NOTHING).kind
            await self.leave(Difference("the order of what happened", found, wanted))

    # -- what the driver asks of it

    async def begins(self, job: Job, scene: Mapping[str, object]) -> None:
        recorded, parts = (await self.reach("begin")).values
        if (difference := unequal(recorded, scene)) is not None:
            await self.leave(difference)
        await self.compare("call 1", parts, parts_at(job))

    async def compare(self, call: str, told: Mapping[str, object], now: Parts) -> None:
        """What is asked, with what was; `told` is how it stands on the tape."""
        try:
            self._parts = self._parts.then(told)
        except ValueError as error:
            await self.leave(damaged(error))
        if (difference := parted(call, self._parts, now, self._soul)) is not None:
            await self.leave(difference)

    async def wait(self, news: News, seconds: float) -> bool:
        while True:
            news.expect()
            mark = self._next()
            if mark.kind == "told" and mark.values[0] == names(news.items):
                return True
            if mark.kind == "late":
                self.advance()
                return False
            await self._wait("something to tell", news)

    def tells(self, told: Sequence[Told]) -> None:
        mark = next(self.coming(), _NOTHING)
        if mark.kind == "told" and mark.values[0] == names(told):
            self.advance()
        else:
            self._part(Difference("what the turn is told", mark.kind, names(told)))

    def ends(self) -> None:
        """All that was told has been told again, but for what nobody heard any more."""
        for mark in self.coming():
            if mark.kind not in _UNHEARD:
                self._part(Difference("the order of what happened", mark.kind, "the end"))
                break
            self.advance()
            if mark.kind == "over":
                break


async def _either(one: anyio.Event, other: anyio.Event) -> None:
    async with anyio.create_task_group() as group:

        async def until(event: anyio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        group.start_soon(until, one)
        group.start_soon(until, other)


_MOST_SENT = 64 * 1024 * 1024


class Reel:
    """What a provider's client stands on while its bytes come from a tape: network, clock, random
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
        sizes = (mark.values[0] for mark in self._player.coming() if mark.kind == "sent")
        return bytes(max(0, min(next(sizes, 0), _MOST_SENT)))

    def adapt(self, refusal: str) -> bool:
        return self._goes_on()

    def _goes_on(self) -> bool:
        """Whether more was sent within this call, or would have been if nobody had stopped it."""
        kinds = (mark.kind for mark in self._player.coming())
        return next((kind for kind in kinds if kind in _TURNS), "sent") not in _ENDS

    def send(self, call: HttpCall) -> AbstractAsyncContextManager[HttpAnswer]:
        return self._send()

    @asynccontextmanager
    async def _send(self) -> AsyncIterator[HttpAnswer]:
        self._has_ended = False
        await self._player.reach("sent")
        mark = await self._player.reach("head", "end")
        try:
            if mark.kind == "end":
                await self.ended(*mark.values)
            yield _Answer(self, self._player, *mark.values)
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
    for mark in takewhile(lambda mark: mark.kind not in _ENDS, player.coming()):
        if mark.kind == "end" and mark.values[0] == OVERRUN and mark.values[1].isdecimal():
            return int(mark.values[1])
    return maxsize


def is_next(player: Player, *kinds: str) -> bool:
    mark = next(player.coming(), None)
    return mark is not None and mark.kind in kinds


def has_end(player: Player) -> bool:
    """Whether the call that is at work came to an end of its own."""
    kinds = (mark.kind for mark in player.coming())
    return next((kind for kind in kinds if kind in _TURNS), None) in _ENDS


class _Answer:
    def __init__(self, reel: Reel, player: Player, status: int, headers: Mapping[str, str]) -> None:
        self._reel, self._player = reel, player
        self.status, self.headers = status, headers

    @property
    def is_over(self) -> bool:
        return not is_next(self._player, "bytes")

    async def read_some(self) -> bytes:
        mark = await self._player.reach("bytes", "end")
        if mark.kind == "end":
            return await self._reel.ended(*mark.values)
        data: str = mark.values[0]
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
        mark = await player.reach("ask")
        self.calls += 1
        await player.compare(f"call {self.calls}", mark.values[0], parts_of(request))
        kinds = (one.kind for one in player.coming())
        if next((kind for kind in kinds if kind not in OTHERS), None) != "sent":
            return await self._told(hear)
        request = replace(request, progress=Progress(most=_reserved(player)))
        try:
            reply = await self._wired.reply(request, hear)
        except ModelFailed:
            mark = await player.reach("failed", "refused")
            if mark.kind == "refused":  # a retry, or another that nobody paid for
                raise await self._refusal(mark) from None
            raise
        within = takewhile(lambda mark: mark.kind not in _TURNS, player.coming())
        if any(mark.kind == "metered" for mark in within):
            reply = await self._metered(reply)
        await player.reach("reply")
        return reply

    async def _metered(self, reply: ModelReply) -> ModelReply:
        cost_usd, warned, told = (*(await self._player.reach("metered")).values, None)[:3]
        try:
            warnings = tuple(BudgetWarning(**one) for one in warned)
            usage = reply.usage if told is None else Usage(**told)
        except TypeError as error:
            await self._player.leave(damaged(error))
        return replace(reply, usage=replace(usage, cost_usd=cost_usd), warnings=warnings)

    async def _refusal(self, mark: Mark) -> BudgetExceeded:
        # Older tapes do not tell what was reserved.
        kind, name, unit, used, limit, held, after_s = (*mark.values, 0, None)[:7]
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
            mark = await self._player.reach("text", "thinking", "reply", "failed", "refused")
            told = mark.values[0]
            if mark.kind == "refused":
                raise await self._refusal(mark)
            if mark.kind == "text":
                hear(TextDelta(told))
            elif mark.kind == "thinking":
                hear(ThinkingDelta(told))
            else:
                break
        try:
            if mark.kind == "reply":
                return reply_from(dict(told))
            failed = ModelFailed(**told)
        except (TypeError, KeyError, AssertionError) as error:
            await self._player.leave(damaged(error))
        raise failed


class ReplayedGate:
    """Gives recorded results in the order in which the tools gave them. What is offered is what
    would be today."""

    def __init__(self, player: Player, gate: Gate, decode: Decode) -> None:
        self._player, self._gate, self._decode = player, gate, decode
        self.offered, self.listed = gate.offered, gate.listed

    async def prepare(self, agent: AgentDef) -> Sequence[Lacking]:
        await self._gate.prepare(agent)  # so that what is offered today can be offered
        kinds = (mark.kind for mark in self._player.coming())
        if "lacking" not in takewhile(lambda kind: kind != "begin", kinds):
            return ()
        mark = await self._player.reach("lacking")
        try:
            return [Lacking(*one) for one in mark.values[0]]
        except TypeError as error:
            await self._player.leave(damaged(error))

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        spent: list[Spent] = []
        kinds: tuple[MarkKind, ...] = ("result", "slow", "spent")
        while (mark := await self._player.reach(*kinds, key=(call.id,))).kind == "spent":
            for one in await self._spent(mark):
                spent.append(one)
                scope.spend(one)
        if mark.kind == "slow":
            return await self._given_up(mark.values[1])
        _, name, arguments, *told = mark.values
        if (name, arguments) != (call.name, call.arguments):
            recorded, now = f"{name} {arguments}", f"{call.name} {call.arguments}"
            await self._player.leave(Difference(f"the tool call {call.id}", recorded, now))
        try:
            return replace(recorded_result(call, told), spent=tuple(spent))
        except (TypeError, ValueError) as error:
            await self._player.leave(damaged(error))

    async def _spent(self, mark: Mark) -> tuple[Spent, ...]:
        try:
            return tuple(map(spent_from, mark.values[1]))
        except (TypeError, KeyError) as error:
            await self._player.leave(damaged(error))

    async def _given_up(self, told: str) -> ToolResult:
        try:
            return result_from(self._decode(told))  # type: ignore[arg-type]  # as it was journalled
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            await self._player.leave(damaged(error))


def recorded_result(call: ToolCall, told: Sequence[Any]) -> ToolResult:
    """From a tape, also from one of before there were boundaries. Raises TypeError, ValueError."""
    (content, is_error, took_ms), (boundary, cut) = told[:3], told[3:] or ("", None)
    result = ToolResult(call.id, call.name, content, is_error, took_ms, boundary=boundary)
    return replace(result, excerpt=Excerpt(**cut)) if cut else result


class ReplayedStore:
    """Implements the ports Journal, RuleStates and NoticeBoard. Nothing is written."""

    def __init__(self, player: Player) -> None:
        self._player = player

    async def note(self, run_id: RunId, note: JournalNote) -> None:
        await self._player.reach("noted", key=(note.step, note.kind))

    async def notes(self, run_id: RunId) -> Sequence[JournalNote]:
        mark = await self._player.reach("earlier")
        try:
            return [JournalNote(*note) for note in mark.values[0]]
        except TypeError as error:
            await self._player.leave(damaged(error))

    async def forgive(self, run_id: RunId) -> None: ...

    async def of(self, key: SessionKey) -> str | None:
        kinds = (mark.kind for mark in self._player.coming())
        if "kept" not in takewhile(lambda kind: kind != "begin", kinds):
            return None  # no rule kept anything then
        kept: str | None = (await self._player.reach("kept")).values[0]
        return kept

    async def claim(
        self, person: str, session_key: SessionKey, run_id: RunId, *, now: datetime
    ) -> Sequence[Notice]:
        mark = await self._player.reach("waiting")
        try:
            return [notice_from(**told) for told in mark.values[0]]
        except TypeError as error:
            await self._player.leave(damaged(error))


def notice_from(*, expires_at: int | None, batching: dict[str, float], **more: Any) -> Notice:
    until = None if expires_at is None else to_time(expires_at)
    return Notice(**more, expires_at=until, batching=Batching(**batching))  # type: ignore[arg-type]  # as it was written
