"""A program for tests: plugins of many persons count upwards, and say what was kept."""

import os
import sys
from pathlib import Path

import anyio

from gateway.domain.ports import Stores
from gateway.store.opening import open_store
from tests.fakes.clock import FakeClock
from tests.fakes.store import a_space


async def count(stores: Stores, person: str) -> None:
    space, number = a_space(person), 0
    while True:
        number += 1
        await stores.tools.set(space, "count", str(number))
        os.write(1, f"{person} {number}\n".encode())


async def main(data_dir: str, persons: int) -> None:
    async with (
        open_store("embedded", Path(data_dir), clock=FakeClock()) as stores,
        anyio.create_task_group() as group,
    ):
        group.cancel_scope.deadline = anyio.current_time() + 20
        for number in range(persons):
            group.start_soon(count, stores, f"p{number}")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], int(sys.argv[2]))
