"""Keeps secrets out of what is shown about a configuration."""

import re
from collections.abc import Iterable

from gateway.config.problems import KeyPath
from gateway.domain.text import printable

MASK = "***"
WIDTH = 120  # of a source line as it is shown

_SECRET_NAME = re.compile(
    r"(^|_)(token|api_?key|secrets?|pass(word|wd|phrase)?|credentials?|auth(orization)?|cookie"
    r"|(private|access|secret|signing)_key)$|^(key|pat)$"
)
_NEW_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # of accessToken
_SECRET_TEXT = re.compile(
    r"\b(?:sk|pk|rk)[-_][\w-]{6,}|\bgh[pousr]_\w{8,}|\bxox[a-z]-[\w-]{6,}|\bAIza[\w-]{10,}"
    r"|\bBearer +[^\s\"'$]{4,}",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Whether a key of this name would hold a secret, in our schema or anyone's."""
    words = _NEW_WORD.sub("_", name).lower().replace("-", "_")
    return _SECRET_NAME.search(words) is not None


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
_USER_OF_ADDRESS = re.compile(r"(?<=://)[^\s/@\"']*@")
_HEADER_FLAGS = frozenset({"-H", "--header", "--headers"})
_PAIR = re.compile(r"""(?<![\w-])([\w-]++)(["']?\s*[:=]\s*["']?)([^"',}]+)""")
_DRAWN_BY_LOT = re.compile(r"(?<![\w./@-])(?=[A-Za-z_]*\d)(?=[\d_]*[A-Za-z])\w{20,}(?![\w./@-])")


def struck(text: str, secrets: Iterable[str] = ()) -> str:
    """Without these secrets, what looks like a key of a well-known kind, and the user and query of an
    address."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _ADDRESS_SECRET.sub(MASK, _SECRET_TEXT.sub(MASK, text))


def struck_value(text: str) -> str:
    """What nobody knows the meaning of, as `config show` tells it."""
    return _USER_OF_ADDRESS.sub(MASK, _SECRET_TEXT.sub(MASK, text))


def struck_arguments(arguments: Iterable[str], secrets: Iterable[str] = ()) -> list[str]:
    """Arguments of a program: what follows a name that a secret would have is none of a reader's
    business, nor is a header, nor a long word that looks drawn by lot."""
    known, shown, is_next = tuple(secrets), list[str](), False
    for argument in arguments:
        name, sign, _ = argument.partition("=")
        is_named = name in _HEADER_FLAGS or looks_secret(name.lstrip("-"))
        if is_next:
            shown.append(MASK)
        elif is_named:
            shown.append(f"{name}={MASK}" if sign else name)
        else:
            pairs = _PAIR.sub(_struck_pair, struck(argument, known))
            shown.append(_DRAWN_BY_LOT.sub(MASK, pairs))
        is_next = is_named and not sign and not is_next
    return shown


def _struck_pair(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{MASK}" if looks_secret(found[1]) else found[0]


def fitted(before: str, after: str, secrets: Iterable[str] = ()) -> tuple[str, int]:
    """A line, cut around its caret if it is long, and the caret's column."""
    before = printable(struck(before.removeprefix("\ufeff"), secrets))
    after = printable(struck(after.rstrip("\r"), secrets))
    if len(before) > WIDTH - 20:
        before = f"...{before[-(WIDTH // 2) :]}"
    room = WIDTH - len(before)
    after = after.rstrip() if len(after) <= room else f"{after[:room]}..."
    return before + after, len(before)
