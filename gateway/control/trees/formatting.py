"""One layout for every tree: two spaces a level, options beside their values, comments where they were."""

from collections.abc import Iterator, Sequence
from itertools import takewhile

from gateway.control.trees.kinds import FLAGS
from gateway.control.trees.problems import Source, TreeInvalid
from gateway.control.trees.reader import Form, read

WIDTH = 100
_BELOW = frozenset({"list", "map", "comment"})  # never on the line of the head


def formatted(text: str, name: str = "tree.bt") -> str:
    """The same trees, laid out. Raises TreeInvalid if the text cannot be read."""
    source = Source(name, text)
    forms = read(source)
    if source.has_errors:
        raise TreeInvalid(source.problems(), source.left_out)
    layout = _Layout(text)
    lines: list[str] = []
    for unit in _units(forms):
        layout.add(lines, unit, 0)
    return "\n".join(lines) + "\n" if lines else ""


def _units(items: Sequence[Form], *, has_options: bool = True) -> Iterator[tuple[Form, ...]]:
    """What stays on one line if it can: an option with its value, or a single form."""
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

    def add(self, lines: list[str], unit: tuple[Form, ...], indent: int) -> None:
        """On a line of its own, after a blank one if there was one; or a comment behind the last."""
        first = unit[0]
        if first.kind == "comment" and first.breaks == 0 and lines:
            lines[-1] += f"  {first.value}"
            return
        if first.breaks > 1 and lines:
            lines.append("")
        lines.append(" " * indent + self._shown(unit, indent))

    def _shown(self, unit: tuple[Form, ...], indent: int) -> str:
        if len(unit) == 1:
            return self._form(unit[0], indent)
        key = self._raw(unit[0])
        return f"{key} {self._form(unit[1], indent + len(key) + 1)}"

    def _form(self, form: Form, indent: int) -> str:
        flat = self._flat(form)
        if form.head != "tree" and flat is not None and indent + len(flat) <= WIDTH:
            return flat
        if form.kind not in {"list", "vector", "map"}:
            return self._raw(form)
        return self._broken(form, indent)

    def _raw(self, form: Form) -> str:
        return str(form.value) if form.kind == "comment" else self._text[form.start : form.end]

    def _flat(self, form: Form) -> str | None:
        """On one line; None if that cannot be."""
        if form.kind not in {"list", "vector", "map"}:
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

    def _broken(self, form: Form, indent: int) -> str:
        """The head with what belongs to it on the first line, the rest below."""
        inner = indent + (2 if form.kind == "list" else 1)
        lines = [self._text[form.start]]
        units = list(_units(form.items, has_options=form.kind != "vector"))
        joined = self._joined(form, units, indent)
        for number, unit in enumerate(units):
            if number < joined:
                lines[0] += (" " if number else "") + self._shown(unit, indent + len(lines[0]))
            else:
                self.add(lines, unit, inner)
        last = units[-1][-1] if units else form
        closer = self._text[form.end - 1]
        if last.kind == "comment" and str(last.value).startswith(";"):
            return "\n".join([*lines, " " * indent + closer])
        return "\n".join(lines) + closer

    def _joined(self, form: Form, units: Sequence[tuple[Form, ...]], indent: int) -> int:
        """How many units go on the first line: the head, and its name and options if all fit."""
        below = _BELOW if form.kind == "list" else {"comment"}
        most = {"": 1, "tree": 2}.get(form.head, len(units))
        front = list(takewhile(lambda unit: unit[0].kind not in below, units[:most]))
        flats = [self._flat(part) for unit in front for part in unit]
        width = indent + sum(len(flat or "") + 1 for flat in flats)
        fits = None not in flats and width < WIDTH and len(front) < len(units)
        return len(front) if fits else min(len(front), 1)
