"""Every kind of node: how many children it has, which values and options, and what each of them is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Want = Literal[
    "any",
    "text",
    "int",
    "duration",
    "list",
    "map",
    "expression",
    "word",  # a symbol, keyword or string that is a name
    "count",  # a number, `all` or `one`
    "target",  # a key that is written
    "keys",  # a vector of keywords that are keys, written too
    "flag",  # a keyword without a value
    "cases",  # a map from keywords to nodes
    "binding",  # a map from a subtree's keys to values
]
Naming = Literal["may", "must"]  # whether a bare symbol names it
MANY = 5_000


@dataclass(frozen=True, slots=True)
class Kind:
    least: int
    most: int
    values: tuple[Want, ...] = ()
    needed: int = 0  # how many of the values
    options: Mapping[str, Want] = field(default_factory=dict)
    named: Naming = "may"
    is_open: bool = False  # other options are arguments of its function, or keys

    def want(self, option: str) -> Want | None:
        """What belongs behind an option; None if there is no such option."""
        return self.options.get(option) or COMMON.get(option) or ("any" if self.is_open else None)


def _leaf(*values: Want, needed: int | None = None) -> Kind:
    return Kind(0, 0, values, len(values) if needed is None else needed)


def _over_one(*values: Want, **options: Want) -> Kind:
    named = {name.replace("_", "-"): want for name, want in options.items()}
    return Kind(1, 1, values, len(values), named)


_FOR_EACH: dict[str, Want] = {
    "as": "word",
    "parallel": "int",
    "limit": "int",
    "collect": "target",
    "on-child-fail": "word",
}
_PARALLEL: dict[str, Want] = {
    "success": "count",
    "failure": "count",
    "policy": "word",
    "require-all": "flag",
    "require-one": "flag",
}
_LLM_CALL: dict[str, Want] = {
    "model": "any",
    "messages": "any",
    "tools": "any",
    "budget": "int",
    "stream-to": "keys",
    "timeout": "duration",
    "idle-timeout": "duration",
    "interruptible": "any",
}
_SUBAGENT: dict[str, Want] = {
    "input": "any",
    "output": "target",
    "max-turns": "int",
    "timeout": "duration",
}

KINDS: Mapping[str, Kind] = {
    "sequence": Kind(1, MANY),
    "selector": Kind(1, MANY),
    "reactive-sequence": Kind(1, MANY),
    "reactive-selector": Kind(1, MANY),
    "memory-sequence": Kind(1, MANY),
    "parallel": Kind(1, MANY, options=_PARALLEL),
    "for-each": Kind(1, 1, ("list",), 1, _FOR_EACH),
    "if": Kind(2, 3),
    "while": Kind(2, 3),
    "switch": Kind(0, 0, ("any", "cases"), 2),
    "try": Kind(2, MANY),
    "ensure": Kind(2, 2),
    "repeat": _over_one(max="int", until="expression", until_success="flag"),
    "retry": _over_one(max="int", backoff="duration"),
    "invert": _over_one(),
    "force-success": _over_one(),
    "force-failure": _over_one(),
    "until-fail": _over_one(),
    "run-once": _over_one(),
    "timeout": _over_one("duration"),
    "delay": _over_one("duration"),
    "cooldown": _over_one("duration"),
    "guard": _over_one("expression"),
    "decorator": Kind(1, 1, named="must", is_open=True),
    "action": Kind(0, 0, options={"fn": "word"}, named="must", is_open=True),
    "condition": Kind(
        0, 0, options={"fn": "word", "expr": "expression"}, named="must", is_open=True
    ),
    "check": _leaf("expression"),
    "set!": Kind(0, 0, is_open=True),
    "emit": _leaf("text", "map", needed=1),
    "wait": _leaf("duration"),
    "succeed": _leaf(),
    "fail": _leaf("text", needed=0),
    "llm-call": Kind(0, 0, options=_LLM_CALL, is_open=True),
    "tool-call": Kind(0, 0, ("any",), 1, {"timeout": "duration"}, is_open=True),
    "subagent": Kind(0, 0, ("text",), 1, _SUBAGENT, is_open=True),
    "subtree": Kind(0, 1, options={"bind": "binding", "share": "any"}, named="must"),
}
# Other spellings that are understood.
ALIASES: Mapping[str, str] = {
    "fallback": "selector",
    "repeater": "repeat",
    "inverter": "invert",
    "always_succeed": "force-success",
    "always-succeed": "force-success",
    "always_fail": "force-failure",
    "always-fail": "force-failure",
}
OPTION_ALIASES: Mapping[str, str] = {"max-iterations": "max"}
COMMON: Mapping[str, Want] = {
    "when": "expression",
    "doc": "text",
    "id": "word",
    "on-error": "word",
}
FLAGS = frozenset(
    name for kind in KINDS.values() for name, want in kind.options.items() if want == "flag"
)
CHOICES: Mapping[str, tuple[str, ...]] = {
    "policy": ("continue-on-failure", "require-all", "require-one"),
    "on-child-fail": ("fail", "continue"),
    "on-error": ("fail", "raise"),
}
# Leaves whose function the host provides under the kind's own name.
HOSTED = frozenset({"llm-call", "tool-call", "subagent"})
CALLS = frozenset({"blackboard", "config", "env-flag"})
REACTIVE = frozenset({"reactive-sequence", "reactive-selector", "while"})
# What may stay RUNNING for as long as something outside takes.
ASYNC = frozenset({*HOSTED, "wait", "delay"})
