"""A token estimate that needs no tokenizer: a provider's own count always replaces it."""

from math import ceil

BYTES_A_TOKEN = 3.2  # measured over mixed prose and JSON; four is far too hopeful for JSON
MESSAGE_OVERHEAD = 4  # role and separators


def estimate_tokens(text: str) -> int:
    """Estimated tokens of a text; 0 for none."""
    return ceil(text_bytes(text) / BYTES_A_TOKEN)


def text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
