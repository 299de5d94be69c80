"""Whatever belongs to an accepted message waits for the store, with growing pauses."""

import anyio

from gateway.domain.errors import StoreUnavailable
from gateway.domain.supervision import RETRY_S, retry_store
from tests.fakes.clock import FakeClock


async def test_it_is_done_again_until_the_store_takes_it() -> None:
    clock, tries = FakeClock(), 0

    async def act(what: str, *, how: str) -> str:
        nonlocal tries
        tries += 1
        if tries <= len(RETRY_S) + 2:
            raise StoreUnavailable("disk full")
        return f"{what} {how}"

    results: list[str] = []

    async def wait() -> None:
        results.append(await retry_store(clock, act, "stored", how="well"))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            for _ in range(len(RETRY_S) + 2):
                await clock.until_someone_sleeps()
                clock.move(clock.slept[-1])

    assert results == ["stored well"]
    assert clock.slept == [*RETRY_S, RETRY_S[-1], RETRY_S[-1]]
