"""The full-text index of messages, and the progress of fact extraction."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nlargest
from itertools import chain, combinations, filterfalse, repeat
from sqlite3 import Connection
from typing import TypeVar

from pydantic_core import from_json

from gateway.domain.errors import NotFound
from gateway.domain.facts import (
    Choose,
    FoundTurns,
    Hits,
    PastTurn,
    SaidMessage,
    SaidPage,
    Trail,
    scope_of,
    stem_of,
    words_of,
)
from gateway.domain.ids import NodeId, SessionKey, to_time
from gateway.store.facts import is_forgotten, names_of
from gateway.store.pruning import Fork, spans_to
from gateway.store.transaction import (
    SEQ_BITS,
    Row,
    Transaction,
    keep_newest,
    place_of,
    places_of,
    seq_of,
)
from gateway.store.writer import Engine, StorePart, WriteTransaction, Writing, reading, writing

SHOWN_CHARS = 4000  # of a found message
INDEXED_CHARS = 32_768  # of a message; later text is not found
SAID_BY = ("user", "assistant")

_MOST_FORKS = 1000  # of a session that are read: the newest
_MOST_SKIPPED = 8  # times the limit: hits read if some may be invisible
_FEW, _SHARE = 8, 0.25  # a word in more turns than both is too common to search
_MOST_COMMON = 3  # frequent words that are combined with each other
_STAYS_COMMON, _MOST_KEPT = 1.2, 1_000  # times the length; sessions
_MOST_STEMS, _MOST_NEW = 100_000, 4_000  # in memory; words a commit, about ten milliseconds
_EXCHANGE = 2  # messages
_SESSIONS = 1_000  # a page
_MERGED_PAGES = 2_000  # per commit: half a megabyte
# Bytes of a page of the index. A search reads a page from start to end: a smaller page holds less
# text of other sessions.
PAGE_BYTES = 250

K = TypeVar("K")
_NO_WORDS: frozenset[str] = frozenset()
Said = Sequence[tuple[int, Sequence[str]]]  # words with their place
# Seqs before and after, and the new stems; None if finding them would take too long.
Added = tuple[SessionKey, int, int, frozenset[str] | None]


class KnownStems:
    """The stems of all indexed words of the sessions that this process has indexed from their beginning."""

    def __init__(self, most: int = _MOST_STEMS) -> None:
        self._most, self._total = most, 0
        self._known: dict[SessionKey, tuple[int, set[str]]] = {}  # with the last indexed seq

    def get(self, key: SessionKey) -> set[str] | None:
        return self._known.get(key, (0, None))[1]

    def add(self, key: SessionKey, after: int, upto: int, stems: Iterable[str] | None) -> None:
        """Adds the stems of the messages from `after` to `upto`. If these or earlier ones are missing,
        the session is not known any more."""
        last, known = self._known.pop(key, (0, set[str]()))
        self._total -= len(known)
        if stems is not None and after in {0, last}:
            known = known if after else set()
            known.update(stems)
            self._known[key] = upto, known
            self._total += len(known)
        while self._total > self._most:
            self._total -= len(self._known.pop(next(iter(self._known)))[1])


class TurnIndex(StorePart):
    """Finds messages of a session by their words."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        # The length of each session when its common words were counted, and these words.
        self._common: dict[SessionKey, tuple[int, frozenset[str]]] = {}
        self._known = KnownStems()
        self._commits = 0  # of the index
        self._has_small_pages = False

    def may_find(self, key: SessionKey, words: Sequence[str], length: int) -> bool:
        counted, common = self._common.get(key, (0, _NO_WORDS))
        if _is_about(counted, length):
            words = [*filterfalse(common.__contains__, words)]
        known = self._known.get(key) if words else _NO_WORDS
        return known is None or not known.isdisjoint(map(stem_of, words))

    async def find_turns(
        self,
        key: SessionKey,
        words: Sequence[str],
        choose: Choose | None = None,
        *,
        messages: Sequence[str] = (),
        upto: NodeId | None = None,
        limit: int,
    ) -> FoundTurns:
        plain = frozenset(words_of(" ".join(words)))
        asked = [*filter(plain.__contains__, words)]  # other words might be query syntax
        find = partial(self._find, key, asked, choose, ids=(upto, *messages), limit=limit)
        commits = self._commits
        found, is_empty = await self._readers.read(find)
        if is_empty and commits == self._commits:
            self._known.add(key, 0, 0, _NO_WORDS)
        return found

    def _find(
        self,
        key: SessionKey,
        words: Sequence[str],
        choose: Choose | None,
        tx: Transaction,
        *,
        ids: Sequence[str | None],
        limit: int,
    ) -> tuple[FoundTurns, bool]:
        """Runs in one piece in a reader's thread: a second trip would cost more than the search."""
        _load_session(key, ids, tx)
        asked = [*filterfalse(self._common.get(key, (0, _NO_WORDS))[1].__contains__, words)]
        query = _SESSION.format(", ".join("?" * len(ids)), _MATCHES * len(asked))
        matches = chain.from_iterable(zip(map('"{}"'.format, asked), repeat(limit)))
        db = tx.db
        row = db.execute(query, (*ids, _MOST_FORKS, *matches, str(key))).fetchone()
        if row is None:
            return FoundTurns(), True
        session, head, last, indexed, has_forgotten, seqs, forks, *places = row
        seqs, forks = from_json(seqs), from_json(forks)
        upto, *messages = ids
        if upto is not None and upto not in seqs:
            raise NotFound(f"message {upto}")
        trail = trail_of(forks[::-1], head if upto is None else seqs[upto], last)
        index = _Index(tx, session, trail, limit, indexed)
        found = index.visible(dict(zip(asked, places, strict=True)))
        hits = self._distinctive(key, words, found, index)
        at: dict[str, int] = {}
        for one in messages:
            if one in seqs and (depth := trail.depth_of(seqs[one])) is not None:
                at[str(one)] = depth
        found_turns = FoundTurns(trail, hits, at)
        chosen = choose(found_turns) if choose else None
        if not chosen:
            return found_turns, not indexed
        turns = index.turns(key, chosen, has_forgotten=has_forgotten)
        return FoundTurns(trail, hits, at, turns), not indexed

    def _distinctive(
        self, key: SessionKey, words: Sequence[str], found: dict[str, set[int]], index: "_Index"
    ) -> Mapping[str, Hits]:
        """Returns the hits of the words that are not common in this session. Until the session has
        grown noticeably, its common words stay known and are not searched."""
        length, common = self._common.get(key, (0, _NO_WORDS))
        if not _is_about(length, index.trail.length):
            if common:
                found = index.depths_of({word: f'"{word}"' for word in words})
            length, common = index.trail.length, _NO_WORDS
        hits, too_common = index.hits_of(found)
        self._common[key] = (length, common | too_common)
        keep_newest(self._common, _MOST_KEPT)
        return hits

    async def index_turns(self, keys: Sequence[SessionKey], *, limit: int) -> Sequence[SessionKey]:
        if not self._has_small_pages:
            await self._writer.write(_make_pages_small, durable=False)
            self._has_small_pages = True
        advance = partial(_advance, keys=keys, left=limit)
        behind, added = await self._writer.write(advance, durable=False)
        self._has_indexed(added)
        return behind

    def _has_indexed(self, added: Iterable[Added]) -> None:
        self._commits += 1
        for one in added:
            self._known.add(*one)

    async def unindexed(self, *, limit: int) -> Sequence[SessionKey]:
        rows = await self._readers.read(lambda tx: tx.db.execute(_BEHIND, (limit,)).fetchall())
        return [SessionKey.parse(key) for (key,) in rows]


def _is_about(counted: int, length: int) -> bool:
    """True if the common words of a session of `counted` messages still apply."""
    return counted <= length <= counted * _STAYS_COMMON


def trail_of(forks: Sequence[Fork], head: int | None, last: int) -> Trail:
    """Returns the path through a session. `forks` holds (seq, parent seq) of each message that does
    not follow the previous one, oldest first. All other messages do, so even a long path is a few
    spans."""
    if not forks:
        return Trail()
    if len(forks) == 1:  # as in nearly every session
        first, last = forks[0][0], last if head is None else head
        return Trail(((first, last, 0),), last - first + 1)
    starts = [seq for seq, _ in forks]
    spans = set(spans_to(head, forks, starts)) if head is not None else set()
    own = min(spans, default=(last + 1, 0))[0]  # the start of the conversation
    for root, tip in _tips(forks, starts, last).items():
        if root < own:
            spans.update(spans_to(tip, forks, starts))
    return Trail.of(spans)


def _tips(forks: Sequence[Fork], starts: Sequence[int], last: int) -> Mapping[int, int]:
    """Returns the last message of each conversation, by its first."""
    tips: dict[int, int] = {}
    roots: list[int] = []
    for (start, parent), end in zip(
        forks, [*(start - 1 for start in starts[1:]), last], strict=True
    ):
        at = -1 if parent is None else bisect_right(starts, parent) - 1
        roots.append(start if at < 0 else roots[at])
        tips[roots[-1]] = end
    return tips


@dataclass(frozen=True, slots=True)
class _Index:
    """The part of the index that holds the visible messages of a session."""

    tx: Transaction
    session: int
    trail: Trail
    limit: int
    indexed: int  # seq of the last indexed message

    def visible(self, places: Mapping[str, str | None]) -> dict[str, set[int]]:
        """Returns the visible depths of the newest `limit` places of each word. Searches again if
        some places are invisible and there are more."""
        found: dict[str, set[int]] = {}
        again: dict[str, str] = {}
        for word, listed in places.items():
            if not listed:
                continue
            these = listed.split(",")
            depths = self.trail.depths_of(map(int, these))
            if len(depths) < len(these) >= self.limit:
                again[word] = f'"{word}"'
            elif depths:
                found[word] = depths
        return found | self.depths_of(again) if again else found

    def depths_of(self, queries: Mapping[K, str]) -> dict[K, set[int]]:
        """Searches many queries in one statement. Returns the newest `limit` depths of each query
        with hits."""
        spans = self.trail.spans
        if not queries or not spans:
            return {}
        most = self.limit * (1 if len(spans) == 1 else _MOST_SKIPPED)  # some are invisible
        bounds = (place_of(self.session, spans[0][0]), place_of(self.session, spans[-1][1]), most)
        asked = _MATCH.format(", ".join(["(?)"] * len(queries)))
        places = dict(self.tx.db.execute(asked, (*queries.values(), *bounds)).fetchall())
        found: dict[K, set[int]] = {}
        for name, query in queries.items():
            listed = places[query].split(",") if places[query] else ()
            if depths := self.trail.depths_of(map(int, listed)):
                found[name] = set(nlargest(self.limit, depths))
        return found

    def hits_of(self, found: dict[str, set[int]]) -> tuple[Mapping[str, Hits], frozenset[str]]:
        """Returns the hits of each word, and the words that are too common to distinguish turns."""
        length, totals, common = self.trail.length, dict[str, int](), set[str]()
        frequent: list[str] = []
        indexed = self.trail.count_to(self.indexed)
        for word, depths in found.items():
            total, of = len(depths), indexed
            if total >= self.limit:  # extrapolates the frequency beyond the newest
                searched = max(1, indexed - min(depths))
                total, of = max(total, total * length // searched), length
                frequent.append(word)
            if total > max(_FEW, _SHARE * of):
                common.add(word)
            totals[word] = total
        for word in common:
            del found[word]
        if frequent := [*filter(found.__contains__, frequent)]:
            frequent.sort(key=lambda word: (totals[word], word))
            self._add_meetings(found, frequent[:_MOST_COMMON], found.keys() - set(frequent))
        hits: dict[str, Hits] = {}
        for word, depths in found.items():
            hits[word] = Hits(frozenset(depths), max(len(depths), totals[word]))
        return hits, frozenset(common)

    def _add_meetings(
        self, found: dict[str, set[int]], frequent: Sequence[str], rare: Collection[str]
    ) -> None:
        """Adds the places where a frequent word occurs with a rare word or another frequent one;
        otherwise only its newest places are found."""
        any_rare = " OR ".join(f'"{word}"' for word in sorted(rare))
        asked = {(word,): f'"{word}" AND ({any_rare})' for word in frequent} if rare else {}
        pairs = {pair: '"{}" AND "{}"'.format(*pair) for pair in combinations(frequent, 2)}
        for those, depths in self.depths_of({**asked, **pairs}).items():
            for word in those:
                found[word] |= depths

    def turns(
        self, key: SessionKey, chosen: Mapping[int, float], *, has_forgotten: bool
    ) -> Sequence[PastTurn]:
        """Returns the messages at these depths, with their scores."""
        places = {place_of(self.session, self.trail.seq_at(depth)): depth for depth in chosen}
        if not self.tx.is_whole:
            rows = self.tx.find("node", {"place": tuple(places)}, "run_id")
            self.tx.find("run", {"run_id": tuple({row["run_id"] for row in rows})}, "run_id")
        asked = _FETCH.format(", ".join("?" * len(places)))
        (found,) = self.tx.db.execute(asked, (SHOWN_CHARS, has_forgotten, *places)).fetchone()
        turns = []
        for place, id_, role, text, at, sender, answered in from_json(found):
            depth, said_at = places[place], to_time(at)
            if has_forgotten:
                names = names_of(scope_of(key, sender), str(key), id_, answered)
                if is_forgotten(names, said_at, self.tx):
                    continue
            by = sender if role == "user" else None
            turns.append(PastTurn(depth, chosen[depth], id_, role, text, said_at, by))
        return turns


def _load_session(key: SessionKey, ids: Sequence[str | None], tx: Transaction) -> None:
    """Reads the rows that a search needs, if the tables are on a server."""
    if tx.is_whole:
        return
    session = tx.session_id(key)
    for id_ in filter(None, ids):
        tx.first("node", {"id": id_}, "place")
    tx.find("forgotten", {}, limit=1)
    if session:
        forks = places_of(session)
        tx.find("node", forks, "place", order="-place", limit=_MOST_FORKS, index="fork")


class LocalTurnIndex(TurnIndex):
    """The index of words on this machine, for a store on a server. Each start rebuilds it, for the
    sessions that are searched."""

    def __init__(self, engine: Engine, db: Connection) -> None:
        super().__init__(engine)
        self._db = db
        # number of the session, seq of its last indexed message
        self._indexed: dict[SessionKey, tuple[int, int]] = {}
        self._looked = 0  # checked sessions up to this number

    async def unindexed(self, *, limit: int) -> Sequence[SessionKey]:
        """Reads a page of sessions at a time: there may be very many."""
        behind, is_more = list[SessionKey](), True
        while is_more:
            rows = await self._readers.read(partial(_sessions_after, after=self._looked))
            for one in rows:
                self._looked = one["id"]
                if one["last_seq"] > self._indexed.get(one["key"], (0, 0))[1]:
                    behind.append(one["key"])
                if len(behind) == limit:
                    return behind
            is_more = len(rows) == _SESSIONS
        self._looked = 0
        return behind

    async def index_turns(self, keys: Sequence[SessionKey], *, limit: int) -> Sequence[SessionKey]:
        """Reads all sessions in one request, and new sessions in a second one."""
        asked = {key: self._indexed.get(key, (0, 0)) for key in keys}
        found = await self._readers.read(partial(_texts_after, asked=asked, limit=limit))
        behind, added, room = list[SessionKey](), list[Added](), _MOST_NEW
        for key, (session, last, rows) in found.items():
            upto = seq_of(rows[-1]["place"]) if rows else asked[key][1]
            said = _spoken(rows)
            self._add(session, said, upto)
            stems = _stems(said, room)
            room -= len(stems or ())
            added.append((key, asked[key][1], upto, stems))
            self._indexed[key] = (session, max(upto, asked[key][1]))
            if upto < last:
                behind.append(key)
        self._has_indexed(added)
        return behind

    def _add(self, session: int, said: Said, upto: int) -> None:
        _change_index(_ADD_WORDS, said, self._db)
        _set_cursor(session, upto, Transaction(self._db))
        self._db.execute("DELETE FROM changed")  # no operation reads these notes


def _sessions_after(tx: Transaction, after: int) -> Sequence[Row]:
    return tx.find("session", {"id >": after}, "id key last_seq", order="id", limit=_SESSIONS)


def _texts_after(
    tx: Transaction, asked: Mapping[SessionKey, tuple[int, int]], limit: int
) -> Mapping[SessionKey, tuple[int, int, Sequence[Row]]]:
    """Returns the number, the last seq and the next messages of each session. The number never
    changes, so for known sessions one request reads everything, as if the session had grown by a
    question and an answer."""
    found = dict[SessionKey, tuple[int, int, Sequence[Row]]]()
    for key, (known, after) in asked.items():
        row = tx.first("session", {"key": key}, "id last_seq") or {}
        id_, last = row.get("id", known), row.get("last_seq", after + _EXCHANGE)
        count = min(max(0, last - after), limit)
        limit -= count
        upto = place_of(id_, after + max(count, _EXCHANGE))
        places = {"place >": place_of(id_, after), "place <=": upto}
        rows = tx.find("node", places, "place role text", order="place") if id_ and count else []
        found[key] = (id_, last, rows[:count])
    return {key: one for key, one in found.items() if one[0]}


def _advance(
    tx: WriteTransaction, *, keys: Sequence[SessionKey], left: int
) -> tuple[Sequence[SessionKey], Sequence[Added]]:
    """Indexes at most `left` messages. Returns the sessions that are still behind, and the additions."""
    behind, added, room = list[SessionKey](), list[Added](), _MOST_NEW
    for key in dict.fromkeys(keys):
        session = tx.session(key)
        if session is None:
            continue
        after = upto = _indexed_upto(session.id, tx)
        places = {**places_of(session.id), "place >": place_of(session.id, upto)}
        rows = tx.find("node", places, "place role text", order="place", limit=left)
        said = _spoken(rows)
        _change_index(_ADD_WORDS, said, tx.db)
        if left:
            upto = seq_of(rows[-1]["place"]) if len(rows) == left else session.last_seq
            _set_cursor(session.id, upto, tx)
            stems = _stems(said, room)
            room -= len(stems or ())
            added.append((key, after, upto, stems))
        left -= len(rows)
        if upto < session.last_seq:
            behind.append(key)
    return behind, added


def _indexed_upto(session: int, tx: Transaction) -> int:
    return tx.value("turn_cursor", {"session": session}, "upto", 0)


def _set_cursor(session: int, upto: int, tx: Transaction) -> None:
    tx.put("turn_cursor", {"session": session, "upto": upto})


def _spoken(rows: Sequence[Row]) -> Said:
    texts = ((row["place"], row["text"][:INDEXED_CHARS]) for row in rows if row["role"] in SAID_BY)
    return [(place, words) for place, text in texts if (words := words_of(text))]


def _stems(said: Said, room: int) -> frozenset[str] | None:
    """Returns the stems of at most `room` different words, None of more."""
    words = set(chain.from_iterable(words for _, words in said))
    return frozenset(map(stem_of, words)) if len(words) <= room else None


def _change_index(change: str, said: Said, db: Connection) -> None:
    """Adds words at their places or removes them; a removal needs the words again."""
    db.executemany(change, [(place, " ".join(words)) for place, words in said])


def forget_turns(tx: WriteTransaction, session: int) -> None:
    """Removes the words of a session from the index, in the transaction that erases its texts and
    before it does."""
    here = Transaction(tx.db)
    upto = place_of(session, _indexed_upto(session, here))
    said = _spoken(here.find("node", {**places_of(session), "place <=": upto}, "place role text"))
    if tx.is_whole:
        _change_index(_TAKE_WORDS, said, tx.db)
    else:  # the index is on this machine, the commit on the server
        tx.later.append(partial(_change_index, _TAKE_WORDS, said, tx.db))


async def rewrite_index(writer: Writing) -> None:
    """Merges a part per commit, so that other writes wait only for a part."""
    while await writer.write(_merge, durable=False):
        pass


def _make_pages_small(tx: WriteTransaction) -> None:
    """Applies to new pages; merges rewrite older ones."""
    tx.db.execute("INSERT INTO turn (turn, rank) VALUES ('pgsz', ?)", (PAGE_BYTES,))


def _merge(tx: WriteTransaction) -> bool:
    """Rewrites a part of the index, so that removed words leave its older parts. True if there is
    more to do."""
    if not tx.is_whole:  # each start rebuilds this index
        return False
    before = tx.db.total_changes
    tx.db.execute("INSERT INTO turn (turn, rank) VALUES ('merge', ?)", (-_MERGED_PAGES,))
    is_more = tx.db.total_changes - before >= 2
    if not is_more:
        tx.has_erased = True  # freed pages of the rewritten parts still hold the words
    return is_more


_FORKS = """
SELECT place & 0xffffffff AS seq, parent & 0xffffffff AS up FROM node INDEXED BY node_fork
WHERE parent IS NOT place - 1 AND place > {} AND place < {} ORDER BY place DESC LIMIT ?
"""
# One row: each row and each statement would switch the interpreter's lock, which costs more than
# the reading. It holds: the session; whether anything was forgotten; the places of messages; the
# forks; and the newest places of each word.
_SESSION = f"""
SELECT s.id, s.head & 0xffffffff, s.last_seq, coalesce(c.upto, 0),
    EXISTS (SELECT 1 FROM forgotten),
    (SELECT json_group_object(n.id, n.place & 0xffffffff) FROM node n
     WHERE n.id IN ({{}}) AND n.place >> 32 = s.id),
    (SELECT json_group_array(json_array(seq, up)) FROM (
        {_FORKS.format("s.id << 32", "(s.id + 1) << 32")})){{}}
FROM session s LEFT JOIN turn_cursor c ON c.session = s.id WHERE s.key = ?
"""
_MATCHES = """, (SELECT group_concat(place & 0xffffffff) FROM (
    SELECT rowid AS place FROM turn WHERE turn MATCH ? AND rowid BETWEEN s.id << 32
    AND (s.id << 32) + 0xffffffff ORDER BY rowid DESC LIMIT ?))"""
_MATCH = """
WITH asked (query) AS (VALUES {})
SELECT query, (SELECT group_concat(place & 0xffffffff) FROM (
    SELECT rowid AS place FROM turn WHERE turn MATCH query AND rowid BETWEEN ? AND ?
    ORDER BY rowid DESC LIMIT ?))
FROM asked
"""
_FETCH = """
SELECT json_group_array(json_array(
    n.place, n.id, n.role, substr(n.text, 1, ?), n.created_at, r.sender, r.message_id))
FROM node n LEFT JOIN run r ON (n.role = 'user' OR ?) AND r.run_id = n.run_id
WHERE n.place IN ({}) AND n.role IN ('user', 'assistant') AND n.text <> ''
"""
_BEHIND = """
SELECT s.key FROM session s LEFT JOIN turn_cursor c ON c.session = s.id
WHERE s.last_seq > coalesce(c.upto, 0) ORDER BY s.id LIMIT ?
"""
_ADD_WORDS = "INSERT INTO turn (rowid, words) VALUES (?, ?)"
_TAKE_WORDS = "INSERT INTO turn (turn, rowid, words) VALUES ('delete', ?, ?)"


# --- progress of fact extraction -----------------------------------------------------------------
def _unscanned(tx: Transaction) -> Sequence[SessionKey]:
    upto = {row["session"]: row["seq"] for row in tx.find("heard", {})}
    rows = tx.find("session", {}, "id key last_seq", order="-updated_at")
    return [row["key"] for row in rows if row["last_seq"] > upto.get(row["id"], 0)]


def _queued(tx: Transaction) -> Sequence[SessionKey]:
    rows = tx.find("unread", {"is_owed": True}, "session")
    return [*tx.keys_of(row["session"] for row in rows).values()]


def _next_unscanned(tx: Transaction, key: SessionKey, *, limit: int) -> SaidPage:
    return _page(tx, key, tx.value("heard", {"session": key}, "seq", 0), limit)


def _next_queued(tx: Transaction, key: SessionKey, *, limit: int) -> SaidPage:
    row = tx.first("unread", {"session": key, "is_owed": True}, "seq")
    return _page(tx, key, row["seq"], limit) if row else SaidPage()


def _page(tx: Transaction, key: SessionKey, after: int, limit: int) -> SaidPage:
    session = tx.session_id(key)
    if not session or limit < 1:
        return SaidPage()
    first, last = place_of(session, after), place_of(session, after + limit)
    columns = "id run_id role text created_at"
    nodes = tx.find("node", {"place >": first, "place <=": last}, columns, order="place")
    ids = tuple({row["run_id"] for row in nodes if row["role"] == "user"})
    runs = tx.find("run", {"run_id": ids}, "run_id message_id sender")
    made = {row["run_id"]: row for row in runs}
    said = []
    for row in nodes:
        run = made.get(row["run_id"], _NO_RUN)
        # A user's text counts as said only if it was accepted or imported.
        if row["role"] == "user" and run["message_id"] in {None, row["id"]}:
            what = (row["id"], row["run_id"], run["sender"], row["text"], row["created_at"])
            said.append(SaidMessage(*what))
    return SaidPage(tuple(said), nodes[-1]["id"] if nodes else None)


_NO_RUN = {"message_id": None, "sender": None}


def _mark_scanned(tx: Transaction, upto: Mapping[SessionKey, NodeId]) -> None:
    for node in upto.values():
        if place := tx.value("node", {"id": node}, "place", 0):
            session, seq = place >> SEQ_BITS, seq_of(place)
            if tx.value("heard", {"session": session}, "seq", 0) < seq:
                tx.put("heard", {"session": session, "seq": seq})


def _queue(tx: Transaction, key: SessionKey, since: NodeId) -> None:
    if not (place := tx.value("node", {"id": since}, "place", 0)):
        return
    session, seq = place >> SEQ_BITS, seq_of(place) - 1
    row = tx.first("unread", {"session": session})
    if row is not None:
        seq = row["seq"] if row["is_owed"] else max(row["seq"], seq)
    tx.put("unread", {"session": session, "seq": seq, "is_owed": True})


def _mark_extracted(tx: Transaction, key: SessionKey, upto: NodeId) -> bool:
    session = tx.session(key)
    place = tx.place(session, upto) if session else None
    row = tx.first("unread", {"session": session.id}) if session and place else None
    if session is None or place is None or row is None:
        return False
    is_owed = seq_of(place) < session.last_seq
    read = {"seq": max(row["seq"], seq_of(place)), "is_owed": is_owed}
    tx.change("unread", {"session": session.id}, read)
    return is_owed


class ExtractionQueue(StorePart):
    """The progress of patterns and of a model through the messages."""

    unscanned = reading(_unscanned)
    next_unscanned = reading(_next_unscanned)
    mark_scanned = writing(_mark_scanned)
    queue_for_model = writing(_queue)
    queued_for_model = reading(_queued)
    next_queued = reading(_next_queued)
    mark_extracted = writing(_mark_extracted)
