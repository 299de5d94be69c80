"""Rows as a compact table that models read well: the tabular form of TOON, with its quoting."""

import re
from collections.abc import Sequence
from decimal import Decimal
from math import isfinite

Cell = str | int | float | bool | None

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_LIKE_A_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRUCTURE = re.compile(r'[,:"\\\[\]{}\x00-\x1f]')
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_SHORT_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def table(name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """`name[n]{columns}:` and a line for each row."""
    head = f"{_key(name)}[{len(rows)}]{{{','.join(map(_key, columns))}}}:"
    return "\n".join((head, *("  " + ",".join(map(_cell, row)) for row in rows)))


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        return value if _is_plain(value) else _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return "null"
    return str(int(value)) if value == int(value) else f"{Decimal(repr(value)):f}"


def _is_plain(text: str) -> bool:
    return not (
        not text
        or text[0] in " -#"
        or text[-1] == " "
        or text in {"true", "false", "null"}
        or _STRUCTURE.search(text)
        or _LIKE_A_NUMBER.fullmatch(text)
    )


def _key(text: str) -> str:
    return text if _PLAIN_KEY.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    return _SHORT_ESCAPES.get(character) or f"\\u{ord(character):04x}"
