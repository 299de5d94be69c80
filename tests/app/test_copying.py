"""A store is the same on the other engine, goes on working there, and is never there in part."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from gateway.app.backups import BackupMaker, restore, verify
from gateway.app.copying import copy_store
from gateway.app.shared import open_stores
from gateway.app.shared_store import claim_store, connection_to
from gateway.config.values import GatewayConfig, GatewaySettings, StoreSettings
from gateway.domain.backups import CopiedTable, CopyRefused
from gateway.domain.cluster import StoreInUse
from gateway.domain.errors import DataDirInUse, GatewayError, StoreRefused
from gateway.domain.events import AuditEvent
from gateway.domain.facts import Claim
from gateway.domain.ids import Secret
from gateway.domain.ports import Stores
from gateway.store.copying import COPIED, reading_sqlite
from gateway.store.opening import COPYING, open_store
from gateway.store.surreal_schema import SurrealRows
from tests.fakes.clock import FakeClock
from tests.fakes.lived import ANN, live, told
from tests.fakes.store import NOON, an_ending, an_entry, an_exchange, session_key
from tests.fakes.surreal import PASSWORD, USER, SurrealDatabase


def of(folder: Path, database: SurrealDatabase) -> GatewayConfig:
    store = StoreSettings(
        url=database.url,
        namespace=database.namespace,
        database=database.database,
        username=USER,
        password=Secret(PASSWORD),
    )
    return GatewayConfig(gateway=GatewaySettings(data_dir=folder), store=store)


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Stores]:
    async with open_store("embedded", folder, clock=FakeClock()) as stores:
        yield stores


@asynccontextmanager
async def shared(config: GatewayConfig) -> AsyncIterator[Stores]:
    async with open_stores(config, FakeClock()) as (stores, _):
        yield stores


async def out(config: GatewayConfig) -> list[CopiedTable]:
    with anyio.fail_after(60):
        return [*await copy_store(config, "embedded", config.store.url, FakeClock())]


async def back(config: GatewayConfig, folder: Path) -> list[CopiedTable]:
    there = replace(config, gateway=GatewaySettings(data_dir=folder))
    with anyio.fail_after(60):
        return [*await copy_store(there, config.store.url, "embedded", FakeClock())]


async def filled(folder: Path) -> dict[str, Any]:
    async with embedded(folder) as stores:
        await live(stores)
    async with embedded(folder) as stores:
        return await told(stores)


@contextmanager
def refused(kind: type[GatewayError], match: str) -> Iterator[None]:
    """However deep in groups of tasks it was raised."""
    with pytest.raises((kind, BaseExceptionGroup)) as raised:
        yield
    error: BaseException = raised.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, kind)
    assert match in str(error)


async def go_on(stores: Stores) -> None:
    """What a gateway does next: nothing that it makes collides with what is there."""
    await stores.inbox.accept(an_entry("next", ANN), begin=True)
    said = an_exchange("next", "more carrots", "yes")
    await stores.inbox.finish(
        an_ending("next", ANN, grown_from="first-2", take_head=True, nodes=said)
    )
    await stores.inbox.accept(an_entry("new", session_key("carl")), begin=True)
    claim = Claim("user", "lives in", "Oslo", True, NOON, session_key("carl"))
    await stores.facts.add_facts("carl", [claim], ids=["new-fact"], now=NOON)
    await stores.audit.append(AuditEvent(NOON, "config.changed", "config", {"what": "x"}))
    keys = await stores.facts.unindexed(limit=99)
    await stores.facts.index_turns(keys, limit=999)
    found = await stores.facts.find_turns(ANN, ["carrots"], limit=9)
    assert len(found.words["carrots"].depths) == 2
    entries = await stores.audit.after(0, limit=99)
    assert all(one.follows(last) for last, one in zip(entries, entries[1:], strict=False))


async def test_there_and_back_all_is_the_same_and_goes_on(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    config = of(tmp_path / "data", surreal_database)
    before = await filled(tmp_path / "data")

    went = await out(config)
    came = await back(config, tmp_path / "back")
    async with embedded(tmp_path / "back") as stores:
        after = await told(stores)
        await go_on(stores)
    async with shared(config) as stores:
        there = await told(stores)
        await go_on(stores)

    assert went == came
    rows = {one.table: one.rows for one in went}
    assert (rows["session"], rows["run"], rows["fact"], rows["delivery"]) == (2, 3, 2, 2)
    assert before == after
    assert {name for name in before if before[name] != there[name]} <= set()


async def test_a_target_that_is_not_empty_is_refused(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    config = of(tmp_path / "data", surreal_database)
    await filled(tmp_path / "data")
    await out(config)

    with refused(CopyRefused, "is not empty"):
        await out(config)
    with refused(CopyRefused, "there is a store in"):
        await back(config, tmp_path / "data")


async def test_a_store_in_use_is_left_alone(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    config = of(tmp_path / "data", surreal_database)
    await filled(tmp_path / "data")

    async with embedded(tmp_path / "data"):
        with refused(DataDirInUse, "is in use"):
            await out(config)
    async with claim_store(config.store, FakeClock()):
        with refused(StoreInUse, "is in use"):
            await out(config)
    await out(config)
    async with shared(config):
        with refused(StoreInUse, "is in use"):
            await back(config, tmp_path / "back")


@pytest.mark.parametrize("urls", [("embedded", "embedded"), ("ws://a", "ws://b"), ("memory", "x")])
async def test_only_from_one_engine_to_the_other(tmp_path: Path, urls: tuple[str, str]) -> None:
    config = GatewayConfig(gateway=GatewaySettings(data_dir=tmp_path))

    with pytest.raises(CopyRefused, match="give one ws:// address"):
        await copy_store(config, *urls, FakeClock())


async def test_a_copy_that_was_not_finished_is_begun_anew_and_nothing_starts_on_it(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    config = of(tmp_path / "data", surreal_database)
    before = await filled(tmp_path / "data")
    await begun(config)

    with refused(StoreRefused, "was not finished: run `exogate store copy`"):
        async with shared(config):
            pass
    with refused(StoreRefused, "was not finished"):
        await back(config, tmp_path / "back")
    await out(config)

    async with shared(config) as stores:
        assert await told(stores) == before


async def begun(config: GatewayConfig) -> None:
    """A part of the rows, as a copy leaves them that is killed."""
    connection = await connection_to(config.store)
    file = config.gateway.data_dir / "store.db"
    async with anyio.create_task_group() as group, reading_sqlite(file) as source:
        group.start_soon(connection.run)
        target = SurrealRows(connection)
        await target.begin("embedded")
        for table in COPIED[:4]:
            async for rows in source.rows(table):
                await target.put(table, rows)
        group.cancel_scope.cancel()


async def test_no_gateway_starts_beside_a_store_that_is_being_copied_there(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    config = of(tmp_path / "data", surreal_database)
    before = await filled(tmp_path / "data")
    await out(config)
    await anyio.Path(tmp_path / "back" / COPYING).mkdir(parents=True)
    await anyio.Path(tmp_path / "back" / COPYING / "store.db").write_bytes(b"half")

    with refused(StoreRefused, "was not finished"):
        async with embedded(tmp_path / "back"):
            pass
    await back(config, tmp_path / "back")

    async with embedded(tmp_path / "back") as stores:
        assert await told(stores) == before


async def test_a_shared_store_is_backed_up_while_others_write(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    config = of(tmp_path / "data", surreal_database)
    await filled(tmp_path / "data")
    await out(config)
    async with shared(config) as stores, anyio.create_task_group() as group:

        async def talk() -> None:
            for number in range(10_000):
                await stores.inbox.accept(an_entry(f"more{number}", ANN), begin=False)

        group.start_soon(talk)
        maker = BackupMaker(stores, FakeClock(), anyio.Lock())
        await anyio.Path(config.gateway.data_dir).mkdir(exist_ok=True)
        made = await maker.create(config, None, with_secrets=False, by="local")
        group.cancel_scope.cancel()

    await to_thread.run_sync(verify, Path(made.file))
    await restore(Path(made.file), tmp_path / "new", force=False, dry_run=False, clock=FakeClock())
    async with embedded(tmp_path / "new") as stores:
        after = await told(stores)
        waiting = [one.new.run_id for one in await stores.inbox.unfinished()]
    assert made.manifest.engine == "surrealdb"
    assert after["facts"]
    more = [one for one in waiting if one.startswith("run-more")]
    assert more == [f"run-more{number}" for number in range(len(more))]  # of one moment
    assert made.manifest.store.counts["run"] == 3 + len(more)
