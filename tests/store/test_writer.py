"""The writer groups what waits, syncs what has to last, and never leaves anybody waiting."""

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.domain.errors import Conflict, StoreUnavailable
from gateway.store.faults import TextRefused
from gateway.store.tables import migrate
from gateway.store.writer import (
    GROUP,
    Commits,
    Mark,
    OperationFailed,
    Progress,
    Writer,
    WriteTransaction,
)


@dataclass
class Desk:
    writer: Writer
    commits: Commits
    mark: Mark


def prepare(tmp_path: Path) -> tuple[sqlite3.Connection, Mark, Commits]:
    db = sqlite3.connect(tmp_path / "w.db", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    migrate(db)
    db.execute("CREATE TABLE kept (name TEXT UNIQUE, padding TEXT)")
    mark = Mark(tmp_path)
    return db, mark, Commits(WriteTransaction(db), mark, Progress(), str(tmp_path / "w.db"))


@asynccontextmanager
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    db, mark, commits = await to_thread.run_sync(prepare, tmp_path)
    writer = Writer(commits)
    writer.start()
    try:
        with anyio.fail_after(60):
            yield Desk(writer, commits, mark)
    finally:
        writer.stop("closed")
        await to_thread.run_sync(writer.join)
        await to_thread.run_sync(db.close)
        mark.close()


def keep(name: str, padding: str = "") -> "Keep":
    return Keep(name, padding)


@dataclass(frozen=True)
class Keep:
    name: str
    padding: str = ""

    def __call__(self, tx: WriteTransaction) -> str:
        tx.db.execute("INSERT INTO kept VALUES (?, ?)", (self.name, self.padding))
        return self.name


def kept(tx: WriteTransaction) -> list[str]:
    return [name for (name,) in tx.db.execute("SELECT name FROM kept ORDER BY rowid")]


def synchronous(tx: WriteTransaction) -> int:
    return int(tx.db.execute("PRAGMA synchronous").fetchone()[0])


class Gate:
    """An operation that runs until it is let go."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self._is_reached = threading.Event()

    def __call__(self, tx: WriteTransaction) -> None:
        self._is_reached.set()
        assert self.is_open.wait(5)

    async def reached(self) -> None:
        """The writer is in it, alone: what comes now waits for the next commit."""
        assert await to_thread.run_sync(self._is_reached.wait, 5)


async def test_what_waits_behind_a_commit_goes_into_one(tmp_path: Path) -> None:
    gate = Gate()
    async with desk(tmp_path) as here:
        async with anyio.create_task_group() as group:

            async def write(name: str) -> None:
                await here.writer.write(keep(name), durable=False)

            async def hold() -> None:
                await here.writer.write(gate, durable=False)

            group.start_soon(hold)
            await gate.reached()
            for number in range(GROUP + 10):
                group.start_soon(write, f"{number:03d}")
            await anyio.wait_all_tasks_blocked()
            gate.is_open.set()

        assert here.commits.done == 3
        names = await here.writer.write(kept, durable=False)

    assert names == [f"{number:03d}" for number in range(GROUP + 10)]


async def test_only_a_group_with_something_durable_is_synced(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        modes = [
            await here.writer.write(synchronous, durable=durable)
            for durable in (False, True, True, False)
        ]

        assert modes == [1, 2, 2, 1]  # NORMAL, FULL
        assert here.commits.synced == 2


async def test_a_refused_operation_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    def refuse(_: WriteTransaction) -> None:
        raise Conflict("no")

    gate = Gate()
    told: dict[str, str] = {}
    async with desk(tmp_path) as here:

        async def hold() -> None:
            await here.writer.write(gate, durable=False)

        async def write(name: str) -> None:
            told[name] = await here.writer.write(keep(name), durable=True)

        async def fail() -> None:
            try:
                await here.writer.write(refuse, durable=True)
            except Conflict as error:
                told["refused"] = str(error)

        async with anyio.create_task_group() as group:
            group.start_soon(hold)
            await gate.reached()
            group.start_soon(write, "a")
            group.start_soon(fail)
            group.start_soon(write, "b")
            await anyio.wait_all_tasks_blocked()
            gate.is_open.set()

        assert here.commits.done == 2

    assert told == {"a": "a", "refused": "no", "b": "b"}


def mistaken(tx: WriteTransaction) -> str:
    keep("half")(tx)
    return [""][1]


@pytest.mark.parametrize("bad", [keep("a"), keep("\ud800"), keep(2**70), mistaken])  # type: ignore[arg-type]  # results of any type
async def test_an_operation_that_breaks_a_rule_is_undone_alone(tmp_path: Path, bad: Keep) -> None:
    gate = Gate()
    told: list[str] = []
    async with desk(tmp_path) as here:
        await here.writer.write(keep("a"), durable=True)

        async def hold() -> None:
            await here.writer.write(gate, durable=False)

        async def write(operation: Keep) -> None:
            try:
                told.append(await here.writer.write(operation, durable=True))
            except (OperationFailed, TextRefused):
                told.append("failed")

        async with anyio.create_task_group() as group:
            group.start_soon(hold)
            await gate.reached()
            for operation in (keep("b"), bad, keep("c")):
                group.start_soon(write, operation)
            await anyio.wait_all_tasks_blocked()
            gate.is_open.set()

        names = await here.writer.write(kept, durable=False)

    assert told == ["b", "failed", "c"]
    assert names == ["a", "b", "c"]


async def test_a_cancelled_waiter_changes_nothing(tmp_path: Path) -> None:
    gate = Gate()
    async with desk(tmp_path) as here:

        async def hold() -> None:
            await here.writer.write(gate, durable=False)

        async def write(name: str, scope: anyio.CancelScope) -> None:
            with scope:
                await here.writer.write(keep(name), durable=True)

        async with anyio.create_task_group() as group:
            scopes = [anyio.CancelScope(), anyio.CancelScope()]
            group.start_soon(hold)
            await gate.reached()
            group.start_soon(write, "a", scopes[0])
            group.start_soon(write, "b", scopes[1])
            await anyio.wait_all_tasks_blocked()
            scopes[0].cancel()
            await anyio.wait_all_tasks_blocked()
            gate.is_open.set()

        names = await here.writer.write(kept, durable=False)

    assert names == ["a", "b"]


async def test_without_room_everybody_is_refused_and_later_work_goes_on(tmp_path: Path) -> None:
    def limit(pages: int) -> "Limit":
        return Limit(pages)

    async with desk(tmp_path) as here:
        await here.writer.write(keep("before"), durable=True)
        await here.writer.write(limit(1), durable=False)

        for name in ("x", "y", "x", "y"):
            with pytest.raises(StoreUnavailable, match="full: free some space"):
                await here.writer.write(keep(name, "z" * 100_000), durable=True)
        await here.writer.write(limit(10_000), durable=False)
        await here.writer.write(keep("x", "z" * 100_000), durable=True)
        names = await here.writer.write(kept, durable=False)

    assert names == ["before", "x"]


@dataclass(frozen=True)
class Limit:
    pages: int

    def __call__(self, tx: WriteTransaction) -> None:
        tx.db.execute(f"PRAGMA max_page_count = {self.pages}")


async def test_a_stopped_writer_writes_what_waits_and_refuses_the_rest(tmp_path: Path) -> None:
    gate = Gate()
    told: list[str] = []
    async with desk(tmp_path) as here:

        async def hold() -> None:
            await here.writer.write(gate, durable=False)

        async def write() -> None:
            told.append(await here.writer.write(keep("a"), durable=True))

        async with anyio.create_task_group() as group:
            group.start_soon(hold)
            await gate.reached()
            group.start_soon(write)
            await anyio.wait_all_tasks_blocked()
            here.writer.stop("the store is closed")
            with pytest.raises(StoreUnavailable, match="closed"):
                await here.writer.write(keep("b"), durable=True)
            gate.is_open.set()

    assert told == ["a"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_after_a_mistake_of_ours_nobody_waits_for_ever(tmp_path: Path) -> None:
    def mistaken(_: WriteTransaction) -> None:
        raise RuntimeError("a mistake")

    async with desk(tmp_path) as here:
        with pytest.raises(StoreUnavailable, match="restart"):
            await here.writer.write(mistaken, durable=True)
        with pytest.raises(StoreUnavailable, match="restart"):
            await here.writer.write(keep("a"), durable=True)


async def test_the_mark_follows_every_durable_commit(tmp_path: Path) -> None:
    def accepted(tx: WriteTransaction) -> None:
        tx.accepted = 41

    async with desk(tmp_path) as here:
        await here.writer.write(accepted, durable=True)
        first = here.mark.read()
        await here.writer.write(kept, durable=False)
        second = here.mark.read()
        await here.writer.write(kept, durable=True)

        assert (first, second, here.mark.read()) == (
            Progress(41, 1),
            Progress(41, 1),
            Progress(41, 2),
        )


# --- what nobody waits for ---------------------------------------------------------------------


def no_failure(error: Exception) -> None:
    raise AssertionError(error)


async def test_what_is_written_soon_goes_before_the_next_one_in_its_commit(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        here.writer.write_soon(keep("a"), no_failure)
        here.writer.write_soon(keep("b"), no_failure)
        names = await here.writer.write(kept, durable=True)

        assert (names, here.commits.done) == (["a", "b"], 1)


async def test_what_is_written_soon_is_written_although_nothing_follows(tmp_path: Path) -> None:
    written = threading.Event()

    def note(tx: WriteTransaction) -> None:
        written.set()

    async with desk(tmp_path) as here:
        here.writer.write_soon(note, no_failure)

        assert await to_thread.run_sync(written.wait, 5)


async def test_a_stopped_writer_has_written_what_was_to_be_written_soon(tmp_path: Path) -> None:
    refused: list[str] = []
    db, mark, commits = await to_thread.run_sync(prepare, tmp_path)
    writer = Writer(commits)
    writer.start()

    writer.write_soon(keep("a"), no_failure)
    writer.stop("the store is closed")
    writer.write_soon(keep("b"), lambda error: refused.append(str(error)))
    await to_thread.run_sync(writer.join)
    names = await to_thread.run_sync(lambda: kept(WriteTransaction(db)))
    await to_thread.run_sync(db.close)
    mark.close()

    assert (names, refused) == (["a"], ["the store is closed"])


async def test_who_is_not_waited_for_is_told_of_a_failure(tmp_path: Path) -> None:
    failures: list[Exception] = []
    async with desk(tmp_path) as here:
        here.writer.write_soon(Limit(1), no_failure)
        await here.writer.caught_up()
        here.writer.write_soon(keep("x", "z" * 100_000), failures.append)
        await here.writer.caught_up()  # what cannot be written is no reason not to read

        assert [type(error) for error in failures] == [StoreUnavailable]


async def test_who_catches_up_sees_what_was_to_be_written_soon(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        await here.writer.caught_up()
        nothing = here.commits.done
        here.writer.write_soon(keep("a"), no_failure)
        await here.writer.caught_up()

        assert (nothing, here.commits.done) == (0, 1)
