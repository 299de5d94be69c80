"""What a server says of its tools, made fit to be shown to a model."""

import unicodedata

LONGEST = 1_024


def described(server: str, text: str | None) -> str:
    """One short line that says whose words it holds."""
    line = " ".join(_plain(text or "").split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST - 1]}…"
    return f"(from the MCP server {server}) {line or 'It does not say what it does.'}"


def _plain(text: str) -> str:
    """Without what is not seen, or turns around what is."""
    spaced = (" " if one.isspace() else one for one in text[: 64 * LONGEST])
    return "".join(one for one in spaced if unicodedata.category(one)[0] != "C")
