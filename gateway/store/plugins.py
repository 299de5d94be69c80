"""What plugins keep and what users have set, in SQLite."""

import re
import sqlite3
from collections.abc import Sequence
from functools import partial

from gateway.domain.errors import Denied
from gateway.domain.ports import PluginSpace
from gateway.store.reader import SqliteStore
from gateway.store.rows import require_text
from gateway.store.writer import Pen


class SqliteSettings(SqliteStore):
    async def read_settings(self, user: str) -> str | None:
        require_text("the user's name", user)
        return await self._readers.read(partial(_read, user))

    async def write_settings(self, user: str, record: str, *, expected: str | None) -> bool:
        require_text("a user's settings", user, record)
        write = partial(_write, user, record, expected)
        return await self._writer.write(write, durable=True)


def _read(user: str, db: sqlite3.Connection) -> str | None:
    row = db.execute("SELECT json FROM settings WHERE user = ?", (user,)).fetchone()
    return None if row is None else str(row[0])


def _write(user: str, record: str, expected: str | None, pen: Pen) -> bool:
    if expected is None:
        return pen.db.execute(_ADD, (user, record)).rowcount == 1
    return pen.db.execute(_CHANGE, (record, user, expected)).rowcount == 1


_ADD = "INSERT INTO settings (user, json) VALUES (?, ?) ON CONFLICT DO NOTHING"
_CHANGE = "UPDATE settings SET json = ? WHERE user = ? AND json = ?"

KEY_BYTES = 256
VALUE_BYTES = 64 * 1024
SPACE_KEYS = 1000
SPACE_BYTES = 1024 * 1024  # keys and values together

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class SqlitePlugins(SqliteStore):
    """Not fsynced, like the journal: it outlives the process, and a power loss may take the last
    moments."""

    async def get(self, space: PluginSpace, key: str) -> str | None:
        return await self._readers.read(partial(_get, _columns(space), key_form(key)))

    async def set(self, space: PluginSpace, key: str, value: str) -> None:
        forms = require_kept(key, value)
        await self._writer.write(partial(_set, _columns(space), *forms), durable=False)

    async def delete(self, space: PluginSpace, key: str) -> None:
        delete = partial(_delete, _columns(space), key_form(key))
        await self._writer.write(delete, durable=False)

    async def list(self, space: PluginSpace, prefix: str) -> Sequence[str]:
        return await self._readers.read(partial(_list, _columns(space), key_form(prefix)))


def key_form(text: str) -> bytes:
    """A key or the beginning of one as it is compared. What no key can be stays so: half of a
    surrogate pair, and of a text that is too long as much as makes it so."""
    return text[: KEY_BYTES + 1].encode("utf-8", "surrogatepass")


def require_kept(key: str, value: str) -> tuple[bytes, bytes]:
    """Both as they are kept. Raises Denied."""
    if not key or _CONTROL.search(key, 0, KEY_BYTES):
        raise Denied("a store key needs at least one character, and none may be a control one")
    return _form("a store key", key, KEY_BYTES), _form("a stored value", value, VALUE_BYTES)


def _form(what: str, text: str, limit: int) -> bytes:
    try:
        form = text[: limit + 1].encode()
    except UnicodeEncodeError as error:
        raise Denied(f"{what} must be valid Unicode, without half a surrogate pair") from error
    if len(form) > limit:
        raise Denied(f"{what} may have {limit} bytes of UTF-8 at most: shorten it")
    return form


def filled(held: tuple[int, int], key: bytes, value: bytes, old: int | None) -> tuple[int, int]:
    """Keys and bytes of a space once this is in it, in the place of `old` bytes if that key is
    there already. Raises Denied."""
    keys, size = held
    if old is None:
        keys, size, old = keys + 1, size + len(key), 0
    size += len(value) - old
    if keys > SPACE_KEYS:
        raise Denied(f"this store may have {SPACE_KEYS} keys at most: delete some first")
    if size > SPACE_BYTES:
        raise Denied(f"this store may have {SPACE_BYTES} bytes at most: delete or shorten some")
    return keys, size


_Columns = tuple[bytes, bytes, bytes]


def _columns(space: PluginSpace) -> _Columns:
    """As bytes, so that no two names are ever the same to SQLite, whatever is in them."""
    owner = "" if space.person is None else f"@{space.person}"
    plugin, namespace, person = (
        text.encode("utf-8", "surrogatepass") for text in (space.plugin, space.namespace, owner)
    )
    return plugin, namespace, person


def _get(space: _Columns, key: bytes, db: sqlite3.Connection) -> str | None:
    row = db.execute(_GET, (*space, key)).fetchone()
    return None if row is None else bytes(row[0]).decode()


def _set(space: _Columns, key: bytes, value: bytes, pen: Pen) -> None:
    keys, size, old = pen.db.execute(_FILL, (key, *space)).fetchone() or (0, 0, None)
    held = filled((keys, size), key, value, old)
    (space_id,) = pen.db.execute(_COUNT, (*space, *held)).fetchone()
    pen.db.execute(_PUT, (space_id, key, value))


def _delete(space: _Columns, key: bytes, pen: Pen) -> None:
    row = pen.db.execute(_TAKE, (*space, key)).fetchone()
    if row is not None:
        pen.db.execute(_UNCOUNT, (len(key) + row[1], row[0]))


def _list(space: _Columns, prefix: bytes, db: sqlite3.Connection) -> Sequence[str]:
    beyond = prefix + b"\xff"  # a byte that UTF-8 never has
    rows = db.execute(_LIST, (*space, prefix, beyond, SPACE_KEYS)).fetchall()
    return [bytes(key).decode() for (key,) in rows]


_SPACE = "(SELECT id FROM plugin_space WHERE plugin = ? AND namespace = ? AND owner = ?)"
_GET = f"SELECT value FROM plugin_value WHERE space = {_SPACE} AND key = ?"
_LIST = f"""
SELECT key FROM plugin_value WHERE space = {_SPACE} AND key >= ? AND key < ? ORDER BY key LIMIT ?
"""
_FILL = """
SELECT s.keys, s.bytes, (SELECT length(value) FROM plugin_value WHERE space = s.id AND key = ?)
FROM plugin_space s WHERE s.plugin = ? AND s.namespace = ? AND s.owner = ?
"""
_COUNT = """
INSERT INTO plugin_space (plugin, namespace, owner, keys, bytes) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (plugin, namespace, owner) DO UPDATE SET keys = excluded.keys, bytes = excluded.bytes
RETURNING id
"""
_PUT = """
INSERT INTO plugin_value (space, key, value) VALUES (?, ?, ?)
ON CONFLICT (space, key) DO UPDATE SET value = excluded.value
"""
_TAKE = f"""
DELETE FROM plugin_value WHERE space = {_SPACE} AND key = ? RETURNING space, length(value)
"""
_UNCOUNT = "UPDATE plugin_space SET keys = keys - 1, bytes = bytes - ? WHERE id = ?"
