"""Searches of facts, by subject and time, by words, and by names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import product
from sqlite3 import Connection
from typing import TypeVar

import anyio

from gateway.domain.facts import (
    MOST_NAMED,
    Claim,
    Erasure,
    Fact,
    FactQuery,
    FactView,
    Provenance,
    QueryRefused,
    StoredClaim,
    by_time,
    form,
    is_wanted,
    predicate_form,
    settle_claims,
    words_of,
)
from gateway.domain.ids import to_micros
from gateway.store import facts as stored_facts
from gateway.store.facts import (
    WITH_SOURCE,
    FactRow,
    claims_in,
    claims_of,
    fact_of,
    facts_at,
    facts_in,
    is_forgotten,
    list_all,
    names_of,
    ranked,
    require_claims,
)
from gateway.store.faults import require_text
from gateway.store.transaction import Transaction, place_of
from gateway.store.writer import Engine, StorePart, reading

_MOST_WORDS = 64  # of a question
_MOST_HITS = 256  # of a word: those that were learned last
_MOST_SOURCES = 1000
MOST_WEIGHED = 10_000  # claims in a question about a past time: about half a second

T = TypeVar("T")
_Term = tuple[str, tuple[object, ...]]  # a condition and its values


_BITS = 1 << 22  # half a megabyte; it recognises three of four unknown names among a million
_PAGE = 2_000  # names per page


def _add(
    tx: Transaction, scope: str, claims: Sequence[Claim], ids: Sequence[str], now: datetime
) -> Sequence[Fact]:
    new = [one for one in zip(claims, ids, strict=True) if not _is_forgotten(one[0], scope, tx)]
    kept = [id_ for _, id_ in new]
    stored_facts.add(tx, scope, [claim for claim, _ in new], ids=kept, now=now)
    places = [row.place for id_ in kept for row in fact_of(id_, tx)]
    return _with_sources(_rows(places, tx), tx)


def _is_forgotten(claim: Claim, scope: str, tx: Transaction) -> bool:
    if (source := claim.source) is None:
        return False
    names = names_of(scope, str(source.session_key), source.message_id)
    return is_forgotten(names, source.at, tx)


def _column(
    terms: Sequence[_Term],
    rest: str,
    values: Sequence[object],
    tx: Transaction,
    column: str = "f.place",
) -> list[int]:
    where = " AND ".join(term for term, _ in terms)
    every = [*(value for _, some in terms for value in some), *values]
    found = tx.db.execute(f"SELECT {column} FROM fact f WHERE {where} {rest}", every)
    return [one for (one,) in found.fetchall()]


def _rows(places: Sequence[int], tx: Transaction) -> list[FactRow]:
    """Returns the facts at these places, in this order. On a server their sources are read with
    them."""
    if not tx.is_whole:
        tx.find("fact_claim", {"fact": tuple(places), **WITH_SOURCE})
    return facts_at(places, tx)


def _with_sources(rows: Sequence[FactRow], tx: Transaction) -> list[Fact]:
    facts = list[Fact]()
    for row in rows:
        found = tx.db.execute(_MESSAGES, (row.place, MOST_NAMED)).fetchall()
        named = tuple(dict.fromkeys(one for (one,) in found))
        facts.append(replace(row.fact, source_message_ids=named) if named else row.fact)
    return facts


def groups_of(view: FactView, tx: Transaction) -> Sequence[int]:
    """Returns the group to search. For a room also the group of the person with its name: in a
    direct chat all facts are at the person's places."""
    room = [] if view.room is None else [_group_of(FactView(scope=str(view.room)), tx)]
    return [_group_of(view, tx), *room]


def _group_of(view: FactView, tx: Transaction) -> int:
    """Returns the number of the group; 0 if it has no facts. On a server all of its facts are read."""
    kind, name = ("scope", view.scope) if view.room is None else ("session", str(view.room))
    row = tx.first("fact_group", {"kind": kind, "name": name}, "id")
    if row is not None and not tx.is_whole:
        there = tx.find("fact", {kind: row["id"]}, "topic scope session")
        tx.find("fact_topic", {"id": tuple({one["topic"] for one in there})})
        groups = {one[name] for one in there for name in ("scope", "session")}
        tx.find("fact_group", {"id": tuple(groups)})
    return row["id"] if row else 0


# --- by subject, predicate and time --------------------------------------------------------------
def _select(tx: Transaction, query: FactQuery) -> Sequence[Fact]:
    if query.known_at is not None:
        return _known_at(query.known_at, query, tx)
    terms = _about(query, tx)
    if query.at is not None:
        at = to_micros(query.at)
        terms.append(("f.valid_from <= ? AND (f.valid_to IS NULL OR f.valid_to > ?)", (at, at)))
    elif not query.with_history:
        terms.append(_IS_CURRENT)
    places = _column(terms, _OLDEST, (max(0, query.limit),), tx)
    return _with_sources(_rows(places, tx), tx)


def _about(query: FactQuery, tx: Transaction) -> list[_Term]:
    group = _group_of(query.view, tx)
    asked = (("subject", query.subject, form), ("predicate", query.predicate, predicate_form))
    names = {name: to_form(text) for name, text, to_form in asked if text is not None}
    is_current = not any((query.at, query.known_at, query.with_history))
    theirs: _Term = (f"{_owner_column(query.view)} = ?", (group,))
    if is_current and [*names] == ["subject"]:
        return [theirs, ("f.about = ?", (names["subject"],))]
    if query.view.room is not None:
        topic = "(SELECT {} FROM fact_topic WHERE id = f.topic) = ?"
        return [theirs, *((topic.format(name), (value,)) for name, value in names.items())]
    if names:
        where = "".join(f" AND {name} = ?" for name in names)
        topics = f"f.topic IN (SELECT id FROM fact_topic WHERE scope = ?{where})"
        return [(topics, (group, *names.values()))]
    return [theirs] if is_current else [("f.place >= ? AND f.place < ?", _range(group))]


def _owner_column(view: FactView) -> str:
    return "f.scope" if view.room is None else "f.session"


def _range(group: int) -> tuple[int, int]:
    return place_of(group, 0), place_of(group + 1, 0)


def _topics_of(query: FactQuery, tx: Transaction) -> tuple[int, ...]:
    """Raises QueryRefused if the topics have too many claims."""
    topics = tuple(_column(_about(query, tx), "", (), tx, "DISTINCT f.topic"))
    if tx.count("fact_claim", {"topic": topics}) > MOST_WEIGHED:
        raise QueryRefused(
            f"more than {MOST_WEIGHED:,} claims would have to be compared for that time: name a subject "
            "with fewer claims"
        )
    return topics


def _known_at(then: datetime, query: FactQuery, tx: Transaction) -> Sequence[Fact]:
    """Returns the facts by the claims that were known at that time."""
    rows = {row.place: row for row in facts_in({"topic": _topics_of(query, tx)}, tx)}
    before = {row.fact.id: row.fact for row in rows.values()}
    facts = [
        belief.fact
        for (scope, _), claims in _claims_by_topic(then, rows, tx).items()
        for belief in settle_claims(scope, claims, before=before, now=then)
        if query.view.room in {None, belief.fact.session_key} and is_wanted(belief.fact, query)
    ]
    return sorted(facts, key=by_time)[: max(0, query.limit)]


def _claims_by_topic(
    then: datetime, rows: Mapping[int, FactRow], tx: Transaction
) -> Mapping[tuple[str, int], list[StoredClaim]]:
    """Claims by scope and topic."""
    claims: dict[tuple[str, int], list[StoredClaim]] = {}
    for place, one in claims_of({place: row.fact for place, row in rows.items()}, tx):
        if one.learned_at <= then:
            claims.setdefault((rows[place].fact.scope, rows[place].topic), []).append(one)
    return claims


# --- by words and names --------------------------------------------------------------------------
def _matching(view: FactView, words: Sequence[str], limit: int, tx: Transaction) -> Sequence[Fact]:
    """Searches all words in one statement, within the places of the scope, so that other facts cost
    nothing."""
    groups, said_there = groups_of(view, tx), list[_Term]()
    if view.room is not None:
        said_there.append(("f.session = ?", (groups[0],)))
    if not tx.is_whole:
        list_all(tx)
    hits: dict[str, list[int]] = {}
    asked, most = _HITS.format(", ".join(["(?)"] * len(words))), max(limit, _MOST_HITS)
    for some in map(_range, groups if words else ()):
        for word, places in tx.db.execute(
            asked, (*map('"{}"'.format, words), *some, most)
        ).fetchall():
            if places:
                hits.setdefault(word, []).extend(map(int, places.split(",")))
    found: list[int] = []
    for place in ranked(hits.values()):
        if len(found) >= limit:
            break
        its: _Term = ("(f.place = ? OR f.room_place = ?)", (place, place))
        # none if it was erased meanwhile
        found += _column([its, *said_there, _IS_CURRENT], "", (), tx)
    return _with_sources(_rows(found, tx), tx)


def _around(view: FactView, forms: Sequence[str], limit: int, tx: Transaction) -> Sequence[Fact]:
    group, column = _group_of(view, tx), _owner_column(view)
    found: set[int] = set()
    for name, end in product(forms, ("about", "form")):
        terms: Sequence[_Term] = [(f"{column} = ? AND f.{end} = ?", (group, name)), _IS_CURRENT]
        found.update(_column(terms, _NEWEST, (limit,), tx))
    rows = sorted(_rows([*found], tx), key=lambda row: by_time(row.fact), reverse=True)
    return _with_sources(rows[:limit], tx)


def _origin(tx: Transaction, fact_id: str) -> Provenance | None:
    row = next((one for one in fact_of(fact_id, tx) if one.fact.id == fact_id), None)
    if row is None:
        return None
    terms = {"fact": row.place, **WITH_SOURCE}
    claims = tx.find("fact_claim", terms, order="seq", limit=_MOST_SOURCES)
    sources = [one.claim.source for _, one in claims_in(claims, {row.place: row.fact}, tx)]
    older = [one.fact for one in facts_in({"superseded_by": fact_id}, tx)]
    return Provenance(
        _with_sources(_rows([row.place], tx), tx)[0],
        tuple(dict.fromkeys(filter(None, sources))),
        tuple(fact.id for fact in sorted(older, key=by_time)),
    )


_IS_CURRENT: _Term = ("f.superseded_at IS NULL", ())
_OLDEST = "ORDER BY f.valid_from, f.superseded_at IS NULL, f.id LIMIT ?"
_NEWEST = "ORDER BY f.valid_from DESC, f.place DESC LIMIT ?"
_MESSAGES = """
SELECT message_id FROM fact_claim WHERE fact = ? AND message_id IS NOT NULL ORDER BY seq LIMIT ?
"""
# One row per word: a row per hit would switch the interpreter's lock for every hit.
_HITS = """
WITH asked (query) AS (VALUES {})
SELECT query, (SELECT group_concat(place) FROM (
    SELECT rowid AS place FROM fact_words WHERE fact_words MATCH query AND rowid >= ? AND rowid < ?
    ORDER BY rowid DESC LIMIT ?))
FROM asked
"""


# --- the methods of the port ---------------------------------------------------------------------
class FactBase(StorePart):
    """Facts of one store. A bit filter of all scopes and sessions answers most questions about
    unknown names without a query. Names that are already in the database are loaded a page at a
    time. Only the event loop's thread uses the filter."""

    def __init__(self, engine: Engine, *more: Connection) -> None:
        super().__init__(engine, *more)
        self._turn = anyio.Lock()
        self._bits = bytearray(_BITS // 8)
        self._upto: int | None = 0  # groups up to this one are noted; None means all

    async def add_facts(
        self, scope: str, claims: Sequence[Claim], *, ids: Sequence[str], now: datetime
    ) -> Sequence[Fact]:
        require_claims(claims, ids)
        said_in = (one.session_key for claim in claims for one in (claim, claim.source) if one)
        self._note(scope, *map(str, said_in))  # before the write, so that no search misses them
        add = partial(_add, scope=scope, claims=claims, ids=ids, now=now)
        async with self._turn:  # facts of one scope depend on each other
            return await self._writer.write(add, durable=False)

    def _note(self, *names: str) -> None:
        for name in names:
            place, bit = divmod(hash(name) % _BITS, 8)
            self._bits[place] |= 1 << bit

    def knows(self, view: FactView) -> bool:
        place, bit = divmod(hash(view.scope or str(view.room)) % _BITS, 8)
        return self._upto is not None or bool(self._bits[place] & 1 << bit)

    async def _has_any(self, view: FactView) -> bool:
        if self._upto is not None:
            after, order = {"id >": self._upto}, "id"
            rows = await self._readers.read(
                lambda tx: tx.find("fact_group", after, "id name", order=order, limit=_PAGE)
            )
            self._note(*(row["name"] for row in rows))
            self._upto = rows[-1]["id"] if len(rows) == _PAGE else None
        return self.knows(view)

    async def facts_matching(
        self, view: FactView, words: Sequence[str], *, limit: int
    ) -> Sequence[Fact]:
        if not await self._has_any(view):
            return []
        even = [*dict.fromkeys(words_of(" ".join(words)))][:_MOST_WORDS]
        return await self._readers.read(partial(_matching, view, even, max(0, limit)))

    async def facts_around(
        self, view: FactView, names: Sequence[str], *, limit: int
    ) -> Sequence[Fact]:
        require_text("a name", *names)  # even if there are no facts
        if not await self._has_any(view):
            return []
        forms = [*dict.fromkeys(form(name) for name in names)][:_MOST_WORDS]
        return await self._readers.read(partial(_around, view, forms, max(0, limit)))

    select_facts = reading(_select)
    origin_of = reading(_origin)

    async def erase_facts(self, what: Erasure, *, dry_run: bool, now: datetime) -> int:
        if dry_run:
            return await self._readers.read(partial(stored_facts.count_of, what=what))
        erase = partial(stored_facts.erase, what=what, now=now)
        return await self._writer.write(erase, durable=True)
