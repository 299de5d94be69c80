"""The embedded store: one SQLite file in the data directory, checked before it is trusted."""

import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from anyio import CancelScope, to_thread

from gateway.domain.errors import StoreRefused
from gateway.domain.ids import AgentId, to_micros
from gateway.domain.ports import Clock, Ledger, Stores
from gateway.store.audit import StoredAudit, StoredTokens
from gateway.store.channels import StoredChannels, StoredOutbox
from gateway.store.conversations import StoredSessions
from gateway.store.copying import copier
from gateway.store.fact_search import FactBase
from gateway.store.faults import file_faults, opening_error
from gateway.store.inbox import StoredInbox, StoredJournal
from gateway.store.inspection import check_database, progress_of
from gateway.store.ledger import StoredLedger
from gateway.store.plugins import StoredTools, sweep_originals
from gateway.store.tables import migrate
from gateway.store.transaction import Terms, Transaction
from gateway.store.turns import ExtractionQueue, TurnIndex
from gateway.store.writer import (
    Commits,
    Engine,
    Mark,
    OnCommit,
    Progress,
    Readers,
    StorePart,
    Writer,
    WriteTransaction,
    writing,
)


def _sweep(tx: Transaction, *, before: datetime, limit: int) -> int:
    """Deletes the journals of old runs and old originals, oldest first. Returns the number of swept
    runs: less than `limit` when none is left."""
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
        tx.forget_sessions()  # the cache holds which are closed
    return len(rows)


class ClosingLedger(Ledger, Protocol):
    def close(self) -> None: ...


class StoreUpkeep(StorePart):
    """Implements the port StoreCare."""

    def __init__(self, engine: Engine, clock: Clock, ledger: ClosingLedger) -> None:
        super().__init__(engine)
        self._clock, self._ledger, self._copy = clock, ledger, engine.copy

    sweep = writing(_sweep)
    expire = writing(_expire)

    async def probe(self) -> None:
        probed = {"probed_at": self._clock.now()}  # without an fsync, which wears out a disk
        await self._writer.write(lambda tx: tx.change("pulse", {"id": 1}, probed), durable=False)

    async def snapshot(self, into: Path, *, copies: int) -> None:
        await self.caught_up()
        await self._copy(into, copies)

    async def close(self) -> None:
        """Writes the waiting operations and refuses new ones. A second close does nothing."""
        with CancelScope(shield=True):
            self._ledger.close()
            await self._writer.close()
            await self._readers.close()


log = logging.getLogger(__name__)

FILE = "store.db"


@dataclass(frozen=True, slots=True)
class OpenDatabase:
    path: Path
    db: sqlite3.Connection
    mark: Mark
    tx: WriteTransaction
    commits: Commits

    def close(self) -> None:
        self.db.close()
        self.mark.close()


@contextlib.asynccontextmanager
async def open_sqlite(
    data_dir: Path,
    *,
    clock: Clock,
    accept_loss: bool = False,
    durable: bool = True,
    on_commit: OnCommit | None = None,
) -> AsyncIterator[Stores]:
    """Raises StoreRefused if the database must not be used as it is, StoreUnavailable if it cannot
    be written now. Deletes and repairs nothing unless asked. The directory must be locked already.
    Without `durable` nothing is fsynced."""
    now = to_micros(clock.now())
    opened = await to_thread.run_sync(
        partial(open_database, data_dir, now, accept_loss=accept_loss, durable=durable)
    )
    try:
        opened.commits.on_commit = on_commit or opened.commits.on_commit
        writer, readers = Writer(opened.commits), Readers(opened.path)
        engine = Engine(writer, readers, opened.tx, copier(opened.path))
        stores = stores_over(engine, clock)
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


def stores_over(
    engine: Engine, clock: Clock, *, make_ledger: Callable[[Engine], ClosingLedger] = StoredLedger
) -> Stores:
    """Returns every port over one engine."""
    ledger = make_ledger(engine)
    return Stores(
        StoredInbox(engine),
        StoredJournal(engine),
        StoredSessions(engine),
        StoredFacts(engine),
        ledger,
        StoredAudit(engine),
        StoredOutbox(engine),
        StoredChannels(engine),
        StoredTools(engine),
        StoredTokens(engine),
        StoreUpkeep(engine, clock, ledger),
    )


def open_database(data_dir: Path, now: int, *, accept_loss: bool, durable: bool) -> OpenDatabase:
    path = data_dir / FILE
    with contextlib.ExitStack() as undo:
        mark = Mark(data_dir)
        undo.callback(mark.close)
        held = check_database(path)
        if accept_loss:
            lost = max(0, mark.read().accepted - held.accepted)
            log.warning("store_loss_accepted", extra={"messages_lost": lost})
        else:
            require_acknowledged(held, mark.read(), str(path))
        db = _open_to_write(path, now, durable=durable)
        undo.callback(db.close)
        held = progress_of(db)
        mark.write(held.accepted, held.commits)
        tx = WriteTransaction(db)
        commits = Commits(tx, mark, held, str(path), durable=durable)
        undo.pop_all()
    return OpenDatabase(path, db, mark, tx, commits)


def require_acknowledged(held: Progress, mark: Progress, where: str) -> None:
    """Raises StoreRefused if the database is behind its mark."""
    if held.accepted >= mark.accepted and held.commits >= mark.commits:
        return
    messages = max(0, mark.accepted - held.accepted)
    commits = max(0, mark.commits - held.commits)
    raise StoreRefused(
        f"{where} lacks {messages} accepted messages and {commits} commits that were acknowledged: "
        "restore the newest backup, or start with --accept-loss to continue without them"
    )


def _open_to_write(path: Path, now: int, *, durable: bool) -> sqlite3.Connection:
    """Ends with a durable write: a full disk or a read-only file shows at the start, not at a
    message."""
    with file_faults(str(path)):
        path.touch(mode=0o600)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
        db.execute("PRAGMA secure_delete = ON")  # erased text must not stay in a free page
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA journal_size_limit = 67108864")
        migrate(db)
        db.execute("UPDATE pulse SET probed_at = ?", (now,))
    except sqlite3.Error as error:
        refused = opening_error(error, str(path))  # before closing deletes the log that had no room
        db.close()
        raise refused from error
    return db
