"""aiohttp's client as the guarded ways out use it: checked addresses, and nothing of its own."""

import socket

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.outbound import client
from gateway.outbound.addresses import Lookup, checked_addresses

# Most special first.
_WHAT: tuple[tuple[type[Exception], str], ...] = (
    (aiohttp.ClientConnectorDNSError, "is not a name that can be resolved"),
    (aiohttp.ConnectionTimeoutError, "cannot be connected in time"),
    (aiohttp.ServerDisconnectedError, "closed the connection before it answered"),
    (aiohttp.ClientPayloadError, "broke off in the middle of its answer"),
    (aiohttp.ClientResponseError, "answered something that is not HTTP"),
    (aiohttp.InvalidURL, "is no address that can be asked"),
)


def guarded_session(lookup: Lookup, *, limit: int) -> aiohttp.ClientSession:
    """Sends what it is given and nothing of its own; sets no time for anything.
    `limit`: connections at once, 0 for any number.

    No connection is used twice: what one plugin left in it can never answer another one, and each
    request has its addresses checked."""
    connector = aiohttp.TCPConnector(
        limit=limit, resolver=CheckedResolver(lookup), use_dns_cache=False, force_close=True
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        # What we ask for ourselves stays; no compression, for it holds streamed bytes back.
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        auto_decompress=False,  # bytes come as they are: what was packed could swell to any size
        timeout=aiohttp.ClientTimeout(),
        trust_env=False,
    )


class CheckedResolver(AbstractResolver):
    """Gives a connector the addresses that it may connect to."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises Denied, OSError."""
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await checked_addresses(self._lookup, host, port)
        ]

    async def close(self) -> None:
        """Nothing is held."""


def what_failed(error: Exception) -> str:
    """The rest of a sentence that begins with the host."""
    told = (what for kind, what in _WHAT if isinstance(error, kind))
    return next(told, None) or client.what_failed(error)
