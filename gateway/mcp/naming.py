"""What a foreign tool is called here: its server's name, then its own, as every provider takes it."""

import re
from hashlib import sha256

LONGEST = 64
_KEPT = 55  # of a longer one, before _ and 8 letters of its digest
_ODD = re.compile(r"[^A-Za-z0-9_-]")


def exposed(server: str, tool: str) -> str:
    """Always the same for the same two."""
    name = _ODD.sub("_", f"{server}__{tool}")
    if not (name[0].isalpha() or name[0] == "_"):
        name = f"_{name}"
    if len(name) <= LONGEST:
        return name
    digest = sha256(f"{server}/{tool}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[:_KEPT]}_{digest[:8]}"
