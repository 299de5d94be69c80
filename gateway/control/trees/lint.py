"""Warnings about trees, and the layout of tree files."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

from gateway.control.trees.engine import NodePlan, TreePlan
from gateway.control.trees.kinds import ASYNC, FLAGS, HOSTED, REACTIVE
from gateway.control.trees.reader import TreeForm, TreeInvalid, TreeSource, read

_LOOPS = frozenset({"repeat", "retry", "until-fail"})
_WAITING = ASYNC | {"action", "subtree"}
_SEQUENCES = frozenset({"sequence", "memory-sequence", "reactive-sequence"})
_SELECTORS = frozenset({"selector", "reactive-selector"})
# Kinds that handle a failure below them, so that the nodes after them are reached.
_CATCHING = frozenset({"selector", "reactive-selector", "try", "force-success", "invert", "ensure"})


def lint(tree: TreePlan, source: TreeSource, *, is_complete: bool) -> None:
    """Adds warnings about a tree to `source`. `is_complete`: the keys that functions read are known."""
    for node in tree.nodes():
        for rule in (_unreachable, _reactive, _loop, _literal_limits, _parallel):
            rule(node, source)
    for root in (tree.root, tree.final):
        for node in _uncaught(root) if root else ():
            _after_a_limit(node, source)
    if is_complete:
        _unread(tree, source)


def _unread(tree: TreePlan, source: TreeSource) -> None:
    nodes = [node for one in (tree, *tree.subtrees.values()) for node in one.nodes()]
    read = {*tree.inputs}.union(*(node.reads for node in nodes))
    for name, key in tree.schema.items():
        if name not in read and key.at >= 0:
            source.warn("BT043", key.at, f":{name} is never read")


def _reactive(node: NodePlan, source: TreeSource) -> None:
    waiting = [child for child in node.children if any(x.kind in ASYNC for x in child.walk())]
    if node.kind in REACTIVE and len(waiting) > 1:
        message = f"{node.kind} has {len(waiting)} children that wait, and each halts the others"
        source.warn("BT041", waiting[1].at, message)


def _unreachable(node: NodePlan, source: TreeSource) -> None:
    ending = "succeed" if node.kind in _SELECTORS else "fail" if node.kind in _SEQUENCES else None
    for child, after in pairwise(node.children):
        if child.kind == ending and child.when is None:
            message = f"{after.label} is never reached: it comes after {ending}"
            source.warn("BT040", after.at, message)
            return


def _loop(node: NodePlan, source: TreeSource) -> None:
    inside = list(node.walk())[1:]
    limits = node.options.keys() & {"max", "until", "until-success"}
    if node.kind in _LOOPS and not limits and not any(x.kind in _WAITING for x in inside):
        source.warn("BT042", node.at, f"{node.kind} has no :max, and nothing in it ever waits")
    branching = next((x for x in inside if x.kind in _SELECTORS and len(x.children) > 1), None)
    if "until-success" in limits and branching is not None:
        message = (
            f":until-success leaves the loop after the first round in which any branch of the "
            f'{branching.kind} in line {branching.line} succeeds; write :until "…" instead'
        )
        source.warn("BT044", node.options["until-success"].at, message)


def _after_a_limit(node: NodePlan, source: TreeSource) -> None:
    """Warns of nodes after a loop that seem to handle its limit but run only if it is not reached."""
    for child, after in pairwise(node.children) if node.kind in _SEQUENCES else ():
        if child.kind == "repeat" and child.options.keys() & {"until", "until-success"}:
            message = (
                f"this {after.label} runs after the loop of line {child.line} has succeeded, "
                "and never when its limit is reached: then the loop fails, and the whole "
                f"{node.kind} with it; (selector LOOP …) handles that"
            )
            source.warn("BT045", after.at, message)


def _uncaught(node: NodePlan) -> Iterator[NodePlan]:
    yield node
    if node.kind not in _CATCHING:
        for child in node.children:
            yield from _uncaught(child)


def _literal_limits(node: NodePlan, source: TreeSource) -> None:
    """Warns of limits written as numbers, which ignore the agent's configuration."""
    is_loop = node.kind in {"repeat", "retry"} and any(x.kind == "llm-call" for x in node.walk())
    limit = node.options.get("max" if is_loop else "timeout" if node.kind in HOSTED else "")
    if limit is not None and limit.run is None:
        name = "(config max_iterations)" if is_loop else "(config …)"
        message = f"this limit ignores the agent's own; write {name} to use it"
        source.warn("BT046", limit.at, message)


def _parallel(node: NodePlan, source: TreeSource) -> None:
    if node.kind != "parallel":
        return
    if len(node.children) == 1:
        only = node.children[0]
        more = "; write :parallel N in for-each instead" if only.kind == "for-each" else ""
        message = f"parallel with one {only.kind} runs nothing in parallel{more}"
        source.warn("BT047", node.at, message)
    written: dict[str, NodePlan] = {}
    for child in node.children:
        for key in sorted({key for one in child.walk() for key in one.writes}):
            if key in written:
                message = f"{child.label} and {written[key].label} write {key} at the same time"
                source.warn("BT048", child.at, message)
            written[key] = child


WIDTH = 100
_BRACKETED = frozenset({"list", "vector", "map"})
_BELOW = frozenset({"list", "map", "comment"})  # placed on lines below the head


def format_tree(text: str, name: str = "tree.bt") -> str:
    """Returns the text of the trees in the standard layout. Raises TreeInvalid if it cannot be read."""
    source = TreeSource(name, text)
    forms = read(source)
    if source.has_errors:
        raise TreeInvalid(source.problems(), source.left_out)
    layout = _Layout(text)
    lines: list[str] = []
    for unit in _units(forms):
        layout.add(lines, unit, 0)
    return "\n".join(lines) + "\n" if lines else ""


def _units(
    items: Sequence[TreeForm], *, has_options: bool = True
) -> Iterator[tuple[TreeForm, ...]]:
    """Yields the units that stay on one line if possible: an option with its value, or one form."""
    at = 0
    while at < len(items):
        item = items[at]
        is_option = has_options and item.kind == "keyword" and item.value not in FLAGS
        has_value = at + 1 < len(items) and items[at + 1].kind != "comment"
        size = 2 if is_option and has_value else 1
        yield tuple(items[at : at + size])
        at += size


class _Layout:
    def __init__(self, text: str) -> None:
        self._text = text

    def add(self, lines: list[str], unit: tuple[TreeForm, ...], indent: int) -> None:
        """Adds a unit on a new line, and keeps a blank line before it. A comment that stood behind the
        previous unit stays there."""
        first = unit[0]
        at = first.start
        while at and self._text[at - 1] in " \t\r\n,":
            at -= 1
        breaks = self._text.count("\n", at, first.start)
        if first.kind == "comment" and not breaks and lines:
            lines[-1] += f"  {first.value}"
            return
        if breaks > 1 and lines:
            lines.append("")
        lines.append(" " * indent + self._render(unit, indent))

    def _render(self, unit: tuple[TreeForm, ...], indent: int) -> str:
        *key, form = unit
        if key:
            start = self._raw(key[0]) + " "
            return start + self._render((form,), indent + len(start))
        flat = self._flat(form)
        if form.head != "tree" and flat is not None and indent + len(flat) <= WIDTH:
            return flat
        return self._broken(form, indent) if form.kind in _BRACKETED else self._raw(form)

    def _raw(self, form: TreeForm) -> str:
        return str(form.value) if form.kind == "comment" else self._text[form.start : form.end]

    def _flat(self, form: TreeForm) -> str | None:
        """Renders a form on one line; None if it does not fit or has a comment."""
        if form.kind not in _BRACKETED:
            raw = self._raw(form)
            return None if form.kind == "comment" or "\n" in raw else raw
        parts: list[str] = []
        length = 0
        for item in form.items:
            flat = self._flat(item)
            length += len(flat or "") + 1
            if flat is None or length > WIDTH:
                return None
            parts.append(flat)
        return f"{self._text[form.start]}{' '.join(parts)}{self._text[form.end - 1]}"

    def _broken(self, form: TreeForm, indent: int) -> str:
        """Renders a form on several lines: the head and its first units, then one unit a line."""
        inner = indent + (2 if form.kind == "list" else 1)
        lines = [self._text[form.start]]
        units = list(_units(form.items, has_options=form.kind != "vector"))
        on_first = self._count_on_first(form, units, indent)
        for number, unit in enumerate(units):
            if number < on_first:
                lines[0] += (" " if number else "") + self._render(unit, indent + len(lines[0]))
            else:
                self.add(lines, unit, inner)
        last = units[-1][-1] if units else form
        closer = self._text[form.end - 1]
        if last.kind == "comment" and str(last.value).startswith(";"):
            return "\n".join([*lines, " " * indent + closer])
        return "\n".join(lines) + closer

    def _count_on_first(
        self, form: TreeForm, units: Sequence[tuple[TreeForm, ...]], indent: int
    ) -> int:
        """Counts the units on the first line: the head, and its name and options if all of them fit."""
        below = _BELOW if form.kind == "list" else {"comment"}
        most = {"": 1, "tree": 2}.get(form.head, len(units))
        front = list(takewhile(lambda unit: unit[0].kind not in below, units[:most]))
        flats = [self._flat(part) for unit in front for part in unit]
        width = indent + sum(len(flat or "") + 1 for flat in flats)
        fits = None not in flats and width < WIDTH and len(front) < len(units)
        return len(front) if fits else min(len(front), 1)
