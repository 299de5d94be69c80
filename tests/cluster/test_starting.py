"""A gateway whose store goes away while it starts begins again, at whatever moment that is."""

from pathlib import Path

import anyio
import pytest

pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from tests.fakes.fleet import fleet
from tests.fakes.model_server import Reply
from tests.fakes.proxy import proxy
from tests.fakes.surreal import SurrealDatabase

MOMENTS = (20, 50, 55, 60, 65)  # pieces of data between the gateway and the store


async def test_a_store_that_goes_away_in_the_middle_of_a_start_is_waited_for(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    for moment in MOMENTS:
        port = int(surreal_database.url.rpartition(":")[2])
        folder = tmp_path / str(moment)
        await anyio.Path(folder).mkdir()
        async with proxy(port) as door:
            door.breaks_after = moment
            ways = {"a": f"ws://127.0.0.1:{door.own_port}"}
            model = [Reply("Yes.")]
            async with (
                fleet(folder, model, surreal_database, None, "a", ways=ways) as nodes,
                nodes.client("a") as client,
            ):
                assert (await client.ask("hello"))["response"] == "Yes."
