"""One run of an operation over a SurrealDB server: it works on the rows that were read for it, in a
small SQLite database in memory, and becomes a commit that checks the revision of every row it
relied on."""

import random
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any

from gateway.domain.ids import SessionKey
from gateway.store.surreal_connection import RecordID
from gateway.store.surreal_schema import (
    REVISION,
    content_of,
    field_of,
    record_of,
    rows_in_memory,
    unique_records,
)
from gateway.store.tables import ENCODED, TABLES, Table
from gateway.store.transaction import OnConflict, Row, SessionRow, Terms, Transaction, Values

# --- queries: the terms of every transaction, as one SELECT each ---------------------------------
_FEW = 17  # rows of a partial index within a range; with more the whole range is scanned

Read = tuple[str, tuple[object, ...]]  # a statement, whose values are $0, $1, …


class Selection:
    """A SELECT over one table."""

    def __init__(self, table: Table, terms: Terms, index: str) -> None:
        self._values: list[object] = []
        self._span = "", ""  # of numbers
        self._source, rest = self._within(table, dict(terms))
        conditions = [self._condition(table, name, value) for name, value in rest.items()]
        self._table = table
        self._mark = f"in_{index} = true" if f"in_{index}" in table.marks else ""
        if self._mark:
            conditions.append(self._mark)
        self._where = f"WHERE {' AND '.join(conditions)}" if conditions else ""

    def _within(self, table: Table, terms: dict[str, object]) -> tuple[str, dict[str, object]]:
        """Returns the records, or the range of records, that the terms name, and the other terms."""
        first, several = table.record[0], len(table.record) > 1
        if all(terms.get(one) is not None for one in table.record):
            found = records_of(table, [terms.pop(one) for one in table.record])
            return self._value(found), terms
        if several and _is_one(terms.get(first)):
            mark = self._value(terms.pop(first))
            return f"`{table.name}`:[{mark}, NONE]..=[{mark}, ..]", terms
        is_number = table.types[first] == "int" and not several
        low, high = self._span = _bounds(first, terms) if is_number else ("", "")
        return f"`{table.name}`" + (f":{low}..{high}" if low or high else ""), terms

    def _value(self, value: object) -> str:
        self._values.append(plain_of(value))
        return f"${len(self._values) - 1}"

    def _condition(self, table: Table, name: str, value: object) -> str:
        columns, _, how = name.partition(" ")
        named = f"`{field_of(columns)}`"
        if value is None:
            return f"{named} = NONE"
        if how == "contains":
            return f"string::contains({named}, {self._value(value)})"
        if not _is_one(value):
            mark = self._value(value)
            fields = ", ".join(f"`{field_of(one)}`" for one in columns.split(","))
            return f"[{fields}] {how} {mark}" if how else f"{named} IN {mark}"
        condition = f"{named} {how or '='} {self._value(value)}"
        return (
            f"{named} != NONE AND {condition}" if how and columns in table.optional else condition
        )

    def rows(self, order: str, limit: int | None) -> Read:
        by = ", ".join(
            f"`{field_of(one[1:])}` DESC" if one[0] == "-" else f"`{field_of(one)}`"
            for one in order.split()
        )
        sorted_ = f" ORDER BY {by}" if by and limit is not None else ""
        cut = "" if limit is None else f" LIMIT {max(0, limit)}"
        rest = f"{self._where}{sorted_}{cut}"
        text = f"SELECT * FROM {self._source} {rest}"
        if self._mark and all(self._span):
            text = self._few(rest, text)
        return text, tuple(self._values)

    def _few(self, rest: str, every: str) -> str:
        """Reads the rows of a partial index within a range of numbers. The server would scan the
        whole range; usually the rows are few, and the index finds those from the start of the range
        on."""
        (low, high), by = self._span, f"`{field_of(self._table.record[0])}`"
        first = f"SELECT * FROM `{self._table.name}` WHERE {self._mark} AND {by} >= {low}"
        return (
            f"{{ LET $few = ({first} ORDER BY {by} LIMIT {_FEW}); "
            f"IF array::len($few) < {_FEW} OR $few[{_FEW - 1}].{by} >= {high} "
            f"{{ SELECT * FROM (SELECT * FROM $few WHERE {by} < {high}) {rest} }} ELSE {{ {every} }} }}"
        )

    def sums(self, columns: str, amounts: str) -> Read:
        names = [f"`{field_of(one)}`" for one in columns.split()]
        sums = (f"math::sum(`{one}`) AS `{one}`" for one in amounts.split())
        select = f"SELECT {', '.join([*names, 'count() AS calls', *sums])} FROM {self._source}"
        group = f"GROUP BY {', '.join(names)}" if names else "GROUP ALL"
        return f"{select} {self._where} {group}", tuple(self._values)


def records_of(table: Table, values: Sequence[object]) -> tuple[RecordID, ...]:
    """Returns the records of these key values; a tuple means any of its values."""
    each: list[Any] = [[one] if _is_one(one) else one for one in values]
    named = (dict(zip(table.record, map(plain_of, one), strict=True)) for one in product(*each))
    return tuple(record_of(table, row) for row in named)


def _bounds(name: str, terms: dict[str, object]) -> tuple[str, str]:
    """Removes the bounds of a number from the terms. Returns the first number, and the one after
    the last."""
    found = {">": "", "<": ""}
    for how, more in ((">", 1), (">=", 0), ("<", 0), ("<=", 1)):
        bound = terms.pop(f"{name} {how}", None)
        if isinstance(bound, int):
            found[how[0]] = str(bound + more)
    return found[">"], found["<"]


def pinned_by(table: Table, terms: Terms) -> dict[str, object] | None:
    """Returns the terms that identify one row, whatever the others require."""
    for names in (table.record, [table.number]):
        if all(_is_one(terms.get(str(one))) for one in names):
            return {str(one): plain_of(terms[str(one)]) for one in names}
    return None


def _is_one(value: object) -> bool:
    return value is not None and (not isinstance(value, tuple) or isinstance(value, SessionKey))


def plain_of(value: object) -> Any:
    """Returns the value as a record holds it."""
    if value.__class__ is tuple:
        return tuple(map(plain_of, value))
    encode = ENCODED.get(value.__class__)
    return value if encode is None else encode(value)


# --- rows and commits ----------------------------------------------------------------------------
REMEMBERED = frozenset({"run", "spend", "reservation"})
_UNKNOWN = 1 << 30  # placeholder for a number, in a run that is repeated


@dataclass(frozen=True, slots=True)
class LoadedRow:
    """A row as the server has it."""

    table: Table
    record: RecordID
    revision: int
    row: Row  # including the marks of its partial indexes


@dataclass(slots=True)
class KnownSession:
    """A session as the last commit of this gateway left it."""

    loaded: LoadedRow
    session: SessionRow


@dataclass(slots=True)
class SurrealCommit:
    """A transaction under construction."""

    parts: list[str] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)
    guarded: dict[RecordID, int] = field(default_factory=dict)
    rows: dict[RecordID, LoadedRow] = field(default_factory=dict)  # as the commit leaves them
    gone: list[RecordID] = field(default_factory=list)

    @property
    def marks(self) -> Mapping[RecordID, int]:
        """Revisions that only this commit writes."""
        return {one.record: one.revision for one in self.rows.values()} | self.guarded

    def value(self, value: object) -> str:
        name = f"v{len(self.values)}"
        self.values[name] = value
        return f"${name}"

    def create(self, record: RecordID, content: Mapping[str, object], *, is_new: bool) -> None:
        verb = "CREATE" if is_new else "UPSERT"
        target = f"{self.value(record)} CONTENT {self.value(content)}"
        self.parts.append(f"{verb} ONLY {target} RETURN NONE")

    def require(self, loaded: LoadedRow, change: str) -> None:
        """Changes a row that must still be as it was read."""
        verb, _, rest = change.partition(" ")
        target = f"{verb} ONLY {self.value(loaded.record)} {rest}"
        self._unless_changed(target, loaded.revision)

    def _unless_changed(self, target: str, revision: int) -> None:
        was = f"WHERE {REVISION} = {self.value(revision)} RETURN BEFORE"
        self.parts.append(f"IF ({target} {was}) == NONE {{ THROW 'exogate:stale' }}")

    def guard(self, record: RecordID, seen: int | None) -> None:
        self.guarded[record] = _revision()
        target = f"{self.value(record)} SET {REVISION} = {self.value(self.guarded[record])}"
        if seen is None:
            self.parts.append(f"CREATE ONLY {target} RETURN NONE")
        else:
            self._unless_changed(f"UPDATE ONLY {target}", seen)

    @property
    def text(self) -> str:
        return f"{{ {'; '.join(self.parts)}; RETURN true }}"


@dataclass(slots=True)
class Reads:
    """The rows that were read for an operation, and the number of requests."""

    answers: dict[Read, Any] = field(default_factory=dict)
    tables: dict[Read, Table | None] = field(default_factory=dict)
    requests: int = 0
    numbers: dict[str, list[int]] = field(default_factory=dict)  # numbers for its new rows


class RowMemory:
    """The rows that a gateway remembers of its store, and an empty database for the runs of
    operations."""

    def __init__(self) -> None:
        self.memory: sqlite3.Connection = rows_in_memory()
        self.may_hold_notices = True
        self.rows: dict[RecordID, LoadedRow] = {}
        self.known: dict[SessionKey, KnownSession] = {}
        self.keys: dict[int, SessionKey] = {}  # of written sessions, by their numbers
        self.series: dict[tuple[str, str, str], int] = {}
        self.numbers: dict[str, list[int]] = {}
        self.last_stamp = 0


class SurrealTransaction(Transaction):
    """One run of an operation on the rows that were read for it."""

    is_whole = False
    has_erased = False
    accepted = 0

    def __init__(self, store: RowMemory, reads: Reads, *, is_first: bool) -> None:
        super().__init__(store.memory)
        self._store, self._answers, self._is_first = store, reads.answers, is_first
        self.missing: dict[Read, Table | None] = {}
        self.unnumbered: set[str] = set()
        self._loaded: dict[tuple[str, int], LoadedRow] = {}
        self._relied: set[tuple[str, int]] = set()
        self._blind: set[RecordID] = set()  # written over any existing row
        self._numbers, self._numbered = reads.numbers, Counter[str]()
        self._guarded: dict[RecordID, int | None] = {}
        self.later = []
        self.is_from_memory = False
        self.may_hold_notices = store.may_hold_notices
        self.series = dict(store.series)
        self.last_stamp = store.last_stamp

    # --- reading ---------------------------------------------------------------------------------
    def find(self, table: str, terms: Terms, columns: str = "", **how: Any) -> list[Row]:
        self._require(TABLES[table], terms, **how)
        return super().find(table, terms, columns, **how)

    def sums(
        self, table: str, terms: Terms, columns: str, amounts: str = "", *, index: str = ""
    ) -> list[Row]:
        """Returns the sums on the server, without the writes of this operation."""
        read = Selection(TABLES[table], terms, index).sums(columns, amounts)
        if read not in self._answers:
            self.missing[read] = None
        names, keys = columns.split(), [*columns.split(), "calls", *amounts.split()]
        found = self._answers.get(read, ())
        rows = ({one: row.get(field_of(one)) for one in keys} for row in found)
        return [TABLES[table].decoded(row, names) for row in rows]

    def _require(
        self,
        table: Table,
        terms: Terms,
        *,
        order: str = "",
        limit: int | None = None,
        index: str = "",
    ) -> bool:
        """Requests these rows if they were not read. True if they were."""
        if (known := self._resolve(table, terms)) is None:
            return True
        if (pinned := pinned_by(table, known)) is None:
            if self._holds_all(table, known):
                return True
            read = Selection(table, known, index).rows(order, limit)
        elif self._holds(table, pinned) or self._remembers(table, pinned):
            return True
        else:
            read = Selection(table, pinned, "").rows("", None)
        if read not in self._answers:
            self.missing[read] = table
            return False
        return True

    def _resolve(self, table: Table, terms: Terms) -> dict[str, object] | None:
        """Returns the terms with numbers instead of keys of sessions; None if no row can match."""
        known = dict(terms)
        for name, value in terms.items():
            if isinstance(value, SessionKey) and table.types[name] == "int":
                known[name] = self.value("session", {"key": value}, "id", ())
        return None if () in known.values() else known

    def _holds(self, table: Table, pinned: Terms) -> bool:
        """True if the row is in memory; the commit then relies on it."""
        found = self._number_of(table, pinned)
        if found is not None and (table.name, found) in self._loaded:
            self._relied.add((table.name, found))
        return found is not None

    def _holds_all(self, table: Table, terms: Terms) -> bool:
        """True if the terms consist of row numbers alone and all these rows are in memory."""
        numbers = terms.get(str(table.number)) if len(terms) == 1 else None
        return isinstance(numbers, tuple) and None not in [
            self._number_of(table, {str(table.number): one}) for one in numbers
        ]

    def _number_of(self, table: Table, pinned: Terms) -> int | None:
        where = " AND ".join(f"{name} = ?" for name in pinned)
        find = f"SELECT rowid FROM {table.name} WHERE {where}"
        row = self.db.execute(find, [*pinned.values()]).fetchone()
        return row[0] if row else None

    def _remembers(self, table: Table, pinned: Mapping[str, object]) -> bool:
        """Loads a row as the last commit of this gateway left it; the new commit checks that it is
        unchanged."""
        if not self._is_first or table.name not in REMEMBERED or table.record[0] not in pinned:
            return False
        loaded = self._store.rows.get(record_of(table, {**pinned}))
        if loaded is None:
            return False
        self._relied.add(self.load(loaded))
        self.is_from_memory = True
        return True

    def session(self, key: SessionKey) -> SessionRow | None:
        known = self._store.known.get(key)
        if known is not None and self._is_first and key not in self._sessions:
            self.load(known.loaded)
            self._sessions[key] = replace(known.session)
        return super().session(key)

    def keys_of(self, sessions: Iterable[int | None]) -> dict[int, SessionKey]:
        """Reads only unknown sessions again: the key of a session's number never changes."""
        keys, wanted = self._store.keys, {one for one in sessions if one is not None}
        known = {one: keys[one] for one in wanted & keys.keys()}
        return known | super().keys_of(wanted - known.keys())

    def load(self, loaded: LoadedRow) -> tuple[str, int]:
        table, row = loaded.table, loaded.row
        insertion, find, is_numbered = _loading(table.name)
        # A negative number, which no new row gets in place of a deleted one.
        own = () if is_numbered else (-1 - len(self._loaded),)
        added = self.db.execute(insertion, [*own, *map(row.get, table.types)])
        if added.rowcount:
            place = (table.name, int(added.lastrowid or 0))
            self._loaded[place] = loaded
            return place
        (number,) = self.db.execute(find, [row[name] for name in table.record]).fetchone()
        return table.name, int(number)

    def guard(self, *names: str) -> None:
        record = RecordID("guard", names)
        read: Read = ("SELECT VALUE rev FROM $0", (record,))
        if read in self._answers:
            self._guarded[record] = next(iter(self._answers[read]), None)
        else:
            self.missing[read] = None

    # --- writing ---------------------------------------------------------------------------------
    def insert(self, table: str, row: Values, *, on_conflict: OnConflict = "fail") -> int:
        declared = TABLES[table]
        if declared.number and declared.number not in row:
            row = {declared.number: self._next(table), **row}
        plain = {name: plain_of(value) for name, value in row.items()}
        # the first run leaves the check to the commit
        if on_conflict != "replace" and not self._is_first:
            for names in (declared.record, *declared.once.values()):
                self._require_none(declared, {one: plain.get(one) for one in names})
        elif on_conflict == "replace" and not self._was_read(declared, plain):
            self._blind.add(record_of(declared, plain))
        return super().insert(table, row, on_conflict=on_conflict)

    def _require_none(self, table: Table, terms: Terms) -> None:
        """Checks for a conflicting row. A combination with a missing value cannot conflict."""
        if None not in terms.values():
            self._require(table, terms)

    def _was_read(self, table: Table, row: Row) -> bool:
        record = {one: row[one] for one in table.record}
        return Selection(table, record, "").rows("", None) in self._answers

    def _next(self, table: str) -> int:
        """Returns a number for a new row. Each run of the operation gets the same ones, so that it
        asks for the same rows."""
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
        """Returns 1 while the rows are unread, so that the operation continues and requests its
        next rows too."""
        is_known = self._require(TABLES[table], terms, index=index)
        return super().change(table, terms, values, index=index) if is_known else 1

    def delete(self, table: str, terms: Terms) -> int:
        self._require(TABLES[table], terms)
        return super().delete(table, terms)

    # --- the commit ------------------------------------------------------------------------------
    def commit(self) -> tuple[SurrealCommit, dict[SessionKey, KnownSession]]:
        """Returns the commit of this run's changes, and the sessions after it."""
        commit, now = SurrealCommit(), dict[RecordID, LoadedRow]()
        changed = self._changed()
        for place in changed:
            loaded, new = self._loaded.get(place), self._row_at(*place)
            if new is not None:
                now[new.record] = new
            self._move_taken(commit, loaded, new)
            self._write(commit, loaded, new)
        if commit.parts:
            for place in self._relied - {*changed}:
                new = replace(self._loaded[place], revision=_revision())
                text = f"UPDATE SET {REVISION} = {commit.value(new.revision)}"
                commit.require(self._loaded[place], text)
                now[new.record] = new
            commit.rows = now
            for record, revision in self._guarded.items():
                commit.guard(record, revision)
        known = dict[SessionKey, KnownSession]()
        for key, session in self._sessions.items():
            record = RecordID("session", str(key))
            before = self._store.known.get(key)
            row = now.get(record) or (before.loaded if before else None)
            if row is not None:
                known[key] = KnownSession(row, session)
        return commit, known

    def _changed(self) -> Iterable[tuple[str, int]]:
        """Returns the places of changed rows, in order. The trigger also notes each loaded row
        once."""
        found, new = dict[tuple[str, int], None](), {*self._loaded}
        for place in self.db.execute("SELECT name, number FROM changed").fetchall():
            if place in new:
                new.discard(place)
            else:
                found[place] = None
        return found.keys()

    def _row_at(self, name: str, number: int) -> LoadedRow | None:
        table, (select, names) = TABLES[name], _reading(name)
        values = self.db.execute(select, (number,)).fetchone()
        if values is None:
            return None
        row = dict(zip(names, values, strict=True))
        for one in names[len(table.types) :]:
            row[one] = True if row[one] else None
        return LoadedRow(table, record_of(table, row), _revision(), row)

    def _write(self, commit: SurrealCommit, old: LoadedRow | None, new: LoadedRow | None) -> None:
        if old is not None and (new is None or new.record != old.record):
            commit.require(old, "DELETE")
            commit.gone.append(old.record)
            old = None
        if new is None:
            return
        content = {**content_of(new.table, new.row), REVISION: new.revision}
        if old is None:
            commit.create(new.record, content, is_new=new.record not in self._blind)
        else:
            commit.require(old, f"UPDATE CONTENT {commit.value(content)}")

    def _move_taken(
        self, commit: SurrealCommit, old: LoadedRow | None, new: LoadedRow | None
    ) -> None:
        was, now = _unique_records(old), _unique_records(new)
        for one in was - now:
            commit.parts.append(f"DELETE {commit.value(one)} RETURN NONE")
        for one in now - was:
            assert new is not None
            blind = new.record in self._blind
            commit.create(one, {"row": new.record}, is_new=not blind)


@lru_cache
def _loading(name: str) -> tuple[str, str, bool]:
    """Returns the statements that put a row into memory and find it there; and whether its row
    number is one of its values."""
    table = TABLES[name]
    where = " AND ".join(f"{one} = ?" for one in table.record)
    is_numbered = "INTEGER PRIMARY KEY" in table.sql
    names = [*table.types] if is_numbered else ["rowid", *table.types]
    marks = ", ".join("?" * len(names))
    insertion = f"INSERT OR IGNORE INTO {name} ({', '.join(names)}) VALUES ({marks})"
    return insertion, f"SELECT rowid FROM {name} WHERE {where}", is_numbered


@lru_cache
def _reading(name: str) -> tuple[str, Sequence[str]]:
    """Returns the statement that reads a row of the memory with its marks, and the names of the
    values."""
    table = TABLES[name]
    values = [*table.types, *(f"({one})" for one in table.marks.values())]
    text = f"SELECT {', '.join(values)} FROM {name} WHERE rowid = ?"
    return text, [*table.types, *table.marks]


def _unique_records(loaded: LoadedRow | None) -> set[RecordID]:
    return set() if loaded is None else unique_records(loaded.table, loaded.row)


def _revision() -> int:
    """Returns a random revision, never the previous one: the server skips a write that changes
    nothing, and a skipped write protects nothing."""
    return random.getrandbits(62)


def loaded_row(table: Table, fields: Mapping[str, Any]) -> LoadedRow:
    row = {name: fields.get(field_of(name)) for name in (*table.types, *table.marks)}
    return LoadedRow(table, record_of(table, row), fields[REVISION], row)
