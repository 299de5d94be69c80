"""Traces: the calls of ended runs as OpenTelemetry spans, sent to a collector by OTLP over HTTP.

The end of a run puts one record on a bounded queue. A task makes spans of the records in a thread and posts them. A
collector that is dead or silent delays no run: a full queue drops its oldest record and counts its spans.
"""

import gzip
import json
import logging
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from anyio import CancelScope, to_thread
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gateway.domain.figures import CallTrace, RunReports, RunTrace
from gateway.domain.ids import TraceContext
from gateway.domain.messages import ERROR_TYPES, Message
from gateway.domain.ports import Clock, Http, HttpCall, HttpFailed
from gateway.domain.supervision import contain, supervise
from gateway.domain.version import VERSION

log = logging.getLogger(__name__)

# The names follow open-telemetry/semantic-conventions-genai@ac48b1f9df15fdf281b96cccf15eb707e1fc1868. The conventions
# are in development and may change.
INVOKE_AGENT, CHAT, EXECUTE_TOOL = "invoke_agent", "chat", "execute_tool"
OPERATION, PROVIDER = "gen_ai.operation.name", "gen_ai.provider.name"
AGENT_ID, AGENT_NAME, CONVERSATION = (
    "gen_ai.agent.id",
    "gen_ai.agent.name",
    "gen_ai.conversation.id",
)
REQUEST_MODEL, RESPONSE_MODEL = "gen_ai.request.model", "gen_ai.response.model"
MAX_TOKENS, TEMPERATURE = "gen_ai.request.max_tokens", "gen_ai.request.temperature"
STREAM, FINISH_REASONS = "gen_ai.request.stream", "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CACHE_READ, CACHE_WRITE = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_write.input_tokens",
)
REASONING = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME, TOOL_CALL, TOOL_TYPE = "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.type"
ARGUMENTS, RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
SYSTEM, ERROR = "gen_ai.system_instructions", "error.type"
PROVIDERS: Mapping[str, str] = {"gemini": "gcp.gemini"}  # other names are the same in both

MOST_RUNS = 256  # in the queue
BATCH_SPANS, BATCH_S = 512, 5.0
POST_S, LAST_POST_S = 5.0, 1.0
MOST_TRIES, LONGEST_PAUSE_S = 5, 30.0
LOG_EVERY_S = 60.0
LONGEST_CONTENT = 32_000  # characters of a text
PATH = "/v1/traces"
AGAIN = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Collector:
    """The address of the collector, and whether spans hold messages. Equal configurations make equal values."""

    endpoint: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    has_content: bool = False


class Tracer:
    """Queues ended runs and posts their spans. The reports count the spans that do not arrive."""

    def __init__(
        self,
        collector: Collector,
        http: Http,
        clock: Clock,
        reports: RunReports,
        clean: Callable[[str], str] = str,
    ) -> None:
        self._http, self._clock, self._clean, self._reports = http, clock, clean, reports
        self._has_content = collector.has_content
        kind = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
        self._url, self._headers = collector.endpoint + PATH, {**dict(collector.headers), **kind}
        self._instance = str(uuid.uuid4())
        self._runs: deque[RunTrace] = deque()
        self._came, self._full = anyio.Event(), anyio.Event()
        self._failing_since: float | None = None
        self._logged_at = -LOG_EVERY_S

    def record(self, run: RunTrace) -> None:
        if run.trace is None or not run.trace.is_sampled:
            return
        if len(self._runs) >= MOST_RUNS:
            self._reports.spans_dropped += _count(self._runs.popleft())
        self._runs.append(run)
        self._came.set()
        if len(self._runs) >= MOST_RUNS // 2:
            self._full.set()

    async def run(self) -> None:
        while True:
            await self._came.wait()
            with anyio.move_on_after(BATCH_S):
                await self._full.wait()
            while self._runs:
                await self._send_until_taken()
            self._came, self._full = anyio.Event(), anyio.Event()

    async def close(self) -> None:
        """Posts the queue within a second, unless the collector did not answer the latest post."""
        with CancelScope(shield=True), anyio.move_on_after(LAST_POST_S):
            while self._runs and self._failing_since is None:
                batch = self._batch()
                if await self._post(batch) is not None:
                    self._reports.spans_dropped += sum(map(_count, batch))
        self._reports.spans_dropped += sum(map(_count, self._runs))
        self._runs.clear()

    async def _send_until_taken(self) -> None:
        batch = self._batch()
        try:
            for tries in range(MOST_TRIES):
                wait_s = await self._post(batch)
                if wait_s is None:
                    batch = []
                    return
                if wait_s < 0:
                    return
                await self._clock.sleep(wait_s or min(LONGEST_PAUSE_S, 2.0**tries))
        finally:
            self._reports.spans_dropped += sum(map(_count, batch))

    def _batch(self) -> list[RunTrace]:
        batch, spans = list[RunTrace](), 0
        while self._runs and (not batch or spans + _count(self._runs[0]) <= BATCH_SPANS):
            batch.append(self._runs.popleft())
            spans += _count(batch[-1])
        return batch

    async def _post(self, batch: Sequence[RunTrace]) -> float | None:
        """Posts spans. Returns None if the collector accepted them, else the seconds that it asks to wait: 0 if it
        names none, negative if it will never accept them."""
        body = await to_thread.run_sync(partial(self._encode, batch), abandon_on_cancel=True)
        call = HttpCall("POST", self._url, self._headers, body, POST_S, POST_S)
        why, wait_s = f"no answer within {POST_S:g} s", 0.0
        try:
            with anyio.move_on_after(POST_S):
                answer = await self._http.send(call)
                answer.close()
                if 200 <= answer.status < 300:
                    self._note(None)
                    return None
                why = f"the collector answered {answer.status}"
                named = answer.headers.get("retry-after", "")
                wait_s = min(LONGEST_PAUSE_S, float(named)) if named.isdecimal() else 0.0
                wait_s = wait_s if answer.status in AGAIN else -1.0
        except HttpFailed as error:
            why = str(error)
        self._note(why)
        return wait_s

    def _note(self, why: str | None) -> None:
        now = self._clock.monotonic()
        if why is None:
            if self._failing_since is not None:
                log.info("traces_exported_again", extra={"dropped": self._reports.spans_dropped})
            self._failing_since = None
            return
        self._failing_since = self._failing_since or now
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            log.warning(
                "traces_export_failed", extra={"why": why, "dropped": self._reports.spans_dropped}
            )

    def _encode(self, batch: Sequence[RunTrace]) -> bytes:
        request = ExportTraceServiceRequest()
        of_resource = request.resource_spans.add()
        known = {"name": "exogate", "version": VERSION, "instance.id": self._instance}
        named = {f"service.{name}": value for name, value in known.items()}
        add_attributes(of_resource.resource, named)
        scope = of_resource.scope_spans.add()
        scope.scope.name, scope.scope.version = "exogate", VERSION
        for run in batch:
            spans = spans_of(run, has_content=self._has_content)
            # One run at a time: a batch may hold hundreds of conversations.
            scope.spans.extend(map(self._clean_span, spans) if self._has_content else spans)
        raw = request.SerializeToString()
        if not self._has_content:
            text = raw.decode("latin-1")
            # Names of models, tools and conversations are not trusted either, but seldom hold a secret.
            if "exo_" in text or self._clean(text) != text:
                for span in scope.spans:
                    self._clean_span(span)
                raw = request.SerializeToString()
        return gzip.compress(raw, 1)

    def _clean_span(self, span: Span) -> Span:
        span.name = self._clean(span.name)
        for value in (one.value for one in span.attributes):
            if value.HasField("string_value"):
                value.string_value = self._clean(value.string_value)[:LONGEST_CONTENT]
        return span


@asynccontextmanager
async def tracing(
    collector: Collector,
    http: Http,
    clock: Clock,
    reports: RunReports,
    clean: Callable[[str], str] = str,
) -> AsyncIterator[Tracer]:
    """Runs a tracer. At the end it has a second to post its queue."""
    tracer = Tracer(collector, http, clock, reports, clean)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(supervise, "traces", tracer.run, clock), name="traces")
        try:
            yield tracer
        finally:
            group.cancel_scope.cancel()
            await contain("traces", tracer.close)


def _count(run: RunTrace) -> int:
    return 1 + len(run.calls)


# -- spans


def spans_of(run: RunTrace, *, has_content: bool) -> Iterator[Span]:
    """Returns the spans of a run and of each call of a model or a tool. Calls inside a tool are its children."""
    trace = run.trace
    assert trace is not None
    yield _root(run, trace)
    parents = {one.inner: trace.child(one.inner) for one in run.calls if one.inner}
    for number, call in enumerate(run.calls):
        is_model = call.kind == "model"
        made = _span(
            f"{CHAT if is_model else EXECUTE_TOOL} {call.name}",
            trace.trace_id,
            trace.child(call.inner or f"model {number}"),
            parents.get(call.part, trace.span_id),
        )
        made.kind = Span.SPAN_KIND_CLIENT if is_model else Span.SPAN_KIND_INTERNAL
        _set_times(made, run, call.began, call.ended or run.ended)
        describe = _describe_model if is_model else _describe_tool
        found = describe(call, has_content=has_content)
        add_attributes(made, {**found, CONVERSATION: str(run.session_key)})
        if call.outcome != "ok":
            _mark_failed(made, call.outcome)
        yield made


def _root(run: RunTrace, trace: TraceContext) -> Span:
    key = run.session_key
    made = _span(f"{INVOKE_AGENT} {key.agent}", trace.trace_id, trace.span_id, trace.parent_id)
    made.kind = Span.SPAN_KIND_INTERNAL
    _set_times(made, run, run.opened, run.ended)
    model_calls = [one for one in run.calls if one.kind == "model" and not one.part]
    about = {
        OPERATION: INVOKE_AGENT,
        PROVIDER: _provider(model_calls[-1]) if model_calls else None,
        AGENT_ID: key.agent,
        AGENT_NAME: key.agent,
        CONVERSATION: str(key),
        INPUT_TOKENS: run.usage.input_tokens,
        OUTPUT_TOKENS: run.usage.output_tokens,
        "exogate.run.id": run.run_id,
        "exogate.channel": key.channel,
        "exogate.reason": run.reason,
    }
    add_attributes(made, about)
    if run.reason in ERROR_TYPES:
        _mark_failed(made, run.reason)
    return made


def _span(name: str, *ids: str) -> Span:
    """`ids` are those of the trace, the span and its parent."""
    trace_id, span_id, parent_id = map(bytes.fromhex, ids)
    return Span(name=name, trace_id=trace_id, span_id=span_id, parent_span_id=parent_id, flags=1)


def _set_times(span: Span, run: RunTrace, began: float, ended: float) -> None:
    offset = run.ended_at.timestamp() - run.ended
    span.start_time_unix_nano = int((began + offset) * 1e9)
    span.end_time_unix_nano = int((ended + offset) * 1e9)


def _describe_model(call: CallTrace, *, has_content: bool) -> dict[str, Any]:
    found: dict[str, Any] = {OPERATION: CHAT, PROVIDER: _provider(call), REQUEST_MODEL: call.name}
    if (request := call.request) is not None:
        found |= {MAX_TOKENS: request.max_tokens, TEMPERATURE: request.temperature}
        found[STREAM] = request.stream
        if has_content:
            found[SYSTEM] = json.dumps([{"type": "text", "content": request.system}])
            found[INPUT] = json.dumps([_message(one) for one in request.messages])
    if call.first is not None:
        found[FIRST_CHUNK] = call.first - call.began
    if (reply := call.reply) is not None:
        usage = reply.usage
        found |= {RESPONSE_MODEL: reply.model, FINISH_REASONS: [reply.finish]}
        found |= {INPUT_TOKENS: usage.input_tokens, OUTPUT_TOKENS: usage.output_tokens}
        found |= {
            CACHE_READ: usage.cached_tokens or None,
            CACHE_WRITE: usage.written_tokens or None,
        }
        found[REASONING] = usage.reasoning_tokens or None
        if has_content:
            message = _message(Message("assistant", reply.text, tool_calls=reply.tool_calls))
            found[OUTPUT] = json.dumps([{**message, "finish_reason": reply.finish}])
    return found


def _describe_tool(call: CallTrace, *, has_content: bool) -> dict[str, Any]:
    found = {OPERATION: EXECUTE_TOOL, TOOL_NAME: call.name}
    found |= {TOOL_CALL: call.id, TOOL_TYPE: "function"}
    if has_content:
        found[ARGUMENTS] = call.arguments
        found[RESULT] = call.result.content if call.result else ""
    return found


def _provider(call: CallTrace) -> str:
    return PROVIDERS.get(call.provider, call.provider)


def _message(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if message.text:
        parts.append({"type": "text", "content": message.text})
    for call in message.tool_calls:
        known = {"id": call.id, "name": call.name, "arguments": call.arguments}
        parts.append({"type": "tool_call", **known})
    if (result := message.result) is not None:
        known = {"id": result.call_id, "response": result.content}
        parts.append({"type": "tool_call_response", **known})
    return {"role": message.role, "parts": parts}


def _mark_failed(span: Span, why: str) -> None:
    span.status.code = Status.STATUS_CODE_ERROR
    add_attributes(span, {ERROR: why})


def add_attributes(target: Span | Resource, values: Mapping[str, Any]) -> None:
    """Adds the values that are not None. They are filled in place: making and copying them takes four times as long."""
    add = target.attributes.add
    for name, value in values.items():
        if value is not None:
            one = add()
            one.key = name
            _fill(one.value, value)


def _fill(target: AnyValue, value: Any) -> None:
    match value:
        case bool():
            target.bool_value = value
        case int():
            target.int_value = value
        case float():
            target.double_value = value
        case list():
            for one in value:
                _fill(target.array_value.values.add(), one)
        case _:  # the field accepts no lone surrogate
            target.string_value = str(value).encode("utf-8", "replace").decode()
