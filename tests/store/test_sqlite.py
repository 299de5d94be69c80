"""The embedded store under kills, damage, full disks and failing ones."""

import os
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from gateway.domain.errors import GatewayError, StoreRefused, StoreUnavailable
from gateway.domain.ids import RunId
from gateway.store.tables import VERSION
from tests.fakes.store import an_ending, an_entry, session_key
from tests.store.crash import accepted, embedded, start

strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


async def filled(data_dir: Path, count: int) -> list[str]:
    """Accepts that many, finishes none; gives their run ids."""
    async with embedded(data_dir) as stores:
        for number in range(count):
            entry = an_entry(
                f"{number:03d}", session_key(f"p{number % 5}"), platform_id=f"{number}"
            )
            await stores.inbox.accept(entry, begin=False)
    return [f"run-{number:03d}" for number in range(count)]


async def outcome(data_dir: Path, *, accept_loss: bool = False) -> list[str] | GatewayError:
    try:
        return await accepted(data_dir, accept_loss=accept_loss)
    except GatewayError as error:
        return error


# --- kill -9 -----------------------------------------------------------------------------------


@pytest.mark.requirement("S-003-Session-09")
def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    data_dir, acknowledged = tmp_path / "data", set[str]()
    for life in range(3):
        process = start(str(data_dir), f"life{life}", "16", "100000")
        assert process.stdout is not None
        for _ in range(120):
            acknowledged.add(process.stdout.readline().strip())
        process.kill()
        acknowledged.update(line.strip() for line in process.stdout if line.endswith("\n"))
        process.stdout.close()
        process.wait(5)
    acknowledged.remove("open")

    kept = anyio.run(accepted, data_dir)

    assert len(acknowledged) > 300
    assert acknowledged <= set(kept)
    assert max(Counter(kept).values()) == 1


# --- damage ------------------------------------------------------------------------------------


def flipped(source: Path, target: Path, name: str, offset: int) -> Path:
    shutil.copytree(source, target)
    file = target / name
    content = bytearray(file.read_bytes())
    content[offset] ^= 0x10
    file.write_bytes(content)
    return target


async def snapshot(tmp_path: Path) -> tuple[Path, list[str]]:
    """A copy of all files just after the last acknowledgement: as a kill would leave them."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    names = await filled(live, 20)
    async with embedded(live) as stores:
        for number in range(20, 40):
            await stores.inbox.accept(an_entry(f"{number:03d}"), begin=False)
            names.append(f"run-{number:03d}")
        await anyio.to_thread.run_sync(shutil.copytree, live, copy)
    return copy, names


@pytest.mark.parametrize("name", ["store.db", "store.db-wal", "store.mark"])
def test_a_flipped_bit_is_refused_or_harms_no_accepted_message(tmp_path: Path, name: str) -> None:
    copy, names = anyio.run(snapshot, tmp_path)
    size = (copy / name).stat().st_size
    offsets = sorted({*range(0, min(size, 100), 9), *range(0, size, max(1, size // 40)), size - 1})
    refused = 0
    for offset in offsets:
        damaged = flipped(copy, tmp_path / f"at{offset}", name, offset)
        found = anyio.run(outcome, damaged)
        if isinstance(found, StoreRefused):
            refused += 1
            assert str(damaged) in str(found)
        else:
            assert found == names, f"lost silently: {name} at {offset}"
        shutil.rmtree(damaged)

    assert refused


def test_an_id_that_changed_in_one_place_only_is_noticed(tmp_path: Path) -> None:
    names = anyio.run(filled, tmp_path / "data", 20)
    content = (tmp_path / "data" / "store.db").read_bytes()
    places = [place for place in range(len(content)) if content.startswith(b"run-007", place)]
    found = []
    for place in places:
        damaged = flipped(tmp_path / "data", tmp_path / f"at{place}", "store.db", place + 6)
        found.append(anyio.run(outcome, damaged))

    assert len(found) >= 2  # in the table and in its index
    assert names[7] == "run-007"
    assert all(isinstance(one, StoreRefused) for one in found)


def test_a_log_that_lost_its_end_is_refused_untouched_until_the_loss_is_accepted(
    tmp_path: Path,
) -> None:
    copy, names = anyio.run(snapshot, tmp_path)
    log = copy / "store.db-wal"
    content = log.read_bytes()
    log.write_bytes(content[: len(content) // 2])

    refused = anyio.run(outcome, copy)
    left = log.read_bytes()
    kept = anyio.run(lambda: outcome(copy, accept_loss=True))
    afterwards = anyio.run(outcome, copy)

    assert isinstance(refused, StoreRefused)
    assert left == content[: len(content) // 2]
    assert isinstance(kept, list)
    assert names[:20] == kept[:20]
    assert len(kept) < 40
    assert f"lacks {40 - len(kept)} accepted messages" in str(refused)
    assert afterwards == kept


async def test_a_lost_ending_is_noticed_too(tmp_path: Path) -> None:
    live, copy = tmp_path / "live", tmp_path / "copy"
    async with embedded(live) as stores:
        await stores.inbox.accept(an_entry("a"), begin=True)
        before = await anyio.Path(live / "store.db-wal").read_bytes()
        await stores.inbox.finish(an_ending("a"))
        await anyio.to_thread.run_sync(shutil.copytree, live, copy)
    await anyio.Path(copy / "store.db-wal").write_bytes(before)

    with pytest.raises(StoreRefused, match="lacks 0 accepted messages and 1 commits"):
        await accepted(copy)


@pytest.mark.parametrize("kept", [0, 1, 50, 4096, 5000, 20_000])
def test_a_truncated_database_is_refused(tmp_path: Path, kept: int) -> None:
    anyio.run(filled, tmp_path / "data", 60)
    file = tmp_path / "data" / "store.db"
    whole = file.read_bytes()
    file.write_bytes(whole[:kept])

    found = anyio.run(outcome, tmp_path / "data")

    assert len(whole) > 20_000
    assert isinstance(found, StoreRefused)
    assert file.read_bytes() == whole[:kept]


def test_a_database_that_is_gone_is_missed(tmp_path: Path) -> None:
    anyio.run(filled, tmp_path / "data", 3)
    (tmp_path / "data" / "store.db").unlink()

    found = anyio.run(outcome, tmp_path / "data")

    assert isinstance(found, StoreRefused)
    assert "lacks 3 accepted messages" in str(found)
    assert "--accept-loss" in str(found)


def changed(data_dir: Path, *statements: str) -> None:
    db = sqlite3.connect(data_dir / "store.db", isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("these are notes, not a database\n" * 200)

    found = anyio.run(outcome, tmp_path)

    assert isinstance(found, StoreRefused)
    assert "store.db is damaged" in str(found)
    assert "restore a backup" in str(found)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    anyio.run(filled, tmp_path, 1)
    changed(tmp_path, "DROP TABLE journal")

    found = anyio.run(outcome, tmp_path)

    assert isinstance(found, StoreRefused)
    assert "journal" in str(found)


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    changed(tmp_path, "CREATE TABLE notes (text)")

    found = anyio.run(outcome, tmp_path)

    assert isinstance(found, StoreRefused)
    assert "another program" in str(found)


def test_a_newer_schema_is_refused_naming_both_versions(tmp_path: Path) -> None:
    anyio.run(filled, tmp_path, 1)
    changed(tmp_path, f"PRAGMA user_version = {VERSION + 1}")

    found = anyio.run(outcome, tmp_path)

    assert isinstance(found, StoreRefused)
    assert f"version {VERSION + 1}" in str(found)
    assert f"up to {VERSION}" in str(found)


# --- what reaches the disk ---------------------------------------------------------------------


@strace
def test_every_accept_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    process = start(
        str(tmp_path / "data"),
        "x",
        "1",
        "10",
        under=("strace", "-f", "-y", "-o", str(trace), "-e", "trace=fdatasync,fsync,write"),
    )
    output, _ = process.communicate(timeout=30)

    lines = trace.read_text().splitlines()
    events = [event for line in lines if (event := _event(line))]
    after_open = events[events.index("open") + 1 :]
    assert output.count("run-x") == 10
    for number in range(10):
        here = after_open.index(f"run-x-0-{number}")
        assert "sync" in after_open[:here]
        after_open = after_open[here + 1 :]


def _event(line: str) -> str | None:
    if "sync(" in line and "store.db-wal" in line:
        return "sync"
    if "write(1<" in line and '"' in line:
        return line.split('"')[1].removesuffix("\\n")
    return None


@strace
def test_after_one_failed_sync_the_message_is_refused_and_work_goes_on(tmp_path: Path) -> None:
    output, trace = _with_failing_syncs(tmp_path, "25")
    refused = [line for line in output if line.startswith("refused")]
    acknowledged = [line for line in output if line.startswith("run-")]

    kept = anyio.run(accepted, tmp_path / "data")

    assert len(refused) == 1
    assert "check the disk" in refused[0]
    assert len(acknowledged) == 39
    assert set(acknowledged) <= set(kept)
    # What the log held was synced into the database before anybody was acknowledged again.
    failed = next(number for number, line in enumerate(trace) if "INJECTED" in line)
    following = [_target(line) for line in trace[failed + 1 :]]
    assert following.index("store.db") < following.index("stdout")


@strace
def test_after_three_failed_syncs_in_a_row_nothing_is_accepted(tmp_path: Path) -> None:
    output, _ = _with_failing_syncs(tmp_path, "25+")
    acknowledged = [line for line in output if line.startswith("run-")]

    kept = anyio.run(accepted, tmp_path / "data")

    assert 10 < len(acknowledged) < 25
    assert "restart" in output[-1]
    assert set(acknowledged) <= set(kept)


def _with_failing_syncs(tmp_path: Path, when: str) -> tuple[list[str], list[str]]:
    """What the program said, and what it synced and said in which order."""
    trace = tmp_path / "trace"
    inject = f"inject=fdatasync:error=EIO:when={when}"
    watch = ("-e", "trace=fdatasync,write", "-e", inject)
    under = ("strace", "-f", "-qq", "-y", "-o", str(trace), *watch)
    process = start(str(tmp_path / "data"), "x", "1", "40", under=under)
    output = process.communicate(timeout=30)[0].splitlines()
    return output, trace.read_text().splitlines()


def _target(line: str) -> str:
    if "fdatasync(" in line and "store.db>" in line:
        return "store.db"
    return "stdout" if '"run-' in line else ""


# --- no room, no right -------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


async def fill(data_dir: Path) -> list[str]:
    """Until the disk is full, and once more when there is room again."""
    names: list[str] = []

    async def accept(name: str) -> None:
        await stores.inbox.accept(an_entry(name, content="x" * 9000), begin=False)
        names.append(f"run-{name}")

    async def accept_all() -> None:
        for number in range(200):
            await accept(str(number))

    async with embedded(data_dir) as stores:
        with pytest.raises(StoreUnavailable, match="full: free some space"):
            await accept_all()
        assert len(await stores.inbox.unfinished()) == len(names)
        assert await stores.inbox.find_run(RunId("run-0")) is not None
        with pytest.raises(StoreUnavailable):
            await accept("again")
        await anyio.to_thread.run_sync((data_dir.parent / "ballast").unlink)
        await accept("room")
    return names


def test_on_a_full_disk_nothing_is_acknowledged_and_everything_readable(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 300_000)

    names = anyio.run(fill, small_disk / "data")

    assert len(names) > 5
    assert anyio.run(outcome, small_disk / "data") == names


def test_a_start_on_a_full_disk_says_so_and_harms_nothing(small_disk: Path) -> None:
    names = anyio.run(filled, small_disk / "data", 5)
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * free.f_bavail * free.f_frsize)

    full = anyio.run(outcome, small_disk / "data")
    (small_disk / "ballast").unlink()

    assert isinstance(full, StoreUnavailable)
    assert "full: free some space" in str(full)
    assert anyio.run(outcome, small_disk / "data") == names


def test_a_read_only_disk_says_so(small_disk: Path) -> None:
    anyio.run(filled, small_disk / "data", 5)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    found = anyio.run(outcome, small_disk / "data")

    assert isinstance(found, StoreUnavailable)
    assert "read-only" in str(found)
