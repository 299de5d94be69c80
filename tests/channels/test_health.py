"""How a channel fares, each direction for itself."""

from collections.abc import Mapping
from datetime import timedelta

import pytest

from gateway.channels.health import LONGEST_WHY, ChannelHealth
from gateway.domain.channels import ChannelDef, ChannelState, TransportKind
from tests.fakes.clock import FakeClock


class Watched:
    def __init__(self, transport: TransportKind = "socket") -> None:
        self.clock = FakeClock()
        self.told: list[tuple[str, object]] = []
        channel = ChannelDef("chat", "plugin", "acc")
        self.health = ChannelHealth(channel, transport, self.clock, self.tell)

    def tell(self, kind: str, payload: Mapping[str, object]) -> None:
        self.told.append((kind, payload["why"]))

    @property
    def state(self) -> str:
        return self.health.status.state


def test_sending_alone_connects_nothing() -> None:
    watched = Watched()

    watched.health.record_success("out")

    assert watched.state == "starting"
    assert watched.told == []


def test_a_channel_that_cannot_send_is_not_connected_though_it_receives() -> None:
    watched = Watched()

    watched.health.record_success("in")
    watched.health.record_failure("out", "blocked")
    watched.health.record_success("in")

    assert watched.state == "failing"
    assert watched.health.status.why == "blocked"
    watched.health.record_success("out")
    assert watched.state == "connected"
    assert watched.told == [
        ("channel.connected", None),
        ("channel.failing", "blocked"),
        ("channel.connected", None),
    ]


def test_failing_counts_from_the_first_failure_on() -> None:
    watched = Watched()
    since = watched.clock.now()

    watched.health.record_failure("in", "one")
    watched.clock.move(10)
    watched.health.record_failure("in", "two")

    receiving = watched.health.status.receiving
    assert (receiving.failing_since, receiving.why) == (since, "two")
    watched.health.record_success("in")
    receiving = watched.health.status.receiving
    assert (receiving.failing_since, receiving.why) == (None, None)
    assert receiving.last_at == since + timedelta(seconds=10)
    assert receiving.count == watched.health.count == 1


@pytest.mark.parametrize("state", ["refused", "stopped"])
def test_an_end_stays(state: ChannelState) -> None:
    watched = Watched()

    watched.health.end(state, "x" * 1_000)
    watched.health.record_success("in")

    assert watched.state == state
    assert len(str(watched.health.status.why)) == LONGEST_WHY


def test_no_word_of_a_platform_steers_a_terminal() -> None:
    watched = Watched()

    watched.health.record_failure("in", "no\x1b[2J\n\u202eway")

    assert watched.health.status.why == "no?[2J ?way"


def test_what_was_refused_is_counted_by_its_reason() -> None:
    watched = Watched()

    for why in ("wrong", "wrong", "old"):
        watched.health.count_refusal(why)

    assert watched.health.status.refused == {"wrong": 2, "old": 1}
    assert watched.health.status.name == "chat"
    assert watched.health.status.account == "acc"
