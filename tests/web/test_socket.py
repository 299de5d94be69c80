"""The `/ws` endpoint over real sockets."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.api.operating import Ping
from gateway.domain.errors import NotFound
from gateway.web.identity import LOCAL
from gateway.web.rpc import Call, Peer
from gateway.web.settings import TokenDef, WebSettings
from tests.web.running import (
    ALICE,
    BEARER,
    ECHO,
    GUARDED,
    OPEN,
    PING,
    Bound,
    Text,
    ask,
    closed_with,
    hear,
    request,
    running,
)


def method(name: str, handler: Callable[..., Any], params: Any = Ping) -> Bound:
    return Bound(name, params, ("chat",), handler)


class Gate:
    """A method that waits until the test opens it."""

    def __init__(self) -> None:
        self.open = anyio.Event()
        self.begun = 0

    async def __call__(self) -> str:
        self.begun += 1
        await self.open.wait()
        return "opened"

    def method(self, name: str = "slow") -> Bound:
        async def handler(_call: Call, _params: Ping) -> str:
            return await self()

        return method(name, handler)


async def test_a_call_is_answered_under_its_id() -> None:
    async with running() as site, site.socket() as socket:
        assert await ask(socket, "ping", "x") == {"jsonrpc": "2.0", "id": "x", "result": "pong"}
        answer = await ask(socket, "echo", content="h\u00e9\u202e\x00 :")
        assert answer["result"] == "h\u00e9\u202e\x00 :"


async def test_a_header_or_a_first_request_proves_who_it_is() -> None:
    async with running(GUARDED) as site:
        async with site.socket(BEARER) as socket:
            assert (await ask(socket, "ping"))["result"] == "pong"
        async with site.socket() as socket:
            answer = await ask(socket, "auth", token=ALICE.secret)
            assert answer["result"] == {"principal": "alice", "scopes": ["chat"], "agents": None}
            assert (await ask(socket, "ping"))["result"] == "pong"


@pytest.mark.parametrize(
    "frame",
    [
        request("ping"),
        request("auth", token="wrong"),
        request("auth"),
        request("auth", token=ALICE.secret, scopes=["admin"]),
        f"[{request('auth', token=ALICE.secret)}]",
        "garbage",
    ],
)
async def test_anything_else_first_is_refused_and_ends_the_socket(frame: str) -> None:
    async with running(GUARDED) as site, site.socket() as socket:
        await socket.send(frame)

        answer = await hear(socket)
        assert answer["error"]["code"] in {-32001, -32602}
        assert await closed_with(socket) == 4401


async def test_a_wrong_header_is_not_let_in() -> None:
    async with running(GUARDED) as site:
        with pytest.raises(InvalidStatus) as refused:
            async with site.socket({"Authorization": "Bearer wrong"}):
                pass
        assert refused.value.response.status_code == 401


async def test_who_becomes_another_hears_nothing_that_was_meant_for_the_first() -> None:
    bob = TokenDef("bob", "bob-secret-token", frozenset({"chat"}))
    heard: list[str] = []
    gate = Gate()

    def subscribe(call: Call, _params: Ping) -> str:
        call.peer.on_close(lambda: heard.append(f"{call.principal.name} left"))
        call.after_answer.append(lambda: call.peer.notify("event", b'"hers"'))
        return call.principal.name

    async def later(call: Call, params: Ping) -> str:
        await gate()
        return subscribe(call, params)

    methods = (method("subscribe", subscribe), method("later", later))
    settings = replace(GUARDED, tokens=(ALICE, bob))
    async with running(settings, methods=methods) as site, site.socket(BEARER) as socket:
        assert (await ask(socket, "subscribe"))["result"] == "alice"
        assert (await hear(socket))["method"] == "event"
        await socket.send(request("later", 9))
        await ask(socket, "auth", token=ALICE.secret)
        assert not heard
        await ask(socket, "auth", token=bob.secret)
        assert heard == ["alice left"]

        gate.open.set()  # what she had begun is answered, and what it subscribes to ends at once
        assert (await hear(socket))["id"] == 9
        assert heard == ["alice left"] * 2
        assert (await ask(socket, "subscribe", 10))["id"] == 10
        assert (await hear(socket))["method"] == "event"
    with anyio.fail_after(60):
        while len(heard) < 3:
            await anyio.lowlevel.checkpoint()
    assert heard[2] == "bob left"


async def test_who_never_says_who_it_is_has_to_go() -> None:
    async with running(replace(GUARDED, pre_auth_timeout_s=0.05)) as site, site.socket() as socket:
        assert await closed_with(socket) == 4408


async def test_before_auth_a_frame_may_only_be_small() -> None:
    async with running(replace(GUARDED, pre_auth_frame_bytes=1_000)) as site:
        async with site.socket() as socket:
            await socket.send("x" * 1_001)
            assert await closed_with(socket) == 4409
        async with site.socket() as socket:
            await ask(socket, "auth", token=ALICE.secret)
            assert (await ask(socket, "echo", content="y" * 200_000))["result"] == "y" * 200_000


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1.evil.com"}, 403),
        ({"Host": "evil.com"}, 403),
        ({"X-Forwarded-For": "127.0.0.1"}, None),  # let in, but nobody yet
        ({}, None),
    ],
)
async def test_a_page_of_another_site_is_not_let_in(
    headers: dict[str, str], status: int | None
) -> None:
    async with running(GUARDED) as site:
        head = {"Host": str(site.address), **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        answer = await _handshake(site, f"GET /ws HTTP/1.1\r\n{lines}")
        assert answer.startswith(b"HTTP/1.1 %d" % (status or 101))


async def _handshake(site: Any, head: str) -> bytes:
    async with await site.dial() as stream:
        await stream.send(
            head.encode() + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        with anyio.fail_after(60):
            return bytes(await stream.receive())


async def test_no_origin_is_no_credential_and_a_proxied_request_is_not_local() -> None:
    async with running(GUARDED) as site, site.socket() as socket:
        assert (await ask(socket, "ping"))["error"]["code"] == -32001
    async with running(OPEN) as site, site.socket({"X-Forwarded-For": "127.0.0.1"}) as socket:
        assert (await ask(socket, "ping"))["error"]["code"] == -32001
    async with running(OPEN) as site, site.socket() as socket:
        assert (await ask(socket, "ping"))["result"] == "pong"


async def test_another_path_is_no_socket() -> None:
    async with running(GUARDED) as site:
        host = f"Host: {site.address}\r\n"
        nobody = await _handshake(site, f"GET /elsewhere HTTP/1.1\r\n{host}")
        alice = await _handshake(
            site, f"GET /x HTTP/1.1\r\n{host}Authorization: {BEARER['Authorization']}\r\n"
        )

        assert nobody.startswith(b"HTTP/1.1 401")
        assert alice.startswith(b"HTTP/1.1 404")


async def test_a_slow_call_holds_up_no_other() -> None:
    gate = Gate()
    async with running(methods=(PING, ECHO, gate.method())) as site, site.socket() as socket:
        await socket.send(request("slow", 1))
        await socket.send(request("ping", 2))
        await socket.send(request("echo", 3, content="x"))

        assert [(await hear(socket))["id"] for _ in range(2)] == [2, 3]
        gate.open.set()
        assert await hear(socket) == {"jsonrpc": "2.0", "id": 1, "result": "opened"}


async def test_calls_begin_in_the_order_of_their_frames() -> None:
    begun: list[int] = []

    def at_once(_call: Call, params: Text) -> int:
        begun.append(int(params.content))
        return 1

    async def later(call: Call, params: Text) -> int:
        at_once(call, params)
        await anyio.lowlevel.checkpoint()
        return 1

    methods = (method("at_once", at_once, Text), method("later", later, Text))
    async with running(methods=methods) as site, site.socket() as socket:
        for number in range(60):
            name = "at_once" if number % 3 else "later"
            await socket.send(request(name, number, content=str(number)))
        for _ in range(60):
            await hear(socket)

    assert begun == list(range(60))


async def test_a_connection_with_too_many_calls_at_work_is_read_no_further() -> None:
    gate = Gate()
    settings = replace(OPEN, max_calls=4)
    async with (
        running(settings, methods=(PING, gate.method())) as site,
        site.socket() as socket,
        site.socket() as other,
    ):
        for number in range(6):
            await socket.send(request("slow", number))
        assert (await ask(other, "ping"))["result"] == "pong"
        assert gate.begun == 4

        gate.open.set()
        assert {(await hear(socket))["id"] for _ in range(6)} == set(range(6))
        assert (await ask(socket, "ping"))["result"] == "pong"


async def test_too_many_calls_of_all_are_refused_as_busy() -> None:
    gate = Gate()
    settings = replace(OPEN, max_calls_total=2)
    async with running(settings, methods=(PING, gate.method())) as site, site.socket() as socket:
        for number in range(3):
            await socket.send(request("slow", number))
        answer = await hear(socket)
        assert (answer["id"], answer["error"]["code"]) == (2, -32005)
        assert answer["error"]["data"]["retryable"] is True
        assert (await ask(socket, "ping"))["result"] == "pong"


async def test_a_batch_is_answered_in_one_frame_and_in_order() -> None:
    async with running() as site, site.socket() as socket:
        batch = [
            json.loads(request("echo", 1, content="a")),
            {"jsonrpc": "2.0", "method": "ping"},
            json.loads(request("nothing", 2)),
            17,
            json.loads(request("ping", 3)),
        ]
        await socket.send(json.dumps(batch))
        answers = await hear(socket)

        assert [answer["id"] for answer in answers] == [1, 2, None, 3]
        assert [answer.get("result") for answer in answers] == ["a", None, None, "pong"]
        assert [answer["error"]["code"] for answer in answers[1:3]] == [-32601, -32600]


async def test_the_answers_of_a_batch_have_a_bound_and_the_rest_is_not_run() -> None:
    ran: list[str] = []

    def large(_call: Call, params: Text) -> str:
        ran.append(params.content)
        return "x" * 3_000

    settings = replace(OPEN, send_queue_bytes=16_000)
    methods = (PING, method("large", large, Text))
    async with running(settings, methods=methods) as site, site.socket() as socket:
        batch: list[Any] = [json.loads(request("large", n, content=str(n))) for n in range(8)]
        batch += [{"jsonrpc": "2.0", "method": "large", "params": {"content": "unanswered"}}, 17]
        await socket.send(json.dumps(batch))
        answers = await hear(socket)

        assert [answer["id"] for answer in answers] == [*range(8), None]
        assert ran == ["0", "1", "2", "unanswered"]
        assert {answer["error"]["code"] for answer in answers[3:8]} == {-32602}
        assert "one by one" in answers[3]["error"]["message"]
        assert answers[8]["error"]["code"] == -32600
        assert (await ask(socket, "ping"))["result"] == "pong"


async def test_an_answer_that_nobody_has_room_for_is_replaced_by_saying_so() -> None:
    def large(_call: Call, _params: Ping) -> str:
        return "x" * 20_000

    async def later(call: Call, params: Ping) -> str:
        return large(call, params)

    settings = replace(OPEN, send_queue_bytes=16_000)
    methods = (PING, method("large", large), method("later", later))
    async with running(settings, methods=methods) as site, site.socket() as socket:
        for name in ("large", "later"):
            answer = await ask(socket, name, 5)
            assert (answer["id"], answer["error"]["code"]) == (5, -32602)
            assert answer["error"]["data"]["code"] == "answer_too_large"
            await socket.send(f"[{request(name, 6)}]")
            assert (await hear(socket))[0]["error"]["code"] == -32602


async def test_a_large_answer_reaches_who_reads_it() -> None:
    async with running() as site, site.socket() as socket:
        for _ in range(5):
            said = "z" * 1_000_000
            assert (await ask(socket, "echo", content=said))["result"] == said


async def test_a_notification_is_never_answered() -> None:
    ran: list[str] = []

    def note(_call: Call, params: Text) -> None:
        ran.append(params.content)

    async with running(methods=(PING, method("note", note, Text))) as site, site.socket() as socket:
        sent: list[object] = [
            {"jsonrpc": "2.0", "method": "note", "params": {"content": "x"}},
            {"jsonrpc": "2.0", "method": "note", "params": {"wrong": 1}},
            {"jsonrpc": "2.0", "method": "nothing"},
            [{"jsonrpc": "2.0", "method": "note", "params": {"content": "y"}}],
        ]
        for frame in sent:
            await socket.send(json.dumps(frame))
        answer = await ask(socket, "ping", "last")
        assert answer["id"] == "last"
    assert ran == ["x", "y"]


async def test_what_belongs_after_the_answer_comes_after_it() -> None:
    def at_once(call: Call, _params: Ping) -> str:
        call.after_answer.append(lambda: call.peer.notify("event", b'{"seq":1}'))
        return "accepted"

    async def later(call: Call, params: Ping) -> str:
        await anyio.lowlevel.checkpoint()
        return at_once(call, params)

    methods = (method("at_once", at_once), method("later", later))
    async with running(methods=methods) as site, site.socket() as socket:
        for name in ("at_once", "later"):
            assert (await ask(socket, name))["result"] == "accepted"
            event = await hear(socket)
            assert (event["method"], event["params"]) == ("event", {"seq": 1})


async def test_every_callback_runs_once_when_the_socket_ends() -> None:
    ran: list[str] = []
    ended = anyio.Event()
    peers: list[Peer] = []

    def subscribe(call: Call, _params: Ping) -> str:
        peers.append(call.peer)

        def bad() -> None:
            ran.append("bad")
            raise RuntimeError("bad")

        def last() -> None:
            ran.append("last")
            ended.set()

        forget = call.peer.on_close(lambda: ran.append("forgotten"))
        call.peer.on_close(bad)
        call.peer.on_close(last)
        forget()
        return "subscribed"

    async with running(methods=(method("subscribe", subscribe),)) as site:
        async with site.socket() as socket:
            await ask(socket, "subscribe")
            assert peers[0].is_open
        with anyio.fail_after(60):
            await ended.wait()

        assert ran == ["bad", "last"]
        assert not peers[0].is_open
        peers[0].notify("event", b"1")  # nobody hears it, nothing breaks
        peers[0].on_close(lambda: ran.append("too late, at once"))
        assert ran[-1] == "too late, at once"


async def test_a_call_goes_on_when_its_connection_is_gone() -> None:
    """What was begun (an accepted message) must not stop halfway because nobody listens."""
    gate = Gate()
    done = anyio.Event()

    async def work(_call: Call, _params: Ping) -> None:
        await gate()
        done.set()

    async with running(methods=(method("work", work), PING)) as site:
        async with site.socket() as socket:
            await socket.send(request("work"))
            await ask(socket, "ping")
        gate.open.set()
        with anyio.fail_after(60):
            await done.wait()


async def test_a_handler_s_failure_is_its_caller_s_alone() -> None:
    async def crash(_call: Call, _params: Ping) -> None:
        raise RuntimeError("hush")

    def missing(_call: Call, _params: Ping) -> None:
        raise NotFound("session")

    methods = (PING, method("crash", crash), method("missing", missing))
    async with running(methods=methods) as site, site.socket() as socket:
        crashed = await ask(socket, "crash")
        assert crashed["error"]["code"] == -32603
        assert "hush" not in json.dumps(crashed)
        assert (await ask(socket, "missing"))["error"]["code"] == -32004
        assert (await ask(socket, "ping"))["result"] == "pong"


async def test_a_cancellation_inside_a_handler_is_its_own_failure() -> None:
    """Something it awaited was cancelled by others: no reason to stop everybody's calls."""

    async def cancelled(_call: Call, _params: Ping) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    methods = (ECHO, method("cancelled", cancelled))
    async with running(methods=methods) as site, site.socket() as socket:
        assert (await ask(socket, "cancelled"))["error"]["code"] == -32603
        assert (await ask(socket, "echo", content="x"))["result"] == "x"


async def test_a_token_that_is_taken_away_ends_its_sockets_and_no_others() -> None:
    bob = TokenDef("bob", "bob-secret-token")
    both = replace(GUARDED, tokens=(ALICE, bob))
    async with running(both) as site:
        async with (
            site.socket(BEARER) as alice,
            site.socket({"Authorization": f"Bearer {bob.secret}"}) as other,
        ):
            site.identities.replace(replace(both, tokens=(bob,)))

            assert await closed_with(alice) == 4401
            assert (await ask(other, "ping"))["result"] == "pong"
        with pytest.raises(InvalidStatus):
            await site.socket(BEARER)


async def test_the_local_operator_s_sockets_end_with_the_first_token() -> None:
    async with running(OPEN) as site, site.socket() as socket:
        assert (await ask(socket, "ping"))["result"] == "pong"
        site.identities.replace(GUARDED)
        assert await closed_with(socket) == 4401


@pytest.mark.parametrize(
    ("message", "code"), [(b"binary", 1003), ("x" * 20_001, 4409)], ids=["binary", "large"]
)
async def test_a_frame_that_is_not_wanted_ends_the_socket(message: Any, code: int) -> None:
    async with running(replace(OPEN, max_frame_bytes=20_000)) as site:
        async with site.socket() as socket:
            await socket.send(message)
            assert await closed_with(socket) == code
        async with site.socket() as socket:
            assert (await ask(socket, "ping"))["result"] == "pong"


async def test_fragments_are_one_message_and_are_limited_as_one() -> None:
    async with running(replace(OPEN, max_frame_bytes=20_000)) as site, site.socket() as socket:
        await socket.send([request("ping")[:10], request("ping")[10:]])
        assert (await hear(socket))["result"] == "pong"
        await socket.send(["x" * 9_000] * 3)
        assert await closed_with(socket) == 4409


async def test_text_that_is_not_utf_8_ends_the_socket() -> None:
    async with running() as site, site.socket() as socket:
        await socket.send(b'{"a":"\xff\xfe"}', text=True)
        assert await closed_with(socket) == 1007


async def test_a_ping_is_answered() -> None:
    async with running() as site, site.socket() as socket:
        with anyio.fail_after(60):
            await (await socket.ping())


async def test_a_silent_peer_is_pinged() -> None:
    async with running(replace(OPEN, ping_interval_s=0.02)) as site, await site.dial() as stream:
        await stream.send(_upgrade(site))
        received = b""
        with anyio.fail_after(60):
            while b"\x89\x07exogate" not in received:
                received += await stream.receive()


async def test_a_peer_that_shows_no_life_is_given_up() -> None:
    async with (
        running(replace(OPEN, ping_interval_s=0.02, close_linger_s=0.05)) as site,
        await site.dial() as stream,
    ):
        await stream.send(_upgrade(site))
        with anyio.fail_after(60):
            await _until_cut(stream)


def _upgrade(site: Any) -> bytes:
    return (
        f"GET /ws HTTP/1.1\r\nHost: {site.address}\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()


async def _flood(peer: Peer, event: bytes) -> None:
    for _ in range(2_000):  # 20 MB: more than client, kernel and queue take
        peer.notify("event", event)
        await anyio.lowlevel.checkpoint()


async def _until_cut(stream: anyio.abc.ByteReceiveStream) -> None:
    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            await stream.receive()


async def _code_after_all(socket: ClientConnection) -> int | None:
    """Reads to the end."""
    with anyio.fail_after(60):
        try:
            while True:
                await socket.recv()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else None


async def test_a_reader_that_lags_is_cut_off_and_nobody_waits_for_it() -> None:
    peers: list[Peer] = []
    ended = anyio.Event()

    def subscribe(call: Call, _params: Ping) -> str:
        peers.append(call.peer)
        call.peer.on_close(ended.set)
        return "subscribed"

    settings = WebSettings(port=0, send_queue_bytes=100_000, ping_interval_s=60)
    async with (
        running(settings, methods=(PING, method("subscribe", subscribe))) as site,
        site.socket() as healthy,
        site.socket(max_queue=1) as lagging,
    ):
        await ask(lagging, "subscribe")
        await lagging.send(request("ping"))  # fills the client's queue of one
        event = json.dumps({"text": "x" * 10_000}).encode()
        await _flood(peers[0], event)
        assert (await ask(healthy, "ping"))["result"] == "pong"
        with anyio.fail_after(60):
            await ended.wait()

        assert await _code_after_all(lagging) == 4408
        assert (await ask(healthy, "ping"))["result"] == "pong"


def _masked(frame: str) -> bytes:
    """Masked with zeros, so as it is."""
    return bytes([0x81, 0x80 | len(frame)]) + bytes(4) + frame.encode()


@pytest.mark.parametrize(
    "limits",
    [{"write_deadline_s": 0.1, "send_queue_bytes": 10**9}, {"write_deadline_s": 600}],
    ids=["after its deadline", "by one frame that is too large to wait"],
)
async def test_a_reader_that_stalls_is_cut_off(limits: dict[str, Any]) -> None:
    peers: list[Peer] = []
    ended = anyio.Event()

    def subscribe(call: Call, _params: Ping) -> str:
        peers.append(call.peer)
        call.peer.on_close(ended.set)
        return "subscribed"

    async with (
        running(
            replace(OPEN, close_linger_s=0.1, **limits), methods=(method("subscribe", subscribe),)
        ) as site,
        await site.dial() as stream,
    ):
        await stream.send(_upgrade(site))
        await stream.receive()
        await stream.send(_masked(request("subscribe")))
        while not peers:
            await anyio.lowlevel.checkpoint()
        peers[0].notify("big", b"1" * 20_000_000)
        with anyio.fail_after(60):
            await ended.wait()


LARGE = 200_000


async def _large(_call: Call, _params: Ping) -> str:
    return "x" * LARGE


async def _ask_much(socket: ClientConnection) -> None:
    for number in range(100):  # 20 MB: more than client and kernel take
        await socket.send(request("large", number))


async def test_a_reader_that_takes_longer_than_the_deadline_in_all_is_not_closed() -> None:
    settings = WebSettings(port=0, write_deadline_s=0.4)
    async with (
        running(settings, methods=(method("large", _large),)) as site,
        site.socket(max_queue=1) as socket,
        anyio.create_task_group() as group,
    ):
        group.start_soon(_ask_much, socket)
        for _ in range(100):
            assert len((await hear(socket))["result"]) == LARGE
            await anyio.sleep(0.02)


async def test_a_client_that_asks_and_does_not_read_is_closed() -> None:
    settings = WebSettings(port=0, write_deadline_s=0.4)
    async with (
        running(settings, methods=(method("large", _large),)) as site,
        site.socket(max_queue=1) as socket,
    ):
        await _ask_much(socket)
        with anyio.fail_after(60):
            while site.app.sockets.connections:  # noqa: ASYNC110  # nobody reads, so nothing tells us
                await anyio.sleep(0.01)

        assert await _code_after_all(socket) == 4408


async def test_what_a_client_asks_for_is_bounded_by_what_it_reads() -> None:
    asked: list[int] = []

    def large(_call: Call, _params: Ping) -> str:
        asked.append(1)
        return "x" * 200_000

    settings = WebSettings(port=0, write_deadline_s=60)
    async with (
        running(settings, methods=(method("large", large),)) as site,
        await site.dial() as stream,
    ):
        await stream.send(_upgrade(site))
        await stream.receive()
        await stream.send(_masked(request("large")) * 1_000)  # 200 MB, if all of them were answered
        await anyio.wait_all_tasks_blocked()
        before = 0
        while len(asked) > before:
            before = len(asked)
            await anyio.sleep(0.05)

        assert len(asked) < 100


async def test_pushes_reach_their_connection_alone() -> None:
    peers: list[Peer] = []

    def subscribe(call: Call, _params: Ping) -> str:
        peers.append(call.peer)
        assert call.principal == LOCAL
        return "subscribed"

    async with (
        running(methods=(PING, method("subscribe", subscribe))) as site,
        site.socket() as one,
        site.socket() as other,
    ):
        await ask(one, "subscribe")
        await ask(other, "subscribe")
        peers[0].notify("event", b'{"to":"one"}')
        assert (await hear(one))["params"] == {"to": "one"}
        assert (await ask(other, "ping"))["result"] == "pong"
