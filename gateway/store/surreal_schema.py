"""The tables of a SurrealDB server, by version: fields, indexes and record ids; the same tables in
memory; and all rows of a database, read as of one moment or put into an empty one."""

import logging
import random
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any
from uuid import UUID

import anyio

from gateway.domain.backups import CopyRefused
from gateway.domain.errors import GatewayError, StoreRefused, StoreUnavailable
from gateway.store.copying import COPIED, FIRST_ROWS, next_page
from gateway.store.surreal_connection import Params, RecordExists, RecordID, SurrealConnection
from gateway.store.tables import TABLES, VERSION, WORDS, Column, Table, require_known
from gateway.store.transaction import Row

log = logging.getLogger(__name__)

REVISION = "rev"


_TYPES = {"text": "string", "json": "string", "key": "string", "int": "int", "time": "int"}
_TYPES |= {"bool": "bool", "real": "float", "blob": "bytes"}


def field_of(column: str) -> str:
    """Returns the field of a column; a record reserves `id` for itself."""
    return "own_id" if column == "id" else column


def definitions() -> str:
    """Defines the tables, fields and indexes that do not exist yet."""
    parts = [
        define("numbers", next="int"),
        define("taken", row="record"),
        define("guard", rev="int"),
    ]
    for table in TABLES.values():
        types = {field_of(one.name): _TYPES[one.type] for one in table.columns}
        types |= {field_of(one): f"option<{types[field_of(one)]}>" for one in table.optional}
        types |= {REVISION: "int", **dict.fromkeys(table.marks, "option<bool>")}
        parts.append(define(table.name, **types))
        for name, columns in _indexes(table).items():
            fields = ", ".join(f"`{field_of(one)}`" for one in columns)
            parts.append(f"DEFINE INDEX IF NOT EXISTS `{name}` ON `{table.name}` FIELDS {fields}")
    return ";\n".join(parts)


def define(table: str, /, **types: str) -> str:
    """Defines a table and its fields unless they exist."""
    fields = (f"DEFINE FIELD IF NOT EXISTS `{one}` ON `{table}` TYPE {types[one]}" for one in types)
    return ";\n".join([f"DEFINE TABLE IF NOT EXISTS `{table}` SCHEMAFULL", *fields])


def _indexes(table: Table) -> dict[str, Sequence[str]]:
    """Returns the columns of each index. A partial index covers a field that only its rows have. No
    index is unique: unique combinations are records of their own, in `taken`."""
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
    content = dict[str, object]()
    for name, value in row.items():
        if value is not None:
            convert = _CONVERTED.get(table.types.get(name, ""))
            content[field_of(name)] = convert(value) if convert else value
    return content


_CONVERTED: Mapping[str, Callable[[Any], object]] = {"bool": bool, "real": float}


def unique_records(table: Table, row: Row) -> set[RecordID]:
    """Returns the records that stand for the unique combinations of a row."""
    found = set[RecordID]()
    for name, columns in table.once.items():
        values = tuple(row.get(one) for one in columns)
        if None not in values and (f"in_{name}" not in table.marks or row.get(f"in_{name}")):
            found.add(RecordID("taken", (f"{table.name}_{name}", *values)))
    return found


# --- versions ------------------------------------------------------------------------------------
_OPTIONAL = {"changing": "option<datetime>", "copying": "option<string>"}
_SCHEMA = define("schema", version="int", store="string", **_OPTIONAL)
_IDENTITY = "SELECT VALUE store FROM schema:main"
_FILLED = "UPDATE `{0}` SET `{1}` = $usual WHERE `{1}` = NONE RETURN NONE"
_MADE = "CREATE ONLY schema:main SET version = 0, store = $store RETURN NONE"
_BEGUN = """UPDATE schema:main SET changing = time::now() + 60s
WHERE version = $version AND (changing = NONE OR changing < time::now()) RETURN VALUE version"""
_DONE = "UPDATE schema:main SET version = $version, changing = NONE RETURN NONE"
_CHANGE_S = 60.0  # for the whole change; then another node may try
_LOOK_S = 0.25


async def identify(connection: SurrealConnection) -> Mapping[str, Any]:
    """Returns the state of the database, which is initialised if it is new. Binds the connection to
    this database."""
    if connection.bound is None:
        await connection.commit(_SCHEMA)
        with suppress(RecordExists):
            await connection.commit(_MADE, {"store": secrets.token_hex(8)})
    ((found,),) = await connection.query("SELECT version, store, copying FROM schema:main")
    connection.bound = (_IDENTITY, found["store"])
    state: Mapping[str, Any] = found
    return state


async def upgrade_tables(connection: SurrealConnection, *, is_copied: bool = False) -> None:
    """Makes the tables, or brings those of an earlier version up to date: one node does it, the
    others wait. `is_copied`: a store is being copied there. Raises StoreUnavailable, StoreRefused.
    """
    while True:
        found = await identify(connection)
        if found.get("copying") and not is_copied:
            raise StoreRefused(
                f"a copy of a store to {connection.where} was not finished: run `exogate store copy` again, "
                "or name another database in [store]"
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
    """Returns the default value of a column."""
    text = column.options["="]
    if column.type in {"text", "json"}:
        return text
    return bool(int(text)) if column.type == "bool" else int(text)


def rows_in_memory() -> sqlite3.Connection:
    """Returns empty tables in memory; triggers note the changed rows."""
    db = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False, cached_statements=1024
    )
    _empty_tables().backup(db)
    return db


@cache
def _empty_tables() -> sqlite3.Connection:
    """Copying these costs a hundredth of defining them."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
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


# --- all rows ------------------------------------------------------------------------------------
_DEADLINE_S = 120.0
_MOST_IDS = 20_000
_IDS = "SELECT VALUE id FROM `{}` START {} LIMIT {}"
_PUT = """BEGIN; INSERT INTO `{}` $rows RETURN NONE; INSERT INTO taken $taken RETURN NONE; COMMIT"""
_NUMBER = "UPSERT ONLY $record SET next = $next RETURN NONE"
_COPY_BEGUN = "UPDATE schema:main SET copying = $name, version = 0, changing = NONE RETURN NONE"
_COPY_DONE = "UPDATE schema:main SET copying = NONE RETURN NONE"


class SurrealRows:
    """The rows of a database, as source or target of a copy."""

    def __init__(self, connection: SurrealConnection, moment: UUID | None = None) -> None:
        self._connection, self._moment = connection, moment

    async def rows(self, table: Table) -> AsyncIterator[Sequence[Row]]:
        """Reads each page by its ids: a limit does not stop the server from scanning a range."""
        start, size = 0, FIRST_ROWS
        while ids := await self._read(_IDS.format(table.name, start, _MOST_IDS)):
            start, first = start + len(ids), 0
            while page := ids[first : first + size]:
                found = await self._read("SELECT * FROM $page", {"page": page})
                rows = [{name: row.get(field_of(name)) for name in table.types} for row in found]
                first, size = first + len(page), next_page(size, rows)
                yield rows

    async def last_numbers(self) -> Mapping[str, int]:
        rows = await self._read("SELECT * FROM numbers")
        return {row["id"].id: row["next"] - 1 for row in rows}

    async def _read(self, text: str, params: Params | None = None) -> list[Any]:
        rows: list[Any]
        (rows,) = await self._connection.query(
            text, params, deadline_s=_DEADLINE_S, moment=self._moment
        )
        return rows

    async def begin(self, name: str) -> None:
        """Marks the database, so that no gateway starts on it before the end, and empties an
        unfinished copy. Raises CopyRefused if the database is not empty."""
        found = await identify(self._connection)
        if found["version"] and not found.get("copying"):
            for table in COPIED:
                if await self._read(f"SELECT id FROM `{table.name}` LIMIT 1"):
                    raise CopyRefused(
                        f"{self._connection.where} is not empty (it has rows of {table.name}): name an "
                        "empty database in [store], or remove this one"
                    )
        await self._connection.commit(_COPY_BEGUN, {"name": name})
        for one in (*TABLES, "numbers", "taken", "guard"):
            text = f"REMOVE TABLE IF EXISTS `{one}`"
            await self._connection.commit(text, deadline_s=_DEADLINE_S)
        await upgrade_tables(self._connection, is_copied=True)

    async def end(self) -> None:
        await self._connection.commit(_COPY_DONE)

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        contents, taken = [], []
        for row in rows:
            record = record_of(table, row)
            marks = {name: True for name in table.marks if row.get(name)}
            content = content_of(table, {one: row[one] for one in table.types}) | marks
            contents.append({"id": record, REVISION: random.getrandbits(62), **content})
            taken += [{"id": one, "row": record} for one in unique_records(table, {**row, **marks})]
        values = {"rows": contents, "taken": taken}
        try:
            text = _PUT.format(table.name)
            await self._connection.query(text, values, deadline_s=_DEADLINE_S)
        except StoreUnavailable:
            raise
        except GatewayError as error:
            raise CopyRefused(f"rows of {table.name} cannot be written: {error}") from error

    async def finish(self, numbers: Mapping[str, int]) -> None:
        for name, last in numbers.items():
            if last:
                values = {"record": RecordID("numbers", name), "next": last + 1}
                await self._connection.commit(_NUMBER, values)
