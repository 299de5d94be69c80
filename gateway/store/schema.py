"""How an older database becomes a newer one, a step at a time."""

import contextlib
import sqlite3
from functools import cache

from gateway.domain.errors import StoreRefused
from gateway.store.channel_tables import CHANNELS, DELIVERIES, UNREAD, WHENCE
from gateway.store.rooms import move_rooms
from gateway.store.tables import (
    AFTERMATH,
    AUDIT,
    FACTS,
    FIRST,
    HEARING,
    LEDGER,
    LIMITS,
    ORIGINALS,
    OVERRAN,
    PLUGINS,
    SETTINGS,
    STANDING,
    SUMMARIES,
    TURNS,
)

# Each step brings a database from the version of its index to the next one. A step may run again
# after a crash, so it must not mind what is already there.
MIGRATIONS: tuple[str, ...] = (
    FIRST,
    PLUGINS,
    SETTINGS + AFTERMATH,
    LEDGER + AUDIT,
    FACTS + HEARING + TURNS,
    CHANNELS,
    ORIGINALS,
    "",  # brings columns, and rooms their keys
)
VERSION = len(MIGRATIONS)
_ROOMS = 7  # the step in which the rooms of channels get keys of their own
# What a step does besides as long as a column is still there, or not yet: SQL cannot ask for that itself.
_MOVES: tuple[tuple[int, tuple[str, str], str], ...] = ((2, ("run", "token_limit"), LIMITS),)
_ADDED: tuple[tuple[int, tuple[str, str], str], ...] = (
    (4, ("node", "summary"), SUMMARIES),
    (4, ("node", "standing"), STANDING),
    (5, ("run", "whence"), WHENCE),
    (5, ("delivery", "arrived"), DELIVERIES),
    (7, ("token_record", "overran"), OVERRAN),
    (7, ("channel_heard", "why"), UNREAD),
)


@cache
def newest_columns() -> frozenset[tuple[str, str]]:
    """(table, column) of a database that is up to date."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db)
        return columns_of(db)


def columns_of(db: sqlite3.Connection) -> frozenset[tuple[str, str]]:
    return frozenset(db.execute(_COLUMNS).fetchall())


_COLUMNS = """
SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c
WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'
"""


def version_of(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def require_known(version: int, where: str) -> None:
    if version > VERSION:
        raise StoreRefused(
            f"{where} has schema version {version}, this program knows up to {VERSION}: "
            "run the newer program again, or restore a backup made before the update"
        )


def migrate(db: sqlite3.Connection, to: int = VERSION) -> None:
    """Each step with its version number in one transaction."""
    for step in range(version_of(db), to):
        columns = columns_of(db)
        moves = [move for at, column, move in _MOVES if at == step and column in columns]
        moves += [add for at, column, add in _ADDED if at == step and column not in columns]
        script = "; ".join([MIGRATIONS[step], *moves])
        db.executescript(f"BEGIN IMMEDIATE; {script}")
        if step == _ROOMS:
            move_rooms(db)
        db.execute(f"PRAGMA user_version = {step + 1}")
        db.execute("COMMIT")
