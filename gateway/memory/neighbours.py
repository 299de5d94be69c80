"""What hangs together with a name: Luna, her vet, and where that vet works."""

from collections.abc import Sequence

from gateway.domain.facts import Fact, Facts, Whose

MOST_HOPS = 3
MOST_NAMES = 50  # that one hop goes on from


async def neighbours(
    facts: Facts, whose: Whose, name: str, *, hops: int, limit: int
) -> Sequence[Fact]:
    """Current facts that so many hops lead to, the nearest first."""
    found: dict[str, Fact] = {}
    seen, edge = set[str](), [name]
    for _ in range(hops):
        seen.update(edge)
        near = await facts.around(whose, edge, limit=limit)
        found |= {fact.id: fact for fact in near if fact.id not in found}
        names = dict.fromkeys(end for fact in near for end in (fact.subject, fact.object))
        edge = [one for one in names if one not in seen][:MOST_NAMES]
        if not edge or len(found) >= limit:
            break
    return list(found.values())[:limit]
