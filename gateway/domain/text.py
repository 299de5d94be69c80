"""Words in messages (nearest names, quoted values), times and large numbers as people write them,
and escapes."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Returns the choice that was probably meant."""
    by_lower = {choice.lower(): choice for choice in choices}
    found = get_close_matches(word[:80].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def choose(word: str, choices: Iterable[str]) -> str:
    """Returns the fix for a word that is not one of the choices."""
    names = tuple(choices)
    near = nearest(word, names)
    meant = f'did you mean "{near}"? ' if near else ""
    return f"{meant}choose one of: {', '.join(names)}" if names else f"{meant}none is defined"


def meant(word: str, choices: Iterable[str]) -> str:
    """Returns the end of a message about an unknown word; empty if no choice is similar."""
    near = nearest(word, choices)
    return f'; did you mean "{near}"?' if near else ""


def quoted(text: str) -> str:
    """Returns a value for use in a message."""
    return f'"{short(text)}"'


def short(text: str) -> str:
    """Returns the text shortened, on one line, without control characters."""
    return printable(text if len(text) <= 60 else f"{text[:57]}...")


def printable(text: str) -> str:
    """Returns the text on one line, one column per character."""
    return "".join(c if c.isprintable() else " " if c in "\t\r\n" else "?" for c in text)


_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_TIMES = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
LONGEST_S = 36_525 * 86_400


def moment_ago(text: str, now: datetime) -> datetime:
    """Parses a past time: `90s`, `15m`, `1h`, `7d` or ISO 8601. Raises ValueError."""
    return _moment(text, now, -1)


def moment_in(text: str, now: datetime) -> datetime:
    """Parses a future time: `45s`, `12h`, `30d` or ISO 8601. Raises ValueError."""
    return _moment(text, now, 1)


def _moment(text: str, now: datetime, sign: int) -> datetime:
    if found := re.fullmatch(r"([0-9]{1,10})([smhdw])", text):
        seconds = int(found[1]) * _SECONDS[found[2]]
        if seconds > LONGEST_S:
            raise ValueError(f"{quoted(text)} is longer than a hundred years")
        return now + sign * timedelta(seconds=seconds)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        told = "is not a time; write 45s, 12h, 30d, or a date like 2026-12-31"
        raise ValueError(f"{quoted(text)} {told}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def count_of(text: str) -> int:
    """Parses a whole number: `500000`, `500_000`, `500k`, `1.5M`. Raises ValueError."""
    found = re.fullmatch(r"([0-9][0-9_]{0,18}(?:\.[0-9]{1,6})?)([kMG]?)", text.replace("K", "k"))
    number = round(float(found[1]) * _TIMES[found[2]], 6) if found else 0.5
    if number != int(number) or number > 2**53:
        raise ValueError(f"{quoted(text)} is not a number of tokens; write 500000, 500k or 2M")
    return int(number)


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def no_formula(value: object) -> object:
    """Returns a value for CSV that a spreadsheet does not run as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


# -- escapes for text of users, models, plugins and platforms that is printed on a terminal

# C0 without tab and newline, DEL, C1, the marks, embeddings, overrides and isolates of bidirectional
# text, line and paragraph separators, interlinear annotations, and lone surrogates.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb"
    "\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Replaces each character that could steer a terminal by its escape: `\x1b`, and `\u009b`
    beyond ASCII.

    JSON keeps its value: its C0 characters are escaped already, and the others get JSON's own
    escapes.
    """
    return _STEERING.sub(_escape, text)


def one_line(text: str) -> str:
    """Does the same for a text inside a row; escapes newlines and tabs too."""
    return visible(text).replace("\n", r"\n").replace("\t", r"\t")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"
