"""Paths as a configuration writes them."""

from pathlib import Path


def absolute(text: str, folder: Path, home: Path) -> Path | None:
    """`~` is the home directory, anything relative starts at `folder`; None for no path at all."""
    if not text.isprintable():
        return None
    if text == "~":
        return home
    if text.startswith("~/"):
        return home / text[2:]
    return folder / text
