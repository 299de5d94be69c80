"""Copies a whole store to the other engine while no gateway uses either of them."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from gateway.app.shared_store import Note, claim_store, connection_to
from gateway.config.values import GatewayConfig, StoreSettings
from gateway.domain.backups import CopiedTable, CopyRefused
from gateway.domain.ports import Clock
from gateway.store.copying import copy_rows, reading_sqlite, writing_sqlite
from gateway.store.opening import COPYING, make_private, note_node, own_data_dir
from gateway.store.sqlite import FILE, open_sqlite
from gateway.store.surreal_connection import SurrealConnection
from gateway.store.surreal_schema import SurrealRows, upgrade_tables
from gateway.store.writer import MARK

_EMBEDDED = "embedded"


async def copy_store(
    config: GatewayConfig, source: str, target: str, clock: Clock
) -> Sequence[CopiedTable]:
    """Copies all tables. Raises CopyRefused, DataDirInUse, StoreInUse, StoreRefused, StoreUnavailable."""
    if [source, target].count(_EMBEDDED) != 1:
        raise CopyRefused(
            "a store is copied from `embedded` to a SurrealDB server or back: give one ws:// address"
        )
    url = target if source == _EMBEDDED else source
    settings = replace(config.store, url=url)
    data_dir = config.gateway.data_dir
    async with (
        own_data_dir(data_dir) as ended,
        _connected(settings, clock, ended, partial(note_node, data_dir)) as connection,
    ):
        if source == _EMBEDDED:
            return await _out(data_dir, connection, clock)
        return await _back(data_dir, connection)


@contextlib.asynccontextmanager
async def _connected(
    settings: StoreSettings, clock: Clock, ended: str | None, note: Note
) -> AsyncIterator[SurrealConnection]:
    connection = await connection_to(settings)
    async with anyio.create_task_group() as group:
        group.start_soon(connection.run)
        async with claim_store(settings, clock, ended=ended, note=note):
            yield connection
        group.cancel_scope.cancel()


async def _out(
    data_dir: Path, connection: SurrealConnection, clock: Clock
) -> Sequence[CopiedTable]:
    if not await to_thread.run_sync((data_dir / FILE).exists):
        raise CopyRefused(f"nothing to copy: there is no store in {data_dir}")
    async with open_sqlite(data_dir, clock=clock):
        """Opening checks and upgrades the store."""
    target = SurrealRows(connection)
    await target.begin(_EMBEDDED)
    async with reading_sqlite(data_dir / FILE) as source:
        copied = await copy_rows(source, target)
    await target.end()
    return copied


async def _back(data_dir: Path, connection: SurrealConnection) -> Sequence[CopiedTable]:
    await upgrade_tables(connection)
    folder = data_dir / COPYING
    await to_thread.run_sync(_begin, data_dir, folder)
    async with connection.moment() as moment, writing_sqlite(folder / FILE) as target:
        copied = await copy_rows(SurrealRows(connection, moment), target)
    await to_thread.run_sync(_end, data_dir, folder)
    return copied


def _begin(data_dir: Path, folder: Path) -> None:
    """Creates the folder of the partial copy, beside which no gateway starts. Raises CopyRefused."""
    if (data_dir / FILE).exists():
        raise CopyRefused(
            f"there is a store in {data_dir}: move {FILE} away, or set another data_dir"
        )
    make_private(folder)


def _end(data_dir: Path, folder: Path) -> None:
    (data_dir / MARK).unlink(missing_ok=True)  # the mark of an earlier store reports lost messages
    (folder / FILE).rename(data_dir / FILE)
    shutil.rmtree(folder)
