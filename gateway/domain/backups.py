"""What a backup is: one archive of the store at one moment, with what the configuration names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath

from gateway.domain.errors import Conflict, GatewayError

FORMAT = 1
CONFIG = "config/"  # before the names of members that lie in the folder of config.toml, or below
OUTSIDE = "outside/"  # before the paths of those that lie elsewhere
SECRETS = "secrets/"


class ArchiveDamaged(GatewayError):
    """It is not what was once written: nothing was taken from it."""

    code = "archive_damaged"


class BackupRefused(Conflict):
    """It cannot be made or restored there; what is there stays as it is."""

    code = "backup_refused"


class CopyRefused(Conflict):
    """A store cannot be copied there, or did not arrive as it is."""

    code = "copy_refused"


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """The digest is of its rows in any order, the same on each engine."""

    table: str
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoreContents:
    """What the tables of a store hold at one moment. `audit_hash` is that of the last entry; `sourceless`
    are claims of facts whose message is gone."""

    schema_version: int
    accepted: int
    commits: int
    audit_seq: int
    audit_hash: str
    sourceless: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """`path`: where it lay, of what was a file."""

    name: str
    size: int
    sha256: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class PinnedPlugin:
    """A plugin's file is not in the archive; `sha256` is missing if it could not be read."""

    name: str
    path: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class OmittedFile:
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The last member, which describes all others."""

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
    """An archive that is whole. `sha256` is the digest that the file ends in."""

    file: str
    sha256: str
    bytes: int
    manifest: Manifest


def is_safe_name(name: str) -> bool:
    """Whether a member stays below the folder that it is taken out to."""
    parts = PurePosixPath(name).parts
    plain = bool(parts) and "/".join(parts) == name and not name.startswith("/")
    return plain and ".." not in parts and "\\" not in name and name.isprintable()
