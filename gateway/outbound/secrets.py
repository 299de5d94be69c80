"""Fills secrets into requests to their declared origins, and scrubs them from the answers."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import unquote_to_bytes

from anyio.lowlevel import checkpoint

from gateway.domain.errors import Denied
from gateway.domain.plugins import Origin, PluginSecret
from gateway.domain.ports import HttpFailed
from gateway.domain.scrubbing import scanner
from gateway.outbound.guard import is_loopback

_OPEN = "${secret:"
_PLACEHOLDER = re.compile(r"\$\{secret:([^${}]*)\}")
# The values that a place can hold without changing the meaning of the rest.
_FITS: Mapping[str, re.Pattern[str]] = {
    # A path segment or a query parameter must not end, and `..` must not climb.
    "URL": re.compile(r"(?!\.+\Z)[A-Za-z0-9._~:@=-]+"),
    "header": re.compile(r"[!-~](?:[ -~]*[!-~])?"),
    "frame": re.compile(r"[ !#-\[\]-~]+"),  # a JSON string needs no escape for these
}


class SecretFiller:
    """Fills secrets into one request to one origin, each secret at most once."""

    def __init__(self, secrets: Sequence[PluginSecret], origin: Origin) -> None:
        self._secrets = {secret.name: secret for secret in secrets}
        self._origin = origin
        self.used: set[str] = set()

    def fill(self, text: str, place: Literal["URL", "header", "frame"]) -> str:
        """Raises Denied if a secret is unknown, not for this origin, or does not fit the place."""
        if text.count(_OPEN) != len(_PLACEHOLDER.findall(text)):
            raise Denied("a placeholder is incomplete; write ${secret:NAME}")
        return _PLACEHOLDER.sub(lambda found: self._value(found[1], place), text)

    def _value(self, name: str, place: str) -> str:
        secret = self._secrets.get(name)
        if secret is None:
            raise Denied(f"secret {name[:64]!r} is not declared for this plugin")
        if self._origin not in secret.origins:
            declared = ", ".join(sorted(map(str, secret.origins))) or "no host"
            raise Denied(f"secret {name!r} is not for {self._origin} (declared: {declared})")
        is_local = self._origin.host == "localhost" or is_loopback(self._origin.host)
        if self._origin.scheme != "https" and not is_local:
            raise Denied(f"secret {name!r} is not sent to {self._origin} without TLS; use https")
        if name in self.used:
            raise Denied(f"secret {name!r} can be used only once in a request")
        self.used.add(name)
        value = secret.value.reveal()
        if not _FITS[place].fullmatch(value):
            raise Denied(f"the value of secret {name!r} has characters that no {place} allows")
        return value


class Scrubber:
    """Replaces secret values by their names, in every encoding that a server may echo."""

    def __init__(self, secrets: Sequence[PluginSecret]) -> None:
        marks = ((one.value.reveal(), f"[secret {one.name}]") for one in secrets)
        self._scanner = scanner(tuple(marks))

    def finds_in_url(self, url: str) -> bool:
        """True if the URL has a secret, escaped or not."""
        raw = _as_bytes(url)
        return self._scanner.finds(raw) or self._scanner.finds(unquote_to_bytes(raw))

    def text(self, text: str) -> str:
        return self._scanner.data(_as_bytes(text)).decode(errors="replace")

    def error(self, error: Denied | HttpFailed) -> Denied | HttpFailed:
        """Returns the error with a scrubbed message and without its causes."""
        detail = self.text(str(error))
        if isinstance(error, HttpFailed):
            return HttpFailed(error.kind, detail, sent=error.sent)
        return Denied(detail)

    async def body(self, body: bytes) -> bytes:
        """Scrubs a body. Yields to other tasks while it scrubs a long one."""
        work = self._scanner.steps(body)
        while True:
            try:
                next(work)
            except StopIteration as done:
                scrubbed: bytes = done.value
                return scrubbed
            await checkpoint()


def _as_bytes(text: str) -> bytes:
    """Encodes text; bytes that were not UTF-8 on arrival come out unchanged."""
    return text.encode(errors="surrogateescape")
