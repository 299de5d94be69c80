"""The guarded way out over real sockets: granted places only, checked addresses, no secret lost."""

import json
import socket
import traceback
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import quote

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from gateway.domain.errors import Denied
from gateway.domain.ports import Fetch, Fetched, FetchGrant, FetchRequest, HttpFailed
from gateway.outbound.client import open_guarded
from tests.fakes.lookup import ScriptedLookup
from tests.fakes.model_server import Asked, ModelServer, Reply, scripted_server
from tests.outbound.guarded import a_secret, base, get, leave

HUSH = "hush/hush+swordfish=="


@pytest.fixture
async def guard() -> AsyncIterator[Fetch]:
    async with open_guarded() as opened:
        yield opened


def port(server: ModelServer) -> str:
    return base(server).rpartition(":")[2]


async def denial(guard: Fetch, ask: FetchRequest, granted: FetchGrant) -> str:
    with pytest.raises(Denied) as denied:
        await guard.fetch(ask, granted)
    assert_hushed(denied.value)
    return str(denied.value)


async def failure(guard: Fetch, ask: FetchRequest, granted: FetchGrant) -> HttpFailed:
    with pytest.raises(HttpFailed) as failed:
        await guard.fetch(ask, granted)
    assert_hushed(failed.value)
    return failed.value


def assert_hushed(error: Exception) -> None:
    assert "swordfish" not in "".join(traceback.format_exception(error))
    assert error.__context__ is None


async def test_a_granted_place_is_asked_and_answers(guard: Fetch) -> None:
    reply = Reply(status=418, headers={"X-Own": "Yes", "content-type": "a/b"}, body=b"short")
    with anyio.fail_after(60):
        async with scripted_server([reply]) as server:
            ask = FetchRequest("post", base(server) + "/pot?x=1#y", (("X-Mine", "ok"),), b'{"a":1}')
            answer = await guard.fetch(ask, leave(base(server)))

    assert (answer.status, answer.body) == (418, b"short")
    assert dict(answer.headers) == {"x-own": "Yes", "content-type": "a/b"}
    asked = server.requests[0]
    assert (asked.method, asked.path, asked.body) == ("POST", "/pot?x=1", {"a": 1})
    assert asked.headers == {
        "host": base(server).removeprefix("http://"),
        "x-mine": "ok",
        "user-agent": "exogate",
        "accept-encoding": "gzip, deflate",
        "content-length": "7",
        "connection": "close",
    }


async def test_the_asker_may_say_who_it_is(guard: Fetch) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply(body=b"")]) as server:
            await guard.fetch(get(base(server), User_Agent="curl/8"), leave(base(server)))

    assert server.requests[0].headers["user-agent"] == "curl/8"


@pytest.mark.requirement("S-003-Plugin-10")
async def test_a_place_that_is_not_granted_is_not_asked(guard: Fetch) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply(body=b"")]) as server:
            for granted in (leave(), leave("127.0.0.1"), leave("http://127.0.0.1:1", "wttr.in")):
                said = await denial(guard, get(base(server)), granted)
                assert said.startswith(f"not allowed to reach {base(server)} (granted: ")

    assert server.connections == 0


@pytest.mark.requirement("S-003-Plugin-10")
@pytest.mark.parametrize("answers", [["127.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["::ffff:7f00:1"]])
async def test_a_granted_name_that_leads_to_this_machine_is_not_asked(
    answers: Sequence[str],
) -> None:
    with anyio.fail_after(60):
        async with (
            scripted_server([Reply(body=b"")]) as server,
            open_guarded(ScriptedLookup(answers)) as guard,
        ):
            url = f"http://rebound.example:{port(server)}"
            assert "not public" in await denial(guard, get(url), leave(url))

    assert server.connections == 0


@pytest.mark.requirement("S-003-Plugin-10")
async def test_each_connection_is_checked_and_looks_its_name_up_once() -> None:
    lookup = ScriptedLookup(["127.0.0.1"], ["10.0.0.1"])
    with anyio.fail_after(60):
        async with scripted_server([Reply(body=b"ok")]) as server, open_guarded(lookup) as guard:
            url = f"http://localhost:{port(server)}"

            assert (await guard.fetch(get(url), leave(url))).body == b"ok"
            assert server.requests[0].headers["host"] == f"localhost:{port(server)}"
            assert "not of this machine" in await denial(guard, get(url), leave(url))

    assert len(lookup.asked) == 2
    assert server.connections == 1


async def test_a_connection_goes_to_the_address_that_was_looked_up_and_no_other() -> None:
    with anyio.fail_after(60):
        async with (
            scripted_server([Reply(body=b"ok")]) as server,
            open_guarded(ScriptedLookup(["::1"])) as guard,
        ):
            url = f"http://localhost:{port(server)}"
            assert "cannot be reached" in str(await failure(guard, get(url), leave(url)))

    assert server.connections == 0


async def test_a_name_that_nobody_knows_is_a_failure() -> None:
    with anyio.fail_after(60):
        async with open_guarded(ScriptedLookup()) as guard:
            failed = await failure(guard, get("https://wttr.in"), leave("wttr.in"))

    assert str(failed) == "https://wttr.in cannot be resolved by DNS"
    assert not failed.sent


@pytest.mark.requirement("S-003-Plugin-10")
async def test_no_connection_serves_two_requests(guard: Fetch) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply(body=b"ok")]) as server:
            for _ in range(3):
                await guard.fetch(get(base(server)), leave(base(server)))

    assert server.connections == 3


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with anyio.fail_after(60):
        async with (
            scripted_server([Reply(body=b"proxy")]) as proxy,
            scripted_server([Reply(body=b"ok")]) as server,
        ):
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, base(proxy))
            async with open_guarded() as guard:
                assert (await guard.fetch(get(base(server)), leave(base(server)))).body == b"ok"

    assert proxy.connections == 0


async def test_cookies_are_neither_kept_nor_shown(guard: Fetch) -> None:
    kept_back = ["set-cookie", "www-authenticate", "authorization", "proxy-authenticate"]
    reply = Reply(headers={**dict.fromkeys(kept_back, "a=b"), "x-own": "yes"}, body=b"")
    with anyio.fail_after(60):
        async with scripted_server([reply]) as server:
            for _ in range(2):
                answer = await guard.fetch(get(base(server)), leave(base(server)))

    assert not dict(answer.headers).keys() & set(kept_back)
    assert ("x-own", "yes") in answer.headers
    assert all("cookie" not in asked.headers for asked in server.requests)


async def test_a_body_that_is_too_large_is_not_sent(guard: Fetch) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply(body=b"ok")]) as server:
            whole = FetchRequest("POST", base(server), body=b'"' + b"x" * (1024 * 1024 - 2) + b'"')
            await guard.fetch(whole, leave(base(server)))
            larger = replace(whole, body=whole.body + b" ")
            assert "larger than 1048576 bytes" in await denial(guard, larger, leave(base(server)))

    assert len(server.requests) == 1


# In time


@pytest.mark.parametrize(
    "reply",
    [
        Reply(gate=anyio.Event()),
        Reply(raw=[b"x", b"y"], gates={1: anyio.Event()}),
        Reply(status=302, headers={"location": "/again"}, gate=anyio.Event()),
    ],
)
async def test_what_takes_longer_than_was_given_is_a_timeout(guard: Fetch, reply: Reply) -> None:
    with anyio.fail_after(60):
        async with scripted_server([reply]) as server:
            ask = replace(get(base(server)), timeout_s=0.05)
            failed = await failure(guard, ask, leave(base(server)))

    assert (failed.kind, failed.sent) == ("timeout", True)
    assert str(failed) == f"{base(server)} did not finish its answer within 0.05 s"


@pytest.mark.parametrize("asked", [1e9, float("inf"), float("nan"), 60.0])
async def test_no_request_has_more_than_a_minute(asked: float) -> None:
    left: list[float] = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        left.append(anyio.current_effective_deadline() - anyio.current_time())
        return ["10.0.0.1"]

    async with open_guarded(lookup) as guard:
        await denial(guard, replace(get("https://wttr.in"), timeout_s=asked), leave("wttr.in"))

    assert 0 < left[0] <= 60


# Redirects


def redirect(to: str, status: int = 302) -> Reply:
    return Reply(status=status, headers={"location": to}, body=b"moved")


@asynccontextmanager
async def two_servers(first: Reply, *more: Reply) -> AsyncIterator[tuple[ModelServer, ModelServer]]:
    """The first one's `{other}` in a location is the second one's address."""
    async with scripted_server([Reply(body=b"other")]) as other:
        located = {
            name: value.format(other=base(other), port=port(other))
            for name, value in first.headers.items()
        }
        async with scripted_server([replace(first, headers=located), *more]) as server:
            yield server, other


@pytest.mark.requirement("S-003-Plugin-10")
@pytest.mark.parametrize(
    "location",
    [
        "{other}/x",
        "//127.0.0.1:{port}/x",
        "http://127.0.0.1.:{port}/",
        "http://localhost:{port}/",
        "http://[::1]:{port}/",
        "http://127.1:{port}/",
        "http://2130706433:{port}/",
        "http://user@127.0.0.1:{port}/",
        "\\\\127.0.0.1:{port}/",
        "https://127.0.0.1:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:169.254.169.254]/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:{port}/_x",
        "javascript:1",
        "http://[",
    ],
)
async def test_a_redirect_to_what_is_not_granted_is_not_followed(
    guard: Fetch, location: str
) -> None:
    with anyio.fail_after(60):
        async with two_servers(redirect(location)) as (server, other):
            said = await denial(guard, get(base(server)), leave(base(server)))

    assert said.startswith(f"the redirect of {base(server)} is not followed: ")
    assert other.connections == 0
    assert len(server.requests) == 1


@pytest.mark.requirement("S-003-Plugin-10")
async def test_a_redirect_to_a_granted_name_is_checked_like_any_connection() -> None:
    lookup = ScriptedLookup(["169.254.169.254"])
    with anyio.fail_after(60):
        async with (
            open_guarded(lookup) as guard,
            scripted_server([redirect("https://wttr.in/")]) as server,
        ):
            granted = leave(base(server), "wttr.in")
            assert "not public" in await denial(guard, get(base(server)), granted)

    assert lookup.asked == [("wttr.in", 443)]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_granted_place_brings_nothing_of_the_caller_but_the_request(
    guard: Fetch, status: int
) -> None:
    with anyio.fail_after(60):
        async with two_servers(redirect("{other}/there?x=1", status)) as (server, other):
            secrets = (a_secret(HUSH, base(server)), a_secret("sw0rdfish", base(other), name="b"))
            granted = leave(base(server), base(other), secrets=secrets)
            headers = (("authorization", "${secret:key}"), ("x-mine", "y"), ("content-type", "z"))
            ask = FetchRequest("POST", base(server), headers, b'{"a":1}')
            answer = await guard.fetch(ask, granted)

    assert answer.body == b"other"
    assert server.requests[0].headers["authorization"] == HUSH
    again = other.requests[0]
    kept = status in {307, 308}
    assert (again.method, again.path) == ("POST" if kept else "GET", "/there?x=1")
    assert again.body == ({"a": 1} if kept else {})
    assert set(again.headers) - {"content-length"} == {
        "host", "user-agent", "accept-encoding", "connection",
    }  # fmt: skip


@pytest.mark.parametrize("status", [302, 307])
async def test_a_redirect_on_the_same_place_keeps_the_headers_without_a_secret(
    guard: Fetch, status: int
) -> None:
    script = [redirect("there", status), Reply(body=b"ok")]
    with anyio.fail_after(60):
        async with scripted_server(script) as server:
            granted = leave(base(server), secrets=(a_secret(HUSH, base(server)),))
            headers = (("x-api-key", "${secret:key}"), ("x-mine", "y"), ("content-type", "z"))
            await guard.fetch(FetchRequest("PUT", base(server) + "/a/b?c", headers, b"{}"), granted)

    first, second = server.requests
    assert first.headers["x-api-key"] == HUSH
    assert (second.method, second.path) == ("PUT" if status == 307 else "GET", "/a/there")
    assert "x-api-key" not in second.headers
    assert second.headers["x-mine"] == "y"
    assert ("content-type" in second.headers) == (status == 307)


async def test_a_placeholder_in_a_redirect_stays_a_text(guard: Fetch) -> None:
    script = [redirect("/x?${secret:key}"), Reply(body=b"ok")]
    with anyio.fail_after(60):
        async with scripted_server(script) as server:
            granted = leave(base(server), secrets=(a_secret(HUSH, base(server)),))
            await guard.fetch(get(base(server)), granted)

    assert server.requests[1].path == "/x?$%7Bsecret:key%7D"


@pytest.mark.parametrize(
    "location", ["/next?k=sword~fish", "{other}/?k=sword%7Efish", "{other}/c3dvcmR-ZmlzaA", "next"]
)
async def test_a_redirect_that_would_carry_a_secret_on_is_not_followed(
    guard: Fetch, location: str
) -> None:
    with anyio.fail_after(60):
        async with two_servers(redirect(location)) as (server, other):
            secret = a_secret("sword~fish", base(server))
            granted = leave(base(server), base(other), secrets=(secret,))
            said = await denial(guard, get(base(server) + "/bot${secret:key}/x"), granted)

    assert "the target has a secret" in said
    assert (len(server.requests), other.connections) == (1, 0)


@pytest.mark.parametrize(("hops", "is_followed"), [(3, True), (4, False)])
async def test_three_redirects_are_followed_and_no_fourth(
    guard: Fetch, hops: int, is_followed: bool
) -> None:
    script = [*(redirect(f"/{n}") for n in range(hops)), Reply(body=b"there")]
    with anyio.fail_after(60):
        async with scripted_server(script) as server:
            ask, granted = get(base(server)), leave(base(server))
            if is_followed:
                assert (await guard.fetch(ask, granted)).body == b"there"
            else:
                assert "more than 3 times" in str(await failure(guard, ask, granted))

    assert len(server.requests) == 4


async def test_a_redirect_to_nowhere_is_an_answer(guard: Fetch) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply(status=304, body=b""), Reply(status=302)]) as server:
            for status in (304, 302):
                answer = await guard.fetch(get(base(server)), leave(base(server)))
                assert answer.status == status


# Secrets


async def test_a_secret_arrives_where_its_placeholder_stood(guard: Fetch) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply(body=b"ok")]) as server:
            here = base(server)
            secrets = tuple(a_secret(f"value-{name}:1", here, name=name) for name in "abc")
            url = f"{here}/bot${{secret:a}}/send?k=${{secret:b}}"
            headers = (("Authorization", "Bearer ${secret:c}"),)
            ask = FetchRequest("POST", url, headers, b'"${secret:a}"')
            await guard.fetch(ask, leave(here, secrets=secrets))

    asked = server.requests[0]
    assert asked.path == "/botvalue-a:1/send?k=value-b:1"
    assert asked.headers["authorization"] == "Bearer value-c:1"
    assert str(asked.body) == "${secret:a}"  # a body is sent as it is


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("/?k=${secret:other}", ""),
        ("/", "${secret:elsewhere}"),
        ("/", "${secret:}"),
        ("/", "${secret:key"),
        ("/${secret:key}", ""),  # its value has slashes
        ("/", "${secret:key}${secret:key}"),
        ("/", "${secret:broken}"),
    ],
)
async def test_a_placeholder_that_cannot_be_filled_stops_the_request(
    guard: Fetch, url: str, header: str
) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply(body=b"")]) as server:
            here = base(server)
            secrets = (
                a_secret(HUSH, here),
                a_secret(HUSH, "https://wttr.in", name="elsewhere"),
                a_secret("a\r\nhost: swordfish", here, name="broken"),
            )
            ask = get(here + url, x_key=header)
            await denial(guard, ask, leave(here, "wttr.in", secrets=secrets))

    assert server.connections == 0


def echo(asked: Asked) -> Reply:
    key = asked.headers["x-key"]
    forms = [key, quote(key, safe=""), quote(key)]
    forms += [b64encode(before.encode() + key.encode()).decode() for before in ("", "u:", "usr:")]
    forms += [json.dumps({"x": key}), json.dumps(key).replace("/", "\\/"), asked.path]
    return Reply(headers={"x-echo": key}, body="\n".join(forms).encode())


async def test_an_echo_of_a_secret_is_scrubbed(guard: Fetch) -> None:
    with anyio.fail_after(60):
        async with scripted_server(echo) as server:
            granted = leave(base(server), secrets=(a_secret(HUSH, base(server)),))
            answer = await guard.fetch(get(base(server), x_key="${secret:key}"), granted)

    assert server.requests[0].headers["x-key"] == HUSH
    assert ("x-echo", "[secret key]") in answer.headers
    *lines, path = answer.body.decode().splitlines()
    assert len(lines) == 8
    assert all("[secret key]" in line for line in lines)
    assert "swordfish" not in f"{answer}"
    assert path == "/"


async def test_what_another_request_left_behind_is_scrubbed_too(guard: Fetch) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply(body=f"log: {HUSH}".encode())]) as server:
            granted = leave(base(server), secrets=(a_secret(HUSH, "https://wttr.in"),))
            answer = await guard.fetch(get(base(server)), granted)

    assert answer.body == b"log: [secret key]"


async def test_half_an_answer_is_not_asked_with_a_secret(guard: Fetch) -> None:
    with anyio.fail_after(60):
        async with scripted_server([Reply(body=b"ok")]) as server:
            granted = leave(base(server), secrets=(a_secret(HUSH, base(server)),))
            await guard.fetch(get(base(server), Range="bytes=0-9"), granted)
            ask = get(base(server), Range="bytes=0-9", x_key="${secret:key}")
            assert "'range' is not allowed" in await denial(guard, ask, granted)

    assert len(server.requests) == 1


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Keeps what came first, says these bytes to whoever asks, and closes."""
    heard: list[bytes] = []

    async def handle(stream: SocketStream) -> None:
        async with stream:
            heard.append(await stream.receive())
            await stream.send(answer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle)
        yield str(listener.extra(SocketAttribute.local_port)), heard
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    "answer",
    [
        b"swordfish nonsense\r\n\r\n",
        b"HTTP/1.1 200 sword~fish\r\ncontent-length: 20\r\n\r\nsword~fish",
        b"HTTP/1.1 200 OK\r\nsword~fish\x00: sword~fish\r\n\r\n",
        b"HTTP/1.1 302 OK\r\nlocation: https://sword~fish/\r\n\r\n",
        b"HTTP/1.1 302 OK\r\nlocation: https://x-swordfish.example/\r\n\r\n",
        b"HTTP/1.1 302 OK\r\nlocation: \xff\xfe\r\n\r\n",
        b"",
    ],
)
async def test_no_failure_tells_a_secret(guard: Fetch, answer: bytes) -> None:
    with anyio.fail_after(60):
        async with raw_server(answer) as (at, heard):
            url = f"http://127.0.0.1:{at}"
            secrets = (a_secret("sword~fish", url), a_secret("x-swordfish", url, name="b"))
            ask = get(f"{url}/${{secret:key}}", x_key="${secret:b}")
            with pytest.raises((Denied, HttpFailed)) as failed:
                await guard.fetch(ask, leave(url, secrets=secrets))

    assert b"/sword~fish" in heard[0]
    said = "".join(traceback.format_exception(failed.value))
    assert "sword~fish" not in said
    assert "x-swordfish" not in said


async def test_a_refusal_does_not_repeat_a_secret_that_the_asker_wrote(guard: Fetch) -> None:
    granted = leave("wttr.in", secrets=(a_secret("swordfish", "wttr.in"),))

    said = await denial(guard, get("https://swordfish.example"), granted)

    assert said.startswith("not allowed to reach https://[secret key].example")


async def test_tls_is_spoken_with_the_name_and_not_with_the_address() -> None:
    with anyio.fail_after(60):
        async with (
            raw_server(b"no TLS at all") as (at, heard),
            open_guarded(ScriptedLookup(["127.0.0.1"])) as guard,
        ):
            url = f"https://localhost:{at}"
            failed = await failure(guard, get(url), leave(url))

    assert "failed the TLS handshake" in str(failed)
    assert heard[0].startswith(b"\x16\x03")  # a ClientHello
    assert b"localhost" in heard[0]
    assert b"127.0.0.1" not in heard[0]


async def test_a_refused_connection_is_a_failure(guard: Fetch) -> None:
    with anyio.fail_after(60):
        async with scripted_server([]) as server:
            url = base(server)
        failed = await failure(guard, get(url), leave(url))
    assert not failed.sent

    assert (failed.kind, failed.sent) == ("network", False)
    assert str(failed).startswith(f"{url} cannot be reached")


async def test_a_connection_that_breaks_may_have_brought_the_request(guard: Fetch) -> None:
    async def hang_up(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()

    with anyio.fail_after(60):
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as group,
        ):
            group.start_soon(listener.serve, hang_up)
            url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
            failed = await failure(guard, get(url), leave(url))
            group.cancel_scope.cancel()

    assert (failed.kind, failed.sent) == ("network", True)


async def test_what_was_redirected_to_where_nobody_is_has_been_sent(guard: Fetch) -> None:
    with anyio.fail_after(60):
        async with scripted_server([]) as gone:
            nowhere = base(gone)
        away = Reply(status=303, headers={"location": nowhere}, body=b"")
        async with scripted_server([away]) as server:
            url = base(server)
            failed = await failure(guard, FetchRequest("POST", url), leave(url, nowhere))

    assert failed.sent


async def test_a_host_that_takes_no_connection_was_sent_nothing() -> None:
    # The queue of a listener that accepts nobody is full after a few; then all are left waiting.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        async with open_guarded(connect_s=0.1) as guard:
            failed = await failure(guard, get(url), leave(url))
        for one in waiting:
            one.close()

    assert (failed.kind, failed.sent) == ("timeout", False)


async def test_many_ask_at_once_and_each_has_its_own_answer(guard: Fetch) -> None:
    answers: dict[int, Fetched] = {}

    async def one(number: int, url: str) -> None:
        secret = a_secret(f"secret-of-{number}", url)
        ask = get(f"{url}/{number}", x_key="${secret:key}")
        answers[number] = await guard.fetch(ask, leave(url, secrets=(secret,)))

    with anyio.fail_after(60):
        async with scripted_server(echo) as server, anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(one, number, base(server))

    assert all(answer.body.endswith(f"/{n}".encode()) for n, answer in answers.items())
    assert {asked.headers["x-key"] for asked in server.requests} == {
        f"secret-of-{number}" for number in range(20)
    }
