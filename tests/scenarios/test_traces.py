"""Runs are traced to a collector, and one that is dead delays nothing."""

import gzip
import json
import signal
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import anyio
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.domain.figures import CallTrace, Figures, RunReports, RunTrace
from gateway.domain.ids import AgentId, RunId, SessionKey, TraceContext
from gateway.domain.messages import Message, Usage
from gateway.domain.model import ModelRequest
from gateway.traces import LONGEST_CONTENT, MOST_RUNS, Collector, tracing
from tests.fakes.client import Event, connected, http, post_chat, until
from tests.fakes.clock import FakeClock, now_about
from tests.fakes.collector import FakeCollector, attributes, collecting
from tests.fakes.gateway import Command, Setup, command, running
from tests.fakes.http import ScriptedAnswer, ScriptedHttp
from tests.fakes.mcp_server import FakeMcp, serving
from tests.fakes.model_server import Reply, scripted_server

MOST_BYTES = 32_000_000
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
KEY, HEADER, TOKEN = "sk-canary-0123456789", "otlp-canary-0123456789", "token-canary-0123456789"


def rest(collector: FakeCollector, more: str = "") -> str:
    return f"""
[observability]
otlp_endpoint = "{collector.url}/"
otlp_headers = {{ authorization = "Bearer {HEADER}" }}
{more}
"""


async def talk(started: Command, token: str | None) -> Event:
    async with connected(started.url, token=token) as client:
        return await client.ask("WORDS", traceparent=PARENT)


async def stopped(started: Command) -> None:
    started.tell(signal.SIGTERM)
    assert await started.exit_code() == 0


@pytest.mark.parametrize("has_content", [False, True])
async def test_a_run_is_a_trace_of_its_models_and_tools(
    tmp_path: Path, *, has_content: bool
) -> None:
    tool = Reply(calls=[("c1", "echo", '{"text": "WORDS"}')], usage=(100, 10))
    more = (
        f"otlp_content = true\n[[tokens]]\nname = 'a'\ntoken = '{TOKEN}'\n" if has_content else ""
    )
    answer = Reply(f"done {KEY} {TOKEN}", usage=(200, 20))
    async with (
        collecting(FakeCollector()) as collector,
        scripted_server([tool, answer]) as model,
    ):
        setup = Setup(model.url, key=KEY, tools=("echo",), rest=rest(collector, more))
        async with command(await setup.written(tmp_path)) as started:
            end = await talk(started, TOKEN if has_content else None)
            await stopped(started)
        lines = [path async for path in anyio.Path(tmp_path / "data" / "logs").iterdir()]
        logged = [json.loads(one) for one in (await lines[0].read_text()).splitlines()]

    root, *calls = sorted(collector.spans, key=lambda span: span.start_time_unix_nano)
    assert [span.name for span in (root, *calls)] == [
        "invoke_agent main",
        "chat m",
        "execute_tool echo",
        "chat m",
    ]
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert root.parent_span_id.hex() == SPAN
    assert {span.parent_span_id for span in calls} == {root.span_id}
    assert len({span.span_id for span in collector.spans}) == 4
    assert all(root.start_time_unix_nano <= one.start_time_unix_nano for one in calls)
    assert all(one.end_time_unix_nano <= root.end_time_unix_nano for one in calls)
    known = attributes(root)
    assert known["gen_ai.conversation.id"] == "main:websocket:local:main" or has_content
    assert (known["gen_ai.usage.input_tokens"], known["gen_ai.operation.name"]) == (
        300,
        "invoke_agent",
    )
    asked = attributes(calls[0])
    assert (asked["gen_ai.provider.name"], asked["gen_ai.request.model"]) == ("fake", "m")
    assert (asked["gen_ai.usage.input_tokens"], asked["gen_ai.usage.output_tokens"]) == (100, 10)
    assert attributes(calls[1])["gen_ai.tool.name"] == "echo"
    assert collector.headers[0]["authorization"] == f"Bearer {HEADER}"
    sent = b"".join(collector.bodies)
    assert (b"WORDS" in sent) == has_content
    assert not [one for one in (KEY, HEADER, TOKEN) if one.encode() in sent]
    [line] = [one for one in logged if one["event"] == "run_finished"]
    assert (line["run"], line["trace_id"], line["span_id"]) == (
        end["run_id"],
        TRACE,
        root.span_id.hex(),
    )


async def by_socket(url: str) -> None:
    async with connected(url) as client:
        await client.ask("hi", traceparent=PARENT)


async def by_handshake(url: str) -> None:
    async with connected(url, traceparent=PARENT) as client:
        await client.ask("hi")


async def by_post(url: str, path: str, body: Mapping[str, object], **headers: str) -> None:
    told = {"traceparent": PARENT, "Content-Type": "application/json", **headers}
    await http(f"{url}{path}", method="POST", headers=told, body=json.dumps(body).encode())


COMPLETION = {"model": "main", "messages": [{"role": "user", "content": "hi"}]}
IN_A_SESSION = {"X-Exogate-Session": "s"}
DOORS: Mapping[str, Callable[[str], Awaitable[None]]] = {
    "chat.send": by_socket,
    "the handshake": by_handshake,
    "/api/chat": partial(by_post, path="/api/chat", body={"message": "hi"}),
    "/v1": partial(by_post, path="/v1/chat/completions", body=COMPLETION),
    "a session of /v1": partial(
        by_post, path="/v1/chat/completions", body=COMPLETION, **IN_A_SESSION
    ),
}


@pytest.mark.parametrize("door", DOORS)
async def test_whoever_asks_has_their_trace_go_on_at_the_servers_of_tools(
    tmp_path: Path, door: str
) -> None:
    call = Reply(calls=[("c1", "books__echo", "{}")])
    async with scripted_server([call, Reply("done")]) as model, serving(FakeMcp()) as books:
        rest = f'[mcp.servers.books]\nurl = "{books.url}"\n'
        async with running(Setup(model.url, tools=("mcp:books",), rest=rest), tmp_path) as site:
            await DOORS[door](site.url)

    [called] = books.calls
    told = {called.meta["traceparent"], called.headers["traceparent"]}
    assert len(told) == 1
    version, trace, span, flags = told.pop().split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert span != SPAN  # but that of the call, which is below it


async def test_a_silent_collector_delays_neither_an_answer_nor_the_end(tmp_path: Path) -> None:
    async with (
        collecting(FakeCollector(is_silent=True)) as collector,
        scripted_server([Reply("hi")] * 3) as model,
    ):
        setup = Setup(model.url, rest=rest(collector))
        async with command(await setup.written(tmp_path)) as started:
            answers = [await post_chat(started.url, "hi") for _ in range(3)]
            began = time.monotonic()
            await stopped(started)
            took_s = time.monotonic() - began

    assert [one.status for one in answers] == [200] * 3
    assert took_s < now_about(5)


async def test_a_collector_that_is_busy_gets_the_spans_later(tmp_path: Path) -> None:
    async with (
        collecting(FakeCollector(503, 429)) as collector,
        scripted_server([Reply("hi")]) as model,
    ):
        setup = Setup(model.url, rest=rest(collector))
        async with running(setup, tmp_path) as site:
            headers = {"traceparent": PARENT, "Content-Type": "application/json"}
            body = json.dumps({"message": "hi"}).encode()
            await http(f"{site.url}/api/chat", method="POST", headers=headers, body=body)
            await until(lambda: len(collector.spans) == 2)
            metrics = (await http(site.url + "/metrics")).body.decode()

    assert collector.tries == 3
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert "exogate_trace_spans_dropped_total 0" in metrics


async def test_spans_that_a_collector_refuses_are_counted(tmp_path: Path) -> None:
    async with (
        collecting(FakeCollector(400)) as collector,
        scripted_server([Reply("hi")]) as model,
    ):
        setup = Setup(model.url, rest=rest(collector))
        async with running(setup, tmp_path) as site:
            await post_chat(site.url, "hi")
            await until(lambda: site.rooms.shared.reports.spans_dropped == 2)

    assert (collector.tries, collector.spans) == (1, [])


async def test_of_long_conversations_no_more_is_held_than_is_sent() -> None:
    """A batch of them has 128 million characters before it is cut."""
    clock, wire = FakeClock(), ScriptedHttp(ScriptedAnswer())
    reports = RunReports(Figures(), lambda name, facts: None)
    said = Message("user", "a-secret " + "x" * 1_000_000)
    request = ModelRequest("fake", "m", "", (said,))
    run = RunTrace(
        run_id=RunId("r"),
        session_key=SessionKey(AgentId("main"), "cli", "local"),
        person="local",
        reason="answered",
        usage=Usage(),
        iterations=1,
        calls=[CallTrace("model", "m", 0.0, ended=1.0, request=request)],
        opened=0.0,
        began=0.0,
        ended=1.0,
        ended_at=clock.now(),
        store_s=0.0,
        trace=TraceContext(TRACE, SPAN),
    )
    collector = Collector("http://otel:4318", has_content=True)

    def clean(text: str) -> str:
        return text.replace("a-secret", "***")

    tracemalloc.start()
    try:
        async with tracing(collector, wire, clock, reports, clean) as tracer:
            for _ in range(MOST_RUNS // 2):  # so many are sent at once
                tracer.record(run)
            await until(lambda: bool(wire.calls))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    body = wire.calls[0].body
    assert body is not None
    sent = ExportTraceServiceRequest.FromString(gzip.decompress(body))
    spans = sent.resource_spans[0].scope_spans[0].spans
    texts = [attributes(one)["gen_ai.input.messages"] for one in spans if one.name == "chat m"]
    assert len(texts) == MOST_RUNS // 2
    assert {len(text) for text in texts} == {LONGEST_CONTENT}
    assert all('"content": "*** xxx' in text for text in texts)
    assert most < MOST_BYTES
