"""The guard on requests that plugins, tools and models steer.

It checks URLs, methods, headers and the addresses of connections, fills secrets into requests to their
declared origins, and scrubs them from the answers. One guard serves every client; it sends nothing itself.
"""

import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Literal, NamedTuple
from urllib.parse import unquote_to_bytes

import anyio
from anyio.lowlevel import checkpoint

from gateway.domain.errors import Denied
from gateway.domain.plugins import USUAL_PORT, Origin, PluginSecret, canonical_host
from gateway.domain.ports import FetchGrant, HttpFailed
from gateway.domain.scrubbing import scanner

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MAX_URL_BYTES = 8 * 1024
MAX_HEADERS = 64
MAX_HEADER_BYTES = 16 * 1024

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[^\]]*\]|[^\[\]:/?#]+)(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?P<target>(?:/[^?#]*)?(?:\?[^#]*)?)(?:#.*)?",
    re.IGNORECASE | re.ASCII,
)
URL_SAFE = "%/?:@!$&'()*+,;=-._~"  # not escaped in a path or a query; `%` is part of an escape
# URL parsers disagree about these characters, and so about the host.
_AMBIGUOUS = re.compile(r"[\x00-\x20\x7f-\x9f\\\ud800-\udfff]")

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
# These headers frame the request, name its host or carry state that no grant covers.
_HOST_ONLY = frozenset({
    "connection", "content-length", "cookie", "cookie2", "expect", "host", "http2-settings",
    "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
_CREDENTIALS = frozenset({
    "api-key", "apikey", "authorization", "private-token", "x-access-token", "x-api-key",
    "x-auth-key", "x-auth-token", "x-goog-api-key",
})  # fmt: skip

Headers = tuple[tuple[str, str], ...]


class ParsedUrl(NamedTuple):
    """A URL in parts; `target` is the path and the query as written."""

    origin: Origin
    target: str


def read_url(text: str) -> ParsedUrl:
    """Parses a URL and drops its fragment. Raises Denied if two parsers could disagree about it."""
    parts = None
    if len(text) <= MAX_URL_BYTES and not _AMBIGUOUS.search(text):
        parts = _URL.fullmatch(text)
    if parts is None:
        raise Denied(
            f"{text[:100]!r} is not a valid URL: write http or https://HOST/PATH, without spaces,"
            f" backslashes or a user name, at most {MAX_URL_BYTES} bytes"
        )
    scheme = parts["scheme"].lower()
    host = canonical_host(parts["host"].removesuffix("."))
    if host is None:
        raise Denied(
            f"{text[:100]!r} is not a valid URL: its host is not a host name or IP address"
        )
    return ParsedUrl(
        Origin(scheme, host, int(parts["port"] or USUAL_PORT[scheme])), parts["target"]
    )


def check_granted(origin: Origin, grant: FetchGrant) -> None:
    if origin not in grant.origins:
        granted = ", ".join(sorted(map(str, grant.origins))) or "nothing"
        raise Denied(f"not allowed to reach {origin} (granted: {granted})")


def read_method(text: str) -> str:
    method = text.upper()
    if method not in METHODS:
        raise Denied(f"method {text[:20]!r} is not allowed; use one of {', '.join(METHODS)}")
    return method


def read_headers(headers: Headers) -> Headers:
    """Returns the headers without `accept-encoding`, which the host sets. Raises Denied for a header
    that only the host may set."""
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
        raise Denied(f"header {shown} has a character that HTTP does not allow in a header")
    if known in _HOST_ONLY or known.startswith("proxy-"):
        raise Denied(f"header {shown} is set by the host alone; leave it out")
    if known in _CREDENTIALS and "${secret:" not in value:
        raise Denied(
            f"header {shown} needs a declared secret: write ${{secret:NAME}} with a secret that"
            " this plugin declares for this host"
        )


Lookup = Callable[[str, int], Awaitable[Sequence[str]]]  # host, port -> addresses; raises OSError

# `is_global` of the standard library counts several of these as global: tunnels, multicast,
# translated loopback.
_NOT_PUBLIC_4 = (
    "0.0.0.0/8",  # this network
    "10.0.0.0/8",
    "100.64.0.0/10",  # shared behind carriers' NAT; some clouds' metadata
    "127.0.0.0/8",
    "168.63.129.16/32",  # Azure's host, reachable from its guests only
    "169.254.0.0/16",  # link-local; most clouds' metadata
    "172.16.0.0/12",
    "192.0.0.0/24",  # protocol assignments; Oracle's metadata
    "192.0.2.0/24",  # documentation
    "192.88.99.0/24",  # 6to4 relays
    "192.168.0.0/16",
    "198.18.0.0/15",  # benchmarks
    "198.51.100.0/24",  # documentation
    "203.0.113.0/24",  # documentation
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, and broadcast
)
_NOT_PUBLIC_6 = (
    "2001::/23",  # protocol assignments, among them Teredo tunnels
    "2001:db8::/32",  # documentation
    "2002::/16",  # 6to4 tunnels
    "3fff::/20",  # documentation
)
_NETWORKS_4, _NETWORKS_6 = [*map(IPv4Network, _NOT_PUBLIC_4)], [*map(IPv6Network, _NOT_PUBLIC_6)]
_UNICAST_6 = IPv6Network("2000::/3")  # the only public range
_NAT64 = IPv6Network("64:ff9b::/96")  # IPv4 addresses for networks that have IPv6 only


def is_public(text: str) -> bool:
    """True for an address of the public internet, and for one that is translated to such an IPv4
    address."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False  # a scope names an interface of this machine
        inner = address.ipv4_mapped
        if address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is None:
            return address in _UNICAST_6 and not any(address in net for net in _NETWORKS_6)
        address = inner
    return not any(address in net for net in _NETWORKS_4)


def is_loopback(host: str) -> bool:
    """True for an address of this machine; False for any name."""
    return is_address(host) and ip_address(host).is_loopback


def is_address(host: str) -> bool:
    """True for an IP address, False for a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Returns the addresses from the system's resolver. Raises OSError."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def resolve_checked(lookup: Lookup, host: str, port: int) -> Sequence[str]:
    """Resolves a name for one guarded connection, which goes to an address that was checked here.

    A host that is an IP address does not come here: the grant names it literally. Raises Denied if
    any of the addresses is forbidden, OSError if there is none.
    """
    addresses = list(dict.fromkeys(await lookup(host, port)))
    if not addresses:
        raise OSError("no address")
    is_allowed = is_loopback if host == "localhost" else is_public
    if not all(map(is_allowed, addresses)):
        wanted = "not of this machine" if host == "localhost" else "not public"
        raise Denied(f"not allowed to connect to {host}: one of its addresses is {wanted}")
    return addresses


# --- secrets of plugins --------------------------------------------------------------------------
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
