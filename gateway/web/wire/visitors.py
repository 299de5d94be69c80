"""Who stands at the door, as far as addresses and headers tell, and what is refused before it is known who it is:
foreign Hosts and Origins, bodies that are too large. Nothing here is believed yet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.errors import (
    BodyTooLarge,
    HostRefused,
    InvalidRequest,
    OriginRefused,
)
from gateway.web.settings import WebSettings

Headers = Iterable[tuple[bytes, bytes]]
IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

_HOPS = b"x-forwarded-for"  # the one that is read; any of the others tells of a proxy all the same
_FORWARDED = frozenset(
    {
        b"forwarded",
        b"via",
        b"x-real-ip",
        b"x-client-ip",
        b"true-client-ip",
        b"cf-connecting-ip",
        b"x-original-forwarded-for",
    }
)
_TRACE = b"traceparent"
_SINGLE = frozenset({b"host", b"origin", b"authorization", b"sec-fetch-site"})


_LONGEST = 100  # characters of an address with its zone


@lru_cache(maxsize=4096)
def _parsed(text: str) -> IpAddress | None:
    bare, percent, zone = text.partition("%")
    try:
        address = ip_address(bare)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return None if percent else address.ipv4_mapped
    if percent and (not zone or address.version == 4):
        return None
    return address


def parse_address(text: str) -> IpAddress | None:
    """An address by its value, never by its spelling; an IPv4 address in IPv6 clothes is IPv4. The
    zone of an IPv6 address does not count."""
    return _parsed(text) if len(text) <= _LONGEST else None


def parse_hop(text: str) -> IpAddress | None:
    """What a proxy writes into X-Forwarded-For: an address, with a port or without. An IPv6 address
    with a port stands in brackets."""
    host, port = text.strip(), ""
    if host.startswith("["):
        host, bracket, port = host[1:].partition("]")
        if not bracket or ":" not in host:
            return None
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
        port = f":{port}"
    if port and not _is_port(port):
        return None
    return parse_address(host)


def _is_port(text: str) -> bool:
    digits = text[1:]
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 5
    return text[0] == ":" and is_number and int(digits) <= 65_535


def _network(text: str) -> IpNetwork:
    """A network of IPv4 addresses in IPv6 clothes is one of IPv4, as its addresses are."""
    network = ip_network(text, strict=False)
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - 96))
    return network


@dataclass(frozen=True, slots=True)
class Visitor:
    """`client` is the peer, or whom a trusted proxy names, or that proxy; None: nobody knows. `repeated`: a header
    that must be single came more than once."""

    client: IpAddress | None
    server: str
    host: str | None = None
    origin: str | None = None
    authorization: str | None = field(default=None, repr=False)
    fetch_site: str | None = None
    is_proxied: bool = False  # through whomever
    repeated: frozenset[str] = frozenset()
    traceparent: str | None = None

    @property
    def is_local(self) -> bool:
        """On this machine, through no proxy, and no page of a browser."""
        return (
            self.client is not None
            and self.client.is_loopback
            and not self.is_proxied
            and self.origin is None
            and self.fetch_site in {None, "none", "same-origin"}
        )


def address_group(address: IpAddress | None) -> str:
    """One visitor holds a whole /64 of IPv6."""
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, 64), strict=False))
    return str(address)


def _first(headers: Headers, wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name == wanted), None)


class VisitorReader:
    """Reads visitors out of requests."""

    def __init__(self, trusted_proxies: Sequence[str]) -> None:
        self._trusted: tuple[IpNetwork, ...] = tuple(_network(text) for text in trusted_proxies)

    def read(
        self, headers: Headers, peer: Sequence[object] | None, server: Sequence[object] | None
    ) -> Visitor:
        found: dict[bytes, str] = {}
        repeated: set[str] = set()
        hops: list[str] = []
        is_proxied = False
        for name, value in headers:
            if name in _SINGLE:
                if name in found:
                    repeated.add(name.decode())
                found[name] = value.decode("latin-1").strip()
            elif name in _FORWARDED or name.startswith(b"x-forwarded-"):
                is_proxied = True
                if name == _HOPS:
                    hops += value.decode("latin-1").split(",")
        address = parse_address(str(peer[0])) if peer else None
        if self.is_trusted(address):
            address, is_proxied = self._client_behind(hops, address), True
        return Visitor(
            client=address,
            server=str(server[0]) if server else "",
            host=found.get(b"host"),
            origin=found.get(b"origin"),
            authorization=found.get(b"authorization"),
            fetch_site=found.get(b"sec-fetch-site"),
            is_proxied=is_proxied,
            repeated=frozenset(repeated),
            traceparent=_first(headers, _TRACE),
        )

    def is_trusted(self, address: IpAddress | None) -> bool:
        return address is not None and any(
            address.version == network.version and address in network for network in self._trusted
        )

    def forwarded_client(self, headers: Headers, proxy: IpAddress | None) -> IpAddress | None:
        """Whose request it is that a trusted proxy passes on."""
        hops = [value.decode("latin-1") for name, value in headers if name == _HOPS]
        return self._client_behind(",".join(hops).split(",") if hops else (), proxy)

    def _client_behind(self, hops: Sequence[str], proxy: IpAddress | None) -> IpAddress | None:
        """The last hop that is no proxy of ours: what stands before it anybody may have written. If it
        cannot be read, or there is none, the proxy that says so."""
        for text in reversed(hops):
            address = parse_hop(text)
            if address is None:
                break
            proxy = address
            if not self.is_trusted(address):
                break
        return proxy


_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})
SECURITY_HEADERS: Sequence[tuple[bytes, bytes]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class OriginGuard:
    """Host and Origin: against rebound names and against pages of other sites.

    A Host that is an address cannot be rebound, so a gateway that listens on every address takes
    any address for its own. A name has to be listed.
    """

    def __init__(self, settings: WebSettings) -> None:
        self._any_address = settings.bind in _ANY_ADDRESS
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.allowed_origins)
        hosts = {urlsplit(origin).hostname or "" for origin in self._origins}
        self._hosts = frozenset({"localhost", settings.bind.lower(), *hosts} - {""})

    def check(self, visitor: Visitor) -> None:
        """Raises HostRefused, OriginRefused."""
        if visitor.host is None or "host" in visitor.repeated or not self._is_own_host(visitor):
            raise HostRefused
        if visitor.origin is not None and not self._is_allowed_origin(visitor):
            raise OriginRefused

    def _is_own_host(self, visitor: Visitor) -> bool:
        host = _host_name(visitor.host or "")
        if host in self._hosts:
            return True
        address = parse_address(host)
        if address is None:
            return False
        return self._any_address or address.is_loopback or address == parse_address(visitor.server)

    def _is_allowed_origin(self, visitor: Visitor) -> bool:
        if "origin" in visitor.repeated:
            return False
        origin = (visitor.origin or "").lower()
        host = (visitor.host or "").lower()
        return origin in {f"http://{host}", f"https://{host}"} or origin in self._origins


def _host_name(host: str) -> str:
    """Without the port; "" for what is no host at all."""
    if any(char in host for char in "/@?#\\ \t,"):
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class BodyLimit:
    """ASGI: refuses a body whose Content-Length is too large, and one that turns out to be."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises BodyTooLarge, InvalidRequest, if possible before a byte of it is read."""
        check_length(scope["headers"], self._limit)
        seen = 0

        async def receive_some() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise BodyTooLarge(self._limit)
            return message

        await self._app(scope, receive_some, send)


def check_length(headers: Iterable[tuple[bytes, bytes]], limit: int) -> None:
    """Raises BodyTooLarge, InvalidRequest before a byte of the body is read."""
    for name, value in headers:
        if name == b"content-length" and _length(value) > limit:
            raise BodyTooLarge(limit)


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise InvalidRequest("the Content-Length is not a number")
    return int(value)


class SecurityHeaders:
    """ASGI: adds the headers that protect browsers, unless the answer has them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                given = {name for name, _ in headers}
                message["headers"] = headers + [h for h in SECURITY_HEADERS if h[0] not in given]
            await send(message)

        await self._app(scope, receive, send_with_headers)
