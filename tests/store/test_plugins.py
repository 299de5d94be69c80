"""What plugins keep outlives the process, costs no fsync, and comes to databases that had none."""

import contextlib
import sqlite3
from pathlib import Path

import anyio

from tests.fakes.store import a_space, an_entry
from tests.store.crash import KEEPING, embedded, start


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
