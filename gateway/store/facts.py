"""Facts and claims in SQLite: written, settled, erased, and never learned again after that."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from math import log1p
from typing import Any, TypeVar

from gateway.domain.events import Deed
from gateway.domain.facts import (
    Claim,
    ClaimRefused,
    Erasure,
    Fact,
    SaidSource,
    Settled,
    Told,
    Whose,
    form,
    predicate_form,
    require_claim,
    settled,
    tombstone_of,
    words_of,
)
from gateway.domain.ids import SessionKey, to_micros, to_time
from gateway.store.audit import append_deed
from gateway.store.transaction import SEQ_BITS, Fields, Row, Terms, Transaction, in_parts, place_of

Names = Iterable[tuple[str, str]]  # ("message", its id), ("scope" or "session", its digest)


def names_of(scope: str, session: str, *messages: str | None) -> Names:
    """Names under which a statement may be marked as forgotten."""
    told = [("message", one) for one in messages if one is not None]
    return (*told, ("scope", _digest(scope)), ("session", _digest(session)))


def is_forgotten(names: Names, said_at: datetime, tx: Transaction) -> bool:
    """Whether it is marked: a message always, a scope or session for what was said until then."""
    _load_forgotten(names, tx)
    at = to_micros(said_at)
    return any(tx.db.execute(_FIND, (*name, at)).fetchone() for name in names)


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()


_NOTE = """
INSERT INTO forgotten (kind, name, upto) VALUES (?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET upto = max(upto, excluded.upto)
"""
_FIND = """
SELECT 1 FROM forgotten WHERE kind = ?1 AND name = ?2 AND (kind = 'message' OR upto >= ?3)
"""

T = TypeVar("T", bound=Hashable)

_AT_ONCE = 500  # values in a query


def require_claims(claims: Sequence[Claim], ids: Sequence[str]) -> None:
    """Raises ClaimRefused before anything is written."""
    if len(ids) != len(claims):
        raise ClaimRefused(f"{len(claims)} facts need as many ids, not {len(ids)}")
    for claim in claims:
        require_claim(claim)


def ranked(hits: Iterable[Sequence[T]]) -> list[T]:
    """Sorts hits of several words: by rarity and number of the words that they contain."""
    hits = [hit for hit in hits if hit]
    most = max((len(hit) for hit in hits), default=0)
    scores: dict[T, float] = {}
    for hit in hits:
        weight = log1p(most / len(hit))
        for one in hit:
            scores[one] = scores.get(one, 0.0) + weight
    return sorted(scores, key=lambda one: -scores[one])


FACT = """
SELECT f.place, f.room_place, f.topic, f.id, g.name, f.entity_type, f.subject, f.predicate,
       f.object, f.functional, f.confidence, s.name, f.learned_at, f.valid_from, f.valid_to,
       f.superseded_at, f.superseded_by
FROM fact f CROSS JOIN fact_group g ON g.id = f.scope CROSS JOIN fact_group s ON s.id = f.session
"""
CLAIM = """
SELECT c.seq, c.id, c.fact, c.object, c.functional, c.confidence, s.name, c.learned_at, c.since, c.until,
       c.said_at, c.message_id, c.quote, c.said_by
FROM fact_claim c CROSS JOIN fact_group s ON s.id = c.session
"""


_key = lru_cache(maxsize=256)(SessionKey.parse)  # the facts of a person name few


@dataclass(frozen=True, slots=True)
class FactRow:
    """A fact without its sources, and its places."""

    place: int
    room_place: int | None
    topic: int
    fact: Fact


def to_fact_row(row: Sequence[Any]) -> FactRow:
    id_, scope, kind, subject, predicate, object_, functional, confidence, session = row[3:12]
    learned, since, until, superseded = (None if at is None else to_time(at) for at in row[12:16])
    assert learned is not None
    assert since is not None
    what = (subject, predicate, object_, bool(functional), confidence, _key(session))
    fact = Fact(id_, scope, kind, *what, learned, since, until, superseded, row[16])
    place, room_place, topic = row[:3]
    return FactRow(place, room_place, topic, fact)


def to_told(row: Sequence[Any], fact: Fact) -> Told:
    """One claim of this fact."""
    _, id_, _, object_, functional, confidence, session, learned, since, until, said, *source = row
    key, said_at = SessionKey.parse(session), to_time(said)
    message_id, quote, said_by = source
    what = (fact.subject, fact.predicate, object_, bool(functional), to_time(since))
    learned_in = fact.session_key if id_ == fact.id else key
    end = None if until is None else to_time(until)
    told_by = None if message_id is None else SaidSource(message_id, key, said_at, quote, said_by)
    claim = Claim(*what, learned_in, fact.entity_type, confidence, end, told_by)
    return Told(id_, claim, to_time(learned), said_at)


def as_told(fact: Fact, said_at: datetime | None) -> Told:
    """All claims of a fact as one claim, last said at `said_at`."""
    key, kind = fact.session_key, fact.entity_type
    what = (fact.subject, fact.predicate, fact.object, fact.functional)
    claim = Claim(*what, fact.valid_from, key, kind, fact.confidence)
    return Told(fact.id, claim, fact.learned_at, said_at)


def changing(fact: Fact) -> tuple[object, ...]:
    """The columns of a fact's row that may change: functional, confidence, times, successor."""
    times = (fact.valid_from, fact.valid_to, fact.superseded_at)
    micros = (None if at is None else to_micros(at) for at in times)
    return (fact.functional, fact.confidence, *micros, fact.superseded_by)


def claims_of(places: Sequence[int], tx: Transaction) -> list[Sequence[Any]]:
    """The claims of these facts, in the order in which they were learned."""
    found: list[Sequence[Any]] = []
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        marks = ", ".join("?" * len(some))
        found += tx.db.execute(f"{CLAIM} WHERE c.fact IN ({marks})", some).fetchall()
    return sorted(found, key=lambda row: row[0])


@dataclass(slots=True)
class _Known:
    """What is known about one object, or about a whole predicate if it is functional."""

    rows: Mapping[str, FactRow]  # by id
    told: list[Told]
    places: dict[str, int] = field(default_factory=dict)  # of claims' facts, by the claim's id
    fixed: str | None = None  # the last fact, which nothing changes: what follows it is not known


@dataclass(frozen=True, slots=True)
class _Topic:
    """The scope and row of a subject and predicate."""

    scope: str
    scope_id: int
    id: int


def add(
    tx: Transaction, scope: str, claims: Sequence[Claim], *, ids: Sequence[str], now: datetime
) -> None:
    tx.guard("facts", scope)
    scope_id = _group("scope", scope, tx)
    for claim, id_ in zip(claims, ids, strict=True):
        names = {"subject": form(claim.subject), "predicate": predicate_form(claim.predicate)}
        topic = _Topic(scope, scope_id, _id_of("fact_topic", {"scope": scope_id, **names}, tx))
        load_facts({"topic": topic.id}, tx)
        new = Told(id_, claim, now)
        # An object that was ever claimed to be functional stays functional.
        if not claim.functional and _exists(_OF_OBJECT, (topic.id, 1, new.object), tx):
            new = Told(id_, replace(claim, functional=True), now)
        known = _known(topic.id, new, tx)
        known.told.append(new)
        _settle(topic, known, now, tx)


def _group(kind: str, name: str, tx: Transaction) -> int:
    return _id_of("fact_group", {"kind": kind, "name": name}, tx)


def _id_of(table: str, names: Row, tx: Transaction) -> int:
    row = tx.first(table, names, "id")
    return int(row["id"]) if row else tx.insert(table, names)


# --- where the tables are elsewhere --------------------------------------------------------------
def load_learned(whose: Whose, tx: Transaction) -> None:
    """Has all that was learned there read, where the tables are elsewhere."""
    load_group("scope", whose.scope or str(whose.room), tx)
    load_group("session", str(whose.room), tx)


def load_group(kind: str, name: str, tx: Transaction) -> None:
    """Has the facts of a scope or session read, with what belongs to them."""
    if tx.is_whole:
        return
    group = tx.first("fact_group", {"kind": kind, "name": name}, "id")
    if group is not None:
        load_facts({kind: group["id"]}, tx)


def _place_of(fact_id: str, tx: Transaction) -> Terms:
    claim = tx.first("fact_claim", {"id": fact_id}, "fact")
    return {"place": claim["fact"] if claim else None}


def load_fact(fact_id: str, tx: Transaction) -> None:
    if not tx.is_whole:
        load_facts(_place_of(fact_id, tx), tx)


def load_facts(terms: Terms, tx: Transaction) -> None:
    if tx.is_whole:
        return
    facts = tx.find("fact", terms)
    claims = _load("fact_claim", "fact", {row["place"] for row in facts}, tx)
    groups = {row[name] for row in facts for name in ("scope", "session")}
    _load("fact_group", "id", groups | {row["session"] for row in claims}, tx)
    _load("fact_topic", "id", {row["topic"] for row in facts}, tx)


def _load(table: str, column: str, numbers: Collection[int], tx: Transaction) -> list[Row]:
    return [row for some in in_parts(numbers) for row in tx.find(table, {column: some})]


def _load_erased(what: Erasure, tx: Transaction) -> None:
    """Also of those whose scope or session may have no facts any more."""
    if tx.is_whole:
        return
    if what.fact_id is not None:
        terms = _place_of(what.fact_id, tx)
    else:
        kind, name = what.kind, str(what.scope or what.session_key)
        group = tx.first("fact_group", {"kind": kind, "name": name}, "id")
        terms = {kind: group["id"] if group else None}
        _load_forgotten([(kind, _digest(name))], tx)
    for row in tx.find("fact", terms):
        load_facts({"scope": row["scope"]}, tx)
        load_facts({"session": row["session"]}, tx)
        for claim in tx.find("fact_claim", {"session": row["session"]}):
            _load_forgotten([("message", claim["message_id"])] if claim["message_id"] else (), tx)


def _load_forgotten(names: Names, tx: Transaction) -> None:
    for kind, name in () if tx.is_whole else names:
        tx.first("forgotten", {"kind": kind, "name": name})


def list_all(tx: Transaction) -> None:
    """The words of all current facts that were read."""
    for row in _rows("WHERE f.superseded_at IS NULL", (), tx):
        _list((row.place, row.room_place), row.fact, tx)


# --- what is known -------------------------------------------------------------------------------


def _known(topic: int, new: Told, tx: Transaction) -> _Known:
    apart = _exists(_OF_OBJECT, (topic, 0, new.object), tx)
    is_functional = new.claim.functional
    if not (is_functional and apart):
        known = _current(topic, new, tx, functional=is_functional)
        if known is None and is_functional:
            known = _near(topic, new, tx)
        if known is not None:
            return known
    rows = _rows(_OF_OBJECT, (topic, 0, new.object), tx)
    if is_functional:
        rows += _rows(_FUNCTIONAL, (topic,), tx)
    return _all_of(rows, tx)


def _exists(where: str, values: Sequence[object], tx: Transaction) -> bool:
    return bool(
        tx.db.execute(f"SELECT EXISTS (SELECT 1 FROM fact f {where})", values).fetchone()[0]
    )


def _rows(where: str, values: Sequence[object], tx: Transaction) -> list[FactRow]:
    return [to_fact_row(row) for row in tx.db.execute(f"{FACT} {where}", values).fetchall()]


def _current(topic: int, new: Told, tx: Transaction, *, functional: bool) -> _Known | None:
    """The current fact is enough if the claim comes in order and ends nothing. None if more has to
    be read."""
    ends = tx.db.execute(_ANY_END, (topic, to_micros(new.since))).fetchone()[0]
    if new.claim.valid_to is not None or ends:
        return None
    said_at: datetime | None = None
    if functional:
        latest = tx.db.execute(_LATEST, (topic,)).fetchone()
        if latest is None or (to_micros(new.since), to_micros(new.said)) <= latest:
            return None
        said_at = to_time(latest[1])
        rows = _rows(_ONE_CURRENT, (topic,), tx)
    else:
        rows = _rows(_OBJECT_CURRENT, (topic, 0, new.object), tx)
    if not rows:
        return None
    return _Known({row.fact.id: row for row in rows}, [as_told(row.fact, said_at) for row in rows])


def _near(topic: int, new: Told, tx: Transaction) -> _Known | None:
    """The neighbours in time are enough for a late claim: the facts before and after it, those that
    they followed, and their successors. None if more has to be read."""
    covers_period = new.since < new.said or new.claim.valid_to is not None
    if covers_period or tx.db.execute(_ANY_SPAN, (topic,)).fetchone()[0]:
        return None
    at = (to_micros(new.since), to_micros(new.said))
    earlier = tx.db.execute(_EARLIER, (topic, *at)).fetchone() or (None,)
    later = tx.db.execute(_LATER, (topic, *at)).fetchone()
    if later is None or earlier[1:] == at:
        return None
    rows = _rows(_PLACES, (later[0], earlier[0]), tx)
    after = max(rows, key=lambda row: row.place == later[0]).fact
    around = (_rows(_SUPERSEDED_BY, (row.fact.id,), tx) for row in tuple(rows))
    rows += [*chain(*around), *_rows(_OF_CLAIM, (after.superseded_by,), tx)]
    known = _all_of(list({row.place: row for row in rows}.values()), tx)
    # An object that is functional is so in all that was claimed of it.
    known.told[:] = [replace(one, claim=replace(one.claim, functional=True)) for one in known.told]
    known.fixed = after.superseded_by
    return known


def _all_of(rows: Sequence[FactRow], tx: Transaction) -> _Known:
    facts = {row.place: row.fact for row in rows}
    claims = claims_of([*facts], tx)
    told = [to_told(claim, facts[claim[2]]) for claim in claims]
    places = {claim[1]: claim[2] for claim in claims}
    return _Known({row.fact.id: row for row in rows}, told, places)


# --- what changes --------------------------------------------------------------------------------


def _settle(topic: _Topic, known: _Known, now: datetime, tx: Transaction) -> None:
    before = {id_: row.fact for id_, row in known.rows.items()}
    facts = settled(topic.scope, known.told, before=before, now=now)
    # What is no longer there or no longer current goes first: there are never two.
    gone = known.rows.keys() - {one.fact.id for one in facts} - {known.fixed}
    _drop(map(known.rows.__getitem__, gone), tx)
    for one in sorted(facts, key=lambda one: one.fact.superseded_at is None):
        if one.fact.id == known.fixed:
            continue
        row = known.rows.get(one.fact.id)
        place = _insert(topic, one, tx) if row is None else _update(row, one.fact, tx)
        for told in one.told:
            if known.places.get(told.id, place) != place:
                tx.db.execute("UPDATE fact_claim SET fact = ? WHERE id = ?", (place, told.id))
            elif told is known.told[-1] and told.id not in known.places:
                _keep(topic, told, place, tx)


def _drop(rows: Iterable[FactRow], tx: Transaction) -> None:
    for row in rows:
        _unlist((row.place, row.room_place), tx)
        tx.db.execute("DELETE FROM fact WHERE place = ?", (row.place,))


def _update(row: FactRow, fact: Fact, tx: Transaction) -> int:
    if changing(row.fact) != changing(fact):
        tx.db.execute(_CHANGE, (*changing(fact), row.place))
    was, now = (one.superseded_at is None for one in (row.fact, fact))
    if was and not now:
        _unlist((row.place, row.room_place), tx)
    elif now and not was:
        _list((row.place, row.room_place), fact, tx)
    return row.place


def _insert(topic: _Topic, one: Settled, tx: Transaction) -> int:
    fact = one.fact
    session = str(fact.session_key)
    session_id = _group("session", session, tx)
    place = _next_place(topic.scope_id, tx)
    room_place = None if session == topic.scope else _next_place(session_id, tx)
    names = (form(fact.subject), form(fact.object))
    where = (place, room_place, fact.id, topic.scope_id, session_id, topic.id, *names)
    what = (fact.entity_type, fact.subject, fact.predicate, fact.object)
    tx.db.execute(_INSERT, (*where, *what, to_micros(fact.learned_at), *changing(fact)))
    if fact.superseded_at is None:
        _list((place, room_place), fact, tx)
    return place


def _next_place(group: int, tx: Transaction) -> int:
    return place_of(group, tx.db.execute(_NUMBER, (group,)).fetchone()[0])


_CLAIMED, _SOURCED = (
    Fields("object functional confidence"),
    Fields("message_id quote said_by"),
)


def _keep(topic: _Topic, told: Told, place: int, tx: Transaction) -> None:
    claim, source = told.claim, told.claim.source
    session = _group("session", str(source.session_key if source else claim.session_key), tx)
    row = {
        "id": told.id,
        "fact": place,
        "topic": topic.id,
        "session": session,
        **_CLAIMED.row(claim),
        "learned_at": told.learned_at,
        "since": told.since,
        "said_at": told.said,
        "until": claim.valid_to,
        **(_SOURCED.row(source) if source else {}),
    }
    tx.insert("fact_claim", row)


def _list(places: Sequence[int | None], fact: Fact, tx: Transaction) -> None:
    words = " ".join(words_of(fact.text))
    listed = [(place, words) for place in places if place is not None]
    tx.db.executemany("INSERT INTO fact_words (rowid, words) VALUES (?, ?)", listed)


def _unlist(places: Sequence[int | None], tx: Transaction) -> None:
    listed = [(place,) for place in places if place is not None]
    tx.db.executemany("DELETE FROM fact_words WHERE rowid = ?", listed)


# --- erasing -------------------------------------------------------------------------------------


def count_of(tx: Transaction, what: Erasure) -> int:
    where, value = _erased(what, tx)
    return int(tx.db.execute(f"SELECT count(*) FROM fact f {where}", (value,)).fetchone()[0])


def erase(tx: Transaction, what: Erasure, now: datetime) -> int:
    """Rewrites the index, because old segments of it would keep the words."""
    where, value = _erased(what, tx)
    rows = _rows(where, (value,), tx)
    of_fact = rows if what.fact_id is not None else ()
    told = [one for row in of_fact for (one,) in tx.db.execute(_TOLD_IN, (row.place,))]
    names: Names = [("message", one) for one in told]
    if what.fact_id is None:
        names = [(what.kind, _digest(str(what.scope or what.session_key)))]
    tx.db.executemany(_NOTE, [(*name, to_micros(now)) for name in names])
    if what.session_key is not None:
        tx.db.execute(_BLANK, (str(what.session_key),))
    _take_out(rows, now, tx)
    if rows:
        tx.db.execute("INSERT INTO fact_words (fact_words) VALUES ('optimize')")
    tombstone = tombstone_of(what, now)
    gone = {"at": now, "kind": what.kind, "facts": len(rows), "tombstone": tombstone}
    tx.insert("fact_erasure", gone)
    detail = {"what": what.kind, "facts": len(rows), "tombstone": tombstone}
    append_deed(tx, Deed(now, "memory.erased", what.by, detail))
    tx.has_erased = True
    return len(rows)


def _erased(what: Erasure, tx: Transaction) -> tuple[str, str]:
    """Raises ClaimRefused unless the erasure names one thing."""
    if sum(one is not None for one in (what.fact_id, what.scope, what.session_key)) != 1:
        raise ClaimRefused("erase one of these: a fact, a scope, a session; nothing was erased")
    _load_erased(what, tx)
    if what.fact_id is not None:
        return _IF_FACT, what.fact_id
    column = "session" if what.scope is None else "scope"
    group = f"(SELECT id FROM fact_group WHERE kind = '{column}' AND name = ?)"
    return f"WHERE f.{column} = {group}", str(what.scope or what.session_key)


def _take_out(rows: Sequence[FactRow], now: datetime, tx: Transaction) -> None:
    gone = {row.place for row in rows}
    before: list[FactRow] = []
    groups: set[tuple[int]] = set()
    for row in rows:
        before += _rows(_SUPERSEDED_BY, (row.fact.id,), tx)
        groups |= {(one,) for one in tx.db.execute(_GROUPS, (row.place,)).fetchone()}
    tx.db.executemany("DELETE FROM fact_claim WHERE fact = ?", [(place,) for place in gone])
    _drop(rows, tx)
    _end([row for row in before if row.place not in gone], now, tx)
    tx.db.executemany(_DROP_TOPIC, {(row.topic,) for row in rows})
    tx.db.executemany(_DROP_GROUP, groups)


def _end(rows: Sequence[FactRow], now: datetime, tx: Transaction) -> None:
    """Ends facts where the erased ones began; otherwise they would become current again."""
    lanes: dict[tuple[int, bool, str], FactRow] = {}
    for row in rows:
        fact = row.fact
        assert fact.valid_to is not None
        tx.db.execute(_END, (to_micros(fact.valid_to), row.place))
        lanes[row.topic, fact.functional, "" if fact.functional else form(fact.object)] = row
    for (topic, functional, lane), row in lanes.items():
        where = _FUNCTIONAL if functional else _OF_OBJECT
        known = _all_of(_rows(where, (topic,) if functional else (topic, 0, lane), tx), tx)
        _settle(_Topic(row.fact.scope, row.place >> SEQ_BITS, topic), known, now, tx)


FIND_GROUP = "SELECT id FROM fact_group WHERE kind = ? AND name = ?"
_NUMBER = "UPDATE fact_group SET last = last + 1 WHERE id = ? RETURNING last"
_OF_OBJECT = "WHERE f.topic = ? AND f.functional = ? AND f.form = ?"
_FUNCTIONAL = "WHERE f.topic = ? AND f.functional = 1"
_EARLIER, _LATER = (
    f"""
SELECT c.fact, c.since, c.said_at FROM fact_claim c CROSS JOIN fact f ON f.place = c.fact
WHERE c.topic = ? AND (c.since, c.said_at) {side} (?, ?) AND f.functional
ORDER BY c.since {order}, c.said_at {order} LIMIT 1
"""
    for side, order in (("<=", "DESC"), (">", "ASC"))
)
_OF_CLAIM = "WHERE f.place = (SELECT fact FROM fact_claim WHERE id = ?)"
_IF_FACT = "WHERE f.place = (SELECT fact FROM fact_claim WHERE id = ?1) AND f.id = ?1"
_PLACES = "WHERE f.place IN (?, ?)"
_SUPERSEDED_BY = "WHERE f.superseded_by = ?"
_ONE_CURRENT = "WHERE f.topic = ? AND f.functional AND f.superseded_at IS NULL"
_OBJECT_CURRENT = f"{_OF_OBJECT} AND f.superseded_at IS NULL"
_ANY_END = """
SELECT EXISTS (SELECT 1 FROM fact_claim WHERE topic = ?1 AND until IS NOT NULL)
    OR EXISTS (SELECT 1 FROM fact_claim WHERE topic = ?1 AND since < said_at AND said_at = ?2)
"""
_ANY_SPAN = """
SELECT EXISTS (SELECT 1 FROM fact_claim WHERE topic = ?1 AND until IS NOT NULL)
    OR EXISTS (SELECT 1 FROM fact_claim WHERE topic = ?1 AND since < said_at)
"""
_LATEST = """
SELECT since, said_at FROM fact_claim WHERE topic = ? ORDER BY since DESC, said_at DESC LIMIT 1
"""
_INSERT = """
INSERT INTO fact (place, room_place, id, scope, session, topic, about, form, entity_type, subject,
    predicate, object, learned_at, functional, confidence, valid_from, valid_to, superseded_at,
    superseded_by)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_CHANGE = """
UPDATE fact SET functional = ?, confidence = ?, valid_from = ?, valid_to = ?, superseded_at = ?,
    superseded_by = ?
WHERE place = ?
"""
_TOLD_IN = "SELECT message_id FROM fact_claim WHERE fact = ? AND message_id IS NOT NULL"
_BLANK = """
UPDATE fact_claim SET message_id = NULL, quote = NULL, said_by = NULL
WHERE session = (SELECT id FROM fact_group WHERE kind = 'session' AND name = ?)
"""
_END = """
UPDATE fact_claim SET until = ? WHERE seq = (SELECT max(seq) FROM fact_claim WHERE fact = ?)
"""
_GROUPS = "SELECT scope, session FROM fact WHERE place = ?"
_DROP_TOPIC = """
DELETE FROM fact_topic WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM fact WHERE topic = ?1)
"""
_DROP_GROUP = """
DELETE FROM fact_group WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM fact WHERE scope = ?1)
    AND NOT EXISTS (SELECT 1 FROM fact WHERE session = ?1)
    AND NOT EXISTS (SELECT 1 FROM fact_claim WHERE session = ?1)
"""
