"""What becomes too old goes, a little at a time; what is younger stays."""

from datetime import timedelta

import anyio

from gateway.app.assembly import SENT_AGAIN, sweep
from gateway.config.values import GatewayConfig
from gateway.domain.inbox import ReceivedMessage
from tests.fakes.clock import FakeClock
from tests.fakes.store import open_memory


async def test_what_channels_heard_is_forgotten_once_no_platform_sends_it_again() -> None:
    clock = FakeClock()
    eight_days_ago = clock.now() - SENT_AGAIN
    minute = timedelta(minutes=1)
    times = {"old": eight_days_ago - minute, "young": eight_days_ago + minute}
    async with open_memory() as stores, anyio.create_task_group() as group:
        for name, at in times.items():
            await stores.channels.record(ReceivedMessage("tg", "bot", name, "told", at))

        config = GatewayConfig()
        group.start_soon(sweep, lambda: config, stores, clock)
        with anyio.fail_after(60):
            for _ in range(2):  # between two rounds, and after them
                await clock.until_someone_sleeps()
                clock.move(0.1)

        known = [await stores.channels.knows("tg", "bot", name) for name in times]
        group.cancel_scope.cancel()
    assert known == [False, True]
