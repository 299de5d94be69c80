"""Live runs: their chunks, journals and listeners, and how a run is stopped."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import anyio

from gateway.agent.driver import RunControl
from gateway.agent.effects import Moment
from gateway.codec import decode, encode
from gateway.domain.agents import Share, speaker_in
from gateway.domain.errors import Busy
from gateway.domain.ids import RunId, SessionKey, TraceContext
from gateway.domain.inbox import SEQ_A_ATTEMPT, Entry, NewEntry, RunRecord
from gateway.domain.messages import Chunk, DoneReason, Message
from gateway.domain.ports import Clock
from gateway.sessions.journal import RecordedJournal

# The values in `run.inspect` of a run that no driver has begun.
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
    "context": None,  # as in `context.explain`
}

# Takes an encoded event, and whether it is the last. A listener never waits.
Listener = Callable[[bytes, bool], None]


@dataclass(slots=True, weakref_slot=True)
class LiveRun:
    """An accepted message and its run, until the run has ended.

    `events` are the encoded chunks in the order of `seq`. The queue calls `leave` at the end."""

    entry: Entry
    opened: float = 0.0  # `opened` and `began` are readings of the monotonic clock
    leave: Callable[[], None] = lambda: None
    share: Share = ((), "")
    attempt: int = 1
    state: str = "queued"
    control: RunControl = field(default_factory=RunControl)
    journal: RecordedJournal | None = None  # None: the attempt is not recorded
    events: list[bytes] = field(default_factory=list)
    first_seq: int = 1
    ended: bool = False
    sealed: bool = False
    trace: TraceContext | None = None
    is_stopped: bool = False
    is_offered: bool = False  # to the running turn of its session
    progress: Callable[[], Mapping[str, object]] = dict
    started_at: datetime | None = None
    began: float = 0.0
    new: NewEntry = field(init=False)
    question: Message = field(init=False)  # for the model and for the conversation
    run_id: RunId = field(init=False)
    session_key: SessionKey = field(init=False)
    person: str = field(init=False)  # the settings of this person apply, and tools act for them
    _listeners: dict[int, tuple[Listener, Callable[[], None] | None]] = field(default_factory=dict)
    _prefix: bytes = b""

    def __post_init__(self) -> None:
        self.new = self.entry.new
        self.question = Message("user", self.new.content)
        self.run_id, self.session_key = self.new.run_id, self.new.session_key
        self.person = speaker_in(self.session_key, self.new.sender)

    def bound(self) -> Mapping[str, object]:
        """Returns the fields of each log line of this run."""
        key = self.session_key
        ids = {"run": self.run_id, "session": str(key), "agent": key.agent}
        if (trace := self.trace) is not None:
            ids |= {"trace_id": trace.trace_id, "span_id": trace.span_id}
        return {**ids, "channel": key.channel, "person": self.person}

    def stop(self, reason: DoneReason, *, at_once: bool) -> None:
        self.is_stopped = True
        self.control.stop(reason, at_once=at_once)

    def start(self, attempt: int, moment: Moment, journal: RecordedJournal | None = None) -> None:
        """Begins an attempt. The journal records the stops and messages for this run, earlier ones too."""
        self.attempt, self.state, self.journal = attempt, "running", journal
        self.started_at, self.began = moment.wall, moment.at
        self.first_seq = (attempt - 1) * SEQ_A_ATTEMPT + 1
        ids = encode({"run_id": self.run_id, "session_key": str(self.session_key)})
        self._prefix = ids[:-1] + b',"seq":'
        if attempt > 1:
            self.emit(_restart_notice(moment.wall))
        if journal is not None:
            for one in self.control.requests:
                journal(one.kind, *astuple(one))
            self.control.record = journal

    def emit(self, chunk: Chunk) -> None:
        """Numbers a chunk, records it and sends it to every listener."""
        events = self.events
        body = encode({"type": chunk.type, **chunk.data})
        event = b"%b%d,%b" % (self._prefix, self.first_seq + len(events), body[1:])
        events.append(event)
        if self.journal is not None:
            self.journal.lines.append(event)
        if self._listeners and not self.sealed:
            for listener, _ in tuple(self._listeners.values()):
                listener(event, False)  # noqa: FBT003  # the shape of a Listener

    def seal(self, chunk: Chunk) -> None:
        """Adds the terminal chunk. `publish` sends it to the listeners."""
        self.sealed, self.state = True, "ended"
        self.emit(chunk)

    def unseal(self) -> None:
        """Removes a terminal chunk that could not be committed."""
        if not self.sealed:
            return
        self.events.pop()
        if self.journal is not None:
            self.journal.lines.pop()
        self.sealed = False

    def release(self) -> None:
        """Drops the driver. Only the garbage collector frees reference cycles, and a busy gateway would
        hold gigabytes until it runs."""
        self.progress, self.journal = dict, None
        self.control.close()

    def publish(self, *, is_over: bool = True) -> None:
        """Sends the durable end to the listeners. If the gateway stops before the run ends, it sends an
        empty event instead."""
        self.ended = is_over
        last = self.events[-1] if is_over else b""
        for listener, _ in tuple(self._listeners.values()):
            listener(last, True)  # noqa: FBT003  # the shape of a Listener
        self._listeners.clear()

    def events_after(self, seq: int, limit: int | None = None) -> Sequence[bytes]:
        """Returns up to `limit` events after `seq`, without an end that is not durable yet."""
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
        """Sends the missing events, then live ones without a gap. Returns a function that stops it. A
        second listener of one owner replaces the first, and the first one's `replaced` is called."""
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
        """Returns the result of `run.inspect`."""
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
                "accepted_at": self.new.accepted_at,
                "started_at": started,
                "queued_s": round(max(0.0, waited_to - self.opened), 6),
            },
            "events": len(self.events),
            **AT_REST,
            **self.progress(),
        }


def _restart_notice(at: datetime) -> Chunk:
    data = {
        "system_type": "notice",
        "system_message": "The gateway restarted; this answer is made again.",
        "metadata": {"discard_from_seq": 1},
        "timestamp": at,
    }
    return Chunk("system", data)


LiveRuns = dict[str, LiveRun]  # runs that have not ended, by id


async def events_of(run: LiveRun | RunRecord) -> AsyncIterator[bytes]:
    """Yields all events of a run. A slow reader holds the run's own events: they cost nothing while it is
    live, and the run bounds them afterwards."""
    if isinstance(run, RunRecord):
        for event in run.log.split(b"\n"):
            yield event
        return
    events, came, has_ended = list[bytes](), anyio.Event(), False

    def receive(event: bytes, is_last: bool) -> None:  # noqa: FBT001  # the shape of a Listener
        nonlocal has_ended
        if event:
            events.append(event)
        has_ended = is_last
        came.set()

    stop = run.listen(receive)
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


async def read_events(run: LiveRun | RunRecord) -> Sequence[Mapping[str, Any]]:
    """Returns all events of a run once it has ended. Raises Busy if the gateway stops before."""
    events: list[Any] = [decode(event) async for event in events_of(run)]
    if not events or events[-1]["type"] not in {"done", "error"}:
        raise Busy(f"the gateway restarts before {run.entry.new.run_id} has ended; ask again")
    return events


def answer_text(events: Sequence[Mapping[str, Any]]) -> str:
    """Returns the answer of a run: the text after its last tool result, or else before it."""
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
