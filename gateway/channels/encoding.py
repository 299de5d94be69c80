"""Text without a UTF-8 form: marked before an adapter sees it, so that it costs its one message."""

import re

# Two noncharacters: no person types them, and no adapter takes them for markup.
MARK = "\ufdd0\ufdd1"
MENDED = "\N{REPLACEMENT CHARACTER}"
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF_ESCAPE = re.compile(rf"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}")
_HALF = re.compile("[\ud800-\udfff]")
_MAY_HOLD_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def marked(body: bytes) -> tuple[bytes, bool]:
    """JSON with MARK for each half of a surrogate pair and each byte that is no UTF-8, and whether
    there was any. What is no JSON stays as it is."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return body, False
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = _HALF.sub(MARK, body.decode(errors="surrogateescape"))
    else:
        if _MAY_HOLD_HALF.search(body) is None:
            return body, False
    text = _without_halves(text)
    changed = text.encode()
    return changed, changed != body


def readable(frame: str) -> str:
    """JSON that can be read whatever a platform wrote, for what the host itself looks at."""
    changed, is_changed = marked(frame.encode(errors="replace"))
    return changed.decode().replace(MARK, MENDED) if is_changed else frame


def _without_halves(text: str) -> str:
    """A backslash that is escaped itself begins no escape; NUL stands in no JSON."""
    if "\0" in text:
        return text
    hidden = _HALF_ESCAPE.sub(MARK, text.replace(r"\\", "\0\0"))
    return hidden.replace("\0\0", r"\\")
