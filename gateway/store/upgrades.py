"""Upgrades: data of earlier versions moves into the newest tables."""

import re
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import Any

from pydantic_core import from_json, to_json

from gateway.domain.agents import OWN_CHANNELS, key_peer
from gateway.domain.errors import BadSessionKey
from gateway.domain.ids import SessionKey
from gateway.domain.journal import pack_text

# Replaced tables, each with a word that only the newer statement has.
_REPLACED = {"journal": "part INTEGER", "delivery": "arrived", "spend": "token_day"}


def rename_replaced(db: sqlite3.Connection, there: Collection[tuple[str, str]]) -> Sequence[str]:
    """Renames tables that were replaced and columns with a new name. Returns the tables."""
    if ("run", "token_limit") in there:  # JSON since it holds several limits
        db.execute("ALTER TABLE run RENAME COLUMN token_limit TO limits")
        db.execute(_LIMITS)
    made = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    old = [one for one, new in _REPLACED.items() if new not in made.get(one, new)]
    for table in old:
        db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    return old


def fill_tables(db: sqlite3.Connection, replaced: Sequence[str]) -> None:
    """Fills the newest tables from the renamed ones."""
    for table in {"delivery", "spend"} & {*replaced}:
        info = db.execute("SELECT name FROM pragma_table_info(?)", (f"old_{table}",))
        columns = ", ".join(name for (name,) in info)
        db.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM old_{table}")
    if "journal" in replaced:
        _move_journals(db)
    for table in replaced:
        db.execute(f"DROP TABLE old_{table}")
    # Logs of runs that ended in earlier versions stay in their rows until the sweep.
    db.execute("UPDATE run SET has_journal = 1 WHERE log IS NOT NULL")
    for index in ("run_with_log", "run_unfinished"):  # the latter has more columns now
        db.execute(f"DROP INDEX IF EXISTS {index}")


_LIMITS = """
UPDATE run SET limits = '{"token_budget":' || limits || '}' WHERE limits IS NOT NULL
"""


# --- journals ------------------------------------------------------------------------------------
def _move_journals(db: sqlite3.Connection) -> None:
    """Makes the notes of unfinished runs the first part of their journals."""
    for run_id, notes in groupby(db.execute(_NOTES).fetchall(), itemgetter(0)):
        entries = [_entry(step, kind, from_json(payload)) for _, step, kind, payload in notes]
        data = pack_text([to_json(["attempt", 1, [run_id]]), *map(to_json, entries)])
        db.execute("INSERT INTO journal (run_id, part, data) VALUES (?, 0, ?)", (run_id, data))


_PART = re.compile(r"(?:@[^:]*:)+")


def _entry(step: int, kind: str, value: Any) -> list[object]:
    """Converts a note. Its kind begins with the part of a run inside the run, if it belongs to one."""
    steps = _PART.match(kind)
    part = steps[0] if steps else ""
    name, values = _grant(step, kind[len(part) :], value)
    return ["sub", part, name, values] if part else [name, *values]


def _grant(step: int, kind: str, value: Any) -> tuple[str, list[object]]:
    what, _, id_ = kind.partition(":")
    match what:
        case "reply":
            return "reply", [step, value]
        case "begun":
            return "begun", [step, id_]
        case "said":
            return "taken", [step, value["run_id"], value["text"]]
        case _:
            rest = {name: one for name, one in value.items() if name not in {"call_id", "name"}}
            return "result", [id_, step, value["name"], "", rest]


_NOTES = """
SELECT j.run_id, j.step, j.kind, j.payload FROM old_journal j JOIN run r ON r.run_id = j.run_id
WHERE r.finished_at IS NULL ORDER BY j.run_id, j.step, j.id
"""


# --- rooms ---------------------------------------------------------------------------------------
BEFORE_ROOMS = 7  # the last version without keys for the rooms of channels
_AT = "\x01"  # before a name that waits for its new one: no key begins with it

# Columns that hold names of sessions, and the condition for those rows.
_SESSIONS = (
    ("session", "key", "true"),
    ("fact_group", "name", "kind = 'session'"),
    ("spend", "name", "kind = 'session'"),
    ("reservation", "session", "true"),
    ("token_record", "session", "true"),
    ("original", "session", "true"),
)


def move_rooms(db: sqlite3.Connection) -> None:
    """Runs in the transaction of its version. A session whose messages all came from a room becomes
    the room's. A session of both a room and a direct chat stays with the direct chat, whose text
    must not appear in the room; unfinished messages of the room move to a new session."""
    kinds = {id_: (rooms, chats) for id_, rooms, chats in db.execute(_KINDS)}
    moved: dict[str, str] = {}
    shared: list[tuple[int, SessionKey]] = []
    for id_, text in db.execute("SELECT id, key FROM session").fetchall():
        key, (has_room, has_chat) = _foreign(text), kinds.get(id_, (0, 0))
        if key is not None and has_room:
            room = key._replace(peer=key_peer(key.peer, is_room=True))
            if has_chat:
                shared.append((id_, room))
            else:
                moved[text] = str(room)
    _rename_people(db)
    _rename_sessions(db, moved)
    for id_, room in shared:
        _split_session(db, id_, room)


def _split_session(db: sqlite3.Connection, session: int, room: SessionKey) -> None:
    """Moves the waiting runs of the room to a new session, in their order."""
    runs = [row[0] for row in db.execute(_WAITING, (session,))]
    if not runs:
        return
    (made,) = db.execute(_MAKE, (str(room), *room, session)).fetchone()
    for seq, run in enumerate(runs, 1):
        db.execute("UPDATE run SET session = ?, seq = ? WHERE id = ?", (made, seq, run))


# --- names ---------------------------------------------------------------------------------------
def _foreign(text: str) -> SessionKey | None:
    """Returns the key of a channel's session; None for a principal's own key and for invalid keys."""
    try:
        key = SessionKey.parse(text)
    except BadSessionKey:
        return None
    return None if key.channel in OWN_CHANNELS else key


def _direct(text: str) -> str:
    """Returns the name of a direct chat if it reads like a room's. All other names stay as they
    are."""
    key = _foreign(text)
    return text if key is None else str(key._replace(peer=key_peer(key.peer, is_room=False)))


def _person(text: str) -> str:
    """Renames a person like a session: the name of a person is that of a session without the agent."""
    return _direct(f"-:{text}").removeprefix("-:")


def _owner(owner: bytes) -> bytes:
    text = bytes(owner).decode("utf-8", "surrogateescape")
    return (text[:1] + _person(text[1:])).encode("utf-8", "surrogateescape")


def _rename(
    db: sqlite3.Connection,
    table: str,
    column: str,
    rename: Callable[[Any], Any],
    where: str = "true",
) -> dict[str, str]:
    """Renames in two steps, because a new name may be the old name of another row. Returns the
    changed names."""
    found = db.execute(f"SELECT DISTINCT {column} FROM {table} WHERE {where}").fetchall()
    names = {old: new for (old,) in found if (new := rename(old)) != old}
    aside = {
        old: (_AT if isinstance(new, str) else _AT.encode()) + new for old, new in names.items()
    }
    for pairs in ([*aside.items()], [(aside[old], new) for old, new in names.items()]):
        update = f"UPDATE {table} SET {column} = ?2 WHERE {column} = ?1 AND {where}"
        db.executemany(update, pairs)
    return names


def _rename_people(db: sqlite3.Connection) -> None:
    """Renames people whose id reads like the peer of a room: their facts, stores, settings and
    notices."""
    _forget_as(db, "scope", _rename(db, "fact_group", "name", _direct, "kind = 'scope'"))
    _rename(db, "settings", "user", _person)
    _rename(db, "notice", "person", _person)
    _rename(db, "plugin_space", "owner", _owner)


def _rename_sessions(db: sqlite3.Connection, moved: Mapping[str, str]) -> None:
    names: dict[str, str] = {}
    for table, column, where in _SESSIONS:
        names |= _rename(db, table, column, lambda text: moved.get(text) or _direct(text), where)
    peers = [(SessionKey.parse(new).peer, new) for new in names.values()]
    db.executemany("UPDATE session SET peer = ? WHERE key = ?", peers)
    _forget_as(db, "session", names)
    db.executemany(_RENAME_SUMMARY, [(new, new) for new in names.values()])
    # The start of each event of a run; within a text its quotes would be escaped.
    event = '"session_key":{},"seq":'
    for old, new in names.items():
        events = [event.format(to_json(one).decode()) for one in (old, new)]
        db.execute(_RENAME_EVENTS, (*events, new))
        _place_in_room(db, new)


def _forget_as(db: sqlite3.Connection, kind: str, moved: Mapping[str, str]) -> None:
    """Copies marks of forgotten statements to the new names. The old marks do no harm."""
    names = [(kind, _digest(new), _digest(old), kind) for old, new in moved.items()]
    db.executemany(_FORGET_AS, names)


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()


def _place_in_room(db: sqlite3.Connection, room: str) -> None:
    """Gives facts a place in their room where the room had the name of the speaker."""
    for place, group in db.execute(_PLACELESS, (room,)).fetchall():
        ((last,),) = db.execute(_NEXT_PLACE, (group,)).fetchall()
        there = (group << 32) + last
        db.execute("UPDATE fact SET room_place = ? WHERE place = ?", (there, place))
        db.execute(_COPY_WORDS, (there, place))


# Without `whence`, a single sender means a direct chat.
_KINDS = """
SELECT session, sum(is_group IS 1) OR (count(is_group) = 0 AND count(DISTINCT sender) > 1),
       sum(is_group IS 0)
FROM (SELECT session, sender,
             CASE WHEN json_valid(whence) THEN json_extract(whence, '$.is_group') END AS is_group
      FROM run WHERE channel NOT IN ('websocket', 'api'))
GROUP BY session
"""
_WAITING = """
SELECT id FROM run INDEXED BY run_unfinished
WHERE session = ? AND finished_at IS NULL
  AND CASE WHEN json_valid(whence) THEN json_extract(whence, '$.is_group') END ORDER BY id
"""
_MAKE = """
INSERT INTO session (key, agent, channel, account, peer, created_at, updated_at)
SELECT ?, ?, ?, ?, ?, created_at, (SELECT max(updated_at) + 1 FROM session)
FROM session WHERE id = ? RETURNING id
"""
_FORGET_AS = """
INSERT INTO forgotten (kind, name, upto) SELECT ?, ?, upto FROM forgotten WHERE name = ? AND kind = ?
ON CONFLICT (kind, name) DO UPDATE SET upto = max(upto, excluded.upto)
"""
# The log of an ended run.
_RENAME_EVENTS = """
UPDATE run SET log = CAST(replace(CAST(log AS TEXT), ?, ?) AS BLOB)
WHERE session = (SELECT id FROM session WHERE key = ?) AND log IS NOT NULL
"""
_RENAME_SUMMARY = """
UPDATE run SET summary = json_set(summary, '$.session_key', ?)
WHERE session = (SELECT id FROM session WHERE key = ?) AND json_valid(summary)
  AND summary LIKE '{%"session_key"%'
"""
_PLACELESS = """
SELECT f.place, f.session FROM fact f JOIN fact_group s ON s.id = f.session
WHERE s.kind = 'session' AND s.name = ? AND f.room_place IS NULL
  AND f.scope <> (SELECT coalesce(max(id), 0) FROM fact_group WHERE kind = 'scope' AND name = s.name)
"""
_COPY_WORDS = """
INSERT INTO fact_words (rowid, words) SELECT ?, words FROM fact_words WHERE rowid = ?
"""
_NEXT_PLACE = "UPDATE fact_group SET last = last + 1 WHERE id = ? RETURNING last"
