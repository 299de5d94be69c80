"""Live runs: numbered chunks, who listens to them, and how they are stopped."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil
from typing import Any

import anyio

from gateway.agent.driver import RunControl
from gateway.agent.effects import Moment
from gateway.agent.journal import RunJournal
from gateway.domain.errors import Busy
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import SEQ_A_ATTEMPT, RunRecord
from gateway.domain.messages import Chunk
from gateway.domain.ports import Clock, Decode, Encode
from gateway.sessions.journal import RecordedJournal

log = logging.getLogger(__name__)

# Of a run that nothing has driven yet, what `run.inspect` shows of its course.
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

Listener = Callable[
    [bytes, bool], None
]  # an encoded event, and whether it is the last; never waits


@dataclass(frozen=True, slots=True)
class Timing:
    finished_at: datetime
    execution_ms: int


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
    opened: float = 0.0  # began and opened: by the clock that never jumps
    began: float = 0.0
    _listeners: dict[int, tuple[Listener, Callable[[], None] | None]] = field(default_factory=dict)
    _prefix: bytes = b""

    def start(self, attempt: int, moment: Moment, journal: "RecordedJournal | None" = None) -> None:
        """Begins an attempt."""
        self.attempt, self.state, self.journal = attempt, "running", journal
        self.started_at, self.began = moment.wall, moment.at
        self.first_seq = (attempt - 1) * SEQ_A_ATTEMPT + 1
        ids = self.encode({"run_id": self.run_id, "session_key": str(self.session_key)})
        self._prefix = ids[:-1] + b',"seq":'

    def emit(self, chunk: Chunk) -> None:
        """Numbers a chunk and tells it to every listener, without waiting for any."""
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
        self.events.pop()
        if self.journal is not None:
            self.journal.lines.pop()
        self.sealed = False

    def timing(self, journal: RunJournal) -> Timing:
        """When the run ends, if it ends now."""
        moment = journal.moment()
        return Timing(moment.wall, ceil((moment.at - self.began) * 1000))

    def release(self) -> None:
        """Lets go of the driver: reference cycles are only found by the garbage collector, and a
        busy gateway would hold gigabytes until then."""
        self.progress = dict
        self.journal = None
        self.control.close()

    def publish(self) -> None:
        """The end is durable: tell it."""
        self.ended = True
        for listener, _ in tuple(self._listeners.values()):
            listener(self.events[-1], True)  # noqa: FBT003  # the shape of a Listener
        self._listeners.clear()

    @property
    def told(self) -> Sequence[bytes]:
        """The events that listeners may know: an end that is not durable yet is none of them."""
        return self.events[:-1] if self.sealed and not self.ended else self.events

    def events_after(self, seq: int, limit: int) -> Sequence[bytes]:
        """Up to `limit` events that come after `seq`."""
        start = max(0, seq + 1 - self.first_seq)
        return self.told[start : start + limit]

    def listen(
        self,
        listener: Listener,
        *,
        after_seq: int = 0,
        owner: object = None,
        replaced: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Replays what is missing, then goes on live without a gap; gives a way to stop. A second
        listener of one owner takes the place of the first, which is told by its `replaced`."""
        told = self.events if not self.sealed or self.ended else self.events[:-1]
        name = id(listener if owner is None else owner)
        _, first_is_replaced = self._listeners.pop(name, (None, None))
        if first_is_replaced is not None:
            first_is_replaced()
        for place in range(max(0, after_seq + 1 - self.first_seq), len(told)):
            listener(told[place], self.ended and place + 1 == len(told))
        if not self.ended:
            self._listeners[name] = (listener, replaced)
        return lambda: self._forget(name, listener)

    def abandon(self) -> None:
        """We stop before it has ended: an empty last event tells the listeners to wait no more."""
        for listener, _ in tuple(self._listeners.values()):
            listener(b"", True)  # noqa: FBT003  # the shape of a Listener
        self._listeners.clear()

    def _forget(self, name: int, listener: Listener) -> None:
        if self._listeners.get(name, (None, None))[0] is listener:
            del self._listeners[name]

    def summary(self, clock: Clock) -> dict[str, object]:
        """What `run.inspect` shows."""
        started = self.started_at
        waited_to = self.began if started else clock.monotonic()
        return {
            "run_id": self.run_id,
            "session_key": str(self.session_key),
            "agent_id": self.session_key.agent,
            "state": self.state,
            "attempt": self.attempt,
            "elapsed_s": round(clock.monotonic() - self.began, 6) if started else 0.0,
            "timings": {
                "accepted_at": self.accepted_at,
                "started_at": started,
                "queued_s": round(max(0.0, waited_to - self.opened), 6),
            },
            "events": len(self.events),
            **AT_REST,
            **self.progress(),
        }


class LiveRuns:
    """The runs that have not ended, by id."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._runs: dict[RunId, LiveRun] = {}

    def open(
        self, run_id: RunId, session_key: SessionKey, accepted_at: datetime, opened: float = 0.0
    ) -> LiveRun:
        run = LiveRun(run_id, session_key, self._encode, accepted_at, opened=opened)
        self._runs[run_id] = run
        return run

    def find(self, run_id: str) -> LiveRun | None:
        return self._runs.get(RunId(run_id))

    def journal_of(self, run_id: RunId) -> RunJournal | None:
        """Of a run that is at work."""
        run = self._runs.get(run_id)
        return None if run is None else run.journal

    def close(self, run_id: RunId) -> None:
        self._runs.pop(run_id, None)

    def abandon_all(self) -> None:
        for run in tuple(self._runs.values()):
            run.abandon()

    def __len__(self) -> int:
        return len(self._runs)


@dataclass(slots=True)
class Ear:
    """Listens to a run for one who waits. What it holds for a slow reader are the run's own
    events, so it costs nothing while the run is live and is bounded by it afterwards."""

    events: list[bytes] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)
    ended: bool = False

    def hear(self, event: bytes, last: bool) -> None:  # noqa: FBT001  # the shape of a Listener
        if event:
            self.events.append(event)
        self.ended = last
        self.news.set()

    async def more(self) -> Sequence[bytes]:
        """The events since the last call; none: it has ended."""
        while not self.events and not self.ended:
            self.news = anyio.Event()
            await self.news.wait()
        taken, self.events = self.events, []
        return taken


async def events_of(run: LiveRun | RunRecord) -> AsyncIterator[bytes]:
    """All events of a run, from its first to its last."""
    if isinstance(run, RunRecord):
        for event in run.log.split(b"\n"):
            yield event
        return
    ear = Ear()
    stop = run.listen(ear.hear)
    try:
        while events := await ear.more():
            for event in events:
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
