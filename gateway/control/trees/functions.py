"""The host's function behind a leaf or a decorator, and whether it fits the tree."""

from gateway.control.trees.kinds import COMMON, HOSTED
from gateway.control.trees.parts import Parts
from gateway.control.trees.plan import NodePlan
from gateway.control.trees.problems import Source
from gateway.control.trees.registry import Offered
from gateway.control.trees.types import ANY
from gateway.control.trees.values import Names, Values
from gateway.control.words import meant, short

_NAMED = frozenset({"action", "condition", "decorator"})


def find_offered(node: NodePlan, parts: Parts, values: Values, names: Names) -> Offered | None:
    """None if there is none, if nobody knows, or if it is unknown, which is then a problem."""
    source, registry = values.source, values.registry
    if registry is None or "expr" in node.options or node.kind not in _NAMED | HOSTED:
        return None
    fn = node.options.get("fn")
    wanted = node.kind if node.kind in HOSTED else str(fn.constant) if fn else node.name
    at = fn.at if fn else parts.name.start if parts.name else node.at
    offered = registry.offered.get(wanted)
    if offered is None:
        near = meant(wanted, registry.offered)
        source.error("BT021", at, f'unknown function "{short(wanted)}"{near}')
        return None
    _check_use(node, offered, at, values.source)
    _check_options(node, parts, offered, values)
    _check_keys(offered, at, values, names)
    return offered


def _check_use(node: NodePlan, offered: Offered, at: int, source: Source) -> None:
    if node.kind == "decorator" and offered.is_async:
        source.error("BT021", at, f"{offered.name} takes time, and a decorator asks at each tick")
    if offered.obsolete:
        source.warn("BT049", at, f"{offered.name} is obsolete: {offered.obsolete}")


def _check_options(node: NodePlan, parts: Parts, offered: Offered, values: Values) -> None:
    known = {*parts.kind.options, *COMMON, *offered.options}
    for option in node.options.keys() - known:
        message = f'{offered.name} has no option ":{option}"{meant(option, offered.options)}'
        values.source.error("BT014", node.options[option].at, message)


def _check_keys(offered: Offered, at: int, values: Values, names: Names) -> None:
    values.reads |= offered.reads.keys()
    values.writes |= offered.writes.keys()
    for verb, keys in (("reads", offered.reads), ("writes", offered.writes)):
        for key, kind in keys.items():
            values.undeclared(at, key, kind, names)
            declared = names.find(key) or ANY
            if not declared.may_hold(kind):
                message = f"{offered.name} {verb} {key} as {kind}, and it is {declared}"
                values.source.error("BT033", at, message)
