"""One run of a tree: ticks, wake-ups, the interrupt, and `:finally`. It never waits for anything."""

import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.control.trees.nodes import LEAVES, NODES, Child, Kind, LeafCall, Ticks
from gateway.control.trees.plan import (
    FAILURE,
    RUNNING,
    SKIPPED,
    SUCCESS,
    Act,
    NodePlan,
    TickStatus,
    TreeFrame,
    TreeHost,
    TreePlan,
    TreeState,
    defaults,
)
from gateway.domain.errors import GatewayError
from gateway.domain.text import meant, quoted

log = logging.getLogger(__name__)

STUCK = 1_000  # ticks in a row that nothing but the tree itself asked for

Reason = Literal["done", "interrupted", "stuck", "max_ticks", "internal_error"]


@dataclass(frozen=True, slots=True)
class TreeOutcome:
    """How a run ended. `failure` says which node failed last, and why."""

    status: TickStatus
    reason: Reason
    detail: str = ""
    failure: Mapping[str, object] | None = None


class Run:
    """Call `step` until it says True; in between wait for something outside or for `next_deadline`,
    unless `state.is_awake`."""

    def __init__(self, plan: TreePlan, host: TreeHost, kinds: Mapping[str, Kind] = NODES) -> None:
        self.plan, self.host = plan, host
        self.state = TreeState(host, kinds, plan.file, plan.watched, plan.subtrees)
        self.frame = TreeFrame(self.state, defaults(plan), plan.types)
        self.outcome: TreeOutcome | None = None
        self._body_ended: TreeOutcome | None = None
        self.is_ending = False  # `:finally` is what runs now
        self._yields = 0  # ticks in a row that only the tree asked for
        self._stop: str | None = None  # why it was interrupted in mid-tick
        self._root = Child(plan.root, self.frame)  # the body, and then `:finally`

    def next_deadline(self) -> float | None:
        return min(self.state.timers.values(), default=None)

    def step(self) -> bool:
        """One tick from the root. True if the run is over; then `outcome` is set."""
        if self.outcome is not None:
            return True
        state, has_heard = self.state, self.state.has_heard
        state.has_heard = state.is_awake = False
        state.ticks += 1
        state.is_ticking = True
        try:
            status = self._root.tick()
        except Exception as error:  # a node that breaks ends the run, and says so
            if not isinstance(error, GatewayError):
                log.exception("tree.broke", extra={"tree": self.plan.name})
            self._abort("internal_error", str(error) or type(error).__name__)
            return self.outcome is not None
        finally:
            state.is_ticking = False
        if self._stop is not None:
            self._abort("interrupted", self._stop)
        elif status is not RUNNING:
            self._ended(status, "done")
        elif state.is_awake or self._yields or self.plan.max_ticks is not None:
            self._go_on(has_heard=has_heard)
        return self.outcome is not None

    def _go_on(self, *, has_heard: bool) -> None:
        self._yields = 0 if has_heard or not self.state.is_awake else self._yields + 1
        limit = self.plan.max_ticks
        if self._yields >= STUCK:
            self._abort("stuck", f"{STUCK} ticks in a row without anything happening")
        elif limit is not None and self.state.ticks >= limit and not self.is_ending:
            self._abort("max_ticks", f"not done after {limit} ticks")

    def interrupt(self, reason: str) -> None:
        """Halts what runs; `:finally` is what is left to do."""
        if self.state.is_ticking:
            self._stop = None if self.is_ending else self._stop or reason
        elif self._body_ended is None and self.outcome is None:
            self._abort("interrupted", reason)

    def give_up(self) -> None:
        """Halts even `:finally`, which has had its time."""
        if self.outcome is None:
            self.interrupt("given up")
            self._halt()
            self.outcome = self._body_ended or TreeOutcome(FAILURE, "interrupted")
            self.frame.kept.clear()
            log.warning("tree.finally_cut", extra={"tree": self.plan.name})

    def _abort(self, reason: Reason, detail: str) -> None:
        self._stop = None
        self._halt()
        self._ended(FAILURE, reason, detail)

    def _halt(self) -> None:
        self.state.is_ticking = True
        try:
            self._root.halt()
        except GatewayError:
            log.exception("tree.halt_broke", extra={"tree": self.plan.name})
        finally:
            self.state.is_ticking = False
        self.state.timers.clear()

    def _ended(self, status: TickStatus, reason: Reason, detail: str = "") -> None:
        """Of the body, and then of `:finally`, whose own end changes nothing."""
        self._yields = self.state.work = 0
        failure = self.state.failure if status is FAILURE else None
        if self._body_ended is None:
            self._body_ended, self.is_ending = TreeOutcome(status, reason, detail, failure), True
            if self.plan.final is not None:
                self._root = Child(self.plan.final, self.frame)
                self.state.is_awake = True
                return
        elif status is not SUCCESS:
            extra = {"tree": self.plan.name, "detail": detail or str(failure)}
            log.warning("tree.finally_failed", extra=extra)
        self.outcome = self._body_ended
        self.frame.kept.clear()  # they refer to the frame; without them it is freed at once


MAX_TICKS = 100_000


class BadScript(GatewayError):
    code = "bad_script"


@dataclass(frozen=True, slots=True)
class LeafScript:
    """The i-th tick of a leaf gives letter i, and begins again after the last."""

    leaves: Mapping[str, str]
    ticks: int
    tick_s: float = 0.0  # how far the clock moves before each tick

    @classmethod
    def from_json(cls, data: object) -> "LeafScript":
        """`{"leaves": {"l0": "RSF"}, "ticks": 8, "tick_s"?: 1.5}`. Raises BadScript."""
        if not isinstance(data, dict) or data.keys() - {"leaves", "ticks", "tick_s"}:
            raise BadScript('a script is {"leaves": {…}, "ticks": N, "tick_s": N}')
        ticks: Any = data.get("ticks")
        leaves, tick_s = data.get("leaves"), data.get("tick_s", 0)
        if not isinstance(leaves, dict):
            raise BadScript('"leaves" maps names to letters')
        for name, letters in leaves.items():
            if not isinstance(letters, str) or not re.fullmatch("[RSFK]+", letters):
                raise BadScript(f"leaf {quoted(str(name))} needs letters out of R, S, F and K")
        for number, kinds in ((ticks, {int}), (tick_s, {int, float})):
            if type(number) not in kinds or not 0 <= number <= MAX_TICKS:
                what = '"ticks" and "tick_s" are numbers'
                raise BadScript(f"{what} from 0 to {MAX_TICKS}, ticks whole ones")
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
    """What leaves answer, and what they did."""

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

    def traced(self, kind: Kind) -> Kind:
        """Writes down what a leaf of this kind does."""

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
    """Ticks the tree itself, without `:finally`; when it is done it begins again.

    Raises BadScript if a leaf is not in the script.
    """
    leaves = _ScriptedLeaves(script)
    traced = {shape: leaves.traced(kind) for shape, kind in LEAVES.items()}
    host = TreeHost(now=lambda: leaves.now, find_act=leaves.find_act)
    run = Run(plan, host, {**NODES, **traced})
    root, state, ticks = Child(plan.root, run.frame), run.state, list[TickTrace]()
    state.is_ticking = True  # all the time: what is closed is halted
    for _ in range(script.ticks):
        leaves.now += script.tick_s
        leaves.tick = TickTrace()
        ticks.append(leaves.tick)
        state.work, state.ticks = 0, state.ticks + 1
        leaves.tick.status = root.tick().value
    leaves.tick = TickTrace()
    root.halt()
    return Trace(ticks, leaves.tick.halted)
