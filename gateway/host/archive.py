"""Archives: a ZIP of uncompressed members. The last member is a manifest of all others; the file ends in the SHA-256
of all bytes before it."""

import contextlib
import errno
import fcntl
import os
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from gateway.codec import decode, encode
from gateway.domain.backups import ArchiveDamaged, ArchiveMember, BackupRefused, is_safe_name
from gateway.domain.errors import Busy

PART = ".part"  # suffix of an unfinished archive
_MANIFEST = "manifest.json"
_DIGEST_BYTES = 32
_CHUNK = 1 << 20
_SYNC_BYTES = 8 << 20  # unsynced bytes at most: commits of the store wait for them
_LARGEST_MANIFEST = 16 << 20
_END = struct.Struct("<4s4H2LH")  # the last record of a ZIP, before its comment, the digest
_END_MARK = b"PK\5\6"
_MADE = (1980, 1, 1, 0, 0, 0)  # a constant; the manifest has the time
_BROKEN = (
    *(zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, TypeError, LookupError, OverflowError, struct.error),
)
_AGAIN = "copy it again from its origin, or use an older archive"


# -- writing


class ArchiveWriter:
    """Writes members to an archive, syncing to the disk as it goes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._synced = file, 0
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
        self.members: list[ArchiveMember] = []

    def add_file(self, name: str, source: Path) -> None:
        with source.open("rb") as opened:
            self._add(name, iter(lambda: opened.read(_CHUNK), b""), None)

    def add_bytes(self, name: str, content: bytes, path: str | None = None) -> None:
        self._add(name, iter((content,)), path)

    def finish(self, manifest: Mapping[str, Any]) -> str:
        """Writes the manifest and the digest, and returns the digest."""
        self._write(_MANIFEST, iter((encode(manifest),)))
        self._zip.comment = bytes(_DIGEST_BYTES)
        self._zip.close()
        self._file.flush()
        end = self._file.seek(0, os.SEEK_END) - _DIGEST_BYTES
        digest = _digest_of(self._file, end)
        self._file.seek(end)
        self._file.write(digest)
        self._file.flush()
        os.fsync(self._file.fileno())
        return digest.hex()

    def abandon(self) -> None:
        """Closes an archive that will be deleted."""
        with contextlib.suppress(OSError, ValueError):
            self._zip.close()

    def _add(self, name: str, chunks: Iterator[bytes], path: str | None) -> None:
        size, digest = self._write(name, chunks)
        self.members.append(ArchiveMember(name, size, digest, path))

    def _write(self, name: str, chunks: Iterator[bytes]) -> tuple[int, str]:
        size, digest = 0, sha256()
        info = zipfile.ZipInfo(name, _MADE)
        info.external_attr = 0o600 << 16
        with self._zip.open(info, "w", force_zip64=True) as member:
            for chunk in chunks:
                member.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                if size - self._synced >= _SYNC_BYTES:
                    self._file.flush()
                    os.fdatasync(self._file.fileno())
                    self._synced = size
        self._synced = 0
        return size, digest.hexdigest()


@contextlib.contextmanager
def new_archive(path: Path) -> Iterator[ArchiveWriter]:
    """Writes an archive, which gets its name once it is complete. Raises BackupRefused, Busy, OSError."""
    part = path.with_name(path.name + PART)
    _require_new(path)
    with _lock(part) as file, contextlib.ExitStack() as undo:
        undo.callback(part.unlink, missing_ok=True)
        os.ftruncate(file.fileno(), 0)
        archive = ArchiveWriter(file)
        undo.callback(archive.abandon)
        yield archive
        _require_new(path)
        part.rename(path)
        undo.pop_all()
    sync_folder(path.parent)


@contextlib.contextmanager
def _lock(part: Path) -> Iterator[IO[bytes]]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, 0o600), "w+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another backup is being written to {part}") from None
        yield file


def _require_new(path: Path) -> None:
    if os.path.lexists(path):
        raise BackupRefused(f"{path} already exists: name another file, or move it away")


def match_owner(folder: Path, *made: Path) -> None:
    """Gives files that root made to the owner of their folder, because a service does not run as root."""
    if os.geteuid() == 0:
        owner = folder.stat()
        for one in made:
            os.chown(one, owner.st_uid, owner.st_gid, follow_symlinks=False)


def sync_folder(folder: Path) -> None:
    """Syncs the names in a folder to the disk."""
    sync_file(folder, os.O_DIRECTORY)


def sync_file(path: Path, flags: int = 0) -> None:
    opened = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def sweep_parts(folder: Path) -> None:
    """Removes unfinished archives that killed backups left."""
    for part in folder.glob(f"*{PART}*"):
        with contextlib.suppress(OSError, Busy), _lock(part):
            part.unlink()


# -- reading


@dataclass(frozen=True, slots=True)
class ReadArchive:
    """An archive whose bytes match its digest."""

    sha256: str
    size: int
    manifest: Mapping[str, Any]
    members: Sequence[ArchiveMember]
    path: Path
    _zip: zipfile.ZipFile

    def extract(self, member: ArchiveMember, into: Path) -> None:
        """Writes a member to a new file and syncs it. Raises ArchiveDamaged."""
        into.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(opened, "wb") as file:
            self._read(member, file.write)
            file.flush()
            os.fsync(file.fileno())

    def check(self, member: ArchiveMember) -> None:
        """Raises ArchiveDamaged if a member differs from its description."""
        self._read(member, lambda chunk: None)

    def _read(self, member: ArchiveMember, write: Callable[[bytes], object]) -> None:
        size, digest = 0, sha256()
        with _damage(self.path), self._zip.open(member.name) as opened:
            while chunk := opened.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                write(chunk)
        if (size, digest.hexdigest()) != (member.size, member.sha256):
            raise ArchiveDamaged(
                f"{member.name} in the archive differs from its description: {_AGAIN}"
            )


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[ReadArchive]:
    """Opens and checks an archive. Raises ArchiveDamaged, and BackupRefused if the file cannot be read."""
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(path.open("rb"))
        except OSError as error:
            why = f"{path} cannot be read ({error.strerror}): check its name and its mode"
            raise BackupRefused(why) from error
        with _damage(path):
            digest = _require_whole(file, path)
            inside = opened.enter_context(zipfile.ZipFile(file))
            archive = _read_manifest(inside, path, digest, file.seek(0, os.SEEK_END))
        yield archive


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Turns the errors of reading a damaged ZIP into ArchiveDamaged."""
    try:
        yield
    except (*_BROKEN, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # an offset before the start
            raise
        raise ArchiveDamaged(f"{path} is damaged ({error}): {_AGAIN}") from error


def _require_whole(file: IO[bytes], path: Path) -> str:
    """Returns the digest at the end of the file. Raises ArchiveDamaged if the bytes before it differ."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if file.read(4) != b"PK\3\4":
        raise ArchiveDamaged(f"{path} is not a backup of exogate: check the name of the file")
    end = size - _DIGEST_BYTES
    file.seek(max(0, end - _END.size))
    record = file.read(_END.size)
    digest = file.read()
    is_end = len(record) == _END.size and record.startswith(_END_MARK)
    if not is_end or _END.unpack(record)[-1] != _DIGEST_BYTES:
        raise ArchiveDamaged(
            f"{path} is truncated or extended (it has {size:,} bytes and does not end in a digest): "
            f"{_AGAIN}"
        )
    if _digest_of(file, end) != digest:
        raise ArchiveDamaged(f"{path} is damaged, its bytes do not match its digest: {_AGAIN}")
    return digest.hex()


def _digest_of(file: IO[bytes], end: int) -> bytes:
    file.seek(0)
    digest, left = sha256(), end
    while left > 0 and (chunk := file.read(min(_CHUNK, left))):
        digest.update(chunk)
        left -= len(chunk)
    return digest.digest()


def _read_manifest(inside: zipfile.ZipFile, path: Path, digest: str, size: int) -> ReadArchive:
    infos = inside.infolist()
    names = [one.filename for one in infos]
    if not all(map(_is_plain, infos)):
        raise ArchiveDamaged(f"{path} has a member that no backup has: do not use it")
    if names[-1:] != [_MANIFEST] or sum(one.file_size for one in infos) > size:
        raise ArchiveDamaged(f"{path} is not a backup of exogate: it has no manifest")
    with inside.open(_MANIFEST) as opened:
        manifest: Any = decode(opened.read(_LARGEST_MANIFEST))
    members = [_member(one) for one in manifest["members"]]
    if [*(one.name for one in members), _MANIFEST] != names or len({*names}) != len(names):
        raise ArchiveDamaged(f"{path} does not match its manifest: do not use it")
    return ReadArchive(digest, size, manifest, members, path, inside)


def _is_plain(one: zipfile.ZipInfo) -> bool:
    is_stored = one.compress_type == zipfile.ZIP_STORED and one.compress_size == one.file_size
    return is_stored and not one.flag_bits & 1 and is_safe_name(one.orig_filename)


def _member(entry: Any) -> ArchiveMember:
    found = ArchiveMember(entry["name"], entry["size"], entry["sha256"], entry.get("path"))
    if [type(one) for one in (found.name, found.size, found.sha256)] != [str, int, str]:
        raise ValueError("the manifest does not describe a member")
    return found
