"""The HTTP client over real sockets: pooled, bounded in time, quiet, and never redirected."""

import gzip
from collections.abc import AsyncIterator
from contextlib import closing

import anyio
import pytest

from gateway.domain.ports import Http, HttpCall, HttpFailed
from gateway.outbound.connection import open_outbound
from tests.fakes.lookup import ScriptedLookup
from tests.fakes.model_server import Reply, scripted_server
from tests.outbound.raw import raw_server


async def read_all(http: Http, call: HttpCall) -> tuple[int, bytes]:
    pieces: list[bytes] = []
    with closing(await http.send(call)) as answer:
        while piece := await answer.read_some():
            pieces.append(piece)
        return answer.status, b"".join(pieces)


def a_call(url: str, **changes: float) -> HttpCall:
    headers = {"content-type": "application/json"}
    return HttpCall("POST", url + "/chat/completions", headers, b"{}", **changes)


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    async with open_outbound() as client:
        yield client


async def test_status_headers_and_body_arrive(http: Http) -> None:
    script = [Reply(status=418, headers={"X-Own": "Yes"}, body=b"short and stout")]
    with anyio.fail_after(60):
        async with scripted_server(script) as server:
            with closing(await http.send(a_call(server.url))) as answer:
                assert answer.status == 418
                assert answer.headers["x-own"] == "Yes"
                assert await answer.read_some() == b"short and stout"
                assert await answer.read_some() == b""


async def test_only_the_headers_that_were_given_are_sent(http: Http) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply(body=b"{}")]) as server:
            await read_all(http, a_call(server.url))

    assert set(server.requests[0].headers) == {"host", "content-type", "content-length"}


async def test_a_body_that_was_read_gives_its_connection_back(http: Http) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply("ok")]) as server:
            for _ in range(3):
                await read_all(http, a_call(server.url))

    assert (len(server.requests), server.connections) == (3, 1)


async def test_leaving_early_hangs_up(http: Http) -> None:
    reply = Reply(raw=[b"first", b"never"], gates={1: anyio.Event()})
    with anyio.fail_after(60):
        async with scripted_server([reply]) as server:
            with closing(await http.send(a_call(server.url))) as answer:
                assert await answer.read_some() == b"first"
            await server.requests[0].disconnected.wait()


async def test_packed_bytes_stay_packed(http: Http) -> None:
    packed = gzip.compress(b"\n" * 10_000_000)
    reply = Reply(headers={"content-encoding": "gzip"}, body=packed)
    with anyio.fail_after(60):
        async with scripted_server([reply]) as server:
            assert await read_all(http, a_call(server.url)) == (200, packed)


async def test_cookies_are_never_kept(http: Http) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply(headers={"set-cookie": "a=b"}, body=b"{}")]) as server:
            for _ in range(2):
                await read_all(http, a_call(server.url))

    assert all("cookie" not in asked.headers for asked in server.requests)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_like_any_other(http: Http, status: int) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply(body=b"{}")]) as other:
            script = [Reply(status=status, headers={"location": other.url})]
            async with scripted_server(script) as server:
                assert (await read_all(http, a_call(server.url)))[0] == status

    assert other.requests == []


@pytest.mark.parametrize("before_first_byte", [True, False])
async def test_silence_is_a_timeout(http: Http, before_first_byte: bool) -> None:
    never = anyio.Event()
    halting = Reply(raw=[b"x", b"y"], gates={1: never})
    with anyio.fail_after(60):
        async with scripted_server([Reply(gate=never) if before_first_byte else halting]) as server:
            with pytest.raises(HttpFailed, match=r"nothing for 0\.05 s") as failed:
                await read_all(http, a_call(server.url, idle_timeout_s=0.05))

    assert failed.value.kind == "timeout"


async def test_a_failure_names_the_server_and_nothing_of_the_request(http: Http) -> None:
    with anyio.fail_after(60):
        async with raw_server(b"nonsense\r\n\r\n") as server:
            with pytest.raises(HttpFailed) as failed:
                await read_all(http, a_call(server.url + "x?key=hush"))

    assert failed.value.kind == "network"
    assert "127.0.0.1" in str(failed.value)
    assert "hush" not in str(failed.value)


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://a.example/x", "http://[::1"])
async def test_an_address_that_is_none_is_a_failure_and_no_crash(http: Http, url: str) -> None:
    with pytest.raises(HttpFailed):
        await read_all(http, HttpCall("GET", url, {}))


async def test_a_name_that_nobody_knows_says_so(http: Http) -> None:
    with anyio.fail_after(60), pytest.raises(HttpFailed) as failed:
        await read_all(http, HttpCall("GET", "http://no-such-host.invalid/?key=hush", {}))

    assert failed.value.kind == "network"
    assert "no-such-host.invalid" in str(failed.value)
    assert "hush" not in str(failed.value)


async def test_of_several_addresses_the_first_that_answers_is_asked() -> None:
    lookup = ScriptedLookup(["127.0.0.9", "127.0.0.1"])
    with anyio.fail_after(60):
        async with raw_server(b"HTTP/1.1 204 No\r\n\r\n") as server, open_outbound(lookup) as http:
            url = server.url.replace("127.0.0.1", "some.example")
            for _ in range(2):
                assert await read_all(http, HttpCall("GET", url, {})) == (204, b"")

    assert [name for name, _ in lookup.asked] == ["some.example"]  # it is known for a while


async def test_a_header_that_would_smuggle_another_is_refused(http: Http) -> None:
    with pytest.raises(HttpFailed):
        await read_all(http, HttpCall("GET", "http://127.0.0.1:1/", {"x": "a\r\nb: c"}))
