"""Facts in SQLite."""

from collections.abc import Hashable, Sequence
from math import log1p
from typing import TypeVar

from gateway.domain.facts import Claim, Erasure, FactQuery
from gateway.domain.settling import ClaimRefused, require_claim
from gateway.store.rows import require_text

T = TypeVar("T", bound=Hashable)


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


def ranked(hits: Sequence[Sequence[T]], limit: int) -> list[T]:
    """Found by each of some words: those first in which rarer words occur, and more of them."""
    most = max((len(hit) for hit in hits), default=0)
    scores: dict[T, float] = {}
    for hit in hits:
        for one in hit:
            scores[one] = scores.get(one, 0.0) + log1p(most / len(hit))
    return sorted(scores, key=lambda one: -scores[one])[: max(0, limit)]
