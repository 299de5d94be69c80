"""The limits on connections of one address and on unauthenticated connections."""

from contextlib import AsyncExitStack
from dataclasses import replace

import anyio
import pytest
from anyio.abc import SocketStream
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from tests.web.running import ALICE, BEARER, GUARDED, Site, ask, closed_with, read_all, running

PROXY = replace(GUARDED, trusted_proxies=("127.0.0.1",), max_connections_per_address=2)
FEW = replace(GUARDED, max_unauthenticated=4, unauthenticated_grace_s=0.2)


def of(address: str, **more: str) -> dict[str, str]:
    return {"X-Forwarded-For": f"198.51.100.1, {address}", **more}


async def enter(stack: AsyncExitStack, site: Site, address: str) -> ClientConnection:
    return await stack.enter_async_context(site.socket(of(address, **BEARER)))


@pytest.mark.parametrize(
    ("first", "second", "third", "other"),
    [
        ("192.0.2.7", "192.0.2.7:1234", "[::ffff:192.0.2.7]:99", "192.0.2.8"),
        ("2001:db8::1", "[2001:db8::2]:443", "2001:db8::ffff:1", "2001:db8:0:1::1"),
    ],
)
async def test_an_address_has_so_many_connections_and_no_more(
    first: str, second: str, third: str, other: str
) -> None:
    async with running(PROXY) as site, AsyncExitStack() as stack:
        one = await enter(stack, site, first)
        await enter(stack, site, second)
        with pytest.raises(InvalidStatus) as refused:
            await enter(stack, site, third)
        over_http = await site.get("/healthz", of(third))
        beside = await enter(stack, site, other)
        assert (await ask(beside, "ping"))["result"] == "pong"

        await one.close()
        with anyio.fail_after(60):
            while (await site.get("/healthz", of(third))).status != 200:  # noqa: ASYNC110  # it is gone soon
                await anyio.sleep(0.01)

    assert refused.value.response.status_code == over_http.status == 429
    assert over_http.json["error"]["code"] == "too_many_connections"
    assert int(over_http.headers["retry-after"]) > 0


async def test_loopback_has_as_many_as_there_are() -> None:
    settings = replace(GUARDED, max_connections_per_address=2)
    async with running(settings) as site, AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(site.socket(BEARER)) for _ in range(10)]
        answers = [await ask(socket, "ping") for socket in sockets]

    assert [answer["result"] for answer in answers] == ["pong"] * 10


async def dialled(stack: AsyncExitStack, site: Site, sent: bytes = b"") -> SocketStream:
    stream = await stack.enter_async_context(await site.dial())
    if sent:
        await stream.send(sent)
    return stream


async def left(site: Site, connections: int) -> None:
    """Returns once so many are left, and that they are not fewer a little later."""
    with anyio.fail_after(60):
        while site.server.connections > connections:  # noqa: ASYNC110  # another side has no event
            await anyio.sleep(0.01)
    await anyio.sleep(0.3)
    assert site.server.connections == connections


HALF = b"GET /healthz HTTP/1.1\r\nX: "


@pytest.mark.parametrize("sent", [b"", HALF], ids=["silent", "half a head"])
async def test_of_those_who_say_nothing_only_so_many_stay_and_the_others_are_told(
    sent: bytes,
) -> None:
    async with running(FEW) as site, AsyncExitStack() as stack:
        streams = [await dialled(stack, site, sent) for _ in range(10)]
        await left(site, 4)
        told = [await read_all(stream) for stream in streams[4:]]
        assert (await site.get("/whoami", BEARER)).json == {"name": "alice"}
        assert site.server.connections == 4

    assert [answer.startswith(b"HTTP/1.1 503 ") for answer in told] == [True] * 6


async def test_whoever_brings_a_token_is_let_in_however_many_bring_none() -> None:
    async with running(FEW) as site, AsyncExitStack() as stack:
        for _ in range(4):
            await dialled(stack, site)
        known = [await stack.enter_async_context(site.socket(BEARER)) for _ in range(5)]
        by_frame = await stack.enter_async_context(site.socket())
        await ask(by_frame, "auth", token=ALICE.secret)
        for _ in range(6):
            await dialled(stack, site)
        await left(site, 4 + 6)

        for socket in (*known, by_frame):
            assert (await ask(socket, "ping"))["result"] == "pong"


async def test_a_socket_without_a_token_is_closed_when_there_are_too_many() -> None:
    async with running(FEW) as site, AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(site.socket()) for _ in range(6)]
        codes = [await closed_with(socket) for socket in sockets[4:]]

        assert codes == [4429] * 2
        assert (await ask(sockets[0], "auth", token=ALICE.secret))["result"]


async def test_a_connection_at_rest_counts_by_what_its_last_request_brought() -> None:
    async with running(FEW) as site, AsyncExitStack() as stack:
        host = f"Host: {site.address}\r\n"
        bare = f"GET /healthz HTTP/1.1\r\n{host}\r\n".encode()
        named = f"GET /whoami HTTP/1.1\r\n{host}Authorization: Bearer {ALICE.secret}\r\n\r\n"
        for _ in range(6):
            await dialled(stack, site, bare)
        known = [await dialled(stack, site, named.encode()) for _ in range(6)]
        await left(site, 4 + 6)

        for stream in known:
            await stream.receive()
            await stream.send(named.encode())
            assert b'{"name":"alice"}' in await stream.receive()


async def test_one_address_with_many_does_not_push_another_s_out() -> None:
    settings = replace(FEW, trusted_proxies=("127.0.0.1",))
    async with running(settings) as site, AsyncExitStack() as stack:
        many = [await stack.enter_async_context(site.socket(of("192.0.2.7"))) for _ in range(4)]
        few = await stack.enter_async_context(site.socket(of("192.0.2.8")))
        assert await closed_with(many[-1]) == 4429

        assert (await ask(few, "auth", token=ALICE.secret))["result"]
