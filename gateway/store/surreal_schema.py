"""What a SurrealDB server is told of the tables: fields, indexes and ids, by version; and the same in memory."""

import logging
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio

from gateway.domain.errors import StoreRefused
from gateway.store.surreal_connection import RecordExists, RecordID, SurrealConnection
from gateway.store.tables import TABLES, VERSION, WORDS, Column, Table, require_known
from gateway.store.transaction import Row

log = logging.getLogger(__name__)

REVISION = "rev"


_TYPES = {"text": "string", "json": "string", "key": "string", "int": "int", "time": "int"}
_TYPES |= {"bool": "bool", "real": "float", "blob": "bytes"}


def field_of(column: str) -> str:
    """`id` is the record's own."""
    return "own_id" if column == "id" else column


def definitions() -> str:
    """Tables, fields and indexes, as far as they are not there yet."""
    parts = [
        *(
            "DEFINE TABLE IF NOT EXISTS numbers SCHEMAFULL",
            _DEFINE.format("next", "numbers", "int"),
        ),
        *("DEFINE TABLE IF NOT EXISTS taken SCHEMAFULL", _DEFINE.format("row", "taken", "record")),
        *("DEFINE TABLE IF NOT EXISTS guard SCHEMAFULL", _DEFINE.format("rev", "guard", "int")),
    ]
    for table in TABLES.values():
        parts.append(f"DEFINE TABLE IF NOT EXISTS `{table.name}` SCHEMAFULL")
        types = {one.name: (_TYPES[one.type], one.is_optional) for one in table.columns}
        types |= {REVISION: ("int", False), **dict.fromkeys(table.marks, ("bool", True))}
        for name, (kind, is_optional) in types.items():
            told = f"option<{kind}>" if is_optional else kind
            parts.append(_DEFINE.format(field_of(name), table.name, told))
        for name, columns in _indexes(table).items():
            fields = ", ".join(f"`{field_of(one)}`" for one in columns)
            parts.append(f"DEFINE INDEX IF NOT EXISTS `{name}` ON `{table.name}` FIELDS {fields}")
    return ";\n".join(parts)


_DEFINE = "DEFINE FIELD IF NOT EXISTS `{}` ON `{}` TYPE {}"


def _indexes(table: Table) -> dict[str, Sequence[str]]:
    """An index that holds a part of the rows is one over a field that only these have. None is unique:
    whatever no two rows have in common is a record of its own, in `taken`."""
    found = dict[str, Sequence[str]]()
    for one in table.indexes:
        mark = [f"in_{one.name}"] if f"in_{one.name}" in table.marks else []
        found[one.name] = [*mark, *one.columns.split(", ")]
    found = {**table.once, **found}
    if table.number and [table.number] != [*table.record]:
        found["numbered"] = [table.number]
    return found


def record_of(table: Table, row: Row) -> RecordID:
    values = tuple(row[one] for one in table.record)
    return RecordID(table.name, values[0] if len(values) == 1 else values)


def content_of(table: Table, row: Row) -> dict[str, object]:
    told = {name: value for name, value in row.items() if value is not None}
    for name, kind in table.types.items():
        if name in told and kind in {"bool", "real"}:
            told[name] = bool(told[name]) if kind == "bool" else float(told[name])
    return {field_of(name): value for name, value in told.items()}


def unique_records(table: Table, row: Row) -> set[RecordID]:
    """Records that stand for what no two rows may have in common."""
    found = set[RecordID]()
    for name, columns in table.once.items():
        values = tuple(row.get(one) for one in columns)
        if None not in values and (f"in_{name}" not in table.marks or row.get(f"in_{name}")):
            found.add(RecordID("taken", (f"{table.name}_{name}", *values)))
    return found


# --- versions ------------------------------------------------------------------------------------
_SCHEMA = """
DEFINE TABLE IF NOT EXISTS schema SCHEMAFULL;
DEFINE FIELD IF NOT EXISTS version ON schema TYPE int;
DEFINE FIELD IF NOT EXISTS store ON schema TYPE string;
DEFINE FIELD IF NOT EXISTS changing ON schema TYPE option<datetime>;
DEFINE FIELD IF NOT EXISTS copying ON schema TYPE option<string>
"""
_IDENTITY = "SELECT VALUE store FROM schema:main"
_FILLED = "UPDATE `{0}` SET `{1}` = $usual WHERE `{1}` = NONE RETURN NONE"
_MADE = "CREATE ONLY schema:main SET version = 0, store = $store RETURN NONE"
_BEGUN = """UPDATE schema:main SET changing = time::now() + 60s
WHERE version = $version AND (changing = NONE OR changing < time::now()) RETURN VALUE version"""
_DONE = "UPDATE schema:main SET version = $version, changing = NONE RETURN NONE"
_CHANGE_S = 60.0  # for all of it; then another node may try
_LOOK_S = 0.25


async def identify(connection: SurrealConnection) -> Mapping[str, Any]:
    """What the database says of itself, which is made if it is new. From now on the connection is to this
    very store and to no other."""
    if connection.bound is None:
        await connection.commit(_SCHEMA)
        with suppress(RecordExists):
            await connection.commit(_MADE, {"store": secrets.token_hex(8)})
    ((found,),) = await connection.query("SELECT version, store, copying FROM schema:main")
    connection.bound = (_IDENTITY, found["store"])
    told: Mapping[str, Any] = found
    return told


async def upgrade_tables(connection: SurrealConnection, *, is_copied: bool = False) -> None:
    """Makes the tables, or brings those of an earlier version up to date: one node does, the others wait.
    `is_copied`: a store is being copied there. Raises StoreUnavailable, StoreRefused."""
    while True:
        found = await identify(connection)
        if found.get("copying") and not is_copied:
            raise StoreRefused(
                f"a copy of a store to {connection.where} was begun and not finished: run `exogate store "
                "copy` again, or name another database in [store]"
            )
        version = int(found["version"])
        require_known(version, connection.where)
        if version == VERSION:
            return
        (begun,) = await connection.commit(_BEGUN, {"version": version})
        if begun:
            log.info("store_tables_changed", extra={"from": version, "to": VERSION})
            await _change(connection, version)
        else:
            await anyio.sleep(_LOOK_S)


async def _change(connection: SurrealConnection, version: int) -> None:
    await connection.commit(definitions(), deadline_s=_CHANGE_S)
    for table in TABLES.values() if version else ():  # a new store has no rows to fill
        for one in table.columns:
            if "=" in one.options and not one.is_optional:
                text = _FILLED.format(table.name, field_of(one.name))
                await connection.commit(text, {"usual": _usual(one)}, deadline_s=_CHANGE_S)
    await connection.commit(_DONE, {"version": VERSION})


def _usual(column: Column) -> object:
    """What a row has that does not say."""
    told = column.options["="]
    if column.type in {"text", "json"}:
        return told
    return bool(int(told)) if column.type == "bool" else int(told)


def rows_in_memory() -> sqlite3.Connection:
    """The tables, empty, with notes of which rows were changed."""
    db = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False, cached_statements=1024
    )
    for statement in ("CREATE TABLE changed (name TEXT, number INTEGER)", *WORDS):
        db.execute(statement)
    for table in TABLES.values():
        db.execute(table.sql.removesuffix(" WITHOUT ROWID"))
        for statement in table.index_sql:
            db.execute(statement)
        for event, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
            db.execute(
                f"CREATE TRIGGER {event}_{table.name} AFTER {event} ON {table.name} "
                f"BEGIN INSERT INTO changed VALUES ('{table.name}', {row}.rowid); END"
            )
    return db
