"""What plugins keep outlives the process, costs no fsync, and comes to databases that had none."""

import contextlib
import sqlite3
from pathlib import Path

import anyio
import pytest

from gateway.domain.errors import StoreUnavailable
from gateway.store.tables import VERSION
from tests.fakes.store import NOON, a_space, an_entry
from tests.store.crash import KEEPING, embedded, start
from tests.store.versions import of_version


def test_what_was_set_is_there_after_a_kill(tmp_path: Path) -> None:
    process = start(str(tmp_path), "8", program=KEEPING)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(200)]
    process.kill()
    said += [line for line in process.stdout if line.endswith("\n")]
    process.stdout.close()
    process.wait(5)
    acknowledged = {person: int(number) for person, number in map(str.split, said)}

    kept = anyio.run(counts, tmp_path, list(acknowledged))

    assert len(acknowledged) == 8
    assert all(number <= kept[person] <= number + 1 for person, number in acknowledged.items())


async def counts(data_dir: Path, persons: list[str]) -> dict[str, int]:
    with anyio.fail_after(60):
        async with embedded(data_dir) as stores:
            return {
                person: int(await stores.tools.get(a_space(person), "count") or 0)
                for person in persons
            }


async def asked(data_dir: Path, query: str) -> list[tuple[int, ...]]:
    """What another process would see now."""
    return await anyio.to_thread.run_sync(_ask, data_dir, query)


def _ask(data_dir: Path, query: str) -> list[tuple[int, ...]]:
    with contextlib.closing(sqlite3.connect(data_dir / "store.db")) as db:
        return db.execute(query).fetchall()


async def test_a_set_is_committed_before_it_returns_and_not_fsynced(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with embedded(tmp_path) as stores:
            durable = await asked(tmp_path, "SELECT commits FROM pulse")
            await stores.tools.set(a_space(), "k", "v")
            set_ = await asked(tmp_path, "SELECT count(*) FROM plugin_value")
            await stores.tools.delete(a_space(), "k")
            deleted = await asked(tmp_path, "SELECT count(*) FROM plugin_value")

            assert (set_, deleted) == ([(1,)], [(0,)])
            assert await asked(tmp_path, "SELECT commits FROM pulse") == durable
            await stores.inbox.accept(an_entry("a"), begin=False)
            assert await asked(tmp_path, "SELECT commits FROM pulse") == [(durable[0][0] + 1,)]


async def test_the_totals_are_what_a_count_would_give(tmp_path: Path) -> None:
    totals = "SELECT keys, bytes FROM plugin_space"
    with anyio.fail_after(60):
        async with embedded(tmp_path) as stores:
            for key, value in [("a", "x" * 9), ("é", "ü\0"), ("a", "x"), ("b", ""), ("c", "x")]:
                await stores.tools.set(a_space(), key, value)
            for key in ("c", "c", "none", "\ud800"):
                await stores.tools.delete(a_space(), key)

            count = "SELECT count(*), sum(length(key) + length(value)) FROM plugin_value"
            assert await asked(tmp_path, count) == [(3, 1 + 1 + 2 + 3 + 1)]
            assert await asked(tmp_path, totals) == await asked(tmp_path, count)


def old_database(data_dir: Path) -> None:
    """Of the version before plugins kept anything, with one message in it."""
    db = of_version(1, data_dir / "store.db")
    db.execute(
        "INSERT INTO session (id, key, agent, channel, account, peer, created_at, updated_at)"
        " VALUES (1, 'demo:websocket:local:main', 'demo', 'websocket', 'local', 'main', 0, 0)"
    )
    db.execute(
        "INSERT INTO run (run_id, message_id, session, seq, state, attempts, accepted_at,"
        " matched_by, channel, account, digest, content)"
        " VALUES ('run-a', 'msg-a', 1, 1, 'queued', 0, 0, 'default', 'websocket', 'local', '', 'hi')"
    )
    db.close()


@pytest.mark.requirement("S-000-Store-03")
async def test_a_database_without_plugins_gets_them_and_keeps_its_messages(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(old_database, tmp_path)
    with anyio.fail_after(60):
        for _ in range(2):
            async with embedded(tmp_path) as stores:
                await stores.tools.set(a_space(), "k", "v")
                assert [entry.new.content for entry in await stores.inbox.unfinished()] == ["hi"]

    assert await asked(tmp_path, "PRAGMA user_version") == [(VERSION,)]
    assert VERSION > 1


async def test_sweeping_runs_takes_nothing_from_plugins(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with embedded(tmp_path) as stores:
            await stores.tools.set(a_space(), "k", "v")
            await stores.care.sweep(before=NOON, limit=9)

            assert await stores.tools.get(a_space(), "k") == "v"
        with pytest.raises(StoreUnavailable):
            await stores.tools.set(a_space(), "k", "v")
