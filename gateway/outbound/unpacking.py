"""The body of an answer, unpacked and counted as it comes."""

import zlib
from collections.abc import Iterator
from typing import Protocol

import aiohttp
from anyio.lowlevel import checkpoint

from gateway.domain.ports import HttpFailed

MAX_BODY_BYTES = 10 * 1024 * 1024
ACCEPTED = "gzip, deflate"
_STEP_BYTES = 256 * 1024  # unpacked at once, before others may run


async def read_body(answer: aiohttp.ClientResponse, place: str) -> bytes:
    """Raises HttpFailed if it is too large, packed or unpacked, or packed otherwise than asked."""
    encoding = ", ".join(answer.headers.getall("content-encoding", ())).strip().lower()
    body, came, unpack = bytearray(), 0, None
    while raw := await answer.content.readany():
        came += len(raw)
        unpack = unpack or _unpacker(encoding, raw, place)
        for piece in unpack.feed(raw):
            body += piece
            if max(came, len(body)) > MAX_BODY_BYTES:
                raise HttpFailed("network", f"{place} answered more than {MAX_BODY_BYTES} bytes")
            await checkpoint()
    if unpack is not None and not unpack.is_whole:
        raise _broken(place)
    return bytes(body)


class _Unpacker(Protocol):
    @property
    def is_whole(self) -> bool: ...

    def feed(self, raw: bytes) -> Iterator[bytes]: ...


def _unpacker(encoding: str, begin: bytes, place: str) -> _Unpacker:
    match encoding:
        case "" | "identity":
            return _Plain()
        case "gzip" | "x-gzip":
            return _Inflate(zlib.MAX_WBITS | 16, place)
        case "deflate":
            # Some send it bare, without the two bytes that should come first.
            is_wrapped = begin[0] & 0x0F == zlib.DEFLATED
            return _Inflate(zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS, place)
    raise HttpFailed("network", f"{place} packed its answer otherwise than it was asked to")


class _Plain:
    is_whole = True

    def feed(self, raw: bytes) -> Iterator[bytes]:
        yield raw


class _Inflate:
    def __init__(self, window: int, place: str) -> None:
        self._inflate, self._place = zlib.decompressobj(window), place

    @property
    def is_whole(self) -> bool:
        return self._inflate.eof

    def feed(self, raw: bytes) -> Iterator[bytes]:
        piece = b"unknown"
        while raw or len(piece) == _STEP_BYTES:  # it may hold more back, with nothing left to feed
            try:
                piece = self._inflate.decompress(raw, _STEP_BYTES)
            except zlib.error as error:
                raise _broken(self._place) from error
            if self._inflate.unused_data:
                raise _broken(self._place)
            yield piece
            raw = self._inflate.unconsumed_tail


def _broken(place: str) -> HttpFailed:
    return HttpFailed("network", f"{place} answered something that cannot be unpacked")
