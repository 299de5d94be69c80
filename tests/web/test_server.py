"""Listening and shutting down."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from websockets.exceptions import ConnectionClosed

from gateway.api.errors import AddressInUse, CannotListen
from gateway.web.asgi import WebApp
from gateway.web.identity import Identities
from gateway.web.responses import json_response
from gateway.web.rpc import Registry
from gateway.web.server import ListenAddress, WebServer
from tests.fakes.clock import FakeClock
from tests.web.running import OPEN, always_ready, ask, parse_answer, read_all, running


@pytest.fixture(params=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    """Both loops: not every system has the faster one."""
    return ("asyncio", {"use_uvloop": request.param == "uvloop"})


async def test_a_free_port_is_found_and_told() -> None:
    async with running() as site:
        assert site.address.port > 0
        assert (await site.get("/healthz")).status == 200


async def test_a_busy_port_is_named() -> None:
    async with running() as site:
        settings = replace(OPEN, port=site.address.port)
        app = WebApp(
            settings, Registry((), {}), Identities(settings, FakeClock()), ready=always_ready
        )

        with pytest.raises(AddressInUse, match=str(site.address.port)):
            await WebServer(app, settings).serve()
        assert (await site.get("/healthz")).status == 200


@pytest.mark.parametrize("bind", ["192.0.2.1", "no.such.name.invalid"])
async def test_an_address_that_is_not_ours_is_named(bind: str) -> None:
    settings = replace(OPEN, bind=bind)
    app = WebApp(settings, Registry((), {}), Identities(settings, FakeClock()), ready=always_ready)

    with pytest.raises(CannotListen, match=bind), anyio.fail_after(60):
        await WebServer(app, settings).serve()


def test_an_address_reads_as_it_is_dialled() -> None:
    assert str(ListenAddress("127.0.0.1", 1)) == "127.0.0.1:1"
    assert str(ListenAddress("::1", 1)) == "[::1]:1"


async def test_stopping_lets_requests_finish_and_sends_sockets_away() -> None:
    gate = anyio.Event()
    asked = anyio.Event()

    async def slow(_request: Request) -> Response:
        asked.set()
        await gate.wait()
        return json_response({"finished": True})

    async with (
        running(routes=(Route("/slow", slow),)) as site,
        await site.dial() as stream,
        site.socket() as socket,
    ):
        await ask(socket, "ping")
        await stream.send(f"GET /slow HTTP/1.1\r\nHost: {site.address}\r\n\r\n".encode())
        await asked.wait()

        site.server.stop(grace_s=5)

        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        assert "retry_after_s" in closed.value.rcvd.reason
        with pytest.raises(OSError, match="connect|refused|attempts"):
            await site.dial()
        gate.set()
        assert parse_answer(await read_all(stream)).json == {"finished": True}


async def test_who_does_not_finish_in_time_is_cut_off() -> None:
    asked = anyio.Event()

    async def stuck(_request: Request) -> Response:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    settings = replace(OPEN, port=0)
    app = WebApp(
        settings,
        Registry((), {}),
        Identities(settings, FakeClock()),
        ready=always_ready,
        routes=(Route("/x", stuck),),
    )
    server = WebServer(app, settings)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            address: ListenAddress = await group.start(_serve, server)
            async with await anyio.connect_tcp(address.host, address.port) as stream:
                await stream.send(f"GET /x HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
                await asked.wait()
                server.stop(grace_s=0.05)
                await read_all(stream)
    assert server.connections == 0


async def test_who_still_waits_at_the_end_is_told_and_it_is_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = anyio.Event()

    async def stuck(_request: Request) -> Response:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def begun(_request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"data"
            await anyio.sleep_forever()

        return StreamingResponse(chunks())

    routes = (Route("/stuck", stuck), Route("/begun", begun))
    async with (
        running(routes=routes) as site,
        await site.dial() as waiting,
        await site.dial() as reading,
    ):
        await waiting.send(f"GET /stuck HTTP/1.1\r\nHost: {site.address}\r\n\r\n".encode())
        await asked.wait()
        await reading.send(f"GET /begun HTTP/1.1\r\nHost: {site.address}\r\n\r\n".encode())
        received = b""
        with anyio.fail_after(60):
            while b"data" not in received:
                received += await reading.receive()

        site.server.stop(grace_s=0.01)

        answer = parse_answer(await read_all(waiting))
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert answer.json["error"]["code"] == "stopping"
        assert (received + await read_all(reading)).endswith(b"4\r\ndata\r\n0\r\n\r\n")
        await site.server.stopped.wait()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_what_fails_by_a_cancellation_of_its_own_is_a_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(_request: Request) -> Response:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        raise AssertionError

    async with running(routes=(Route("/broken", broken),)) as site:
        assert (await site.get("/broken")).status == 500
    assert [record for record in caplog.records if record.levelno >= logging.ERROR]


async def _serve(server: WebServer, *, task_status: anyio.abc.TaskStatus[ListenAddress]) -> None:
    await server.serve(task_status=task_status)


async def test_who_is_there_goes_on_when_nobody_else_is_let_in() -> None:
    async with running() as site, site.socket() as socket:
        site.server.stop_accepting()

        assert (await ask(socket, "ping"))["result"] == "pong"
        with pytest.raises(OSError, match="connect|refused|attempts"):
            await site.dial()


async def test_a_cancelled_server_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as site:
        socket = await site.socket()
        await ask(socket, "ping")
        stream = await site.dial()

    assert site.server.connections == 0
    with anyio.fail_after(60):
        await socket.wait_closed()
    await stream.aclose()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
