"""Whatever a tree looks like: what is kept is connected to its root, and what goes are whole branches."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from gateway.store.pruning import branches_off, kept_spans, outdated

Parents = Mapping[int, int | None]  # by seq, 1, 2, 3, …


@st.composite
def trees(draw: st.DrawFn) -> tuple[Parents, list[int]]:
    """Some trees of one session, and the nodes that must stay, the first of which is HEAD."""
    count = draw(st.integers(1, 24))
    parents: dict[int, int | None] = {1: None}
    for seq in range(2, count + 1):
        before = st.integers(1, seq - 1)
        parents[seq] = draw(st.one_of(st.just(seq - 1), before, st.none()))
    return parents, draw(st.lists(st.integers(1, count), min_size=1, max_size=4))


def path(parents: Parents, seq: int | None) -> list[int]:
    found = []
    while seq is not None:
        found.append(seq)
        seq = parents[seq]
    return found


def spread(spans: Sequence[tuple[int, int]]) -> list[int]:
    return [seq for first, last in spans for seq in range(first, last + 1)]


@given(trees(), st.integers(1, 24))
def test_only_whole_branches_off_the_path_go_until_it_is_small_enough(
    drawn: tuple[Parents, list[int]], most: int
) -> None:
    parents, tips = drawn
    forks = [(seq, up) for seq, up in parents.items() if up is None or up != seq - 1]
    roots = {seq: path(parents, seq)[-1] for seq in parents}
    own = {seq for seq in parents if roots[seq] == roots[tips[0]]}
    must_stay = {seq for tip in tips for seq in path(parents, tip)}

    kept = kept_spans(forks, tips)
    tree, branches = branches_off(forks, tips[0], kept, len(parents))
    gone = spread(outdated(tree, branches, lambda spans: len(spread(spans)), most))

    assert set(spread(list(kept.items()))) == must_stay
    assert sorted(spread(tree)) == sorted(own)
    assert sorted(spread([span for branch in branches for span in branch])) == sorted(
        own - must_stay
    )
    assert len(gone) == len(set(gone))
    left = own - set(gone)
    assert must_stay & own <= left
    assert all(parents[seq] is None or parents[seq] in left for seq in left)
    assert len(left) <= most or left == must_stay & own
