"""Runs a tree against scripted leaves and notes every tick: what was ticked, and what was halted."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from gateway.control.trees.calls import Call
from gateway.control.trees.nodes import Node
from gateway.control.trees.plan import NodePlan, TreePlan
from gateway.control.trees.registry import Act
from gateway.control.trees.run import Host, Run
from gateway.control.trees.status import IDLE, SKIPPED, Status
from gateway.control.words import meant, short
from gateway.domain.errors import GatewayError

MAX_TICKS = 100_000


class BadScript(GatewayError):
    code = "bad_script"


@dataclass(frozen=True, slots=True)
class Script:
    """The i-th tick of a leaf gives letter i, and begins again after the last."""

    leaves: Mapping[str, str]
    ticks: int
    tick_s: float = 0.0  # how far the clock moves before each tick

    @classmethod
    def from_json(cls, data: object) -> "Script":
        """`{"leaves": {"l0": "RSF"}, "ticks": 8, "tick_s"?: 1.5}`. Raises BadScript."""
        if not isinstance(data, dict) or data.keys() - {"leaves", "ticks", "tick_s"}:
            raise BadScript('a script is {"leaves": {…}, "ticks": N, "tick_s": N}')
        leaves, ticks, tick_s = data.get("leaves"), data.get("ticks"), data.get("tick_s", 0)
        if not isinstance(leaves, dict):
            raise BadScript('"leaves" maps names to letters')
        for name, letters in leaves.items():
            if not isinstance(letters, str) or not re.fullmatch("[RSFK]+", letters):
                raise BadScript(f'leaf "{short(str(name))}" needs letters out of R, S, F and K')
        return cls(leaves, int(_number(ticks, int)), float(_number(tick_s, int, float)))


def _number(number: object, *kinds: type[float]) -> float:
    if type(number) not in kinds or not 0 <= cast(float, number) <= MAX_TICKS:
        raise BadScript(f'"ticks" and "tick_s" are numbers from 0 to {MAX_TICKS}, ticks whole ones')
    return cast(float, number)


@dataclass(slots=True)
class TickTrace:
    status: str = ""
    ticked: list[list[str]] = field(default_factory=list)  # names and letters
    halted: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Trace:
    ticks: list[TickTrace]
    final_halt: list[str]


class _Watched(Node):
    """A leaf, and who writes down what it does."""

    def __init__(self, leaf: Node, stage: "_Stage") -> None:
        self.leaf, self.stage, self.status = leaf, stage, IDLE

    def tick(self) -> Status:
        status = self.leaf.tick()
        self.stage.current.ticked.append([self.leaf.plan.label, status.value])
        if status is not SKIPPED:
            self.status = status
        return status

    def halt(self) -> None:
        self.leaf.halt()
        self.stage.current.halted.append(self.leaf.plan.label)
        self.status = IDLE


@dataclass(slots=True)
class _Stage:
    """The scripted leaves."""

    script: Script
    now: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    current: TickTrace = field(default_factory=TickTrace)

    def find_act(self, plan: NodePlan) -> Act:
        leaves, label = self.script.leaves, plan.label
        if label not in leaves:
            raise BadScript(f'the script has no leaf "{label}"{meant(label, leaves)}')

        def act(_call: Call) -> Status:
            self.counts[label] += 1
            return Status(leaves[label][(self.counts[label] - 1) % len(leaves[label])])

        return act


def trace(plan: TreePlan, script: Script) -> Trace:
    """Ticks the tree itself, without `:finally`; when it is done it begins again.

    Raises BadScript if a leaf is not in the script.
    """
    stage = _Stage(script)
    host = Host(
        now=lambda: stage.now,
        find_act=stage.find_act,
        watched=lambda leaf: _Watched(leaf, stage),
    )
    run = Run(replace(plan, final=None), host)
    ticks: list[TickTrace] = []
    for _ in range(script.ticks):
        stage.now += script.tick_s
        stage.current = TickTrace()
        stage.current.status = run.tick_root().value
        ticks.append(stage.current)
    stage.current = TickTrace()
    run.halt_root()
    return Trace(ticks, stage.current.halted)
