"""Trees that can be loaded and hardly do what their author meant: warnings only."""

from collections.abc import Iterator
from itertools import pairwise

from gateway.control.trees.kinds import ASYNC, HOSTED, REACTIVE
from gateway.control.trees.plan import NodePlan, TreePlan
from gateway.control.trees.problems import Source

_LOOPS = frozenset({"repeat", "retry", "until-fail"})
_WAITING = ASYNC | {"action", "subtree"}
_SEQUENCES = frozenset({"sequence", "memory-sequence", "reactive-sequence"})
_SELECTORS = frozenset({"selector", "reactive-selector"})
# What answers a failure below it, so that the nodes after it are still reached.
_CATCHING = frozenset({"selector", "reactive-selector", "try", "force-success", "invert", "ensure"})


def lint(tree: TreePlan, source: Source, *, is_complete: bool) -> None:
    """`is_complete`: it is known what functions read."""
    for node in tree.nodes():
        for rule in (_unreachable, _reactive, _loop, _literal_limits, _parallel):
            rule(node, source)
    for root in (tree.root, tree.final):
        for node in _uncaught(root) if root else ():
            _after_a_limit(node, source)
    if is_complete:
        _unread(tree, source)


def _unread(tree: TreePlan, source: Source) -> None:
    nodes = [node for one in (tree, *tree.subtrees.values()) for node in one.nodes()]
    read = {*tree.inputs}.union(*(node.reads for node in nodes))
    for name, key in tree.schema.items():
        if name not in read and key.at >= 0:
            source.warn("BT043", key.at, f":{name} is never read")


def _reactive(node: NodePlan, source: Source) -> None:
    waiting = [child for child in node.children if any(x.kind in ASYNC for x in child.walk())]
    if node.kind in REACTIVE and len(waiting) > 1:
        message = f"{node.kind} has {len(waiting)} children that wait, and each halts the others"
        source.warn("BT041", waiting[1].at, message)


def _unreachable(node: NodePlan, source: Source) -> None:
    ending = "succeed" if node.kind in _SELECTORS else "fail" if node.kind in _SEQUENCES else None
    for child, after in pairwise(node.children):
        if child.kind == ending and child.when is None:
            message = f"{after.label} is never reached: it comes after {ending}"
            source.warn("BT040", after.at, message)
            return


def _loop(node: NodePlan, source: Source) -> None:
    inside = list(node.walk())[1:]
    limits = node.options.keys() & {"max", "until", "until-success"}
    if node.kind in _LOOPS and not limits and not any(x.kind in _WAITING for x in inside):
        source.warn("BT042", node.at, f"{node.kind} has no :max, and nothing in it ever waits")
    branching = next((x for x in inside if x.kind in _SELECTORS and len(x.children) > 1), None)
    if "until-success" in limits and branching is not None:
        message = (
            f":until-success leaves the loop after the first round in which any branch of the "
            f'{branching.kind} in line {branching.line} succeeds; say when with :until "…"'
        )
        source.warn("BT044", node.options["until-success"].at, message)


def _after_a_limit(node: NodePlan, source: Source) -> None:
    """Nodes after a loop that are meant for its limit, and run only if it was not reached."""
    for child, after in pairwise(node.children) if node.kind in _SEQUENCES else ():
        if child.kind == "repeat" and child.options.keys() & {"until", "until-success"}:
            message = (
                f"this {after.label} runs after the loop of line {child.line} has succeeded, "
                "and never when its limit is reached: then the loop fails, and the whole "
                f"{node.kind} with it; (selector LOOP …) would answer that"
            )
            source.warn("BT045", after.at, message)


def _uncaught(node: NodePlan) -> Iterator[NodePlan]:
    yield node
    if node.kind not in _CATCHING:
        for child in node.children:
            yield from _uncaught(child)


def _literal_limits(node: NodePlan, source: Source) -> None:
    """Numbers in a tree contradict those of the configuration sooner or later."""
    is_loop = node.kind in {"repeat", "retry"} and any(x.kind == "llm-call" for x in node.walk())
    limit = node.options.get("max" if is_loop else "timeout" if node.kind in HOSTED else "")
    if limit is not None and limit.run is None:
        name = "(config max_iterations)" if is_loop else "(config …)"
        message = f"this limit is fixed here, whatever the agent's own is; {name} follows it"
        source.warn("BT046", limit.at, message)


def _parallel(node: NodePlan, source: Source) -> None:
    if node.kind != "parallel":
        return
    if len(node.children) == 1:
        only = node.children[0]
        more = "; give for-each :parallel instead" if only.kind == "for-each" else ""
        message = f"parallel over one {only.kind} runs nothing side by side{more}"
        source.warn("BT047", node.at, message)
    written: dict[str, NodePlan] = {}
    for child in node.children:
        for key in sorted({key for one in child.walk() for key in one.writes}):
            if key in written:
                message = f"{child.label} and {written[key].label} write {key} at the same time"
                source.warn("BT048", child.at, message)
            written[key] = child
