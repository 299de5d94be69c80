"""The WebSocket handshake: what an upgrade must say, who decides on it, and the answer."""

import binascii
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from websockets.utils import accept_key

from gateway.web.frames import Wire
from gateway.web.refusals import NotUpgradable


@dataclass(frozen=True, slots=True)
class Handshake:
    """One that is in order as such; `answer` accepts it."""

    path: str
    headers: Sequence[tuple[bytes, bytes]]
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None
    answer: bytes


class Entrance(Protocol):
    """A visitor who was let in, until there is a socket to talk by."""

    @property
    def max_frame(self) -> int: ...

    def start(self, wire: Wire) -> None: ...


class Door(Protocol):
    def admit(self, handshake: Handshake) -> Entrance:
        """Raises GatewayError: the handshake is refused with it."""
        ...


def accept(method: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The answer to a proper handshake. Raises NotUpgradable."""
    given: dict[bytes, bytes] = {}
    for name, value in headers:
        if name.startswith(b"sec-websocket-") and name in given:
            raise NotUpgradable(f"{name.decode('latin-1')} comes more than once")
        given[name] = value
    if method != b"GET" or version != "1.1":
        raise NotUpgradable("a WebSocket begins with GET and HTTP/1.1")
    if b"content-length" in given or b"transfer-encoding" in given:
        raise NotUpgradable("a WebSocket handshake has no body")
    if given.get(b"sec-websocket-version") != b"13":
        raise NotUpgradable("Sec-WebSocket-Version must be 13")
    key = given.get(b"sec-websocket-key", b"").strip()
    if not _is_key(key):
        raise NotUpgradable("Sec-WebSocket-Key must be 16 bytes in base64")
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-accept: %b\r\n\r\n" % accept_key(key.decode()).encode()
    )


def _is_key(key: bytes) -> bool:
    try:
        return len(b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False
