"""Tells each event to whoever listens, in order, at once: nobody waits for anybody."""

import logging
from collections import deque
from collections.abc import Callable

from gateway.domain.events import Event

log = logging.getLogger(__name__)

Listener = Callable[[Event], None]
MOST_DEPTH = 8  # an event that is caused by an event that is caused by an event …
MOST_CAUSED = 4_000  # events in all that come of one: each may cause several, and each of those
MOST_WAITING = 1_000  # events that listeners caused and that nobody has heard yet


class Bus:
    """For one thread. What a listener publishes is told after what it has just heard, to everybody."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[Listener, frozenset[str] | None]] = {}
        self._waiting: deque[tuple[Event, int]] = deque()
        self._depth = 0  # of the event that is being told; 0: none is
        self._caused = 0  # by the event that was published first
        self._has_refused = False
        self._dropped = 0

    def subscribe(
        self, listener: Listener, *, types: frozenset[str] | None = None
    ) -> Callable[[], None]:
        """Hears events of these types, or of all, until what this gives back is called."""
        mine = object()
        self._listeners[mine] = (listener, types)

        def stop() -> None:
            self._listeners.pop(mine, None)

        return stop

    def publish(self, event: Event) -> None:
        if not self._listeners:
            return
        if self._depth >= MOST_DEPTH or self._caused > MOST_CAUSED:
            self._refuse(event)
            return
        self._caused += 1
        self._waiting.append((event, self._depth + 1))
        if len(self._waiting) > MOST_WAITING:
            self._make_room()
        if not self._depth:
            self._tell_all()

    def _tell_all(self) -> None:
        try:
            while self._waiting:
                event, self._depth = self._waiting.popleft()
                self._tell(event)
                if self._dropped and not self._waiting:
                    self._tell_of_dropped(event)
        finally:
            self._depth = self._caused = 0
            self._has_refused = False

    def _refuse(self, event: Event) -> None:
        """Said once of all that come of one event."""
        if not self._has_refused:
            log.error("events cause each other without end", extra=_facts(event))
        self._has_refused = True

    def _tell(self, event: Event) -> None:
        for mine, (listener, types) in tuple(self._listeners.items()):
            if mine not in self._listeners or (types is not None and event.type not in types):
                continue
            try:
                listener(event)
            except Exception:  # one bad listener disturbs no other
                log.exception("a listener of events failed", extra=_facts(event))

    def _make_room(self) -> None:
        """What must be heard stays, even beyond the bound: the depth ends it."""
        for place, (event, _) in enumerate(self._waiting):
            if event.severity in {"debug", "info"} and event.type != "session.end":
                del self._waiting[place]
                self._dropped += 1
                return

    def _tell_of_dropped(self, last: Event) -> None:
        count, self._dropped = self._dropped, 0
        log.warning("events were dropped", extra={"count": count})
        told = Event("bus.dropped", "warning", "bus", last.at, None, None, {"n": count})
        self._waiting.append((told, min(self._depth + 1, MOST_DEPTH)))  # however deep it was


def _facts(event: Event) -> dict[str, str]:
    return {"event": event.type, "source": event.source}
