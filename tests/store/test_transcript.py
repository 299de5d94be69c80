"""A path costs what it shows."""

import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.domain.ids import NodeId
from gateway.store.conversations import _path
from gateway.store.transaction import SqliteTransaction
from gateway.store.writer import open_to_read
from tests.fakes.store import an_ending, an_entry, an_exchange, session_key
from tests.store.crash import embedded


def steps_of(path: Path) -> int:
    """How many instructions SQLite runs to read the newest 20 nodes."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    db: sqlite3.Connection = open_to_read(path)
    db.set_progress_handler(count, 1)
    found = _path(SqliteTransaction(db), session_key(), limit=20)
    db.close()
    assert len(found.nodes) == 20
    return steps


async def grow(data_dir: Path, name: str, parent: str | None, count: int) -> str:
    """One run that appends many nodes to the session."""
    first = an_exchange(name)[0]
    nodes = [replace(first, id=NodeId(f"{name}-{number}")) for number in range(count)]
    async with embedded(data_dir) as stores:
        await stores.inbox.accept(an_entry(name), begin=True)
        await stores.inbox.finish(an_ending(name, nodes=nodes, grown_from=parent))
    return nodes[-1].id


@pytest.mark.requirement("S-003-Index-01")
async def test_the_end_of_a_path_costs_the_same_in_a_session_of_any_length(tmp_path: Path) -> None:
    with anyio.fail_after(10):
        head = await grow(tmp_path, "a", None, 30)
        short = await to_thread.run_sync(partial(steps_of, tmp_path / "store.db"))
        await grow(tmp_path, "b", head, 5000)
        long = await to_thread.run_sync(partial(steps_of, tmp_path / "store.db"))

    assert short > 100
    assert long <= short * 1.05
