"""The ports of a run that is replayed: each gives back what it gave when the tape was made."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from math import inf
from typing import Any

from gateway.agent.job import Gate
from gateway.agent.story import reply_from, result_from, spent_from
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import Amount, BudgetExceeded, Scope, Tally
from gateway.domain.errors import ModelFailed
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import JournalNote
from gateway.domain.mcp import Lacking
from gateway.domain.messages import Excerpt, ToolCall, ToolResult
from gateway.domain.model import (
    BudgetWarning,
    Hear,
    ModelReply,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
)
from gateway.domain.notices import Batching, Notice
from gateway.domain.ports import Decode, HttpAnswer, HttpCall, HttpFailed, Model, ToolScope
from gateway.domain.tape import Mark, MarkKind
from gateway.domain.times import to_time
from gateway.domain.usage import Spent
from gateway.sessions.asked import Difference, parts_of
from gateway.sessions.player import OTHERS, Player
from gateway.sessions.taping import damaged

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
        cost_usd, warned = (await self._player.reach("metered")).values
        try:
            warnings = tuple(BudgetWarning(**one) for one in warned)
        except TypeError as error:
            await self._player.leave(damaged(error))
        return replace(reply, usage=replace(reply.usage, cost_usd=cost_usd), warnings=warnings)

    async def _refusal(self, mark: Mark) -> BudgetExceeded:
        kind, name, unit, used, limit = mark.values
        spent = Amount(used) if unit == "tokens" else Amount(nano_usd=used)
        try:
            return BudgetExceeded(Tally(Scope(kind, name), spent), unit, limit)
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
