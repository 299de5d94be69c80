"""What a turn is given, what it is told and what it wants, and the journal by which a crash repeats nothing."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableSequence, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from gateway.control.policy import DefaultDecisionTree, MakeDecisionTree
from gateway.control.rules import Act
from gateway.control.trees.plan import TreePlan
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import ModelFailed, StoreUnavailable
from gateway.domain.events import Event, Notice
from gateway.domain.ids import NodeId, RunId
from gateway.domain.inbox import JournalNote
from gateway.domain.mcp import Lacking
from gateway.domain.messages import (
    Chunk,
    DoneReason,
    ErrorType,
    Excerpt,
    Extras,
    Message,
    Price,
    Spent,
    SystemType,
    ToolCall,
    ToolResult,
    Usage,
    unpriced,
)
from gateway.domain.model import BudgetWarning, FinishReason, ModelReply, ToolSpec
from gateway.domain.ports import Clock, Decode, Encode, Journal, ToolScope
from gateway.memory.context import Context
from gateway.tools.sources import Listed, Source


@dataclass(frozen=True, slots=True)
class Said:
    """One more message of a person, under the run that it was accepted with."""

    run_id: RunId
    text: str


@dataclass(frozen=True, slots=True)
class Stop:
    reason: DoneReason
    at_once: bool


@dataclass(frozen=True, slots=True)
class Unsaid:
    """It was taken back before the run took it."""

    run_id: RunId


@dataclass(slots=True)
class Reins:
    """What is pulled before the run is at work reaches it when it begins."""

    pulled: deque[Stop | Said] = field(default_factory=deque)
    wake: Callable[[], None] = lambda: None
    forget: Callable[[RunId], bool] = lambda _run_id: False
    heard: Callable[[Stop | Said | Unsaid], None] = lambda one: None
    is_loose: bool = False  # nobody listens any more

    def stop(self, reason: DoneReason, *, at_once: bool) -> None:
        self._pull(Stop(reason, at_once))

    def say(self, said: Said) -> bool:
        """False if it takes nothing more: it is over, or about to end."""
        if self.is_loose:
            return False
        self._pull(said)
        return True

    def _pull(self, one: Stop | Said) -> None:
        self.heard(one)
        self.pulled.append(one)
        self.wake()

    def unsay(self, run_id: RunId) -> bool:
        """False if it was taken already."""
        was_there = drop_said(self.pulled, run_id) or self.forget(run_id)
        if was_there:
            self.heard(Unsaid(run_id))
        return was_there

    def let_go(self) -> None:
        """The run has ended and keeps nothing alive."""
        self.is_loose, self.wake, self.forget = True, lambda: None, lambda _run_id: False
        self.heard = lambda one: None


def drop_said(queue: MutableSequence[Any], run_id: RunId) -> bool:
    """Takes a person's message out of those that wait; False if it is not there."""
    for one in queue:
        if isinstance(one, Said) and one.run_id == run_id:
            queue.remove(one)
            return True
    return False


@dataclass(frozen=True, slots=True)
class Moment:
    """When a turn is told something, by both clocks; a turn has no other time."""

    wall: datetime
    at: float


@dataclass(frozen=True, slots=True)
class AskModel:
    """Wants a reply to these messages. `taken` is what people said meanwhile and is now among them.
    `step` counts the replies so far."""

    ticket: int
    step: int
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    model: str | None = None  # another than the agent's
    max_tokens: int | None = None
    timeout_s: float | None = None
    idle_timeout_s: float | None = None  # between two pieces of the reply
    taken: tuple[Said, ...] = ()


@dataclass(frozen=True, slots=True)
class CallTool:
    """Wants one call executed; `step` is that of the reply that asked for it."""

    ticket: int
    step: int
    call: ToolCall
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """No longer wants what this ticket was for."""

    ticket: int


Wish = AskModel | CallTool | Cancel


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """`was_heard`: it came in pieces that were told as they came."""

    ticket: int
    reply: ModelReply
    was_heard: bool = True


@dataclass(frozen=True, slots=True)
class ModelBroke:
    """No complete reply; of a spent budget: nobody was asked."""

    ticket: int
    failure: ModelFailed | BudgetExceeded


@dataclass(frozen=True, slots=True)
class ToolReturned:
    ticket: int
    result: ToolResult
    sources: tuple[Source, ...] = ()
    items: int | None = None  # how many entries the result lists, if it is a list of something


@dataclass(frozen=True, slots=True)
class Stopped:
    """Somebody stopped it: now, or when the turn that is at work is over."""

    reason: DoneReason
    at_once: bool = True


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed that the tree waited for."""


Told = ModelReplied | ModelBroke | ToolReturned | Stopped | Said | Ticked


@dataclass(frozen=True, slots=True)
class Finish:
    """How a turn ends that came to an end of its own or was stopped. `text` is never empty."""

    reason: DoneReason
    text: str
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """It could not go on. `told` is what the user is told of it; `text` is what reached the user
    before it broke, or else the same sentence."""

    told: str
    text: str
    error_type: ErrorType = "provider_error"
    retryable: bool = False
    retry_after_s: float | None = None
    refusal: BudgetExceeded | None = None
    provider: str | None = None  # whose failure it is, and the status that it answered with
    status: int | None = None


End = Finish | Fail

Emit = Callable[[Chunk], None]


class Gate(Protocol):
    """What a run needs of the gate in front of the tools."""

    async def prepare(self, agent: AgentDef) -> Sequence[Lacking]:
        """Before `offered`: what it has and cannot have now."""
        ...

    def offered(self, agent: AgentDef) -> tuple[ToolSpec, ...]: ...

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult: ...

    def listed(self, result: ToolResult) -> Listed: ...


class Rules(Protocol):
    """Those that apply to a run."""

    @property
    def hearing(self) -> Mapping[str, Sequence[object]]:
        """Those that hear a type of event; every type has an entry."""
        ...

    def on(self, event: Event, scope: Mapping[str, object], /) -> Sequence[Act]: ...

    @property
    def kept(self) -> Mapping[str, object] | None:
        """What they keep of the session from now on; None: as it was."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One run: who answers, by which tree, what it is shown, which tools it is told of."""

    agent: AgentDef
    plan: TreePlan
    context: Context
    tools: tuple[ToolSpec, ...]
    scope: ToolScope
    rules: Rules
    publish: Callable[[Event], None]
    decode: Decode
    decision: MakeDecisionTree = DefaultDecisionTree
    context_id: NodeId | None = None  # the node that the message wants to grow from
    known: Callable[[int, ToolCall], ToolResult | None] = lambda step, call: None  # has it run?
    waiting: tuple[Notice, ...] = ()  # from other sessions
    price: Price = unpriced
    was_near: bool = False  # the window's end, when the run before ended, and is still
    hears: Callable[[str], bool] = lambda type_: True  # does anybody listen to events of this type?


@dataclass(frozen=True, slots=True)
class Answer:
    """`said` are the messages of the run after the question, in order, the answer last. `taken` are
    the runs whose messages were heard in it; `posts` are notices for other sessions. `finish`:
    why the last reply ended."""

    end: End
    said: tuple[Message, ...]
    usage: Usage
    model: str
    provider: str
    taken: tuple[RunId, ...] = ()
    posts: tuple[Notice, ...] = ()
    farewell: Event | None = None  # to be told once the end is durable
    kept: Mapping[str, object] | None = None  # by the rules
    has_told: bool = True  # a model what was waiting for it: that one said something, or refused
    finish: FinishReason | None = None


def add_usage(one: Usage, other: Usage) -> Usage:
    costs = [usage.cost_usd for usage in (one, other) if usage.cost_usd is not None]
    return Usage(
        one.input_tokens + other.input_tokens,
        one.output_tokens + other.output_tokens,
        one.cached_tokens + other.cached_tokens,
        one.reasoning_tokens + other.reasoning_tokens,
        sum(costs) if costs else None,
        one.estimated or other.estimated,
    )


def usage_chunk(reply: ModelReply | Spent) -> Chunk:
    usage = reply.usage
    return Chunk(
        "usage",
        {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": usage.cost_usd,
            "model": reply.model,
            "provider": reply.provider,
            "estimated": usage.estimated,
        },
    )


def with_distinct_ids(reply: ModelReply, said: Sequence[Message]) -> ModelReply:
    """Some models reuse an id within a reply or a run; each result has to find its own call."""
    if not reply.tool_calls:
        return reply
    taken = {call.id for message in said for call in message.tool_calls}
    calls: list[ToolCall] = []
    for call in reply.tool_calls:
        number, distinct = len(taken), call.id
        while distinct in taken:
            distinct, number = f"{call.id}-{number}", number + 1
        taken.add(distinct)
        calls.append(replace(call, id=distinct) if distinct != call.id else call)
    return replace(reply, tool_calls=tuple(calls))


def with_last_word(
    said: Sequence[Message], text: str, notices: tuple[tuple[SystemType, str], ...] = ()
) -> tuple[Message, ...]:
    """The answer stands at the end, once; an empty reply gives way to what the user was told."""
    *before, last = said or [Message("assistant")]
    if last.role != "assistant" or (last.text.strip() and last.text != text):
        before, last = [*before, last], Message("assistant")
    if (last.text, last.notices) != (text, notices):
        last = replace(last, text=text, notices=notices)
    return (*before, last)


log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)


async def until_stored(clock: Clock, act: Callable[[], Awaitable[T]]) -> T:
    """Does it again, with growing pauses, until the store takes it."""
    tries = 0
    while True:
        try:
            return await act()
        except StoreUnavailable as error:
            log.warning("the store is not available", extra={"why": str(error)})
            await clock.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1


@dataclass(frozen=True, slots=True)
class Json:
    """How values become text and back."""

    encode: Encode
    decode: Decode


class NoJournal:
    """Of a run that nobody takes up again."""

    async def note(self, run_id: RunId, note: JournalNote) -> None:
        pass

    async def notes(self, run_id: RunId) -> Sequence[JournalNote]:
        return ()

    async def forgive(self, run_id: RunId) -> None:
        pass


_PART = "@"  # no kind of note begins so


def part_of(within: str, call: ToolCall, step: int) -> str:
    """Of the story of whoever works on this call; `within` is the part of whoever asked for it."""
    name = blake2b(call.id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{within}{_PART}{step}-{name}:"


class Story:
    """Tells what was granted before, in this attempt or an earlier one; notes what is granted now.

    A reply is noted only when it asks for tools: one without them ends the run anyway. `part` is
    what `part_of` gives, for whoever works on one call of the run; the journal is the run's.
    """

    def __init__(
        self, run_id: RunId, journal: Journal, clock: Clock, json: Json, part: str = ""
    ) -> None:
        self._run_id, self._journal, self._clock, self._json = run_id, journal, clock, json
        self.part = part
        self._replies: dict[int, ModelReply] = {}
        self._results: dict[tuple[int, str], ToolResult] = {}
        self._said: dict[RunId, tuple[int, Said]] = {}
        self._begun: set[tuple[int, str]] = set()

    async def recall(self) -> None:
        """Reads what an earlier attempt of this run left behind."""
        notes = await until_stored(self._clock, lambda: self._journal.notes(self._run_id))
        self._take(notes)

    def reply(self, step: int) -> ModelReply | None:
        return self._replies.get(step)

    def result(self, step: int, call: ToolCall) -> ToolResult | None:
        return self._results.get((step, call.id))

    def has_begun(self, step: int, call: ToolCall) -> bool:
        """Whether it was noted that it begins; if it has no result, it was cut off."""
        return (step, call.id) in self._begun

    def said(self, step: int) -> Sequence[Said]:
        """What people had said when this step began, and it took."""
        return tuple(said for taken_at, said in self._said.values() if taken_at == step)

    async def note_said(self, step: int, said: Said) -> None:
        if said.run_id not in self._said:
            self._said[said.run_id] = (step, said)
            await self._note(step, f"said:{said.run_id}", said)

    async def note_reply(self, step: int, reply: ModelReply) -> None:
        self._replies[step] = reply
        await self._note(step, "reply", reply)

    async def note_begun(self, step: int, call: ToolCall) -> None:
        """Of a call that must not be made twice."""
        await self._write(JournalNote(step, f"{self.part}begun:{call.id}", "null"))

    async def note_result(self, step: int, result: ToolResult) -> None:
        self._results[step, result.call_id] = result
        await self._note(step, f"result:{result.call_id}", result)

    async def _note(self, step: int, kind: str, granted: ModelReply | ToolResult | Said) -> None:
        payload = self._json.encode(asdict(granted)).decode()
        await self._write(JournalNote(step, self.part + kind, payload))

    async def _write(self, note: JournalNote) -> None:
        await until_stored(self._clock, lambda: self._journal.note(self._run_id, note))

    def _take(self, notes: Sequence[JournalNote]) -> None:
        for note in notes:
            kind = note.kind.removeprefix(self.part)
            if kind[:1] == _PART or not note.kind.startswith(self.part):
                continue
            if kind.startswith("begun:"):
                self._begun.add((note.step, kind.removeprefix("begun:")))
                continue
            value = self._json.decode(note.payload)
            assert isinstance(value, dict)
            if kind == "reply":
                self._replies[note.step] = reply_from(value)
            elif kind.startswith("said:"):
                said = Said(**value)
                self._said[said.run_id] = (note.step, said)
            else:
                result = result_from(value)
                self._results[note.step, result.call_id] = result


def result_from(value: dict[str, object]) -> ToolResult:
    spent = value.pop("spent", ())
    assert isinstance(spent, list | tuple)
    told, cut = tuple(map(spent_from, spent)), value.pop("excerpt", None)
    excerpt = Excerpt(**cut) if isinstance(cut, dict) else None
    return ToolResult(**value, spent=told, excerpt=excerpt)  # type: ignore[arg-type]  # written by note_result


def spent_from(value: Mapping[str, Any]) -> Spent:
    return Spent(Usage(**value["usage"]), value["provider"], value["model"])


def reply_from(value: dict[str, object]) -> ModelReply:
    calls = value.pop("tool_calls")
    usage, extras = value.pop("usage"), value.pop("extras")
    warnings = value.pop("warnings", ())
    assert isinstance(calls, list)
    assert isinstance(usage, dict)
    assert isinstance(warnings, list | tuple)
    return ModelReply(
        **value,  # type: ignore[arg-type]  # written by note_reply, from the same fields
        tool_calls=tuple(ToolCall(**call) for call in calls),
        usage=Usage(**usage),
        extras=Extras(**extras) if isinstance(extras, dict) else None,
        warnings=tuple(BudgetWarning(**one) for one in warnings),
    )
