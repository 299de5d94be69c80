"""Lanes keep the order within a session and never hold one session up for another."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from gateway.domain.agents import Share
from gateway.domain.ids import AgentId, SessionKey
from gateway.sessions.lanes import Lanes

A, B, C = (SessionKey(AgentId("x"), "c", "p", peer) for peer in "abc")
OURS: Share = (("p",), "")


@pytest.mark.requirement("S-003-Session-08")
async def test_a_session_is_in_order_and_two_run_side_by_side() -> None:
    seen: list[str] = []
    gate = anyio.Event()

    async def slow() -> None:
        seen.append("a1 began")
        await gate.wait()
        seen.append("a1 ended")

    async def a2() -> None:
        seen.append("a2")

    async def b1() -> None:
        seen.append("b1")
        gate.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            lanes = Lanes(group, width=2)
            lanes.submit(A, slow, OURS)
            lanes.submit(A, a2, OURS)
            lanes.submit(B, b1, OURS)

    assert seen == ["a1 began", "b1", "a1 ended", "a2"]


async def test_one_bad_message_cancels_no_neighbour() -> None:
    seen: list[str] = []

    async def bad() -> None:
        raise ValueError("a defect")

    async def good() -> None:
        seen.append("good")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            lanes = Lanes(group, width=2)
            for key in (A, A, B):
                lanes.submit(key, bad, OURS)
                lanes.submit(key, good, OURS)

    assert seen == ["good"] * 3


async def test_a_long_queue_lets_others_go_between() -> None:
    seen: list[str] = []

    def says(word: str) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            seen.append(word)

        return work

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            lanes = Lanes(group, width=1)
            for n in range(3):
                lanes.submit(A, says(f"a{n}"), OURS)
            lanes.submit(B, says("b"), OURS)
            lanes.submit(C, says("c"), OURS)

    assert seen.index("b") < seen.index("a1")
    assert seen.index("c") < seen.index("a1")


async def test_no_more_work_at_once_than_the_width_and_a_pause_starts_nothing() -> None:
    working = most = done = 0

    async def work() -> None:
        nonlocal working, most, done
        working += 1
        most = max(most, working)
        await anyio.lowlevel.checkpoint()
        working -= 1
        done += 1

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            lanes = Lanes(group, width=2)
            for n in range(6):
                lanes.submit(SessionKey(AgentId("x"), "c", "p", str(n)), work, OURS)
            assert lanes.working == 2
            assert not lanes.is_idle(A)
            lanes.pause()
            await lanes.wait_idle()

    assert (most, done) == (2, 2)
