"""Whatever comes in as HTTP, the next visitor is served."""

import contextlib
import random

import anyio
import pytest

from tests.web.running import GUARDED, Site, running

SEEDS = (
    b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"POST /length HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\nabcde",
    b"POST /length HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nabcde\r\n0\r\n\r\n",
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    b"\x81\x85\x00\x00\x00\x00hello",
)
CUNNING = (
    b"\r\n",
    b"\n",
    b"\x00",
    b": ",
    b"Host: x\r\n",
    b"\xff\xfe",
    b" " * 9_000,
    b"%00",
    b"0\r\n",
)


def mangled(chance: random.Random) -> bytes:
    """A decent request with a few things done to it."""
    data = bytearray(chance.choice(SEEDS) * chance.randint(1, 3))
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at:at] = chance.choice(CUNNING)
            case 1:
                data[at : at + chance.randint(1, 20)] = b""
            case 2:
                data[at:at] = chance.randbytes(chance.randint(1, 30))
            case _:
                data[at : at + 1] = bytes([chance.randrange(256)])
    return bytes(data)


async def throw(site: Site, data: bytes) -> bytes:
    """Sends and hangs up; gives what came back at once."""
    with contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream):
        async with await site.dial() as stream:
            await stream.send(data)
            with anyio.move_on_after(0.005):
                return await stream.receive()
    return b""


@pytest.mark.parametrize("seed", range(4))
async def test_mangled_requests_get_an_answer_or_a_goodbye_and_harm_nobody(seed: int) -> None:
    chance = random.Random(seed)
    async with running(GUARDED) as site:
        for _ in range(60):
            answer = await throw(site, mangled(chance))
            assert not answer or answer.startswith((b"HTTP/1.1 ", b"HTTP/1.0 "))
            assert b" 500 " not in answer[:20]
        assert (await site.get("/healthz")).status == 200


async def test_bytes_one_by_one_mean_the_same() -> None:
    async with running(GUARDED) as site, await site.dial() as stream:
        for byte in SEEDS[0]:
            await stream.send(bytes([byte]))
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(60):
            assert (await stream.receive()).startswith(b"HTTP/1.1 200")


async def _guess(site: Site, statuses: list[int]) -> None:
    wrong = {"Authorization": "Bearer guess"}
    for _ in range(20):
        answer = await site.get("/whoami", wrong, local_host="127.0.0.2")
        statuses.append(answer.status)


async def test_a_thousand_wrong_tokens_at_once_are_refused_and_a_valid_one_is_let_in() -> None:
    statuses: list[int] = []
    async with running(GUARDED) as site:
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(_guess, site, statuses)
        token = {"Authorization": "Bearer alice-secret-token"}
        let_in = await site.get("/whoami", token, local_host="127.0.0.2")

    assert statuses.count(401) == 10
    assert statuses.count(429) == 990
    assert let_in.status == 200
