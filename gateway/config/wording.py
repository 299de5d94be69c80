"""What pydantic says about a document, as findings in the operator's words: for errors only."""

from collections.abc import Iterable, Mapping
from datetime import date, time
from typing import TYPE_CHECKING, Protocol

from gateway.config.keys import keys_at, sections_with
from gateway.config.masking import MASK, is_sensitive
from gateway.config.problems import (
    MALFORMED,
    MISSING,
    NOT_A_CHOICE,
    OUT_OF_RANGE,
    UNKNOWN_KEY,
    WRONG_TYPE,
    Finding,
    KeyPath,
    choose,
    dotted,
    nearest,
    quoted,
)

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
_RANGES = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
_PATTERNS = {
    "id": "an agent id (letters, digits and hyphens, at most 64)",
    "name": "a name (letters, digits, dot, hyphen, underscore, at most 64)",
}


class _Describe(Protocol):
    def __call__(self, path: KeyPath, value: object, error: "ErrorDetails") -> Finding: ...


def findings_of(
    errors: Iterable["ErrorDetails"], content: Mapping[str, object]
) -> Iterable[Finding]:
    """One finding a path: of a union's complaints, the one that fits what was written."""
    best: dict[tuple[KeyPath, bool], ErrorDetails] = {}
    for detail in errors:
        path = _path(detail["loc"], content, detail["type"])
        key = (path, detail["type"] == "extra_forbidden")
        if key not in best or _fits_better(detail, best[key]):
            best[key] = detail
    for (path, _), detail in best.items():
        yield _finding(path, detail)


def _path(loc: tuple[str | int, ...], content: object, kind: str) -> KeyPath:
    """`loc` without the names of a union's members, which are no keys."""
    here: object = content
    for number, part in enumerate(loc):
        try:
            here = here[part]  # type: ignore[index]  # whatever it is, it may not hold this
        except (TypeError, KeyError, IndexError):
            return loc[: number + 1] if kind == "missing" else loc[:number]
    return loc


def _fits_better(new: "ErrorDetails", old: "ErrorDetails") -> bool:
    if isinstance(new["input"], str):
        return new["type"] == "literal_error"
    return old["type"] == "literal_error"


def _finding(path: KeyPath, error: "ErrorDetails") -> Finding:
    kind, value = error["type"], error["input"]
    describe: dict[str, _Describe] = {
        "extra_forbidden": _unknown,
        "missing": _missing,
        "literal_error": _choice,
        "string_pattern_mismatch": _pattern,
        "string_too_short": _empty,
        "too_short": _empty,
        "recursion_depth_exceeded": _too_deep,
        "recursion_loop": _too_deep,
        **dict.fromkeys(_RANGES, _range),
    }
    return describe.get(kind, _type)(path, value, error)


def _unknown(path: KeyPath, value: object, error: "ErrorDetails") -> Finding:
    key = str(path[-1])
    known = keys_at(path[:-1])
    near = nearest(key, known)
    elsewhere = sections_with(key)
    if near:
        fix = f'did you mean "{near}"?'
    elif elsewhere:
        fix = f"it belongs into {' or '.join(elsewhere)}"
    else:
        fix = f"remove it; known here: {', '.join(known)}"
    return Finding(UNKNOWN_KEY, path, f"unknown key {quoted(key)}", fix, at="key")


def _missing(path: KeyPath, value: object, error: "ErrorDetails") -> Finding:
    key = str(path[-1])
    return Finding(MISSING, path, f'"{key}" is missing', f"add {key} = ...", at="table")


def _choice(path: KeyPath, value: object, error: "ErrorDetails") -> Finding:
    if path == ("config_version",):
        fix = "write config_version = 1"
        message = f"this program reads version 1, not {shown(path, value)}"
        return Finding(NOT_A_CHOICE, path, message, fix)
    expected = str(error["ctx"]["expected"])
    choices = [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]
    if path[-1] == "token_budget":
        fix = f'{_meant(value, choices)}write a whole number from 4000 to 128000, or "auto"'
        return Finding(NOT_A_CHOICE, path, f"{shown(path, value)} is not a budget", fix)
    fix = choose(value if isinstance(value, str) else "", choices)
    return Finding(NOT_A_CHOICE, path, f"{shown(path, value)} is not one of the choices", fix)


def _meant(value: object, choices: Iterable[str]) -> str:
    near = nearest(value, choices) if isinstance(value, str) else None
    return f'did you mean "{near}"? ' if near else ""


def _pattern(path: KeyPath, value: object, error: "ErrorDetails") -> Finding:
    wanted = _PATTERNS.get(str(path[-1]), "of the right form")
    text = value if isinstance(value, str) else ""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in text).strip("-")[:64]
    fix = f'write "{plain}"' if plain else "give it a name"
    return Finding(MALFORMED, path, f"{shown(path, value)} is not {wanted}", fix)


def _empty(path: KeyPath, value: object, error: "ErrorDetails") -> Finding:
    return Finding(MALFORMED, path, "must not be empty", "write a value, or remove the key")


def _too_deep(path: KeyPath, value: object, error: "ErrorDetails") -> Finding:
    return Finding(MALFORMED, path[:8], "nested too deeply", "five fallbacks are the most")


def _range(path: KeyPath, value: object, error: "ErrorDetails") -> Finding:
    name, words = _RANGES[error["type"]]
    bound = error["ctx"][name]
    number = int(bound) if float(bound).is_integer() else bound
    message = f"{shown(path, value)} is out of range: {words} {number}"
    fix = f"write {number}" if name in {"ge", "le"} else f"write a number {words} {number}"
    return Finding(OUT_OF_RANGE, path, message, f"{fix}, or remove the key for the default")


def _type(path: KeyPath, value: object, error: "ErrorDetails") -> Finding:
    expected = _EXPECTED.get(error["type"], "another value")
    message = f"expected {expected}, got {shown(path, value)}"
    return Finding(WRONG_TYPE, path, message, _type_fix(path, value, expected))


def _type_fix(path: KeyPath, value: object, expected: str) -> str:
    section = dotted(tuple(part for part in path if isinstance(part, str)))
    match expected, value:
        case "a list", dict():
            return f"write [[{section}]] with two brackets, once for each"
        case "a table", list():
            return f"write [{section}] with one bracket; there is only one"
        case "a string", bool() | int() | float() | date() | time():
            text = "..." if is_sensitive(path) else plain_text(value)
            return f"put it into quotes: {quoted(text)}"
        case _, str(text):
            return _unquoted(text, expected)
    return f"write {expected}"


def _unquoted(text: str, expected: str) -> str:
    """The fix where a string stands that should be something else."""
    plain = text.strip().replace(" ", "").replace(",", "")[:40]
    digits = plain.replace("_", "").replace(".", "", 1)
    if expected.endswith("number"):
        is_number = digits.isdigit() and digits.isascii()
        return f"write {plain} without quotes" if is_number else "write digits, without quotes"
    return "put it into [ ]" if expected == "a list" else f"write {expected}, without quotes"


def shown(path: KeyPath, value: object) -> str:
    """A value inside a message: short, and never a secret."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if is_sensitive(path):
        return MASK
    return quoted(value) if isinstance(value, str) else plain_text(value)


def plain_text(value: object) -> str:
    """As TOML writes it; a number that is too long to print is only called so."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 200:
        return "a very large number"
    return str(value)[:60]
