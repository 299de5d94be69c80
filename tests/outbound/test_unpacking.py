"""An answer is unpacked within its bounds, or not handed out."""

import gzip
import zlib

import anyio
import pytest

from gateway.domain.ports import Fetched, FetchRequest, HttpFailed
from gateway.outbound.client import MAX_BODY_BYTES, open_guarded
from tests.fakes.model_server import Reply, scripted_server
from tests.outbound.guarded import base, leave

TEXT = b"the same words again and again " * 40_000  # more than one step


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
        packed("gzip", gzip.compress(TEXT, mtime=0)),
        packed("GZIP", gzip.compress(TEXT, mtime=0)),
        packed("x-gzip", gzip.compress(TEXT, mtime=0)),
        packed("deflate", zlib.compress(TEXT)),
        packed("deflate", bare(TEXT)),
        packed("identity", TEXT),
        Reply(body=TEXT),
        Reply(
            headers={"content-encoding": "gzip"},
            raw=[bytes([b]) for b in gzip.compress(TEXT, mtime=0)],
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


@pytest.mark.parametrize(
    "reply",
    [
        packed("gzip", gzip.compress(bytes(MAX_BODY_BYTES + 1))),
        packed("gzip", gzip.compress(bytes(20 * MAX_BODY_BYTES), compresslevel=1)),
        packed("deflate", bare(bytes(MAX_BODY_BYTES + 1))),
        Reply(body=bytes(MAX_BODY_BYTES + 1)),
        Reply(raw=[bytes(1024 * 1024)] * 11),
        packed("deflate", b"\x00\x00\x00\xff\xff" * (MAX_BODY_BYTES // 5 + 1)),  # swells to nothing
    ],
    ids=["just", "bomb", "bare", "plain", "endless", "empty"],
)
async def test_an_answer_that_is_too_large_is_cut_off(reply: Reply) -> None:
    assert f"more than {MAX_BODY_BYTES} bytes" in await failure(reply)


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
        gzip.compress(TEXT, mtime=0)[:-9],
        gzip.compress(TEXT, mtime=0)[:5],
        gzip.compress(TEXT, mtime=0) + b"more",
        gzip.compress(TEXT, mtime=0) + gzip.compress(TEXT),
        gzip.compress(TEXT, mtime=0)[:-8] + bytes(8),
    ],
)
async def test_an_answer_that_cannot_be_unpacked_is_a_failure(body: bytes) -> None:
    assert "cannot be unpacked" in await failure(packed("gzip", body))


async def test_an_answer_without_a_body_needs_no_unpacking() -> None:
    for encoding in ("gzip", "br"):
        assert (await fetched(packed(encoding, b""))).body == b""
