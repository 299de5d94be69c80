"""The shared store: the same operations over a SurrealDB server.

An operation runs on a small SQLite database in memory, which holds the rows that it reads. What it has not
read yet it finds empty there; then everything that it asked for is read in one request, and it runs again.
Once nothing is missing, the rows that it changed are one commit, which checks and changes the revision of
every row that it relied on; if another was quicker, it runs anew. So each rule of an operation is told
once, and what it has written it finds again as on one machine.
"""

import logging
import random
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Any, TypeVar, cast

import anyio
from anyio import CancelScope

from gateway.domain.errors import GatewayError, StoreUnavailable
from gateway.domain.ids import SessionKey
from gateway.domain.ports import Clock, Stores
from gateway.store.fact_search import FactBase
from gateway.store.faults import TextRefused, has_no_utf8
from gateway.store.sqlite import stores_over
from gateway.store.surreal_connection import (
    RecordExists,
    RecordID,
    StatementRefused,
    SurrealConnection,
    TransactionConflict,
)
from gateway.store.tables import ENCODED, TABLES, WORDS, Table
from gateway.store.transaction import Row, SessionRow, SqliteTransaction, Taken, Terms, Values
from gateway.store.turns import ExtractionQueue, LocalTurns
from gateway.store.writer import OF_ONE, OperationFailed

log = logging.getLogger(__name__)

T = TypeVar("T")
Operation = Callable[[Any], T]

_KNOWN = 4096  # sessions; about 1 kB each
_NUMBERS = 64  # that a gateway takes of a table at once
_WITHIN_S = 10.0  # an operation that others always forestall
_TRIES = 3  # of an operation that breaks a rule of the tables
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
_REVISION = "rev"
_UNKNOWN = 1 << 30  # stands for a number, in a run that is done again


# --- what the server is told of the tables -------------------------------------------------------
_TYPES = {"text": "string", "json": "string", "key": "string", "int": "int", "time": "int"}
_TYPES |= {"bool": "bool", "real": "float", "blob": "bytes"}


def _field(column: str) -> str:
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
        types |= {_REVISION: ("int", False), **{f"in_{one}": ("bool", True) for one in table.marks}}
        for name, (kind, is_optional) in types.items():
            told = f"option<{kind}>" if is_optional else kind
            parts.append(_DEFINE.format(_field(name), table.name, told))
        for name, columns in _indexes(table).items():
            fields = ", ".join(f"`{_field(one)}`" for one in columns)
            parts.append(f"DEFINE INDEX IF NOT EXISTS `{name}` ON `{table.name}` FIELDS {fields}")
    return ";\n".join(parts)


_DEFINE = "DEFINE FIELD IF NOT EXISTS `{}` ON `{}` TYPE {}"


def _indexes(table: Table) -> dict[str, Sequence[str]]:
    """An index that holds a part of the rows is one over a field that only these have. None is unique:
    whatever no two rows have in common is a record of its own, in `taken`."""
    found = dict[str, Sequence[str]]()
    for one in table.indexes:
        mark = [f"in_{one.name}"] if one.name in table.marks else []
        found[one.name] = [*mark, *one.columns.split(", ")]
    found = {**table.once, **found}
    if table.number and [table.number] != [*table.record]:
        found["numbered"] = [table.number]
    return found


def _record_of(table: Table, row: Row) -> RecordID:
    values = tuple(row[one] for one in table.record)
    return RecordID(table.name, values[0] if len(values) == 1 else values)


def _content(table: Table, row: Row) -> dict[str, object]:
    told = {name: value for name, value in row.items() if value is not None}
    for name, kind in table.types.items():
        if name in told and kind in {"bool", "real"}:
            told[name] = bool(told[name]) if kind == "bool" else float(told[name])
    return {_field(name): value for name, value in told.items()}


# --- what is read --------------------------------------------------------------------------------
_Read = tuple[str, tuple[object, ...]]  # a statement, whose values are $0, $1, …


class _Statement:
    """A SELECT over one table."""

    def __init__(self, table: Table, terms: Terms, index: str) -> None:
        self._values: list[object] = []
        self._source, rest = self._within(table, dict(terms))
        conditions = [self._condition(table, name, value) for name, value in rest.items()]
        if index and index in table.marks:
            conditions.append(f"in_{index} = true")
        self._where = f"WHERE {' AND '.join(conditions)}" if conditions else ""

    def _within(self, table: Table, terms: dict[str, object]) -> tuple[str, dict[str, object]]:
        """The records, or the range of them, that the terms name, and the other terms."""
        first, several = table.record[0], len(table.record) > 1
        if all(terms.get(one) is not None for one in table.record):
            found = _records_of(table, [terms.pop(one) for one in table.record])
            return self._value(found), terms
        if several and _is_one(terms.get(first)):
            mark = self._value(terms.pop(first))
            return f"`{table.name}`:[{mark}, NONE]..[{mark}, {{}}]", terms
        is_number = table.types[first] == "int" and not several
        low, high = _bounds(first, terms) if is_number else ("", "")
        return f"`{table.name}`" + (f":{low}..{high}" if low or high else ""), terms

    def _value(self, value: object) -> str:
        self._values.append(_plain(value))
        return f"${len(self._values) - 1}"

    def _condition(self, table: Table, name: str, value: object) -> str:
        columns, _, how = name.partition(" ")
        told = f"`{_field(columns)}`"
        if value is None:
            return f"{told} = NONE"
        if how == "contains":
            return f"string::contains({told}, {self._value(value)})"
        if not _is_one(value):
            mark = self._value(value)
            fields = ", ".join(f"`{_field(one)}`" for one in columns.split(","))
            return f"[{fields}] {how} {mark}" if how else f"{told} IN {mark}"
        condition = f"{told} {how or '='} {self._value(value)}"
        return f"{told} != NONE AND {condition}" if how and columns in table.optional else condition

    def rows(self, order: str, limit: int | None) -> _Read:
        by = ", ".join(
            f"`{_field(one[1:])}` DESC" if one[0] == "-" else f"`{_field(one)}`"
            for one in order.split()
        )
        sorted_ = f" ORDER BY {by}" if by and limit is not None else ""
        cut = "" if limit is None else f" LIMIT {max(0, limit)}"
        return f"SELECT * FROM {self._source} {self._where}{sorted_}{cut}", tuple(self._values)

    def counts(self, columns: str) -> _Read:
        names = [f"`{_field(one)}`" for one in columns.split()]
        select = f"SELECT {', '.join([*names, 'count() AS count'])} FROM {self._source}"
        group = f"GROUP BY {', '.join(names)}" if names else "GROUP ALL"
        return f"{select} {self._where} {group}", tuple(self._values)


def _records_of(table: Table, values: Sequence[object]) -> tuple[RecordID, ...]:
    """A tuple is any of its values."""
    each: list[Any] = [[one] if _is_one(one) else one for one in values]
    named = (dict(zip(table.record, map(_plain, one), strict=True)) for one in product(*each))
    return tuple(_record_of(table, row) for row in named)


def _bounds(name: str, terms: dict[str, object]) -> tuple[str, str]:
    """Takes the bounds of a number out of the terms: the first, and the one beyond the last."""
    low, high = "", ""
    for how, more in ((">", 1), (">=", 0), ("<", 0), ("<=", 1)):
        bound = terms.pop(f"{name} {how}", None)
        if isinstance(bound, int) and how[0] == ">":
            low = str(bound + more)
        elif isinstance(bound, int):
            high = str(bound + more)
    return low, high


def _pinned(table: Table, terms: Terms) -> dict[str, object] | None:
    """The terms that name one row, whatever the others say."""
    for names in (table.record, [table.number]):
        if all(_is_one(terms.get(str(one))) for one in names):
            return {str(one): _plain(terms[str(one)]) for one in names}
    return None


def _is_one(value: object) -> bool:
    return value is not None and (not isinstance(value, tuple) or isinstance(value, SessionKey))


def _plain(value: object) -> Any:
    """As it stands in a record."""
    if value.__class__ is tuple:
        return tuple(map(_plain, value))
    encode = ENCODED.get(value.__class__)
    return value if encode is None else encode(value)


# --- one run of an operation ---------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Loaded:
    """A row as the server has it."""

    table: Table
    record: RecordID
    revision: int
    row: Row  # with the marks of the indexes that hold it


@dataclass(slots=True)
class _Known:
    """A session as our last commit left it."""

    loaded: _Loaded
    session: SessionRow


_UNLESS = "IF ({}) == NONE {{ THROW 'exogate:stale' }}"


@dataclass(slots=True)
class _Commit:
    """A transaction in the making."""

    parts: list[str] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)

    def value(self, value: object) -> str:
        name = f"v{len(self.values)}"
        self.values[name] = value
        return f"${name}"

    def create(self, record: RecordID, content: Mapping[str, object], *, anew: bool) -> None:
        verb = "CREATE" if anew else "UPSERT"
        told = f"{self.value(record)} CONTENT {self.value(content)}"
        self.parts.append(f"{verb} ONLY {told} RETURN NONE")

    def require(self, loaded: _Loaded, change: str) -> None:
        """A change of a row that must still be as it was read."""
        verb, _, rest = change.partition(" ")
        was = f"WHERE {_REVISION} = {self.value(loaded.revision)}"
        told = f"{verb} ONLY {self.value(loaded.record)} {rest} {was} RETURN BEFORE"
        self.parts.append(_UNLESS.format(told))

    def guard(self, record: RecordID, seen: int | None) -> None:
        told = f"{self.value(record)} SET {_REVISION} = {self.value(_revision())}"
        if seen is None:
            self.parts.append(f"CREATE ONLY {told} RETURN NONE")
        else:
            was = f"WHERE {_REVISION} = {self.value(seen)}"
            self.parts.append(_UNLESS.format(f"UPDATE ONLY {told} {was} RETURN BEFORE"))

    @property
    def text(self) -> str:
        return f"{{ {'; '.join(self.parts)}; RETURN true }}"


@dataclass(slots=True)
class _Reads:
    """What was read for an operation, in so many requests."""

    answers: dict[_Read, Any] = field(default_factory=dict)
    tables: dict[_Read, Table | None] = field(default_factory=dict)
    requests: int = 0
    numbers: dict[str, list[int]] = field(default_factory=dict)  # that it gives to new rows


class SurrealTransaction(SqliteTransaction):
    """One run of an operation on the rows that were read for it."""

    is_whole = False
    has_erased = False
    may_hold_notices = True
    accepted = 0

    def __init__(
        self,
        store: "SurrealStore",
        reads: "_Reads",
        *,
        is_first: bool,
    ) -> None:
        super().__init__(store.memory)
        self._store, self._answers, self._is_first = store, reads.answers, is_first
        self.missing: dict[_Read, Table | None] = {}
        self.unnumbered: set[str] = set()
        self._loaded: dict[tuple[str, int], _Loaded] = {}
        self._relied: set[tuple[str, int]] = set()
        self._blind: set[RecordID] = set()  # put in the place of whatever is there
        self._numbers, self._numbered = reads.numbers, Counter[str]()
        self._guarded: dict[RecordID, int | None] = {}
        self.later = []
        self.series = dict(store.series)
        self.last_stamp = store.last_stamp

    # --- reading ---------------------------------------------------------------------------------
    def find(
        self,
        table: str,
        terms: Terms,
        columns: str = "",
        *,
        order: str = "",
        limit: int | None = None,
        index: str = "",
    ) -> list[Row]:
        self._require(TABLES[table], terms, order=order, limit=limit, index=index)
        return super().find(table, terms, columns, order=order, limit=limit, index=index)

    def tally(
        self, table: str, terms: Terms, columns: str = "", *, index: str = ""
    ) -> dict[tuple[Any, ...], int]:
        """As the server has it, without what this operation has written."""
        read = _Statement(TABLES[table], terms, index).counts(columns)
        if read not in self._answers:
            self.missing[read] = None
        names = [_field(one) for one in columns.split()]
        rows = self._answers.get(read, ())
        return {tuple(row.get(one) for one in names): row["count"] for row in rows}

    def _require(
        self,
        table: Table,
        terms: Terms,
        *,
        order: str = "",
        limit: int | None = None,
        index: str = "",
    ) -> bool:
        """Has these rows read, if they were not. Returns whether they were."""
        known: dict[str, object] = {}
        for name, value in terms.items():
            known[name] = value
            if isinstance(value, SessionKey) and table.types[name] == "int":
                session = self.first("session", {"key": value}, "id")
                if session is None:
                    return True
                known[name] = session["id"]
        if (pinned := _pinned(table, known)) is None:
            read = _Statement(table, known, index).rows(order, limit)
        elif self._holds(table, pinned):
            return True
        else:
            read = _Statement(table, pinned, "").rows("", None)
        if read not in self._answers:
            self.missing[read] = table
            return False
        return True

    def _holds(self, table: Table, pinned: Terms) -> bool:
        """Whether the memory has that row: the commit relies on it."""
        where = " AND ".join(f"{name} = ?" for name in pinned)
        found = self.db.execute(
            f"SELECT rowid FROM {table.name} WHERE {where}", [*pinned.values()]
        ).fetchone()
        if found is not None and (table.name, found[0]) in self._loaded:
            self._relied.add((table.name, found[0]))
        return found is not None

    def session(self, key: SessionKey) -> SessionRow | None:
        known = self._store.known.get(key)
        if known is not None and self._is_first and key not in self._sessions:
            self.load(known.loaded)
            self._sessions[key] = replace(known.session)
        return super().session(key)

    def load(self, loaded: _Loaded) -> tuple[str, int]:
        table = loaded.table
        values = [loaded.row.get(name) for name in table.types]
        marks = ", ".join("?" * len(values))
        insertion = f"INSERT OR IGNORE INTO {table.name} VALUES ({marks})"
        added = self.db.execute(insertion, values)
        where = " AND ".join(f"{name} = ?" for name in table.record)
        key = [loaded.row[name] for name in table.record]
        (number,) = self.db.execute(f"SELECT rowid FROM {table.name} WHERE {where}", key).fetchone()
        place = (table.name, int(number))
        if added.rowcount:
            self._loaded[place] = loaded
            self.db.execute("DELETE FROM changed WHERE name = ? AND number = ?", place)
        return place

    def guard(self, *names: str) -> None:
        record = RecordID("guard", names)
        read: _Read = ("SELECT VALUE rev FROM $0", (record,))
        if read in self._answers:
            self._guarded[record] = next(iter(self._answers[read]), None)
        else:
            self.missing[read] = None

    # --- writing ---------------------------------------------------------------------------------
    def insert(self, table: str, row: Values, *, taken: Taken = "fail") -> int:
        declared = TABLES[table]
        if declared.number and declared.number not in row:
            row = {declared.number: self._next(table), **row}
        plain = {name: _plain(value) for name, value in row.items()}
        if taken != "replace" and not self._is_first:  # before, the commit finds out
            for names in (declared.record, *declared.once.values()):
                self._require(declared, {one: plain.get(one) for one in names})
        elif taken == "replace" and not self._was_read(declared, plain):
            self._blind.add(_record_of(declared, plain))
        return super().insert(table, row, taken=taken)

    def _was_read(self, table: Table, row: Row) -> bool:
        record = {one: row[one] for one in table.record}
        return _Statement(table, record, "").rows("", None) in self._answers

    def _next(self, table: str) -> int:
        """The same in each run of an operation, so that it asks for the same rows."""
        place = self._numbered[table]
        self._numbered[table] += 1
        own, more = self._numbers.setdefault(table, []), self._store.numbers.get(table)
        if place >= len(own):
            if not more:
                self.unnumbered.add(table)
                return _UNKNOWN + place
            own.append(more.pop(0))
        return own[place]

    def add(self, table: str, rows: Sequence[Values], amounts: Values) -> None:
        declared = TABLES[table]
        for row in rows:
            self._require(declared, {one: row[one] for one in declared.record})
        super().add(table, rows, amounts)

    def change(self, table: str, terms: Terms, values: Values, *, index: str = "") -> int:
        """Where nothing is known yet, it says that it has changed a row: what comes next is read at
        the same time."""
        is_known = self._require(TABLES[table], terms, index=index)
        return super().change(table, terms, values, index=index) if is_known else 1

    def delete(self, table: str, terms: Terms) -> int:
        self._require(TABLES[table], terms)
        return super().delete(table, terms)

    # --- the commit ------------------------------------------------------------------------------
    def commit(self) -> tuple[_Commit, dict[SessionKey, _Known]]:
        """What this run has changed, and the sessions as they are then."""
        commit, now = _Commit(), dict[RecordID, _Loaded]()
        changed = self.db.execute("SELECT DISTINCT name, number FROM changed").fetchall()
        for place in changed:
            loaded, new = self._loaded.get(place), self._row_at(*place)
            if new is not None:
                now[new.record] = new
            self._move_taken(commit, loaded, new)
            self._write(commit, loaded, new)
        if commit.parts:
            for place in self._relied - {*changed}:
                new = replace(self._loaded[place], revision=_revision())
                told = f"UPDATE SET {_REVISION} = {commit.value(new.revision)}"
                commit.require(self._loaded[place], told)
                now[new.record] = new
            for record, revision in self._guarded.items():
                commit.guard(record, revision)
        known = dict[SessionKey, _Known]()
        for key, session in self._sessions.items():
            record = RecordID("session", str(key))
            before = self._store.known.get(key)
            row = now.get(record) or (before.loaded if before else None)
            if row is not None:
                known[key] = _Known(row, session)
        return commit, known

    def _row_at(self, name: str, number: int) -> _Loaded | None:
        table = TABLES[name]
        marks = [f"({condition})" for condition in table.marks.values()]
        select = f"SELECT {', '.join([*table.types, *marks])} FROM {name} WHERE rowid = ?"
        values = self.db.execute(select, (number,)).fetchone()
        if values is None:
            return None
        row = dict(zip([*table.types, *(f"in_{one}" for one in table.marks)], values, strict=True))
        row |= {name: True if row[name] else None for name in row if name.startswith("in_")}
        return _Loaded(table, _record_of(table, row), _revision(), row)

    def _write(self, commit: _Commit, old: _Loaded | None, new: _Loaded | None) -> None:
        if old is not None and (new is None or new.record != old.record):
            commit.require(old, "DELETE")
            old = None
        if new is None:
            return
        content = {**_content(new.table, new.row), _REVISION: new.revision}
        if old is None:
            commit.create(new.record, content, anew=new.record not in self._blind)
        else:
            commit.require(old, f"UPDATE CONTENT {commit.value(content)}")

    def _move_taken(self, commit: _Commit, old: _Loaded | None, new: _Loaded | None) -> None:
        was, now = _taken(old), _taken(new)
        for one in was - now:
            commit.parts.append(f"DELETE {commit.value(one)} RETURN NONE")
        for one in now - was:
            assert new is not None
            blind = new.record in self._blind
            commit.create(one, {"row": new.record}, anew=not blind)


def _taken(loaded: _Loaded | None) -> set[RecordID]:
    """Records that stand for what no two rows may have in common."""
    if loaded is None:
        return set()
    table, row, found = loaded.table, loaded.row, set[RecordID]()
    for name, columns in table.once.items():
        values = tuple(row.get(one) for one in columns)
        if None not in values and (name not in table.marks or row.get(f"in_{name}")):
            found.add(RecordID("taken", (f"{table.name}_{name}", *values)))
    return found


def _revision() -> int:
    """Never the one before: the server skips a write that changes nothing, and it protects nothing."""
    return random.getrandbits(62)


# --- the store -----------------------------------------------------------------------------------
_Failed = Callable[[Exception], None]


class SurrealStore:
    """Runs operations; for rooms it is the writer, the readers, and what the writer knows."""

    may_hold_notices = True

    def __init__(self, connection: SurrealConnection) -> None:
        self.connection = connection
        self.memory = _memory()
        self.known: dict[SessionKey, _Known] = {}
        self.series: dict[tuple[str, str, str], int] = {}
        self.numbers: dict[str, list[int]] = {}
        self.last_stamp = 0
        self.unsettled: list[Row] = []
        self.last_day = ""
        self._soon: list[tuple[Operation[Any], _Failed]] = []
        self._again = anyio.Lock()
        self._wanted, self._idle = anyio.Event(), anyio.Event()
        self._stopped: str | None = None

    async def open(self) -> None:
        """Makes what is not there yet. Raises StoreUnavailable, StoreRefused."""
        await self.connection.query(definitions(), deadline_s=60.0)
        self.unsettled = await self.read(lambda tx: tx.find("reservation", {}, order="id"))
        day = await self.read(lambda tx: tx.first("spend", {"kind": "day"}, "name", order="-name"))
        self.last_day = day["name"] if day else ""
        pulse = {"id": 1, "commits": 0, "probed_at": 0}
        await self.write(lambda tx: tx.insert("pulse", pulse, taken="keep"), durable=True)

    async def read(self, query: Operation[T]) -> T:
        """Raises StoreUnavailable, TextRefused, and what the query raises."""
        self._require_open()
        reads = _Reads()
        while True:
            result, error, transaction, _ = self._run(query, reads, is_first=False)
            if await self._fetched(transaction, reads):
                continue
            if error is None:
                return cast(T, result)
            await self._reread(reads, error)

    async def write(self, operation: Operation[T], *, durable: bool) -> T:
        """After what is to be written soon, and always durable. Raises StoreUnavailable, TextRefused, and
        what the operation raises; it then wrote nothing."""
        self._require_open()
        await self.caught_up()
        return await self._write(operation)

    async def _write(self, operation: Operation[T]) -> T:
        """Those that were forestalled come one after the other, so that each gets its turn."""
        reads = _Reads()
        done = await self._attempt(operation, reads, 0)
        if done is not None:
            return done[0]
        pause_s, end = _FIRST_PAUSE_S, anyio.current_time() + _WITHIN_S
        tries = 0
        async with self._again:
            while anyio.current_time() < end:
                reads, tries = _Reads(numbers=reads.numbers), tries + 1
                done = await self._attempt(operation, reads, tries)
                if done is not None:
                    return done[0]
                await anyio.sleep(pause_s * random.random())
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise StoreUnavailable("others write the same at the same time: try again")

    async def _attempt(self, operation: Operation[T], reads: _Reads, tries: int) -> tuple[T] | None:
        """None if another was quicker, or if what we remember or had read may be why it failed."""
        while True:
            result, error, transaction, done = self._run(operation, reads, is_first=not tries)
            if await self._fetched(transaction, reads):
                continue
            if error is None:
                return (cast(T, result),) if await self._committed(transaction, done) else None
            if not tries or (isinstance(error, OperationFailed) and tries < _TRIES):
                return None
            await self._reread(reads, error)

    def _run(
        self,
        operation: Operation[T],
        reads: "_Reads",
        *,
        is_first: bool,
    ) -> tuple[Any, Exception | None, SurrealTransaction, Any]:
        """Without waiting, so that runs of several operations never meet in the memory."""
        transaction = SurrealTransaction(self, reads, is_first=is_first)
        result: Any = None
        failed: Exception | None = None
        done = None
        self.memory.execute("BEGIN")
        try:
            for one in chain(*reads.answers.values()):
                if isinstance(one, _Loaded):
                    transaction.load(one)
            result = operation(transaction)
            done = transaction.commit()
        except GatewayError as error:
            failed = error
        except (*OF_ONE, sqlite3.Error) as error:  # also of what was not read yet
            failed = TextRefused() if has_no_utf8(error) else OperationFailed(str(error))
            failed.__cause__ = error
        finally:
            self.memory.execute("ROLLBACK")
        return result, failed, transaction, done

    async def _fetched(self, transaction: SurrealTransaction, reads: _Reads) -> bool:
        """Reads what a run has missed; False if that is nothing."""
        for name in transaction.unnumbered:
            await self._take_numbers(name)
        if transaction.missing:
            reads.requests += 1
            reads.tables |= transaction.missing
            await self._fetch(reads, transaction.missing)
        return bool(transaction.missing or transaction.unnumbered)

    async def _reread(self, reads: _Reads, error: Exception) -> None:
        """Reads all of it at one moment; raises the error if it was so already."""
        if reads.requests <= 1:
            raise error
        reads.requests = 1
        await self._fetch(reads, reads.tables)

    async def _fetch(self, reads: _Reads, tables: Mapping[_Read, Table | None]) -> None:
        text, values = list[str](), dict[str, object]()
        for number, (select, given) in enumerate(tables):
            text.append(f"({select.replace('$', f'$r{number}_')})")
            values |= {f"r{number}_{place}": value for place, value in enumerate(given)}
        (found,) = await self.connection.query(f"RETURN [{', '.join(text)}]", values)
        for (read, table), rows in zip(tables.items(), found, strict=True):
            reads.answers[read] = rows if table is None else [_loaded(table, row) for row in rows]

    async def _take_numbers(self, name: str) -> None:
        text = "UPSERT ONLY $r SET next = (next ?? 1) + $n RETURN VALUE next"
        values = {"r": RecordID("numbers", name), "n": _NUMBERS}
        (beyond,) = await self.connection.commit(text, values)
        self.numbers.setdefault(name, []).extend(range(beyond - _NUMBERS, beyond))

    async def _committed(self, transaction: SurrealTransaction, done: Any) -> bool:
        """False if another has changed what the operation relied on."""
        commit, known = done
        if commit.parts:
            try:
                await self.connection.query(commit.text, commit.values)
            except (TransactionConflict, RecordExists, StatementRefused):
                for key in known:
                    self.known.pop(key, None)
                return False
            self.known |= known
            while len(self.known) > _KNOWN:
                del self.known[next(iter(self.known))]
            self.series |= transaction.series
            for change in transaction.later:
                change()
            self.last_stamp = max(self.last_stamp, transaction.last_stamp)
        return True

    # --- what is written soon --------------------------------------------------------------------
    def write_soon(self, operation: Operation[Any], failed: _Failed) -> None:
        if self._stopped is not None:
            failed(StoreUnavailable(self._stopped))
            return
        self._soon.append((operation, failed))
        self._wanted.set()

    async def run(self) -> None:
        """Writes what is to be written soon, in its order, until it is cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            await self._write_soon()

    async def _write_soon(self) -> None:
        while self._soon:
            operation, failed = self._soon[0]
            try:
                await self._write(operation)
            except GatewayError as error:
                failed(error)
            del self._soon[0]
        self._idle.set()
        self._idle = anyio.Event()

    async def caught_up(self) -> None:
        while self._soon:
            await self._idle.wait()

    async def close(self) -> None:
        with CancelScope(shield=True), anyio.move_on_after(_WITHIN_S):
            await self.caught_up()
        self._stopped = self._stopped or "the store is closed"

    def _require_open(self) -> None:
        if self._stopped is not None:
            raise StoreUnavailable(self._stopped)


def _loaded(table: Table, told: Mapping[str, Any]) -> _Loaded:
    marks = {f"in_{one}": told.get(f"in_{one}") for one in table.marks}
    row = {name: told.get(_field(name)) for name in table.types} | marks
    return _Loaded(table, _record_of(table, row), told[_REVISION], row)


def _memory() -> sqlite3.Connection:
    """The tables, empty, with notes of which rows were changed."""
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


class SharedFacts(FactBase, ExtractionQueue, LocalTurns):
    """Implements the port FactStore."""


@asynccontextmanager
async def open_surreal(connection: SurrealConnection, clock: Clock) -> AsyncIterator[Stores]:
    """Over a connection that is open. Raises StoreUnavailable, StoreRefused."""
    async with anyio.create_task_group() as group:
        group.start_soon(connection.run)
        store = SurrealStore(connection)
        try:
            await store.open()
            group.start_soon(store.run)
            over = (store, store, store)
            facts = SharedFacts(*over, store.memory)
            stores = replace(stores_over(*over, clock), facts=facts)
            try:
                yield stores
            finally:
                await stores.care.close()
        finally:
            group.cancel_scope.cancel()
            store.memory.close()
