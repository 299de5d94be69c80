"""A node looks at what others have changed, and at its files when another was told to."""

from typing import Any, cast

import anyio

from gateway.app.shared_store import Membership
from gateway.config.values import Clustering
from gateway.domain.cluster import CHANGED, RELOAD
from gateway.domain.figures import SharedFigures
from tests.fakes.clock import FakeClock
from tests.fakes.cluster import FakeHints


async def test_looks_go_on_while_files_are_reloaded_one_reload_at_a_time() -> None:
    clock, hints = FakeClock(), FakeHints()
    looks = reloads = 0
    ends, nobody = anyio.Event(), cast(Any, None)
    rooms = (nobody, Clustering(), nobody, nobody, nobody)
    member = Membership(*rooms, hints, clock, SharedFigures())

    async def look() -> None:
        nonlocal looks
        looks += 1

    async def reload() -> None:
        nonlocal reloads
        reloads += 1
        await ends.wait()

    async def until(what: str, count: int) -> None:
        with anyio.fail_after(20):
            while {"looks": looks, "reloads": reloads}[what] < count:
                hints.publish(CHANGED, {})
                clock.move(1)
                await anyio.lowlevel.checkpoint()

    member.refreshers["look"] = look
    async with anyio.create_task_group() as group:
        group.start_soon(member.keep_fresh)
        group.start_soon(member.reload_with_others, reload)
        await until("looks", 1)
        hints.publish(RELOAD, {})
        await until("reloads", 1)
        hints.publish(RELOAD, {})
        await until("looks", looks + 3)
        meanwhile = reloads
        ends.set()
        await until("reloads", 2)
        group.cancel_scope.cancel()

    assert meanwhile == 1
