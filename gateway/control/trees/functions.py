"""The host's function behind a leaf or a decorator, and whether it fits the tree."""

from gateway.control.trees.kinds import HOSTED, KINDS
from gateway.control.trees.plan import NodePlan
from gateway.control.trees.registry import Offered
from gateway.control.trees.values import Values
from gateway.control.words import meant, short

_NAMED = frozenset({"action", "condition", "decorator"})


def find_offered(node: NodePlan, values: Values, named_at: int) -> Offered | None:
    """None if there is none, if nobody knows, or if it is unknown, which is then a problem."""
    source, registry = values.source, values.registry
    if registry is None or "expr" in node.options or node.kind not in _NAMED | HOSTED:
        return None
    fn = node.options.get("fn")
    wanted = node.kind if node.kind in HOSTED else str(fn.constant) if fn else node.name
    at = fn.at if fn else named_at
    offered = registry.offered.get(wanted)
    if offered is None:
        near = meant(wanted, registry.offered)
        source.error("BT021", at, f'unknown function "{short(wanted)}"{near}')
        return None
    if node.kind == "decorator" and offered.is_async:
        source.error("BT021", at, f"{offered.name} takes time, and a decorator asks at each tick")
    if offered.obsolete:
        source.warn("BT049", at, f"{offered.name} is obsolete: {offered.obsolete}")
    for option in node.options.keys() - KINDS[node.kind].options.keys() - offered.options:
        message = f'{offered.name} has no option ":{option}"{meant(option, offered.options)}'
        source.error("BT014", node.options[option].at, message)
    _check_keys(offered, values, at)
    return offered


def _check_keys(offered: Offered, values: Values, at: int) -> None:
    values.reads |= offered.reads.keys()
    values.writes |= offered.writes.keys()
    for verb, keys in (("reads", offered.reads), ("writes", offered.writes)):
        for key, kind in keys.items():
            declared = values.declared(at, key, kind)
            if not declared.may_hold(kind):
                message = f"{offered.name} {verb} {key} as {kind}, and it is {declared}"
                values.source.error("BT033", at, message)
