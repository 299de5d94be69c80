"""A node's form, taken apart into name, values, options and children."""

from dataclasses import dataclass, field

from gateway.control.trees.kinds import CALLS, COMMON, KINDS, OPTION_ALIASES, Kind
from gateway.control.trees.plan import NodePlan
from gateway.control.trees.problems import Source
from gateway.control.trees.reader import Form
from gateway.control.trees.values import Names, unknown_key
from gateway.control.words import meant, short


@dataclass(slots=True)
class Parts:
    form: Form
    kind: Kind
    name: Form | None = None
    values: list[Form] = field(default_factory=list)
    options: dict[str, Form] = field(default_factory=dict)  # a flag stands for itself
    children: list[Form] = field(default_factory=list)

    def is_value(self) -> bool:
        """Whether a bare symbol is the next value, as in `(subagent librarian)`."""
        wants = self.kind.values[len(self.values) :]
        return wants[:1] == ("text",) and self.kind.needed > len(self.values)


def taken_apart(form: Form, kind: Kind, names: Names, source: Source) -> Parts:
    parts = Parts(form, kind)
    rest = list(reversed(form.parts[1:]))
    while rest:
        part = rest.pop()
        if part.kind == "keyword":
            _take_option(part, rest, parts, names, source)
        elif part.kind == "list" and part.head not in CALLS:
            parts.children.append(part)
        elif part.kind == "symbol" and parts.name is None and not parts.is_value():
            parts.name = part
        else:
            parts.values.append(part)
    return parts


def _take_option(key: Form, rest: list[Form], parts: Parts, names: Names, source: Source) -> None:
    name = OPTION_ALIASES.get(str(key.value), str(key.value))
    want = parts.kind.want(name)
    is_key = parts.kind is KINDS["set!"] and name not in COMMON
    if is_key and names.find(name) is None:
        unknown_key(source, key.start, name, names)
        want = None
    elif want is None:
        near = meant(name, (*parts.kind.options, *COMMON))
        source.error("BT014", key.start, f'unknown option ":{short(name)}"{near}')
    elif name in parts.options:
        source.error("BT015", key.start, f":{name} is here twice")
    if want == "flag":
        parts.options[name] = key
    elif want is not None and not rest:
        source.error("BT013", key.start, f":{name} has no value")
    elif want is not None:
        parts.options[name] = rest.pop()
    else:
        _leave_out_value(rest)


def _leave_out_value(rest: list[Form]) -> None:
    """Of an option that nobody knows: what looks like a node is one."""
    if rest and (rest[-1].kind not in {"list", "keyword"} or rest[-1].head in CALLS):
        rest.pop()


def wrong_count(parts: Parts, source: Source) -> None:
    count, least, most = len(parts.children), parts.kind.least, parts.kind.most
    if most == 0:
        wanted = "none"
    elif least == most:
        wanted = f"exactly {least}"
    else:
        wanted = f"at least {least}" if count < least else f"at most {most}"
    message = f"{parts.form.head} has {count} children, and takes {wanted}"
    source.error("BT012", parts.form.start, message)


def check_parallel(node: NodePlan, source: Source) -> None:
    options = node.options
    named = options.keys() & {"policy", "require-all", "require-one"}
    if len(named) > 1 or (named and options.keys() & {"success", "failure"}):
        source.error("BT013", node.at, "parallel has one policy, or :success and :failure")
    for name in ("success", "failure"):
        count = options[name].constant if name in options else 0
        if isinstance(count, int) and count > len(node.children):
            message = f":{name} {count} is more than its {len(node.children)} children"
            source.error("BT013", options[name].at, message)
