"""Trees that can be loaded and hardly do what their author meant: warnings only."""

from collections.abc import Iterator, Sequence

from gateway.control.trees.kinds import ASYNC, HOSTED, REACTIVE
from gateway.control.trees.plan import NodePlan, TreePlan
from gateway.control.trees.problems import Source

_LOOPS = frozenset({"repeat", "retry", "until-fail"})
_SEQUENCES = frozenset({"sequence", "memory-sequence", "reactive-sequence"})
_SELECTORS = frozenset({"selector", "reactive-selector"})
# What answers a failure below it, so that the nodes after it are still reached.
_CATCHING = frozenset({"selector", "reactive-selector", "try", "force-success", "invert", "ensure"})


def lint(tree: TreePlan, source: Source, *, is_complete: bool) -> None:
    """`is_complete`: it is known what functions read."""
    for node in tree.nodes():
        _unreachable(node, source)
        _reactive(node, source)
        _endless(node, source)
        _first_success(node, source)
        _literal_limits(node, source)
        _parallels(node, source)
    for root in (tree.root, tree.final):
        if root is not None:
            _after_a_limit(root, source)
    if is_complete:
        _unread(tree, source)


def _unreachable(node: NodePlan, source: Source) -> None:
    ending = "succeed" if node.kind in _SELECTORS else "fail" if node.kind in _SEQUENCES else None
    for child, after in zip(node.children, node.children[1:], strict=False):
        if child.kind == ending and child.when is None:
            message = f"{after.label} is never reached: it comes after {ending}"
            source.warn("BT040", after.at, message)
            return


def _reactive(node: NodePlan, source: Source) -> None:
    if node.kind not in REACTIVE:
        return
    waiting = [child for child in node.children if any(x.kind in ASYNC for x in child.walk())]
    if len(waiting) > 1:
        message = f"{node.kind} has {len(waiting)} children that wait, and each halts the others"
        source.warn("BT041", waiting[1].at, message)


def _endless(node: NodePlan, source: Source) -> None:
    if node.kind not in _LOOPS or node.options.keys() & {"max", "until", "until-success"}:
        return
    inside = list(node.walk())[1:]
    if not any(x.kind in ASYNC or x.kind in {"action", "subtree"} for x in inside):
        source.warn("BT042", node.at, f"{node.kind} has no :max, and nothing in it ever waits")


def _first_success(node: NodePlan, source: Source) -> None:
    if "until-success" not in node.options:
        return
    branching = next((x for x in node.walk() if x.kind in _SELECTORS and len(x.children) > 1), None)
    if branching is not None:
        message = (
            f":until-success leaves the loop after the first round in which any branch of the "
            f'{branching.kind} in line {branching.line} succeeds; say when with :until "…"'
        )
        source.warn("BT044", node.options["until-success"].at, message)


def _after_a_limit(root: NodePlan, source: Source) -> None:
    """Nodes after a loop that are meant for its limit, and run only if it was not reached."""
    for node in _uncaught(root):
        if node.kind not in _SEQUENCES:
            continue
        for child, after in zip(node.children, node.children[1:], strict=False):
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
    if node.kind in {"repeat", "retry"} and "max" in node.options:
        limit = node.options["max"]
        if limit.run is None and any(x.kind == "llm-call" for x in node.walk()):
            message = (
                f"the limit {limit.constant} is fixed here and says nothing of the agent's own; "
                "(config max_iterations) follows it"
            )
            source.warn("BT046", limit.at, message)
    if node.kind in HOSTED and "timeout" in node.options:
        limit = node.options["timeout"]
        if limit.run is None:
            message = "this timeout is fixed here, whatever the agent's is; (config …) follows it"
            source.warn("BT046", limit.at, message)


def _parallels(node: NodePlan, source: Source) -> None:
    if node.kind != "parallel":
        return
    if len(node.children) == 1:
        only = node.children[0]
        more = "; give for-each :parallel instead" if only.kind == "for-each" else ""
        message = f"parallel over one {only.kind} runs nothing side by side{more}"
        source.warn("BT047", node.at, message)
    written: dict[str, NodePlan] = {}
    for child in node.children:
        for key in sorted(_writes(child)):
            if key in written and written[key] is not child:
                message = f"{child.label} and {written[key].label} write {key} at the same time"
                source.warn("BT048", child.at, message)
            written[key] = child


def _writes(node: NodePlan) -> set[str]:
    return {key for one in node.walk() for key in one.writes}


def _unread(tree: TreePlan, source: Source) -> None:
    trees: Sequence[TreePlan] = (tree, *tree.subtrees.values())
    nodes = [node for one in trees for node in one.nodes()]
    read = {key for node in nodes for key in node.reads}
    for name, key in tree.schema.items():
        if not {name} & {*read, *tree.inputs} and key.at >= 0:
            source.warn("BT043", key.at, f":{name} is never read")
