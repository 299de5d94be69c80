"""Runs a tree against scripted leaves and notes every tick: what was ticked, and what was halted."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from gateway.control.trees.calls import Call
from gateway.control.trees.plan import NodePlan, TreePlan
from gateway.control.trees.registry import Act
from gateway.control.trees.run import Host, Run
from gateway.control.trees.status import Status
from gateway.control.words import meant, short
from gateway.domain.errors import GatewayError

MAX_TICKS = 100_000
_SCRIPTED = frozenset({"action", "condition", "llm-call", "tool-call", "subagent", "decorator"})


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
        _check_number("ticks", ticks, (int,))
        _check_number("tick_s", tick_s, (int, float))
        return cls(leaves, cast(int, ticks), float(cast(float, tick_s)))


def _check_number(name: str, number: object, kinds: tuple[type[float], ...]) -> None:
    if type(number) not in kinds or not 0 <= cast(float, number) <= MAX_TICKS:
        raise BadScript(f'"{name}" is a number from 0 to {MAX_TICKS}')


@dataclass(slots=True)
class TickTrace:
    status: str = ""
    ticked: list[tuple[str, str]] = field(default_factory=list)
    halted: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        ticked = [list(one) for one in self.ticked]
        return {"status": self.status, "ticked": ticked, "halted": self.halted}


@dataclass(slots=True)
class Trace:
    ticks: list[TickTrace]
    final_halt: list[str]

    def as_json(self) -> dict[str, object]:
        return {"ticks": [tick.as_json() for tick in self.ticks], "final_halt": self.final_halt}


@dataclass(slots=True)
class _Stage:
    """The scripted leaves, and who watches them."""

    script: Script
    now: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    current: TickTrace = field(default_factory=TickTrace)

    def find_act(self, plan: NodePlan) -> Act | None:
        letters = self.script.leaves.get(plan.label)
        if letters is None:
            names = self.script.leaves
            raise BadScript(f'the script has no leaf "{plan.label}"{meant(plan.label, names)}')

        def act(_call: Call) -> Status:
            count = self.counts.get(plan.label, 0)
            self.counts[plan.label] = count + 1
            return Status(letters[count % len(letters)])

        return act if plan.kind in _SCRIPTED else None

    def ticked(self, plan: NodePlan, status: Status) -> None:
        self.current.ticked.append((plan.label, status.value))

    def halted(self, plan: NodePlan) -> None:
        self.current.halted.append(plan.label)


def trace(plan: TreePlan, script: Script) -> Trace:
    """Ticks the tree itself, without `:finally`; when it is done it begins again.

    Raises BadScript if a leaf is not in the script.
    """
    stage = _Stage(script)
    run = Run(plan, Host(now=lambda: stage.now, find_act=stage.find_act), tracer=stage)
    ticks: list[TickTrace] = []
    for _ in range(script.ticks):
        stage.now += script.tick_s
        stage.current = TickTrace()
        stage.current.status = run.tick_root().value
        ticks.append(stage.current)
    stage.current = TickTrace()
    run.halt_root()
    return Trace(ticks, stage.current.halted)
