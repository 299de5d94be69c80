"""Forms to nodes: kinds, children, options and names are checked here, and functions found."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gateway.control.trees.functions import find_offered
from gateway.control.trees.kinds import ALIASES, COMMON, KINDS
from gateway.control.trees.literals import pairs
from gateway.control.trees.parts import Parts, check_parallel, taken_apart, wrong_count
from gateway.control.trees.plan import NodePlan, Value
from gateway.control.trees.problems import Source
from gateway.control.trees.reader import Form
from gateway.control.trees.registry import Registry
from gateway.control.trees.types import ANY, KeyType
from gateway.control.trees.values import Names, Values
from gateway.control.words import meant, short

MAX_NODES = 5_000
NAME = re.compile(r"[a-z][a-z0-9_?!-]*")


class TooManyNodes(Exception):
    """Nobody reads on; it never leaves the loader."""


@dataclass(frozen=True, slots=True)
class _Around:
    """What a node inherits."""

    names: Names
    path: str
    raises: bool = False


@dataclass(slots=True)
class Planner:
    """Plans the nodes of one tree."""

    source: Source
    registry: Registry | None
    names: Names
    count: Callable[[], int]  # nodes of all trees of the file, this one included
    uses: list[tuple[str, int]] = field(default_factory=list)  # subtrees by name, and where
    bound: list[tuple[str, str, int]] = field(default_factory=list)  # subtree, key, and where
    _ids: set[str] = field(default_factory=set)

    def plan(self, form: Form, tree: str) -> NodePlan | None:
        return self._node(form, _Around(self.names, tree))

    def _node(self, form: Form, around: _Around) -> NodePlan | None:
        if not form.head:
            self.source.error("BT010", form.start, "a node begins with its kind: (kind …)")
            return None
        if self.count() > MAX_NODES:
            self.source.error("BT006", form.start, f"more than {MAX_NODES} nodes")
            raise TooManyNodes
        name = ALIASES.get(form.head, form.head)
        kind = KINDS.get(name)
        if kind is None:
            near = meant(form.head, (*KINDS, *ALIASES))
            self.source.error("BT011", form.start, f'unknown node "{short(form.head)}"{near}')
            return None
        parts = taken_apart(form, kind, around.names, self.source)
        values = Values(self.source, self.registry)
        own_name = self._own_name(parts, name)
        path = f"{around.path}/{own_name or name}"
        options = self._options(parts, name, values, around.names)
        inside = replace(around, path=path, names=self._names_inside(name, options, around.names))
        raising = options.pop("on-error", None)
        if raising is not None:
            inside = replace(inside, raises=raising.constant == "raise")
        when = options.pop("when", None)
        node = NodePlan(
            name,
            own_name,
            form.start,
            self.source.place(form.start)[0],
            path,
            self._values(parts, values, around.names),
            {key: value for key, value in options.items() if key not in COMMON},
            self._children(parts, name, inside),
            self._cases(parts) if name == "switch" else (),
            when.expression if when else None,
            inside.raises,
        )
        offered = find_offered(node, parts, values, around.names)
        node = replace(
            node, offered=offered, reads=frozenset(values.reads), writes=frozenset(values.writes)
        )
        self._special(node, parts)
        return node

    def _own_name(self, parts: Parts, kind: str) -> str:
        form = parts.name
        if form is None:
            if parts.kind.named == "must":
                self.source.error(
                    "BT016", parts.form.start, f"{kind} needs a name: ({kind} NAME …)"
                )
            return ""
        if not NAME.fullmatch(str(form.value)):
            message = f'"{short(str(form.value))}" is no name: small letters, digits, _ ? ! -'
            self.source.error("BT016", form.start, message)
        return str(form.value)

    def _options(self, parts: Parts, kind: str, values: Values, names: Names) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name, form in parts.options.items():
            want = parts.kind.want(name) or "any"
            if want == "flag":
                found[name] = Value(form.start, constant=True)
                continue
            if want == "binding":
                found.update(self._binding(parts, form, values, names))
                continue
            value = values.value(form, want, names, name)
            if value is None:
                continue
            found[name] = value
            if kind == "set!" and name not in COMMON:
                values.check_type(value, form, names.find(name) or ANY, names)
                values.writes.add(name)
        if "id" in found:
            self._note_id(found["id"])
        return found

    def _binding(self, parts: Parts, form: Form, values: Values, names: Names) -> dict[str, Value]:
        """`:bind {:in $x}` as options `bind:in`; a bare reference is bound both ways."""
        found: dict[str, Value] = {}
        for key, part in pairs(form, self.source).items():
            value = values.value(part, "any", names)
            if value is None:
                continue
            is_key = isinstance(part.value, tuple) and len(part.value) == 1
            found[f"bind:{key}"] = replace(value, constant=part.value[0]) if is_key else value  # type: ignore[index]  # a tuple, as was just asked
            if parts.name is not None and not parts.children:
                self.bound.append((str(parts.name.value), key, part.start))
        return found

    def _note_id(self, value: Value) -> None:
        one = str(value.constant)
        if one in self._ids:
            self.source.error("BT015", value.at, f'another node has the id "{short(one)}"')
        self._ids.add(one)

    def _names_inside(self, kind: str, options: dict[str, Value], names: Names) -> Names:
        if kind != "for-each":
            return names
        item = options.get("as")
        name = str(item.constant) if item else "item"
        return Names(names.keys, {**names.local, name: ANY, "index": ANY, "result": ANY})

    def _values(self, parts: Parts, values: Values, names: Names) -> tuple[Value, ...]:
        wants = parts.kind.values
        if len(parts.values) > len(wants):
            extra = parts.values[len(wants)]
            self.source.error("BT017", extra.start, f"{parts.form.head} takes no value here")
        if len(parts.values) < parts.kind.needed:
            missing = wants[len(parts.values)]
            message = f"{parts.form.head} lacks its value: {missing}"
            self.source.error("BT017", parts.form.start, message)
        found = [
            values.value(form, want, names)
            for form, want in zip(parts.values, wants, strict=False)
            if want != "cases"
        ]
        return tuple(value for value in found if value is not None)

    def _cases(self, parts: Parts) -> tuple[str, ...]:
        return tuple(pairs(parts.values[1], self.source)) if len(parts.values) > 1 else ()

    def _children(self, parts: Parts, kind: str, inside: _Around) -> tuple[NodePlan, ...]:
        forms = parts.children
        if kind == "switch":
            cases = parts.values[1] if len(parts.values) > 1 else None
            forms = list(pairs(cases, self.source).values()) if cases else []
        elif not parts.kind.least <= len(forms) <= parts.kind.most:
            wrong_count(parts, self.source)
        if kind == "try":
            forms = self._caught(parts, forms)
        planned = [self._node(form, inside) for form in forms]
        return tuple(node for node in planned if node is not None)

    def _caught(self, parts: Parts, forms: list[Form]) -> list[Form]:
        """The catch of a `try` is its last child, without the word."""
        if not forms or forms[-1].head != "catch" or len(forms[-1].parts) != 2:
            self.source.error("BT012", parts.form.start, "try ends with one (catch NODE)")
            return forms
        return [*forms[:-1], forms[-1].parts[1]]

    def _special(self, node: NodePlan, parts: Parts) -> None:
        """What one kind alone has to obey."""
        options, at = node.options, node.at
        match node.kind:
            case "subtree" if not parts.children:
                self.uses.append((node.name, at))
            case "set!" if len(parts.form.parts) == 1:
                self.source.error("BT013", at, "set! sets nothing: (set! :key value)")
            case "condition" if "fn" in options and "expr" in options:
                self.source.error("BT013", at, "a condition has :fn or :expr, not both")
            case "repeat" if "until" in options and "until-success" in options:
                self.source.error("BT013", at, "repeat has :until or :until-success, not both")
            case "for-each" if "collect" in options:
                self._check_collected(options["collect"])
            case "parallel":
                check_parallel(node, self.source)

    def _check_collected(self, target: Value) -> None:
        kind = self.names.find(str(target.constant)) or ANY
        if not kind.may_hold(KeyType("list")):
            message = f"{target.constant} is {kind}, and what is collected is a list"
            self.source.error("BT030", target.at, message)
