"""Events of all nodes for the subscribers here. The other nodes forward theirs over hints while one subscribes."""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from datetime import datetime
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, cast

from gateway.codec import decode, encode
from gateway.control.notices import Bus, Listener
from gateway.domain.cluster import EVENTS, Hint, Hints, events_subject
from gateway.domain.events import Event
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.ports import Clock

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

    def subscribe(self, listener: Listener, *, types: Types = None) -> Callable[[], None]:
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
