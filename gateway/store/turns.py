"""What was said in SQLite, found by its words, and how far facts were looked for in it."""

import json
import sqlite3
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice

from gateway.domain.errors import NotFound
from gateway.domain.facts import Found, Heard, Hits, Said, Trail, Turn, scope_of, words_of
from gateway.domain.ids import NodeId, SessionKey, to_time
from gateway.store.facts import Names, anything_forgotten, is_forgotten, names_of
from gateway.store.pruning import Fork, spans_to
from gateway.store.reader import Readers
from gateway.store.rows import SEQ_BITS, place_of, require_text, seq_of
from gateway.store.writer import Pen, Writer

SHOWN_CHARS = 4000  # of a message that is found
INDEXED_CHARS = 32_768  # of a message; what comes later in it is not found
SAID_BY = ("user", "assistant")

_MOST_FORKS = 1000  # of a session that are looked at, the newest
_MOST_SKIPPED = 8  # times the limit: hits of a word that must not be seen
_MOST_COMMON = 3  # frequent words that are looked for beside each other
_STAYS_COMMON, _MOST_COMMON_KEPT = 1.2, 1_000  # times the length, sessions
_MERGED_PAGES = 200  # a commit


@dataclass(frozen=True, slots=True)
class _Common:
    """Words that most turns of a session held when it had this length: who asks again need not look
    for them again."""

    length: int = 0
    words: frozenset[str] = frozenset()

    def holds_for(self, trail: Trail) -> bool:
        return self.length <= trail.length <= self.length * _STAYS_COMMON

    def without(self, words: Sequence[str]) -> Sequence[str]:
        return [word for word in words if word not in self.words]


class SqliteTurns:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers
        self._common: dict[SessionKey, _Common] = {}

    async def find(
        self,
        key: SessionKey,
        words: Sequence[str],
        *,
        messages: Sequence[str] = (),
        upto: NodeId | None = None,
        limit: int,
    ) -> Found:
        require_text("the session's key or a message's id", str(key), upto, *messages)
        words = [word for word in words if word in words_of(word)]  # and is no query
        common = self._common.get(key, _Common())

        def look(db: sqlite3.Connection) -> tuple[Found, _Common]:
            known = _session_and_trail(key, upto, db)
            if known is None:
                return Found(), common
            session, trail = known
            depths = _depths_of(messages, session, trail, db)
            kept = common if common.holds_for(trail) else _Common(trail.length)
            hits, told = _hits_of(kept.without(words), session, trail, limit, db)
            return Found(trail, hits, depths), replace(kept, words=kept.words | told)

        found, self._common[key] = await self._readers.read(look)
        if len(self._common) > _MOST_COMMON_KEPT:
            del self._common[next(iter(self._common))]
        return found

    async def fetch(self, key: SessionKey, trail: Trail, depths: Sequence[int]) -> Sequence[Turn]:
        require_text("the session's key", str(key))
        return await self._readers.read(partial(_fetch, key, trail, depths))

    async def behind(self, *, limit: int) -> Sequence[SessionKey]:
        return await self._readers.read(partial(_behind, limit))

    async def advance(self, keys: Sequence[SessionKey], *, limit: int) -> Sequence[SessionKey]:
        require_text("the session's key", *map(str, keys))
        return await self._writer.write(partial(_advance, keys, limit), durable=False)

    async def forget(self, key: SessionKey, ids: Sequence[str]) -> None:
        require_text("the session's key or a message's id", str(key), *ids)
        self._common.pop(key, None)
        await self._writer.write(partial(forget_turns, key, ids), durable=True)
        await rewrite_index(self._writer)


def _session_and_trail(
    key: SessionKey, upto: NodeId | None, db: sqlite3.Connection
) -> tuple[int, Trail] | None:
    row = db.execute("SELECT id, head, last_seq FROM session WHERE key = ?", (str(key),)).fetchone()
    if row is None:
        return None
    session, head, last = row
    if upto is not None:
        head = _place_in(session, upto, db)
        if head is None:
            raise NotFound(f"message {upto}")
    return session, trail_of(forks_of(session, db), None if head is None else seq_of(head), last)


def forks_of(session: int, db: sqlite3.Connection) -> list[Fork]:
    """The newest of them, oldest first."""
    bounds = (place_of(session, 0), place_of(session + 1, 0), _MOST_FORKS)
    forks = db.execute(_FORKS, bounds).fetchall()
    return [(seq_of(at), None if up is None else seq_of(up)) for at, up in reversed(forks)]


def _depths_of(
    messages: Sequence[str], session: int, trail: Trail, db: sqlite3.Connection
) -> Mapping[str, int]:
    (found,) = db.execute(_PLACES, (json.dumps(messages),)).fetchone()
    inside = ((name, place) for name, place in json.loads(found) if place >> SEQ_BITS == session)
    depths = ((name, trail.depth_of(seq_of(place))) for name, place in inside)
    return {name: depth for name, depth in depths if depth is not None}


def _place_in(session: int, node_id: str, db: sqlite3.Connection) -> int | None:
    row = db.execute("SELECT place FROM node WHERE id = ?", (node_id,)).fetchone()
    return None if row is None or row[0] >> SEQ_BITS != session else int(row[0])


def trail_of(forks: Sequence[tuple[int, int | None]], head: int | None, last: int) -> Trail:
    """`forks`: (seq, the parent's) of each message that does not follow on the one before it in
    time, oldest first; every other message does. So a path is a few spans, however long it is."""
    if not forks:  # the first message is not answered yet
        return Trail()
    starts = [seq for seq, _ in forks]
    spans = set(spans_to(head, forks, starts)) if head is not None else set()
    own = min(spans, default=(last + 1, 0))[0]  # where the conversation begins
    ends = [*(start - 1 for start in starts[1:]), last]
    tips: dict[int, int] = {}  # of earlier conversations: the last that was said
    roots: list[int] = []
    for (start, parent), end in zip(forks, ends, strict=True):
        at = -1 if parent is None else bisect_right(starts, parent) - 1
        roots.append(start if at < 0 else roots[at])
        tips[roots[-1]] = end
    for root, tip in tips.items():
        if root < own:
            spans.update(spans_to(tip, forks, starts))
    return Trail.of(spans)


def _hits_of(
    words: Sequence[str], session: int, trail: Trail, limit: int, db: sqlite3.Connection
) -> tuple[Mapping[str, Hits], frozenset[str]]:
    """And which of them are too common to look for."""
    if not trail.spans or not words:
        return {}, frozenset()
    bounds = (place_of(session, trail.spans[0][0]), place_of(session, trail.spans[-1][1]))

    def look(query: str) -> set[int]:
        # Where there is but one span, all within its bounds may be seen.
        most = limit if len(trail.spans) == 1 else limit * _MOST_SKIPPED
        (places,) = db.execute(_MATCH, (query, *bounds, most)).fetchone()
        return _seen(places, trail, limit) if places else set()

    newest = {word: found for word in words if (found := look(_quoted(word)))}
    totals = _totals(newest, session, trail, limit, db)
    hits = {word: found for word, found in newest.items() if trail.tells_apart(totals[word])}
    rare = [word for word, found in hits.items() if len(found) < limit]
    common = sorted(hits.keys() - rare, key=lambda word: (totals[word], word))[:_MOST_COMMON]
    any_rare = " OR ".join(map(_quoted, rare))
    for word in common if rare else ():
        hits[word] |= look(f"{_quoted(word)} AND ({any_rare})")
    for one, other in combinations(common, 2):
        both = look(f"{_quoted(one)} AND {_quoted(other)}")
        hits[one] |= both
        hits[other] |= both
    told = {
        word: Hits(frozenset(found), max(len(found), totals[word])) for word, found in hits.items()
    }
    return told, frozenset(newest.keys() - hits)


def _totals(
    newest: Mapping[str, set[int]], session: int, trail: Trail, limit: int, db: sqlite3.Connection
) -> Mapping[str, int]:
    """How often each word was said: beyond the newest, as if it was always said as often."""
    row = db.execute(_CURSOR, (session,)).fetchone()
    looked_at = trail.count_to(row[0]) if row else 0
    return {
        word: len(found)
        if len(found) < limit
        else len(found) * trail.length // max(1, looked_at - min(found))
        for word, found in newest.items()
    }


def _seen(places: str, trail: Trail, limit: int) -> set[int]:
    """The first `limit` that may be seen."""
    if len(trail.spans) == 1:
        ((first, _, depth),) = trail.spans
        return {seq_of(place) - first + depth for place in map(int, places.split(","))}
    depths = (trail.depth_of(seq_of(int(place))) for place in places.split(","))
    return set(islice((depth for depth in depths if depth is not None), limit))


def _quoted(word: str) -> str:
    return f'"{word}"'  # words hold no quotes


def _fetch(
    key: SessionKey, trail: Trail, depths: Sequence[int], db: sqlite3.Connection
) -> Sequence[Turn]:
    row = db.execute("SELECT id FROM session WHERE key = ?", (str(key),)).fetchone()
    if row is None:
        return ()
    places = {place_of(row[0], trail.seq_at(depth)): depth for depth in depths}
    marks = ", ".join("?" * len(places))
    rows = db.execute(_FETCH.format(marks), (SHOWN_CHARS, *places)).fetchall()
    turns = [
        (Turn(places[place], id_, role, text, to_time(at), sender), asked)
        for place, id_, role, text, at, sender, asked in rows
    ]
    if anything_forgotten(db):
        turns = [
            (turn, asked)
            for turn, asked in turns
            if not is_forgotten(names_by(key, turn, asked), turn.at, db)
        ]
    return [turn if turn.role == "user" else replace(turn, sender=None) for turn, _ in turns]


def names_by(key: SessionKey, turn: Turn, asked: str | None) -> Names:
    """It may be forgotten itself, or what it answers, with whoever said that or where."""
    return names_of(scope_of(key, turn.sender), str(key), turn.id, asked)


def _behind(limit: int, db: sqlite3.Connection) -> Sequence[SessionKey]:
    return [SessionKey.parse(row[0]) for row in db.execute(_BEHIND, (limit,))]


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
        _add_words([(place, text) for place, role, text in rows if role in SAID_BY], pen.db)
        if left:
            upto = seq_of(rows[-1][0]) if len(rows) == left else session.last_seq
            pen.db.execute(_SET_CURSOR, (session.id, upto))
        left -= len(rows)
        if upto < session.last_seq:
            behind.append(key)
    return behind


def _add_words(texts: Sequence[tuple[int, str]], db: sqlite3.Connection) -> None:
    """Each at its place."""
    rows = [(place, words) for place, text in texts if (words := _indexed(text))]
    db.executemany("INSERT INTO turn (rowid, words) VALUES (?, ?)", rows)


def _take_words(texts: Sequence[tuple[int, str]], db: sqlite3.Connection) -> None:
    """The inverse of `_add_words`, which has to be told what is to go."""
    rows = [(place, words) for place, text in texts if (words := _indexed(text))]
    db.executemany("INSERT INTO turn (turn, rowid, words) VALUES ('delete', ?, ?)", rows)


def _indexed(text: str) -> str:
    return " ".join(words_of(text[:INDEXED_CHARS]))


def forget_turns(key: SessionKey, ids: Sequence[str], pen: Pen) -> None:
    """Within the transaction that erases their texts, and before that."""
    session = pen.session(key)
    if session is None:
        return
    row = pen.db.execute(_CURSOR, (session.id,)).fetchone()
    upto = place_of(session.id, row[0] if row else 0)
    places = (pen.place(session, node_id) for node_id in ids)
    found = [place for place in places if place is not None and place <= upto]
    texts = [pen.db.execute(_TEXT, (place, *SAID_BY)).fetchone() for place in found]
    _take_words([row for row in texts if row is not None], pen.db)


async def rewrite_index(writer: Writer) -> None:
    """A part a commit, so that nobody waits for all of it."""
    while await writer.write(_merge, durable=False):
        pass


def _merge(pen: Pen) -> bool:
    """Rewrites a part of the index, so that what was taken out is not in older parts of it; whether
    there is more to do."""
    before = pen.db.total_changes
    pen.db.execute("INSERT INTO turn (turn, rank) VALUES ('merge', ?)", (-_MERGED_PAGES,))
    is_more = pen.db.total_changes - before >= 2
    if not is_more:
        pen.has_erased = True  # of the parts that were rewritten, pages still hold the words
    return is_more


_PLACES = """
SELECT json_group_array(json_array(id, place)) FROM node
WHERE id IN (SELECT value FROM json_each(?))
"""
_FORKS = """
SELECT place, parent FROM node INDEXED BY node_fork
WHERE parent IS NOT place - 1 AND place > ? AND place < ? ORDER BY place DESC LIMIT ?
"""
# In one piece: a row each would hand the interpreter's lock over and back for every hit.
_MATCH = """
SELECT group_concat(place) FROM (
    SELECT rowid AS place FROM turn WHERE turn MATCH ? AND rowid BETWEEN ? AND ?
    ORDER BY rowid DESC LIMIT ?)
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
_SET_CURSOR = """
INSERT INTO turn_cursor (session, upto) VALUES (?, ?)
ON CONFLICT (session) DO UPDATE SET upto = excluded.upto
"""
_NEXT = "SELECT place, role, text FROM node WHERE place > ? AND place < ? ORDER BY place LIMIT ?"
_TEXT = "SELECT place, text FROM node WHERE place = ? AND role IN (?, ?)"


class SqliteHearing:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def behind(self) -> Sequence[SessionKey]:
        return await self._readers.read(partial(_keys, _UNREAD))

    async def next(self, key: SessionKey, *, limit: int) -> Heard:
        return await self._next("heard", key, limit)

    async def looked(self, upto: Mapping[SessionKey, NodeId]) -> None:
        require_text("a message's id", *upto.values())
        rows = [(node,) for node in upto.values()]
        await self._writer.write(partial(_looked, rows), durable=False)

    async def owe(self, key: SessionKey, since: NodeId) -> None:
        require_text("a message's id", since)
        await self._writer.write(partial(_owe, since), durable=False)

    async def owed(self) -> Sequence[SessionKey]:
        return await self._readers.read(partial(_keys, _OWED))

    async def next_owed(self, key: SessionKey, *, limit: int) -> Heard:
        return await self._next("unread", key, limit)

    async def read(self, key: SessionKey, upto: NodeId) -> bool:
        require_text("a message's id", upto)
        return await self._writer.write(partial(_read, key, upto), durable=False)

    async def _next(self, table: str, key: SessionKey, limit: int) -> Heard:
        require_text("the session's key", str(key))
        return await self._readers.read(partial(_next, table, str(key), limit))


def _keys(query: str, db: sqlite3.Connection) -> Sequence[SessionKey]:
    return [SessionKey.parse(row[0]) for row in db.execute(query)]


def _next(table: str, key: str, limit: int, db: sqlite3.Connection) -> Heard:
    """`table` is `heard`, where no row means that nothing was looked at, or `unread`."""
    found = db.execute(_PLACE[table], (key,)).fetchone()
    if found is None:
        return Heard()
    session, seq = found
    bounds = (place_of(session, seq), place_of(session + 1, 0), max(0, limit))
    rows = db.execute(_NODES, bounds).fetchall()
    said = tuple(
        Said(node, run, sender, text, to_time(at))
        for node, run, role, message, sender, text, at in rows
        # Of what stands there as a user's, only that was said which was accepted or imported.
        if role == "user" and message in {None, node}
    )
    return Heard(said, rows[-1][0] if rows else None)


def _looked(rows: Sequence[tuple[NodeId]], pen: Pen) -> None:
    pen.db.executemany(_LOOKED, rows)


def _owe(since: NodeId, pen: Pen) -> None:
    pen.db.execute(_OWE, (since,))


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
WHERE s.last_seq > coalesce(h.seq, 0) ORDER BY s.updated_at DESC
"""
_OWED = "SELECT s.key FROM unread u JOIN session s ON s.id = u.session WHERE u.is_owed"
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
