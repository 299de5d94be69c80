"""Rules as they are written: what is heard, when they hold, and what they do then."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.domain.events import Severity

OncePer = Literal["run", "session", "never"]
ActionKind = Literal[
    "notify", "log", "set_state", "emit", "interrupt", "set_model", "add_tool", "remove_tool"
]


@dataclass(frozen=True, slots=True)
class Batch:
    """Which of a rule's notices are told as one, and which are the same again."""

    window_ms: int = 1_000
    max: int = 3
    dedupe: str = ""  # paths with colons between; `type` is the event's
    dedupe_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class Action:
    kind: ActionKind
    value: object  # a template, a name, or the table of set_state
    options: Mapping[str, object] = field(default_factory=dict)  # those that are given


@dataclass(frozen=True, slots=True)
class RuleDef:
    """`is_core`: it is there for every agent, and nobody can switch it off."""

    id: str
    on: tuple[str, ...]
    do: tuple[Action, ...]
    description: str = ""
    is_core: bool = False
    is_enabled: bool = True
    priority: int = 0  # higher ones first
    min_severity: Severity = "debug"
    when: str | None = None
    once_per: OncePer = "never"
    batch: Batch = field(default_factory=Batch)
    source: str = ""  # file:line

    @property
    def keeps_state(self) -> bool:
        """Whether it remembers something from one run of a session to the next."""
        return self.once_per == "session" or any(one.kind == "set_state" for one in self.do)


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """What is wrong with a rule. `path` leads to it; `column` counts from 0 into a text there."""

    path: tuple[str | int, ...]
    message: str
    fix: str
    column: int | None = None


@dataclass(frozen=True, slots=True)
class RefusedRules:
    """A file whose rules are not in force, and why."""

    file: str
    why: str
