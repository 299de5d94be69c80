"""The sender of a request by its addresses and headers, and the refusals before authentication: of foreign Hosts and
Origins and of large bodies. Nothing here is proved yet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.errors import BodyTooLarge, HostRefused, InvalidRequest, OriginRefused
from gateway.web.settings import WebSettings

Headers = Iterable[tuple[bytes, bytes]]
Endpoint = Sequence[object] | None  # host and port
IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

_HOPS = b"x-forwarded-for"  # the only one that is read; each of the others also shows a proxy
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
_SINGLE = frozenset({b"host", b"origin", b"authorization", b"sec-fetch-site"})
_LONGEST = 100  # characters of an address with its zone


def parse_address(text: str) -> IpAddress | None:
    """Returns an address by its value; a mapped IPv4 address becomes IPv4, and the zone of an IPv6 address does
    not count. Returns None if the text is no address."""
    return _parsed(text) if len(text) <= _LONGEST else None  # the cache holds no long text


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


def parse_hop(text: str) -> IpAddress | None:
    """Parses an entry of X-Forwarded-For: an address, with or without a port. An IPv6 address with a port has
    brackets."""
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
    """Parses a network. A network of mapped IPv4 addresses becomes one of IPv4, as its addresses do."""
    network = ip_network(text, strict=False)
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - 96))
    return network


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request. `client` is the peer, or the client that a trusted proxy names, or that proxy; None
    if it is unknown. `repeated` holds the headers that must be single and came more than once."""

    client: IpAddress | None
    server: str
    host: str | None = None
    origin: str | None = None
    authorization: str | None = field(default=None, repr=False)
    fetch_site: str | None = None
    is_proxied: bool = False  # by any proxy, trusted or not
    repeated: frozenset[str] = frozenset()
    traceparent: str | None = None

    @property
    def is_local(self) -> bool:
        """True if the sender is on this machine, behind no proxy and no page of a browser."""
        return (
            self.client is not None
            and self.client.is_loopback
            and not self.is_proxied
            and self.origin is None
            and self.fetch_site in {None, "none", "same-origin"}
        )


def address_group(address: IpAddress | None) -> str:
    """Returns the name under which an address is counted: itself, or its /64 if it is IPv6."""
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, 64), strict=False))
    return str(address)


class VisitorReader:
    """Reads visitors from requests."""

    def __init__(self, trusted_proxies: Sequence[str]) -> None:
        self._trusted: tuple[IpNetwork, ...] = tuple(map(_network, trusted_proxies))

    def read(self, headers: Headers, peer: Endpoint, server: Endpoint) -> Visitor:
        found: dict[bytes, str] = {}
        repeated: set[str] = set()
        hops: list[str] = []
        is_proxied = False
        traceparent: str | None = None
        for name, value in headers:
            if name in _SINGLE:
                if name in found:
                    repeated.add(name.decode())
                found[name] = value.decode("latin-1").strip()
            elif name == b"traceparent" and traceparent is None:
                traceparent = value.decode("latin-1")
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
            traceparent=traceparent,
        )

    def is_trusted(self, address: IpAddress | None) -> bool:
        return address is not None and any(
            address.version == network.version and address in network for network in self._trusted
        )

    def forwarded_client(self, headers: Headers, proxy: IpAddress | None) -> IpAddress | None:
        """Returns the client of a request that a trusted proxy forwards."""
        hops = [value.decode("latin-1") for name, value in headers if name == _HOPS]
        return self._client_behind(",".join(hops).split(",") if hops else (), proxy)

    def _client_behind(self, hops: Sequence[str], proxy: IpAddress | None) -> IpAddress | None:
        """Returns the last hop that is no trusted proxy, as any client can forge the hops before it. Returns the
        proxy itself if that hop cannot be parsed or there is none."""
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
    """Checks Host and Origin, against DNS rebinding and pages of other sites.

    A Host that is an address cannot be rebound, so a gateway that listens on every address accepts any address. A
    name has to be listed.
    """

    def __init__(self, settings: WebSettings) -> None:
        self._reader = VisitorReader(settings.trusted_proxies)
        self._any_address = settings.bind in _ANY_ADDRESS
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.allowed_origins)
        hosts = {urlsplit(origin).hostname or "" for origin in self._origins}
        self._hosts = frozenset({"localhost", settings.bind.lower(), *hosts} - {""})

    def admit(self, headers: Headers, peer: Endpoint, server: Endpoint) -> Visitor:
        """Reads a visitor. Raises HostRefused, OriginRefused."""
        visitor = self._reader.read(headers, peer, server)
        self.check(visitor)
        return visitor

    def check(self, visitor: Visitor) -> None:
        """Raises HostRefused, OriginRefused."""
        host, origin, repeated = visitor.host, visitor.origin, visitor.repeated
        if host is None or "host" in repeated or not self._is_own_host(host, visitor.server):
            raise HostRefused
        if origin is None:
            return
        own = {f"http://{host.lower()}", f"https://{host.lower()}"}
        if "origin" in repeated or origin.lower() not in own | self._origins:
            raise OriginRefused

    def _is_own_host(self, host: str, server: str) -> bool:
        name = _host_name(host)
        if name in self._hosts:
            return True
        address = parse_address(name)
        if address is None:
            return False
        return self._any_address or address.is_loopback or address == parse_address(server)


def _host_name(host: str) -> str:
    """Returns the host without its port; "" if the text is no host."""
    if any(char in host for char in "/@?#\\ \t,"):
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class BodyLimit:
    """ASGI middleware: refuses a body that is too large by its Content-Length or by its bytes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises BodyTooLarge, InvalidRequest; before a byte is read if the Content-Length shows it."""
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
    """Raises BodyTooLarge, InvalidRequest."""
    for name, value in headers:
        if name == b"content-length":
            if not value.isdigit() or len(value) > 18:
                raise InvalidRequest("the Content-Length is not a number")
            if int(value) > limit:
                raise BodyTooLarge(limit)


class SecurityHeaders:
    """ASGI middleware: adds the headers that protect browsers, unless the answer has them."""

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
