"""What channels keep, in the file: whole after a kill, and found by an index."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from gateway.store import channels
from gateway.store.tables import migrate
from gateway.store.transaction import Transaction
from tests.fakes.store import NOON
from tests.store.crash import embedded, start

LANES = 8


async def newest(data_dir: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Of each lane: its last message, and the memo that came with one."""
    with anyio.fail_after(60):
        async with embedded(data_dir) as stores:
            left = await stores.inbox.unfinished()
            last = {one.new.session_key.peer: str(one.new.run_id) for one in left}
            memos = {
                lane: (await stores.channels.read_memos("websocket", lane))[0].text for lane in last
            }
    return last, memos


def test_after_a_kill_each_memo_is_that_of_the_last_message(tmp_path: Path) -> None:
    process = start(str(tmp_path), "life", str(LANES), "100000")
    assert process.stdout is not None
    for _ in range(200):
        process.stdout.readline()
    process.kill()
    process.stdout.close()
    process.wait(5)

    last, memos = anyio.run(newest, tmp_path)

    assert len(last) == LANES
    assert memos == last


@pytest.mark.parametrize(
    "look_up",
    [
        lambda tx: channels._read_memos(tx, "c", "a"),
        lambda tx: channels._knows(tx, "c", "a", "id"),
        lambda tx: channels._forget_heard(tx, before=NOON, limit=5),
        lambda tx: tx.first("delivery", {"delivery_id": "d"}),
    ],
)
def test_no_look_up_of_a_channel_walks_through_a_table(
    look_up: Callable[[Transaction], object],
) -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    asked: list[str] = []
    db.set_trace_callback(asked.append)

    look_up(Transaction(db))

    db.set_trace_callback(None)
    plan = [row[3] for one in asked for row in db.execute(f"EXPLAIN QUERY PLAN {one}")]
    assert plan
    assert not [step for step in plan if step.startswith("SCAN") or "TEMP B-TREE" in step]
