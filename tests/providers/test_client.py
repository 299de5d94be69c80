"""Over real sockets: a provider is asked, heard, retried, given up and let go as promised."""

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from anyio.lowlevel import checkpoint

from gateway.domain.errors import ModelFailed
from gateway.domain.ids import Secret
from gateway.domain.messages import ToolCall, Usage
from gateway.domain.model import Delta, ProviderDef, TextDelta, Wire
from gateway.domain.ports import HttpFailed
from gateway.outbound.connection import open_outbound
from gateway.providers.client import ProviderClient
from tests.fakes.clock import FakeClock
from tests.fakes.http import ScriptedAnswer, ScriptedHttp
from tests.fakes.model_server import ModelServer, Reply, Script, scripted_server
from tests.providers.asking import KEY, Heard, a_client, a_request

WIRES: list[Wire] = ["openai", "anthropic"]


@asynccontextmanager
async def asking(
    script: Script,
    wire: Wire = "openai",
    *,
    max_retries: int = 0,
    idle_timeout_s: float = 5.0,
    clock: FakeClock | None = None,
) -> AsyncIterator[tuple[ModelServer, ProviderClient]]:
    with anyio.fail_after(60):
        async with scripted_server(script) as server, open_outbound() as http:
            yield (
                server,
                a_client(
                    http,
                    url=server.url,
                    wire=wire,
                    max_retries=max_retries,
                    idle_timeout_s=idle_timeout_s,
                    clock=clock,
                ),
            )


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.requirement("S-002-LLM-02", "S-002-LLM-03")
async def test_a_call_brings_the_reply_and_is_heard(wire: Wire, stream: bool) -> None:
    heard = Heard()
    script = [Reply(["Hel", "lo"], calls=[("c1", "clock", '{"a":1}')], usage=(11, 3))]
    async with asking(script, wire) as (server, client):
        reply = await client.reply(a_request(stream=stream, max_tokens=77), heard)

    assert (reply.text, heard.text, reply.finish) == ("Hello", "Hello", "tool_calls")
    assert reply.tool_calls == (ToolCall("c1", "clock", '{"a":1}'),)
    assert reply.usage == Usage(11, 3)
    asked = server.requests[0]
    assert (asked.method, asked.body["stream"], asked.body["max_tokens"]) == ("POST", stream, 77)
    assert KEY in (asked.headers.get("authorization") or asked.headers["x-api-key"])


@pytest.mark.parametrize("wire", WIRES)
async def test_deltas_are_heard_while_the_reply_still_comes(wire: Wire) -> None:
    rest = anyio.Event()
    heard: list[Delta] = []
    last_text = {"openai": 2, "anthropic": 4}[wire]

    def hear(delta: Delta) -> None:
        heard.append(delta)
        rest.set()  # only what was heard lets the server go on

    script = [Reply(["one ", "two"], gates={last_text: rest})]
    async with asking(script, wire) as (_, client):
        reply = await client.reply(a_request(), hear)

    assert heard == [TextDelta("one "), TextDelta("two")]
    assert reply.text == "one two"


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.requirement("S-004-Scale-03")
async def test_a_connection_serves_one_call_after_the_other(wire: Wire) -> None:
    async with asking([Reply("ok")], wire) as (server, client):
        for _ in range(5):
            await client.reply(a_request(), Heard())

    assert (len(server.requests), server.connections) == (5, 1)


async def test_hundreds_of_calls_are_open_at_once() -> None:
    gate = anyio.Event()
    replies: list[str] = []
    async with asking([Reply("ok", gate=gate)]) as (server, client):

        async def ask() -> None:
            replies.append((await client.reply(a_request(), Heard())).text)

        async with anyio.create_task_group() as group:
            for _ in range(300):
                group.start_soon(ask)
            await server.wait_for(300)
            gate.set()

    assert (server.open_max, replies) == (300, ["ok"] * 300)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_status_that_may_pass_is_asked_again(status: int, wire: Wire) -> None:
    clock = FakeClock()
    script = [Reply(status=status), Reply("ok")]
    async with asking(script, wire, max_retries=3, clock=clock) as (server, client):
        reply = await _while_time_passes(clock, client)

    assert reply == "ok"
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_status_that_cannot_pass_is_asked_once(status: int) -> None:
    async with asking([Reply(status=status)], max_retries=3) as (server, client):
        with pytest.raises(ModelFailed) as failed:
            await client.reply(a_request(), Heard())

    assert failed.value.status == status
    assert not failed.value.retryable
    assert len(server.requests) == 1


async def test_a_wait_that_the_provider_asks_for_is_kept_to() -> None:
    clock = FakeClock()
    script = [Reply(status=429, headers={"retry-after": "20"}), Reply("ok")]
    async with asking(script, max_retries=3, clock=clock) as (_, client):
        assert await _while_time_passes(clock, client) == "ok"

    assert len(clock.slept) == 1
    assert 20 <= clock.slept[0] <= 21


async def test_a_wait_beyond_the_deadline_is_given_up_at_once() -> None:
    clock = FakeClock()
    script = [Reply(status=429, headers={"retry-after": "3600"})]
    async with asking(script, max_retries=3, clock=clock) as (server, client):
        with pytest.raises(ModelFailed) as failed:
            await client.reply(a_request(deadline_s=60), Heard())

    assert (failed.value.kind, failed.value.retry_after_s) == ("rate", 3600)
    assert (len(server.requests), clock.slept) == (1, [])


async def test_nothing_is_asked_more_often_than_allowed() -> None:
    clock = FakeClock()
    async with asking([Reply(status=503)], max_retries=3, clock=clock) as (server, client):
        with pytest.raises(ModelFailed) as failed:
            await _while_time_passes(clock, client)

    assert failed.value.kind == "overloaded"
    assert len(server.requests) == 4


async def _while_time_passes(
    clock: FakeClock, client: ProviderClient, heard: Heard | None = None
) -> str:
    """Asks, and lets every pause pass at once."""
    said: list[str | ModelFailed] = []

    async def ask() -> None:
        try:
            said.append((await client.reply(a_request(), heard or Heard())).text)
        except ModelFailed as failed:
            said.append(failed)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        while True:
            await clock.until_someone_sleeps()
            clock.move(clock.slept[-1])
    if isinstance(said[0], ModelFailed):
        raise said[0]
    return said[0]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("ending", ["end", "reset"])
async def test_half_a_stream_is_a_failure_and_what_was_heard_stays_said_once(
    wire: Wire, ending: str
) -> None:
    heard = Heard()
    script = [Reply(["half ", "whole"], stop_after=4 if wire == "anthropic" else 2, ending=ending)]  # type: ignore[arg-type]  # a parameter
    async with asking(script, wire, max_retries=3) as (server, client):
        with pytest.raises(ModelFailed) as failed:
            await client.reply(a_request(), heard)

    assert (failed.value.kind, failed.value.started) == ("truncated", True)
    assert heard.text == "half "
    assert len(server.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("ending", ["end", "reset"])
async def test_a_stream_that_breaks_while_it_only_thinks_is_asked_again(
    wire: Wire, ending: str
) -> None:
    clock, heard = FakeClock(), Heard()
    pieces = 4 if wire == "anthropic" else 2
    thinks = Reply("never", thinking=["hm"], stop_after=pieces, ending=ending)  # type: ignore[arg-type]  # a parameter
    async with asking([thinks, Reply("ok")], wire, max_retries=1, clock=clock) as (server, client):
        assert await _while_time_passes(clock, client, heard) == "ok"

    assert (heard.thinking, heard.text) == ("hm", "ok")
    assert len(server.requests) == 2


@pytest.mark.parametrize("ending", ["end", "reset"])
async def test_a_stream_that_ends_before_anything_was_heard_is_asked_again(ending: str) -> None:
    clock, heard = FakeClock(), Heard()
    script = [Reply("x", stop_after=1, ending=ending), Reply("ok")]  # type: ignore[arg-type]  # a parameter
    async with asking(script, max_retries=1, clock=clock) as (server, client):
        assert await _while_time_passes(clock, client) == "ok"

    assert heard.deltas == []
    assert len(server.requests) == 2


async def test_a_connection_that_breaks_after_all_was_said_changes_nothing() -> None:
    script = [Reply("ok", stop_after=3, ending="reset")]  # text and finish came, usage did not
    async with asking(script) as (_, client):
        reply = await client.reply(a_request(), Heard())

    assert (reply.text, reply.usage.estimated) == ("ok", True)


async def test_silence_before_the_first_byte_is_a_timeout() -> None:
    script = [Reply("x", gate=anyio.Event())]
    async with asking(script, idle_timeout_s=0.2) as (server, client):
        with pytest.raises(ModelFailed) as failed:
            await client.reply(a_request(), Heard())
        await server.requests[0].disconnected.wait()

    assert (failed.value.kind, failed.value.started) == ("timeout", False)


async def test_a_request_may_be_less_patient_than_its_provider() -> None:
    script = [Reply(["a", "b"], gates={2: anyio.Event()})]
    async with asking(script, idle_timeout_s=60) as (server, client):
        with pytest.raises(ModelFailed) as failed, anyio.fail_after(60):
            await client.reply(replace(a_request(), idle_timeout_s=0.2), Heard())
        await server.requests[0].disconnected.wait()

    assert failed.value.kind == "timeout"


async def test_silence_between_two_chunks_is_a_timeout() -> None:
    script = [Reply(["a", "b"], gates={2: anyio.Event()})]
    async with asking(script, idle_timeout_s=0.2) as (server, client):
        with pytest.raises(ModelFailed) as failed:
            await client.reply(a_request(), Heard())
        await server.requests[0].disconnected.wait()

    assert (failed.value.kind, failed.value.started) == ("timeout", True)


@pytest.mark.requirement("S-002-LLM-10", "S-002-Cancel-01")
@pytest.mark.parametrize("while_streaming", [True, False])
async def test_a_cancelled_call_hangs_up(while_streaming: bool) -> None:
    never, heard = anyio.Event(), anyio.Event()
    reply = Reply(["a", "b"], gates={2: never}) if while_streaming else Reply("a", gate=never)
    async with asking([reply]) as (server, client):
        async with anyio.create_task_group() as group:
            group.start_soon(client.reply, a_request(), lambda _: heard.set())
            asked = await server.wait_for(1)
            if while_streaming:
                await heard.wait()
            group.cancel_scope.cancel()
        await asked.disconnected.wait()

        assert not asked.answered.is_set()


async def test_a_server_that_keeps_the_stream_open_after_its_end_does_not_hold_the_reply() -> None:
    done = (
        b'data: {"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )
    script = [Reply(raw=[done, b": never"], gates={1: anyio.Event()})]
    async with asking(script) as (_, client):
        reply = await client.reply(a_request(), Heard())

    assert reply.text == "ok"


async def test_nobody_there_is_a_failure_of_the_network() -> None:
    async with scripted_server([Reply()]) as gone:
        url = gone.url
    with anyio.fail_after(60):
        async with open_outbound() as http:
            with pytest.raises(ModelFailed, match="cannot be reached") as failed:
                await a_client(http, url=url).reply(a_request(), Heard())

    assert (failed.value.kind, failed.value.retryable) == ("network", True)


async def test_a_redirect_is_not_followed_and_the_key_goes_nowhere_else() -> None:
    async with scripted_server([Reply("stolen")]) as other:
        script = [Reply(status=307, headers={"location": other.url + "/chat/completions"})]
        async with asking(script) as (_, client):
            with pytest.raises(ModelFailed, match="base_url"):
                await client.reply(a_request(), Heard())

    assert other.requests == []


async def test_an_error_that_quotes_the_key_is_scrubbed() -> None:
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()
    async with asking([Reply(status=401, body=body)]) as (_, client):
        with pytest.raises(ModelFailed) as failed:
            await client.reply(a_request(), Heard())

    assert failed.value.kind == "auth"
    assert KEY not in str(failed.value)
    assert "***" in str(failed.value)


async def test_an_endless_error_page_is_not_read_to_its_end() -> None:
    page = ScriptedAnswer([b"x" * 10_000] * 1000, status=500)
    client = a_client(ScriptedHttp(page))

    with pytest.raises(ModelFailed) as failed:
        await client.reply(a_request(), Heard())

    assert page.reads < 10
    assert len(failed.value.detail) <= 330


async def test_an_error_that_comes_as_a_good_answer_is_an_error() -> None:
    body = b'[{"error":{"code":429,"message":"quota for now","status":"RESOURCE_EXHAUSTED"}}]'
    async with asking([Reply(body=body)]) as (_, client):
        with pytest.raises(ModelFailed, match="quota for now") as failed:
            await client.reply(a_request(), Heard())

    assert failed.value.kind == "rate"


async def test_a_whole_answer_to_a_streaming_request_is_read_all_the_same() -> None:
    body = b'{"choices":[{"message":{"content":"all at once"},"finish_reason":"stop"}]}'
    async with asking([Reply(body=body)]) as (_, client):
        assert (await client.reply(a_request(), Heard())).text == "all at once"


async def test_a_field_that_a_server_refuses_is_left_out_at_once_and_from_then_on() -> None:
    refusal = b'{"error":{"message":"unknown field stream_options"}}'
    script = [Reply(status=400, body=refusal), Reply("ok")]
    async with asking(script) as (server, client):
        for _ in range(2):
            assert (await client.reply(a_request(), Heard())).text == "ok"

    assert ["stream_options" in asked.body for asked in server.requests] == [True, False, False]


@pytest.mark.requirement("S-003-AgentDef-05")
async def test_without_a_key_nothing_is_sent_and_the_variable_is_named() -> None:
    http = ScriptedHttp(ScriptedAnswer())
    definition = ProviderDef("anthropic", "anthropic", "https://api.anthropic.com/v1")
    client = ProviderClient(definition, http, FakeClock(), lambda: 0.5)

    with pytest.raises(ModelFailed, match="ANTHROPIC_API_KEY") as failed:
        await client.reply(a_request(provider="anthropic"), Heard())

    assert failed.value.kind == "refused_key"
    assert http.calls == []


@pytest.mark.parametrize(("name", "is_advised"), [("ollama", True), ("custom", False)])
async def test_a_model_that_is_not_pulled_is_told_with_the_command_that_pulls_it(
    name: str, is_advised: bool
) -> None:
    body = b'{"error":{"message":"model \'mock-1\' not found","type":"not_found_error"}}'
    http = ScriptedHttp(ScriptedAnswer([body], status=404))
    definition = ProviderDef(name, "openai", "http://127.0.0.1:11434/v1")

    with pytest.raises(ModelFailed) as failed:
        await ProviderClient(definition, http, FakeClock(), lambda: 0.5).reply(a_request(), Heard())

    assert (failed.value.kind, failed.value.status) == ("not_found", 404)
    assert ("`ollama pull mock-1`" in failed.value.detail) is is_advised
    assert "authorization" not in http.calls[0].headers


@pytest.mark.parametrize(("name", "is_advised"), [("ollama", True), ("custom", False)])
async def test_a_server_that_does_not_run_is_told_with_the_command_that_starts_it(
    name: str, is_advised: bool
) -> None:
    http = ScriptedHttp(HttpFailed("network", "127.0.0.1:11434 cannot be reached", sent=False))
    definition = ProviderDef(name, "openai", "http://127.0.0.1:11434/v1", max_retries=0)

    with pytest.raises(ModelFailed, match="cannot be reached") as failed:
        await ProviderClient(definition, http, FakeClock(), lambda: 0.5).reply(a_request(), Heard())

    assert ("`ollama serve`" in failed.value.detail) is is_advised


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "é"])
async def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    http = ScriptedHttp(ScriptedAnswer())
    definition = ProviderDef("custom", "openai", "https://x.example/v1", Secret(key))

    with pytest.raises(ModelFailed) as failed:
        await ProviderClient(definition, http, FakeClock(), lambda: 0.5).reply(a_request(), Heard())

    assert failed.value.kind == "refused_key"
    assert not key or key not in str(failed.value)
    assert http.calls == []


async def test_the_operators_own_headers_are_sent_and_never_shown() -> None:
    answer = ScriptedAnswer([b'{"error":"bad header-secret-1"}'], status=400)
    http = ScriptedHttp(answer)
    definition = ProviderDef(
        "custom", "openai", "http://127.0.0.1/v1/", headers={"X-Team": "header-secret-1"}
    )
    client = ProviderClient(definition, http, FakeClock(), lambda: 0.5)

    with pytest.raises(ModelFailed) as failed:
        await client.reply(a_request(), Heard())

    assert http.calls[0].headers["x-team"] == "header-secret-1"
    assert http.calls[0].url == "http://127.0.0.1/v1/chat/completions"
    assert "header-secret-1" not in str(failed.value) + repr(definition)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "zstd, gzip"])
@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
async def test_a_packed_answer_is_refused_unread(encoding: str, content_type: str) -> None:
    packed = gzip.compress(b"\n" * 10_000_000)
    headers = {"content-encoding": encoding, "content-type": content_type}
    async with asking([Reply(raw=[packed], headers=headers)], max_retries=3) as (server, client):
        with pytest.raises(ModelFailed, match="encoding") as failed:
            await client.reply(a_request(), Heard())

    assert failed.value.kind == "protocol"
    assert [asked.headers["accept-encoding"] for asked in server.requests] == ["identity"]


@pytest.mark.parametrize("encoding", ["", "identity", " Identity "])
async def test_an_answer_that_says_it_is_not_packed_is_read(encoding: str) -> None:
    script = [Reply("ok", headers={"content-encoding": encoding})]
    async with asking(script) as (_, client):
        assert (await client.reply(a_request(), Heard())).text == "ok"


async def test_a_packed_refusal_keeps_the_kind_of_its_status() -> None:
    headers = {"content-encoding": "gzip", "retry-after": "7"}
    script = [Reply(status=429, headers=headers, body=gzip.compress(b"slow down"))]
    async with asking(script) as (_, client):
        with pytest.raises(ModelFailed, match="HTTP 429 without an explanation") as failed:
            await client.reply(a_request(), Heard())

    assert (failed.value.kind, failed.value.retry_after_s) == ("rate", 7.0)


@pytest.mark.parametrize(
    ("content_type", "piece", "count"),
    [
        ("text/event-stream", b": comment\n\n" * 100, 1000),  # many reads, each there at once
        ("text/event-stream", b": comment\n\n" * 100_000, 1),  # one read that holds a lot
        ("application/json", b" " * 10_000, 100),
    ],
)
async def test_others_have_their_turn_while_an_answer_is_there_faster_than_it_is_read(
    content_type: str, piece: bytes, count: int
) -> None:
    answer = ScriptedAnswer([piece] * count, headers={"content-type": content_type})
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(answer.reads)
            await checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        await checkpoint()
        with pytest.raises(ModelFailed):
            await a_client(ScriptedHttp(answer)).reply(a_request(), Heard())
        group.cancel_scope.cancel()

    assert len(turns) > 10


@pytest.mark.parametrize("nothing", [b": %b\n\n", b'data: {"pad":"%b"}\n\n', b"field: %b\n"])
async def test_a_stream_that_says_nothing_without_an_end_is_cut_off(nothing: bytes) -> None:
    answer = ScriptedAnswer([nothing % (b"x" * 256 * 1024)] * 1000)

    with pytest.raises(ModelFailed, match="longer than") as failed:
        await a_client(ScriptedHttp(answer)).reply(a_request(), Heard())

    assert (failed.value.kind, failed.value.started) == ("protocol", False)
    assert answer.reads < 300


async def test_every_answer_is_let_go() -> None:
    half = ScriptedAnswer([b"data: {}\n\n", HttpFailed("network", "gone")])
    http = ScriptedHttp(half, ScriptedAnswer(status=500), ScriptedAnswer([b"data: {\n\n"]))
    client = a_client(http)

    for _ in range(3):
        with pytest.raises(ModelFailed):
            await client.reply(a_request(), Heard())

    assert http.left_open == 0
