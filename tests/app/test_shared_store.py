"""`exogate run` over a SurrealDB server: it waits for the server, survives its absence, and claims it alone. A node
reads the changes of others. A copied store is the same on the other engine, or the copy is refused."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio import to_thread

from gateway.app.backups import BackupMaker, restore, verify
from gateway.app.shared import open_stores
from gateway.app.shared_store import Membership, claim_store, connection_to, copy_store
from gateway.config.values import Clustering, GatewayConfig, GatewaySettings, StoreSettings
from gateway.domain.backups import CopiedTable, CopyRefused
from gateway.domain.cluster import CHANGED, RELOAD, StoreInUse
from gateway.domain.errors import DataDirInUse, GatewayError, StoreRefused
from gateway.domain.events import AuditEvent
from gateway.domain.facts import Claim
from gateway.domain.figures import SharedFigures
from gateway.domain.ids import Secret
from gateway.domain.ports import Stores
from gateway.store.copying import COPIED, reading_sqlite
from gateway.store.opening import COPYING, open_store
from gateway.store.surreal_schema import SurrealRows
from tests.fakes.client import http, post_chat
from tests.fakes.clock import FakeClock, now_about
from tests.fakes.cluster import FakeHints
from tests.fakes.gateway import START_S, command, spawned
from tests.fakes.lived import ANN, live, told
from tests.fakes.store import NOON, an_ending, an_entry, an_exchange, session_key
from tests.fakes.surreal import PASSWORD, USER, SurrealDatabase, SurrealServer, surreal_binary

# --- the store -----------------------------------------------------------------------------------
STORE = """
[gateway]
port = 0
data_dir = "{folder}/data"
[agent]
id = "demo"
provider = "demo"
[store]
url = "{url}"
database = "{database}"
username = "{user}"
password = "{password}"
"""


@pytest.fixture
def program() -> str:
    return surreal_binary()


async def written(folder: Path, url: str, database: str = "main", **more: str) -> Path:
    await anyio.Path(folder).mkdir(exist_ok=True)
    names = {"user": USER, "password": PASSWORD, **more}
    text = STORE.format(folder=folder, url=url, database=database, **names)
    path = folder / "config.toml"
    await anyio.Path(path).write_text(text, encoding="utf-8")
    return path


async def got(url: str, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
    answer = await http(url + path)
    return answer.status, answer.json


async def asked(url: str, message: str, key: str | None = None) -> tuple[int, dict[str, Any]]:
    answer = await post_chat(url, message, key=key, conversation_id="c")
    return answer.status, answer.json


async def until_ready(url: str, status: int = 200, because: str = "") -> dict[str, Any]:
    with anyio.fail_after(START_S):
        while True:
            found, told = await got(url)
            if found == status and because in str(told):
                return told
            await anyio.sleep(0.05)


async def address_of(config: Path) -> str:
    """Of a gateway that waits, which has no banner yet."""
    lock = anyio.Path(config.parent / "data" / "lock")
    with anyio.fail_after(START_S):
        while True:
            text = await lock.read_text() if await lock.exists() else ""
            if "http://" in text:
                return text.split('"url": "')[1].split('"')[0]
            await anyio.sleep(0.02)


async def test_a_store_that_does_not_answer_at_the_start_is_waited_for(
    program: str, tmp_path: Path
) -> None:
    server = SurrealServer(program)
    config = await written(tmp_path, server.url)
    try:
        async with spawned(config) as gateway:
            url = await address_of(config)
            alive, waiting = await got(url, "/healthz"), await got(url)
            refused = await asked(url, "hello")
            await anyio.to_thread.run_sync(server.start)
            assert await gateway.ready()
            answered = await asked(gateway.url, "hello")
            said = await gateway.said()
    finally:
        await anyio.to_thread.run_sync(server.stop)

    assert alive == (200, {"status": "ok"})
    assert waiting[0] == 503
    assert "cannot be reached" in waiting[1]["reasons"][0]
    assert (refused[0], refused[1]["error"]["code"]) == (503, "store_unavailable")
    assert (url, answered[0]) == (gateway.url, 200)
    assert said.count(b'"warning"') == said.count(b"store_awaited") == 1


async def test_a_gateway_that_waits_for_its_store_ends_when_it_is_told(tmp_path: Path) -> None:
    config = await written(tmp_path, SurrealServer("").url)
    async with spawned(config) as gateway:
        await address_of(config)
        gateway.process.send_signal(15)
        code = await gateway.exit_code()

    assert code == 0


async def test_after_kill_9_a_gateway_goes_on_at_once(
    surreal_database: SurrealDatabase, tmp_path: Path
) -> None:
    config = await written(tmp_path, surreal_database.url, surreal_database.database)
    async with command(config) as gateway:
        first = await asked(gateway.url, "my dog is called Luna", "a")
        gateway.kill()
        await gateway.exit_code()
    async with command(config) as gateway:
        again = await asked(gateway.url, "my dog is called Luna", "a")
        answered = await asked(gateway.url, "what is my dog called?")

    assert first[1]["run_id"] == again[1]["run_id"]
    assert "Luna" in answered[1]["response"]


async def test_of_two_gateways_without_a_cluster_the_second_is_refused(
    surreal_database: SurrealDatabase, tmp_path: Path
) -> None:
    place = (surreal_database.url, surreal_database.database)
    config = await written(tmp_path / "a", *place)
    other = await written(tmp_path / "b", *place)
    async with command(config) as gateway:
        async with spawned(other) as second:
            code, said = await second.exit_code(), (await second.said()).decode()
        owner = await anyio.Path(config.parent / "data" / "lock").read_text()
        gateway.process.send_signal(15)
        await gateway.exit_code()
    async with command(other) as after:
        ready = await got(after.url)

    assert (code, ready[0]) == (75, 200)
    assert said.split("in use by gateway ")[1].split(":")[0] in owner
    assert "Traceback" not in said


async def test_a_password_that_is_refused_ends_the_start_with_a_sentence(
    surreal_database: SurrealDatabase, tmp_path: Path
) -> None:
    config = await written(tmp_path, surreal_database.url, password="hunter2-hunter2")
    async with spawned(config) as gateway:
        code, said = await gateway.exit_code(), (await gateway.said()).decode()

    assert code == 78
    assert "check username and password" in said
    assert "hunter2" not in said
    assert "Traceback" not in said


async def test_an_outage_is_told_within_a_second_and_ends_by_itself(
    program: str, tmp_path: Path
) -> None:
    server = SurrealServer(program, f"surrealkv://{tmp_path}/store?sync=every")
    config = await written(tmp_path, server.url)
    await anyio.to_thread.run_sync(server.start)
    async with command(config) as gateway:
        await anyio.to_thread.run_sync(server.kill)
        with anyio.fail_after(now_about(1.0)):
            told = await until_ready(gateway.url, 503)
        refused = await asked(gateway.url, "hello")
        await anyio.to_thread.run_sync(server.start)
        try:
            await until_ready(gateway.url)
            answered = await asked(gateway.url, "hello")
        finally:
            await anyio.to_thread.run_sync(server.stop)

    assert "SurrealDB at" in told["reasons"][0]
    assert (refused[0], answered[0]) == (503, 200)


async def test_a_store_that_falls_silent_is_told_within_three_seconds(
    own_surreal_server: SurrealServer, tmp_path: Path
) -> None:
    server = own_surreal_server
    config = await written(tmp_path, server.url)
    async with command(config) as gateway:
        await anyio.to_thread.run_sync(server.pause)
        try:
            with anyio.fail_after(now_about(3.0)):
                await until_ready(gateway.url, 503)
        finally:
            server.resume()
        await until_ready(gateway.url)
        answered = await asked(gateway.url, "hello")

    assert answered[0] == 200


async def test_a_store_that_comes_back_empty_is_told_and_nothing_is_accepted(
    own_surreal_server: SurrealServer, tmp_path: Path
) -> None:
    server = own_surreal_server  # it keeps everything in memory
    config = await written(tmp_path, server.url)
    async with command(config) as gateway:
        await asked(gateway.url, "hello")
        await anyio.to_thread.run_sync(server.kill)
        await anyio.to_thread.run_sync(server.start)
        await until_ready(gateway.url, 503, because="lost or replaced database")
        refused = await asked(gateway.url, "hello")
        still_runs = gateway.process.poll() is None

    assert (refused[0], still_runs) == (503, True)


def test_a_gateway_with_the_embedded_store_imports_nothing_of_a_server() -> None:
    imports = "import sys; import gateway.app.running, gateway.cli.run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", imports], capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())

    assert "gateway.store.sqlite" in loaded
    for name in ("cbor2", "nats", "gateway.store.surreal", "gateway.cluster.node"):
        assert name not in loaded


# --- membership ----------------------------------------------------------------------------------
async def test_looks_go_on_while_files_are_reloaded_one_reload_at_a_time() -> None:
    clock, hints = FakeClock(), FakeHints()
    looks = reloads = 0
    ends, nobody = anyio.Event(), cast(Any, None)
    rooms = (nobody, Clustering(), nobody, nobody, nobody)
    member = Membership(*rooms, hints, clock, SharedFigures())

    async def look() -> None:
        nonlocal looks
        looks += 1

    async def reload() -> None:
        nonlocal reloads
        reloads += 1
        await ends.wait()

    async def until(what: str, count: int) -> None:
        with anyio.fail_after(20):
            while {"looks": looks, "reloads": reloads}[what] < count:
                hints.publish(CHANGED, {})
                clock.move(1)
                await anyio.lowlevel.checkpoint()

    member.refreshers["look"] = look
    async with anyio.create_task_group() as group:
        group.start_soon(member.keep_fresh)
        group.start_soon(member.reload_with_others, reload)
        await until("looks", 1)
        hints.publish(RELOAD, {})
        await until("reloads", 1)
        hints.publish(RELOAD, {})
        await until("looks", looks + 3)
        meanwhile = reloads
        ends.set()
        await until("reloads", 2)
        group.cancel_scope.cancel()

    assert meanwhile == 1


# --- copies --------------------------------------------------------------------------------------
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
