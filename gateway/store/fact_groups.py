"""Of whom facts are kept, as far as memory tells: most who ask have none, and need no read."""

import sqlite3
from collections.abc import Sequence

_BITS = 1 << 22  # half a megabyte; a million names leave three of four others apart
_PAGE = 2_000  # names a look


class Groups:
    """A bit for each name that was ever written; what is in the database already is taken in a page
    at a time, while people ask anyway. Only the loop's thread touches it."""

    def __init__(self) -> None:
        self._bits = bytearray(_BITS // 8)
        self._upto: int | None = 0  # groups up to this one are in; None: all

    @property
    def upto(self) -> int | None:
        return self._upto

    def note(self, *names: str) -> None:
        """Before they are written."""
        for name in names:
            place, bit = divmod(hash(name) % _BITS, 8)
            self._bits[place] |= 1 << bit

    def take(self, rows: Sequence[tuple[int, str]]) -> None:
        """What `page` found."""
        self.note(*(name for _, name in rows))
        self._upto = rows[-1][0] if len(rows) == _PAGE else None

    def has(self, name: str) -> bool:
        """No is certain, yes is not."""
        place, bit = divmod(hash(name) % _BITS, 8)
        return self._upto is not None or bool(self._bits[place] & 1 << bit)


def page(after: int, db: sqlite3.Connection) -> Sequence[tuple[int, str]]:
    return db.execute(_NEXT, (after, _PAGE)).fetchall()


_NEXT = "SELECT id, name FROM fact_group WHERE id > ? ORDER BY id LIMIT ?"
