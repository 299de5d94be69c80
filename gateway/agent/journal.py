"""The journal of a run at work, as its driver uses it: time, entries, and what was granted before."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, ParamSpec, TypeVar

import anyio

from gateway.agent.effects import Job, Moment, Steered, TurnEvent
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ids import RunId
from gateway.domain.journal import JournalEntry
from gateway.domain.messages import Excerpt, Extras, Spent, ToolCall, ToolResult, Usage
from gateway.domain.model import BudgetWarning, ModelReply, ModelRequest
from gateway.domain.ports import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

PART = "@"  # each step of a part begins so
RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)


async def retry_store(
    clock: Clock, act: Callable[P, Awaitable[T]], *args: P.args, **more: P.kwargs
) -> T:
    """Repeats an act with growing pauses until the store is back."""
    tries = 0
    while True:
        try:
            return await act(*args, **more)
        except StoreUnavailable as error:
            log.warning("the store is not available", extra={"why": str(error)})
            await clock.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1


@dataclass(slots=True)
class EventQueue:
    """Events that the turn was not told yet."""

    items: deque[TurnEvent] = field(default_factory=deque)
    came: anyio.Event | None = None  # of whoever waits for one

    def put(self, event: TurnEvent) -> None:
        self.items.append(event)
        if self.came is not None:
            self.came.set()

    def wake(self) -> None:
        """Ends the waiting, although there is no event."""
        if self.came is not None:
            self.came.set()


class RunJournal:
    """The journal of one run, and the grants of its earlier attempts: an attempt that resumes a run is
    granted the same again.

    This one records nothing: it is for a run inside another run, and for one of which nothing is kept.
    `part` names the call of the outer run that this one works on.
    """

    is_recorded = False
    is_played = False  # True: the record says when events come, so nothing is waited for in line

    def __init__(
        self,
        clock: Clock,
        earlier: Sequence[JournalEntry] = (),
        *,
        part: str = "",
        outer: "RunJournal | None" = None,
    ) -> None:
        self.clock, self.earlier, self.part, self.outer = clock, earlier, part, outer
        self.has_sent = False  # something went over a network since a model was asked
        self.replies: dict[int, ModelReply] = {}  # by step, as are the others
        self.results: dict[tuple[int, str], ToolResult] = {}
        self.begun: set[tuple[int, str]] = set()  # calls that must not be made twice
        self.taken: dict[RunId, tuple[int, Steered]] = {}
        for entry in earlier:
            if entry.kind == "sub":
                if entry.values[0] == part:
                    self._add(JournalEntry(entry.values[1], tuple(entry.values[2])))
            elif not part:
                self._add(entry)

    def _add(self, entry: JournalEntry) -> None:
        match entry:
            case JournalEntry("reply", (step, dict(reply))):
                self.replies[step] = reply_from(reply)
            case JournalEntry("result", (call_id, step, name, _, result)):
                self.results[step, call_id] = result_from(call_id, name, result)
            case JournalEntry("begun", (step, call_id)):
                self.begun.add((step, call_id))
            case JournalEntry("taken", (step, run_id, text)):
                self.taken[RunId(run_id)] = (step, Steered(RunId(run_id), text))
            case _:
                pass

    # -- time

    def moment(self) -> Moment:
        return Moment(self.clock.now(), self.clock.monotonic())

    async def wait(self, queue: EventQueue, seconds: float) -> bool:
        """Waits until there is an event; False if there is none within that time."""
        if queue.items:
            return True
        queue.came = anyio.Event()
        with anyio.move_on_after(seconds):
            await queue.came.wait()
            return True
        self("late")
        return False

    # -- entries

    def __call__(self, kind: str, *values: object) -> None:
        """Adds an entry of the trace, which only a replay reads."""

    def hide(self, *secrets: str) -> None:
        """Keeps these texts out of the journal."""

    async def compare(self, job: Job, scene: Mapping[str, object]) -> None:
        """The run is replayed; `scene` decides over it."""

    def asks(self, request: ModelRequest) -> None:
        """A model is asked."""

    def replied(self, step: int, reply: ModelReply) -> None:
        """A model has replied."""

    def failed(self, failure: Exception) -> None:
        """A model failed, or a budget refused."""

    # -- grants: a resumed attempt is granted them again

    async def grant(self, name: str, kind: str, *values: object) -> None:
        """Writes an entry that the next attempt needs, before it takes effect."""
        if self.outer is not None:
            await self.outer.grant(self.part + name, "sub", self.part, kind, list(values))

    def result(self, step: int, call: ToolCall) -> ToolResult | None:
        return self.results.get((step, call.id))

    async def take(self, step: int, said: Steered) -> None:
        if said.run_id not in self.taken:
            self.taken[said.run_id] = (step, said)
            await self.grant(f"taken:{said.run_id}", "taken", step, said.run_id, said.text)

    async def keep_reply(self, step: int, reply: ModelReply) -> None:
        """Of a reply that asks for tools: one that does not ends the run anyway."""
        self.replies[step] = reply
        await self.grant(f"reply:{step}", "reply", step, asdict(reply))

    async def keep_result(self, step: int, call: ToolCall, result: ToolResult) -> None:
        self.results[step, call.id] = result
        plain = plain_result(result)
        values = (call.id, step, call.name, call.arguments, plain)
        await self.grant(f"result:{call.id}", "result", *values)

    def inner(self, part: str) -> "RunJournal":
        """The journal of a run inside this one."""
        root = self.outer or self
        return RunJournal(self.clock, root.earlier, part=part, outer=root)


def part_of(within: str, call: ToolCall, step: int) -> str:
    """The part of the run that works on this call; `within` is the part of the run that asked."""
    name = blake2b(call.id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{within}{PART}{step}-{name}:"


def plain_result(result: ToolResult) -> dict[str, object]:
    """Without what its entry tells already, and without what is empty."""
    plain = asdict(result)
    del plain["call_id"], plain["name"]
    return {name: value for name, value in plain.items() if value not in (None, ())}


def result_from(call_id: str, name: str, plain: Mapping[str, Any]) -> ToolResult:
    """Raises TypeError for what `plain_result` never gives."""
    values = dict(plain)
    spent, cut = values.pop("spent", ()), values.pop("excerpt", None)
    excerpt = Excerpt(**cut) if cut else None
    return ToolResult(call_id, name, **values, spent=tuple(map(spent_from, spent)), excerpt=excerpt)


def spent_from(value: Mapping[str, Any]) -> Spent:
    return Spent(Usage(**value["usage"]), value["provider"], value["model"])


def reply_from(plain: Mapping[str, Any]) -> ModelReply:
    """Raises TypeError or KeyError for what no reply was made of."""
    values = dict(plain)
    calls, usage, extras = values.pop("tool_calls"), values.pop("usage"), values.pop("extras")
    return ModelReply(
        **{**values, "warnings": tuple(BudgetWarning(**one) for one in values.get("warnings", ()))},
        tool_calls=tuple(ToolCall(**call) for call in calls),
        usage=Usage(**usage),
        extras=Extras(**extras) if extras else None,
    )
