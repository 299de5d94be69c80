"""Chooses the branches of a conversation tree that can be archived. Pure."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

Fork = tuple[int, int | None]  # seq and parent seq of a node that does not follow the previous one
Span = tuple[int, int]  # first and last seq


def spans_to(tip: int, forks: Sequence[Fork], starts: Sequence[int]) -> Iterator[Span]:
    """Yields the path to a node, newest first, as far back as forks are known."""
    at: int | None = tip
    while at is not None and (number := bisect_right(starts, at) - 1) >= 0:
        yield starts[number], at
        at = forks[number][1]


def kept_spans(forks: Sequence[Fork], tips: Sequence[int]) -> dict[int, int]:
    """Returns first and last seq of each span on the path to any of the tips."""
    kept: dict[int, int] = {}
    starts = [seq for seq, _ in forks]
    for tip in tips:
        for first, last in spans_to(tip, forks, starts):
            kept[first] = max(last, kept.get(first, 0))
    return kept


def branches_off(
    forks: Sequence[Fork], head: int, kept: dict[int, int], last: int
) -> tuple[list[Span], list[list[Span]]]:
    """Returns the spans of HEAD's tree, and its branches that are not kept, each with its own
    branches. The branch that was idle for longest comes first."""
    starts = [seq for seq, _ in forks]
    ends = [*(start - 1 for start in starts[1:]), last]
    roots, tops = _roots_and_tops(forks, starts, kept)
    own = roots[bisect_right(starts, head) - 1]
    tree: list[Span] = []
    branches: dict[int, list[Span]] = {}
    for start, end, root, top in zip(starts, ends, roots, tops, strict=True):
        if root != own:
            continue
        tree.append((start, end))
        first = kept.get(start, start - 1) + 1
        if first <= end:
            branches.setdefault(top, []).append((first, end))
    return tree, sorted(branches.values(), key=lambda spans: spans[-1][1])


def _roots_and_tops(
    forks: Sequence[Fork], starts: Sequence[int], kept: dict[int, int]
) -> tuple[list[int], list[int]]:
    """Returns the first span of the tree, and the first span of the branch, of each span."""
    roots: list[int] = []
    tops: list[int] = []
    for number, (start, parent) in enumerate(forks):
        above = bisect_right(starts, parent or 0) - 1
        is_branch = above < 0 or start in kept or (parent or 0) <= kept.get(starts[above], 0)
        roots.append(number if above < 0 else roots[above])
        tops.append(number if is_branch else tops[above])
    return roots, tops


def outdated(
    tree: Sequence[Span],
    branches: Sequence[Sequence[Span]],
    shown: Callable[[Sequence[Span]], int],
    most: int,
) -> list[Span]:
    """Returns the branches to archive so that the tree has at most `most` nodes. `shown` counts
    nodes that are not archived yet."""
    left, gone = shown(tree), list[Span]()
    for branch in branches:
        if left <= most:
            break
        left -= shown(branch)
        gone += branch
    return gone
