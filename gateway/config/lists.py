"""A TOML list as somebody wrote it, made longer or shorter; what else stands in it stays."""

import re
from collections.abc import Sequence

from gateway.config.placing import Span

_UP_TO_COMMA = re.compile(rb"((?:\s|#[^\n]*\n)*),")
_REST_OF_LINE = re.compile(rb"[ \t]*(#[^\n]*)?\r?\n")
_INDENT = re.compile(rb"[ \t]*")
USUAL = b"    "


def line_end(source: bytes) -> bytes:
    """How the lines of a file end: as its first one does."""
    return b"\r\n" if source.partition(b"\n")[0].endswith(b"\r") else b"\n"


def longer(source: bytes, whole: Span, elements: Sequence[Span], new: bytes) -> bytes:
    """The file with one element more at the end of a list, on a line of its own if others are."""
    end = elements[-1].end if elements else whole.start + 1
    rest = source[end : whole.end - 1]
    has_comma = not elements or _UP_TO_COMMA.match(rest)
    if b"\n" not in source[whole.start : whole.end]:
        return source[:end] + (b", " if elements else b"") + new + source[end:]
    kept = rest.rstrip()
    closing = rest[len(kept) :]
    fresh = line_end(source)
    line = fresh + _indent(source, end if not elements else elements[-1].start) + new + b","
    closing = closing if b"\n" in closing else fresh
    comma = b"" if has_comma else b","
    return source[:end] + comma + kept + line + closing + source[whole.end - 1 :]


def shorter(source: bytes, element: Span) -> bytes:
    """The file without this element; a line that it had for itself goes with its comment."""
    before, after = source[: element.start], source[element.end :]
    comma = _UP_TO_COMMA.match(after)
    if comma:
        after = comma[1] + after[comma.end() :]
    start = before.rfind(b"\n") + 1
    line = _REST_OF_LINE.match(after)
    if line and not before[start:].strip():
        return before[:start] + after[line.end() :]
    # "a", "b" without "b" is "a"; without "a" it is "b"
    return before + after.lstrip(b" \t") if comma else re.sub(rb",[ \t]*\Z", b"", before) + after


def _indent(source: bytes, offset: int) -> bytes:
    """Of the line that this begins, else the usual one."""
    start = source.rfind(b"\n", 0, offset) + 1
    found = _INDENT.match(source, start, offset)
    return found[0] if found and found.end() == offset else USUAL
