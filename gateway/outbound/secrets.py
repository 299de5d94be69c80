"""Secrets on their way out and back: filled in for the declared origins, scrubbed from answers."""

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from urllib.parse import quote_from_bytes, unquote_to_bytes

from anyio.lowlevel import checkpoint

from gateway.domain.capabilities import Origin
from gateway.domain.errors import Denied
from gateway.domain.plugins import PluginSecret
from gateway.outbound.addresses import is_loopback

_OPEN = "${secret:"
_PLACEHOLDER = re.compile(r"\$\{secret:([^${}]*)\}")
# A value that could end a segment or a parameter, or climb a path, would change what is asked.
_FITS_URL = re.compile(r"(?!\.+\Z)[A-Za-z0-9._~:@=-]+")
_FITS_HEADER = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_FITS_FRAME = re.compile(r"[ !#-\[\]-~]+")  # stands in a JSON string as it is
_ESCAPE = re.compile(rb"%[0-9A-F]{2}")
_LONG = 65_536
_SHORTEST_FORM = 6  # an encoded form that is shorter stands in unrelated data by chance


class Filling:
    """Fills secrets into one request to one origin, each of them once at most."""

    __slots__ = ("_origin", "_secrets", "used")

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
        if not _is_unheard(self._origin):
            raise Denied(f"secret {name!r} is not sent to {self._origin}: anyone could read it")
        if name in self.used:
            raise Denied(f"secret {name!r} may stand in a request once only")
        self.used.add(name)
        value = secret.value.reveal()
        if not fits.fullmatch(value):
            raise Denied(f"the value of secret {name!r} cannot stand in {where}")
        return value


def _is_unheard(origin: Origin) -> bool:
    """Whether nobody on the way can listen."""
    return origin.scheme == "https" or origin.host == "localhost" or is_loopback(origin.host)


class Scrubber:
    """Replaces the values of secrets by their names, also in the forms that an echo gives them."""

    __slots__ = ("_marks",)

    def __init__(self, secrets: Sequence[PluginSecret]) -> None:
        marks = {
            form: f"[secret {secret.name}]".encode()
            for secret in secrets
            for form in _forms(_as_bytes(secret.value.reveal()))
        }
        # A longer form first: it may contain a shorter one.
        self._marks = sorted(marks.items(), key=lambda mark: -len(mark[0]))

    def in_url(self, url: str) -> bool:
        """Whether it carries one of them, whatever of it is escaped."""
        raw = _as_bytes(url)
        plain = unquote_to_bytes(raw)
        return any(form in raw or form in plain for form, _ in self._marks)

    def text(self, text: str) -> str:
        raw = _as_bytes(text)
        for form, mark in self._marks:
            raw = raw.replace(form, mark)
        return raw.decode(errors="replace")

    async def body(self, body: bytes) -> bytes:
        """As `text`, and lets others run in between if it is a long one."""
        is_long = len(body) > _LONG
        for form, mark in self._marks:
            body = body.replace(form, mark)
            if is_long:
                await checkpoint()
        return body


def _as_bytes(text: str) -> bytes:
    """Bytes that were no UTF-8 when they came in go out as they were."""
    return text.encode(errors="surrogateescape")


def _forms(value: bytes) -> Iterator[bytes]:
    if not value:
        return
    yield value
    for form in (*_json_forms(value), *_percent_forms(value), *_base64_forms(value)):
        if len(form) >= _SHORTEST_FORM:
            yield form


def _json_forms(value: bytes) -> Iterator[bytes]:
    text = value.decode(errors="surrogateescape")
    for is_ascii in (True, False):
        escaped = _as_bytes(json.dumps(text, ensure_ascii=is_ascii)[1:-1])
        yield escaped
        yield escaped.replace(b"/", rb"\/")


def _percent_forms(value: bytes) -> Iterator[bytes]:
    for safe in ("", "/", "/:@!$&'()*+,;="):
        upper = quote_from_bytes(value, safe=safe).encode()
        for form in (upper, upper.replace(b"~", b"%7E"), upper.replace(b"%20", b"+")):
            yield form
            yield _ESCAPE.sub(lambda escape: escape[0].lower(), form)


def _base64_forms(value: bytes) -> Iterator[bytes]:
    """Alone, and inside of something longer: there it may begin at any of three places."""
    for encode in (b64encode, urlsafe_b64encode):
        alone = encode(value)
        yield alone
        yield alone.rstrip(b"=")
        for before in range(3):
            packed = encode(bytes(before) + value)
            # Only the characters that no neighbour has a bit in.
            yield packed[(8 * before + 5) // 6 : 8 * (before + len(value)) // 6]
