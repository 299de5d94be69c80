"""Words in messages: the nearest name, what else may be written, and values on one line."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that was probably meant."""
    by_lower = {choice.lower(): choice for choice in choices}
    found = get_close_matches(word[:80].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def choose(word: str, choices: Iterable[str]) -> str:
    """The fix for a word that is not one of the choices."""
    names = tuple(choices)
    near = nearest(word, names)
    meant = f'did you mean "{near}"? ' if near else ""
    return f"{meant}choose one of: {', '.join(names)}" if names else f"{meant}none is defined"


def meant(word: str, choices: Iterable[str]) -> str:
    """The end of a message about an unknown word; empty if nothing is like it."""
    near = nearest(word, choices)
    return f'; did you mean "{near}"?' if near else ""


def quoted(text: str) -> str:
    """A value inside a message."""
    return f'"{short(text)}"'


def short(text: str) -> str:
    """On one line, without control characters, and not long."""
    return printable(text if len(text) <= 60 else f"{text[:57]}...")


def printable(text: str) -> str:
    """One column a character, on one line."""
    return "".join(c if c.isprintable() else " " if c in "\t\r\n" else "?" for c in text)
