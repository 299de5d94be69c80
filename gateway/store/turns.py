"""The full-text index of messages in SQLite, and how far fact extraction has read."""

import sqlite3
from bisect import bisect_right
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from typing import Any, TypeVar

from gateway.domain.errors import NotFound
from gateway.domain.facts import (
    FoundTurns,
    Hits,
    PastTurn,
    SaidMessage,
    Trail,
    Unheard,
    scope_of,
    words_of,
)
from gateway.domain.ids import NodeId, SessionKey, to_time
from gateway.store.facts import Names, anything_forgotten, is_forgotten, names_of
from gateway.store.faults import require_text
from gateway.store.pruning import Fork, spans_to
from gateway.store.rows import place_of, seq_of
from gateway.store.writer import Pen, Readers, SqliteStore, Writer

SHOWN_CHARS = 4000  # of a message that is found
INDEXED_CHARS = 32_768  # of a message; what comes later in it is not found
SAID_BY = ("user", "assistant")

_MOST_FORKS = 1000  # of a session that are looked at, the newest
_MOST_SKIPPED = 8  # times the limit: hits of a word that must not be seen
_FEW, _SHARE = 8, 0.25  # turns, and a share of them: a word in more of them tells nothing apart
_MOST_COMMON = 3  # frequent words that are looked for beside each other
_STAYS_COMMON, _MOST_COMMON_KEPT = 1.2, 1_000  # times the length, sessions
_MERGED_PAGES = 2_000  # a commit: half a megabyte
# Bytes of a page of the index. Within a page all is read from one end to the other: the smaller it
# is, the less of what others said is passed on the way to a session.
PAGE_BYTES = 250

K = TypeVar("K")


class SqliteTurns(SqliteStore):
    def __init__(self, writer: Writer, readers: Readers, pen: Pen) -> None:
        super().__init__(writer, readers, pen)
        self._common: dict[str, tuple[int, frozenset[str]]] = {}
        self._has_small_pages = False

    def find_turns(
        self,
        key: SessionKey,
        words: Sequence[str],
        *,
        messages: Sequence[str] = (),
        upto: NodeId | None = None,
        limit: int,
    ) -> Coroutine[Any, Any, FoundTurns]:
        name = str(key)
        require_text("the session's key or a message's id", name, upto, *messages)
        plain = frozenset(words_of(" ".join(words)))
        asked = [*filter(plain.__contains__, words)]  # the others might be queries
        return self._readers.read(
            partial(self._find, name, asked, messages=messages, upto=upto, limit=limit)
        )

    def _find(
        self,
        name: str,
        words: Sequence[str],
        db: sqlite3.Connection,
        *,
        messages: Sequence[str],
        upto: NodeId | None,
        limit: int,
    ) -> FoundTurns:
        row = db.execute(_SESSION, (name,)).fetchone()
        if row is None:
            return FoundTurns()
        session, head, last, indexed = row
        asked = _SEQS.format(", ".join("?" * len(messages)) or "NULL")
        seqs = dict(db.execute(asked, (session, upto, *messages)).fetchall())
        if upto is not None and upto not in seqs:
            raise NotFound(f"message {upto}")
        trail = trail_of(forks_of(session, db), head if upto is None else seqs[upto], last)
        depths = {
            one: depth
            for one in messages
            if one in seqs and (depth := trail.depth_of(seqs[one])) is not None
        }
        hits = self._hits(name, words, indexed, _Look(db, session, trail, limit))
        return FoundTurns(trail, hits, depths)

    def _hits(
        self, name: str, words: Sequence[str], indexed: int, look: "_Look"
    ) -> Mapping[str, Hits]:
        """Without words that are known to be common in this session."""
        trail = look.trail
        length, common = self._common.get(name, (0, frozenset()))
        if not length <= trail.length <= length * _STAYS_COMMON:
            length, common = trail.length, frozenset()
        asked = [word for word in words if word not in common]
        if not asked or not trail.spans:
            return {}
        hits, told = _hits_of(asked, indexed, look)
        self._common[name] = (length, common | told)
        if len(self._common) > _MOST_COMMON_KEPT:
            del self._common[next(iter(self._common))]
        return hits

    async def fetch_turns(
        self, key: SessionKey, trail: Trail, depths: Sequence[int]
    ) -> Sequence[PastTurn]:
        require_text("the session's key", str(key))
        return await self._readers.read(partial(_fetch, key, trail, depths))

    async def unindexed(self, *, limit: int) -> Sequence[SessionKey]:
        return await self._readers.read(partial(_keys, _BEHIND, limit))

    async def index_turns(self, keys: Sequence[SessionKey], *, limit: int) -> Sequence[SessionKey]:
        require_text("the session's key", *map(str, keys))
        if not self._has_small_pages:
            await self._writer.write(_make_pages_small, durable=False)
            self._has_small_pages = True
        return await self._writer.write(partial(_advance, keys, limit), durable=False)

    async def forget_turns(self, key: SessionKey, ids: Sequence[str]) -> None:
        require_text("the session's key or a message's id", str(key), *ids)
        self._common.pop(str(key), None)
        await self._writer.write(partial(forget_turns, key, ids), durable=True)
        await rewrite_index(self._writer)


def forks_of(session: int, db: sqlite3.Connection) -> list[Fork]:
    """The newest forks, oldest first."""
    bounds = (place_of(session, 0), place_of(session + 1, 0), _MOST_FORKS)
    forks = db.execute(_FORKS, bounds).fetchall()
    forks.reverse()
    return forks


def trail_of(forks: Sequence[Fork], head: int | None, last: int) -> Trail:
    """`forks` holds (seq, parent seq) of each message that does not follow the one before it in
    time, oldest first. All other messages do, so a path is a few spans, however long it is."""
    if len(forks) < 2:  # none: the first message is not answered yet
        end = last if head is None else head
        return Trail.of([(start, end) for start, _ in forks])
    starts = [seq for seq, _ in forks]
    spans = set(spans_to(head, forks, starts)) if head is not None else set()
    own = min(spans, default=(last + 1, 0))[0]  # where the conversation begins
    for root, tip in _tips(forks, starts, last).items():
        if root < own:
            spans.update(spans_to(tip, forks, starts))
    return Trail.of(spans)


def _tips(forks: Sequence[Fork], starts: Sequence[int], last: int) -> Mapping[int, int]:
    """The last message of each conversation, by its first."""
    ends = [*(start - 1 for start in starts[1:]), last]
    tips: dict[int, int] = {}
    roots: list[int] = []
    for (start, parent), end in zip(forks, ends, strict=True):
        at = -1 if parent is None else bisect_right(starts, parent) - 1
        roots.append(start if at < 0 else roots[at])
        tips[roots[-1]] = end
    return tips


def _hits_of(
    words: Sequence[str], indexed: int, look: "_Look"
) -> tuple[Mapping[str, Hits], frozenset[str]]:
    """The hits of each word, and the words that are too common to search for."""
    found = look({word: f'"{word}"' for word in words})
    if not found:
        return {}, frozenset()
    trail = look.trail
    looked_at, totals = trail.count_to(indexed), dict[str, int]()
    for word, depths in found.items():
        total = len(depths)
        if total >= look.limit:  # beyond the newest, as if it was always said as often
            total = max(total, total * trail.length // max(1, looked_at - min(depths)))
        totals[word] = total
    most = max(_FEW, _SHARE * trail.length)
    found = {word: depths for word, depths in found.items() if totals[word] <= most}
    common = frozenset(totals.keys() - found.keys())
    if frequent := [word for word, depths in found.items() if len(depths) >= look.limit]:
        _add_meetings(found, sorted(frequent, key=lambda word: (totals[word], word)), look)
    told = ((word, frozenset(depths)) for word, depths in found.items())
    return {word: Hits(depths, max(len(depths), totals[word])) for word, depths in told}, common


def _add_meetings(found: dict[str, set[int]], frequent: Sequence[str], look: "_Look") -> None:
    """Adds where frequent words meet a rare one or each other: else only their newest are found."""
    rare = " OR ".join(f'"{word}"' for word in found if word not in frequent)
    rarest = frequent[:_MOST_COMMON]
    asked = {(word,): f'"{word}" AND ({rare})' for word in rarest} if rare else {}
    pairs = {pair: '"{}" AND "{}"'.format(*pair) for pair in combinations(rarest, 2)}
    for those, depths in look({**asked, **pairs}).items():
        for word in those:
            found[word] |= depths


@dataclass(frozen=True, slots=True)
class _Look:
    """Asks the index many queries in one statement."""

    db: sqlite3.Connection
    session: int
    trail: Trail
    limit: int

    def __call__(self, queries: Mapping[K, str]) -> dict[K, set[int]]:
        """The newest `limit` depths of each query that has any."""
        if not queries:
            return {}
        spans = self.trail.spans
        (first, _, before), is_whole = spans[0], len(spans) == 1
        most = self.limit * (1 if is_whole else _MOST_SKIPPED)  # some must not be seen
        bounds = (place_of(self.session, first), place_of(self.session, spans[-1][1]), most)
        asked = _MATCH.format(", ".join(["(?)"] * len(queries)))
        places = dict(self.db.execute(asked, (*queries.values(), *bounds)).fetchall())
        found: dict[K, set[int]] = {}
        for name, query in queries.items():
            if not places[query]:
                continue
            these = map(int, places[query].split(","))
            if is_whole:
                found[name] = {place - bounds[0] + before for place in these}
            else:
                depths = map(self.trail.depth_of, map(seq_of, these))
                found[name] = set(islice((at for at in depths if at is not None), self.limit))
        return found


def _fetch(
    key: SessionKey, trail: Trail, depths: Sequence[int], db: sqlite3.Connection
) -> Sequence[PastTurn]:
    row = db.execute("SELECT id FROM session WHERE key = ?", (str(key),)).fetchone()
    if row is None:
        return ()
    places = {place_of(row[0], trail.seq_at(depth)): depth for depth in depths}
    marks = ", ".join("?" * len(places))
    rows = db.execute(_FETCH.format(marks), (SHOWN_CHARS, *places)).fetchall()
    are_forgotten = anything_forgotten(db)
    turns = []
    for place, id_, role, text, at, sender, asked in rows:
        turn = PastTurn(places[place], id_, role, text, to_time(at), sender)
        if are_forgotten and is_forgotten(names_by(key, turn, asked), turn.at, db):
            continue
        turns.append(turn if role == "user" else replace(turn, sender=None))
    return turns


def names_by(key: SessionKey, turn: PastTurn, asked: str | None) -> Names:
    """Names under which the turn, or the message that it answers, may be marked as forgotten."""
    return names_of(scope_of(key, turn.sender), str(key), turn.id, asked)


def _advance(keys: Sequence[SessionKey], limit: int, pen: Pen) -> Sequence[SessionKey]:
    left, behind = limit, []
    for key in dict.fromkeys(keys):
        session = pen.session(key)
        if session is None:
            continue
        row = pen.db.execute(_CURSOR, (session.id,)).fetchone()
        upto = row[0] if row else 0
        bounds = (place_of(session.id, upto), place_of(session.id + 1, 0), left)
        rows = pen.db.execute(_NEXT, bounds).fetchall() if upto < session.last_seq else []
        said = [(place, text) for place, role, text in rows if role in SAID_BY]
        _change_index(_ADD_WORDS, said, pen.db)
        if left:
            upto = seq_of(rows[-1][0]) if len(rows) == left else session.last_seq
            pen.db.execute(_SET_CURSOR, (session.id, upto))
        left -= len(rows)
        if upto < session.last_seq:
            behind.append(key)
    return behind


def _change_index(change: str, texts: Sequence[tuple[int, str]], db: sqlite3.Connection) -> None:
    """Adds words at their places or removes them; to remove them, the index needs the words
    again."""
    rows = [(place, " ".join(words_of(text[:INDEXED_CHARS]))) for place, text in texts]
    db.executemany(change, [row for row in rows if row[1]])


def forget_turns(key: SessionKey, ids: Sequence[str], pen: Pen) -> None:
    """Runs before the texts are erased, in the same transaction."""
    session = pen.session(key)
    if session is None:
        return
    row = pen.db.execute(_CURSOR, (session.id,)).fetchone()
    upto = place_of(session.id, row[0] if row else 0)
    places = (pen.place(session, node_id) for node_id in ids)
    found = [place for place in places if place is not None and place <= upto]
    texts = [pen.db.execute(_TEXT, (place, *SAID_BY)).fetchone() for place in found]
    _change_index(_TAKE_WORDS, [row for row in texts if row is not None], pen.db)


async def rewrite_index(writer: Writer) -> None:
    """Merges a part in each commit, so that other writes wait only for a part."""
    while await writer.write(_merge, durable=False):
        pass


def _make_pages_small(pen: Pen) -> None:
    """Applies to pages written from now on; merges rewrite older ones."""
    pen.db.execute("INSERT INTO turn (turn, rank) VALUES ('pgsz', ?)", (PAGE_BYTES,))


def _merge(pen: Pen) -> bool:
    """Rewrites a part of the index, so that removed words leave its older parts. Returns whether
    there is more to do."""
    before = pen.db.total_changes
    pen.db.execute("INSERT INTO turn (turn, rank) VALUES ('merge', ?)", (-_MERGED_PAGES,))
    is_more = pen.db.total_changes - before >= 2
    if not is_more:
        pen.has_erased = True  # of the parts that were rewritten, pages still hold the words
    return is_more


_SESSION = """
SELECT s.id, s.head & 0xffffffff, s.last_seq, coalesce(c.upto, 0)
FROM session s LEFT JOIN turn_cursor c ON c.session = s.id WHERE s.key = ?
"""
_SEQS = "SELECT id, place & 0xffffffff FROM node WHERE place >> 32 = ? AND id IN (?, {})"
_FORKS = """
SELECT place & 0xffffffff, parent & 0xffffffff FROM node INDEXED BY node_fork
WHERE parent IS NOT place - 1 AND place > ? AND place < ? ORDER BY place DESC LIMIT ?
"""
# In one piece: a row each would hand the interpreter's lock over and back for every hit.
_MATCH = """
WITH asked (query) AS (VALUES {})
SELECT query, (SELECT group_concat(place) FROM (
    SELECT rowid AS place FROM turn WHERE turn MATCH query AND rowid BETWEEN ? AND ?
    ORDER BY rowid DESC LIMIT ?))
FROM asked
"""
_FETCH = """
SELECT n.place, n.id, n.role, substr(n.text, 1, ?), n.created_at, r.sender, r.message_id
FROM node n LEFT JOIN run r ON r.run_id = n.run_id
WHERE n.place IN ({}) AND n.role IN ('user', 'assistant') AND n.text <> ''
"""
_BEHIND = """
SELECT s.key FROM session s LEFT JOIN turn_cursor c ON c.session = s.id
WHERE s.last_seq > coalesce(c.upto, 0) ORDER BY s.id LIMIT ?
"""
_CURSOR = "SELECT upto FROM turn_cursor WHERE session = ?"
_ADD_WORDS = "INSERT INTO turn (rowid, words) VALUES (?, ?)"
_TAKE_WORDS = "INSERT INTO turn (turn, rowid, words) VALUES ('delete', ?, ?)"
_SET_CURSOR = """
INSERT INTO turn_cursor (session, upto) VALUES (?, ?)
ON CONFLICT (session) DO UPDATE SET upto = excluded.upto
"""
_NEXT = "SELECT place, role, text FROM node WHERE place > ? AND place < ? ORDER BY place LIMIT ?"
_TEXT = "SELECT place, text FROM node WHERE place = ? AND role IN (?, ?)"


class SqliteHearing(SqliteStore):
    async def unheard(self) -> Sequence[SessionKey]:
        return await self._readers.read(partial(_keys, _UNREAD, -1))

    async def next_unheard(self, key: SessionKey, *, limit: int) -> Unheard:
        return await self._next("heard", key, limit)

    async def mark_heard(self, upto: Mapping[SessionKey, NodeId]) -> None:
        require_text("a message's id", *upto.values())
        rows = [(node,) for node in upto.values()]
        await self._writer.write(partial(_run, _LOOKED, rows), durable=False)

    async def owe(self, key: SessionKey, since: NodeId) -> None:
        require_text("a message's id", since)
        await self._writer.write(partial(_run, _OWE, [(since,)]), durable=False)

    async def owed(self) -> Sequence[SessionKey]:
        return await self._readers.read(partial(_keys, _OWED, -1))

    async def next_owed(self, key: SessionKey, *, limit: int) -> Unheard:
        return await self._next("unread", key, limit)

    async def mark_read(self, key: SessionKey, upto: NodeId) -> bool:
        require_text("a message's id", upto)
        return await self._writer.write(partial(_read, key, upto), durable=False)

    async def _next(self, table: str, key: SessionKey, limit: int) -> Unheard:
        require_text("the session's key", str(key))
        return await self._readers.read(partial(_next, table, str(key), limit))


def _keys(query: str, limit: int, db: sqlite3.Connection) -> Sequence[SessionKey]:
    return [SessionKey.parse(row[0]) for row in db.execute(query, (limit,))]


def _next(table: str, key: str, limit: int, db: sqlite3.Connection) -> Unheard:
    """`table` is `heard`, in which a missing row means that nothing was read, or `unread`."""
    found = db.execute(_PLACE[table], (key,)).fetchone()
    if found is None:
        return Unheard()
    session, seq = found
    bounds = (place_of(session, seq), place_of(session + 1, 0), max(0, limit))
    rows = db.execute(_NODES, bounds).fetchall()
    said = tuple(
        SaidMessage(node, run, sender, text, to_time(at))
        for node, run, role, message, sender, text, at in rows
        # Of what stands there as a user's, only that was said which was accepted or imported.
        if role == "user" and message in {None, node}
    )
    return Unheard(said, rows[-1][0] if rows else None)


def _run(change: str, rows: Sequence[tuple[NodeId]], pen: Pen) -> None:
    pen.db.executemany(change, rows)


def _read(key: SessionKey, upto: NodeId, pen: Pen) -> bool:
    session = pen.session(key)
    place = pen.place(session, upto) if session else None
    if session is None or place is None:
        return False
    bounds = (place_of(session.id, 0), place_of(session.id, session.last_seq), session.id)
    row = pen.db.execute(_READ, (place, *bounds)).fetchone()
    return bool(row and row[0])


_UNREAD = """
SELECT s.key FROM session s LEFT JOIN heard h ON h.session = s.id
WHERE s.last_seq > coalesce(h.seq, 0) ORDER BY s.updated_at DESC LIMIT ?
"""
_OWED = "SELECT s.key FROM unread u JOIN session s ON s.id = u.session WHERE u.is_owed LIMIT ?"
_PLACE = {
    "heard": """
        SELECT s.id, coalesce(h.seq, 0) FROM session s LEFT JOIN heard h ON h.session = s.id
        WHERE s.key = ?
    """,
    "unread": """
        SELECT s.id, u.seq FROM session s JOIN unread u ON u.session = s.id
        WHERE s.key = ? AND u.is_owed
    """,
}
_NODES = """
SELECT n.id, n.run_id, n.role, r.message_id, r.sender,
       CASE n.role WHEN 'user' THEN n.text END, n.created_at
FROM node n LEFT JOIN run r ON n.role = 'user' AND r.run_id = n.run_id
WHERE n.place > ? AND n.place < ? ORDER BY n.place LIMIT ?
"""
_SEQ = "n.place & 0xffffffff"
_LOOKED = f"""
INSERT INTO heard (session, seq) SELECT n.place >> 32, {_SEQ} FROM node n WHERE n.id = ?
ON CONFLICT (session) DO UPDATE SET seq = max(seq, excluded.seq)
"""
_OWE = f"""
INSERT INTO unread (session, seq, is_owed) SELECT n.place >> 32, ({_SEQ}) - 1, 1 FROM node n
WHERE n.id = ?
ON CONFLICT (session) DO UPDATE
SET seq = CASE WHEN is_owed THEN seq ELSE max(seq, excluded.seq) END, is_owed = 1
"""
_READ = """
UPDATE unread SET seq = max(seq, ?1 - ?2), is_owed = ?1 < ?3 WHERE session = ?4
RETURNING is_owed
"""
