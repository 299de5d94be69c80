"""Values of plugins, and whole results of tools, packed in the threads of the store."""

import re
import zlib
from collections.abc import Sequence
from datetime import datetime

from gateway.domain.agents import Original
from gateway.domain.errors import Denied
from gateway.domain.ids import SessionKey
from gateway.domain.ports import PluginSpace
from gateway.store.transaction import Fields, Row, Transaction
from gateway.store.writer import StorePart, reading, writing

KEY_BYTES = 256
VALUE_BYTES = 64 * 1024
SPACE_KEYS = 1000
SPACE_BYTES = 1024 * 1024  # keys and values together

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def key_form(text: str) -> bytes:
    """Returns a key or prefix in the form in which keys are compared. It also encodes what no key
    can contain: half of a surrogate pair, and the first byte beyond the limit."""
    return text[: KEY_BYTES + 1].encode("utf-8", "surrogatepass")


def require_kept(key: str, value: str) -> tuple[bytes, bytes]:
    """Returns key and value as the store keeps them. Raises Denied."""
    if not key or _CONTROL.search(key, 0, KEY_BYTES):
        raise Denied("a store key needs at least one character, and no control characters")
    return _form("a store key", key, KEY_BYTES), _form("a stored value", value, VALUE_BYTES)


def _form(what: str, text: str, limit: int) -> bytes:
    try:
        form = text[: limit + 1].encode()
    except UnicodeEncodeError as error:
        raise Denied(f"{what} must be valid Unicode, without half a surrogate pair") from error
    if len(form) > limit:
        raise Denied(f"{what} may have at most {limit} bytes of UTF-8: shorten it")
    return form


def filled(held: tuple[int, int], key: bytes, value: bytes, old: int | None) -> tuple[int, int]:
    """Keys and bytes of a space after this write, which replaces `old` bytes if the key exists.
    Raises Denied."""
    keys, size = held
    if old is None:
        keys, size, old = keys + 1, size + len(key), 0
    size += len(value) - old
    if keys > SPACE_KEYS:
        raise Denied(f"this store may have at most {SPACE_KEYS} keys: delete some first")
    if size > SPACE_BYTES:
        raise Denied(f"this store may have at most {SPACE_BYTES} bytes: delete or shorten some")
    return keys, size


def _space(tx: Transaction, space: PluginSpace) -> Row | None:
    """Returns the row of a space. Names are bytes, so that the database never equates two of them."""
    return tx.first("plugin_space", _names(space), "id keys bytes")


def _names(space: PluginSpace) -> Row:
    owner = "" if space.person is None else f"@{space.person}"
    names = {"plugin": space.plugin, "namespace": space.namespace, "owner": owner}
    return {name: text.encode("utf-8", "surrogatepass") for name, text in names.items()}


def _get(tx: Transaction, space: PluginSpace, key: str) -> str | None:
    if (found := _space(tx, space)) is None:
        return None
    value = tx.value("plugin_value", {"space": found["id"], "key": key_form(key)}, "value", None)
    return None if value is None else bytes(value).decode()


def _set(tx: Transaction, space: PluginSpace, key: str, value: str) -> None:
    name, form = require_kept(key, value)
    found = _space(tx, space) or {"id": None, "keys": 0, "bytes": 0}
    old = tx.first("plugin_value", {"space": found["id"], "key": name}, "value")
    size = None if old is None else len(old["value"])
    keys, total = filled((found["keys"], found["bytes"]), name, form, size)
    counts = {"keys": keys, "bytes": total}
    if found["id"] is None:
        found["id"] = tx.insert("plugin_space", {**_names(space), **counts})
    else:
        tx.change("plugin_space", {"id": found["id"]}, counts)
    tx.put("plugin_value", {"space": found["id"], "key": name, "value": form})


def _delete(tx: Transaction, space: PluginSpace, key: str) -> None:
    name, found = key_form(key), _space(tx, space)
    where = {"space": found["id"] if found else 0, "key": name}
    if row := tx.first("plugin_value", where, "value"):
        less = {"keys +": -1, "bytes +": -len(name) - len(row["value"])}
        tx.delete("plugin_value", where)
        tx.change("plugin_space", {"id": where["space"]}, less)


def _list(tx: Transaction, space: PluginSpace, prefix: str) -> Sequence[str]:
    found, first = _space(tx, space), key_form(prefix)
    if found is None:
        return []
    beyond = first + b"\xff"  # a byte that UTF-8 never uses
    terms = {"space": found["id"], "key >=": first, "key <": beyond}
    rows = tx.find("plugin_value", terms, "key", order="key", limit=SPACE_KEYS)
    return [bytes(row["key"]).decode() for row in rows]


# --- whole results of tools ----------------------------------------------------------------------
_FAST = 1  # a level of zlib
_OF_ORIGINAL = Fields("reference run_id tool at")


def _forget_originals(tx: Transaction, session_key: SessionKey) -> None:
    tx.delete("original", {"session": session_key})


def sweep_originals(tx: Transaction, before: datetime, limit: int) -> int:
    """Deletes the oldest originals from before that time. Returns their number."""
    rows = tx.find("original", {"at <": before}, "id", order="at", limit=limit)
    return tx.delete("original", {"id": tuple(row["id"] for row in rows)}) if rows else 0


def _keep(tx: Transaction, original: Original) -> None:
    packed = zlib.compress(original.content.encode("utf-8", "surrogatepass"), _FAST)
    row = {**_OF_ORIGINAL.row(original), "session": original.session_key, "content": packed}
    tx.insert("original", row, on_conflict="keep")


def _read(tx: Transaction, session_key: SessionKey, reference: str) -> Original | None:
    row = tx.first("original", {"reference": reference, "session": session_key})
    if row is None:
        return None
    content = zlib.decompress(row["content"]).decode("utf-8", "surrogatepass")
    return Original(session_key=session_key, content=content, **_OF_ORIGINAL.values(row))


class StoredTools(StorePart):
    """Implements the port ToolStore. Its writes are not fsynced: they survive the process, and a
    power loss may lose the last moments."""

    get = reading(_get)
    set = writing(_set)
    delete = writing(_delete)
    list = reading(_list)
    keep_original = writing(_keep)
    read_original = reading(_read)
    forget_originals = writing(_forget_originals)
