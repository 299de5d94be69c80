"""What an asker steers, read strictly: method, URL and headers. Nothing here touches the network."""

import re
from dataclasses import dataclass
from urllib.parse import quote

from yarl import URL

from gateway.domain.errors import Denied
from gateway.domain.plugins import USUAL_PORT, Origin, canonical_host
from gateway.domain.ports import FetchGrant

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MAX_URL_BYTES = 8 * 1024
MAX_HEADERS = 64
MAX_HEADER_BYTES = 16 * 1024

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[^\]]*\]|[^\[\]:/?#]+)(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?P<target>(?:/[^?#]*)?(?:\?[^#]*)?)(?:#.*)?",
    re.IGNORECASE | re.ASCII,
)
# Readers disagree on what these mean, and so on where a URL leads.
_AMBIGUOUS = re.compile(r"[\x00-\x20\x7f-\x9f\\\ud800-\udfff]")
_KEPT = "%/?:@!$&'()*+,;=-._~"  # stands as it is in a path or a query; `%` is part of an escape

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
# They frame the request, name its host or carry a state that nobody granted.
_HOST_ONLY = frozenset({
    "connection", "content-length", "cookie", "cookie2", "expect", "host", "http2-settings",
    "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
_CREDENTIALS = frozenset({
    "api-key", "apikey", "authorization", "private-token", "x-access-token", "x-api-key",
    "x-auth-key", "x-auth-token", "x-goog-api-key",
})  # fmt: skip

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AskedUrl:
    """A URL taken apart; `target` is the path and the query as they were written."""

    origin: Origin
    target: str


def read_url(text: str) -> AskedUrl:
    """Raises Denied for whatever two readers could read differently. A fragment is dropped."""
    parts = None
    if len(text) <= MAX_URL_BYTES and not _AMBIGUOUS.search(text):
        parts = _URL.fullmatch(text)
    if parts is None:
        raise Denied(
            f"{text[:100]!r} cannot be asked: write http or https://HOST/PATH, without spaces,"
            f" backslashes or a user's name, at most {MAX_URL_BYTES} bytes"
        )
    scheme = parts["scheme"].lower()
    host = canonical_host(parts["host"].removesuffix("."))
    port = int(parts["port"] or USUAL_PORT[scheme])
    if host is None:
        raise Denied(f"{text[:100]!r} cannot be asked: it names no host exactly")
    return AskedUrl(Origin(scheme, host, port), parts["target"])


def check_granted(origin: Origin, leave: FetchGrant) -> None:
    if origin not in leave.origins:
        granted = ", ".join(sorted(map(str, leave.origins))) or "nothing"
        raise Denied(f"not allowed to reach {origin} (granted: {granted})")


def to_url(origin: Origin, target: str) -> URL:
    """What is connected to: written anew from its checked parts, so that no reader is asked twice."""
    slash = "" if target.startswith("/") else "/"
    url = URL(f"{origin}{slash}{quote(target, safe=_KEPT)}", encoded=True)
    if (url.scheme, url.raw_host, url.port) != (origin.scheme, origin.host, origin.port):
        raise Denied(f"not allowed to reach {origin}: it can be read in two ways")
    if len(str(url)) > MAX_URL_BYTES:
        raise Denied(f"the URL is longer than {MAX_URL_BYTES} bytes")
    return url


def read_method(text: str) -> str:
    method = text.upper()
    if method not in METHODS:
        raise Denied(f"method {text[:20]!r} is not allowed; these are: {', '.join(METHODS)}")
    return method


def read_headers(headers: Headers) -> Headers:
    """Raises Denied for what only the host may say. What can be unpacked is the host's to know."""
    if len(headers) > MAX_HEADERS:
        raise Denied(f"a request has at most {MAX_HEADERS} headers")
    if sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise Denied(f"the headers are larger than {MAX_HEADER_BYTES} bytes")
    for name, value in headers:
        _check_header(name, value)
    return tuple(pair for pair in headers if pair[0].lower() != "accept-encoding")


def _check_header(name: str, value: str) -> None:
    shown, known = repr(name[:64]), name.lower()
    if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
        raise Denied(f"header {shown} has a line break or another character that no header has")
    if known in _HOST_ONLY or known.startswith("proxy-"):
        raise Denied(f"header {shown} is set by the host alone; leave it out")
    if known in _CREDENTIALS and "${secret:" not in value:
        raise Denied(
            f"header {shown} is filled in by the host: write ${{secret:NAME}} with a secret that"
            " is declared for this plugin and this host"
        )
