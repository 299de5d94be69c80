"""A copy of a store is a database of its own, of one moment, whatever engine the store has."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio

from gateway.domain.ids import RunId
from gateway.domain.ports import Stores
from gateway.store.opening import open_store
from tests.fakes.clock import FakeClock
from tests.fakes.lived import live, told
from tests.fakes.store import an_entry

Open = Callable[[], AbstractAsyncContextManager[Stores]]


async def test_a_copy_tells_what_the_store_told_then(opened: Open, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    await anyio.Path(folder).mkdir(mode=0o700)
    async with opened() as stores:
        await live(stores)
        await stores.care.snapshot(folder / "store.db", copies=1)
        await stores.inbox.accept(an_entry("later"), begin=False)
    async with opened() as stores:
        before = await told(stores)
    async with open_store("embedded", folder, clock=FakeClock()) as stores:
        after = await told(stores)
        later = await stores.inbox.find_run(RunId("run-later"))

    assert later is None
    for name in (
        "path",
        "run",
        "facts",
        "why",
        "records",
        "letters",
        "pairings",
        "values",
        "audit",
    ):
        assert before[name] == after[name], name
