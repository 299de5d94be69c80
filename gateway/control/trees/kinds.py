"""Every kind of node: how many children it has, which values and options, and what each of them is."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.control.trees.reader import FormKind
from gateway.control.trees.types import ANY, KeyType

MANY = 5_000
_WORD: frozenset[FormKind] = frozenset({"symbol", "keyword", "string"})
_ATOM: frozenset[FormKind] = frozenset({"int", "float", "bool", "nil", "duration"})


@dataclass(frozen=True, slots=True)
class Want:
    """What may stand in a place."""

    shape: str
    forms: frozenset[FormKind] = frozenset()  # as it is
    type: KeyType | None = None  # or looked up, if it is of this type


_TIMES: frozenset[FormKind] = frozenset({"duration", "int", "float"})
WANTS: Mapping[str, Want] = {
    "any": Want("a value", _WORD | _ATOM, ANY),
    "text": Want('a "string"', frozenset({"string", "symbol"}), KeyType("string")),
    "int": Want("a whole number", frozenset({"int"}), KeyType("int")),
    "duration": Want("a time such as 500ms, 30s or 2m", _TIMES, KeyType("float")),
    "list": Want("a [vector] or a $key", frozenset(), KeyType("list")),
    "map": Want("a {:key value} map", frozenset(), KeyType("map")),
    "expression": Want('an expression in a "string"', frozenset({"string"})),
    "word": Want("a name", _WORD),
    "count": Want("a whole number, all or one", frozenset({"int", "symbol", "keyword"})),
    "target": Want("a $key to write", frozenset({"ref", "list"})),
    "keys": Want("a [:key …] vector", frozenset({"vector"})),  # that are written
    "inputs": Want("a [key …] vector", frozenset({"vector"})),
    # Read by the loader itself.
    **dict.fromkeys(("flag", "cases", "schema", "node"), Want("something else")),
}
COMMON: Mapping[str, str] = {
    "when": "expression",
    "doc": "text",
    "id": "word",
    "on-error": "word",
}


@dataclass(frozen=True, slots=True)
class Kind:
    least: int  # of children
    most: int
    values: tuple[str, ...] = ()
    needed: int = 0  # how many of the values
    options: Mapping[str, str] = field(default_factory=dict)  # besides the common ones
    excluding: tuple[frozenset[str], ...] = ()  # options of which only one may be there
    is_named: bool = False  # has to be, by a bare symbol
    is_open: bool = False  # other options are arguments of its function, or keys

    def want(self, option: str) -> str | None:
        """What belongs behind an option; None if there is no such option."""
        return self.options.get(option) or COMMON.get(option) or ("any" if self.is_open else None)


def _kind(
    children: tuple[int, int], *values: str, options: str = "", excluding: str = "", **said: bool
) -> Kind:
    """Values that end in `?` need not be there; options are `name:want`."""
    return Kind(
        *children,
        tuple(value.rstrip("?") for value in values),
        sum(not value.endswith("?") for value in values),
        {name: want for name, _, want in (one.partition(":") for one in options.split())},
        tuple(frozenset(group.split("/")) for group in excluding.split()),
        **said,
    )


_NONE, _ONE, _SOME = (0, 0), (1, 1), (1, MANY)  # children
_MANY = ("sequence", "selector", "reactive-sequence", "reactive-selector", "memory-sequence")
_OVER_ONE = ("invert", "force-success", "force-failure", "until-fail", "run-once")
KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(_MANY, _kind(_SOME)),
    "parallel": _kind(
        _SOME,
        options="success:count failure:count policy:word require-all:flag require-one:flag",
        excluding="policy/require-all/require-one/success policy/require-all/require-one/failure",
    ),
    "for-each": _kind(
        _ONE,
        "list",
        options="as:word parallel:int limit:int collect:target on-child-fail:word",
    ),
    **dict.fromkeys(("if", "while"), _kind((2, 3))),
    "switch": _kind(_NONE, "any", "cases"),
    "try": _kind((2, MANY)),
    "ensure": _kind((2, 2)),
    "repeat": _kind(
        _ONE,
        options="max:int until:expression until-success:flag",
        excluding="until/until-success",
    ),
    "retry": _kind(_ONE, options="max:int backoff:duration"),
    **dict.fromkeys(_OVER_ONE, _kind(_ONE)),
    **dict.fromkeys(("timeout", "delay", "cooldown"), _kind(_ONE, "duration")),
    "guard": _kind(_ONE, "expression"),
    "decorator": _kind(_ONE, is_named=True, is_open=True),
    "action": _kind(_NONE, options="fn:word", is_named=True, is_open=True),
    "condition": _kind(
        _NONE,
        options="fn:word expr:expression",
        excluding="fn/expr",
        is_named=True,
        is_open=True,
    ),
    "check": _kind(_NONE, "expression"),
    "set!": _kind(_NONE, is_open=True),
    "emit": _kind(_NONE, "text", "map?"),
    "wait": _kind(_NONE, "duration"),
    "succeed": _kind(_NONE),
    "fail": _kind(_NONE, "text?"),
    "llm-call": _kind(
        _NONE,
        options="model:any messages:any tools:any budget:int stream-to:keys timeout:duration "
        "idle-timeout:duration interruptible:any",
        is_open=True,
    ),
    "tool-call": _kind(_NONE, "any", options="timeout:duration", is_open=True),
    "subagent": _kind(
        _NONE,
        "text",
        options="input:any output:target max-turns:int timeout:duration",
        is_open=True,
    ),
    "subtree": _kind((0, 1), options="bind:map share:any", is_named=True),
}
TREE = _kind(
    _ONE,
    "text",
    options="description:text version:int decision:text blackboard-schema:schema inputs:inputs "
    "finally:node max-ticks:int",
)
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
REACTIVE = frozenset({"reactive-sequence", "reactive-selector"})
# What may stay RUNNING for as long as something outside takes.
ASYNC = frozenset({*HOSTED, "wait", "delay"})
