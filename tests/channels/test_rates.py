"""No peer, room or account is sent more than its platform takes, and nobody is overtaken."""

import anyio
import pytest
from anyio.abc import TaskGroup

from gateway.channels.adapters import Rate
from gateway.channels.delivery import _KNOWN_BUCKETS, Rates
from tests.fakes.clock import FakeClock

A_SECOND = Rate("peer", 1, 1.0)
A_MINUTE = Rate("group", 2, 60.0)
ALL = Rate("account", 3, 1.0)


class Queue:
    """Whoever has passed, and when."""

    def __init__(self, group: TaskGroup, *rates: Rate) -> None:
        self.clock = FakeClock()
        self.rates = Rates(rates, self.clock)
        self.passed: list[tuple[str, float]] = []
        self._group = group

    async def ask(self, name: str, peer: str = "p", *, is_group: bool = False) -> None:
        async def one() -> None:
            await self.rates.reserve(peer, is_group=is_group)
            self.passed.append((name, self.clock.monotonic()))

        self._group.start_soon(one)
        await anyio.wait_all_tasks_blocked()

    async def until(self, seconds: float) -> list[tuple[str, float]]:
        while self.clock.monotonic() < seconds:
            self.clock.move(0.5)
            await anyio.wait_all_tasks_blocked()
        return self.passed


async def test_one_peer_waits_in_order_and_holds_up_no_other() -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            queue = Queue(group, A_SECOND)
            for name in "abc":
                await queue.ask(name)
            await queue.ask("other", "q")

            assert await queue.until(2) == [("a", 0), ("other", 0), ("b", 1), ("c", 2)]


async def test_a_room_has_a_rate_besides_that_of_every_peer() -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            queue = Queue(group, A_SECOND, A_MINUTE)
            for name in "abc":
                await queue.ask(name, is_group=True)

            assert await queue.until(40) == [("a", 0), ("b", 1), ("c", 30)]


async def test_the_account_has_a_rate_for_all_peers_together() -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            queue = Queue(group, ALL)
            for name in "abcd":
                await queue.ask(name, peer=name)

            passed = await queue.until(1)

    assert [name for name, _ in passed] == list("abcd")
    assert [at for _, at in passed] == [0, 0, 0, pytest.approx(0.5)]


async def test_a_wait_that_the_platform_named_closes_that_peer_only() -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            queue = Queue(group)
            queue.rates.close("p", 5)
            queue.rates.close("p", 1)
            await queue.ask("a")
            await queue.ask("other", "q")

            assert await queue.until(6) == [("other", 0), ("a", 5)]


async def test_peers_that_were_served_are_forgotten_and_those_that_wait_are_not() -> None:
    clock = FakeClock()
    rates = Rates((A_SECOND,), clock)
    rates.close("busy", 1_000_000)

    for number in range(3 * _KNOWN_BUCKETS):
        clock.move(1)
        await rates.reserve(str(number), is_group=False)

    assert len(rates._buckets) <= _KNOWN_BUCKETS + 2
    assert rates._bucket(-1, "busy", None).wait_s(clock.monotonic()) > 0
