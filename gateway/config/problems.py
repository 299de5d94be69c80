"""Problems of a configuration, and their text for the operator."""

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from gateway.domain.errors import GatewayError, NotInstalled
from gateway.domain.text import choose, quoted

KeyPath = tuple[str | int, ...]
At = Literal["key", "value", "table"]  # what the caret points at

SHOWN = 100  # problems in one report


class Code(StrEnum):
    """The code of a problem; `exogate explain` explains it."""

    SYNTAX = "CFG001"
    UNKNOWN_KEY = "CFG002"
    NOT_A_CHOICE = "CFG003"
    MISSING = "CFG004"
    WRONG_TYPE = "CFG005"
    MALFORMED = "CFG006"
    OUT_OF_RANGE = "CFG007"
    DUPLICATE = "CFG008"
    UNKNOWN_NAME = "CFG009"
    UNSET_VARIABLE = "CFG010"
    BAD_SECRET_FILE = "CFG011"
    MISSING_FILE = "CFG012"
    OPEN_DOOR = "CFG013"
    NO_KEY = "CFG014"
    UNTRUSTED_FILE = "CFG015"
    NOT_INSTALLED = "CFG016"
    NO_USE = "CFG017"
    REFUSED_AT_START = "CFG018"


@dataclass(frozen=True, slots=True)
class ConfigFinding:
    """A problem or a notice, before its position in the file is known."""

    code: str
    path: KeyPath
    message: str
    fix: str
    at: At = "value"
    variable: str | None = None  # the source of the value, if it is not the file
    column: int | None = None  # in the text value, from 0

    @property
    def key(self) -> str:
        return dotted(self.path)


def without_consequences(
    later: Iterable[ConfigFinding], first: Iterable[ConfigFinding]
) -> list[ConfigFinding]:
    """Returns the later findings without those on the path of a first one, which are its consequences."""
    paths = [finding.path for finding in first]
    whole = set(paths)
    above = {path[:length] for path in paths for length in range(len(path))}
    return [
        one
        for one in later
        if one.path not in above
        and not any(one.path[:length] in whole for length in range(len(one.path) + 1))
    ]


@dataclass(slots=True, kw_only=True)
class Report:
    """The findings and notices of reading a configuration."""

    findings: list[ConfigFinding] = field(default_factory=list)
    notices: list[ConfigFinding] = field(default_factory=list)
    names: Mapping[str, Collection[str]] = field(default_factory=dict)  # by kind, such as "agent"

    def wrong(self, code: Code, path: KeyPath, message: str, fix: str, *, at: At = "value") -> None:
        self.findings.append(ConfigFinding(code, path, message, fix, at))

    def not_installed(self, path: KeyPath, error: NotInstalled, *, at: At = "value") -> None:
        """Reports a missing extra."""
        self.wrong(Code.NOT_INSTALLED, path, error.problem, error.fix, at=at)

    def note(self, code: str, path: KeyPath, message: str, fix: str) -> None:
        self.notices.append(ConfigFinding(code, path, message, fix))

    def refers(
        self, path: KeyPath, what: str, name: str, *, or_else: str = "", at: At = "value"
    ) -> bool:
        """True if a name is defined, else it is reported."""
        names = self.names[what]
        if name in names:
            return True
        fix = choose(name, names) + or_else
        self.wrong(Code.UNKNOWN_NAME, path, f"there is no {what} {quoted(name)}", fix, at=at)
        return False

    def check_name(self, path: KeyPath, name: str, taken: Container[str], owner: str) -> None:
        """Reports a name that is already taken, by an owner such as "a built-in tool"."""
        if name in taken:
            message = f"{quoted(name)} is the name of {owner}"
            self.wrong(Code.DUPLICATE, path, message, "choose another name")


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """A problem with its position. `line` is 0 if `source` is a variable or the command line."""

    code: str
    source: str
    line: int
    column: int
    key: str
    message: str
    fix: str
    text: str = ""  # the source line, secrets masked; empty if it is not shown
    caret: int = 0  # offset in `text`
    severity: Literal["error", "warning"] = "error"

    def render(self) -> str:
        place = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        subject = f" {self.key}:" if self.key else ""
        lines = [f"{place}: {self.severity}[{self.code}]{subject} {self.message}"]
        if self.text:
            lines += [f"{self.line:>5} | {self.text}", f"{'':>5} | {' ' * self.caret}^"]
        return "\n".join([*lines, f"{'':>5} = fix: {self.fix}"])


class ConfigInvalid(GatewayError):
    """The configuration has errors; `problems` is never empty."""

    code = "config_error"

    def __init__(
        self,
        problems: tuple[ConfigProblem, ...],
        *,
        left_out: int = 0,
        warnings: tuple[ConfigProblem, ...] = (),
    ) -> None:
        count = len(problems) + left_out
        super().__init__(f"{count} error{'' if count == 1 else 's'} in the configuration")
        self.problems, self.left_out, self.warnings = problems, left_out, warnings

    def render(self) -> str:
        count = len(self.problems) + self.left_out
        more = f" ({self.left_out} of them not shown)" if self.left_out else ""
        end = f"{count} error{'s' if count > 1 else ''}{more}. Nothing was changed."
        return "\n".join([*(problem.render() for problem in self.problems), end])


def items_of(value: object) -> Iterable[tuple[str | int, object]]:
    """Returns the items of a table or list with their keys or indexes; nothing for other values."""
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def dotted(path: KeyPath) -> str:
    """Returns a path in TOML syntax; long parts are cut."""
    return ".".join(_part(str(part)) for part in path)


def _part(part: str) -> str:
    is_bare = part.isascii() and part.replace("-", "").replace("_", "").isalnum()
    return part[:60] if is_bare else quoted(part)
