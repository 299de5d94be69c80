"""An answer is unpacked within its bounds, or not handed out."""

import gzip
import zlib
from collections.abc import Callable

import anyio
import pytest

from gateway.domain.ports import Fetched, FetchRequest, HttpFailed
from gateway.outbound.client import MAX_BODY_BYTES, open_guarded
from tests.fakes.model_server import Reply, scripted_server
from tests.outbound.guarded import base, leave

TEXT = b"the same words again and again " * 20_000  # more than one step
GZIP = gzip.compress(TEXT, mtime=0)


def bare(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush()


def packed(encoding: str, body: bytes) -> Reply:
    return Reply(headers={"content-encoding": encoding}, body=body)


async def fetched(reply: Reply, method: str = "GET") -> Fetched:
    with anyio.fail_after(60):
        async with scripted_server([reply]) as server, open_guarded() as guard:
            return await guard.fetch(FetchRequest(method, base(server)), leave(base(server)))


async def failure(reply: Reply) -> str:
    with anyio.fail_after(60):
        async with scripted_server([reply]) as server, open_guarded() as guard:
            with pytest.raises(HttpFailed) as failed:
                await guard.fetch(FetchRequest("GET", base(server)), leave(base(server)))
    assert failed.value.kind == "network"
    return str(failed.value)


@pytest.mark.parametrize(
    "reply",
    [
        packed("gzip", GZIP),
        packed("GZIP", GZIP),
        packed("x-gzip", GZIP),
        packed("deflate", zlib.compress(TEXT)),
        packed("deflate", bare(TEXT)),
        packed("identity", TEXT),
        Reply(body=TEXT),
        Reply(
            headers={"content-encoding": "gzip"},
            raw=[bytes([b]) for b in GZIP],
        ),
    ],
)
async def test_what_comes_packed_is_handed_out_unpacked(reply: Reply) -> None:
    answer = await fetched(reply)

    assert answer.body == TEXT
    assert not {"content-encoding", "content-length"} & dict(answer.headers).keys()


@pytest.mark.parametrize("size", [1, 256 * 1024 - 1, 256 * 1024, 512 * 1024, 256 * 1024 + 99])
async def test_no_byte_is_lost_between_two_steps(size: int) -> None:
    for pack in (zlib.compress, bare):
        assert (await fetched(packed("deflate", pack(b"a" * size)))).body == b"a" * size


TOO_LARGE: dict[str, Callable[[], Reply]] = {
    "just": lambda: packed("gzip", gzip.compress(bytes(MAX_BODY_BYTES + 1), 1)),
    "bomb": lambda: packed("gzip", gzip.compress(bytes(20 * MAX_BODY_BYTES), 1)),
    "bare": lambda: packed("deflate", bare(bytes(MAX_BODY_BYTES + 1))),
    "plain": lambda: Reply(body=bytes(MAX_BODY_BYTES + 1)),
    "endless": lambda: Reply(raw=[bytes(1024 * 1024)] * 11),
    "swells to nothing": lambda: packed(
        "deflate", bytes((0, 0, 0, 255, 255)) * (MAX_BODY_BYTES // 5 + 1)
    ),
}


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_an_answer_that_is_too_large_is_cut_off(name: str) -> None:
    assert f"more than {MAX_BODY_BYTES} bytes" in await failure(TOO_LARGE[name]())


async def test_an_answer_may_be_as_large_as_the_bound() -> None:
    reply = packed("gzip", gzip.compress(bytes(MAX_BODY_BYTES)))

    assert len((await fetched(reply)).body) == MAX_BODY_BYTES


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress", "aws-chunked"])
async def test_an_answer_that_is_packed_otherwise_is_a_failure(encoding: str) -> None:
    assert "content encoding other than" in await failure(packed(encoding, b"x"))


@pytest.mark.parametrize(
    "body",
    [
        b"not packed at all",
        GZIP[:-9],
        GZIP[:5],
        GZIP + b"more",
        GZIP + GZIP,
        GZIP[:-8] + bytes(8),
    ],
)
async def test_an_answer_that_cannot_be_unpacked_is_a_failure(body: bytes) -> None:
    assert "cannot be unpacked" in await failure(packed("gzip", body))


async def test_an_answer_without_a_body_needs_no_unpacking() -> None:
    for encoding in ("gzip", "br"):
        assert (await fetched(packed(encoding, b""))).body == b""
