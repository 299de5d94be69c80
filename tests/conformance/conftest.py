"""Every promise is proved on each engine; on the shared one with a real server."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from gateway.domain.ids import Secret
from gateway.domain.ports import Stores
from gateway.store.opening import open_store
from gateway.store.surreal import open_surreal
from gateway.store.surreal_connection import Credentials, SurrealConnection
from tests.fakes.clock import FakeClock
from tests.fakes.surreal import PASSWORD, USER, SurrealDatabase

Open = Callable[[], AbstractAsyncContextManager[Stores]]


@pytest.fixture(params=["embedded", "shared"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "shared":
        database: SurrealDatabase = request.getfixturevalue("surreal_database")
        return lambda: bounded(over(database))
    return lambda: bounded(open_store("embedded", tmp_path / "data", clock=FakeClock()))


@asynccontextmanager
async def bounded(opening: AbstractAsyncContextManager[Stores]) -> AsyncIterator[Stores]:
    with anyio.fail_after(10):
        async with opening as stores:
            yield stores


@asynccontextmanager
async def over(database: SurrealDatabase) -> AsyncIterator[Stores]:
    credentials = Credentials(USER, Secret(PASSWORD))
    place = (database.url, database.namespace, database.database)
    connection = await SurrealConnection.open(*place, credentials)
    async with open_surreal(connection, FakeClock()) as stores:
        yield stores
