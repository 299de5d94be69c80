"""All rows of a SurrealDB database, read as of one moment or put into an empty one."""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from gateway.domain.backups import CopyRefused
from gateway.domain.errors import GatewayError, StoreUnavailable
from gateway.store.copying import COPIED, FIRST_ROWS, next_page
from gateway.store.surreal_connection import Params, RecordID, SurrealConnection
from gateway.store.surreal_schema import (
    REVISION,
    content_of,
    field_of,
    identify,
    record_of,
    unique_records,
    upgrade_tables,
)
from gateway.store.tables import TABLES, Table
from gateway.store.transaction import Row

_DEADLINE_S = 120.0
_MOST_IDS = 20_000
_IDS = "SELECT VALUE id FROM `{}` START {} LIMIT {}"
_PUT = """BEGIN; INSERT INTO `{}` $rows RETURN NONE; INSERT INTO taken $taken RETURN NONE; COMMIT"""
_NUMBER = "UPSERT ONLY $record SET next = $next RETURN NONE"
_BEGUN = "UPDATE schema:main SET copying = $name, version = 0, changing = NONE RETURN NONE"
_DONE = "UPDATE schema:main SET copying = NONE RETURN NONE"


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
        await self._connection.commit(_BEGUN, {"name": name})
        for one in (*TABLES, "numbers", "taken", "guard"):
            text = f"REMOVE TABLE IF EXISTS `{one}`"
            await self._connection.commit(text, deadline_s=_DEADLINE_S)
        await upgrade_tables(self._connection, is_copied=True)

    async def end(self) -> None:
        await self._connection.commit(_DONE)

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
