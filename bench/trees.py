"""Compares a tick of a 40-node tree with a tick of py_trees, in one run and one process.

    python -m bench.trees [--rounds 7] [--seconds 0.2]

Needs `pip install py_trees==2.6.0`, which is not a dependency of the project. Both run the same tree in
the same process in alternating rounds; the leaves only answer.

- waiting: the tick of an agent that waits for its model. The nodes before the leaf have ended, a
  reactive guard is evaluated again, the leaf is RUNNING.
- through: every node is ticked and succeeds, and the tree is reset.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from gateway.control.trees.engine import Child, NodePlan, Run, TickStatus, TreeHost
from gateway.control.trees.loading import load
from gateway.control.trees.nodes import NODES, LeafCall

Shape = tuple[Any, ...]  # kind and children, or the name of a leaf
MARK = 10.0
NO_PY_TREES = (
    "py_trees is not installed, so ticks are not compared with it; "
    "install it with: pip install py_trees==2.6.0"
)
CALIBRATION = 200


def leaves(first: int, count: int) -> list[str]:
    return [f"a{first + number}" for number in range(count)]


# The shape of an agent's loop: set-up, then a guarded turn that calls the model and branches.
SHAPE: Shape = (
    "sequence",
    *leaves(0, 8),
    ("selector", ("sequence", "no0", "a8"), "a9"),
    (
        "sequence",
        *leaves(10, 3),
        (
            "reactive-sequence",
            "a13",
            (
                "sequence",
                "last",
                ("selector", ("sequence", "no1", *leaves(14, 5)), ("sequence", *leaves(19, 4))),
            ),
        ),
        *leaves(23, 2),
    ),
    ("force-success", "a25"),
    *leaves(26, 2),
)


def size(shape: Shape | str) -> int:
    return 1 if isinstance(shape, str) else 1 + sum(size(child) for child in shape[1:])


def as_text(shape: Shape | str) -> str:
    if isinstance(shape, str):
        return f"(action {shape})"
    return f"({shape[0]} {' '.join(as_text(child) for child in shape[1:])})"


def answer(name: str, case: str) -> TickStatus:
    if name == "last" and case == "waiting":
        return TickStatus.RUNNING
    return TickStatus.FAILURE if name.startswith("no") else TickStatus.SUCCESS


def ours(case: str) -> Callable[[], object]:
    def find_act(plan: NodePlan) -> Callable[[LeafCall], TickStatus]:
        status = answer(plan.name, case)
        return lambda _call: status

    plan = load(f'(tree "bench" {as_text(SHAPE)})')
    run = Run(plan, TreeHost(now=time.perf_counter, find_act=find_act), NODES)
    return Child(plan.root, run.frame).tick


def theirs(case: str) -> Callable[[], object]:
    import py_trees  # type: ignore[import-not-found]  # noqa: PLC0415  # optional, see above

    statuses = {
        TickStatus.RUNNING: py_trees.common.Status.RUNNING,
        TickStatus.SUCCESS: py_trees.common.Status.SUCCESS,
        TickStatus.FAILURE: py_trees.common.Status.FAILURE,
    }

    class Leaf(py_trees.behaviour.Behaviour):  # type: ignore[misc]  # no types
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.answer = statuses[answer(name, case)]

        def update(self) -> Any:
            return self.answer

    def made(shape: Shape | str) -> Any:
        if isinstance(shape, str):
            return Leaf(shape)
        kind, *below = shape
        children = [made(child) for child in below]
        if kind == "force-success":
            return py_trees.decorators.FailureIsSuccess(kind, children[0])
        composite = (
            py_trees.composites.Selector if kind == "selector" else py_trees.composites.Sequence
        )
        return composite(kind, memory=kind != "reactive-sequence", children=children)

    tick: Callable[[], object] = made(SHAPE).tick_once
    return tick


def microseconds(tick: Callable[[], object], seconds: float) -> float:
    """Returns the time of a tick over a round of the given length; shorter rounds have more noise."""
    began = time.perf_counter()
    for _ in range(CALIBRATION):
        tick()
    ticks = max(int(seconds * CALIBRATION / (time.perf_counter() - began)), CALIBRATION)
    began = time.perf_counter()
    for _ in range(ticks):
        tick()
    return (time.perf_counter() - began) / ticks * 1e6


def compared(rounds: int, seconds: float) -> Sequence[tuple[str, float, float]]:
    """Yields each case with the microseconds of both ticks. Raises ImportError."""
    found = []
    for case in ("waiting", "through"):
        both = ours(case), theirs(case)
        gc.collect()
        took = [[microseconds(tick, seconds) for tick in both] for _ in range(rounds)]
        mine, other = (statistics.median(column) for column in zip(*took, strict=True))
        found.append((case, mine, other))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each round")
    options = parser.parse_args()
    print(f"{size(SHAPE)} nodes, microseconds a tick, medians of {options.rounds} rounds")
    try:
        found = compared(options.rounds, options.seconds)
    except ImportError:
        print(NO_PY_TREES, file=sys.stderr)
        return 2
    for case, mine, other in found:
        print(f"{case:8}  gateway {mine:7.2f}  py_trees {other:7.2f}  {other / mine:5.1f} times")
    worst = min(other / mine for _, mine, other in found)
    print(f"mark: at least {MARK:.0f} times: {'met' if worst >= MARK else 'missed'}")
    return 0 if worst >= MARK else 1


if __name__ == "__main__":
    sys.exit(main())
