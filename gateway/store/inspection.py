"""Checks of databases and copies before they are trusted."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from gateway.domain.backups import ArchiveDamaged, StoreContents
from gateway.domain.errors import StoreRefused, StoreUnavailable
from gateway.domain.events import AuditEntry
from gateway.store.faults import damaged, file_faults, opening_error
from gateway.store.tables import (
    TABLES,
    VERSION,
    columns_of,
    newest_columns,
    require_known,
    version_of,
)
from gateway.store.transaction import Transaction
from gateway.store.writer import Progress, open_to_read

T = TypeVar("T")

_LEAST_SQLITE = (3, 35, 0)  # RETURNING
# Up to this size, indexes are compared with tables too: a second at most.
_THOROUGH_BYTES = 64 * 1024 * 1024
_PAGE = 1_000


def require_library() -> None:
    if sqlite3.sqlite_version_info < _LEAST_SQLITE:
        least = ".".join(str(part) for part in _LEAST_SQLITE)
        raise StoreRefused(
            f"this Python has SQLite {sqlite3.sqlite_version}, and the embedded store needs {least}: "
            "use a Python with a newer SQLite"
        )
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        if not db.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')").fetchone()[0]:
            raise StoreRefused(
                "this Python's SQLite was built without FTS5, which the embedded store needs: "
                "use another Python"
            )


def check_database(path: Path, *, is_thorough: bool = False) -> Progress:
    """Returns the progress of a database; zero if there is none. Raises StoreRefused if it must not
    be used as it is. Read-only: when a writing connection closes, SQLite truncates a damaged log
    that the operator may still want."""
    require_library()
    if not path.exists() or path.stat().st_size == 0:
        return Progress()
    _require_header(path)
    try:
        with contextlib.closing(open_to_read(path)) as db:
            version = version_of(db)
            require_known(version, str(path))
            columns = columns_of(db)
            _require_ours(version, columns, str(path))
            is_small = path.stat().st_size <= _THOROUGH_BYTES
            check = "integrity_check" if is_small or is_thorough else "quick_check"
            problems = [str(row[0]) for row in db.execute(f"PRAGMA {check}(1)")]
            if problems != ["ok"]:
                raise StoreRefused(damaged(str(path), problems[0]))
            return progress_of(db) if ("pulse", "commits") in columns else Progress()
    except sqlite3.Error as error:
        raise opening_error(error, str(path)) from error


def read_once(path: Path, query: Callable[[Transaction], T]) -> T:
    """Queries the database of a running or stopped gateway, and changes nothing. Raises
    StoreRefused, StoreUnavailable."""
    if not path.exists():
        raise StoreUnavailable(f"{path} does not exist")
    try:
        with contextlib.closing(open_to_read(path)) as db:
            require_known(version_of(db), str(path))
            return query(Transaction(db))
    except sqlite3.Error as error:
        raise opening_error(error, str(path)) from error


def _require_header(path: Path) -> None:
    """Raises StoreRefused for a damaged header. SQLite takes it for one of a newer format and opens
    the file read-only."""
    with file_faults(str(path)), path.open("rb") as file:
        header = file.read(20)
    if not header.startswith(b"SQLite format 3\0") or header[18:20] not in {b"\1\1", b"\2\2"}:
        raise StoreRefused(damaged(str(path), "it does not begin like a database"))


def _require_ours(version: int, columns: frozenset[tuple[str, str]], where: str) -> None:
    missing = sorted(".".join(column) for column in newest_columns() - columns)
    if version == VERSION and missing:
        raise StoreRefused(damaged(where, f"columns are missing: {', '.join(missing)}"))
    if not version and {name for name, _ in columns} - {name for name, _ in newest_columns()}:
        raise StoreRefused(
            f"{where} is a database of another program: move the file away or choose another "
            "data_dir"
        )


def progress_of(db: sqlite3.Connection) -> Progress:
    accepted = db.execute("SELECT coalesce(max(id), 0) FROM run").fetchone()[0]
    pulse = db.execute("SELECT commits FROM pulse").fetchone()
    return Progress(accepted, pulse[0] if pulse else 0)


# --- copies --------------------------------------------------------------------------------------
def contents_of(path: Path) -> StoreContents:
    """Raises ArchiveDamaged."""
    with _open_copy(path) as db:
        there = {name for name, _ in columns_of(db)} & TABLES.keys()
        tx, held = Transaction(db), progress_of(db) if "pulse" in there else Progress()
        entry = tx.first("audit", {}, "seq hash", order="-seq") if "audit" in there else None
        is_known = {"fact_claim", "node"} <= there
        return StoreContents(
            schema_version=version_of(db),
            accepted=held.accepted,
            commits=held.commits,
            audit_seq=entry["seq"] if entry else 0,
            audit_hash=entry["hash"] if entry else "",
            sourceless=db.execute(_SOURCELESS).fetchone()[0] if is_known else 0,
            counts={one: tx.count(one, {}) for one in sorted(there)},
        )


# The source of a claim is a stored message, or one whose run has not ended.
_SOURCELESS = """
SELECT count(*) FROM fact_claim c WHERE message_id IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM node WHERE id = c.message_id)
AND message_id NOT IN (SELECT message_id FROM run)
"""


def check_copy(path: Path, described: StoreContents) -> None:
    """Checks every page of the copy, compares it with its description, and verifies the whole
    audit. Raises StoreRefused for a newer schema or damage, ArchiveDamaged."""
    check_database(path, is_thorough=True)
    found = contents_of(path)
    if found != described:
        raise ArchiveDamaged(
            f"the store in the archive differs from its description ({_difference(found, described)}): "
            "use an older archive"
        )
    if "audit" in found.counts:
        with _open_copy(path) as db:
            _check_audit(Transaction(db))


def _difference(found: StoreContents, described: StoreContents) -> str:
    for name in sorted(found.counts.keys() | described.counts.keys()):
        there, wanted = found.counts.get(name, 0), described.counts.get(name, 0)
        if there != wanted:
            return f"table {name} has {there:,} rows instead of {wanted:,}"
    if found.sourceless != described.sourceless:
        return f"{found.sourceless:,} claims of facts have lost their source message"
    return "its version, its counters or the end of its audit differ"


def _check_audit(tx: Transaction) -> None:
    last: AuditEntry | None = None
    while rows := tx.find("audit", {"seq >": last.seq if last else 0}, order="seq", limit=_PAGE):
        for row in rows:
            entry = AuditEntry(**row)
            if not entry.follows(last):
                raise ArchiveDamaged(
                    f"entry {entry.seq} of the audit in the archive was changed: use an older archive"
                )
            last = entry


@contextlib.contextmanager
def _open_copy(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens a copy that is not written. Raises ArchiveDamaged."""
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, isolation_level=None)) as db:
            db.execute("PRAGMA trusted_schema = OFF")
            yield db
    except sqlite3.Error as error:
        raise ArchiveDamaged(f"the store in the archive cannot be read ({error})") from error
