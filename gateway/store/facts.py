"""Facts and claims: written, settled and erased; erased statements are not learned again."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from math import log1p
from typing import TypeVar

from gateway.domain.events import AuditEvent
from gateway.domain.facts import (
    Claim,
    ClaimRefused,
    Erasure,
    Fact,
    SaidSource,
    SettledFact,
    StoredClaim,
    form,
    predicate_form,
    require_claim,
    settle_claims,
    tombstone_of,
    words_of,
)
from gateway.domain.ids import EPOCH, SessionKey
from gateway.store.audit import append_event
from gateway.store.transaction import Fields, Row, Terms, Transaction, place_of

Names = Iterable[tuple[str, str]]  # ("message", its id), ("scope" or "session", its digest)
WITH_SOURCE: Terms = {"message_id >=": ""}  # claims with a source


def names_of(scope: str, session: str, *messages: str | None) -> Names:
    """Returns the names by which a statement may be marked as forgotten."""
    named = [("message", one) for one in messages if one is not None]
    return (*named, ("scope", _digest(scope)), ("session", _digest(session)))


def is_forgotten(names: Names, said_at: datetime, tx: Transaction) -> bool:
    """True if the statement is marked: its message at any time, its scope or session up to a time."""
    for kind, name in names:
        where = {"kind": kind, "name": name}
        upto: datetime | None = tx.value("forgotten", where, "upto", None)
        if upto is not None and (kind == "message" or upto >= said_at):
            return True
    return False


def _forget(names: Names, now: datetime, tx: Transaction) -> None:
    for kind, name in names:
        if tx.value("forgotten", {"kind": kind, "name": name}, "upto", EPOCH) < now:
            tx.put("forgotten", {"kind": kind, "name": name, "upto": now})


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()


T = TypeVar("T", bound=Hashable)


def require_claims(claims: Sequence[Claim], ids: Sequence[str]) -> None:
    """Raises ClaimRefused before anything is written."""
    if len(ids) != len(claims):
        raise ClaimRefused(f"{len(claims)} facts need as many ids, not {len(ids)}")
    for claim in claims:
        require_claim(claim)


def ranked(hits: Iterable[Sequence[T]]) -> list[T]:
    """Sorts the hits of several words by the number and rarity of the words that they contain."""
    hits = [hit for hit in hits if hit]
    most = max((len(hit) for hit in hits), default=0)
    scores: dict[T, float] = {}
    for hit in hits:
        weight = log1p(most / len(hit))
        for one in hit:
            scores[one] = scores.get(one, 0.0) + weight
    return sorted(scores, key=lambda one: -scores[one])


# --- rows ----------------------------------------------------------------------------------------
_key = lru_cache(maxsize=256)(SessionKey.parse)  # a person's facts name few sessions
_OF_FACT = Fields(
    "id entity_type subject predicate object functional confidence learned_at valid_from valid_to "
    "superseded_at superseded_by"
)
_OF_ROW = Fields("place room_place topic scope session")
_CHANGING = Fields("functional confidence valid_from valid_to superseded_at superseded_by")
_OF_CLAIM, _OF_SOURCE = Fields("object functional confidence"), Fields("message_id quote said_by")


@dataclass(frozen=True, slots=True)
class FactRow:
    """A fact without its sources, with its places and the numbers of its groups."""

    place: int
    room_place: int | None
    topic: int
    scope: int
    session: int
    fact: Fact


def facts_in(terms: Terms, tx: Transaction, *, index: str = "") -> list[FactRow]:
    rows = tx.find("fact", terms, index=index)
    names = _names({row[one] for row in rows for one in ("scope", "session")}, tx)
    found = list[FactRow]()
    for row in rows:
        groups: Row = {"scope": names[row["scope"]], "session_key": _key(names[row["session"]])}
        fact = Fact(**groups, **_OF_FACT.values(row))
        found.append(FactRow(**_OF_ROW.values(row), fact=fact))
    return found


def facts_at(places: Sequence[int], tx: Transaction) -> list[FactRow]:
    """Returns the facts at these places, in this order."""
    found = {row.place: row for row in facts_in({"place": tuple(places)}, tx)}
    return [found[place] for place in places]


def _names(groups: Iterable[int], tx: Transaction) -> Mapping[int, str]:
    rows = tx.find("fact_group", {"id": tuple({*groups})}, "id name")
    return {row["id"]: row["name"] for row in rows}


def claims_of(facts: Mapping[int, Fact], tx: Transaction) -> list[tuple[int, StoredClaim]]:
    """Returns the claims of these facts, with their places, in the order of learning."""
    return claims_in(tx.find("fact_claim", {"fact": tuple(facts)}, order="seq"), facts, tx)


def claims_in(
    rows: Sequence[Row], facts: Mapping[int, Fact], tx: Transaction
) -> list[tuple[int, StoredClaim]]:
    names = _names((row["session"] for row in rows), tx)
    return [
        (row["fact"], _claim_of(row, _key(names[row["session"]]), facts[row["fact"]]))
        for row in rows
    ]


def _claim_of(row: Row, key: SessionKey, fact: Fact) -> StoredClaim:
    """Returns one claim of this fact."""
    source = None
    if row["message_id"] is not None:
        source = SaidSource(session_key=key, at=row["said_at"], **_OF_SOURCE.values(row))
    claim = Claim(
        fact.subject,
        fact.predicate,
        valid_from=row["since"],
        session_key=fact.session_key if row["id"] == fact.id else key,
        entity_type=fact.entity_type,
        valid_to=row["until"],
        source=source,
        **_OF_CLAIM.values(row),
    )
    return StoredClaim(row["id"], claim, row["learned_at"], row["said_at"])


def _as_one(fact: Fact, said_at: datetime | None) -> StoredClaim:
    """Returns all claims of a fact as one claim, last said at `said_at`."""
    what = (fact.subject, fact.predicate, fact.object, fact.functional, fact.valid_from)
    claim = Claim(*what, fact.session_key, fact.entity_type, fact.confidence)
    return StoredClaim(fact.id, claim, fact.learned_at, said_at)


@dataclass(slots=True)
class _Known:
    """The known facts and claims about one object, or about a whole functional predicate."""

    rows: Mapping[str, FactRow]  # by id
    stored: list[StoredClaim]
    places: dict[str, int] = field(default_factory=dict)  # of the claims' facts, by the claim's id
    fixed: str | None = None  # a successor that must not change: its own successors are unknown


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
        new = StoredClaim(id_, claim, now)
        # An object that was ever claimed as functional stays functional.
        as_functional = {**_object(topic.id, new.object), "functional": True}
        if not claim.functional and tx.find("fact", as_functional, "place"):
            new = StoredClaim(id_, replace(claim, functional=True), now)
        known = _known(topic.id, new, tx)
        known.stored.append(new)
        _settle(topic, known, now, tx)


def _group(kind: str, name: str, tx: Transaction) -> int:
    return _id_of("fact_group", {"kind": kind, "name": name}, tx)


def _id_of(table: str, names: Row, tx: Transaction) -> int:
    return tx.value(table, names, "id", 0) or tx.insert(table, names)


def list_all(tx: Transaction) -> None:
    """Indexes the words of all current facts that are in this database."""
    for *places, subject, predicate, object_ in tx.db.execute(_CURRENT_ONES).fetchall():
        _list(places, f"{subject} {predicate} {object_}", tx)


_CURRENT_ONES = (
    "SELECT place, room_place, subject, predicate, object FROM fact WHERE superseded_at IS NULL"
)


# --- known facts ---------------------------------------------------------------------------------
def _object(topic: int, object_: str) -> Terms:
    return {"topic": topic, "functional": False, "form": object_}


def _known(topic: int, new: StoredClaim, tx: Transaction) -> _Known:
    is_functional = new.claim.functional
    if not (is_functional and tx.find("fact", _object(topic, new.object), "place")):
        known = _current(topic, new, tx) or (_near(topic, new, tx) if is_functional else None)
        if known is not None:
            return known
    rows = facts_in(_object(topic, new.object), tx)
    if is_functional:
        rows += facts_in({"topic": topic, "functional": True}, tx)
    return _all_of(rows, tx)


def _has_claim(terms: Terms, index: str, tx: Transaction) -> bool:
    return bool(tx.find("fact_claim", terms, "seq", limit=1, index=index))


def _current(topic: int, new: StoredClaim, tx: Transaction) -> _Known | None:
    """Returns the current fact, which suffices if the claim comes in order and ends nothing; None
    if more rows are needed."""
    ends = _has_claim({"topic": topic}, "ended", tx)
    ends = ends or _has_claim({"topic": topic, "said_at": new.since}, "dated", tx)
    if new.claim.valid_to is not None or ends:
        return None
    said_at: datetime | None = None
    if new.claim.functional:
        latest = tx.first("fact_claim", {"topic": topic}, _TIMES, order="-since -said_at")
        if latest is None or (new.since, new.stated_at) <= (latest["since"], latest["said_at"]):
            return None
        said_at = latest["said_at"]
        rows = facts_in({"topic": topic}, tx, index="one_current")
    else:
        rows = facts_in({**_object(topic, new.object), "superseded_at": None}, tx)
    if not rows:
        return None
    return _Known({row.fact.id: row for row in rows}, [_as_one(row.fact, said_at) for row in rows])


def _near(topic: int, new: StoredClaim, tx: Transaction) -> _Known | None:
    """Returns the neighbours in time, which suffice for a late claim: the facts before and after
    it, their predecessors, and the successor; None if more rows are needed."""
    covers_period = new.since < new.stated_at or new.claim.valid_to is not None
    if covers_period or any(_has_claim({"topic": topic}, one, tx) for one in ("ended", "dated")):
        return None
    beside = _beside(topic, (new.since, new.stated_at), tx)
    if not beside:
        return None
    following = beside[-1].fact.superseded_by
    ids = tuple({row.fact.id for row in beside})
    rows = [*beside, *facts_in({"superseded_by": ids}, tx)]
    rows += [] if following is None else fact_of(following, tx)
    known = _all_of(rows, tx)
    # A functional object is functional in all of its claims.
    known.stored[:] = [
        replace(one, claim=replace(one.claim, functional=True)) for one in known.stored
    ]
    known.fixed = following
    return known


def _beside(topic: int, at: tuple[datetime, datetime], tx: Transaction) -> list[FactRow]:
    """Returns the facts of the claims before and after this time, in this order. Empty if a claim
    has exactly this time, if none is later, or if one is not functional."""
    upto, after = {"topic": topic, "since,said_at <=": at}, {"topic": topic, "since,said_at >": at}
    earlier = tx.first("fact_claim", upto, f"fact {_TIMES}", order="-since -said_at")
    later = tx.first("fact_claim", after, "fact", order="since said_at")
    is_taken = earlier is not None and (earlier["since"], earlier["said_at"]) == at
    if later is None or is_taken:
        return []
    found = facts_at([row["fact"] for row in (earlier, later) if row], tx)
    return found if all(row.fact.functional for row in found) else []


_TIMES = "since said_at"


def fact_of(claim: str, tx: Transaction) -> list[FactRow]:
    """Returns the fact of a claim; empty if there is no such claim."""
    place = tx.value("fact_claim", {"id": claim}, "fact", None)
    return [] if place is None else facts_in({"place": place}, tx)


def _all_of(rows: Sequence[FactRow], tx: Transaction) -> _Known:
    claims = claims_of({row.place: row.fact for row in rows}, tx)
    places = {one.id: place for place, one in claims}
    return _Known({row.fact.id: row for row in rows}, [one for _, one in claims], places)


# --- changes -------------------------------------------------------------------------------------
def _settle(topic: _Topic, known: _Known, now: datetime, tx: Transaction) -> None:
    before = {id_: row.fact for id_, row in known.rows.items()}
    facts = settle_claims(topic.scope, known.stored, before=before, now=now)
    # Facts that vanish or end are written first, so that two are never current together.
    gone = known.rows.keys() - {one.fact.id for one in facts} - {known.fixed}
    _drop(map(known.rows.__getitem__, gone), tx)
    for one in sorted(facts, key=lambda one: one.fact.superseded_at is None):
        if one.fact.id == known.fixed:
            continue
        row = known.rows.get(one.fact.id)
        place = _insert(topic, one, tx) if row is None else _update(row, one.fact, tx)
        for stored in one.stored:
            if known.places.get(stored.id, place) != place:
                tx.change("fact_claim", {"id": stored.id}, {"fact": place})
            elif stored is known.stored[-1] and stored.id not in known.places:
                _keep(topic, stored, place, tx)


def _drop(rows: Iterable[FactRow], tx: Transaction) -> None:
    for row in rows:
        _unlist((row.place, row.room_place), tx)
        tx.delete("fact", {"place": row.place})


def _update(row: FactRow, fact: Fact, tx: Transaction) -> int:
    if (now_so := _CHANGING.row(fact)) != _CHANGING.row(row.fact):
        tx.change("fact", {"place": row.place}, now_so)
    was, now = (one.superseded_at is None for one in (row.fact, fact))
    if was and not now:
        _unlist((row.place, row.room_place), tx)
    elif now and not was:
        _list((row.place, row.room_place), fact.text, tx)
    return row.place


def _insert(topic: _Topic, one: SettledFact, tx: Transaction) -> int:
    fact = one.fact
    session = str(fact.session_key)
    session_id = _group("session", session, tx)
    place = _next_place(topic.scope_id, tx)
    room_place = None if session == topic.scope else _next_place(session_id, tx)
    forms = {"about": form(fact.subject), "form": form(fact.object)}
    placed = {"place": place, "room_place": room_place, "topic": topic.id}
    whose = {"scope": topic.scope_id, "session": session_id}
    tx.insert("fact", {**placed, **whose, **forms, **_OF_FACT.row(fact)})
    if fact.superseded_at is None:
        _list((place, room_place), fact.text, tx)
    return place


def _next_place(group: int, tx: Transaction) -> int:
    last = tx.value("fact_group", {"id": group}, "last", 0) + 1
    tx.change("fact_group", {"id": group}, {"last": last})
    return place_of(group, last)


def _keep(topic: _Topic, stored: StoredClaim, place: int, tx: Transaction) -> None:
    claim, source = stored.claim, stored.claim.source
    session = _group("session", str(source.session_key if source else claim.session_key), tx)
    row = {
        "id": stored.id,
        "fact": place,
        "topic": topic.id,
        "session": session,
        **_OF_CLAIM.row(claim),
        "learned_at": stored.learned_at,
        "since": stored.since,
        "said_at": stored.stated_at,
        "until": claim.valid_to,
        **(_OF_SOURCE.row(source) if source else {}),
    }
    tx.insert("fact_claim", row)


def _list(places: Sequence[int | None], text: str, tx: Transaction) -> None:
    words = " ".join(words_of(text))
    listed = [(place, words) for place in places if place is not None]
    tx.db.executemany("INSERT INTO fact_words (rowid, words) VALUES (?, ?)", listed)


def _unlist(places: Sequence[int | None], tx: Transaction) -> None:
    listed = [(place,) for place in places if place is not None]
    tx.db.executemany("DELETE FROM fact_words WHERE rowid = ?", listed)


# --- erasing -------------------------------------------------------------------------------------
def count_of(tx: Transaction, what: Erasure) -> int:
    return tx.count("fact", _erased(what, tx))


def erase(tx: Transaction, what: Erasure, now: datetime) -> int:
    """Erases facts, and rewrites the index of words, whose old segments would keep the words."""
    rows = facts_in(_erased(what, tx), tx)
    if what.fact_id is not None:
        places = tuple(row.place for row in rows)
        said = tx.find("fact_claim", {"fact": places, **WITH_SOURCE}, "message_id")
        names: Names = [("message", one["message_id"]) for one in said]
    else:
        names = [(what.kind, _digest(str(what.scope or what.session_key)))]
    _forget(names, now, tx)
    if what.session_key is not None:
        blank = {"message_id": None, "quote": None, "said_by": None}
        tx.change("fact_claim", {"session": _number("session", str(what.session_key), tx)}, blank)
    _remove_facts(rows, now, tx)
    if rows:
        tx.db.execute("INSERT INTO fact_words (fact_words) VALUES ('optimize')")
    erased = {"facts": len(rows), "tombstone": tombstone_of(what, now)}
    tx.insert("fact_erasure", {"at": now, "kind": what.kind, **erased})
    append_event(tx, AuditEvent(now, "memory.erased", what.by, {"what": what.kind, **erased}))
    tx.has_erased = True
    return len(rows)


def _erased(what: Erasure, tx: Transaction) -> Terms:
    """Returns the terms for the erased facts. Raises ClaimRefused unless the erasure names exactly
    one thing."""
    if sum(one is not None for one in (what.fact_id, what.scope, what.session_key)) != 1:
        raise ClaimRefused("nothing was erased: name one fact, one scope or one session")
    if what.fact_id is not None:
        place = tx.value("fact_claim", {"id": what.fact_id}, "fact", None)
        return {"place": place, "id": what.fact_id}
    kind = "session" if what.scope is None else "scope"
    return {kind: _number(kind, str(what.scope or what.session_key), tx)}


def _number(kind: str, name: str, tx: Transaction) -> int | None:
    return tx.value("fact_group", {"kind": kind, "name": name}, "id", None)


def _remove_facts(rows: Sequence[FactRow], now: datetime, tx: Transaction) -> None:
    gone, ids = {row.place for row in rows}, [row.fact.id for row in rows]
    before = facts_in({"superseded_by": tuple(ids)}, tx)
    emptied = _emptied(rows, tx)
    tx.delete("fact_claim", {"fact": tuple(gone)})
    _drop(rows, tx)
    _end([row for row in before if row.place not in gone], now, tx)
    for table, number in emptied:
        tx.delete(table, {"id": number})


def _emptied(rows: Sequence[FactRow], tx: Transaction) -> list[tuple[str, int]]:
    """Returns the topics and groups, by table, that are empty without these facts."""
    places = tuple(row.place for row in rows)
    said = [one["session"] for one in tx.find("fact_claim", {"fact": places}, "session")]
    topics, scopes = Counter(row.topic for row in rows), Counter(row.scope for row in rows)
    sessions, claimed = Counter(row.session for row in rows), Counter(said)
    found = [
        ("fact_topic", one) for one in topics if tx.count("fact", {"topic": one}) == topics[one]
    ]
    for one in scopes.keys() | sessions.keys():
        left = tx.count("fact", {"scope": one}) - scopes[one]
        left += tx.count("fact", {"session": one}) - sessions[one]
        left += tx.count("fact_claim", {"session": one}) - claimed[one]
        if not left:
            found.append(("fact_group", one))
    return found


def _end(rows: Sequence[FactRow], now: datetime, tx: Transaction) -> None:
    """Ends the predecessors of erased facts; otherwise they would become current again."""
    lanes: dict[tuple[int, str | None], FactRow] = {}
    for row in rows:
        last = tx.value("fact_claim", {"fact": row.place}, "seq", 0, order="-seq")
        tx.change("fact_claim", {"seq": last}, {"until": row.fact.valid_to})
        lanes[row.topic, None if row.fact.functional else form(row.fact.object)] = row
    for (topic, lane), row in lanes.items():
        terms = {"topic": topic, "functional": True} if lane is None else _object(topic, lane)
        _settle(_Topic(row.fact.scope, row.scope, topic), _all_of(facts_in(terms, tx), tx), now, tx)
