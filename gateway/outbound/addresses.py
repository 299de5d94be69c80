"""Which IP addresses a guarded connection may go to; checked where the connection takes them."""

import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import anyio

from gateway.domain.errors import Denied

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]  # host and port -> addresses; or OSError

# Python's own `is_global` calls several of these global: tunnels, multicast, translated loopback.
_NOT_PUBLIC_4 = tuple(
    ip_network(net)
    for net in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared behind carriers' NAT; some clouds' metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's host, seen from its guests only
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
)
_UNICAST_6 = ip_network("2000::/3")  # nothing outside of it is public
_NOT_PUBLIC_6 = tuple(
    ip_network(net)
    for net in (
        "2001::/23",  # protocol assignments, among them Teredo tunnels
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4 tunnels
        "3fff::/20",  # documentation
    )
)
_NAT64 = ip_network("64:ff9b::/96")  # how networks without IPv4 reach it


def is_public(text: str) -> bool:
    """Whether this address is one of the open internet's, also behind a translation to IPv4."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        inner = _translated(address)
        if address.scope_id is not None:
            return False  # it names an interface of this machine
        if inner is None:
            return address in _UNICAST_6 and not any(address in net for net in _NOT_PUBLIC_6)
        address = inner
    return not any(address in net for net in _NOT_PUBLIC_4)


def _translated(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped


def is_loopback(host: str) -> bool:
    """True of an address that never leaves this machine; a name is none."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


async def look_up(host: str, port: int) -> Sequence[str]:
    """What the system's resolver says."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def is_address(host: str) -> bool:
    """Whether it is itself an IP address, and no name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def checked_addresses(lookup: Lookup, host: str, port: int) -> Sequence[str]:
    """The addresses of a name that a guarded connection may go to: all of them checked, or none.
    Asked once for each connection, which goes to what was checked. A host that is itself an
    address is never asked for: the grant names it literally.

    Raises Denied if one of the answers may not be connected to, OSError if there is none."""
    addresses = list(dict.fromkeys(await lookup(host, port)))
    if not addresses:
        raise OSError("no address")
    may_be = is_loopback if host == "localhost" else is_public
    if not all(map(may_be, addresses)):
        wanted = "not one of this machine" if host == "localhost" else "not public"
        raise Denied(f"not allowed to connect to {host}: it leads to an address that is {wanted}")
    return addresses
