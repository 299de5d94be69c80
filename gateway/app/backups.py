"""Backups of the store, the configuration and the files that it names: create, verify and restore."""

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

DEFAULT_FOLDER = "backups"  # in the data directory
RESTORED = "restored"  # in the data directory: the restored configuration and its files
_LARGEST_TEXT = 4 << 20
_HELD = "it was being sent when the backup was made; it may have arrived"


# --- create --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BackupMaker:
    """Makes archives of a store, one at a time. `note` is called with the time of each."""

    stores: Stores
    clock: Clock
    turn: anyio.Lock
    note: Callable[[datetime], None] = lambda at: None

    async def recall(self) -> None:
        """Notes the time of the last backup in the audit."""
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
            raise Busy("another backup is being made: wait for it")
        async with self.turn:
            now = self.clock.now()
            target = await to_thread.run_sync(_target, config.gateway.data_dir, path, now)
            copy = _store_part(target)
            try:
                await self.stores.care.snapshot(copy, copies=2)
                engine = "surrealdb" if "://" in config.store.url else "embedded"
                about = (VERSION, now, platform.node(), engine, generation, with_secrets)
                manifest = Manifest(*about, _EMPTY, ())
                made = await to_thread.run_sync(_write, target, copy, manifest, config)
            finally:
                with anyio.CancelScope(shield=True), suppress(OSError):
                    await to_thread.run_sync(partial(copy.unlink, missing_ok=True))
            detail = {"file": made.file, "sha256": made.sha256, "bytes": made.bytes}
            facts = {**detail, "accepted": made.manifest.store.accepted, "secrets": with_secrets}
            try:
                event = AuditEvent(self.clock.now(), "backup.created", by, facts)
                await self.stores.audit.append(event)
            except StoreUnavailable as error:  # on a full disk the operator needs the archive
                raise BackupRefused(
                    f"{target} is intact, but the audit could not record it: {error}"
                ) from error
            self.note(now)
            return made


_EMPTY = StoreContents(0, 0, 0, 0, "", 0, {})


async def create_offline(
    config: GatewayConfig, path: Path | None, *, with_secrets: bool, clock: Clock
) -> Backup:
    """Makes a backup without a gateway, under its lock. Raises what `create` raises, and DataDirInUse."""
    url, data_dir = config.store.url, config.gateway.data_dir
    if url == "memory" or (url == "embedded" and not (data_dir / FILE).exists()):
        raise BackupRefused(f"nothing to back up: there is no store in {data_dir}")
    async with open_stores(config, clock) as (stores, _):
        maker = BackupMaker(stores, clock, anyio.Lock())
        return await maker.create(config, path, with_secrets=with_secrets, by="local")


def _target(data_dir: Path, path: Path | None, now: datetime) -> Path:
    """Returns the path of a new archive, whose folder exists. Raises BackupRefused."""
    data_dir = data_dir.resolve()
    if path is not None:
        found = data_dir / path
        with _file_errors(found):
            if os.path.lexists(found):
                raise BackupRefused(f"{found} exists: give another file, or move it away")
            if not found.parent.is_dir():
                raise BackupRefused(f"there is no folder {found.parent}: create it first")
            with suppress(FileNotFoundError):
                _store_part(found).lstat()  # raises for a name that is too long
        return found
    folder = data_dir / DEFAULT_FOLDER
    make_private(folder)
    match_owner(data_dir, folder)
    sweep_parts(folder)
    return next(_unused(folder / _stamp(now), ".zip"))


def _store_part(target: Path) -> Path:
    return target.with_name(f"{target.name}.store{PART}")


def _stamp(now: datetime) -> str:
    return f"{now:%Y-%m-%dT%H%M%SZ}"


def _unused(path: Path, suffix: str = "") -> Iterator[Path]:
    """Yields free names."""
    for number in count(1):
        name = path.with_name(f"{path.name}{f'-{number}' if number > 1 else ''}{suffix}")
        if not os.path.lexists(name):
            yield name


def _write(target: Path, copy: Path, manifest: Manifest, config: GatewayConfig) -> Backup:
    contents = contents_of(copy)
    left_out: list[OmittedFile] = []
    with _file_errors(target), new_archive(target) as archive:
        archive.add_file(FILE, copy)
        for name, path, content in _texts(config, left_out, with_secrets=manifest.secrets):
            archive.add_bytes(name, content, str(path))
        manifest = replace(
            manifest,
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
def _file_errors(path: Path) -> Iterator[None]:
    """Turns OSError into BackupRefused."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise BackupRefused(f"{where} cannot be used: {error.strerror or error}") from error


def _as_json(manifest: Manifest) -> Mapping[str, Any]:
    """Returns manifest.json, in which the fields of the store stand beside the others."""
    fields = asdict(manifest)
    store = fields.pop("store")
    audit = {"seq": store.pop("audit_seq"), "hash": store.pop("audit_hash")}
    members = [{name: one for name, one in row.items() if one} for row in fields.pop("members")]
    return {**fields, **store, "audit": audit, "members": members}


def _texts(
    config: GatewayConfig, left_out: list[OmittedFile], *, with_secrets: bool
) -> Iterator[tuple[str, Path, bytes]]:
    """Yields the name, path and content of the configuration and of each file that it names."""
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
    """Maps the name of each member to its path."""
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
    """Reads a member. Returns None and notes the reason in `left_out` if that fails."""
    why = "" if is_safe_name(name) else "an archive cannot hold its name"
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
        left_out.append(OmittedFile(str(path), f"its secrets cannot be removed: {error}"))
        return None


def _secret_files(content: bytes, folders: Sequence[Path]) -> dict[str, Path]:
    """Maps the member names of the secret files that references name to their paths."""
    found = REFERENCE.finditer(content.decode(errors="replace"))
    places = {one[2]: [folder / one[2] for folder in folders] for one in found if one[1] == "file"}
    return {
        f"{SECRETS}{name.strip('/')}": next(filter(Path.is_file, paths), paths[-1])
        for name, paths in places.items()
    }


def _named(config: GatewayConfig) -> Iterator[Path]:
    """Yields the operator's own souls, templates, trees and rules."""
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


# --- verify --------------------------------------------------------------------------------------
def verify(path: Path) -> Backup:
    """Checks every byte. Raises ArchiveDamaged, and BackupRefused if this version cannot use the archive."""
    with open_archive(path) as archive:
        manifest = _manifest(archive, path)
        for member in manifest.members:
            if member.name != FILE:
                archive.check(member)
        with tempfile.TemporaryDirectory(prefix="exogate-") as folder:
            _extract_store(archive, manifest, Path(folder))
        return Backup(str(path), archive.sha256, archive.size, manifest)


def _manifest(archive: ReadArchive, path: Path) -> Manifest:
    """Parses the manifest. Raises ArchiveDamaged, and BackupRefused if only a newer version knows its format."""
    fields = archive.manifest
    try:
        form, made_by = int(fields["format"]), str(fields["exogate"])
        version = int(fields["schema_version"])
        if form > FORMAT or version > SCHEMA:
            raise BackupRefused(
                f"{path} was made by exogate {made_by[:40]} (schema version {version}); this is "
                f"{VERSION} (up to {SCHEMA}): restore it with that version or a newer one"
            )
        if [one.name for one in archive.members].count(FILE) != 1:
            raise ValueError("there is no store")
        audit = fields["audit"]
        store = StoreContents(
            schema_version=version,
            accepted=int(fields["accepted"]),
            commits=int(fields["commits"]),
            audit_seq=int(audit["seq"]),
            audit_hash=str(audit["hash"]),
            sourceless=int(fields["sourceless"]),
            counts={str(name): int(rows) for name, rows in fields["counts"].items()},
        )
        return Manifest(
            made_by,
            datetime.fromisoformat(fields["created_at"]),
            str(fields["node"]),
            str(fields["engine"]),
            int(fields["generation"]),
            bool(fields["secrets"]),
            store,
            tuple(archive.members),
            [PinnedPlugin(one["name"], one["path"], one["sha256"]) for one in fields["plugins"]],
            [OmittedFile(one["path"], one["why"]) for one in fields["left_out"]],
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ArchiveDamaged(f"{path} has a bad manifest ({error!r}): do not use it") from error


def _extract_store(archive: ReadArchive, manifest: Manifest, folder: Path) -> None:
    """Extracts the store into an empty folder and checks it there."""
    member = next(one for one in manifest.members if one.name == FILE)
    with _file_errors(folder):
        free = shutil.disk_usage(folder).free
        if free < member.size:
            raise BackupRefused(
                f"the check of the store needs {member.size:,} bytes, but {folder} has {free:,}: "
                "free some space"
            )
        archive.extract(member, folder / FILE)
    check_copy(folder / FILE, manifest.store)


# --- restore -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore. `moved_to`: the new path of the old data directory. `held`: answers that were being sent.
    `reserved`: reservations, which count as spent at the next start."""

    backup: Backup
    data_dir: str
    moved_to: str | None
    held: int
    reserved: int


async def restore(
    path: Path, data_dir: Path, *, force: bool, dry_run: bool, clock: Clock
) -> Restored:
    """Builds a new data directory beside the old one and renames it last. Raises DataDirInUse and what `verify` raises;
    an error changes nothing."""
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
            is_there = await to_thread.run_sync(partial(_lock, folder, held, made, force=force))
            undo.push_async_callback(_undo, partial(shutil.rmtree, building, ignore_errors=True))
            found = await to_thread.run_sync(_build, path, building, held)
            sending = await _hold_sending(building, found, clock)
            await to_thread.run_sync(_replace, building, folder, moved_to if is_there else None)
            undo.pop_all()
    return _restored(found, folder, moved_to if is_there else None, sending)


async def _undo(step: Callable[[], object]) -> None:
    """Runs a step of clean-up: a gateway does not start beside a partial restore."""
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
    """True if there are files to be moved aside. Raises BackupRefused."""
    if folder.is_mount():
        raise BackupRefused(
            f"{folder} is a mount point and cannot be replaced: restore into a folder in it with "
            "--data-dir, and set [gateway] data_dir to that"
        )
    there = sorted(one.name for one in folder.iterdir()) if folder.exists() else []
    inside = [one for one in there if one != LOCK]
    if inside and not force:
        shown = ", ".join(inside[:5])
        raise BackupRefused(
            f"{folder} is not empty ({shown}): give another --data-dir, or add --force, which moves "
            "it aside and deletes nothing"
        )
    return bool(inside)


def _lock(folder: Path, held: ExitStack, made: list[Path], *, force: bool) -> bool:
    """Locks the folder. Adds the paths that it creates to `made`, the innermost first. Returns `_may_replace`."""
    missing = [one for one in (folder / LOCK, folder, *folder.parents) if not one.exists()]
    make_private(folder)
    held.enter_context(locked(folder))
    made += missing
    return _may_replace(folder, force=force)


def _build(path: Path, building: Path, held: ExitStack) -> Backup:
    """Extracts an archive as a new data directory."""
    with _file_errors(building), open_archive(path) as archive:
        manifest = _manifest(archive, path)
        if building.exists():  # left by a restore that was killed
            shutil.rmtree(building)
        make_private(building)
        sync_folder(building.parent)
        held.enter_context(locked(building))
        _extract_store(archive, manifest, building)
        for member in manifest.members:
            if member.name != FILE:
                archive.extract(member, building / RESTORED / member.name.removeprefix(CONFIG))
        return Backup(str(path), archive.sha256, archive.size, manifest)


async def _hold_sending(building: Path, found: Backup, clock: Clock) -> int:
    """Opens the store, which upgrades it, and holds the answers that were being sent. Returns their number."""
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


def _replace(building: Path, folder: Path, moved_to: Path | None) -> None:
    with _file_errors(folder):
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
