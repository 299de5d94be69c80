"""Secrets on their way out and back: filled in for the declared origins, scrubbed from answers."""

import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from anyio.lowlevel import checkpoint

from gateway.domain.errors import Denied
from gateway.domain.plugins import Origin, PluginSecret
from gateway.domain.ports import HttpFailed
from gateway.domain.scrubbing import scanner
from gateway.outbound.guard import is_loopback

_OPEN = "${secret:"
_PLACEHOLDER = re.compile(r"\$\{secret:([^${}]*)\}")
# A value that could end a segment or a parameter, or climb a path, would change what is asked.
_FITS_URL = re.compile(r"(?!\.+\Z)[A-Za-z0-9._~:@=-]+")
_FITS_HEADER = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_FITS_FRAME = re.compile(r"[ !#-\[\]-~]+")  # stands in a JSON string as it is


class Filling:
    """Fills secrets into one request to one origin, each of them once at most."""

    def __init__(self, secrets: Sequence[PluginSecret], origin: Origin) -> None:
        self._secrets = {secret.name: secret for secret in secrets}
        self._origin = origin
        self.used: set[str] = set()

    def into_url(self, text: str) -> str:
        return self._fill(text, _FITS_URL, "a URL")

    def into_header(self, text: str) -> str:
        return self._fill(text, _FITS_HEADER, "a header")

    def into_frame(self, text: str) -> str:
        return self._fill(text, _FITS_FRAME, "a frame")

    def _fill(self, text: str, fits: re.Pattern[str], where: str) -> str:
        if text.count(_OPEN) != len(_PLACEHOLDER.findall(text)):
            raise Denied("a placeholder is not whole; write ${secret:NAME}")
        return _PLACEHOLDER.sub(lambda found: self._value(found[1], fits, where), text)

    def _value(self, name: str, fits: re.Pattern[str], where: str) -> str:
        secret = self._secrets.get(name)
        if secret is None:
            raise Denied(f"secret {name[:64]!r} is not declared for this plugin")
        if self._origin not in secret.origins:
            declared = ", ".join(sorted(map(str, secret.origins))) or "no host"
            raise Denied(f"secret {name!r} is not for {self._origin} (declared: {declared})")
        is_local = self._origin.host == "localhost" or is_loopback(self._origin.host)
        # Nobody on the way may listen.
        if self._origin.scheme != "https" and not is_local:
            raise Denied(f"secret {name!r} is not sent to {self._origin}: anyone could read it")
        if name in self.used:
            raise Denied(f"secret {name!r} may stand in a request once only")
        self.used.add(name)
        value = secret.value.reveal()
        if not fits.fullmatch(value):
            raise Denied(f"the value of secret {name!r} cannot stand in {where}")
        return value


class Scrubber:
    """Replaces the values of secrets by their names, also in the forms that an echo gives them."""

    def __init__(self, secrets: Sequence[PluginSecret]) -> None:
        marks = ((one.value.reveal(), f"[secret {one.name}]") for one in secrets)
        self._scanner = scanner(tuple(marks))

    def in_url(self, url: str) -> bool:
        """Whether it carries one of them, whatever of it is escaped."""
        raw = _as_bytes(url)
        return self._scanner.finds(raw) or self._scanner.finds(unquote_to_bytes(raw))

    def text(self, text: str) -> str:
        return self._scanner.data(_as_bytes(text)).decode(errors="replace")

    def error(self, error: Denied | HttpFailed) -> Denied | HttpFailed:
        """The same error, scrubbed, and without the errors behind it."""
        detail = self.text(str(error))
        if isinstance(error, HttpFailed):
            return HttpFailed(error.kind, detail, sent=error.sent)
        return Denied(detail)

    async def body(self, body: bytes) -> bytes:
        """As `text`, and lets others run in between if it is a long one."""
        work = self._scanner.steps(body)
        while True:
            try:
                next(work)
            except StopIteration as done:
                scrubbed: bytes = done.value
                return scrubbed
            await checkpoint()


def _as_bytes(text: str) -> bytes:
    """Bytes that were no UTF-8 when they came in go out as they were."""
    return text.encode(errors="surrogateescape")
