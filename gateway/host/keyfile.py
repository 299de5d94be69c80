"""The key by which our own command line proves to a running gateway that it is the operator's."""

import os
import secrets
from pathlib import Path

NAME = "operator.key"


def make_key(data_dir: Path) -> str:
    """A new key in a file that only its owner can read; the one of an earlier start is void."""
    key = secrets.token_urlsafe(32)
    fresh = data_dir / f"{NAME}.new"
    fresh.unlink(missing_ok=True)
    opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(opened, "w", encoding="ascii") as file:
        file.write(key)
    fresh.replace(data_dir / NAME)
    return key


def read_key(data_dir: Path) -> str | None:
    """The key of the running gateway; None if this user cannot read it."""
    try:
        return (data_dir / NAME).read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
