"""Runs and events of other nodes.

A mirror of a run that another node works on is fed from the store, and sooner from the hints of that node. Events of
all nodes reach the subscribers here: the other nodes forward theirs over hints while one subscribes.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, cast

import anyio

from gateway.agent.driver import RunControl
from gateway.agent.effects import Moment
from gateway.codec import decode, encode
from gateway.control.notices import Bus
from gateway.control.notices import Listener as EventListener
from gateway.domain.cluster import (
    EVENTS,
    Hint,
    Hints,
    RunProgress,
    SharedRuns,
    Tenure,
    events_subject,
    node_subject,
    work_subject,
)
from gateway.domain.errors import StoreUnavailable
from gateway.domain.events import Event
from gateway.domain.figures import SharedFigures
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import SEQ_A_ATTEMPT, Entry, RunRecord
from gateway.domain.messages import Chunk
from gateway.domain.ports import Clock
from gateway.sessions.journal import RecordedJournal
from gateway.sessions.runs import Listener, LiveRun, LiveRuns

log = logging.getLogger(__name__)


# --- runs ----------------------------------------------------------------------------------------
ASKED_AGAIN_S = 0.5  # between two requests for missing chunks
MOST_UNSEEN = 5  # polls without a listener
RECORDS_AT_ONCE = 16  # runs whose chunks are read in one request
MOST_FOLLOWERS = 8  # nodes that mirror one run


@dataclass(slots=True)
class SharedRun(LiveRun):
    """A run that this node works on under a `tenure`. Without a tenure it mirrors another node's run."""

    tenure: Tenure | None = None
    may: Callable[["SharedRun"], bool] = lambda run: True
    is_counted: bool = True  # in the load of this node, which accepted the message
    asked_at: float = float("-inf")  # the last request for chunks
    received_at: float = float("-inf")  # the last chunk
    unseen: int = 0  # polls since it had a listener here
    followers: dict[str, Callable[[], None]] = field(default_factory=dict)  # stops, by node

    def count_poll(self) -> None:
        self.unseen = 0 if self._listeners else self.unseen + 1

    def emit(self, chunk: Chunk) -> None:
        """Publishes a chunk, unless another node may hold the lease."""
        if self.sealed or self.may(self):
            LiveRun.emit(self, chunk)

    def listen(
        self, listener: Listener, *, after_seq: int = 0, owner: object = None, **more: Any
    ) -> Callable[[], None]:
        """Skips events up to `after_seq` that reach this node only after the listener had them elsewhere."""

        def skip_known(event: bytes, is_last: bool) -> None:  # noqa: FBT001  # the shape of a Listener
            if is_last or _seq_of(event) > after_seq:
                listener(event, is_last)

        is_known = after_seq < self.first_seq + len(self.events)
        return LiveRun.listen(
            self, listener if is_known else skip_known, after_seq=after_seq, owner=owner, **more
        )

    def adopt(self, entry: Entry, tenure: Tenure) -> None:
        """Makes it a run of this node."""
        self.entry, self.tenure = entry, tenure

    def start(self, attempt: int, moment: Moment, journal: RecordedJournal | None = None) -> None:
        """Begins an attempt. Listeners have the events of earlier attempts already."""
        self.events = []
        LiveRun.start(self, attempt, moment, journal)

    def detach(self) -> None:
        """Makes it a mirror, because another node may work on it."""
        if self.ended:
            return
        self.unseal()
        self.release()
        self.leave()
        self.tenure, self.state, self.leave, self.is_counted = None, "queued", lambda: None, False
        self.control, self.is_stopped, self.is_offered = RunControl(), False, False
        for stop in self.followers.values():
            stop()
        self.followers.clear()

    def receive(self, event: bytes, seq: int) -> bool:
        """Takes the next chunk of the working node. Returns False if earlier ones are missing."""
        following = self.first_seq + len(self.events)
        if seq > following and seq % SEQ_A_ATTEMPT == 1:  # the first event of another attempt
            self.first_seq, self.events, following = seq, [], seq
        if seq == following:
            self.state = "running"
            self.events.append(event)
            for listener, _ in tuple(self._listeners.values()):
                listener(event, False)  # noqa: FBT003  # the shape of a Listener
        return seq <= following

    def receive_record(self, record: RunRecord) -> None:
        """Takes the events of a record from the store, with the end if the run has ended."""
        events = record.log.split(b"\n") if record.log else []
        is_over = record.finished_at is not None
        for event in events[: len(events) - is_over]:
            self.receive(event, _seq_of(event))
        if is_over and events:
            self.sealed, self.state = True, "ended"
            self.events.append(events[-1])
        if is_over:
            self.publish(is_over=bool(events))
            self.ended = True


def _seq_of(event: bytes) -> int:
    plain = decode(event)
    assert isinstance(plain, dict)
    return int(plain["seq"])


@dataclass(slots=True)
class Mirrors:
    """Feeds the mirrors of this node, and forwards its runs to other nodes. Hints are signed with a key from
    the store. The end of a run comes from the store only."""

    node: str
    runs: SharedRuns
    live: LiveRuns
    hints: Hints
    clock: Clock
    poll_s: float
    partition: Callable[[SessionKey], int]
    figures: SharedFigures
    key: bytes = b""
    _wanted: anyio.Event = field(default_factory=anyio.Event)

    async def run(self) -> None:
        """Polls the store and receives hints until it is cancelled."""
        with self.hints.listen(node_subject(self.node), self._on_hint):
            while True:
                with anyio.move_on_after(self.poll_s):
                    await self._wanted.wait()
                self._wanted = anyio.Event()
                try:
                    await self.poll()
                except StoreUnavailable as error:
                    log.debug("mirrors_not_read", extra={"why": str(error)})
                # One poll serves all ends that come together.
                await self.clock.sleep(min(self.poll_s, 0.02))

    async def poll(self) -> None:
        """Reads the state of all mirrors from the store. Raises StoreUnavailable."""
        runs = self.live.values()
        mirrors = [one for one in runs if isinstance(one, SharedRun) and not one.tenure]
        states = await self.runs.states([one.run_id for one in mirrors]) if mirrors else {}
        known = [one for one in mirrors if one.run_id in states]
        for one in known:
            one.count_poll()
        await self._read([one.run_id for one in known if self._is_due(one, states[one.run_id])])
        for one in known:
            self._ask_or_drop(one)

    async def _read(self, run_ids: Sequence[RunId]) -> None:
        for first in range(0, len(run_ids), RECORDS_AT_ONCE):
            for record in await self.runs.records(run_ids[first : first + RECORDS_AT_ONCE]):
                self._apply(record)

    def _ask_or_drop(self, one: SharedRun) -> None:
        """Asks the working node for chunks while the run has a listener, and drops an unseen mirror."""
        if one.ended or one.tenure:
            return
        if not one.unseen:
            self.ask(one)
        elif one.unseen > MOST_UNSEEN and not one.is_counted:
            self.live.pop(one.run_id, None)

    def _is_due(self, one: SharedRun, state: RunProgress) -> bool:
        """True if the events of the run have to be read from the store."""
        is_silent = self.clock.monotonic() - one.received_at >= self.poll_s
        return state.is_over or bool(state.attempts and is_silent and not one.unseen)

    def _apply(self, record: RunRecord) -> None:
        one = self.live.get(record.entry.new.run_id)
        if not isinstance(one, SharedRun) or one.tenure is not None or one.ended:
            return
        self._note(one)
        one.receive_record(record)
        if one.ended:
            self.live.pop(one.run_id, None)
            one.leave()

    def ask(self, one: SharedRun) -> None:
        """Asks the working node for the missing chunks."""
        now = self.clock.monotonic()
        if now - one.asked_at >= ASKED_AGAIN_S:
            one.asked_at = now
            after = one.first_seq + len(one.events) - 1
            hint = {"run": one.run_id, "after": after, "to": self.node}
            self.hints.publish(work_subject(self.partition(one.session_key)), hint)

    def _on_hint(self, hint: Hint) -> None:
        """Receives a chunk of a mirrored run, or the news that the store has its end."""
        one = self.live.get(str(hint.get("run")))
        if not isinstance(one, SharedRun) or one.tenure is not None or one.ended:
            return
        event, sign = hint.get("event"), hint.get("sign")
        if not isinstance(event, str) or not isinstance(sign, str):
            self._wanted.set()
        elif compare_digest(sign.encode(), self._sign(event).encode()):
            self._note(one)
            one.received_at = self.clock.monotonic()
            if not one.receive(event.encode(), _seq_of(event.encode())):
                self.ask(one)

    def _note(self, one: SharedRun) -> None:
        """Observes the time from the accept here to the begin at another node."""
        if one.is_counted and one.state == "queued":
            self.figures.follow_s.observe((), self.clock.monotonic() - one.opened)

    def forward(self, one: SharedRun, to: str, after: int) -> None:
        """Forwards a run of this node to another one: the events after `after`, then live ones."""
        if to == self.node or (to not in one.followers and len(one.followers) >= MOST_FOLLOWERS):
            return
        if (stop := one.followers.pop(to, None)) is not None:
            stop()
        subject = node_subject(to)

        def publish(event: bytes, is_last: bool) -> None:  # noqa: FBT001  # the shape of a Listener
            hint: dict[str, object] = {"run": one.run_id}
            if not is_last:
                text = event.decode()
                hint |= {"event": text, "sign": self._sign(text)}
            self.hints.publish(subject, hint)

        one.followers[to] = one.listen(publish, after_seq=after)

    def _sign(self, event: str) -> str:
        return blake2b(event.encode(), key=self.key, digest_size=16).hexdigest()


# --- events --------------------------------------------------------------------------------------
INTEREST_S = 5.0  # between two announcements of the event types that a node wants
INTEREST_LASTS_S = 3 * INTEREST_S
MOST_NODES = 64

Types = frozenset[str] | None  # None: all events
NONE: Types = frozenset()


@dataclass(slots=True)
class FarEvents:
    """Forwards events between nodes. A forwarded event is signed with a key from the store, and numbered, so
    that no node receives it twice. A lost event is not sent again."""

    node: str
    bus: Bus  # of this node
    hints: Hints
    clock: Clock
    key: bytes
    far: Bus = field(default_factory=Bus)  # events of the others
    _subscribed: dict[object, Types] = field(default_factory=dict)  # of this node
    _interests: dict[str, tuple[float, Types]] = field(default_factory=dict)  # expiry and types
    _received: dict[str, int] = field(default_factory=dict)  # the number of the last event, by node
    _forwarded: int = 0
    _wanted: Types = NONE  # by the other nodes
    _stop: Callable[[], None] | None = None  # ends the subscription that forwards

    def subscribe(self, listener: EventListener, *, types: Types = None) -> Callable[[], None]:
        """Subscribes to the events of all nodes. Returns a function that ends the subscription."""
        stops = [one.subscribe(listener, types=types) for one in (self.bus, self.far)]
        mine = object()
        self._subscribed[mine] = types
        self._send_interest()

        def stop() -> None:
            self._subscribed.pop(mine, None)
            for one in stops:
                one()

        return stop

    async def run(self) -> None:
        """Announces and receives interests, and receives events, until it is cancelled."""
        mine, hints = events_subject(self.node), self.hints
        with hints.listen(EVENTS, self._receive_interest), hints.listen(mine, self._receive):
            while True:
                if self._subscribed:
                    self._send_interest()
                await self.clock.sleep(INTEREST_S)
                now = self.clock.monotonic()
                self._interests = {
                    node: interest
                    for node, interest in self._interests.items()
                    if interest[0] > now
                }
                self._listen()

    def _send_interest(self) -> None:
        types = _union(self._subscribed.values())
        self.hints.publish(
            EVENTS, {"node": self.node, "types": None if types is None else sorted(types)}
        )

    def _receive_interest(self, hint: Hint) -> None:
        node, types = hint.get("node"), hint.get("types")
        if not isinstance(node, str) or node == self.node:
            return
        if node in self._interests or len(self._interests) < MOST_NODES:
            wanted = frozenset(map(str, types)) if isinstance(types, list) else None
            self._interests[node] = (self.clock.monotonic() + INTEREST_LASTS_S, wanted)
            self._listen()

    def _listen(self) -> None:
        """Subscribes to the events of this node that other nodes want."""
        wanted = _union([types for _, types in self._interests.values()])
        if wanted == self._wanted:
            return
        if self._stop is not None:
            self._stop()
        self._wanted = wanted
        self._stop = None if wanted == NONE else self.bus.subscribe(self._forward, types=wanted)

    def _forward(self, event: Event) -> None:
        self._forwarded += 1
        text = encode({**_plain(event), "number": self._forwarded, "node": self.node}).decode()
        for node, (_, types) in self._interests.items():
            if types is None or event.type in types:
                hint = {"event": text, "sign": self._sign(f"{node} {text}")}
                self.hints.publish(events_subject(node), hint)

    def _receive(self, hint: Hint) -> None:
        text, sign = hint.get("event"), hint.get("sign")
        if not isinstance(text, str) or not isinstance(sign, str):
            return
        if not compare_digest(sign.encode(), self._sign(f"{self.node} {text}").encode()):
            return
        plain = cast(dict[str, Any], decode(text))
        node, number = plain.pop("node"), plain.pop("number")
        if number <= self._received.get(node, 0):
            return
        self._received[node] = number
        if len(self._received) > MOST_NODES:
            del self._received[next(iter(self._received))]
        self.far.publish(_event_of(plain))

    def _sign(self, text: str) -> str:
        return blake2b(text.encode(), key=self.key, digest_size=16).hexdigest()


def _union(some: Collection[Types]) -> Types:
    named = [types for types in some if types is not None]
    return None if len(named) < len(some) else frozenset[str]().union(*named)


def _plain(event: Event) -> dict[str, object]:
    key = event.session_key
    return {**asdict(event), "session_key": None if key is None else str(key)}


def _event_of(plain: dict[str, Any]) -> Event:
    key, run_id = plain.pop("session_key"), plain.pop("run_id")
    return Event(
        **{**plain, "at": datetime.fromisoformat(plain["at"])},
        session_key=None if key is None else SessionKey.parse(key),
        run_id=None if run_id is None else RunId(run_id),
    )
