"""How well each turn of a conversation answers a question: measured weights, no length, no model."""

from collections.abc import Mapping
from heapq import nlargest
from math import log

from gateway.domain.recall import Found, Hits

# What a word counts for the turns beside the one that holds it: an answer stands beside its
# question, also where a short reply or a call of a tool lies in between.
_BESIDE = ((0, 1.0), (1, 1.0), (-1, 1.0), (2, 0.75), (-2, 0.75), (3, 0.5), (-3, 0.5), (4, 0.25), (-4, 0.25))  # fmt: skip
_SATURATION = 1.2
_BLOCK_BITS = 5  # a block is 32 turns: about what is said at a time
_OWN, _BLOCK = 0.5, 0.3  # beside 1.0 for the neighbourhood; each is 1.0 for the best turn


def ranked(
    found: Found, boosts: Mapping[int, float], *, limit: int, without: frozenset[int] = frozenset()
) -> list[tuple[int, float]]:
    """The best depths with their scores; `boosts` by depth."""
    length = found.trail.length
    around: dict[int, float] = {}
    own: dict[int, float] = {}
    blocks: dict[int, float] = {}
    for hits in distinct(found.words).values():
        rarity, share = _rarity(hits.total, length), hits.total / len(hits.depths)
        for depth in hits.depths:
            own[depth] = own.get(depth, 0.0) + rarity
        near = _near(hits, length)
        _count(around, near, _rarity(min(length, len(near) * share), length))
        inside: dict[int, float] = {}
        for depth in hits.depths:
            inside[depth >> _BLOCK_BITS] = inside.get(depth >> _BLOCK_BITS, 0.0) + 1.0
        many = (length >> _BLOCK_BITS) + 1
        _count(blocks, inside, _rarity(min(many, len(inside) * share), many))
    scores = dict(boosts)
    for part, weight in ((around, 1.0), (own, _OWN)):
        most = max(part.values(), default=1.0)
        for depth, score in part.items():
            scores[depth] = scores.get(depth, 0.0) + weight * score / most
    most = max(blocks.values(), default=1.0)
    whole = (
        (score + _BLOCK * blocks.get(depth >> _BLOCK_BITS, 0.0) / most, depth)
        for depth, score in scores.items()
        if depth not in without
    )
    return [(depth, score) for score, depth in nlargest(limit, whole)]


def distinct(words: Mapping[str, Hits]) -> Mapping[str, Hits]:
    """Without further forms of a word, which are said wherever it is."""
    first: dict[tuple[str, frozenset[int]], str] = {}
    for word, hits in words.items():
        first.setdefault((word[:3], hits.depths), word)
    return {word: words[word] for word in first.values()}


def _near(hits: Hits, length: int) -> dict[int, float]:
    near: dict[int, float] = {}
    for offset, weight in _BESIDE:
        for depth in hits.depths:
            near[depth + offset] = near.get(depth + offset, 0.0) + weight
    return {depth: count for depth, count in near.items() if 0 <= depth < length}


def _count(scores: dict[int, float], counts: Mapping[int, float], rarity: float) -> None:
    """Saying a word again adds ever less."""
    for at, count in counts.items():
        gain = rarity * count * (_SATURATION + 1) / (count + _SATURATION)
        scores[at] = scores.get(at, 0.0) + gain


def _rarity(holding: float, of: int) -> float:
    return log(1 + (of - holding + 0.5) / (holding + 0.5))
