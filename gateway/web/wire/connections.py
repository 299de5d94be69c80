"""The connections of the server, and who opens them.

`VisitorReader` reads the sender of a request from its addresses and headers; the guards refuse foreign Hosts and
Origins and large bodies before authentication. Nothing of it is proved yet. `OpenConnections` keeps the limits and
the addresses of all connections, HTTP and WebSocket, and ends all of them.
"""

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.errors import BodyTooLarge, HostRefused, InvalidRequest, OriginRefused
from gateway.web.settings import WebSettings

if TYPE_CHECKING:  # commands that know visitors need no server
    from uvicorn.server import ServerState

# --- visitors ------------------------------------------------------------------------------------
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


def _host(endpoint: Endpoint) -> str:
    """Returns the host of an endpoint; empty for a socket without one."""
    return str(endpoint[0]) if endpoint else ""


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
        address = parse_address(_host(peer))
        if self.is_trusted(address):
            address, is_proxied = self._client_behind(hops, address), True
        return Visitor(
            client=address,
            server=_host(server),
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


# --- open connections ----------------------------------------------------------------------------
_REFUSED_AT_ONCE = 256  # connections beyond the limit that still get an answer
_REFUSED_OF_GROUP = 16


class Backlog:
    """The bytes that wait for slow readers, over all connections."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class OpenConnection(Protocol):
    @property
    def is_known(self) -> bool:
        """True if its latest request came with a credential."""
        ...

    def shutdown(self) -> None:
        """Closes the connection once the answers that it owes are sent."""
        ...

    def evict(self) -> None:
        """Closes the connection and tells the peer that there are too many."""
        ...

    def abort(self) -> None:
        """Closes the connection at once."""
        ...


class OpenConnections:
    """Counts the connections of the server, bounds them and waits for their end."""

    def __init__(self, settings: WebSettings, state: "ServerState") -> None:
        self.state = state
        self.backlog = Backlog()
        self._open: set[OpenConnection] = self.state.connections  # type: ignore[assignment]  # ours too
        self.renew(settings)
        self._removed = anyio.Event()
        self._groups: dict[OpenConnection, str] = {}  # address groups; loopback has none
        self._group_sizes: Counter[str] = Counter()
        self._unauthenticated: dict[OpenConnection, float] = {}  # with the time since when
        self._eviction: asyncio.TimerHandle | None = None

    def renew(self, settings: WebSettings) -> None:
        """Applies other limits to later checks. Open connections stay."""
        self._settings, self.visitor_reader = settings, VisitorReader(settings.trusted_proxies)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) > self._settings.max_connections

    @property
    def is_overrun(self) -> bool:
        """True if a new connection gets no answer, not even a refusal."""
        return len(self._open) > self._settings.max_connections + _REFUSED_AT_ONCE

    def remove(self, connection: OpenConnection) -> None:
        self._open.discard(connection)
        self._unauthenticated.pop(connection, None)
        self._forget_address(connection)
        if not self._open:
            self._removed.set()
            if self._eviction is not None:
                self._eviction.cancel()
                self._eviction = None

    def replace(self, connection: OpenConnection, other: OpenConnection) -> None:
        """Puts `other` in the place of a connection, as unauthenticated."""
        self._open.discard(connection)
        self._unauthenticated.pop(connection, None)
        self._open.add(other)
        if group := self._groups.pop(connection, None):
            self._groups[other] = group
        self.mark_unknown(other)

    # addresses and authentication

    def assign_address(self, connection: OpenConnection, address: IpAddress | None) -> bool:
        """Counts the connection at this address only. Returns False if the address has too many."""
        self._forget_address(connection)
        if address is None or address.is_loopback:
            return True
        group = self._groups[connection] = address_group(address)
        self._group_sizes[group] += 1
        return self._group_sizes[group] <= self._settings.max_connections_per_address

    def is_group_overrun(self, connection: OpenConnection) -> bool:
        """True if its address has so many connections that a new one gets no answer."""
        size = self._group_sizes[self._groups.get(connection, "")]
        return size > self._settings.max_connections_per_address + _REFUSED_OF_GROUP

    def _forget_address(self, connection: OpenConnection) -> None:
        group = self._groups.pop(connection, None)
        if group is not None:
            self._group_sizes[group] -= 1
            if not self._group_sizes[group]:
                del self._group_sizes[group]

    def mark_known(self, connection: OpenConnection) -> None:
        """Notes that the connection sent a credential, or that its request is being answered."""
        self._unauthenticated.pop(connection, None)

    def mark_unknown(self, connection: OpenConnection) -> None:
        """Notes that the connection sent no credential. It has a moment to send one, at any load."""
        if connection not in self._open:
            return
        loop, settings = asyncio.get_running_loop(), self._settings
        self._unauthenticated.setdefault(connection, loop.time())
        if self._eviction is None and len(self._unauthenticated) > settings.max_unauthenticated:
            self._eviction = loop.call_later(settings.unauthenticated_grace_s, self._evict_excess)

    def _evict_excess(self) -> None:
        """Evicts the newest connections of the addresses with most, so that no address can displace others."""
        loop, settings = asyncio.get_running_loop(), self._settings
        for connection in [one for one in self._unauthenticated if one.is_known]:
            del self._unauthenticated[connection]
        late = loop.time() - settings.unauthenticated_grace_s
        old = [one for one, since in self._unauthenticated.items() if since <= late]
        excess = len(old) - settings.max_unauthenticated
        for connection in self._newest_of_largest_groups(old, excess):
            del self._unauthenticated[connection]
            connection.evict()
        self._eviction = None
        if len(self._unauthenticated) > settings.max_unauthenticated:
            wait_s = settings.unauthenticated_grace_s / 2
            self._eviction = loop.call_later(wait_s, self._evict_excess)

    def _newest_of_largest_groups(
        self, connections: list[OpenConnection], number: int
    ) -> list[OpenConnection]:
        """Returns `number` connections, each the newest of the address that then has most."""
        by_group: dict[str, list[OpenConnection]] = {}
        for connection in connections:
            by_group.setdefault(self._groups.get(connection, ""), []).append(connection)
        sizes = [(-len(members), group) for group, members in by_group.items()]
        heapq.heapify(sizes)
        found: list[OpenConnection] = []
        while len(found) < number:
            size, group = heapq.heappop(sizes)
            found.append(by_group[group].pop())
            if size < -1:
                heapq.heappush(sizes, (size + 1, group))
        return found

    # shutdown

    def shut_down_all(self) -> None:
        for connection in tuple(self._open):
            connection.shutdown()

    def abort_all(self) -> None:
        for connection in tuple(self._open):
            connection.abort()

    async def wait_until_empty(self) -> None:
        while self._open:
            self._removed = anyio.Event()
            await self._removed.wait()

    def reconnect_hint(self) -> str:
        """Returns a delay as JSON, different for each client so that they do not all reconnect at once."""
        return f'{{"retry_after_s":{random.uniform(0.5, 5.0):.2f}}}'  # spread, not secret
