"""Trees on a stage: scripted leaves, or functions of the test."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from gateway.control.trees.engine import (
    LeafRegistry,
    PendingLeaf,
    Run,
    TreeHost,
    TreeOutcome,
    TreePlan,
)
from gateway.control.trees.loading import load
from gateway.control.trees.nodes import NODES, LeafCall
from gateway.control.trees.reader import TreeInvalid, TreeProblem
from gateway.control.trees.tracing import LeafScript, TickTrace, trace


class Pending(PendingLeaf):
    """Says when it is halted."""

    def __init__(self, call: LeafCall, on_halt: Callable[[], object] = lambda: None) -> None:
        super().__init__(call.state)
        self._on_halt = on_halt

    def halt(self) -> None:
        super().halt()
        self._on_halt()


def line(tick: TickTrace) -> str:
    """`R l0R l1S -l2`: the root is RUNNING, l0 too, l1 succeeded, l2 was halted."""
    ticked = [f"{name}{status}" for name, status in tick.ticked]
    return " ".join([tick.status, *ticked, *(f"-{name}" for name in tick.halted)])


def traced(node: str, ticks: int, *, tick_s: float = 0.0, **leaves: str) -> list[str]:
    """One line a tick, of a tree with this node; what is halted at the end comes as `end …`."""
    plan = load(f'(tree "t" {node})')
    found = trace(plan, LeafScript(leaves, ticks, tick_s))
    lines = [line(tick) for tick in found.ticks]
    return [*lines, f"end {' '.join(found.final_halt)}"] if found.final_halt else lines


def problems(text: str, registry: LeafRegistry | None = None) -> list[TreeProblem]:
    """What loading says, whether it loads or not."""
    try:
        return list(load(text, "t.bt", registry).warnings)
    except TreeInvalid as error:
        return list(error.problems)


def codes(text: str, registry: LeafRegistry | None = None) -> list[str]:
    return [problem.code for problem in problems(text, registry)]


def refused(text: str, registry: LeafRegistry | None = None) -> list[TreeProblem]:
    """The problems of a tree that must not load."""
    with pytest.raises(TreeInvalid) as caught:
        load(text, "t.bt", registry)
    return list(caught.value.problems)


@dataclass
class Stage:
    """A registry for the test's functions, and a clock that stands still."""

    registry: LeafRegistry = field(default_factory=LeafRegistry)
    roots: Mapping[str, object] = field(default_factory=dict)
    now: float = 0.0
    events: list[tuple[str, object]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def offer(self, name: str, act: Callable[[LeafCall], object], **about: object) -> None:
        self.registry.action(name, **about)(act)  # type: ignore[arg-type]  # as a test says it

    def logs(self, *names: str) -> None:
        """Functions that succeed and leave their name in the log."""
        for name in names:
            self.offer(name, lambda call: self.log.append(call.plan.label))

    def asks(self, name: str) -> list[PendingLeaf]:
        """A function that waits for its answer; gives the list of what is waited for."""
        open_ones: list[PendingLeaf] = []

        def ask(call: LeafCall) -> PendingLeaf:
            open_ones.append(Pending(call, lambda: self.log.append(f"{call.plan.label} halted")))
            return open_ones[-1]

        self.offer(name, ask)
        return open_ones

    def plan(self, text: str) -> TreePlan:
        return load(
            text if text.startswith("(tree") else f'(tree "t" {text})', "t.bt", self.registry
        )

    def run(self, text: str, **inputs: object) -> Run:
        host = TreeHost(
            now=lambda: self.now,
            roots=self.roots,
            emit=lambda event, payload: self.events.append((event, payload)),
        )
        run = Run(self.plan(text), host, NODES)
        run.frame.values |= inputs
        return run


def ended(run: Run, within: int = 2_000) -> TreeOutcome:
    """Steps to the end; a run that waits for something outside is a mistake of the test."""
    for _ in range(within):
        if run.step():
            assert run.outcome is not None
            return run.outcome
        assert run.state.is_awake, "it waits"
    raise AssertionError(f"not over after {within} ticks")
