"""What plugins keep and what users have set, in SQLite."""

import re
import sqlite3
from collections.abc import Sequence

from gateway.domain.errors import Denied
from gateway.domain.ports import PluginSpace
from gateway.store.tables import insert
from gateway.store.writer import Pen, SqliteStore, reading, writing


def _read_settings(db: sqlite3.Connection, user: str) -> str | None:
    row = db.execute("SELECT json FROM settings WHERE user = ?", (user,)).fetchone()
    return None if row is None else str(row[0])


def _write_settings(pen: Pen, user: str, record: str, *, expected: str | None) -> bool:
    if expected is None:
        return pen.db.execute(_ADD, (user, record)).rowcount == 1
    return pen.db.execute(_CHANGE, (record, user, expected)).rowcount == 1


class SqliteSettings(SqliteStore):
    """Of users; part of the port SessionStore."""

    read_settings = reading(_read_settings)
    write_settings = writing(_write_settings, durable=True)


_ADD = insert("settings", "user, json") + " ON CONFLICT DO NOTHING"
_CHANGE = "UPDATE settings SET json = ? WHERE user = ? AND json = ?"

KEY_BYTES = 256
VALUE_BYTES = 64 * 1024
SPACE_KEYS = 1000
SPACE_BYTES = 1024 * 1024  # keys and values together

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


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


def _columns(space: PluginSpace) -> Sequence[bytes]:
    """As bytes, so that no two names are ever the same to SQLite, whatever is in them."""
    owner = "" if space.person is None else f"@{space.person}"
    names = (space.plugin, space.namespace, owner)
    return [text.encode("utf-8", "surrogatepass") for text in names]


def _get(db: sqlite3.Connection, space: PluginSpace, key: str) -> str | None:
    row = db.execute(_GET, (*_columns(space), key_form(key))).fetchone()
    return None if row is None else bytes(row[0]).decode()


def _set(pen: Pen, space: PluginSpace, key: str, value: str) -> None:
    name, form = require_kept(key, value)
    names = _columns(space)
    keys, size, old = pen.db.execute(_FILL, (name, *names)).fetchone() or (0, 0, None)
    held = filled((keys, size), name, form, old)
    (space_id,) = pen.db.execute(_COUNT, (*names, *held)).fetchone()
    pen.db.execute(_PUT, (space_id, name, form))


def _delete(pen: Pen, space: PluginSpace, key: str) -> None:
    name = key_form(key)
    row = pen.db.execute(_TAKE, (*_columns(space), name)).fetchone()
    if row is not None:
        pen.db.execute(_UNCOUNT, (len(name) + row[1], row[0]))


def _list(db: sqlite3.Connection, space: PluginSpace, prefix: str) -> Sequence[str]:
    first = key_form(prefix)
    beyond = first + b"\xff"  # a byte that UTF-8 never has
    rows = db.execute(_LIST, (*_columns(space), first, beyond, SPACE_KEYS)).fetchall()
    return [bytes(key).decode() for (key,) in rows]


class SqlitePlugins(SqliteStore):
    """Part of the port ToolStore. Not fsynced, like the journal: it outlives the process, and a
    power loss may take the last moments."""

    get = reading(_get)
    set = writing(_set, durable=False)
    delete = writing(_delete, durable=False)
    list = reading(_list)


_SPACE = "(SELECT id FROM plugin_space WHERE plugin = ? AND namespace = ? AND owner = ?)"
_GET = f"SELECT value FROM plugin_value WHERE space = {_SPACE} AND key = ?"
_LIST = f"""
SELECT key FROM plugin_value WHERE space = {_SPACE} AND key >= ? AND key < ? ORDER BY key LIMIT ?
"""
_FILL = """
SELECT s.keys, s.bytes, (SELECT length(value) FROM plugin_value WHERE space = s.id AND key = ?)
FROM plugin_space s WHERE s.plugin = ? AND s.namespace = ? AND s.owner = ?
"""
_COUNT = insert("plugin_space", "plugin, namespace, owner", "keys, bytes") + " RETURNING id"
_PUT = insert("plugin_value", "space, key", "value")
_TAKE = f"""
DELETE FROM plugin_value WHERE space = {_SPACE} AND key = ? RETURNING space, length(value)
"""
_UNCOUNT = "UPDATE plugin_space SET keys = keys - 1, bytes = bytes - ? WHERE id = ?"
