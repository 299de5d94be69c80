"""Facts and claims as columns and back, and what is refused before it becomes a row."""

import sqlite3
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from math import log1p
from typing import Any, TypeVar

from gateway.domain.facts import Claim, Erasure, Fact, FactQuery, Source
from gateway.domain.ids import SessionKey
from gateway.domain.settling import ClaimRefused, Told, require_claim
from gateway.store.rows import require_text, to_micros, to_time

T = TypeVar("T", bound=Hashable)

_AT_ONCE = 500  # values in a query


def require_claims(scope: str, claims: Sequence[Claim], ids: Sequence[str]) -> None:
    """Raises ClaimRefused or TextRefused before anything is written."""
    if len(ids) != len(claims):
        raise ClaimRefused(f"{len(claims)} facts need as many ids, not {len(ids)}")
    require_text("the scope or id of a fact", scope, *ids)
    for claim in claims:
        require_text("a fact", claim.subject, claim.predicate, claim.object, str(claim.session_key))
        require_claim(claim)
        if source := claim.source:
            require_text("a fact's source", source.message_id, source.quote, source.said_by)
            require_text("a fact's source", str(source.session_key))


def require_query(query: FactQuery) -> None:
    require_text("the query", query.subject, query.predicate, query.whose.scope)
    require_text("the query", str(query.whose.room))


def require_erasure(what: Erasure) -> None:
    given = [one for one in (what.fact_id, what.scope, what.session_key) if one is not None]
    if len(given) != 1:
        raise ClaimRefused("erase one of these: a fact, a scope, a session; nothing was erased")
    require_text("what to erase", what.fact_id, what.scope, str(what.session_key), what.by)


def ranked(hits: Iterable[Sequence[T]]) -> list[T]:
    """Found by each of some words: those first in which rarer words occur, and more of them."""
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
    """A fact, without its sources, and where it is."""

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
    """One of the claims of this fact."""
    _, id_, _, object_, functional, confidence, session, learned, since, until, said, *source = row
    key, said_at = SessionKey.parse(session), to_time(said)
    message_id, quote, said_by = source
    claim = Claim(
        fact.subject,
        fact.predicate,
        object_,
        bool(functional),
        to_time(since),
        fact.session_key if id_ == fact.id else key,
        fact.entity_type,
        confidence,
        None if until is None else to_time(until),
        None if message_id is None else Source(message_id, key, said_at, quote, said_by),
    )
    return Told(id_, claim, to_time(learned), said_at)


def as_told(fact: Fact, said_at: datetime | None) -> Told:
    """All that was claimed of it, as if it were one claim, the last time at `said_at`."""
    key, kind = fact.session_key, fact.entity_type
    what = (fact.subject, fact.predicate, fact.object, fact.functional)
    claim = Claim(*what, fact.valid_from, key, kind, fact.confidence)
    return Told(fact.id, claim, fact.learned_at, said_at)


def changing(fact: Fact) -> tuple[object, ...]:
    """What a fact's row has that may change: functional, confidence, times, successor."""
    times = (fact.valid_to, fact.superseded_at)
    micros = (None if at is None else to_micros(at) for at in times)
    since = to_micros(fact.valid_from)
    return (fact.functional, fact.confidence, since, *micros, fact.superseded_by)


def claims_of(places: Sequence[int], db: sqlite3.Connection) -> list[Sequence[Any]]:
    """Of these facts, in the order of learning."""
    found: list[Sequence[Any]] = []
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        marks = ", ".join("?" * len(some))
        found += db.execute(f"{CLAIM} WHERE c.fact IN ({marks})", some).fetchall()
    return sorted(found, key=lambda row: row[0])
