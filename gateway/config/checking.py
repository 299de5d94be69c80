"""A document against the schema: its sections, and everything that is wrong with it."""

import re
from collections.abc import Iterable
from datetime import date, time
from typing import TYPE_CHECKING, Any, get_origin

from pydantic import ValidationError

from gateway.config.keys import described, field_at, keys_at, sections_with
from gateway.config.masking import MASK, is_sensitive
from gateway.config.problems import At, Code, Finding, KeyPath, dotted
from gateway.config.schema import ConfigFile
from gateway.domain.text import choose, nearest, printable, quoted

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MOST = 1_000  # findings: whoever has more wrote no configuration
PLACEHOLDER = "placeholder"  # for a needed text that is missing or wrong
ROUNDS = 5  # what is missing within what is wrong shows once that is gone

_CODES = {
    "literal_error": Code.NOT_A_CHOICE,
    "string_pattern_mismatch": Code.MALFORMED,
    "string_too_short": Code.MALFORMED,
    "string_too_long": Code.MALFORMED,
    "too_short": Code.MALFORMED,
    "recursion_loop": Code.MALFORMED,
    "value_error": Code.MALFORMED,
    "greater_than_equal": Code.OUT_OF_RANGE,
    "greater_than": Code.OUT_OF_RANGE,
    "less_than_equal": Code.OUT_OF_RANGE,
    "less_than": Code.OUT_OF_RANGE,
}


def check(content: dict[str, Any]) -> tuple[ConfigFile | None, tuple[Finding, ...], int]:
    """The sections, what is wrong, and how much more is. What is wrong is taken out of the content
    so that the rest can be checked further; None if too little is right."""
    wrong: tuple[Finding, ...] = ()
    left_out = 0
    for _ in range(ROUNDS):
        try:
            return ConfigFile.model_validate(content), wrong, left_out
        except ValidationError as error:
            found = _findings(error.errors(include_url=False)[:MOST], content)
            if not wrong:
                wrong, left_out = found, max(0, error.error_count() - MOST)
            for finding in found:
                _mend(content, finding)
    return None, wrong, left_out


def _findings(errors: Iterable["ErrorDetails"], content: object) -> tuple[Finding, ...]:
    """One a path: a union complains for each member, and the last of ours is for strings."""
    by_path: dict[KeyPath, ErrorDetails] = {}
    for error in errors:
        path = _path(error["loc"], content, error["type"])
        if path not in by_path or isinstance(error["input"], str):
            by_path[path] = error
    return tuple(_finding(path, error) for path, error in by_path.items())


def _path(loc: KeyPath, content: Any, kind: str) -> KeyPath:
    """`loc` without the names of a union's members, which are no keys."""
    for number, part in enumerate(loc):
        try:
            content = content[part]
        except (TypeError, KeyError, IndexError):
            return loc[: number + 1] if kind == "missing" else loc[:number]
    return loc


def _mend(content: Any, finding: Finding) -> None:
    """Removes the innermost key on the path that names the fault."""
    here, owner, at = content, content, 0
    for depth, part in enumerate(finding.path):
        if isinstance(here, dict):
            owner, at = here, depth
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            break
    owner.pop(finding.path[at], None)
    field = field_at(finding.path[: at + 1])
    if field is not None and field.is_required():
        is_list = get_origin(field.annotation) is list
        owner[finding.path[at]] = [] if is_list else PLACEHOLDER


def _finding(path: KeyPath, error: "ErrorDetails") -> Finding:
    kind, value, name = error["type"], error["input"], str(path[-1])
    if kind == "extra_forbidden":
        return Finding(Code.UNKNOWN_KEY, path, f"unknown key {quoted(name)}", _moved(path), "key")
    if kind == "missing":
        fix = f"add {name} = ..."
        return Finding(Code.MISSING, path, f'"{name}" is missing', fix, "table")
    # pydantic speaks of "Input", "String" or "List", and of its own types
    said = re.sub(r"a valid dictionary.*|an object$", "a table", error["msg"])
    message = re.sub(r"^(Input|String|List)\b", lambda _: shown(path, value), said)
    at: At = "key" if error["loc"][-1] == "[key]" else "value"
    code, message = _CODES.get(kind, Code.WRONG_TYPE), message.removeprefix("Value error, ")
    return Finding(code, path[:8], printable(message[:200]), _fix(path, value, kind, error), at)


def _moved(path: KeyPath) -> str:
    """What to do about a key that is not known where it stands."""
    key, known = str(path[-1]), keys_at(path[:-1])
    if near := nearest(key, known):
        return f'did you mean "{near}"?'
    if elsewhere := sections_with(key):
        return f"it belongs into {' or '.join(elsewhere)}"
    return f"remove it; known here: {', '.join(known)}"


def _fix(path: KeyPath, value: object, kind: str, error: "ErrorDetails") -> str:
    section = dotted(tuple(part for part in path if isinstance(part, str)))
    match kind, value:
        case "literal_error", _:
            choices = re.split(r", | or ", error["ctx"]["expected"].replace("'", ""))
            return choose(value if isinstance(value, str) else "", choices)
        case "list_type", dict():
            return f"write [[{section}]] with two brackets, once for each"
        case "model_type", list():
            return f"write [{section}] with one bracket; there is only one"
        case "string_type", bool() | int() | float() | date() | time():
            return f"put it into quotes: {quoted('...' if is_sensitive(path) else _plain(value))}"
        case "int_type" | "float_type" | "bool_type", str():
            return "write it without quotes"
    return f"correct it: {described(path)}"


def shown(path: KeyPath, value: object) -> str:
    """A value inside a message: short, and never a secret."""
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if is_sensitive(path):
        return MASK
    return quoted(value) if isinstance(value, str) else _plain(value)


def _plain(value: object) -> str:
    """As TOML writes it; a number that is too long to print is only called so."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 200:
        return "a very large number"
    return str(value)[:60]
