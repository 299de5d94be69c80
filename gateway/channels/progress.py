"""How a channel fares, each direction for itself: sending says nothing of receiving."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from gateway.domain.channels import (
    ChannelDef,
    ChannelState,
    ChannelStatus,
    Direction,
    FlowProgress,
    TransportKind,
)
from gateway.domain.ports import Clock

LONGEST_WHY = 300

Tell = Callable[[str, Mapping[str, object]], None]  # type of an event, and its payload

_EVENTS = {
    "connected": "channel.connected",
    "failing": "channel.failing",
    "refused": "channel.refused",
}


class Health:
    """What is known of one channel; tells an event whenever its state becomes another."""

    def __init__(
        self, channel: ChannelDef, transport: TransportKind | None, clock: Clock, tell: Tell
    ) -> None:
        self._channel, self._clock, self._tell = channel, clock, tell
        self.transport = transport
        self.waits_for: str | None = None  # before it can be opened
        self._ways: dict[Direction, FlowProgress] = {"in": FlowProgress(), "out": FlowProgress()}
        self._refused: Counter[str] = Counter()
        self._is_open = False
        self._end: tuple[ChannelState, str | None] | None = None
        self._told: ChannelState = "starting"

    @property
    def count(self) -> int:
        """How often something came in."""
        return self._ways["in"].count

    def opened(self) -> None:
        """It can receive, though nothing came yet."""
        self._is_open = True
        self._ways["in"] = replace(self._ways["in"], failing_since=None, why=None)
        self._notice()

    def worked(self, direction: Direction) -> None:
        self._is_open = self._is_open or direction == "in"
        self._ways[direction] = FlowProgress(self._clock.now(), self._ways[direction].count + 1)
        self._notice()

    def failed(self, direction: Direction, why: str) -> None:
        way = self._ways[direction]
        since = way.failing_since or self._clock.now()
        self._ways[direction] = replace(way, failing_since=since, why=printable(why))
        self._notice()

    def turned_away(self, why: str) -> None:
        """A call or a message that was refused; counted by a reason out of a fixed set."""
        self._refused[why] += 1

    def end(self, state: ChannelState, why: str | None = None) -> None:
        """It stays so until a new start."""
        self._end = (state, None if why is None else printable(why))
        self._notice()

    @property
    def status(self) -> ChannelStatus:
        state, why = self._state()
        channel = self._channel
        return ChannelStatus(
            channel.name,
            channel.plugin,
            channel.account,
            self.transport,
            state,
            why,
            self._ways["in"],
            self._ways["out"],
            dict(self._refused),
        )

    def _state(self) -> tuple[ChannelState, str | None]:
        if self._end is not None:
            return self._end
        failing = [way.why for way in self._ways.values() if way.failing_since is not None]
        if failing:
            return "failing", failing[0]
        return ("connected" if self._is_open else "starting"), self.waits_for

    def _notice(self) -> None:
        state, why = self._state()
        if state == self._told:
            return
        self._told = state
        event = _EVENTS.get(state)
        if event is not None:
            self._tell(event, {"channel": self._channel.name, "why": why})


def printable(text: str) -> str:
    """Platforms and strangers have a say in it: no word of theirs may steer a terminal."""
    return "".join(one if one.isprintable() else " " for one in text[:LONGEST_WHY])
