"""Ticks a tree with scripted leaves, and records which leaves are ticked and halted."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.control.trees.engine import (
    RUNNING,
    SKIPPED,
    Act,
    Child,
    Kind,
    NodePlan,
    Run,
    Ticks,
    TickStatus,
    TreeFrame,
    TreeHost,
    TreePlan,
)
from gateway.control.trees.nodes import LEAVES, NODES, LeafCall
from gateway.domain.errors import GatewayError
from gateway.domain.text import meant, quoted

MAX_TICKS = 100_000


class BadScript(GatewayError):
    code = "bad_script"


@dataclass(frozen=True, slots=True)
class LeafScript:
    """The statuses of the leaves, one letter a tick; a leaf starts over after its last letter."""

    leaves: Mapping[str, str]
    ticks: int
    tick_s: float = 0.0  # how far the clock moves before each tick

    @classmethod
    def from_json(cls, data: object) -> "LeafScript":
        """Parses `{"leaves": {"l0": "RSF"}, "ticks": 8, "tick_s"?: 1.5}`. Raises BadScript."""
        if not isinstance(data, dict) or data.keys() - {"leaves", "ticks", "tick_s"}:
            raise BadScript('the script must be {"leaves": {…}, "ticks": N, "tick_s": N}')
        ticks: Any = data.get("ticks")
        leaves, tick_s = data.get("leaves"), data.get("tick_s", 0)
        if not isinstance(leaves, dict):
            raise BadScript('"leaves" must be an object of names and letters')
        for name, letters in leaves.items():
            if not isinstance(letters, str) or not re.fullmatch("[RSFK]+", letters):
                raise BadScript(f"leaf {quoted(str(name))} must have letters of R, S, F and K")
        for number, kinds in ((ticks, {int}), (tick_s, {int, float})):
            if type(number) not in kinds or not 0 <= number <= MAX_TICKS:
                bounds = f"from 0 to {MAX_TICKS}"
                raise BadScript(f'"ticks" must be a whole number, "tick_s" a number, {bounds}')
        return cls(leaves, ticks, float(tick_s))


@dataclass(slots=True)
class TickTrace:
    status: str = ""
    ticked: list[list[str]] = field(default_factory=list)  # names and letters
    halted: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Trace:
    ticks: list[TickTrace]
    final_halt: list[str]


@dataclass(slots=True)
class _ScriptedLeaves:
    """The scripted leaves and the record of their ticks."""

    script: LeafScript
    now: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    tick: TickTrace = field(default_factory=TickTrace)

    def find_act(self, plan: NodePlan) -> Act:
        leaves, label = self.script.leaves, plan.label
        if label not in leaves:
            raise BadScript(f'the script has no leaf "{label}"{meant(label, leaves)}')

        def act(_call: LeafCall) -> TickStatus:
            self.counts[label] += 1
            return TickStatus(leaves[label][(self.counts[label] - 1) % len(leaves[label])])

        return act

    def recorded(self, kind: Kind) -> Kind:
        """Wraps the kind of a leaf to record its ticks and halts."""

        def ticks(plan: NodePlan, frame: TreeFrame) -> Ticks:
            leaf, is_running = Child(plan, frame, kind), False
            try:
                while True:
                    status = leaf.tick()
                    self.tick.ticked.append([plan.label, status.value])
                    if status is not SKIPPED:
                        is_running = status is RUNNING
                    yield status
            finally:
                if is_running:
                    leaf.halt()
                    self.tick.halted.append(plan.label)

        return ticks


def trace(plan: TreePlan, script: LeafScript) -> Trace:
    """Ticks the body of the tree, without `:finally`; the body restarts when it has ended.

    Raises BadScript if a leaf is not in the script.
    """
    leaves = _ScriptedLeaves(script)
    recorded = {shape: leaves.recorded(kind) for shape, kind in LEAVES.items()}
    host = TreeHost(now=lambda: leaves.now, find_act=leaves.find_act)
    run = Run(plan, host, {**NODES, **recorded})
    root, state, ticks = Child(plan.root, run.frame), run.state, list[TickTrace]()
    state.is_ticking = True  # so that every closed node counts as halted
    for _ in range(script.ticks):
        leaves.now += script.tick_s
        leaves.tick = TickTrace()
        ticks.append(leaves.tick)
        state.work, state.ticks = 0, state.ticks + 1
        leaves.tick.status = root.tick().value
    leaves.tick = TickTrace()
    root.halt()
    return Trace(ticks, leaves.tick.halted)
