"""What is wrong with a tree's text, where, and how an operator is shown it."""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

from gateway.domain.errors import GatewayError

Severity = Literal["error", "warning"]
SHOWN = 100  # more problems than anyone reads
MARGIN = 70  # characters of a line that are shown on each side of the place


@dataclass(frozen=True, slots=True)
class Problem:
    """Codes: BT00x text, BT01x structure, BT02x references, BT03x types, BT04x lint."""

    code: str
    severity: Severity
    file: str
    line: int
    column: int
    message: str
    text: str = ""  # a part of the line
    caret: int = 0  # where in `text` the place is

    def render(self) -> str:
        head = f"{self.file}:{self.line}:{self.column}: {self.severity} {self.code}: {self.message}"
        return f"{head}\n  {self.text}\n  {' ' * self.caret}^" if self.text else head


class TreeInvalid(GatewayError):
    """The tree must not be used; `problems` has at least one error, and the warnings too."""

    code = "tree_invalid"

    def __init__(self, problems: tuple[Problem, ...], left_out: int = 0) -> None:
        super().__init__("\n".join(problem.render() for problem in problems))
        self.problems, self.left_out = problems, left_out


@dataclass(slots=True)
class Source:
    """A tree's text, and what was found in it so far."""

    name: str
    text: str
    found: dict[tuple[int, str, str], Problem] = field(default_factory=dict)
    left_out: int = 0
    has_errors: bool = False
    _starts: list[int] = field(default_factory=list)

    def error(self, code: str, at: int, message: str) -> None:
        self.has_errors = True
        self._add(code, "error", at, message)

    def warn(self, code: str, at: int, message: str) -> None:
        self._add(code, "warning", at, message)

    def place(self, at: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        if not self._starts:
            self._starts = [0, *(i + 1 for i, c in enumerate(self.text) if c == "\n")]
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1

    def problems(self) -> tuple[Problem, ...]:
        """In the order of the text."""
        return tuple(self.found[key] for key in sorted(self.found))

    def _add(self, code: str, severity: Severity, at: int, message: str) -> None:
        key = (at, code, message)
        if key in self.found:
            return
        if len(self.found) >= SHOWN:
            self.left_out += 1
            return
        line, column = self.place(at)
        whole = self.text[at - column + 1 :].partition("\n")[0]
        cut = max(column - 1 - MARGIN, 0)
        part = whole[cut : column + MARGIN]
        shown = "".join(c if c.isprintable() else " " for c in part).rstrip()
        self.found[key] = Problem(
            code, severity, self.name, line, column, message, shown, column - 1 - cut
        )
