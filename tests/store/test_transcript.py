"""What is shown costs what it holds, whatever lies beside it."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from anyio import to_thread

from gateway.domain.ids import NodeId
from gateway.domain.inbox import NewDelivery
from gateway.store.channels import _due
from gateway.store.conversations import _path
from gateway.store.transaction import Transaction
from gateway.store.writer import open_to_read
from tests.fakes.store import NOON, an_ending, an_entry, an_exchange, session_key
from tests.store.crash import embedded

T = TypeVar("T")


def counted(path: Path, query: Callable[[Transaction], T]) -> tuple[T, int]:
    """What it finds, and how many instructions SQLite runs for that."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    db: sqlite3.Connection = open_to_read(path)
    db.set_progress_handler(count, 1)
    found = query(Transaction(db))
    db.close()
    return found, steps


def steps_of(path: Path) -> int:
    """Those for the newest 20 nodes."""
    found, steps = counted(path, partial(_path, key=session_key(), limit=20))
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
    with anyio.fail_after(60):
        head = await grow(tmp_path, "a", None, 30)
        short = await to_thread.run_sync(partial(steps_of, tmp_path / "store.db"))
        await grow(tmp_path, "b", head, 5000)
        long = await to_thread.run_sync(partial(steps_of, tmp_path / "store.db"))

    assert short > 100
    assert long <= short * 1.05


async def test_a_path_between_many_branches_costs_little_more(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        await grow(tmp_path / "plain", "a", None, 30)
        plain = await to_thread.run_sync(partial(steps_of, tmp_path / "plain" / "store.db"))
        first = an_exchange("a")[0]
        nodes = [
            replace(first, id=NodeId(f"{turn}-{branch}"), parent_id=before)
            for turn in range(30)
            for branch in range(40)
            for before in [NodeId(f"{turn - 1}-{branch}") if turn else None]
        ]
        async with embedded(tmp_path / "wide") as stores:
            await stores.sessions.import_nodes(session_key(), nodes, now=NOON)
            await stores.sessions.move_head(session_key(), nodes[-1].id, expected=nodes[-40].id)
        wide = await to_thread.run_sync(partial(steps_of, tmp_path / "wide" / "store.db"))

    assert wide <= 4 * plain


async def test_a_long_queue_of_one_session_is_looked_through_once(tmp_path: Path) -> None:
    found = dict[int, int]()
    for count in (300, 3000):
        new = [
            NewDelivery(f"d{number}", "irc", "main", "ann", None, "hi") for number in range(count)
        ]
        async with embedded(tmp_path / str(count)) as stores:
            await stores.inbox.accept(an_entry("a"), begin=True)
            await stores.inbox.finish(an_ending("a", deliveries=new))
        look = partial(_due, channel="irc", now=NOON + timedelta(hours=1), limit=10)
        path = tmp_path / str(count) / "store.db"
        due, found[count] = await to_thread.run_sync(partial(counted, path, look))
        assert [one.new.id for one in due] == ["d0"]

    assert found[3000] <= 15 * found[300]
