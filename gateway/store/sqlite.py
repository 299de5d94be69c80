"""The embedded store: one SQLite file in the data directory, looked over before it is trusted."""

import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from anyio import CancelScope, to_thread

from gateway.domain.errors import StoreRefused
from gateway.domain.ids import AgentId, to_micros
from gateway.domain.ports import Clock, Stores
from gateway.store.audit import StoredAudit
from gateway.store.channels import StoredChannels
from gateway.store.conversations import StoredSessions
from gateway.store.erasure import StoredOriginals, sweep_originals
from gateway.store.fact_search import FactBase
from gateway.store.faults import at_opening, damaged, file_faults
from gateway.store.inbox import StoredInbox, StoredJournal
from gateway.store.ledger import StoredLedger
from gateway.store.outbox import StoredOutbox
from gateway.store.plugins import StoredValues
from gateway.store.tables import (
    VERSION,
    columns_of,
    migrate,
    newest_columns,
    require_known,
    version_of,
)
from gateway.store.transaction import Terms, Transaction
from gateway.store.turns import ExtractionQueue, TurnIndex
from gateway.store.writer import (
    Commits,
    Held,
    Mark,
    OfStore,
    Pen,
    Readers,
    Reading,
    Remembered,
    Writer,
    Writing,
    open_to_read,
    writing,
)


def _sweep(tx: Transaction, *, before: datetime, limit: int) -> int:
    """Oldest first; gives how many runs were swept, less than `limit` when none is left."""
    old: Terms = {"finished_at <": before}
    rows = tx.find("run", old, "run_id", order="finished_at", limit=limit, index="with_journal")
    for row in rows:
        tx.delete("journal", row)
        tx.change("run", row, {"has_journal": False, "log": None, "tape": None})
    return max(len(rows), sweep_originals(tx, before, limit))


def _expire(tx: Transaction, agent: AgentId, *, before: datetime, limit: int) -> int:
    old: Terms = {"agent": agent, "updated_at <": before}
    rows = tx.find("session", old, "id", limit=limit, index="active")
    if rows:
        tx.change("session", {"id": tuple(row["id"] for row in rows)}, {"state": "closed"})
        tx.forget_sessions()  # it remembers which are closed
    return len(rows)


class StoreUpkeep(OfStore):
    """Implements the port StoreCare."""

    def __init__(
        self,
        writer: Writing,
        readers: Reading,
        pen: Remembered,
        *,
        clock: Clock,
        ledger: StoredLedger,
    ) -> None:
        super().__init__(writer, readers, pen)
        self._clock, self._ledger = clock, ledger

    sweep = writing(_sweep, durable=False)
    expire = writing(_expire, durable=False)

    async def probe(self) -> None:
        probed = {"probed_at": self._clock.now()}  # without an fsync, which wears a disk
        await self._writer.write(lambda tx: tx.change("pulse", {"id": 1}, probed), durable=False)

    async def close(self) -> None:
        """Writes what is waiting, refuses what comes; a second close does nothing."""
        with CancelScope(shield=True):
            self._ledger.close()
            await self._writer.close()
            await self._readers.close()


log = logging.getLogger(__name__)

FILE = "store.db"
_LEAST_SQLITE = (3, 35, 0)  # RETURNING
# A database up to this size has its indexes compared with its tables as well: a second at most.
_THOROUGH_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Opened:
    path: Path
    db: sqlite3.Connection
    mark: Mark
    pen: Pen
    commits: Commits

    def close(self) -> None:
        self.db.close()
        self.mark.close()


@contextlib.asynccontextmanager
async def open_sqlite(
    data_dir: Path, *, clock: Clock, accept_loss: bool = False, durable: bool = True
) -> AsyncIterator[Stores]:
    """Raises StoreRefused if the database must not be used as it is, StoreUnavailable if it cannot
    be written now. Nothing is deleted or mended unasked. The directory must be locked already.
    Without `durable` nothing is fsynced."""
    now = to_micros(clock.now())
    opened = await to_thread.run_sync(
        partial(open_file, data_dir, now, accept_loss=accept_loss, durable=durable)
    )
    try:
        writer, readers = Writer(opened.commits), Readers(opened.path)
        stores = stores_over(writer, readers, opened.pen, clock)
        writer.start()
        readers.start()
        try:
            yield stores
        finally:
            await stores.care.close()
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(opened.close)


class StoredFacts(FactBase, ExtractionQueue, TurnIndex):
    """Implements the port FactStore."""


class StoredTools(StoredValues, StoredOriginals):
    """Implements the port ToolStore."""


def stores_over(writer: Writing, readers: Reading, pen: Remembered, clock: Clock) -> Stores:
    """Every port over one writer and its readers."""
    over = (writer, readers, pen)
    ledger = StoredLedger(*over)
    return Stores(
        StoredInbox(*over),
        StoredJournal(*over),
        StoredSessions(*over),
        StoredFacts(*over),
        ledger,
        StoredAudit(*over),
        StoredOutbox(*over),
        StoredChannels(*over),
        StoredTools(*over),
        StoreUpkeep(*over, clock=clock, ledger=ledger),
    )


def look_over(data_dir: Path) -> None:
    """Raises StoreRefused if the database there must not be used as it is; changes nothing."""
    _require_library()
    _look_over(data_dir / FILE)


def open_file(data_dir: Path, now: int, *, accept_loss: bool, durable: bool) -> Opened:
    _require_library()
    path = data_dir / FILE
    with contextlib.ExitStack() as undo:
        mark = Mark(data_dir)
        undo.callback(mark.close)
        held = _look_over(path)
        if accept_loss:
            lost = max(0, mark.read().accepted - held.accepted)
            log.warning("store opened although messages are missing", extra={"messages_lost": lost})
        else:
            require_all(held, mark.read(), str(path))
        db = _open_to_write(path, now, durable=durable)
        undo.callback(db.close)
        held = _held(db)
        mark.write(held.accepted, held.commits)
        pen = Pen(db)
        commits = Commits(pen, mark, held, str(path), durable=durable)
        undo.pop_all()
    return Opened(path, db, mark, pen, commits)


def _require_library() -> None:
    if sqlite3.sqlite_version_info < _LEAST_SQLITE:
        least = ".".join(str(part) for part in _LEAST_SQLITE)
        raise StoreRefused(
            f"this Python has SQLite {sqlite3.sqlite_version}, the embedded store needs {least}: "
            "use a Python with a newer one"
        )
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        if not db.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')").fetchone()[0]:
            raise StoreRefused(
                "this Python's SQLite was built without FTS5, which the embedded store needs: "
                "use another Python"
            )


def require_all(held: Held, mark: Held, where: str) -> None:
    """Raises StoreRefused if the database is behind what was acknowledged."""
    if held.accepted >= mark.accepted and held.commits >= mark.commits:
        return
    messages = max(0, mark.accepted - held.accepted)
    commits = max(0, mark.commits - held.commits)
    raise StoreRefused(
        f"{where} misses {messages} accepted messages and {commits} commits that were "
        "acknowledged: restore the newest backup, or start with --accept-loss to go on without them"
    )


def _look_over(path: Path) -> Held:
    """What a database holds; nothing if there is none. Read-only: SQLite cuts a damaged log off
    when a writing connection closes, and the operator may still want it."""
    if not path.exists() or path.stat().st_size == 0:
        return Held()
    _require_header(path)
    try:
        with contextlib.closing(open_to_read(path)) as db:
            version = version_of(db)
            require_known(version, str(path))
            columns = columns_of(db)
            _require_ours(version, columns, str(path))
            thorough = path.stat().st_size <= _THOROUGH_BYTES
            check = "integrity_check" if thorough else "quick_check"
            problems = [str(row[0]) for row in db.execute(f"PRAGMA {check}(1)")]
            if problems != ["ok"]:
                raise StoreRefused(damaged(str(path), problems[0]))
            return _held(db) if ("pulse", "commits") in columns else Held()
    except sqlite3.Error as error:
        raise at_opening(error, str(path)) from error


def _require_header(path: Path) -> None:
    """SQLite takes a flipped bit here for a file of the future, and calls it read-only."""
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


def _held(db: sqlite3.Connection) -> Held:
    accepted = db.execute("SELECT coalesce(max(id), 0) FROM run").fetchone()[0]
    pulse = db.execute("SELECT commits FROM pulse").fetchone()
    return Held(accepted, pulse[0] if pulse else 0)


def _open_to_write(path: Path, now: int, *, durable: bool) -> sqlite3.Connection:
    """Ends with a durable write: a full disk or a read-only file shows here, not at a message."""
    with file_faults(str(path)):
        path.touch(mode=0o600)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
        db.execute("PRAGMA secure_delete = ON")  # what is erased must not be left in a free page
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA journal_size_limit = 67108864")
        migrate(db)
        db.execute("UPDATE pulse SET probed_at = ?", (now,))
    except sqlite3.Error as error:
        told = at_opening(error, str(path))  # before the log goes that was too large
        db.close()
        raise told from error
    return db
