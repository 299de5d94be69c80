"""The shared store: what is asked of the server, and several gateways over one database."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
import pytest

from gateway.domain.errors import Conflict
from gateway.domain.ids import NodeId, Secret
from gateway.domain.inbox import NewDelivery
from gateway.domain.ports import Stores
from gateway.store.surreal import open_surreal
from gateway.store.surreal_connection import Credentials, Params, SurrealConnection
from tests.fakes.clock import FakeClock
from tests.fakes.store import an_ending, an_entry, session_key
from tests.fakes.surreal import PASSWORD, USER, SurrealDatabase

DELIVERY = NewDelivery("d", "chat", "default", "ann", None, "hello")


@dataclass
class Gateway:
    stores: Stores
    asked: list[str]  # requests


@asynccontextmanager
async def gateways(database: SurrealDatabase, count: int) -> AsyncIterator[list[Gateway]]:
    place = (database.url, database.namespace, database.database)
    found: list[Gateway] = []
    with anyio.fail_after(20):
        async with AsyncExitStack() as stack:
            for _ in range(count):
                credentials = Credentials(USER, Secret(PASSWORD))
                connection = Listening(*place, credentials)
                connection._socket = await connection._connect()
                stores = await stack.enter_async_context(open_surreal(connection, FakeClock()))
                found.append(Gateway(stores, connection.asked))
            yield found


class Listening(SurrealConnection):
    asked: list[str]

    async def query(
        self, text: str, params: Params | None = None, *, deadline_s: float | None = None
    ) -> list[object]:
        self.asked = getattr(self, "asked", [])
        self.asked.append(text)
        return await super().query(text, params, deadline_s=deadline_s)


async def exchange(stores: Stores, name: str, grown_from: str | None) -> bool:
    await stores.inbox.accept(an_entry(name, platform_id=name), begin=True)
    return await stores.inbox.finish(an_ending(name, grown_from=grown_from))


async def test_a_message_is_one_request_and_its_end_two(surreal_database: SurrealDatabase) -> None:
    async with gateways(surreal_database, 1) as (gateway,):
        await exchange(gateway.stores, "a", None)
        gateway.asked.clear()

        await gateway.stores.inbox.accept(an_entry("b", platform_id="b"), begin=True)
        accepting = len(gateway.asked)
        await gateway.stores.inbox.finish(an_ending("b", grown_from="a-2"))

        assert (accepting, len(gateway.asked) - accepting) == (1, 2)


async def test_what_another_gateway_changed_is_read_before_anything_is_written(
    surreal_database: SurrealDatabase,
) -> None:
    async with gateways(surreal_database, 2) as (here, there):
        await exchange(here.stores, "a", None)
        await exchange(there.stores, "b", "a-2")
        moved = await there.stores.sessions.move_head(
            session_key(), NodeId("a-1"), expected=NodeId("b-2")
        )

        followed = await exchange(here.stores, "c", "b-2")
        path = await there.stores.sessions.path(session_key(), limit=9)

        assert (moved, followed) == (True, False)
        assert [node.id for node in path.nodes] == ["a-1"]


@pytest.mark.parametrize("gateway_count", [1, 3])
async def test_of_copies_at_several_gateways_one_is_accepted(
    surreal_database: SurrealDatabase, gateway_count: int
) -> None:
    accepted = []
    async with (
        gateways(surreal_database, gateway_count) as some,
        anyio.create_task_group() as group,
    ):

        async def accept(number: int) -> None:
            inbox = some[number % gateway_count].stores.inbox
            entry = an_entry(f"a{number}", platform_id="same", digest="d")
            accepted.append(await inbox.accept(entry, begin=True))

        for number in range(12):
            group.start_soon(accept, number)

    assert [one.duplicate for one in accepted].count(False) == 1
    assert len({one.run_id for one in accepted}) == 1


async def test_places_in_a_session_are_given_once_over_all_gateways(
    surreal_database: SurrealDatabase,
) -> None:
    async with gateways(surreal_database, 3) as some:
        async with anyio.create_task_group() as group:
            for number in range(18):
                accept = partial(some[number % 3].stores.inbox.accept, begin=False)
                group.start_soon(accept, an_entry(f"m{number}"))
        entries = await some[0].stores.inbox.unfinished()

    assert sorted(one.seq for one in entries) == [*range(1, 19)]


async def test_of_two_gateways_that_send_one_delivers(surreal_database: SurrealDatabase) -> None:
    outcomes: list[bool] = []
    async with gateways(surreal_database, 2) as some:
        await some[0].stores.inbox.accept(an_entry("a"), begin=True)
        await some[0].stores.inbox.finish(an_ending("a", deliveries=[DELIVERY]))

        async def send(stores: Stores) -> None:
            try:
                await stores.outbox.sending("d", 0)
            except Conflict:
                outcomes.append(False)
            else:
                outcomes.append(True)

        async with anyio.create_task_group() as group:
            for gateway in some:
                group.start_soon(send, gateway.stores)

    assert sorted(outcomes) == [False, True]
