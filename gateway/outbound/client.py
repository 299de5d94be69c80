"""The HTTP client: kept connections, deadlines, no redirects, no cookies, no proxies."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache, partial
from os import strerror
from socket import AF_INET, AF_INET6, IPPROTO_TCP, SOCK_STREAM, gaierror
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import anyio
from aiohappyeyeballs import start_connection
from anyio import to_thread
from anyio.lowlevel import checkpoint

from gateway.domain.ports import HttpAnswer, HttpCall, HttpFailed
from gateway.outbound.addresses import Lookup, is_address, look_up
from gateway.outbound.connection import HttpConnection

MOST_KEPT = 512  # connections that wait for another call
_NEXT_ADDRESS_S = 0.25  # a name's next address is tried beside one that does not answer
_DNS_S = 60.0
_MOST_NAMES = 256
# What may be asked twice, where a kept connection turns out to be closed before any answer.
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_FRAMING = frozenset({"connection", "content-length", "transfer-encoding"})  # ours to say
_SCHEMES = {"http": 80, "https": 443}
_KEPT_IN_PATHS = "%/?:@!$&'()*+,;=-._~"
_HOST = re.compile(r"[0-9A-Za-z._~:%-]+")


@asynccontextmanager
async def open_outbound(lookup: Lookup = look_up) -> AsyncIterator["HttpClient"]:
    """The client; all its connections are closed on the way out. `lookup` resolves names."""
    client = HttpClient(lookup)
    try:
        yield client
    finally:
        client.close()
        with anyio.CancelScope(shield=True):
            await checkpoint()  # the loop closes the sockets


# Most special first.
_WHAT: tuple[tuple[type[Exception], str], ...] = (
    (ssl.CertificateError, "has no certificate that this machine trusts"),
    (ssl.SSLError, "does not speak TLS as this machine does"),
    (gaierror, "is not a name that can be resolved"),
)


def what_failed(error: Exception) -> str:
    """The rest of a sentence that begins with the host; never the URL, headers or a body."""
    for kind, what in _WHAT:
        if isinstance(error, kind):
            return what
    known = isinstance(error, OSError) and error.errno
    return f"cannot be reached ({strerror(known) if known else type(error).__name__})"


class Endpoint(NamedTuple):
    """Where a connection leads; one is kept for calls to the same endpoint."""

    is_tls: bool
    name: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"

    @property
    def host(self) -> str:
        """As a request names it."""
        host = f"[{self.name}]" if ":" in self.name else self.name
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


class Target(NamedTuple):
    """An address taken apart: `host` and `path` as a request writes them."""

    endpoint: Endpoint
    host: str
    path: str


@lru_cache(maxsize=256)
def read_target(url: str) -> Target:
    """Raises ValueError for what is no address of http or https."""
    parts = urlsplit(url)
    usual, name = _SCHEMES.get(parts.scheme), parts.hostname or ""
    if not name.isascii():
        name = name.encode("idna").decode()
    if usual is None or parts.username is not None or not _HOST.fullmatch(name):
        raise ValueError("it is no address that can be asked")
    endpoint = Endpoint(usual == 443, name, parts.port or usual)
    path = parts.path or "/"
    if parts.query:
        path += "?" + parts.query
    return Target(endpoint, endpoint.host, quote(path, safe=_KEPT_IN_PATHS))


class HttpClient:
    """Implements the Http port. A connection is kept for the next call once its answer is whole."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._open: set[HttpConnection] = set()
        self._kept: dict[Endpoint, dict[HttpConnection, None]] = {}  # the last one is used next
        self._names: dict[str, tuple[float, Sequence[str]]] = {}  # until when, and the addresses
        self._tls: ssl.SSLContext | None = None

    def send(self, call: HttpCall) -> AbstractAsyncContextManager[HttpAnswer]:
        return _Exchange(self, call)

    def take(self, endpoint: Endpoint) -> HttpConnection | None:
        """A connection that is kept, and still open."""
        kept = self._kept.get(endpoint)
        while kept:
            connection, _ = kept.popitem()
            if connection.is_open:
                return connection
        return None

    def keep(self, endpoint: Endpoint, connection: HttpConnection) -> None:
        kept = self._kept.setdefault(endpoint, {})
        if len(kept) < MOST_KEPT:
            kept[connection] = None
            connection.rest()
        else:
            connection.abort()

    async def connect(self, endpoint: Endpoint, timeout_s: float) -> HttpConnection:
        """Raises HttpFailed."""
        try:
            with anyio.fail_after(timeout_s):
                return await self._connect(endpoint)
        except TimeoutError as error:
            told = f"{endpoint} could not be connected within {timeout_s:g} s"
            raise HttpFailed("timeout", told, sent=False) from error
        except (OSError, ValueError) as error:
            raise HttpFailed("network", f"{endpoint} {what_failed(error)}", sent=False) from error

    async def _connect(self, endpoint: Endpoint) -> HttpConnection:
        is_tls, name, port = endpoint
        found = [
            (AF_INET6 if ":" in address else AF_INET, SOCK_STREAM, IPPROTO_TCP, "", (address, port))
            for address in await self._addresses(name, port)
        ]
        if is_tls and self._tls is None:
            self._tls = await to_thread.run_sync(_tls)  # it reads hundreds of certificates
        socket = await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1)
        _, connection = await asyncio.get_running_loop().create_connection(
            partial(HttpConnection, str(endpoint), partial(self._lost, endpoint)),
            sock=socket,
            ssl=self._tls if is_tls else None,
            server_hostname=name if is_tls else None,
        )
        if connection.is_open:
            self._open.add(connection)
        return connection

    async def _addresses(self, name: str, port: int) -> Sequence[str]:
        if is_address(name):
            return (name,)
        now = asyncio.get_running_loop().time()
        until, addresses = self._names.get(name, (0.0, ()))
        if now > until:
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            addresses = await self._lookup(name, port)
            self._names[name] = now + _DNS_S, addresses
        return addresses

    def _lost(self, endpoint: Endpoint, connection: HttpConnection) -> None:
        self._open.discard(connection)
        self._kept.get(endpoint, {}).pop(connection, None)

    def close(self) -> None:
        for connection in self._open:
            connection.abort()


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Exchange:
    """One request and its answer; leaving early closes the connection."""

    __slots__ = ("_call", "_client", "_connection", "_endpoint")

    def __init__(self, client: HttpClient, call: HttpCall) -> None:
        self._client, self._call = client, call
        self._connection: HttpConnection | None = None

    async def __aenter__(self) -> HttpConnection:
        call = self._call
        endpoint, request = _encoded(call)
        self._endpoint = endpoint
        while True:
            kept = self._client.take(endpoint)
            connection = kept or await self._client.connect(endpoint, call.connect_timeout_s)
            connection.begin(request, call.idle_timeout_s, is_head=call.method == "HEAD")
            try:
                while not connection.status and connection.failure is None:
                    await connection.arrival()
            except BaseException:
                connection.abort()
                raise
            if connection.status:
                self._connection = connection
                return connection
            if kept is None or not connection.is_unheard or call.method not in _REPEATABLE:
                raise connection.failed()

    async def __aexit__(self, *_: object) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.is_reusable:
            self._client.keep(self._endpoint, connection)
        elif connection is not None:
            connection.abort()


def _encoded(call: HttpCall) -> tuple[Endpoint, bytes]:
    """Where the request goes, and its bytes. Raises HttpFailed, also for a header that would
    smuggle another one."""
    try:
        endpoint, host, path = read_target(call.url)
        headers = {"host": host, **call.headers}
        lines = [f"{key}: {text}" for key, text in headers.items() if key.lower() not in _FRAMING]
        if call.body or call.method in _WITH_BODY:
            lines.append(f"content-length: {len(call.body)}")
        head = "\r\n".join((f"{call.method} {path} HTTP/1.1", *lines))
        if "\0" in head or not len(lines) == head.count("\r") == head.count("\n"):
            raise ValueError(f"{host} is not asked: a header has a character that no header has")
        return endpoint, head.encode() + b"\r\n\r\n" + call.body
    except ValueError as error:
        raise HttpFailed("network", str(error), sent=False) from error
