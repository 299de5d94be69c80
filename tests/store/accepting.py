"""A program for tests: accepts messages side by side and says which were acknowledged."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import anyio

from gateway.domain.channels import ChannelMemo
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ports import Stores
from gateway.store.opening import open_store
from tests.fakes.clock import FakeClock
from tests.fakes.store import an_entry, session_key


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def send(stores: Stores, first: str, lane: int, count: int) -> None:
    for number in range(count):
        name = f"{first}-{lane}-{number}"
        entry = replace(
            an_entry(name, session_key(f"p{lane}"), platform_id=name),
            whence="{}",
            memos=(ChannelMemo("websocket", f"p{lane}", "adapter", f"run-{name}"),),
        )
        try:
            await stores.inbox.accept(entry, begin=False)
        except StoreUnavailable as error:
            say(f"refused {error}")
        else:
            say(f"run-{name}")


async def main(data_dir: str, first: str, lanes: int, count: int) -> None:
    async with (
        open_store("embedded", Path(data_dir), clock=FakeClock()) as stores,
        anyio.create_task_group() as group,
    ):
        say("open")
        group.cancel_scope.deadline = anyio.current_time() + 20
        for lane in range(lanes):
            group.start_soon(send, stores, first, lane, count)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
