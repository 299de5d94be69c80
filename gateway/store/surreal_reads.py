"""Queries of a SurrealDB server: the terms of every transaction, as one SELECT each."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from gateway.domain.ids import SessionKey
from gateway.store.surreal_connection import RecordID
from gateway.store.surreal_schema import field_of, record_of
from gateway.store.tables import ENCODED, Table
from gateway.store.transaction import Terms

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
        """The records, or the range of records, that the terms name, and the other terms."""
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
    """The records of these key values; a tuple means any of its values."""
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
    """The terms that identify one row, whatever the others require."""
    for names in (table.record, [table.number]):
        if all(_is_one(terms.get(str(one))) for one in names):
            return {str(one): plain_of(terms[str(one)]) for one in names}
    return None


def _is_one(value: object) -> bool:
    return value is not None and (not isinstance(value, tuple) or isinstance(value, SessionKey))


def plain_of(value: object) -> Any:
    """The value as a record holds it."""
    if value.__class__ is tuple:
        return tuple(map(plain_of, value))
    encode = ENCODED.get(value.__class__)
    return value if encode is None else encode(value)
