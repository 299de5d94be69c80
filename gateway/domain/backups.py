"""Backups: an archive of the store at one moment, with the files that the configuration names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath

from gateway.domain.errors import Conflict, GatewayError

FORMAT = 1
CONFIG = "config/"  # prefix of members from the folder of config.toml
OUTSIDE = "outside/"  # prefix of members from other folders
SECRETS = "secrets/"


class ArchiveDamaged(GatewayError):
    """The archive differs from what was written; nothing was restored from it."""

    code = "archive_damaged"


class BackupRefused(Conflict):
    """The backup cannot be made or restored there; existing files stay unchanged."""

    code = "backup_refused"


class CopyRefused(Conflict):
    """The store cannot be copied there, or the copy differs from the original."""

    code = "copy_refused"


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A copied table. The digest does not depend on the order of the rows or on the engine."""

    table: str
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoreContents:
    """The contents of a store at one moment. `audit_hash` is the hash of the last entry;
    `sourceless` counts claims whose source message is gone."""

    schema_version: int
    accepted: int
    commits: int
    audit_seq: int
    audit_hash: str
    sourceless: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One member of an archive; `path` is the original path of a file."""

    name: str
    size: int
    sha256: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class PinnedPlugin:
    """A plugin, whose file is not archived; `sha256` is None if the file could not be read."""

    name: str
    path: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class OmittedFile:
    """A file that is not in the archive, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The last member of an archive, which describes all others."""

    exogate: str  # the version that made it
    created_at: datetime
    node: str
    engine: str
    generation: int
    secrets: bool
    store: StoreContents
    members: Sequence[ArchiveMember]
    plugins: Sequence[PinnedPlugin] = ()
    left_out: Sequence[OmittedFile] = ()
    format: int = field(default=FORMAT)


@dataclass(frozen=True, slots=True)
class Backup:
    """A complete archive. `sha256` is the digest at the end of the file."""

    file: str
    sha256: str
    bytes: int
    manifest: Manifest


def is_safe_name(name: str) -> bool:
    """True if a member stays inside the folder that it is extracted to."""
    parts = PurePosixPath(name).parts
    plain = bool(parts) and "/".join(parts) == name and not name.startswith("/")
    return plain and ".." not in parts and "\\" not in name and name.isprintable()
