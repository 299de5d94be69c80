"""Live runs: their chunks and journal, who listens to them, and how they are stopped."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any

import anyio
from anyio import to_thread

from gateway.agent.driver import RunControl, Withdrawn
from gateway.agent.effects import Job, Moment, Steered, StopRequested, TurnEvent
from gateway.agent.journal import PART, RunJournal, retry_store
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import Busy, ModelFailed
from gateway.domain.ids import RunId, SessionKey, to_micros
from gateway.domain.inbox import SEQ_A_ATTEMPT, NewEntry, RunRecord
from gateway.domain.journal import MOST_BYTES, JournalEntry
from gateway.domain.messages import Chunk, Spent, ToolCall
from gateway.domain.model import ModelReply, ModelRequest
from gateway.domain.ports import Clock, Decode, Encode, Journal
from gateway.sessions.journal import (
    Line,
    RequestParts,
    failure_values,
    packed,
    parts_of,
    refusal_values,
)

# What `run.inspect` shows of a run that nothing has driven yet.
AT_REST: Mapping[str, object] = {
    "turn": 0,
    "tokens_used": 0,
    "iteration_percent": 0.0,
    "token_percent": 0.0,
    "recent_actions": [],
    "verdicts": [],
    "termination_reason": None,
    "tree": None,
    "decision": None,
    "config": {},
    "context": None,  # that of `context.explain`
}

# An encoded event, and whether it is the last. A listener never waits.
Listener = Callable[[bytes, bool], None]
Pack = Callable[[], bytes]

_LONG = 256 * 1024  # bytes that are packed in a thread
_ENTRY_BYTES = 32  # that an entry takes besides its texts
_RUN_ID = attrgetter("run_id")
_REQUESTS = {StopRequested: "stop", Steered: "said", Withdrawn: "unsaid"}
_TEXTS = frozenset({"bytes", "text", "thinking"})


class RecordedJournal(RunJournal):
    """The journal of a run that is answered for a conversation. It is written in parts: before
    what was granted takes effect, and with the end of the run. Earlier attempts left so many `parts`,
    and what they were `granted`."""

    is_recorded = True

    def __init__(
        self,
        run_id: RunId,
        clock: Clock,
        store: Journal,
        encode: Encode,
        *,
        granted: Sequence[JournalEntry] = (),
        parts: int = 0,
    ) -> None:
        super().__init__(clock, granted)
        self._run_id, self._store, self._encode, self._parts = run_id, store, encode, parts
        self.lines: list[Line] = []  # not written yet; bytes are chunks
        self._asked = RequestParts()
        self._writing = anyio.Lock()
        self._secrets: set[str] = set()
        self._size = self._packed = 0  # of texts that only a replay reads

    def begin(self, attempt: int, asked: Sequence[NewEntry], control: RunControl) -> Moment:
        """Begins an attempt. From now on the requests of others to the run are recorded."""
        self.lines.append(("attempt", (attempt, list(map(_RUN_ID, asked)))))
        moment = self.moment()
        for one in control.requests:
            self._requested(one)
        control.on_request = self._requested
        return moment

    def _requested(self, one: StopRequested | Steered | Withdrawn) -> None:
        self(_REQUESTS[type(one)], *astuple(one))

    def __call__(self, kind: str, *values: object) -> None:
        if kind == "sent":
            self.has_sent = True
        elif kind in _TEXTS:
            self._size += len(values[0]) + _ENTRY_BYTES  # type: ignore[arg-type]  # it is a text
        self.lines.append((kind, values))

    grant = __call__  # no kind of a grant is a text, or sent

    def hide(self, *secrets: str) -> None:
        self._secrets.update(secrets)

    def moment(self) -> Moment:
        moment = Moment(self.clock.now(), self.clock.monotonic())
        self.lines.append(("at", (to_micros(moment.wall), moment.at)))
        return moment

    async def begins(
        self, job: Job, scene: Mapping[str, object], read: Mapping[str, object]
    ) -> None:
        self.lines.append(("begin", (scene, read)))

    def tells(self, events: Sequence[TurnEvent]) -> None:
        self.lines.append(("told", ([type(event).__name__ for event in events],)))

    def asks(self, request: ModelRequest) -> None:
        parts = parts_of(request)
        self.lines.append(("ask", (parts.since(self._asked),)))
        self._asked, self.has_sent = parts, False

    def replied(self, step: int, reply: ModelReply) -> None:
        has_bytes, usage, is_overrun = self.has_sent, reply.usage, reply.finish == "overrun"
        if has_bytes and (reply.warnings or is_overrun or usage.cost_usd is not None):
            warnings = [asdict(one) for one in reply.warnings] if reply.warnings else []
            self("metered", usage.cost_usd, warnings, asdict(usage) if is_overrun else None)
        plain = None if has_bytes and not reply.tool_calls else asdict(reply)
        self.lines.append(("reply", (step, plain)))

    def failed(self, failure: Exception) -> None:
        if isinstance(failure, BudgetExceeded):
            self("refused", *refusal_values(failure))
        elif isinstance(failure, ModelFailed):
            self("failed", None if self.has_sent else failure_values(failure))

    def spends(self, call: ToolCall, spent: Spent) -> None:
        self("spent", call.id, [asdict(spent)])

    def ends(self) -> None:
        self.lines.append(("over", ()))

    async def keep(self, what: str) -> None:
        async with self._writing:  # one part after the other, so that none is missing
            if count := len(self.lines):
                part, pack = await self.last_part()
                await retry_store(self.clock, self._store.append, self._run_id, part, pack)
                del self.lines[:count]  # written for certain; else the next part has them too
                self._parts += 1
        if not what.startswith(PART):
            self.lines.append(("kept", (what,)))

    async def last_part(self) -> tuple[int, Pack]:
        """The number of the part that is not written yet, and its text. A part is packed where the
        store writes it, which holds up nobody else; a long one in a thread, because the store
        serves others."""
        part, lines = self._parts, tuple(self.lines)
        size, self._packed = self._size - self._packed + sum(map(len, lines)), self._size
        secrets, is_cut = tuple(sorted(self._secrets)), self._size > MOST_BYTES
        pack = partial(packed, lines, self._encode, secrets, is_cut=is_cut)
        if size < _LONG:
            return part, pack
        done = await to_thread.run_sync(pack)
        return part, lambda: done


@dataclass(slots=True, weakref_slot=True)
class LiveRun:
    """A run from its accept to its end. `events` are the encoded chunks in order of `seq`."""

    run_id: RunId
    session_key: SessionKey
    encode: Encode
    accepted_at: datetime
    attempt: int = 1
    state: str = "queued"
    control: RunControl = field(default_factory=RunControl)
    journal: RecordedJournal | None = None  # of an attempt that is recorded
    events: list[bytes] = field(default_factory=list)
    first_seq: int = 1
    ended: bool = False
    sealed: bool = False
    progress: Callable[[], Mapping[str, object]] = dict
    started_at: datetime | None = None
    opened: float = 0.0  # opened and began: by the clock that never jumps
    began: float = 0.0
    _listeners: dict[int, tuple[Listener, Callable[[], None] | None]] = field(default_factory=dict)
    _prefix: bytes = b""

    def start(self, attempt: int, moment: Moment, journal: RecordedJournal | None = None) -> None:
        """Begins an attempt."""
        self.attempt, self.state, self.journal = attempt, "running", journal
        self.started_at, self.began = moment.wall, moment.at
        self.first_seq = (attempt - 1) * SEQ_A_ATTEMPT + 1
        ids = self.encode({"run_id": self.run_id, "session_key": str(self.session_key)})
        self._prefix = ids[:-1] + b',"seq":'

    def emit(self, chunk: Chunk) -> None:
        """Numbers a chunk, records it and sends it to every listener, without waiting for any."""
        events = self.events
        body = self.encode({"type": chunk.type, **chunk.data})
        event = b"%b%d,%b" % (self._prefix, self.first_seq + len(events), body[1:])
        events.append(event)
        if self.journal is not None:
            self.journal.lines.append(event)
        if self._listeners and not self.sealed:
            for listener, _ in tuple(self._listeners.values()):
                listener(event, False)  # noqa: FBT003  # the shape of a Listener

    def seal(self, chunk: Chunk) -> None:
        """Adds the terminal chunk; listeners get it when it is published."""
        self.sealed = True
        self.emit(chunk)

    def unseal(self) -> None:
        """Takes the terminal chunk back: it could not be committed."""
        if not self.sealed:
            return
        self.events.pop()
        if self.journal is not None:
            self.journal.lines.pop()
        self.sealed = False

    def release(self) -> None:
        """Drops the driver: reference cycles are only found by the garbage collector, and a busy
        gateway would hold gigabytes until then."""
        self.progress, self.journal = dict, None
        self.control.close()

    def publish(self) -> None:
        """The end is durable: sends it to the listeners."""
        self.ended = True
        for listener, _ in tuple(self._listeners.values()):
            listener(self.events[-1], True)  # noqa: FBT003  # the shape of a Listener
        self._listeners.clear()

    def abandon(self) -> None:
        """The gateway stops before the run has ended: an empty last event ends the waiting."""
        for listener, _ in tuple(self._listeners.values()):
            listener(b"", True)  # noqa: FBT003  # the shape of a Listener
        self._listeners.clear()

    def events_after(self, seq: int, limit: int | None = None) -> Sequence[bytes]:
        """Up to `limit` events that come after `seq`; an end that is not durable is none of them."""
        start = max(0, seq + 1 - self.first_seq)
        known = len(self.events) - (self.sealed and not self.ended)
        return self.events[start : known if limit is None else min(known, start + limit)]

    def listen(
        self,
        listener: Listener,
        *,
        after_seq: int = 0,
        owner: object = None,
        replaced: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Sends what is missing, then goes on live without a gap. The result stops the listening. A
        second listener of one owner takes the place of the first, whose `replaced` is called."""
        name = id(listener if owner is None else owner)
        _, first_is_replaced = self._listeners.pop(name, (None, None))
        if first_is_replaced is not None:
            first_is_replaced()
        missing = self.events_after(after_seq) if self.events else ()
        for left, event in enumerate(missing, 1 - len(missing)):
            listener(event, self.ended and not left)
        if not self.ended:
            self._listeners[name] = (listener, replaced)
        return partial(self._forget, name, listener)

    def _forget(self, name: int, listener: Listener) -> None:
        if self._listeners.get(name, (None, None))[0] is listener:
            del self._listeners[name]

    def summary(self, clock: Clock) -> dict[str, object]:
        """What `run.inspect` shows."""
        started, now = self.started_at, clock.monotonic()
        waited_to = self.began if started else now
        return {
            "run_id": self.run_id,
            "session_key": str(self.session_key),
            "agent_id": self.session_key.agent,
            "state": self.state,
            "attempt": self.attempt,
            "elapsed_s": round(now - self.began, 6) if started else 0.0,
            "timings": {
                "accepted_at": self.accepted_at,
                "started_at": started,
                "queued_s": round(max(0.0, waited_to - self.opened), 6),
            },
            "events": len(self.events),
            **AT_REST,
            **self.progress(),
        }


LiveRuns = dict[str, LiveRun]  # those that have not ended, by id


async def events_of(run: LiveRun | RunRecord) -> AsyncIterator[bytes]:
    """All events of a run, from its first to its last. What is held for a slow reader are the run's
    own events: they cost nothing while it is live, and are bounded by it afterwards."""
    if isinstance(run, RunRecord):
        for event in run.log.split(b"\n"):
            yield event
        return
    events, came, has_ended = list[bytes](), anyio.Event(), False

    def take(event: bytes, is_last: bool) -> None:  # noqa: FBT001  # the shape of a Listener
        nonlocal has_ended
        if event:
            events.append(event)
        has_ended = is_last
        came.set()

    stop = run.listen(take)
    try:
        while events or not has_ended:
            if not events:
                came = anyio.Event()
                await came.wait()
            taken, events = events, []
            for event in taken:
                yield event
    finally:
        stop()


async def whole(run: LiveRun | RunRecord, decode: Decode) -> Sequence[Mapping[str, Any]]:
    """All events of a run once it has ended. Raises Busy if the gateway stops before."""
    events: list[Any] = [decode(event) async for event in events_of(run)]
    if not events or events[-1]["type"] not in {"done", "error"}:
        run_id = run.run_id if isinstance(run, LiveRun) else run.entry.new.run_id
        raise Busy(f"the gateway restarts before {run_id} has ended; ask again")
    return events


def spoken(events: Sequence[Mapping[str, Any]]) -> str:
    """The answer of a run: what was said last, after the last tools or else before them."""
    end = events[-1]
    if not end.get("truncated"):
        return str(end["response"])
    said: list[str] = []
    after_tools = False
    for event in events:
        if event["type"] == "tool_result":
            after_tools = True
        elif event["type"] == "content":
            if after_tools:
                said.clear()
            said.append(event["content"])
            after_tools = False
    return "".join(said)
