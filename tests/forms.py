"""Tests of many cases have two forms: `pytest` runs the bounded one, `pytest --long` the long one.

The bounded form plays the same cases in every run; the long one looks for new ones.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from hypothesis import settings

Case = TypeVar("Case")

FEWEST = 5


def register() -> None:
    # Costs are counted; a clock would fail on a busy machine.
    settings.register_profile("bounded", deadline=None, max_examples=20, derandomize=True)
    settings.register_profile("long", deadline=None, max_examples=100)


def examples(count: int) -> int:
    """`count` in the long form, a fifth of it in the bounded one."""
    return max(min(count, FEWEST), count * settings().max_examples // 100)


def each(cases: Iterable[Case]) -> Iterator[Case]:
    """The cases that one gateway is tried with, one after the other; `case` in a failure says at which."""
    for case in cases:
        print(f"case: {case!r}"[:500])  # noqa: T201  # pytest shows it with a failure
        yield case


def is_long() -> bool:
    return settings.get_current_profile_name() == "long"


def keep(name: str, report: str) -> None:
    """What the long form of a test found stays with the figures of the benchmarks."""
    if is_long():
        folder = Path(__file__).parents[1] / "bench" / "long"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.txt").write_text(report + "\n", encoding="utf-8")
