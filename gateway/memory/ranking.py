"""How well each turn of a conversation answers a question: measured weights, no length, no model."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import nlargest
from math import log

from gateway.domain.recall import Found, Hits

# What a word counts for the turns beside the one that holds it: an answer stands beside its
# question, also where a short reply or a call of a tool lies in between.
_BESIDE = ((0, 1.0), (1, 1.0), (-1, 1.0), (2, 0.75), (-2, 0.75), (3, 0.5), (-3, 0.5), (4, 0.25), (-4, 0.25))  # fmt: skip
_REACH = 4
_SATURATION = 1.2
_BLOCK_BITS = 5  # a block is 32 turns: about what is said at a time
_CELL_BITS, _CELLS = 3, 16  # of 8 turns
_OWN, _BLOCK = 0.5, 0.3  # beside 1.0 for the neighbourhood; each is 1.0 for the best turn


def ranked(
    found: Found, boosts: Mapping[int, float], *, limit: int, without: Collection[int] = ()
) -> list[tuple[int, float]]:
    """The best depths with their scores; `boosts` by depth."""
    length = found.trail.length
    weighed = [(hits, _rarity(hits.total, length)) for hits in distinct(found.words).values()]
    scores = dict(boosts)
    for part, weight in zip(_parts(weighed, length), (1.0, _OWN), strict=True):
        most = max(part.values(), default=1.0)
        for depth, score in part.items():
            scores[depth] = scores.get(depth, 0.0) + weight * score / most
    blocks = _blocks(weighed, (length >> _BLOCK_BITS) + 1)
    most = max(blocks.values(), default=1.0)
    whole = (
        (score + _BLOCK * blocks.get(depth >> _BLOCK_BITS, 0.0) / most, depth)
        for depth, score in scores.items()
        if depth not in without
    )
    return [(depth, score) for score, depth in nlargest(limit, whole)]


Weighed = Sequence[tuple[Hits, float]]  # with how much a hit tells


def _parts(weighed: Weighed, length: int) -> tuple[dict[int, float], dict[int, float]]:
    """What each turn says together with those beside it, and what it says alone."""
    around: dict[int, float] = {}
    own: dict[int, float] = {}
    cells = _best_cells(weighed)
    outside = (*range(-_REACH, 0), *range(length, length + _REACH))
    for hits, rarity in weighed:
        near: dict[int, float] = {}
        depths = [depth for depth in hits.depths if depth >> _CELL_BITS in cells]
        for depth in depths:
            own[depth] = own.get(depth, 0.0) + rarity
            for offset, weight in _BESIDE:
                near[depth + offset] = near.get(depth + offset, 0.0) + weight
        for depth in outside:
            near.pop(depth, None)
        reached = len(near) * hits.total / max(1, len(depths))
        _count(around, near, _rarity(min(length, reached), length))
    return around, own


def _blocks(weighed: Weighed, many: int) -> dict[int, float]:
    blocks: dict[int, float] = {}
    for hits, _ in weighed:
        inside = Counter([depth >> _BLOCK_BITS for depth in hits.depths])
        reached = len(inside) * hits.total / len(hits.depths)
        _count(blocks, inside, _rarity(min(many, reached), many))
    return blocks


def _best_cells(weighed: Weighed) -> set[int]:
    """Where the most that counts is said side by side, and the cells next to these: only there it
    is worth looking at every turn."""
    cells: dict[int, float] = {}
    for hits, rarity in weighed:
        for cell in {depth >> _CELL_BITS for depth in hits.depths}:
            cells[cell] = cells.get(cell, 0.0) + rarity
    best = nlargest(_CELLS, ((score, cell) for cell, score in cells.items()))
    return {cell + step for _, cell in best for step in (-1, 0, 1)}


def distinct(words: Mapping[str, Hits]) -> Mapping[str, Hits]:
    """Without further forms of a word, which are said wherever it is."""
    first: dict[tuple[str, frozenset[int]], str] = {}
    for word, hits in words.items():
        first.setdefault((word[:3], hits.depths), word)
    return {word: words[word] for word in first.values()}


def _count(
    scores: dict[int, float], counts: Mapping[int, float] | Mapping[int, int], rarity: float
) -> None:
    """Saying a word again adds ever less."""
    for at, count in counts.items():
        gain = rarity * count * (_SATURATION + 1) / (count + _SATURATION)
        scores[at] = scores.get(at, 0.0) + gain


def _rarity(holding: float, of: int) -> float:
    return log(1 + (of - holding + 0.5) / (holding + 0.5))
