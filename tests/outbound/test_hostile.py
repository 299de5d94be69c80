"""Answers that no honest server gives, over both ways out: the gateway's own client, and the
guarded one over aiohttp. Each on asyncio's loop and on uvloop."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from contextvars import ContextVar
from dataclasses import dataclass, replace

import anyio
import pytest

from gateway.domain.ports import MOST_READ, FetchRequest, Http, HttpCall, HttpFailed
from gateway.outbound.client import open_guarded
from gateway.outbound.connection import open_outbound
from tests.outbound.guarded import leave
from tests.outbound.raw import RawServer, Said, raw_server, read_all

LOOPS = [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})]
OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"content-length: 5\r\n\r\nhello"


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


@dataclass(frozen=True)
class Way:
    """Asks with a method, and gives the status and the body."""

    ask: Callable[[str, str], Awaitable[tuple[int, bytes]]]
    keeps_connections: bool


@asynccontextmanager
async def own() -> AsyncIterator[Way]:
    async with open_outbound() as http:

        async def ask(method: str, url: str) -> tuple[int, bytes]:
            body = bytearray()
            with closing(await http.send(HttpCall(method, url, {}, idle_timeout_s=0.3))) as answer:
                while data := await answer.read_some():
                    body += data
                return answer.status, bytes(body)

        yield Way(ask, keeps_connections=True)


@asynccontextmanager
async def guarded() -> AsyncIterator[Way]:
    async with open_guarded() as fetch:

        async def ask(method: str, url: str) -> tuple[int, bytes]:
            got = await fetch.fetch(
                FetchRequest(method, url, timeout_s=0.3), leave(url.rstrip("/"))
            )
            return got.status, got.body

        yield Way(ask, keeps_connections=False)


@pytest.fixture(params=[own, guarded], ids=["own", "guarded"])
async def way(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    async with request.param() as opened:
        yield opened


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"nonsense\r\n\r\n",
        b"HTTP/9.9 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 2OO OK\r\ncontent-length: 0\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        OK + b"content-length: 10\r\n\r\nshort",
        OK + b"content-length: -1\r\n\r\nhello",
        OK + b"content-length: 5 5\r\n\r\nhello",
        OK + b"content-length: 0x5\r\n\r\nhello",
        OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        OK + b"content-length: 99999999999999999999999\r\n\r\nhello",
        OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhel",
        OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello",
        OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhelloworld\r\n0\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffffffff\r\nhello",
        OK + b"no colon here\r\n\r\n",
        OK + b"x\x00y: z\r\n\r\n",
        OK + b"x: " + b"y" * 100_000 + b"\r\n\r\n",
        OK + b"".join(b"x-%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
        b"HTTP/1.1 200 " + b"O" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
async def test_a_broken_answer_is_a_failure_of_the_network(way: Way, answer: bytes) -> None:
    with anyio.fail_after(60):
        async with raw_server(answer) as server:
            with pytest.raises(HttpFailed) as failed:
                await way.ask("GET", server.url)

    assert failed.value.kind == "network"
    assert failed.value.sent


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE, 200, b"hello"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + WHOLE, 200, b"hello"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", 200, b"to the end"),
        (OK + b"\r\nto the end", 200, b"to the end"),
        (OK + b"connection: close\r\ncontent-length: 2\r\n\r\nok", 200, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", 304, b""),
        (OK + b"content-length: 0\r\n\r\n", 200, b""),
        (OK + b"x-empty:\r\ncontent-length: 2\r\n\r\nok", 200, b"ok"),
        (OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-end: 1\r\n\r\n", 200, b"ok"),
        (OK + b"transfer-encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0\r\n\r\n", 200, b"ok"),
    ],
)
async def test_an_unusual_answer_is_one(way: Way, answer: bytes, status: int, body: bytes) -> None:
    with anyio.fail_after(60):
        async with raw_server(answer) as server:
            assert await way.ask("GET", server.url) == (status, body)


async def test_an_answer_to_head_has_no_body_whatever_it_says(way: Way) -> None:
    with anyio.fail_after(60):
        async with raw_server(Said([OK + b"content-length: 5\r\n\r\n"], stays=True)) as server:
            assert await way.ask("HEAD", server.url) == (200, b"")


async def test_an_answer_in_single_bytes_is_read_like_any_other(way: Way) -> None:
    chunked = OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    with anyio.fail_after(60):
        async with raw_server(Said([chunked], most=1)) as server:
            assert await way.ask("GET", server.url) == (200, b"hello")


@pytest.mark.parametrize(
    "begin",
    [b"", OK, OK + b"x: ", OK + b"content-length: 5\r\n\r\n", OK + b"content-length: 5\r\n\r\nhel"],
)
async def test_a_server_that_stops_in_the_middle_is_given_up(way: Way, begin: bytes) -> None:
    with anyio.fail_after(60):
        async with raw_server(Said([begin], stays=True)) as server:
            with pytest.raises(HttpFailed) as failed:
                await way.ask("GET", server.url)
            await server.left.wait()

    assert failed.value.kind == "timeout"


@pytest.mark.parametrize(
    "more",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        b"HTTP/1.1 200 OK\r\nx: y",
    ],
)
async def test_what_follows_an_answer_is_nobodys_answer(way: Way, more: bytes) -> None:
    with anyio.fail_after(60):
        async with raw_server(Said([WHOLE + more], stays=True), WHOLE) as server:
            assert await way.ask("GET", server.url) == (200, b"hello")
            assert await way.ask("GET", server.url) == (200, b"hello")

    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    ],
)
async def test_a_connection_that_the_server_ends_is_not_used_again(way: Way, answer: bytes) -> None:
    with anyio.fail_after(60):
        async with raw_server(Said([answer], stays=True), WHOLE) as server:
            for _ in range(2):
                assert await way.ask("GET", server.url) == (200, b"hello")

    assert server.connections == 2


async def test_a_proxy_of_the_environment_is_not_asked(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    with anyio.fail_after(60):
        async with raw_server(WHOLE) as server, raw_server(WHOLE) as proxy:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            assert await way.ask("GET", server.url) == (200, b"hello")

    assert proxy.connections == 0


CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def asking(*script: Said | bytes) -> AsyncIterator[tuple[RawServer, Http, HttpCall]]:
    with anyio.fail_after(60):
        async with raw_server(*script) as server, open_outbound() as http:
            yield server, http, HttpCall("POST", server.url, {}, b"{}", idle_timeout_s=0.3)


@pytest.mark.parametrize(
    "flood",
    [
        Said([b""], again=b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        Said([b"HTTP/1.1 100 Continue\r\n"], again=b"x: y\r\n" * 1000),
        Said([OK], again=b"x: y\r\n" * 1000),
        Said([OK + b"x: "], again=b"y" * 10_000),
        Said([CHUNKED + b"0\r\n"], again=b"x: y\r\n" * 1000),
        Said([CHUNKED + b"5;x="], again=b"y" * 10_000),
        Said([CHUNKED + b"0" * 100], again=b"0" * 10_000),
    ],
)
async def test_a_flood_beside_the_body_is_cut_off(flood: Said) -> None:
    async with asking(flood) as (server, http, call):
        with pytest.raises(HttpFailed) as failed:
            await read_all(http, call)
        await server.left.wait()

    assert failed.value.kind == "network"


async def test_a_server_that_is_faster_than_its_reader_has_to_wait() -> None:
    endless = Said([OK + b"\r\n"], again=b"x" * 100_000)
    async with asking(endless) as (server, http, call):
        with closing(await http.send(call)) as answer:
            sent = -1
            while sent != server.sent:  # until it is held back
                sent = server.sent
                await anyio.wait_all_tasks_blocked()
            assert len(await answer.read_some()) <= MOST_READ
            for _ in range(sent // MOST_READ):
                assert await answer.read_some()

    assert sent < 20_000_000


@pytest.mark.parametrize("more", [b"nonsense", b"HTTP/1.1 408 Request Timeout\r\n\r\n"])
async def test_what_comes_unasked_ends_the_connection(more: bytes) -> None:
    async with asking(Said([WHOLE + more], stays=True), WHOLE) as (server, http, call):
        for _ in range(2):
            assert await read_all(http, call) == b"hello"

    assert server.connections == 2


async def test_a_connection_that_was_closed_between_two_requests_is_replaced() -> None:
    async with asking(WHOLE) as (server, http, call):
        for _ in range(3):
            assert await read_all(http, call) == b"hello"
            await server.closed.wait()
            server.closed = anyio.Event()
            await anyio.wait_all_tasks_blocked()  # its end arrives

    assert server.connections == 3


@pytest.mark.parametrize(("method", "is_repeated"), [("GET", True), ("PUT", True), ("POST", False)])
async def test_only_what_may_be_asked_twice_is_where_a_kept_connection_says_nothing(
    method: str, is_repeated: bool
) -> None:
    async with asking(Said([WHOLE, b""]), WHOLE) as (server, http, call):
        call = replace(call, method=method)
        assert await read_all(http, call) == b"hello"
        if is_repeated:
            assert await read_all(http, call) == b"hello"
        else:
            with pytest.raises(HttpFailed, match="before it answered"):
                await read_all(http, call)

    assert server.connections == 1 + is_repeated


async def test_an_answer_that_began_is_never_asked_for_again() -> None:
    async with asking(Said([WHOLE, b"HTTP/1.1 200"]), WHOLE) as (server, http, call):
        await read_all(http, call)
        with pytest.raises(HttpFailed, match="broke off"):
            await read_all(http, replace(call, method="GET"))

    assert server.connections == 1


async def test_an_answer_that_is_left_early_ends_its_connection() -> None:
    begun = Said([OK + b"content-length: 10\r\n\r\nhello"], stays=True)
    async with asking(begun) as (server, http, call):
        with closing(await http.send(call)) as answer:
            assert await answer.read_some() == b"hello"
        await server.left.wait()


async def test_kept_connections_end_with_the_client() -> None:
    async with raw_server(Said([WHOLE], stays=True)) as server:
        async with open_outbound() as http:
            await read_all(http, HttpCall("GET", server.url, {}))
            assert not server.left.is_set()
        with anyio.fail_after(60):
            await server.left.wait()


async def test_a_taker_is_given_all_in_the_context_of_who_reads() -> None:
    name: ContextVar[str] = ContextVar("name")
    taken: list[tuple[str, bytes]] = []

    def take(data: bytes) -> bool:
        taken.append((name.get(), data))
        return True

    async with asking(Said([WHOLE, WHOLE], most=41)) as (_, http, call):
        for reader in ("one", "other"):  # over one connection
            name.set(reader)
            with closing(await http.send(call)) as answer:
                assert await answer.read_into(take)
                assert answer.is_over

    assert "".join(data.decode() for _, data in taken) == "hellohello"
    assert {reader for reader, _ in taken} == {"one", "other"}


async def test_a_taker_that_has_enough_is_given_no_more_until_it_is_asked_again() -> None:
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return False

    large = CHUNKED + b"ffff0\r\n" + b"x" * 0xFFFF0 + b"\r\n0\r\n\r\n"
    async with asking(Said([large])) as (_, http, call):
        with closing(await http.send(call)) as answer:
            while not await answer.read_into(take):
                assert len(taken[-1]) <= MOST_READ

    assert len(b"".join(taken)) == 0xFFFF0


async def test_what_a_taker_raises_reaches_who_reads() -> None:
    def take(data: bytes) -> bool:
        raise LookupError(data)

    async with asking(Said([OK + b"content-length: 5\r\n\r\nhello"], most=1, stays=True)) as (
        server,
        http,
        call,
    ):
        with pytest.raises(LookupError), closing(await http.send(call)) as answer:
            await answer.read_into(take)
        await server.left.wait()


@pytest.mark.parametrize("begin", [b"", b"hel"])
async def test_silence_ends_a_taker_too(begin: bytes) -> None:
    halting = Said([OK + b"content-length: 5\r\n\r\n" + begin], stays=True)
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return True

    async with asking(halting) as (_, http, call):
        answer = await http.send(call)
        with closing(answer), pytest.raises(HttpFailed, match=r"nothing for 0\.3 s"):
            await answer.read_into(take)

    assert b"".join(taken) == begin


async def test_a_taker_that_is_cancelled_is_called_no_more() -> None:
    taken: list[bytes] = []
    endless = Said([OK + b"\r\n"], again=b"x" * 1000)
    async with asking(endless) as (server, http, call):
        with anyio.CancelScope() as scope:

            def take(data: bytes) -> bool:
                taken.append(data)
                if len(taken) == 3:
                    scope.cancel()
                return True

            with closing(await http.send(call)) as answer:
                await answer.read_into(take)
        await server.left.wait()

    assert len(taken) == 3
