"""Words in messages: what was probably meant, and how a value is shown."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that was probably meant."""
    by_lower = {choice.lower(): choice for choice in choices}
    found = get_close_matches(word[:80].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def meant(word: str, choices: Iterable[str]) -> str:
    """The end of a message about an unknown word; empty if nothing is like it."""
    near = nearest(word, choices)
    return f'; did you mean "{near}"?' if near else ""


def short(text: str) -> str:
    """On one line, without control characters, and not long."""
    cut = text if len(text) <= 60 else f"{text[:57]}..."
    return "".join(c if c.isprintable() else " " if c in "\t\r\n" else "?" for c in cut)
