"""The health of a channel, separate for each direction: sending does not prove receiving."""

import logging
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
from gateway.domain.text import printable

log = logging.getLogger(__name__)

LONGEST_WHY = 300

Publish = Callable[[str, Mapping[str, object]], None]  # event type, payload

_EVENTS = {
    "connected": "channel.connected",
    "failing": "channel.failing",
    "refused": "channel.refused",
}


class ChannelHealth:
    """The state of one channel. Publishes an event when the state changes."""

    def __init__(
        self, channel: ChannelDef, transport: TransportKind | None, clock: Clock, publish: Publish
    ) -> None:
        self._channel, self._clock, self._publish = channel, clock, publish
        self.transport = transport
        self.waits_for: str | None = None  # the reason why the channel is not open yet
        self._flows: dict[Direction, FlowProgress] = {"in": FlowProgress(), "out": FlowProgress()}
        self._refused: Counter[str] = Counter()
        self._is_open = False
        self._end: tuple[ChannelState, str] | None = None
        self._published: ChannelState = "starting"

    @property
    def count(self) -> int:
        """The number of successful receives."""
        return self._flows["in"].count

    def mark_open(self) -> None:
        """Marks the channel able to receive before its first message."""
        self._is_open = True
        self._flows["in"] = replace(self._flows["in"], failing_since=None, why=None)
        self._publish_change()

    def record_success(self, direction: Direction) -> None:
        self._is_open = self._is_open or direction == "in"
        self._flows[direction] = FlowProgress(self._clock.now(), self._flows[direction].count + 1)
        self._publish_change()

    def record_failure(self, direction: Direction, why: str) -> None:
        flow = self._flows[direction]
        since, shown = flow.failing_since or self._clock.now(), printable(why[:LONGEST_WHY])
        self._flows[direction] = replace(flow, failing_since=since, why=shown)
        self._publish_change()

    def count_refusal(self, why: str) -> None:
        """Counts a refused call or message; `why` is from a fixed set."""
        self._refused[why] += 1

    def end(self, state: ChannelState, why: str) -> None:
        """Sets a state that lasts until the next start."""
        self._end = (state, printable(why[:LONGEST_WHY]))
        self._publish_change()

    @property
    def status(self) -> ChannelStatus:
        state, why = self._state()
        channel = self._channel
        what = (channel.name, channel.plugin, channel.account, self.transport, state, why)
        return ChannelStatus(*what, self._flows["in"], self._flows["out"], dict(self._refused))

    def _state(self) -> tuple[ChannelState, str | None]:
        if self._end is not None:
            return self._end
        failing = [flow.why for flow in self._flows.values() if flow.failing_since is not None]
        if failing:
            return "failing", failing[0]
        return ("connected" if self._is_open else "starting"), self.waits_for

    def _publish_change(self) -> None:
        state, why = self._state()
        if state == self._published:
            return
        name = self._channel.name
        level = logging.INFO if state in {"starting", "connected"} else logging.WARNING
        extra = {"channel": name, "state": state, "was": self._published, "why": why}
        log.log(level, "channel_state_changed", extra=extra)
        self._published = state
        if state in _EVENTS:
            self._publish(_EVENTS[state], {"channel": name, "why": why})
