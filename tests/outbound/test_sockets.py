"""WebSockets over real sockets: granted places only, checked addresses, no secret lost."""

import json
import traceback
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http import HTTPStatus

import anyio
import pytest
from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from gateway.domain.errors import Denied
from gateway.domain.plugins import PluginSecret
from gateway.domain.ports import ClientSocket, FetchGrant, HttpFailed, SocketClient, SocketRequest
from gateway.outbound.client import open_socket_client
from tests.fakes.lookup import ScriptedLookup
from tests.fakes.platform_socket import Answers, listening
from tests.outbound.guarded import a_secret, leave

HUSH = "hush-swordfish"


@pytest.fixture
async def sockets() -> AsyncIterator[SocketClient]:
    async with open_socket_client() as opened:
        yield opened


async def echo(line: ServerConnection) -> None:
    async for text in line:
        await line.send(text)


def granted(url: str, *, secret: bool = False) -> FetchGrant:
    origin = url.replace("ws", "http", 1)
    secrets = (a_secret(HUSH, origin),) if secret else ()
    return leave(origin, secrets=secrets)


async def refused(sockets: SocketClient, request: SocketRequest, granted: FetchGrant) -> Exception:
    with anyio.fail_after(60), pytest.raises((Denied, HttpFailed)) as error:
        async with sockets.connect(request, granted):
            pass
    assert "swordfish" not in "".join(traceback.format_exception(error.value))
    return error.value


async def test_a_granted_place_is_talked_with(sockets: SocketClient) -> None:
    with anyio.fail_after(60):
        async with (
            listening(echo) as url,
            sockets.connect(SocketRequest(url), granted(url)) as line,
        ):
            await line.send('{"a": "\N{SNOWMAN}"}')

            assert await line.receive() == '{"a": "\N{SNOWMAN}"}'


async def test_secrets_go_out_in_frames_headers_and_urls_and_none_comes_back(
    sockets: SocketClient,
) -> None:
    frames: list[str] = []

    async def talk(line: ServerConnection) -> None:
        assert line.request is not None
        await line.send(f"{line.request.path} {line.request.headers['authorization']}")
        async for text in line:
            frames.append(str(text))
            await line.send(text)

    with anyio.fail_after(60):
        async with listening(talk) as url:
            origin = url.replace("ws", "http", 1)
            other = a_secret("other-swordfish", origin, name="other")
            rights = leave(origin, secrets=(a_secret(HUSH, origin), other))
            header = ("authorization", "Bearer ${secret:other}")
            async with sockets.connect(
                SocketRequest(f"{url}/x?k=${{secret:key}}", (header,)), rights
            ) as line:
                assert await line.receive() == "/x?k=[secret key] Bearer [secret other]"
                await line.send('{"token": "${secret:key}"}')
                assert await line.receive() == '{"token": "[secret key]"}'

    assert frames == [json.dumps({"token": HUSH})]


@pytest.mark.parametrize(
    "url",
    [
        "wss://other.example/",
        "wss://chat.example:444/",
        "ws://chat.example/",
        "https://chat.example/",
        "wss://user@chat.example/",
        "wss://chat.example.evil.example/",
        "file:///etc/passwd",
        "",
    ],
)
async def test_what_is_not_granted_is_refused_before_a_name_is_looked_up(url: str) -> None:
    async with open_socket_client(ScriptedLookup()) as sockets:
        error = await refused(sockets, SocketRequest(url), leave("chat.example"))

    assert isinstance(error, Denied)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.8", "169.254.169.254", "::1"])
async def test_a_granted_name_that_leads_inside_is_refused(address: str) -> None:
    async with open_socket_client(ScriptedLookup(["93.184.216.34", address])) as sockets:
        error = await refused(sockets, SocketRequest("wss://chat.example/"), leave("chat.example"))

    assert isinstance(error, Denied)
    assert "not public" in str(error)


async def test_a_redirect_is_not_followed(sockets: SocketClient) -> None:
    reached: list[ServerConnection] = []

    async def inside(line: ServerConnection) -> None:
        reached.append(line)

    with anyio.fail_after(60):
        async with listening(inside) as other:
            at = other.replace("ws", "http", 1)

            async with listening(echo, answering(HTTPStatus.FOUND, location=at)) as url:
                error = await refused(sockets, SocketRequest(url), granted(url))

    assert isinstance(error, Denied)
    assert "the redirect of" in str(error)
    assert reached == []


async def test_a_place_that_opens_no_websocket_says_its_status_and_nothing_else(
    sockets: SocketClient,
) -> None:
    with anyio.fail_after(60):
        async with listening(echo, answering(HTTPStatus.UNAUTHORIZED)) as url:
            request = SocketRequest(f"{url}/?t=${{secret:key}}")

            error = await refused(sockets, request, granted(url, secret=True))

    assert isinstance(error, HttpFailed)
    assert "status 401" in str(error)


async def test_where_nobody_is_nothing_opens(sockets: SocketClient) -> None:
    async with listening(echo) as url:
        pass

    error = await refused(sockets, SocketRequest(url), granted(url))

    assert isinstance(error, HttpFailed)
    assert "cannot be reached" in str(error)


async def test_a_place_that_never_answers_is_given_up(sockets: SocketClient) -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.listeners[0].extra(anyio.abc.SocketAttribute.local_port)
        url = f"ws://127.0.0.1:{port}"

        error = await refused(sockets, SocketRequest(url, timeout_s=0.05), granted(url))

    assert isinstance(error, HttpFailed)
    assert error.kind == "timeout"


async def test_a_secret_without_a_right_to_that_place_stays_here(sockets: SocketClient) -> None:
    with anyio.fail_after(60):
        async with echoing(sockets, a_secret(HUSH, "other.example")) as line:
            with pytest.raises(Denied, match="not for"):
                await line.send("${secret:key}")


@pytest.mark.parametrize("value", ['quo"te', "back\\slash", "line\nbreak", "\N{SNOWMAN}"])
async def test_a_secret_that_would_change_a_frame_is_not_sent(
    sockets: SocketClient, value: str
) -> None:
    with anyio.fail_after(60):
        async with echoing(sockets, value) as line:
            with pytest.raises(Denied, match="no frame allows"):
                await line.send('"${secret:key}"')


async def test_a_frame_of_more_than_4096_bytes_is_not_sent(sockets: SocketClient) -> None:
    with anyio.fail_after(60):
        async with (
            listening(echo) as url,
            sockets.connect(SocketRequest(url), granted(url)) as line,
        ):
            await line.send("x" * 4_096)
            assert await line.receive() == "x" * 4_096
            with pytest.raises(Denied, match="4096"):
                await line.send("x" * 4_097)


async def test_a_frame_that_is_too_large_breaks_the_line(sockets: SocketClient) -> None:
    async def flood(line: ServerConnection) -> None:
        await line.send("x" * 2_000)
        await line.wait_closed()

    with anyio.fail_after(60):
        async with listening(flood) as url, small_line(sockets, url) as line:
            with pytest.raises(HttpFailed, match="oversized"):
                await line.receive()


async def test_a_frame_that_is_no_text_breaks_the_line(sockets: SocketClient) -> None:
    async def talk(line: ServerConnection) -> None:
        await line.send(b"\x00")
        await line.wait_closed()

    with anyio.fail_after(60):
        async with (
            listening(talk) as url,
            sockets.connect(SocketRequest(url), granted(url)) as line,
        ):
            with pytest.raises(HttpFailed, match="binary frame"):
                await line.receive()


async def test_the_platforms_code_is_told(sockets: SocketClient) -> None:
    async def talk(line: ServerConnection) -> None:
        await line.close(4_014)

    with anyio.fail_after(60):
        async with (
            listening(talk) as url,
            sockets.connect(SocketRequest(url), granted(url)) as line,
        ):
            assert await line.receive() is None
            assert line.close_code == 4_014


async def test_a_line_that_breaks_off_is_no_goodbye(sockets: SocketClient) -> None:
    async def talk(line: ServerConnection) -> None:
        line.transport.abort()

    with anyio.fail_after(60):
        async with (
            listening(talk) as url,
            sockets.connect(SocketRequest(url), granted(url)) as line,
        ):
            with pytest.raises(HttpFailed, match="broke off"):
                await line.receive()


@pytest.mark.parametrize("code", [None, 4_123])
async def test_leaving_tells_a_code_that_keeps_the_session(
    sockets: SocketClient, code: int | None
) -> None:
    codes: list[int | None] = []
    gone = anyio.Event()

    async def talk(line: ServerConnection) -> None:
        await line.wait_closed()
        codes.append(line.close_code)
        gone.set()

    with anyio.fail_after(60):
        async with listening(talk) as url:
            await leave_line(sockets, url, code)
            await gone.wait()

    assert codes == [code or 4_000]


@asynccontextmanager
async def echoing(sockets: SocketClient, secret: PluginSecret | str) -> AsyncIterator[ClientSocket]:
    async with listening(echo) as url:
        origin = url.replace("ws", "http", 1)
        held = a_secret(secret, origin) if isinstance(secret, str) else secret
        async with sockets.connect(SocketRequest(url), leave(origin, secrets=(held,))) as line:
            yield line


def small_line(sockets: SocketClient, url: str) -> AbstractAsyncContextManager[ClientSocket]:
    return sockets.connect(SocketRequest(url, max_frame_bytes=1_000), granted(url))


async def leave_line(sockets: SocketClient, url: str, code: int | None) -> None:
    async with sockets.connect(SocketRequest(url), granted(url)) as line:
        if code is not None:
            await line.close(code)


def answering(status: HTTPStatus, **headers: str) -> Answers:
    def answer(line: ServerConnection, asked: Request) -> Response:
        return Response(status, status.phrase, Headers({**headers, "Content-Length": "0"}), b"")

    return answer
