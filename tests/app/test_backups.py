"""What is restored is the store of one moment, elsewhere, complete; what was under way is held."""

import json
import sqlite3
import zipfile
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from gateway.app.backups import BackupMaker, restore, verify
from gateway.config.values import GatewayConfig, GatewaySettings
from gateway.domain.backups import ArchiveDamaged, BackupRefused
from gateway.domain.errors import Busy, DataDirInUse, StoreRefused, StoreUnavailable
from gateway.domain.events import AuditEvent
from gateway.store.opening import RESTORING, open_store
from tests.fakes.clock import FakeClock
from tests.fakes.lived import live, told
from tests.fakes.ports import PartOfAudit, PartOfStoreCare


def of(folder: Path) -> GatewayConfig:
    return GatewayConfig(gateway=GatewaySettings(data_dir=folder))


async def filled(folder: Path) -> Path:
    """An archive of a store in which much has happened."""
    async with open_store("embedded", folder / "data", clock=FakeClock()) as stores:
        await live(stores)
        maker = BackupMaker(stores, FakeClock(), anyio.Lock())
        made = await maker.create(of(folder / "data"), None, with_secrets=False, by="local")
        last = await stores.audit.newest(limit=1)
    assert last[0].kind == "backup.created"
    assert made.sha256 in last[0].detail
    return Path(made.file)


async def seen(folder: Path) -> dict[str, Any]:
    async with open_store("embedded", folder, clock=FakeClock()) as stores:
        return await told(stores)


async def put(file: Path, folder: Path, *, force: bool = False, dry_run: bool = False) -> Any:
    return await restore(file, folder, force=force, dry_run=dry_run, clock=FakeClock())


async def test_all_that_the_store_told_it_tells_elsewhere(tmp_path: Path) -> None:
    file = await filled(tmp_path)
    before = await seen(tmp_path / "data")

    checked = await to_thread.run_sync(verify, file)
    done = await put(file, tmp_path / "new")
    after = await seen(tmp_path / "new")

    assert (done.held, done.reserved, done.moved_to) == (1, 1, None)
    assert checked.manifest == done.backup.manifest
    assert before.pop("sending") == ["to-send"]
    assert after.pop("sending") == []  # it is not sent twice, but can be resubmitted
    assert [one.new.id for one in after.pop("letters")[0]] == ["to-wait"]  # it waited for that
    assert before.pop("letters") == [[]]
    # A slice of a budget that nobody uses is given back at the end; the archive has it whole.
    assert len(after.pop("unsettled")) == len(before.pop("unsettled")) == 1
    for here, there in zip(before.pop("tallies"), after.pop("tallies"), strict=True):
        assert (here.scope, here.used) == (there.scope, there.used)
        assert there.held.tokens >= here.held.tokens
    *entries, restored = after.pop("audit")
    assert [*entries] == before.pop("audit")[:-1]  # the last one tells of the archive
    assert restored.kind == "backup.restored"
    assert restored.follows(entries[-1])
    assert before == after


async def test_a_held_answer_is_a_dead_letter_that_says_why(tmp_path: Path) -> None:
    file = await filled(tmp_path)
    await put(file, tmp_path / "new")

    async with open_store("embedded", tmp_path / "new", clock=FakeClock()) as stores:
        (letter,) = await stores.outbox.dead_letters("chat", before=None, limit=9)

    assert (letter.new.id, letter.state) == ("to-send", "unknown")
    assert "when the backup was made" in str(letter.why)


async def test_archives_do_not_hold_each_other(tmp_path: Path) -> None:
    first = await filled(tmp_path)
    async with open_store("embedded", tmp_path / "data", clock=FakeClock()) as stores:
        maker = BackupMaker(stores, FakeClock(), anyio.Lock())
        second = await maker.create(of(tmp_path / "data"), None, with_secrets=False, by="local")

    assert [one.name for one in second.manifest.members] == ["store.db"]
    assert Path(second.file).parent == first.parent
    assert second.file != str(first)  # of the same second, by a clock that stands


async def test_when_the_last_one_was_made_is_known_also_after_a_start(tmp_path: Path) -> None:
    noted: list[datetime] = []
    await filled(tmp_path)
    async with open_store("embedded", tmp_path / "data", clock=FakeClock()) as stores:
        maker = BackupMaker(stores, FakeClock(), anyio.Lock(), noted.append)
        await maker.recall()
        await maker.create(of(tmp_path / "data"), None, with_secrets=False, by="local")

    assert noted == [FakeClock().now(), FakeClock().now()]


async def test_one_backup_is_made_at_a_time(tmp_path: Path) -> None:
    async with open_store("embedded", tmp_path / "data", clock=FakeClock()) as stores:
        turn = anyio.Lock()
        maker = BackupMaker(stores, FakeClock(), turn)
        async with turn:
            with pytest.raises(Busy, match="wait for it"):
                await maker.create(of(tmp_path / "data"), None, with_secrets=False, by="local")


class Stuck(PartOfStoreCare):
    """Leaves something behind that cannot be removed."""

    async def snapshot(self, into: Path, *, copies: int) -> None:
        await anyio.Path(into).mkdir()
        raise BackupRefused("there is no room")


async def test_what_cannot_be_removed_does_not_hide_why_no_copy_was_made(tmp_path: Path) -> None:
    async with open_store("embedded", tmp_path / "data", clock=FakeClock()) as stores:
        maker = BackupMaker(replace(stores, care=Stuck()), FakeClock(), anyio.Lock())
        with pytest.raises(BackupRefused, match="there is no room"):
            await maker.create(of(tmp_path / "data"), None, with_secrets=False, by="local")


class Full(PartOfAudit):
    async def append(self, _event: AuditEvent) -> None:
        raise StoreUnavailable("the disk is full")


async def test_an_archive_of_a_store_that_takes_no_more_is_said_to_be_whole(tmp_path: Path) -> None:
    async with open_store("embedded", tmp_path / "data", clock=FakeClock()) as stores:
        maker = BackupMaker(replace(stores, audit=Full()), FakeClock(), anyio.Lock())
        with pytest.raises(BackupRefused, match=r"is intact, .* record it: the disk is full"):
            await maker.create(of(tmp_path / "data"), tmp_path / "a.zip", with_secrets=False, by="")

    assert (await to_thread.run_sync(verify, tmp_path / "a.zip")).manifest.store.accepted == 0


async def test_a_directory_that_is_not_empty_is_moved_aside_only_when_told(tmp_path: Path) -> None:
    file = await filled(tmp_path)
    before = await to_thread.run_sync(lambda: sorted(p.name for p in (tmp_path / "data").iterdir()))

    with pytest.raises(BackupRefused, match=r"is not empty .*--force"):
        await put(file, tmp_path / "data")
    planned = await put(file, tmp_path / "data", force=True, dry_run=True)
    done = await put(file, tmp_path / "data", force=True)

    old = Path(done.moved_to)
    assert planned.moved_to == done.moved_to
    assert await to_thread.run_sync(lambda: sorted(p.name for p in old.iterdir())) == before
    assert (await seen(tmp_path / "data"))["values"] == "a value"


async def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    file = await filled(tmp_path)
    async with open_store("embedded", tmp_path / "data", clock=FakeClock()):
        with pytest.raises(DataDirInUse):
            await put(file, tmp_path / "data", force=True)
        with pytest.raises(DataDirInUse):
            await put(file, tmp_path / "data", force=True, dry_run=True)


async def test_what_is_only_tried_changes_nothing(tmp_path: Path) -> None:
    file = await filled(tmp_path)

    await put(file, tmp_path / "new", dry_run=True)

    assert not await anyio.Path(tmp_path / "new").exists()


async def test_a_restore_that_failed_leaves_nothing_beside(tmp_path: Path) -> None:
    file = await filled(tmp_path)
    content = await to_thread.run_sync(forged_store, file, "DELETE FROM node WHERE place % 2")
    await anyio.Path(file).write_bytes(content)

    with pytest.raises(ArchiveDamaged, match=r"table node has 1 rows instead of 2"):
        await put(file, tmp_path / "below" / "new")

    assert not await anyio.Path(tmp_path / "below").exists()
    await put(await filled(tmp_path / "more"), tmp_path / "new")


@pytest.mark.parametrize("name", ["new", f"new{RESTORING}"])
async def test_no_gateway_starts_on_what_a_killed_restore_left(tmp_path: Path, name: str) -> None:
    await anyio.Path(f"{tmp_path}/new{RESTORING}").mkdir()

    with pytest.raises(StoreRefused, match=r"was not finished: run `exogate backup restore` again"):
        async with open_store("embedded", tmp_path / name, clock=FakeClock()):
            pass


# --- archives that were made by hand ---------------------------------------------------------------
def forged_store(file: Path, change: str, **manifest: Any) -> bytes:
    """The archive with another store in it, and every digest right."""
    out = BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(out, "w") as new:
        copy = file.with_suffix(".db")
        copy.write_bytes(old.read("store.db"))
        with closing(sqlite3.connect(copy, isolation_level=None)) as db:
            for trigger in ("audit_is_not_changed", "audit_is_not_deleted"):
                db.execute(f"DROP TRIGGER {trigger}")
            db.executescript(change)
        content = copy.read_bytes()
        copy.unlink()
        described = json.loads(old.read("manifest.json")) | manifest
        described["members"] = [
            {"name": "store.db", "size": len(content), "sha256": sha256(content).hexdigest()}
        ]
        new.writestr("store.db", content)
        new.writestr("manifest.json", json.dumps(described))
        new.comment = bytes(32)
    made = out.getvalue()[:-32]
    return made + sha256(made).digest()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("DELETE FROM token_record", "table token_record has 0 rows instead of 1"),
        ("UPDATE audit SET detail = '{}' WHERE seq = 1", "entry 1 of the audit"),
        ("UPDATE audit SET hash = 'x' WHERE seq = 2", "the end of its audit differ"),
        ("UPDATE node SET id = 'x' || id", "have lost their source message"),
        ("UPDATE run SET id = id + 7 WHERE id = 3", "its counters"),
    ],
)
async def test_a_store_that_is_not_the_one_described_is_refused(
    tmp_path: Path, change: str, why: str
) -> None:
    file = await filled(tmp_path)
    content = await to_thread.run_sync(forged_store, file, change)
    await anyio.Path(file).write_bytes(content)

    with pytest.raises(ArchiveDamaged, match=why):
        await to_thread.run_sync(verify, file)


async def test_damage_inside_the_database_is_found(tmp_path: Path) -> None:
    file = await filled(tmp_path)
    damage = (
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 3 "
        "WHERE name = 'node_by_label'"
    )
    content = await to_thread.run_sync(forged_store, file, damage)
    await anyio.Path(file).write_bytes(content)

    with pytest.raises(StoreRefused, match="is damaged"):
        await to_thread.run_sync(verify, file)


async def test_an_archive_of_a_newer_program_is_refused_with_its_version(tmp_path: Path) -> None:
    file = await filled(tmp_path)
    for newer in ({"format": 2}, {"schema_version": 999}):
        changed = {"exogate": "7.8.9", **newer}
        content = await to_thread.run_sync(partial(forged_store, file, "", **changed))
        await anyio.Path(tmp_path / "newer.zip").write_bytes(content)
        with pytest.raises(BackupRefused, match=r"made by exogate 7\.8\.9 .*with that version"):
            await to_thread.run_sync(verify, tmp_path / "newer.zip")
