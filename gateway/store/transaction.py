"""Transactions: operations find, add, change and delete rows by names of tables and columns, in
SQLite. Also the sessions that a writer remembers, and how nodes are added to them."""

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, Literal, TypeVar

from pydantic_core import from_json, to_json

from gateway.domain.errors import NotFound
from gateway.domain.ids import EPOCH, MICROSECOND, SessionKey
from gateway.domain.messages import Excerpt, Extras, Message, Node, ToolCall, ToolResult
from gateway.store.tables import ENCODED, TABLES

T = TypeVar("T")
Row = dict[str, Any]
# Conditions that must all hold, by column and comparison: `name`, `name <`, `name >=`, `name
# contains`. A tuple matches any of its values; a session's key stands for the session's number;
# `a,b <=` compares several columns with a tuple.
Terms = Mapping[str, object]
OnConflict = Literal["fail", "keep", "replace"]  # what happens if the keys exist
Values = Mapping[str, object]  # new values of columns; `name +` adds to the old value

_KNOWN = 4096  # sessions, about 0.5 kB each
_SET_BACK_US = 60_000_000
_MOST_MARKS = 500  # in one term; more values, numbers or texts, are one JSON text

# A node's place combines the number of its session with its own number: consecutive nodes are
# adjacent on disk, and each step along a path is one lookup by row id.
SEQ_BITS = 32
_SEQ_MASK = (1 << SEQ_BITS) - 1


def place_of(session: int, seq: int) -> int:
    return session << SEQ_BITS | seq


def seq_of(place: int) -> int:
    return place & _SEQ_MASK


def places_of(session: int) -> Terms:
    """Returns the terms for the places of a session's nodes."""
    return {"place >": place_of(session, 0), "place <": place_of(session + 1, 0)}


class Fields:
    """Names that a value and its row have in common."""

    def __init__(self, names: str) -> None:
        self.names = names.split()
        self._of_value, self._of_row = attrgetter(*self.names), itemgetter(*self.names)

    def row(self, value: object) -> dict[str, Any]:
        return dict(zip(self.names, self._of_value(value), strict=True))

    def values(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(self.names, self._of_row(row), strict=True))


@dataclass(slots=True)
class SessionRow:
    """A session's counters as the database has them, uncommitted writes of this batch included."""

    id: int
    last_run: int  # seq of the newest run; 1 without a run, if messages were imported
    last_seq: int  # seq of the newest node
    head: int | None  # place
    head_id: str | None
    summary: int | None = None  # place of the newest summary on the path to HEAD
    is_closed: bool = False
    is_forked: bool = False  # a message exists whose parent is not the one before it
    is_pruned: bool = False  # no further branch may be archived
    last_summary: int | None = None  # `summary` of the newest node

    def move_head(self, node_id: str) -> None:
        """Moves HEAD to the newest node."""
        self.head, self.head_id = place_of(self.id, self.last_seq), node_id
        self.summary = self.last_summary

    def clear_head(self) -> None:
        self.head, self.head_id, self.summary = None, None, None


class Transaction:
    """One transaction, whose operation reads, decides, and writes; it raises only before it has
    written. Statements are built once for each combination of names."""

    is_whole = True  # False: only the rows that the operation has asked for are here
    later: list[Callable[[], None]]  # calls after the commit, if not `is_whole`
    accepted: int  # the newest run's number
    may_hold_notices: bool  # other threads read this
    has_erased: bool  # erased text must leave the database's files too

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self._sessions: OrderedDict[SessionKey, SessionRow] = OrderedDict()
        self.last_stamp = 0
        self.series: dict[tuple[str, str, str], int] = {}

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
        """Finds rows. `columns` and `order` are names separated by blanks; a `-` in `order` sorts
        downwards. `index` restricts the search to the rows that this partial index holds."""
        if () in terms.values():  # no value matches, and no index can look it up
            return []
        values: list[object] = []
        where = _condition(table, terms, values, index)
        if limit is not None:
            values.append(max(0, limit))
        select, names, decoders = _selection(table, columns, index)
        sql = f"{select} {where} {_order(order)} {'' if limit is None else 'LIMIT ?'}"
        rows: list[Row] = []
        for row in self.db.execute(sql, values).fetchall():
            rows.append(dict(zip(names, row, strict=True)))  # noqa: PERF401  # a call less
        for name, decode in decoders:
            for found in rows:
                if found[name] is not None:
                    found[name] = decode(found[name])
        return rows

    def first(self, table: str, terms: Terms, columns: str = "", *, order: str = "") -> Row | None:
        rows = self.find(table, terms, columns, order=order, limit=1)
        return rows[0] if rows else None

    def require(self, table: str, terms: Terms, columns: str, what: str) -> Row:
        """Returns the first row. Raises NotFound."""
        if (row := self.first(table, terms, columns)) is None:
            raise NotFound(what)
        return row

    def value(self, table: str, terms: Terms, column: str, default: T, *, order: str = "") -> T:
        """Returns the column of the first row; `default` if there is no row."""
        rows = self.find(table, terms, column, order=order, limit=1)
        return rows[0][column] if rows else default

    def sums(
        self, table: str, terms: Terms, columns: str, amounts: str = "", *, index: str = ""
    ) -> list[Row]:
        """Groups rows by the values of `columns`: each result has these values, the number of rows
        as `calls`, and the sums of `amounts`."""
        values: list[object] = []
        where, names = _condition(table, terms, values, index), columns.split()
        keys = [*names, "calls", *amounts.split()]
        selected = [*names, "count(*)", *(f"sum({one})" for one in amounts.split())]
        select = f"SELECT {', '.join(selected)} FROM {_source(table, index)} {where} "
        group = f"GROUP BY {', '.join(names)}" if names else ""
        rows = [
            dict(zip(keys, row, strict=True)) for row in self.db.execute(select + group, values)
        ]
        return [TABLES[table].decoded(row, names) for row in rows]

    def tally(
        self, table: str, terms: Terms, columns: str = "", *, index: str = ""
    ) -> dict[tuple[Any, ...], int]:
        """Returns the number of rows for each combination of values."""
        rows, names = self.sums(table, terms, columns, index=index), columns.split()
        return {tuple(row[one] for one in names): row["calls"] for row in rows}

    def count(self, table: str, terms: Terms, *, index: str = "") -> int:
        return self.tally(table, terms, index=index).get((), 0)

    def insert(self, table: str, row: Values, *, on_conflict: OnConflict = "fail") -> int:
        """Returns the number of the new row, where rows have numbers. `keep` returns 0 if a row
        with the same keys exists; `replace` writes these values into that row."""
        added = self.db.execute(_insertion(table, tuple(row), on_conflict), [*row.values()])
        return (added.lastrowid or 1) if added.rowcount else 0

    def put(self, table: str, row: Values) -> None:
        """Inserts the row, or writes these values into the row with the same keys."""
        self.insert(table, row, on_conflict="replace")

    def add(self, table: str, rows: Sequence[Values], amounts: Values) -> None:
        """Inserts these rows, or adds their `amounts` to the rows that exist."""
        values: list[object] = []
        for row in rows:
            values += row.values()
        self.db.execute(_addition(table, tuple(rows[0]), tuple(amounts), len(rows)), values)

    def change(self, table: str, terms: Terms, values: Values, *, index: str = "") -> int:
        """Returns the number of changed rows."""
        filled = [*values.values()]
        where = _condition(table, terms, filled, index)
        update = _update(table, tuple(values), index)
        return self.db.execute(f"{update} {where}", filled).rowcount

    def delete(self, table: str, terms: Terms) -> int:
        values: list[object] = []
        where = _condition(table, terms, values)
        return self.db.execute(f"DELETE FROM {table} {where}", values).rowcount

    def guard(self, *names: str) -> None:
        """Serialises operations that guard the same names and rely on the absence of rows. SQLite
        needs nothing: it has one writer."""

    # --- sessions --------------------------------------------------------------------------------
    def session(self, key: SessionKey) -> SessionRow | None:
        known = self._sessions.get(key)
        if known is not None:
            self._sessions.move_to_end(key)
            return known
        row = self.first("session", {"key": key}, "id last_seq head state")
        if row is None:
            return None
        id_, head = row["id"], row["head"]
        last_run = self.value("run", {"session": id_}, "seq", 0, order="-seq")
        node = None if head is None else self.first("node", {"place": head}, "id summary")
        forks = self.find("node", places_of(id_), "place", index="fork", limit=2)
        found = SessionRow(
            id_,
            last_run or int(row["last_seq"] > 0),
            row["last_seq"],
            head,
            node["id"] if node else None,
            node["summary"] if node else None,
            is_closed=row["state"] == "closed",
            is_forked=len(forks) > 1,
        )
        return self._remember(key, found)

    def session_id(self, key: SessionKey) -> int:
        """Returns the number of a session; 0 if there is none."""
        return self.value("session", {"key": key}, "id", 0)

    def make_session(self, key: SessionKey, at: int) -> SessionRow:
        """Makes the row of a key that `session` does not find."""
        names = {"key": key, **key._asdict()}
        made = self.insert("session", {**names, "created_at": at, "updated_at": self.stamp(at)})
        return self._remember(key, SessionRow(made, 0, 0, None, None))

    def _remember(self, key: SessionKey, session: SessionRow) -> SessionRow:
        self._sessions[key] = session
        keep_newest(self._sessions, _KNOWN)
        return session

    def forget_sessions(self) -> None:
        """Empties the cache of sessions, so that they are read again."""
        self._sessions.clear()

    def keys_of(self, sessions: Iterable[int | None]) -> dict[int, SessionKey]:
        """Returns the keys of the sessions with these numbers."""
        numbers = tuple({one for one in sessions if one is not None})
        rows = self.find("session", {"id": numbers}, "id key")
        return {row["id"]: row["key"] for row in rows}

    def place(self, session: SessionRow, node_id: str | None) -> int | None:
        """Returns the place of a node of this session; None if the session has no such node."""
        place: int = self.value("node", {"id": node_id, "standing <": 2}, "place", 0)
        return place if place >> SEQ_BITS == session.id else None

    def series_of(self, agent: str, provider: str, model: str) -> int:
        """Returns the number of the series of token records of an agent, provider and model."""
        names = (agent, provider, model)
        if (known := self.series.get(names)) is None:
            row = {"agent": agent, "provider": provider, "model": model}
            known = self.value("series", row, "id", 0) or self.insert("series", row)
            self.series[names] = known
        return known

    def stamp(self, micros: int) -> int:
        """Returns a unique time for `updated_at`, so that paging skips no session. A clock that was
        set back by more than a minute is believed."""
        if self.last_stamp - _SET_BACK_US < micros <= self.last_stamp:
            micros = self.last_stamp + 1
        self.last_stamp = micros
        return micros


def without_none(terms: Terms) -> dict[str, object]:
    """Returns the terms whose value is not None."""
    return {name: value for name, value in terms.items() if value is not None}


def keep_newest(kept: dict[Any, Any], most: int) -> None:
    """Drops the oldest entries beyond `most`."""
    while len(kept) > most:
        del kept[next(iter(kept))]


# --- the texts of statements ---------------------------------------------------------------------
for _type, _encode in ENCODED.items():
    sqlite3.register_adapter(_type, _encode)


def _condition(of: str, terms: Terms, values: list[object], index: str = "") -> str:
    """Returns the WHERE clause; appends its values to `values`."""
    table = TABLES[of]
    parts = [f"({table.where[index]})"] if index in table.where else []
    for name, value in terms.items():
        if value is None:
            parts.append(f"{name} IS NULL")
        elif name in table.enumerated:
            parts.append(_part(name, _quoted(value)))
        elif value.__class__ is tuple and len(value) > _MOST_MARKS:
            parts.append(f"{name} IN (SELECT value FROM json_each(?))")
            values.append(to_json(value).decode())
        elif value.__class__ is tuple:
            parts.append(_part(name, ", ".join("?" * len(value))))
            values += value
        else:
            is_session = value.__class__ is SessionKey and table.types[name] == "int"
            parts.append(_part(name, ("?", _SESSION)[is_session]))
            values.append(value)
    return f"WHERE {' AND '.join(parts)}" if parts else ""


_SESSION = "(SELECT id FROM session WHERE key = ?)"


def _quoted(value: object) -> str:
    """Words as literals, so that SQLite can use a partial index on them."""
    words = value if isinstance(value, tuple) else (value,)
    return ", ".join("'{}'".format(str(one).replace("'", "''")) for one in words)


@lru_cache(maxsize=1024)
def _part(name: str, marks: str) -> str:
    columns, _, how = name.partition(" ")
    if how == "contains":
        return f"instr({columns}, {marks}) > 0"
    if "," in columns:
        return f"({columns}) {how} ({marks})"
    if "," in marks or not marks:
        return f"{columns} IN ({marks})"
    return f"{columns} {how or '='} {marks}"


def _source(table: str, index: str) -> str:
    """Returns the table, or the rows of it that an index holds."""
    return f"{table} INDEXED BY {table}_{index}" if index else table


_Selection = tuple[str, Sequence[str], Sequence[tuple[str, Callable[[Any], object]]]]


@lru_cache(maxsize=512)
def _selection(table: str, columns: str, index: str) -> _Selection:
    """Returns the start of a SELECT, its columns, and the decoders of their values."""
    names = columns.split() or [*TABLES[table].types]
    select = f"SELECT {', '.join(names)} FROM {_source(table, index)}"
    return select, names, TABLES[table].decoders(names)


@lru_cache(maxsize=64)
def _order(order: str) -> str:
    by = ", ".join(f"{one[1:]} DESC" if one[0] == "-" else one for one in order.split())
    return f"ORDER BY {by}" if by else ""


@lru_cache(maxsize=256)
def _insertion(table: str, names: Sequence[str], on_conflict: OnConflict) -> str:
    insertion = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    if on_conflict == "fail":
        return insertion
    if on_conflict == "keep":
        return f"{insertion} ON CONFLICT DO NOTHING"
    others = [one for one in names if one not in TABLES[table].identifying]
    changes = ", ".join(f"{one} = excluded.{one}" for one in others)
    return f"{insertion} ON CONFLICT DO UPDATE SET {changes}"


@lru_cache(maxsize=256)
def _addition(table: str, names: Sequence[str], amounts: Sequence[str], count: int) -> str:
    rows = ", ".join([f"({', '.join('?' * len(names))})"] * count)
    sums = ", ".join(f"{one} = {one} + excluded.{one}" for one in amounts)
    into = f"INSERT INTO {table} ({', '.join(names)})"
    return f"{into} VALUES {rows} ON CONFLICT DO UPDATE SET {sums}"


@lru_cache(maxsize=256)
def _update(table: str, names: Sequence[str], index: str) -> str:
    changes = ", ".join(
        f"{one[:-2]} = {one[:-2]} + ?" if one.endswith(" +") else f"{one} = ?" for one in names
    )
    return f"UPDATE {_source(table, index)} SET {changes}"


# --- adding nodes --------------------------------------------------------------------------------
def require_session(key: SessionKey, tx: Transaction) -> SessionRow:
    if (session := tx.session(key)) is None:
        raise NotFound(f"session {key}")
    return session


def add_nodes(
    nodes: Sequence[Node], parent: int | None, session: SessionRow, tx: Transaction
) -> int:
    """Adds nodes, each under the one before it. Returns the number of nodes that count as messages:
    those of a person or the agent."""
    place, count = place_of(session.id, session.last_seq), 0
    if not nodes:
        return 0
    if session.last_seq and parent != place:
        session.is_forked, session.is_pruned = True, False
    summary = session.summary if parent == session.head else summary_at(parent, tx)
    for node in nodes:
        place += 1
        message, role = node.message, node.message.role
        if role == "summary":
            role, summary = "tool", place
        elif role in {"user", "assistant"}:
            count += 1
        parts = (message.tool_calls, message.result, message.thinking, message.extras)
        packed = pack_message(message) if any(parts) or message.notices else None
        row = {
            "place": place,
            "id": node.id,
            "parent": parent,
            "run_id": node.run_id,
            "role": role,
            "text": message.text,
            "packed": packed,
            "status": node.status,
            "tokens": node.token_count,
            "model": node.model,
            "created_at": (node.created_at - EPOCH) // MICROSECOND,
            "label": node.label,
            "summary": summary,
        }
        tx.insert("node", row)
        parent = place
    session.last_seq += len(nodes)
    session.last_summary = summary
    return count


def summary_at(place: int | None, tx: Transaction) -> int | None:
    return None if place is None else tx.value("node", {"place": place}, "summary", None)


def pack_message(message: Message) -> bytes:
    """Returns the parts of a message except role and text, as JSON."""
    return to_json(
        [
            [[call.id, call.name, call.arguments] for call in message.tool_calls],
            _pack_result(message.result),
            message.thinking,
            [message.extras.provider, message.extras.json] if message.extras else None,
            *([message.notices] if message.notices else []),
        ]
    )


def _pack_result(result: ToolResult | None) -> list[object] | None:
    if result is None:
        return None
    values = [result.call_id, result.name, result.content, result.is_error, result.duration_ms]
    if not (result.boundary or result.excerpt):
        return values
    cut = result.excerpt
    shown = [cut.head, cut.tail, cut.size, cut.reference] if cut else None
    return [*values, result.boundary, shown]


def unpack_message(role: Any, text: str, packed: bytes | None) -> Message:
    if packed is None:
        return Message(role, text)
    calls, result, thinking, extras, *notices = from_json(packed)
    return Message(
        role,
        text,
        tuple(ToolCall(*call) for call in calls),
        _unpack_result(*result) if result else None,
        thinking,
        Extras(*extras) if extras else None,
        tuple((kind, text) for kind, text in notices[0]) if notices else (),
    )


def _unpack_result(*values: Any) -> ToolResult:
    call_id, name, content, is_error, duration_ms, *more = values
    boundary, cut = more or ("", None)
    excerpt = Excerpt(*cut) if cut else None
    plain = (call_id, name, content, is_error, duration_ms)
    return ToolResult(*plain, boundary=boundary, excerpt=excerpt)


def count_nodes(session: SessionRow, count: int, at: int, tx: Transaction) -> None:
    """Writes the counters and HEAD of a session after nodes were added."""
    changed = {
        "updated_at": tx.stamp(at),
        "message_count +": count,
        "last_seq": session.last_seq,
        "head": session.head,
    }
    tx.change("session", {"id": session.id}, changed)
