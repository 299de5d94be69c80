"""Every promise is proved on each engine; on the shared one with a real server."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from gateway.domain.ports import Stores
from gateway.store.opening import open_store
from gateway.store.surreal import open_surreal
from tests.fakes.clock import FakeClock
from tests.fakes.surreal import SurrealDatabase

Open = Callable[[], AbstractAsyncContextManager[Stores]]


@pytest.fixture(params=["embedded", "shared"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "shared":
        database: SurrealDatabase = request.getfixturevalue("emptied_database")
        return lambda: bounded(over(database))
    return lambda: bounded(open_store("embedded", tmp_path / "data", clock=FakeClock()))


@asynccontextmanager
async def bounded(opening: AbstractAsyncContextManager[Stores]) -> AsyncIterator[Stores]:
    with anyio.fail_after(60):
        async with opening as stores:
            yield stores


@asynccontextmanager
async def over(database: SurrealDatabase) -> AsyncIterator[Stores]:
    async with open_surreal(await database.connected(), FakeClock()) as stores:
        yield stores
