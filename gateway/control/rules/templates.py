"""Texts with `{path}` and `{path|format}` in them, and nothing else: they hold no program."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gateway.control.expressions import (
    CANNOT,
    Expression,
    ExpressionFailed,
    ExpressionInvalid,
    Scope,
    compile_expression,
)

MOST = 2_000  # characters of one value: tools and people say whatever they like
MOST_TEMPLATE, MOST_RENDERED = 2_000, 8_000  # characters of a text, before and after
_PART = re.compile(r"\{\{|\}\}|\{([^{}|]*)(?:\|([^{}]*))?\}|[{}]")
_PATH = re.compile(r"[a-z]\w*(\.\w+)*", re.ASCII)
_FORMAT = re.compile(r",|,?d|,?(\.[0-9])?[f%]")


@dataclass(frozen=True, slots=True)
class Template:
    parts: tuple[str | Callable[[Scope], str], ...]

    def render(self, scope: Scope) -> str:
        """Raises ExpressionFailed."""
        return _cut(
            "".join(one if isinstance(one, str) else one(scope) for one in self.parts),
            MOST_RENDERED,
        )


def compile_path(text: str, roots: Collection[str], at: int = 0) -> Expression:
    """Raises ExpressionInvalid; `at` is where in its text it stands."""
    if not _PATH.fullmatch(text):
        raise ExpressionInvalid("here only the path of a value can stand, as in payload.tool", at)
    try:
        return compile_expression(text, roots=roots)
    except ExpressionInvalid as error:
        raise ExpressionInvalid(error.problem, at + error.column) from None


def compile_template(text: str, roots: Collection[str]) -> Template:
    """Raises ExpressionInvalid."""
    if len(text) > MOST_TEMPLATE:
        raise ExpressionInvalid(f"is longer than {MOST_TEMPLATE} characters", 0)
    parts: list[str | Callable[[Scope], str]] = []
    end = 0
    for found in _PART.finditer(text):
        parts.append(text[end : found.start()])
        end = found.end()
        if found[1] is not None:
            path = compile_path(found[1], roots, found.start(1))
            parts.append(shown(path, _checked_format(found)))
        elif len(found[0]) == 2:
            parts.append(found[0][0])
        else:
            raise ExpressionInvalid(
                "this brace stands alone; write {{ or }} for a brace", found.start()
            )
    return Template((*parts, text[end:]))


def _checked_format(found: re.Match[str]) -> str | None:
    if found[2] is not None and not _FORMAT.fullmatch(found[2]):
        problem = "no such format; there are d, f, % and the like of .1f, with a comma in front"
        raise ExpressionInvalid(problem, found.start(2))
    return found[2]


def shown(path: Expression, spec: str | None = None) -> Callable[[Scope], str]:
    def render(scope: Scope) -> str:
        value = path.evaluate(scope)
        try:
            return _said(value) if spec is None else format(value, spec)
        except CANNOT as error:
            raise ExpressionFailed(f"{path.text}|{spec or ''}: {error}") from error

    return render


def _said(value: object) -> str:
    """As people write it; nothing for what is not there."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    elif isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return _cut("" if value is None else str(value), MOST)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
