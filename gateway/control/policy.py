"""Decides whether a run continues, and detects a run that repeats itself."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from gateway.domain.agents import BOUNDS, Limits


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def signature(tool: str, arguments: str) -> str:
    """Returns a digest of a call; equal for equal arguments, whatever their JSON formatting."""
    try:
        value = json.loads(arguments.strip() or "{}")
        canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        canonical = arguments.strip()
    return f"{tool}:{digest(canonical)}"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A call that gave the same result in `count` turns in a row."""

    signature: str
    result: str
    count: int = 1
    was_refused: bool = False


@dataclass(frozen=True, slots=True)
class LoopState:
    """The recent turns and calls of a run, from which repetition is detected."""

    repeats: tuple[Repeat, ...] = ()
    turns: tuple[str, ...] = ()  # signatures of the last turns
    reported: frozenset[str] = frozenset()  # signatures of loops
    is_stuck: bool = False  # the model repeated a call that was refused

    def after_result(self, signature: str, result: str) -> "LoopState":
        others = tuple(one for one in self.repeats if one.signature != signature)
        same = (one for one in self.repeats if (one.signature, one.result) == (signature, result))
        count = 1 + next((one.count for one in same), 0)
        return replace(self, repeats=(*others, Repeat(signature, result, count)))

    def after_calls(self, calls: Mapping[str, str], limits: Limits) -> "LoopFound":
        """Detects repetition before the calls of a turn (id -> signature) are executed. The count of a
        call restarts if a turn omits it."""
        most, signatures = limits.no_progress_repeats, sorted(calls.values())
        turn = "|".join(signatures)
        turns = (*self.turns, turn)[-limits.loop_window :]
        is_loop = turns.count(turn) >= limits.loop_threshold and turn not in self.reported
        fruitless = {one.signature for one in self.repeats if one.count >= most}
        refused = frozenset(call for call, mark in calls.items() if mark in fruitless)
        kept = [one for one in self.repeats if one.signature in signatures]
        is_stuck = self.is_stuck or any(one.was_refused for one in kept if one.count >= most)
        repeats = tuple(replace(one, was_refused=one.count >= most) for one in kept)
        reported = self.reported | {turn} if is_loop else self.reported
        return LoopState(repeats, turns, reported, is_stuck), turn if is_loop else None, refused


# The next state, the signature of the turn if it is a loop to report, ids of the calls to refuse.
LoopFound = tuple[LoopState, str | None, frozenset[str]]


AgentConfig = Limits
RECENT_ACTIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """The state of a run that a policy sees. It is immutable: `evolve` returns the next one.

    `start_time` is wall-clock time, for display; `started` and `now` come from a monotonic clock.
    """

    user_id: str
    config: AgentConfig
    project_id: str = "default"
    turn: int = 0  # completed turns
    tokens_used: int = 0
    start_time: float = 0.0
    started: float = 0.0
    now: float = 0.0
    recent_actions: tuple[str, ...] = ()
    termination_reason: str | None = None
    is_cancelled: bool = False
    warnings: frozenset[str] = frozenset()  # limits whose warning was given; each once per run
    consecutive_errors: int = 0  # turns in which every call failed
    judged: tuple[int, bool] = (-1, False)  # turn of the last result; did one of its calls succeed
    circles: LoopState = LoopState()
    extensions: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        is_sound = self.turn >= 0 and self.tokens_used >= 0 and self.started <= self.now
        if not is_sound or not _is_well_typed(self) or len(self.recent_actions) > RECENT_ACTIONS:
            raise ValueError(f"the state is invalid: {self!r:.1000}")
        if not isinstance(self.extensions, MappingProxyType):  # the caller may change its mapping
            object.__setattr__(self, "extensions", MappingProxyType(dict(self.extensions)))

    def evolve(self, **changes: Any) -> "AgentState":
        """Returns a changed copy. Raises ValueError if the run has ended."""
        if self.is_terminal:
            raise ValueError(f"the run has ended: {self.termination_reason}")
        return replace(self, **changes)

    @property
    def is_terminal(self) -> bool:
        return self.termination_reason is not None

    @property
    def elapsed_seconds(self) -> float:
        return self.now - self.started

    @property
    def iteration_percent(self) -> float:
        return 100 * self.turn / self.config.max_iterations

    @property
    def token_percent(self) -> float:
        return 100 * self.tokens_used / self.config.token_budget


def _is_well_typed(state: AgentState) -> bool:
    """True if the values of a state from a policy have types that can be sorted and shown."""
    return (
        isinstance(state.config, AgentConfig)
        and isinstance(state.recent_actions, tuple)
        and isinstance(state.warnings, frozenset)
        and isinstance(state.circles, LoopState)
        and isinstance(state.consecutive_errors, int)
        and (state.termination_reason is None or isinstance(state.termination_reason, str))
        and all(isinstance(word, str) for word in (*state.recent_actions, *state.warnings))
    )


class DecisionTree(Protocol):
    """Decides whether a run continues. It keeps no state between calls. It can tighten limits but not
    lift them: the turn enforces the agent's own limits."""

    def should_continue(self, state: AgentState) -> tuple[bool, str]:
        """Returns whether another turn may begin, and the reason if not."""
        ...

    def on_turn_start(self, state: AgentState) -> AgentState: ...

    def on_tool_result(self, state: AgentState, result: Mapping[str, object]) -> AgentState:
        """Records a result with the keys tool, call_id, signature, digest and is_error."""
        ...

    def get_config(self) -> AgentConfig: ...


def warning_at(most: int, percent: int) -> int:
    """Returns the value from which a limit is warned about, at least 1."""
    return max(1, most * percent // 100)


@dataclass(frozen=True, slots=True)
class DefaultDecisionTree:
    config: AgentConfig

    def should_continue(self, state: AgentState) -> tuple[bool, str]:
        limits = self.config
        reasons = {
            "cancelled": state.is_cancelled,
            "max_iterations": state.turn >= limits.max_iterations,
            "token_budget": state.tokens_used >= limits.token_budget,
            "timeout": state.now - state.started >= limits.timeout_seconds,
            "no_progress": state.circles.is_stuck,
            "error_limit": state.consecutive_errors >= limits.error_limit,
        }
        for reason, holds in reasons.items():
            if holds:
                return False, reason
        return True, ""

    def on_turn_start(self, state: AgentState) -> AgentState:
        limits, warned = self.config, set[str]()
        if state.turn + 1 >= warning_at(limits.max_iterations, limits.soft_warning_percent):
            warned.add("max_iterations")
        if state.tokens_used >= warning_at(limits.token_budget, limits.token_warning_percent):
            warned.add("token_budget")
        return state if warned <= state.warnings else state.evolve(warnings=state.warnings | warned)

    def on_tool_result(self, state: AgentState, result: Mapping[str, object]) -> AgentState:
        """Records a result. A turn counts as one error, and only if all of its calls failed."""
        signature, digest = str(result["signature"]), str(result["digest"])
        errors, judged = state.consecutive_errors, state.judged
        if not result["is_error"]:
            errors, judged = 0, (state.turn, True)
        elif judged[0] != state.turn:
            errors, judged = errors + 1, (state.turn, False)
        return state.evolve(
            recent_actions=(*state.recent_actions, signature)[-RECENT_ACTIONS:],
            circles=state.circles.after_result(signature, digest),
            consecutive_errors=errors,
            judged=judged,
        )

    def get_config(self) -> AgentConfig:
        return self.config


LEAST_USABLE = 2  # a run with lower limits cannot answer; the configured bound, if that is lower


def tighten(limits: Limits, wanted: Limits) -> Limits:
    """Returns the limits that a policy wants, none looser than the agent's and none below
    LEAST_USABLE. Raises ValueError for a value that is not a limit."""
    if wanted is limits:
        return limits

    def stricter(name: str) -> Any:
        own, other = getattr(limits, name), getattr(wanted, name)
        if type(other) not in {int, type(own)}:
            raise ValueError(f"{name} cannot be {other!r:.100}")
        least, most = BOUNDS[name]
        if name == "loop_window":  # the longer it is, the more loops it shows
            return max(own, min(other, int(most)))
        return max(min(own, other), min(own, least, LEAST_USABLE))

    return Limits(**{name: stricter(name) for name in Limits.__slots__})


DECISION_TREES = "exogate.decision_trees"  # group of the entry points of other packages
MakeDecisionTree = Callable[[AgentConfig], DecisionTree]
DecisionTrees = Mapping[str, MakeDecisionTree]  # by name
BUILT_IN: DecisionTrees = MappingProxyType({"default": DefaultDecisionTree})


def add_built_in(others: DecisionTrees) -> DecisionTrees:
    """Returns the built-in trees, whose names others cannot replace, and the others by name."""
    return {**BUILT_IN, **dict(sorted(others.items())), **BUILT_IN}


def choose_decision(by_agent: str, by_tree: str | None) -> str:
    """Returns the agent's decision tree, or the behaviour tree's if the agent has the default."""
    return by_tree or by_agent if by_agent == "default" else by_agent
