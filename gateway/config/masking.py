"""Keeps secrets out of what is shown about a configuration."""

import re
from collections.abc import Iterable

from gateway.config.problems import KeyPath, printable

MASK = "***"
WIDTH = 120  # of a source line as it is shown

_SECRET_NAME = re.compile(
    r"(^|_)(token|api_?key|secrets?|pass(word|wd|phrase)?|credentials?|authorization|cookie"
    r"|private_key|access_key)$|^key$"
)
_SECRET_TEXT = re.compile(
    r"\b(?:sk|pk|rk)[-_][\w-]{6,}|\bgh[pousr]_\w{8,}|\bxox[a-z]-[\w-]{6,}|\bAIza[\w-]{10,}"
    r"|\bBearer +[^\s\"'$]{4,}",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Whether a key of this name would hold a secret, in our schema or anyone's."""
    return _SECRET_NAME.search(name.lower().replace("-", "_")) is not None


def is_sensitive(path: KeyPath) -> bool:
    match path:
        case ("plugins", int(), "secrets", _, "hosts", *_) | (
            "channels",
            str(),
            "secrets",
            _,
            "hosts",
            *_,
        ):
            return False  # whom a secret is for
    if path[:2] == ("mcp", "servers") and path[3:4] == ("env",):
        return True
    return "headers" in path or any(isinstance(p, str) and looks_secret(p) for p in path)


_ADDRESS_SECRET = re.compile(r"(?<=://)[^\s/@\"']*@|(?<=[?&])[^\s\"']+")


def struck(text: str, secrets: Iterable[str] = ()) -> str:
    """Without these secrets, what looks like a key of a well-known kind, and the user and query of an
    address."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _ADDRESS_SECRET.sub(MASK, _SECRET_TEXT.sub(MASK, text))


def fitted(before: str, after: str, secrets: Iterable[str] = ()) -> tuple[str, int]:
    """A line, cut around its caret if it is long, and the caret's column."""
    before = printable(struck(before.removeprefix("\ufeff"), secrets))
    after = printable(struck(after.rstrip("\r"), secrets))
    if len(before) > WIDTH - 20:
        before = f"...{before[-(WIDTH // 2) :]}"
    room = WIDTH - len(before)
    after = after.rstrip() if len(after) <= room else f"{after[:room]}..."
    return before + after, len(before)
