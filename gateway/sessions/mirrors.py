"""Runs that other nodes work on, as live here as our own: fed with what the store has of them, and sooner
with what their node tells over hints."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from hmac import compare_digest
from typing import Any

import anyio

from gateway.agent.driver import RunControl
from gateway.agent.effects import Moment
from gateway.codec import decode
from gateway.domain.cluster import (
    Hint,
    Hints,
    RunProgress,
    SharedRuns,
    Tenure,
    node_subject,
    work_subject,
)
from gateway.domain.errors import StoreUnavailable
from gateway.domain.figures import SharedFigures
from gateway.domain.ids import SessionKey
from gateway.domain.inbox import SEQ_A_ATTEMPT, Entry, RunRecord
from gateway.domain.messages import Chunk
from gateway.domain.ports import Clock
from gateway.sessions.journal import RecordedJournal
from gateway.sessions.runs import Listener, LiveRun, LiveRuns

log = logging.getLogger(__name__)

ASKED_AGAIN_S = 0.5  # for chunks that did not come
MOST_UNSEEN = 5  # looks
RECORDS_AT_ONCE = 16  # runs whose chunks are read in one request
MOST_TOLD = 8  # nodes that follow one run


@dataclass(slots=True)
class SharedRun(LiveRun):
    """A run that this node works on under a `tenure`, or that another one works on: a mirror."""

    tenure: Tenure | None = None
    may: Callable[["SharedRun"], bool] = lambda run: True
    is_counted: bool = True  # among those that this node has accepted
    asked_at: float = float("-inf")  # for chunks
    heard_at: float = float("-inf")  # of a chunk
    unseen: int = 0  # looks since anybody here followed it
    told: dict[str, Callable[[], None]] = field(default_factory=dict)  # nodes that follow it

    def count_look(self) -> None:
        self.unseen = 0 if self._listeners else self.unseen + 1

    def emit(self, chunk: Chunk) -> None:
        """Nothing is published once the lease may be another node's."""
        if self.sealed or self.may(self):
            LiveRun.emit(self, chunk)

    def listen(
        self, listener: Listener, *, after_seq: int = 0, owner: object = None, **more: Any
    ) -> Callable[[], None]:
        """Not what whoever listens has heard elsewhere, and what comes here only now."""

        def hear(event: bytes, is_last: bool) -> None:  # noqa: FBT001  # the shape of a Listener
            if is_last or _seq_of(event) > after_seq:
                listener(event, is_last)

        is_known = after_seq < self.first_seq + len(self.events)
        return LiveRun.listen(
            self, listener if is_known else hear, after_seq=after_seq, owner=owner, **more
        )

    def take_up(self, entry: Entry, tenure: Tenure) -> None:
        """From now on it is to be worked on here."""
        self.entry, self.tenure = entry, tenure

    def start(self, attempt: int, moment: Moment, journal: RecordedJournal | None = None) -> None:
        """Whoever listens has what was told so far; and keeps it, should this attempt never begin."""
        self.events = []
        LiveRun.start(self, attempt, moment, journal)

    def let_go(self) -> None:
        """From now on it is a mirror, of what another node may work on."""
        if self.ended:
            return
        self.unseal()
        self.release()
        self.leave()
        self.tenure, self.state, self.leave, self.is_counted = None, "queued", _nothing, False
        self.control, self.is_stopped, self.is_offered = RunControl(), False, False
        for stop in self.told.values():
            stop()
        self.told.clear()

    def hear(self, event: bytes, seq: int) -> bool:
        """Takes the next chunk of its node; False if some are missing before it."""
        following = self.first_seq + len(self.events)
        if seq > following and seq % SEQ_A_ATTEMPT == 1:  # another attempt, which says so first
            self.first_seq, self.events, following = seq, [], seq
        if seq == following:
            self.state = "running"
            self.events.append(event)
            for listener, _ in tuple(self._listeners.values()):
                listener(event, False)  # noqa: FBT003  # the shape of a Listener
        return seq <= following

    def hear_all(self, record: RunRecord) -> None:
        """Takes what the store has of it, and its end if it has ended."""
        events = record.log.split(b"\n") if record.log else []
        is_over = record.finished_at is not None
        for event in events[: len(events) - is_over]:
            self.hear(event, _seq_of(event))
        if is_over and events:
            self.sealed, self.state = True, "ended"
            self.events.append(events[-1])
        if is_over:
            self.publish(is_over=bool(events))
            self.ended = True


def _nothing() -> None:
    """It is counted no more."""


def _seq_of(event: bytes) -> int:
    plain = decode(event)
    assert isinstance(plain, dict)
    return int(plain["seq"])


@dataclass(slots=True)
class Mirrors:
    """Follows runs of other nodes, and tells other nodes of ours. What a hint shows is signed with a key that
    stands in the store; that a run has ended, only the store says."""

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

    @property
    def _mirrors(self) -> Sequence[SharedRun]:
        return [one for one in self.live.values() if isinstance(one, SharedRun) and not one.tenure]

    async def run(self) -> None:
        """Until it is cancelled."""
        with self.hints.listen(node_subject(self.node), self._hear):
            while True:
                with anyio.move_on_after(self.poll_s):
                    await self._wanted.wait()
                self._wanted = anyio.Event()
                try:
                    await self.look()
                except StoreUnavailable as error:
                    log.debug("mirrors_not_read", extra={"why": str(error)})
                await self.clock.sleep(min(self.poll_s, 0.02))  # those that end together

    async def look(self) -> None:
        """Looks into the store for all of them. Raises StoreUnavailable."""
        mirrors = self._mirrors
        states = await self.runs.states([one.run_id for one in mirrors]) if mirrors else {}
        known = [one for one in mirrors if one.run_id in states]
        for one in known:
            one.count_look()
        await self._read([one for one in known if self._is_due(one, states[one.run_id])])
        for one in known:
            self._follow(one)

    async def _read(self, mirrors: Sequence[SharedRun]) -> None:
        for first in range(0, len(mirrors), RECORDS_AT_ONCE):
            some = [one.run_id for one in mirrors[first : first + RECORDS_AT_ONCE]]
            for record in await self.runs.records(some):
                self._take(record)

    def _follow(self, one: SharedRun) -> None:
        """Has its node tell what is to come, as long as anybody here listens."""
        if one.ended or one.tenure:
            return
        if not one.unseen:
            self.ask(one)
        elif one.unseen > MOST_UNSEEN and not one.is_counted:
            self.live.pop(one.run_id, None)

    def _is_due(self, one: SharedRun, state: RunProgress) -> bool:
        """Whether what the store has of it is to be read."""
        is_silent = self.clock.monotonic() - one.heard_at >= self.poll_s
        return state.is_over or bool(state.attempts and is_silent and not one.unseen)

    def _take(self, record: RunRecord) -> None:
        one = self.live.get(record.entry.new.run_id)
        if not isinstance(one, SharedRun) or one.tenure is not None or one.ended:
            return
        self._note(one)
        one.hear_all(record)
        if one.ended:
            self.live.pop(one.run_id, None)
            one.leave()

    def ask(self, one: SharedRun) -> None:
        """Asks whoever works on it for the chunks that are missing."""
        now = self.clock.monotonic()
        if now - one.asked_at >= ASKED_AGAIN_S:
            one.asked_at = now
            after = one.first_seq + len(one.events) - 1
            hint = {"run": one.run_id, "after": after, "to": self.node}
            self.hints.publish(work_subject(self.partition(one.session_key)), hint)

    def _hear(self, hint: Hint) -> None:
        """Of a run here that another node works on: a chunk, or that there is something in the store."""
        one = self.live.get(str(hint.get("run")))
        if not isinstance(one, SharedRun) or one.tenure is not None or one.ended:
            return
        event, sign = hint.get("event"), hint.get("sign")
        if not isinstance(event, str) or not isinstance(sign, str):
            self._wanted.set()
        elif compare_digest(sign.encode(), self._sign(event).encode()):
            self._note(one)
            one.heard_at = self.clock.monotonic()
            if not one.hear(event.encode(), _seq_of(event.encode())):
                self.ask(one)

    def _note(self, one: SharedRun) -> None:
        """How long what was accepted here took to be taken up elsewhere."""
        if one.is_counted and one.state == "queued":
            self.figures.follow_s.observe((), self.clock.monotonic() - one.opened)

    def tell(self, one: SharedRun, to: str, after: int) -> None:
        """Tells another node of a run that is ours: what is missing there, and what is still to come."""
        if to == self.node or (to not in one.told and len(one.told) >= MOST_TOLD):
            return
        if (stop := one.told.pop(to, None)) is not None:
            stop()
        subject = node_subject(to)

        def publish(event: bytes, is_last: bool) -> None:  # noqa: FBT001  # the shape of a Listener
            hint: dict[str, object] = {"run": one.run_id}
            if not is_last:
                text = event.decode()
                hint |= {"event": text, "sign": self._sign(text)}
            self.hints.publish(subject, hint)

        one.told[to] = one.listen(publish, after_seq=after)

    def _sign(self, event: str) -> str:
        return blake2b(event.encode(), key=self.key, digest_size=16).hexdigest()
