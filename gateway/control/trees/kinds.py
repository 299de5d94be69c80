"""The table of node kinds: children, values and options of each, for the loader, layout and lint."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.control.trees.engine import ANY, KeyType
from gateway.control.trees.reader import FormKind

MANY = 5_000
_WORD: frozenset[FormKind] = frozenset({"symbol", "keyword", "string"})
_ATOM: frozenset[FormKind] = frozenset({"int", "float", "bool", "nil", "duration"})


@dataclass(frozen=True, slots=True)
class Want:
    """The type of a value or option."""

    shape: str  # in messages
    forms: frozenset[FormKind] = frozenset()  # accepted as constants
    type: KeyType | None = None  # accepted from a reference; None: no reference is accepted


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
    "keys": Want("a [:key …] vector", frozenset({"vector"})),  # keys that the node writes
    "inputs": Want("a [key …] vector", frozenset({"vector"})),
    # The loader has code of its own for these.
    **dict.fromkeys(("flag", "cases", "schema", "node"), Want("something else")),
}
COMMON: Mapping[str, str] = {"when": "expression", "doc": "text", "id": "word", "on-error": "word"}


@dataclass(frozen=True, slots=True)
class NodeKind:
    min_children: int
    max_children: int
    values: tuple[str, ...] = ()
    needed: int = 0  # number of required values
    options: Mapping[str, str] = field(default_factory=dict)  # without the common ones
    excluding: tuple[frozenset[str], ...] = ()  # sets of options that exclude each other
    is_named: bool = False  # a bare symbol as its name is required
    is_open: bool = False  # unknown options are arguments of its function, or keys

    def want(self, option: str) -> str | None:
        """Returns the name of an option's Want; None if there is no such option."""
        return self.options.get(option) or COMMON.get(option) or ("any" if self.is_open else None)


def _kinds(table: str) -> dict[str, NodeKind]:
    """Parses the table into kinds by name."""
    found: dict[str, NodeKind] = {}
    for line in table.strip().splitlines():
        names, [children], values, options, rules = (cell.split() for cell in line.split("|"))
        fewest, dash, limit = children.partition("-")
        kind = NodeKind(
            int(fewest),
            int(limit or (MANY if dash else fewest)),
            tuple(value.rstrip("?") for value in values),
            sum(not value.endswith("?") for value in values),
            dict(one.split(":") for one in options),
            tuple(frozenset(rule.split("/")) for rule in rules if "/" in rule),
            "named" in rules,
            "open" in rules,
        )
        found |= dict.fromkeys(names, kind)
    return found


# names | number of children | values (? marks an optional one) | options | rules: options that
# exclude each other, with / between them; `named` and `open` as in NodeKind
KINDS: Mapping[str, NodeKind] = _kinds("""
sequence selector reactive-sequence reactive-selector memory-sequence | 1- | | |
parallel | 1- | | success:count failure:count policy:word require-all:flag require-one:flag | policy/require-all/require-one/success policy/require-all/require-one/failure
for-each | 1 | list | as:word parallel:int limit:int collect:target on-child-fail:word |
if while | 2-3 | | |
switch | 0 | any cases | |
try | 2- | | |
ensure | 2 | | |
repeat | 1 | | max:int until:expression until-success:flag | until/until-success
retry | 1 | | max:int backoff:duration |
invert force-success force-failure until-fail run-once | 1 | | |
timeout delay cooldown | 1 | duration | |
guard | 1 | expression | |
decorator | 1 | | | named open
action | 0 | | fn:word | named open
condition | 0 | | fn:word expr:expression | fn/expr named open
check | 0 | expression | |
set! | 0 | | | open
emit | 0 | text map? | |
wait | 0 | duration | |
succeed | 0 | | |
fail | 0 | text? | |
llm-call | 0 | | model:any messages:any tools:any budget:int stream-to:keys timeout:duration idle-timeout:duration interruptible:any | open
tool-call | 0 | any | timeout:duration | open
subagent | 0 | text | input:any output:target max-turns:int timeout:duration | open
subtree | 0-1 | | bind:map share:any | named
""")
[TREE] = _kinds("""
tree | 1 | text | description:text version:int decision:text blackboard-schema:schema inputs:inputs finally:node max-ticks:int |
""").values()
# Accepted other names.
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
# Leaves whose function the host registers under the name of the kind.
HOSTED = frozenset({"llm-call", "tool-call", "subagent"})
CALLS = frozenset({"blackboard", "config", "env-flag"})
REACTIVE = frozenset({"reactive-sequence", "reactive-selector"})
# Kinds that stay RUNNING until something outside the tree happens.
ASYNC = frozenset({*HOSTED, "wait", "delay"})
