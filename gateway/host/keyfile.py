"""The key with which our command line authenticates as the operator at a running gateway."""

import os
import secrets
from pathlib import Path

NAME = "operator.key"


def make_key(data_dir: Path) -> str:
    """Writes a new key to a file that only its owner can read. Keys of earlier starts become invalid."""
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
