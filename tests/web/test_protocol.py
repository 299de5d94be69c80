"""HTTP over real sockets: requests that are too large, too slow, too many or ambiguous are refused."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import anyio
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gateway.web.responses import json_response
from tests.web.running import (
    BEARER,
    GUARDED,
    OPEN,
    PING,
    ROUTES,
    Answer,
    Site,
    ask,
    keep_sending,
    parse_answer,
    read_all,
    running,
)


async def spoken(site: Site, head: str, body: bytes = b"") -> Answer:
    """A request by the letter; `%` stands for the Host line."""
    text = head.replace("%", f"Host: {site.address}").replace("\n", "\r\n")
    return parse_answer(await site.raw(text.encode("latin-1") + b"\r\n\r\n" + body))


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /healthz HTTP/1.1\n%", 200),
        ("GET /healthz HTTP/1.0\n%", 200),
        ("GET /healthz HTTP/1.1", 400),
        ("GET /healthz HTTP/1.0", 400),
        ("GET /healthz HTTP/1.1\nHost: ", 400),
        ("GET /healthz HTTP/1.1\n%\n%", 400),
        ("POST /length HTTP/1.1\n%\nContent-Length: 3\nTransfer-Encoding: chunked", 400),
        ("POST /length HTTP/1.1\n%\nTransfer-Encoding: chunked\nContent-Length: 3", 400),
        ("POST /length HTTP/1.1\n%\nContent-Length: 3\nContent-Length: 3", 400),
        ("POST /length HTTP/1.1\n%\nContent-Length: -3", 400),
        ("POST /length HTTP/1.1\n%\nContent-Length: 3x", 400),
        ("POST /length HTTP/1.1\n%\nTransfer-Encoding: gzip, chunked", 400),
        ("POST /length HTTP/1.1\n%\nTransfer-Encoding: identity", 400),
        ("GET http://evil.com/healthz HTTP/1.1\n%", 400),
        ("OPTIONS * HTTP/1.1\n%", 400),
        ("CONNECT evil.com:443 HTTP/1.1\n%", 400),
        ("GET /h\xe9 HTTP/1.1\n%", 400),
        ("WHAT /healthz HTTP/1.1\n%", 400),
        ("garbage", 400),
        ("GET /healthz HTTP/1.1\n%\nBad Header: x", 400),
        ("GET /healthz HTTP/1.1\n%\n folded: x", 400),
        ("GET /healthz http/1.1\n%", 400),
        ("GET /healthz HTTP/1\n%", 400),
        ("GET /healthz HTTP/1.\n%", 400),
        ("GET /healthz HTTP/11.1\n%", 400),
        ("GET /healthz HTTP/1.10\n%", 400),
        ("GET /healthz HTTP/x.y\n%", 400),
        ("GET /healthz HTTP/\n%", 400),
        ("GET /healthz HTTP/-1.1\n%", 400),
    ],
)
async def test_a_request_is_plain_or_refused(head: str, status: int) -> None:
    async with running() as site:
        if status == 200:
            head += "\nConnection: close"
        answer = await spoken(site, head, b"abc")

        assert answer.status == status
        if status == 400:
            assert answer.json["error"]["type"] == "invalid_request"
            assert answer.headers["connection"] == "close"


OTHER_VERSIONS = [
    "GET /healthz HTTP/2.0\n%",
    "GET /healthz HTTP/2.0\n%\nBad Header: x",
    "GET /healthz HTTP/2\n%",
    "GET /healthz HTTP/0.9\n%",
    "GET /healthz HTTP/1.2\n%",
    "GET /healthz HTTP/3.0\n%",
    "GET /healthz HTTP/9.9\n%",
    "GET /healthz RTSP/1.0\n%",  # another protocol, which the parser knows too
    "OPTIONS /healthz RTSP/1.1\n%",
    "GET /healthz",  # HTTP/0.9 has no more
    "PRI * HTTP/2.0\n\nSM",
    "GET /ws HTTP/2.0\n%\nConnection: Upgrade\nUpgrade: websocket",
]


@pytest.mark.parametrize("head", OTHER_VERSIONS)
async def test_another_version_of_http_is_refused_with_505(head: str) -> None:
    async with running() as site:
        answer = await spoken(site, head)

        assert answer.status == 505
        assert answer.json["error"]["code"] == "http_version_not_supported"
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("version", ["HTTP/2.0", "HTTP/1.2"])
async def test_another_version_is_refused_also_when_it_comes_byte_by_byte(version: str) -> None:
    async with running() as site, await site.dial() as stream:
        with suppress(anyio.BrokenResourceError):  # refused before the last byte
            for byte in f"GET /healthz {version}\r\nHost: {site.address}\r\n\r\n".encode():
                await stream.send(bytes([byte]))
        answer = parse_answer(await read_all(stream))

        assert answer.status == 505


async def test_another_version_behind_a_good_request_is_not_served() -> None:
    async with running() as site:
        host = f"Host: {site.address}"
        pair = "".join(f"GET /healthz HTTP/{of}\r\n{host}\r\n\r\n" for of in ("1.1", "2.0"))
        answers = await site.raw(pair.encode())

        assert answers.count(b'{"status":"ok"}') == 1


async def spoken_headers(request: Request) -> Response:
    await request.body()
    return json_response([[name, value] for name, value in request.headers.items()])


HEADERS = (*ROUTES, Route("/headers", spoken_headers, methods=["POST"]))


@pytest.mark.parametrize("by_bytes", [False, True], ids=["at once", "byte by byte"])
async def test_trailers_are_no_headers(by_bytes: bool) -> None:
    trailers = "".join(
        f"{name}: from-the-trailer\r\n"
        for name in ("Authorization", "Host", "X-Forwarded-For", "Origin", "Expect", "X-Other")
    )
    async with running(GUARDED, routes=HEADERS) as site, await site.dial() as stream:
        head = (
            f"POST /headers HTTP/1.1\r\nHost: {site.address}\r\nTransfer-Encoding: chunked\r\n"
            f"Authorization: {BEARER['Authorization']}\r\nConnection: close\r\n\r\n"
        )
        whole = f"{head}3\r\nabc\r\n0\r\n{trailers}\r\n".encode()
        for piece in [bytes([byte]) for byte in whole] if by_bytes else [whole]:
            await stream.send(piece)
        answer = parse_answer(await read_all(stream))

        assert answer.status == 200
        assert "from-the-trailer" not in answer.body.decode()
        assert sorted(name for name, _ in answer.json) == [
            "authorization",
            "connection",
            "host",
            "transfer-encoding",
        ]


async def test_a_token_in_a_trailer_is_no_token() -> None:
    async with running(GUARDED, routes=HEADERS) as site:
        answer = await spoken(
            site,
            "POST /headers HTTP/1.1\n%\nTransfer-Encoding: chunked\nConnection: close",
            f"0\r\nAuthorization: {BEARER['Authorization']}\r\n\r\n".encode(),
        )

        assert answer.status == 401


@pytest.mark.parametrize(
    "trailers",
    [b"X: y\r\n" * 100, b"X: " + b"y" * 20_000, b"X" * 500_000, b"X: " + b"y" * 500_000],
    ids=["many", "long", "endless name", "endless value"],
)
async def test_trailers_are_limited_like_headers(trailers: bytes) -> None:
    async with running(routes=HEADERS) as site:
        head = "POST /headers HTTP/1.1\n%\nTransfer-Encoding: chunked"
        answer = await spoken(site, head, b"0\r\n" + trailers + b"\r\n\r\n")

        assert answer.status == 431


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("\nX: y" * 60, 200),
        ("\nX: y" * 64, 431),
        ("\nX: " + "y" * 16_000, 200),
        ("\nX: " + "y" * 17_000, 431),
        ("\nX: " + "y" * 500_000, 431),
        (f"\n{'x' * 17_000}: y", 431),
    ],
)
async def test_headers_are_limited_in_number_and_size(lines: str, status: int) -> None:
    async with running() as site:
        answer = await spoken(site, f"GET /healthz HTTP/1.1\n%\nConnection: close{lines}")

        assert answer.status == status


async def test_a_header_that_never_ends_is_refused_by_its_bytes() -> None:
    async with running() as site, await site.dial() as stream:
        await stream.send(b"GET /healthz HTTP/1.1\r\nX: ")
        answers: list[bytes] = []

        async def listen() -> None:
            answers.append(await read_all(stream))

        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            for _ in range(40):
                await stream.send(b"y" * 1_000)
        assert parse_answer(answers[0]).status == 431


@pytest.mark.parametrize(("length", "status"), [(8_000, 404), (8_300, 414), (300_000, 414)])
async def test_the_target_is_limited(length: int, status: int) -> None:
    async with running() as site:
        answer = await spoken(site, f"GET /{'a' * length} HTTP/1.1\n%\nConnection: close")
        assert answer.status == status


@pytest.mark.parametrize("sent", [b"G", b"GET /healthz HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nA: b"])
async def test_half_a_head_has_its_time_and_no_more(sent: bytes) -> None:
    async with running(replace(OPEN, header_timeout_s=0.05)) as site:
        answer = parse_answer(await site.raw(sent))
        assert (answer.status, answer.json["error"]["type"]) == (408, "timeout")


async def test_dripping_does_not_buy_time() -> None:
    async with running(replace(OPEN, header_timeout_s=0.1)) as site, await site.dial() as stream:
        answers: list[bytes] = []

        async def listen(scope: anyio.CancelScope) -> None:
            answers.append(await read_all(stream))
            scope.cancel()

        await stream.send(b"GET /healthz HTTP/1.1\r\nA: ")
        async with anyio.create_task_group() as group:
            group.start_soon(listen, group.cancel_scope)
            while True:
                await stream.send(b"b")
                await anyio.sleep(0.01)  # trickling is what this is about
        assert parse_answer(answers[0]).status == 408


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"\r\n\r\n\r\n"])
async def test_who_says_nothing_is_let_go_without_a_word(sent: bytes) -> None:
    settings = replace(OPEN, header_timeout_s=0.05)
    async with running(settings) as site, await site.dial() as stream:
        if sent:
            await stream.send(sent)
        assert await read_all(stream) == b""


async def test_a_connection_at_rest_is_let_go_also_if_it_trickles() -> None:
    async with running(replace(OPEN, keep_alive_s=1)) as site, await site.dial() as stream:
        await stream.send(f"GET /healthz HTTP/1.1\r\nHost: {site.address}\r\n\r\n".encode())
        await stream.send(b"\r\n")
        assert (await read_all(stream)).count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
async def test_half_a_body_has_its_time_and_no_more(framing: str) -> None:
    async with running(replace(OPEN, body_timeout_s=0.05)) as site:
        answer = await spoken(site, f"POST /length HTTP/1.1\n%\n{framing}", b"4\r\nabcd\r\n")
        assert (answer.status, answer.json["error"]["type"]) == (408, "timeout")
        assert (await site.get("/healthz")).status == 200


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        ("Content-Length: 1001", b"x" * 1_001),
        ("Content-Length: 99999999999", b"x" * 5_000),
        ("Transfer-Encoding: chunked", b"3e9\r\n" + b"x" * 1_001 + b"\r\n0\r\n\r\n"),
    ],
)
async def test_a_body_that_is_too_large_is_refused(framing: str, body: bytes) -> None:
    async with running(replace(OPEN, max_body_bytes=1_000, keep_alive_s=1)) as site:
        head = f"POST /length HTTP/1.1\n%\n{framing}\nConnection: close"
        answer = await spoken(site, head, body)
        assert (answer.status, answer.json["error"]["type"]) == (413, "too_large")


async def test_a_body_at_the_limit_is_taken() -> None:
    async with running(replace(OPEN, max_body_bytes=200_000)) as site:
        answer = await site.get("/length", method="POST", body=b"x" * 200_000)
        assert answer.json == {"length": 200_000}


async def test_an_endless_body_is_read_no_further_than_it_may() -> None:
    settings = replace(OPEN, max_body_bytes=10_000)
    async with running(settings) as site, await site.dial() as stream:
        head = f"POST /length HTTP/1.1\r\nHost: {site.address}\r\n"
        await stream.send(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        chunks = (b"2710\r\n" + b"x" * 10_000 + b"\r\n") * 5_000
        with pytest.raises(anyio.BrokenResourceError):
            await keep_sending(stream, chunks)


async def until_there_are(site: Site, connections: int) -> None:
    with anyio.fail_after(60):
        while site.server.connections < connections:
            await anyio.lowlevel.checkpoint()


async def test_one_connection_too_many_is_told_to_come_back() -> None:
    async with running(replace(OPEN, max_connections=2)) as site:
        async with site.socket() as one, await site.dial():
            await ask(one, "ping")
            await until_there_are(site, 2)
            answer = parse_answer(await site.raw(b""))
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
            assert (await ask(one, "ping"))["result"] == "pong"
        with anyio.fail_after(60):
            await site.server._connections.wait_until_empty()
        assert (await site.get("/healthz")).status == 200


async def test_requests_of_one_connection_are_answered_in_order() -> None:
    async with running() as site:
        host = f"Host: {site.address}\r\n"
        pipeline = (
            f"POST /length HTTP/1.1\r\n{host}Content-Length: 3\r\n\r\nabc"
            f"GET /healthz HTTP/1.1\r\n{host}\r\n"
            f"GET /whoami HTTP/1.1\r\n{host}Connection: close\r\n\r\n"
        )
        answers = await site.raw(pipeline.encode())

        places = [answers.index(b) for b in (b'{"length":3}', b'"ok"', b'{"name":"local"}')]
        assert places == sorted(places)


async def test_a_bad_request_behind_a_good_one_does_not_spoil_its_answer() -> None:
    gate = anyio.Event()

    async def slow(_request: Request) -> Response:
        await gate.wait()
        return json_response({"slow": True})

    async with running(routes=(Route("/slow", slow),)) as site, await site.dial() as stream:
        await stream.send(f"GET /slow HTTP/1.1\r\nHost: {site.address}\r\n\r\n".encode())
        await stream.send(b"garbage\r\n\r\n")
        assert (await site.get("/healthz")).status == 200
        gate.set()
        answers = await read_all(stream)

        assert answers.count(b"HTTP/1.1 ") == 1
        assert answers.endswith(b'{"slow":true}')


@pytest.mark.parametrize("pipelined", [0, 1])
async def test_an_upgrade_behind_an_unanswered_request_does_not_overtake_its_answer(
    pipelined: int,
) -> None:
    gate = anyio.Event()

    async def slow(_request: Request) -> Response:
        await gate.wait()
        return json_response({"slow": True})

    async with running(routes=(Route("/slow", slow),)) as site, await site.dial() as stream:
        host = f"Host: {site.address}"
        earlier = f"GET /slow HTTP/1.1\r\n{host}\r\n\r\n" * (1 + pipelined)
        upgrade = f"GET /ws HTTP/1.1\n{UPGRADE}\n{KEY}\n\n".replace("%", host)
        await stream.send(earlier.encode() + upgrade.replace("\n", "\r\n").encode())
        assert (await site.get("/healthz")).status == 200
        gate.set()
        answers = await read_all(stream)

        assert answers.count(b"HTTP/1.1 200") == 1 + pipelined
        assert answers.count(b"HTTP/1.1 ") == 1 + pipelined
        assert answers.endswith(b'{"slow":true}')


async def test_an_upgrade_behind_an_answered_request_is_taken() -> None:
    async with running() as site, await site.dial() as stream:
        host = f"Host: {site.address}"
        await stream.send(f"GET /healthz HTTP/1.1\r\n{host}\r\n\r\n".encode())
        with anyio.fail_after(60):
            assert (await stream.receive()).endswith(b'{"status":"ok"}')
            upgrade = f"GET /ws HTTP/1.1\n{UPGRADE}\n{KEY}\n\n".replace("%", host)
            await stream.send(upgrade.replace("\n", "\r\n").encode())
            assert (await stream.receive()).startswith(b"HTTP/1.1 101")


async def parts(_request: Request) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        for part in (b"one ", b"", b"two"):
            yield part

    return StreamingResponse(chunks())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_stream_for_http_1_0_has_no_chunks_and_ends_with_its_connection(
    method: str,
) -> None:
    async with running(routes=(Route("/parts", parts),)) as site:
        answer = await spoken(site, f"{method} /parts HTTP/1.0\n%")

        assert answer.status == 200
        assert "transfer-encoding" not in answer.headers
        assert answer.headers["connection"] == "close"
        assert answer.body == (b"one two" if method == "GET" else b"")


async def test_a_stream_for_http_1_1_is_chunked() -> None:
    async with running(routes=(Route("/parts", parts),)) as site:
        answer = await site.get("/parts")

        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.body == b"4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"


async def test_an_answer_that_nobody_takes_is_given_up() -> None:
    ended = anyio.Event()

    async def endless(_request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 65_536
                    await anyio.lowlevel.checkpoint()
            finally:
                ended.set()

        return StreamingResponse(chunks())

    settings = replace(OPEN, write_deadline_s=0.1)
    async with (
        running(settings, routes=(Route("/endless", endless),)) as site,
        await site.dial() as stream,
    ):
        await stream.send(f"GET /endless HTTP/1.1\r\nHost: {site.address}\r\n\r\n".encode())
        with anyio.fail_after(60):
            await ended.wait()


async def test_a_slow_reader_of_an_answer_gets_all_of_it() -> None:
    async def large(_request: Request) -> Response:
        return Response(b"x" * 20_000_000)  # more than client and kernel take

    settings = replace(OPEN, write_deadline_s=2.0)
    async with (
        running(settings, routes=(Route("/large", large),)) as site,
        await site.dial() as stream,
    ):
        head = f"GET /large HTTP/1.1\r\nHost: {site.address}\r\nConnection: close\r\n\r\n"
        await stream.send(head.encode())
        size = 0
        for _ in range(20):
            size += len(await stream.receive(200_000))
            await anyio.sleep(0.11)  # in all longer than the deadline
        size += len(await read_all(stream))

    assert size > 20_000_000


async def test_an_upgrade_that_we_do_not_know_is_answered_as_if_it_were_not_there() -> None:
    async with running() as site:
        head = "GET /healthz HTTP/1.1\n%\nConnection: Upgrade\nUpgrade: h2c"
        answer = await spoken(site, head)
        assert (answer.status, answer.headers["connection"]) == (200, "close")


KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = "%\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13"


@pytest.mark.parametrize(
    "head",
    [
        f"POST /ws HTTP/1.1\n{UPGRADE}\n{KEY}",
        f"GET /ws HTTP/1.0\n{UPGRADE}\n{KEY}",
        f"GET /ws HTTP/1.1\n{UPGRADE}",
        f"GET /ws HTTP/1.1\n{UPGRADE}\nSec-WebSocket-Key: short",
        f"GET /ws HTTP/1.1\n{UPGRADE}\nSec-WebSocket-Key: \xff\xfe",
        f"GET /ws HTTP/1.1\n{UPGRADE}\n{KEY}\n{KEY}",
        f"GET /ws HTTP/1.1\n{UPGRADE.replace('13', '8')}\n{KEY}",
        f"GET /ws HTTP/1.1\n{UPGRADE}\n{KEY}\nContent-Length: 3",
        f"GET /ws HTTP/1.1\n{UPGRADE}\n{KEY}\nTransfer-Encoding: chunked",
    ],
)
async def test_a_handshake_by_the_letter_or_none(head: str) -> None:
    async with running() as site:
        answer = await spoken(site, head)
        assert answer.status == 400
        assert (await site.get("/healthz")).status == 200


async def test_a_browser_s_plain_visit_to_the_socket_finds_nothing() -> None:
    async with running(GUARDED) as site:
        assert (await site.get("/ws")).status == 401
        assert (await site.get("/ws", BEARER)).status == 404


async def test_every_connection_is_counted_out_again() -> None:
    async with running(methods=(PING,)) as site:
        for _ in range(5):
            await site.get("/healthz")
            await site.raw(b"garbage\r\n\r\n")
            async with site.socket() as socket:
                await ask(socket, "ping")
        with anyio.fail_after(60):
            await site.server._connections.wait_until_empty()
