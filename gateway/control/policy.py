"""Whether a run goes on, and whether it repeats itself."""

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
    """The same for the same tool with the same arguments, however they are written."""
    try:
        value = json.loads(arguments.strip() or "{}")
        canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        canonical = arguments.strip()
    return f"{tool}:{digest(canonical)}"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A call that gave this result so often, turn after turn, and was refused or not since."""

    signature: str
    result: str
    count: int = 1
    was_refused: bool = False


@dataclass(frozen=True, slots=True)
class LoopState:
    """The turns and calls of a run by which it is noticed that the run repeats itself."""

    repeats: tuple[Repeat, ...] = ()
    turns: tuple[str, ...] = ()  # signatures, the last ones
    reported: frozenset[str] = frozenset()
    is_stuck: bool = False  # it asked once more for what was refused

    def after_result(self, signature: str, result: str) -> "LoopState":
        others = tuple(one for one in self.repeats if one.signature != signature)
        same = (one for one in self.repeats if (one.signature, one.result) == (signature, result))
        count = 1 + next((one.count for one in same), 0)
        return replace(self, repeats=(*others, Repeat(signature, result, count)))

    def after_calls(self, calls: Mapping[str, str], limits: Limits) -> "LoopFound":
        """Looks for repetitions before the calls of a turn, by id with their signatures, are
        executed. A call that is left out once is counted from the start when it comes again."""
        most, asked = limits.no_progress_repeats, sorted(calls.values())
        turn = "|".join(asked)
        turns = (*self.turns, turn)[-limits.loop_window :]
        is_loop = turns.count(turn) >= limits.loop_threshold and turn not in self.reported
        fruitless = {one.signature for one in self.repeats if one.count >= most}
        refused = frozenset(call for call, mark in calls.items() if mark in fruitless)
        kept = [one for one in self.repeats if one.signature in asked]
        is_stuck = self.is_stuck or any(one.was_refused for one in kept if one.count >= most)
        repeats = tuple(replace(one, was_refused=one.count >= most) for one in kept)
        reported = self.reported | {turn} if is_loop else self.reported
        return LoopState(repeats, turns, reported, is_stuck), turn if is_loop else None, refused


# The state after it, the signature of the turn if a loop is to be reported, ids of fruitless calls.
LoopFound = tuple[LoopState, str | None, frozenset[str]]


AgentConfig = Limits
RECENT_ACTIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """A run as a policy sees it. Never changed: `evolve` gives the next one.

    `start_time` is for people; how long it took comes from a clock that does not jump.
    """

    user_id: str
    config: AgentConfig
    project_id: str = "default"
    turn: int = 0  # turns that are over
    tokens_used: int = 0
    start_time: float = 0.0
    started: float = 0.0
    now: float = 0.0
    recent_actions: tuple[str, ...] = ()
    termination_reason: str | None = None
    is_cancelled: bool = False
    warnings: frozenset[str] = frozenset()  # what was warned of; once a run
    consecutive_errors: int = 0  # turns in which no call succeeded
    judged: tuple[int, bool] = (-1, False)  # the turn of the last result; did one of its calls work
    circles: LoopState = LoopState()
    extensions: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        is_sound = self.turn >= 0 and self.tokens_used >= 0 and self.started <= self.now
        if not is_sound or not _is_whole(self) or len(self.recent_actions) > RECENT_ACTIONS:
            raise ValueError(f"no run can be in this state: {self!r:.1000}")
        if not isinstance(self.extensions, MappingProxyType):  # and whoever gave it may change it
            object.__setattr__(self, "extensions", MappingProxyType(dict(self.extensions)))

    def evolve(self, **changes: Any) -> "AgentState":
        """Raises ValueError for a run that has ended already."""
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


def _is_whole(state: AgentState) -> bool:
    """Checks the types of a state that a policy gave: its values are sorted and shown later."""
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
    """Decides whether a run goes on. It keeps no state between two calls. It may tighten limits,
    never lift them: what it does not stop, the turn stops."""

    def should_continue(self, state: AgentState) -> tuple[bool, str]:
        """Whether another turn may begin, and if not, why not."""
        ...

    def on_turn_start(self, state: AgentState) -> AgentState: ...

    def on_tool_result(self, state: AgentState, result: Mapping[str, object]) -> AgentState:
        """`result`: tool, call_id, signature, digest, is_error."""
        ...

    def get_config(self) -> AgentConfig: ...


def warning_at(most: int, percent: int) -> int:
    """The value from which on to warn: at least 1."""
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
        """The calls of one turn count as one error, and only if none of them worked."""
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


BEARABLE = 2  # or what can be set, if that is less: a run gets nowhere with limits below


def tightened(limits: Limits, wanted: Limits) -> Limits:
    """The limits that a policy wants, but none looser than the agent's, and none so tight that no
    run could answer.

    Raises ValueError for what is no limit at all."""
    if wanted is limits:
        return limits

    def stricter(name: str) -> Any:
        own, other = getattr(limits, name), getattr(wanted, name)
        if type(other) not in {int, type(own)}:
            raise ValueError(f"{name} cannot be {other!r:.100}")
        least, most = BOUNDS[name]
        if name == "loop_window":  # the longer it is, the more loops it shows
            return max(own, min(other, int(most)))
        return max(min(own, other), min(own, least, BEARABLE))

    return Limits(**{name: stricter(name) for name in Limits.__slots__})


DECISION_TREES = "exogate.decision_trees"  # the entry points under which others offer theirs
MakeDecisionTree = Callable[[AgentConfig], DecisionTree]
DecisionTrees = Mapping[str, MakeDecisionTree]  # by name
OURS: DecisionTrees = MappingProxyType({"default": DefaultDecisionTree})


def with_others(others: DecisionTrees) -> DecisionTrees:
    """Ours first, whose name no other can take; then the others by name."""
    return {**OURS, **dict(sorted(others.items())), **OURS}


def decision_of(by_agent: str, by_tree: str | None) -> str:
    """The name that the agent says; the tree's, if the agent says nothing."""
    return by_tree or by_agent if by_agent == "default" else by_agent
