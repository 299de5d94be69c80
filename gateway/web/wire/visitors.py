"""Who stands at the door, as far as addresses and headers tell; nothing here is believed yet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

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
    proxied: bool = False  # through whomever
    repeated: frozenset[str] = frozenset()

    @property
    def is_near(self) -> bool:
        """On this machine, through no proxy, and no page of a browser."""
        return (
            self.client is not None
            and self.client.is_loopback
            and not self.proxied
            and self.origin is None
            and self.fetch_site in {None, "none", "same-origin"}
        )


def place_of(address: IpAddress | None) -> str:
    """One visitor holds a whole /64 of IPv6."""
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, 64), strict=False))
    return str(address)


class Reception:
    """Reads visitors out of requests."""

    def __init__(self, trusted_proxies: Sequence[str]) -> None:
        self._trusted: tuple[IpNetwork, ...] = tuple(_network(text) for text in trusted_proxies)

    def visitor(
        self, headers: Headers, peer: Sequence[object] | None, server: Sequence[object] | None
    ) -> Visitor:
        found: dict[bytes, str] = {}
        repeated: set[str] = set()
        hops: list[str] = []
        proxied = False
        for name, value in headers:
            if name in _SINGLE:
                if name in found:
                    repeated.add(name.decode())
                found[name] = value.decode("latin-1").strip()
            elif name in _FORWARDED or name.startswith(b"x-forwarded-"):
                proxied = True
                if name == _HOPS:
                    hops += value.decode("latin-1").split(",")
        address = parse_address(str(peer[0])) if peer else None
        if self.is_trusted(address):
            address, proxied = self._behind(hops, address), True
        return Visitor(
            client=address,
            server=str(server[0]) if server else "",
            host=found.get(b"host"),
            origin=found.get(b"origin"),
            authorization=found.get(b"authorization"),
            fetch_site=found.get(b"sec-fetch-site"),
            proxied=proxied,
            repeated=frozenset(repeated),
        )

    def is_trusted(self, address: IpAddress | None) -> bool:
        return address is not None and any(
            address.version == network.version and address in network for network in self._trusted
        )

    def client(self, headers: Headers, proxy: IpAddress | None) -> IpAddress | None:
        """Whose request it is that a trusted proxy passes on."""
        hops = [value.decode("latin-1") for name, value in headers if name == _HOPS]
        return self._behind(",".join(hops).split(",") if hops else (), proxy)

    def _behind(self, hops: Sequence[str], proxy: IpAddress | None) -> IpAddress | None:
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
