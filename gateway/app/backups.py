"""Backups: made of a store and of what the configuration names, looked through, and put back."""

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from hashlib import file_digest
from itertools import count
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from gateway.app.shared import open_stores
from gateway.config.document import without_secrets
from gateway.config.secrets import REFERENCE
from gateway.config.toml import CannotEdit
from gateway.config.values import GatewayConfig
from gateway.domain.agents import AgentDef
from gateway.domain.backups import (
    CONFIG,
    FORMAT,
    OUTSIDE,
    SECRETS,
    ArchiveDamaged,
    ArchiveMember,
    Backup,
    BackupRefused,
    Manifest,
    OmittedFile,
    PinnedPlugin,
    StoreContents,
    is_safe_name,
)
from gateway.domain.errors import Busy, DataDirInUse, StoreUnavailable
from gateway.domain.events import AuditEvent
from gateway.domain.ports import Clock, Stores
from gateway.domain.version import VERSION
from gateway.host.archive import (
    PART,
    ReadArchive,
    match_owner,
    new_archive,
    open_archive,
    sweep_parts,
    sync_file,
    sync_folder,
)
from gateway.store.inspection import check_copy, contents_of
from gateway.store.opening import LOCK, RESTORING, locked, make_private, read_owner
from gateway.store.sqlite import FILE, open_sqlite
from gateway.store.tables import VERSION as SCHEMA

USUAL_FOLDER = "backups"  # in the data directory, and left out of every archive
RESTORED = "restored"  # in it: what a backup holds besides the store
_LARGEST_TEXT = 4 << 20
_HELD = "its sending was under way when the backup was made: nobody knows whether it arrived"


# --- making one ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BackupMaker:
    """Makes archives of one store, one after the other; `note` hears when."""

    stores: Stores
    clock: Clock
    turn: anyio.Lock
    note: Callable[[datetime], None] = lambda at: None

    async def recall(self) -> None:
        """Notes the last one, whoever made it."""
        for entry in await self.stores.audit.newest(kind="backup.created", limit=1):
            self.note(entry.at)

    async def create(
        self,
        config: GatewayConfig,
        path: Path | None,
        *,
        with_secrets: bool,
        by: str,
        generation: int = 1,
    ) -> Backup:
        """Raises Busy, BackupRefused, StoreUnavailable."""
        if self.turn.locked():
            raise Busy("a backup is being made already: wait for it")
        async with self.turn:
            return await self._create(
                config, path, with_secrets=with_secrets, by=by, generation=generation
            )

    async def _create(
        self,
        config: GatewayConfig,
        path: Path | None,
        *,
        with_secrets: bool,
        by: str,
        generation: int,
    ) -> Backup:
        now = self.clock.now()
        target = await to_thread.run_sync(_target, config.gateway.data_dir, path, now)
        copy = _store_part(target)
        try:
            await self.stores.care.snapshot(copy, copies=2)
            engine = "surrealdb" if "://" in config.store.url else "embedded"
            told = Manifest(
                VERSION, now, platform.node(), engine, generation, with_secrets, _NOTHING, ()
            )
            made = await to_thread.run_sync(_write, target, copy, told, config)
        finally:
            with anyio.CancelScope(shield=True), suppress(OSError):  # it was never made
                await to_thread.run_sync(partial(copy.unlink, missing_ok=True))
        detail = {"file": made.file, "sha256": made.sha256, "bytes": made.bytes}
        facts = {**detail, "accepted": made.manifest.store.accepted, "secrets": with_secrets}
        try:
            await self.stores.audit.append(
                AuditEvent(self.clock.now(), "backup.created", by, facts)
            )
        except StoreUnavailable as error:  # as on a full disk: whoever makes room needs the archive
            why = f"{target} was made and is whole, and could not be noted in the audit: {error}"
            raise BackupRefused(why) from error
        self.note(now)
        return made


_NOTHING = StoreContents(0, 0, 0, 0, "", 0, {})


async def create_offline(
    config: GatewayConfig, path: Path | None, *, with_secrets: bool, clock: Clock
) -> Backup:
    """Without a gateway, under its lock. Raises DataDirInUse as well."""
    url, data_dir = config.store.url, config.gateway.data_dir
    if url == "memory" or (url == "embedded" and not (data_dir / FILE).exists()):
        raise BackupRefused(f"there is no store in {data_dir}: nothing to back up")
    async with open_stores(config, clock) as (stores, _):
        maker = BackupMaker(stores, clock, anyio.Lock())
        return await maker.create(config, path, with_secrets=with_secrets, by="local")


def _target(data_dir: Path, path: Path | None, now: datetime) -> Path:
    """The file to be made; what it is in is there already."""
    data_dir = data_dir.resolve()
    if path is not None:
        found = data_dir / path
        with _faults(found):
            if os.path.lexists(found):
                raise BackupRefused(f"{found} is there already: name another file, or move it away")
            if not found.parent.is_dir():
                raise BackupRefused(f"there is no folder {found.parent}: make it first")
            with suppress(FileNotFoundError):
                _store_part(found).lstat()  # a name that is too long
        return found
    folder = data_dir / USUAL_FOLDER
    make_private(folder)
    match_owner(data_dir, folder)
    sweep_parts(folder)
    return next(_unused(folder / _stamp(now), ".zip"))


def _store_part(target: Path) -> Path:
    return target.with_name(f"{target.name}.store{PART}")


def _stamp(now: datetime) -> str:
    return f"{now:%Y-%m-%dT%H%M%SZ}"


def _unused(path: Path, suffix: str = "") -> Iterator[Path]:
    """Names that nothing has yet."""
    for number in count(1):
        name = path.with_name(f"{path.name}{f'-{number}' if number > 1 else ''}{suffix}")
        if not os.path.lexists(name):
            yield name


def _write(target: Path, copy: Path, told: Manifest, config: GatewayConfig) -> Backup:
    contents = contents_of(copy)
    left_out: list[OmittedFile] = []
    with _faults(target), new_archive(target) as archive:
        archive.add_file(FILE, copy)
        for name, path, content in _texts(config, left_out, with_secrets=told.secrets):
            archive.add_bytes(name, content, str(path))
        manifest = replace(
            told,
            store=contents,
            members=tuple(archive.members),
            plugins=tuple(_plugins(config)),
            left_out=tuple(left_out),
        )
        digest = archive.finish(_as_json(manifest))
    data_dir = config.gateway.data_dir.resolve()
    if target.is_relative_to(data_dir):
        match_owner(data_dir, target)
    return Backup(str(target), digest, target.stat().st_size, manifest)


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """A file that cannot be written or read raises BackupRefused."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise BackupRefused(f"{where} cannot be used: {error.strerror or error}") from error


def _as_json(manifest: Manifest) -> Mapping[str, Any]:
    """What the store holds stands beside the rest."""
    told = asdict(manifest)
    store = told.pop("store")
    audit = {"seq": store.pop("audit_seq"), "hash": store.pop("audit_hash")}
    members = [{name: one for name, one in row.items() if one} for row in told.pop("members")]
    return {**told, **store, "audit": audit, "members": members}


def _texts(
    config: GatewayConfig, left_out: list[OmittedFile], *, with_secrets: bool
) -> Iterator[tuple[str, Path, bytes]]:
    """The configuration and what it names: the name of the member, where it lies, and its bytes."""
    secrets = dict[str, Path]()
    for name, path in _members(config).items():
        content = _read(name, path, left_out)
        if content is not None and path.suffix == ".toml":
            secrets |= _secret_files(content, config.secret_folders)
            content = content if with_secrets else _without_secrets(path, content, left_out)
        if content is not None:
            yield name, path, content
    if with_secrets:
        read = ((name, path, _read(name, path, left_out)) for name, path in secrets.items())
        yield from ((name, path, content) for name, path, content in read if content is not None)


def _members(config: GatewayConfig) -> dict[str, Path]:
    """Where each member lies."""
    if config.origin is None:
        return {}
    origin = config.origin.absolute()
    found = {f"{CONFIG}config.toml": origin}
    for path in _named(config):
        is_beside = path.is_relative_to(origin.parent)
        place = path.relative_to(origin.parent) if is_beside else str(path).lstrip("/")
        found.setdefault(f"{CONFIG if is_beside else OUTSIDE}{place}", path)
    return found


def _read(name: str, path: Path, left_out: list[OmittedFile]) -> bytes | None:
    why = "" if is_safe_name(name) else "its name cannot stand in an archive"
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_TEXT + 1)
        why = why or ("it is too large for a text" if len(content) > _LARGEST_TEXT else "")
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        left_out.append(OmittedFile(str(path), why))
    return None if why else content


def _without_secrets(path: Path, content: bytes, left_out: list[OmittedFile]) -> bytes | None:
    try:
        return without_secrets(content.decode()).encode()
    except (ValueError, CannotEdit) as error:
        left_out.append(
            OmittedFile(str(path), f"its secrets cannot be told from the rest: {error}")
        )
        return None


def _secret_files(content: bytes, folders: Sequence[Path]) -> dict[str, Path]:
    """The files that references name, each with the name of its member."""
    found = REFERENCE.finditer(content.decode(errors="replace"))
    places = {one[2]: [folder / one[2] for folder in folders] for one in found if one[1] == "file"}
    return {
        f"{SECRETS}{name.strip('/')}": next(filter(Path.is_file, paths), paths[-1])
        for name, paths in places.items()
    }


def _named(config: GatewayConfig) -> Iterator[Path]:
    """Souls, templates, trees and rules that are the operator's own."""
    for one in config.agents:
        agent: AgentDef | None = one
        while agent is not None:
            tree = agent.tree if agent.tree.endswith(".bt") else None
            yield from (Path(one) for one in (agent.soul_path, agent.prompt_template, tree) if one)
            agent = agent.fallback
    yield from (Path(one.prompt_path) for one in config.subagents if one.prompt_path)
    if config.rule_folder is not None:
        yield from sorted(config.rule_folder.path.glob("*.toml"))


def _plugins(config: GatewayConfig) -> Iterator[PinnedPlugin]:
    for one in config.plugins:
        digest = None
        with suppress(OSError), Path(one.path).open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        yield PinnedPlugin(one.name, str(one.path), digest)


# --- looking through one -------------------------------------------------------------------------
def verify(path: Path) -> Backup:
    """Raises ArchiveDamaged for one that is not whole, BackupRefused for one that cannot be used here."""
    with open_archive(path) as archive:
        manifest = _manifest(archive, path)
        for member in manifest.members:
            if member.name != FILE:
                archive.check(member)
        with tempfile.TemporaryDirectory(prefix="exogate-") as folder:
            _take_store(archive, manifest, Path(folder))
        return Backup(str(path), archive.sha256, archive.size, manifest)


def _manifest(archive: ReadArchive, path: Path) -> Manifest:
    """Raises BackupRefused if only a newer program knows what it says."""
    told = archive.manifest
    try:
        form, made_by = int(told["format"]), str(told["exogate"])
        version = int(told["schema_version"])
        if form > FORMAT or version > SCHEMA:
            raise BackupRefused(
                f"{path} was made by exogate {made_by[:40]} (schema version {version}), and this is "
                f"{VERSION} (up to {SCHEMA}): restore it with that version, or with a newer one"
            )
        audit = told["audit"]
        store = StoreContents(
            schema_version=version,
            accepted=int(told["accepted"]),
            commits=int(told["commits"]),
            audit_seq=int(audit["seq"]),
            audit_hash=str(audit["hash"]),
            sourceless=int(told["sourceless"]),
            counts={str(name): int(rows) for name, rows in told["counts"].items()},
        )
        return Manifest(
            made_by,
            datetime.fromisoformat(told["created_at"]),
            str(told["node"]),
            str(told["engine"]),
            int(told["generation"]),
            bool(told["secrets"]),
            store,
            _with_store(archive.members),
            [PinnedPlugin(one["name"], one["path"], one["sha256"]) for one in told["plugins"]],
            [OmittedFile(one["path"], one["why"]) for one in told["left_out"]],
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ArchiveDamaged(
            f"{path} does not describe itself ({error!r}): do not use it"
        ) from error


def _with_store(members: Any) -> tuple[ArchiveMember, ...]:
    if [one.name for one in members].count(FILE) != 1:
        raise ValueError("it holds no store")
    return tuple(members)


def _take_store(archive: ReadArchive, manifest: Manifest, folder: Path) -> None:
    """Into an empty folder, and looks it over there."""
    member = next(one for one in manifest.members if one.name == FILE)
    with _faults(folder):
        free = shutil.disk_usage(folder).free
        if free < member.size:
            raise BackupRefused(
                f"to look at the store takes {member.size:,} bytes, and {folder} has {free:,} left: "
                "free some space"
            )
        archive.extract(member, folder / FILE)
    check_copy(folder / FILE, manifest.store)


# --- putting one back ----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Restored:
    """`moved_to`: where the old data directory is now. What was `sending` is held; what is `reserved`
    counts as spent at the next start."""

    backup: Backup
    data_dir: str
    moved_to: str | None
    held: int
    reserved: int


async def restore(
    path: Path, data_dir: Path, *, force: bool, dry_run: bool, clock: Clock
) -> Restored:
    """Builds it beside the data directory, which it becomes at the very end. Raises DataDirInUse, and what
    `verify` raises; nothing is changed then."""
    folder = await to_thread.run_sync(data_dir.resolve)
    aside = _unused(folder.with_name(f"{folder.name}.before-{_stamp(clock.now())}"))
    moved_to = await to_thread.run_sync(next, aside)
    if dry_run:
        if (owner := await to_thread.run_sync(read_owner, folder)) is not None:
            raise DataDirInUse(str(folder), f"process {owner.pid}")
        is_there = await to_thread.run_sync(partial(_may_replace, folder, force=force))
        found = await to_thread.run_sync(verify, path)
        return _restored(found, folder, moved_to if is_there else None, 0)
    with ExitStack() as held:
        building, made = folder.with_name(folder.name + RESTORING), list[Path]()
        async with AsyncExitStack() as undo:
            undo.push_async_callback(_undo, lambda: _remove(made))
            is_there = await to_thread.run_sync(partial(_take, folder, held, made, force=force))
            undo.push_async_callback(_undo, partial(shutil.rmtree, building, ignore_errors=True))
            found = await to_thread.run_sync(_build, path, building, held)
            sending = await _settled(building, found, clock)
            await to_thread.run_sync(_put, building, folder, moved_to if is_there else None)
            undo.pop_all()
    return _restored(found, folder, moved_to if is_there else None, sending)


async def _undo(step: Callable[[], object]) -> None:
    """Takes back what was restored in part: a gateway would not start beside it."""
    with anyio.CancelScope(shield=True):
        await to_thread.run_sync(step)


def _remove(made: Sequence[Path]) -> None:
    for one in made:
        with suppress(OSError):
            one.rmdir() if one.is_dir() else one.unlink()


def _restored(found: Backup, folder: Path, moved_to: Path | None, sending: int) -> Restored:
    reserved = found.manifest.store.counts.get("reservation", 0)
    return Restored(found, str(folder), str(moved_to) if moved_to else None, sending, reserved)


def _may_replace(folder: Path, *, force: bool) -> bool:
    """Whether there is something to be moved aside. Raises BackupRefused."""
    if folder.is_mount():
        raise BackupRefused(
            f"{folder} is a mount point, which cannot be replaced: restore into a folder in it, with "
            "--data-dir, and name that as [gateway] data_dir"
        )
    there = sorted(one.name for one in folder.iterdir()) if folder.exists() else []
    inside = [one for one in there if one != LOCK]
    if inside and not force:
        shown = ", ".join(inside[:5])
        raise BackupRefused(
            f"{folder} is not empty ({shown}): name another with --data-dir, or add --force, which "
            "moves it aside and deletes nothing"
        )
    return bool(inside)


def _take(folder: Path, held: ExitStack, made: list[Path], *, force: bool) -> bool:
    """Locks the folder; `made` gets what was not there, the innermost first."""
    missing = [one for one in (folder / LOCK, folder, *folder.parents) if not one.exists()]
    make_private(folder)
    held.enter_context(locked(folder))
    made += missing
    return _may_replace(folder, force=force)


def _build(path: Path, building: Path, held: ExitStack) -> Backup:
    """The new data directory, complete but for what is settled in it."""
    with _faults(building), open_archive(path) as archive:
        manifest = _manifest(archive, path)
        if building.exists():  # of a restore that was killed
            shutil.rmtree(building)
        make_private(building)
        sync_folder(building.parent)
        held.enter_context(locked(building))
        _take_store(archive, manifest, building)
        for member in manifest.members:
            if member.name != FILE:
                archive.extract(member, building / RESTORED / member.name.removeprefix(CONFIG))
        return Backup(str(path), archive.sha256, archive.size, manifest)


async def _settled(building: Path, found: Backup, clock: Clock) -> int:
    """Opens the store, which makes its mark and brings it up to date, and holds what must not be done twice."""
    async with open_sqlite(building, clock=clock) as stores:
        sending = await stores.outbox.interrupted()
        for one in sending:
            await stores.outbox.settle(one.new.id, "unknown", at=clock.now(), why=_HELD)
        detail = {
            "sha256": found.sha256,
            "made_at": found.manifest.created_at.isoformat(),
            "held": len(sending),
        }
        await stores.audit.append(AuditEvent(clock.now(), "backup.restored", "local", detail))
        await stores.care.probe()
    return len(sending)


def _put(building: Path, folder: Path, moved_to: Path | None) -> None:
    with _faults(folder):
        for below, _, files in os.walk(building):
            for name in files:
                sync_file(Path(below, name))
            match_owner(folder, Path(below), *(Path(below, name) for name in files))
            sync_folder(Path(below))
        if moved_to is not None:
            folder.rename(moved_to)
        else:
            (folder / LOCK).unlink()
        try:
            building.rename(folder)
        except OSError:
            if moved_to is not None:
                moved_to.rename(folder)
            raise
        sync_folder(folder.parent)
