"""The frame of an agent's system text, with places for what changes. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

PLACES = ("soul", "system_prompt", "notes", "threads", "tools", "facts", "summary")
_PART = re.compile(r"\{\{|\}\}|\{([^{}\n]*)\}|[{}]")


class TemplateInvalid(ValueError):
    """`column` and `line` count from 1; `name`: what stands where a known one should."""

    def __init__(self, text: str, at: int, problem: str, name: str | None = None) -> None:
        self.line = text.count("\n", 0, at) + 1
        self.column = at - text.rfind("\n", 0, at)
        self.problem, self.name = problem, name
        super().__init__(f"{self.line}:{self.column}: {problem}")


@dataclass(frozen=True, slots=True)
class Template:
    """Texts, each with the name of the place behind it; the last has none."""

    parts: tuple[tuple[str, str], ...]

    @property
    def places(self) -> frozenset[str]:
        return frozenset(name for _, name in self.parts)

    def render(self, values: Mapping[str, str]) -> str:
        """What stands in a value stays as it is; a place without a value is empty."""
        return "".join(text + values.get(name, "") for text, name in self.parts)


def compile_prompt(text: str) -> Template:
    """Raises TemplateInvalid."""
    parts: list[tuple[str, str]] = []
    before, end = "", 0
    for found in _PART.finditer(text):
        before, end = before + text[end : found.start()], found.end()
        name = found[1]
        if name is None:
            if len(found[0]) == 1:
                told = "this brace stands alone; write {{ or }} for a brace"
                raise TemplateInvalid(text, found.start(), told)
            before += found[0][0]
            continue
        if name not in PLACES:
            told = f"there is no placeholder {found[0][:64]}"
            raise TemplateInvalid(text, found.start(), told, name)
        if any(name == known for _, known in parts):
            raise TemplateInvalid(text, found.start(), f"{found[0]} stands here a second time")
        parts.append((before, name))
        before = ""
    return Template((*parts, (before + text[end:], "")))
