"""The client of one provider over HTTP: encodes, sends and reads, and retries where that is safe."""

import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from gateway.domain.errors import FailureKind, ModelFailed
from gateway.domain.ids import to_micros
from gateway.domain.journal import OVERRUN
from gateway.domain.model import ModelReply, ModelRequest, OnDelta, ProviderDef
from gateway.domain.ports import Clock, Http, HttpAnswer, HttpCall, HttpFailed, Model
from gateway.providers.failures import Scrub, failure_of
from gateway.providers.prices import missing_key, quirks_of
from gateway.providers.wire import RECORDED_HEADERS, Encoder, ReplyReader
from gateway.providers.wire_anthropic import AnthropicEncoder, AnthropicReader
from gateway.providers.wire_openai import OpenAiEncoder, OpenAiReader

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 8.0
ERROR_BODY_CAP = 64 * 1024
# Time for the server to end the answer after the last event, so that the connection can be reused.
END_WITHIN_S = 0.25
_MIN_SECRET = 8  # scrubbing shorter header values would damage texts


class Models:
    """Implements the Model port over providers by name."""

    def __init__(self, providers: Mapping[str, Model]) -> None:
        self._providers = dict(providers)

    def reply(self, request: ModelRequest, on_delta: OnDelta) -> Coroutine[Any, Any, ModelReply]:
        provider = self._providers.get(request.provider)
        if provider is None:
            known = ", ".join(sorted(self._providers)) or "none"
            detail = f"the provider is not configured; known: {known}"
            raise ModelFailed(request.provider, "not_found", detail)
        return provider.reply(request, on_delta)


class ProviderClient:
    """Implements the Model port for one provider with retries. `metered` wraps each attempt. `random`
    returns 0 up to 1."""

    def __init__(
        self,
        definition: ProviderDef,
        http: Http,
        clock: Clock,
        random: Callable[[], float],
        metered: Callable[[Model], Model] = lambda model: model,
        *,
        encoder: Encoder | None = None,
    ) -> None:
        key = definition.api_key.reveal().strip() if definition.api_key else None
        self._key_problem = missing_key(definition) or _invalid_key(key)
        is_openai = definition.wire == "openai"
        own = OpenAiEncoder(definition) if is_openai else AnthropicEncoder(definition)
        self._encoder: Encoder = encoder or own
        self._attempt = metered(_Attempt(definition, key, self._encoder, http, clock))
        self._max_retries, self._clock, self._random = definition.max_retries, clock, random

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Returns the first successful reply. Raises the last ModelFailed."""
        if self._key_problem:
            raise ModelFailed(request.provider, "refused_key", self._key_problem)
        end = self._clock.monotonic() + request.deadline_s
        tried = 0
        while True:
            try:
                return await self._attempt.reply(request, on_delta)
            except ModelFailed as failed:
                if failed.kind == "bad_request" and self._encoder.adapt(failed.detail):
                    continue
                left_s = end - self._clock.monotonic()
                may_retry = tried < self._max_retries
                pause = pause_s(failed, tried, left_s, self._random) if may_retry else None
                if pause is None:
                    failed.attempts = tried + 1
                    raise
                log.info(
                    "model_retry",
                    extra={
                        "provider": failed.provider,
                        "model": request.model,
                        "kind": failed.kind,
                        "status": failed.status,
                        "attempt": tried + 1,
                        "why": failed.detail,
                        "pause_s": round(pause, 3),
                    },
                )
            tried += 1
            await self._clock.sleep(pause)
            request = replace(request, deadline_s=left_s - pause)


def pause_s(
    failed: ModelFailed, tried: int, left_s: float, random: Callable[[], float]
) -> float | None:
    """Returns the pause before the next attempt; None: do not retry."""
    if failed.started or not failed.retryable:
        return None
    asked_s = failed.retry_after_s
    if asked_s is None:
        pause = random() * min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0**tried)
    else:
        pause = asked_s + random() * min(1.0, 0.1 + asked_s / 10)
    return pause if pause < left_s else None


class _Attempt:
    """Implements the Model port for one attempt, recorded in the journal as it proceeds."""

    def __init__(
        self, definition: ProviderDef, key: str | None, encoder: Encoder, http: Http, clock: Clock
    ) -> None:
        self._http, self._clock, self._encoder = http, clock, encoder
        self._timeouts_s = definition.connect_timeout_s, definition.idle_timeout_s
        self._recovers = definition.tool_markup == "recover"
        self._quirks = quirks_of(definition)
        self._reader = OpenAiReader if definition.wire == "openai" else AnthropicReader
        self._url = definition.base_url.rstrip("/") + encoder.path
        own = {name.lower(): value for name, value in definition.headers.items()}
        # A compressed stream arrives late, and can swell to any size.
        plain = {"user-agent": "exogate", "accept-encoding": "identity"}
        self._headers = {**plain, **encoder.headers(key), **own}
        words = [word for value in own.values() for word in (value, *value.split()[-1:])]
        secrets = ([key] if key else []) + [one for one in words if len(one) >= _MIN_SECRET]
        self._secrets = tuple(dict.fromkeys(secrets))
        self._scrub = Scrub(self._secrets)

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        body, record = self._encoder.body(request), request.record
        reader = self._reader(request, on_delta, self._scrub, len(body), recovers=self._recovers)
        connect_s, idle_s = self._timeouts_s
        idle_s = min(idle_s, request.idle_timeout_s or idle_s)
        call = HttpCall("POST", self._url, self._headers, body, connect_s, idle_s)
        if record is not None:
            record.hide(*self._secrets)
            record("sent", len(body))
        try:
            answer = await self._http.send(call)
            try:
                return await self._read(answer, reader)
            finally:
                answer.close()
        except HttpFailed as error:
            reader.end(error.kind, str(error))
            advice = self._quirks.unreachable if not error.sent else ""
            detail = f"{error} ({advice})" if advice else str(error)
            raise reader.failure(_kind(error, "network"), detail, sent=error.sent) from error
        finally:
            if reader.is_overrun and record is not None:
                record("end", OVERRUN, str(reader.progress.most))
            elif not reader.is_recorded:
                reader.end("cut")

    async def _read(self, answer: HttpAnswer, reader: ReplyReader) -> ModelReply:
        headers: dict[str, str] = {}
        for name in RECORDED_HEADERS:
            if name in answer.headers:
                headers[name] = answer.headers[name]
        if reader.request.record is not None:
            reader.request.record("head", answer.status, headers)
        encoding = headers.get("content-encoding", "identity").strip().lower()
        is_packed = encoding not in {"", "identity"}
        if not 200 <= answer.status < 300:
            body = b"" if is_packed else await _read_upto(answer, reader, ERROR_BODY_CAP)
            raise self._refusal(answer, reader.request, body)
        if is_packed:
            raise reader.failure("protocol", f"the answer has an unrequested encoding ({encoding})")
        # The content type decides; if it is missing or unknown, the request does.
        content = headers.get("content-type", "")
        if "event-stream" in content or (reader.request.stream and "json" not in content):
            return await _read_stream(answer, reader)
        return await _read_whole(answer, reader)

    def _refusal(self, answer: HttpAnswer, request: ModelRequest, body: bytes) -> ModelFailed:
        now = self._clock.now()
        if request.record is not None:
            request.record("now", to_micros(now))
        failed = failure_of(
            request.provider, answer.status, answer.headers, body, scrub=self._scrub, now=now
        )
        advice = self._quirks.unknown_model.format(model=request.model)
        if failed.kind != "not_found" or not advice:
            return failed
        detail = f"{failed.detail} ({advice})"
        return ModelFailed(request.provider, failed.kind, detail, status=failed.status)


async def _read_stream(answer: HttpAnswer, reader: ReplyReader) -> ModelReply:
    try:
        while not await answer.read_into(reader.feed):
            if reader.recovers:
                await _recover(reader)
                reader.emit()
            if reader.has_ended:
                break
            reader.unyielded = 0
            await checkpoint()
        else:
            reader.end("complete")
    except HttpFailed as error:
        reader.end(error.kind, str(error))
        try:
            return reader.close()
        except ModelFailed as failed:  # the reply was not complete before the connection broke
            if failed.kind != "truncated":
                raise
            raise reader.failure(_kind(error, "truncated"), str(error)) from error
    if not (reader.is_recorded or answer.is_over or reader.is_overrun):
        with anyio.move_on_after(END_WITHIN_S):
            await _read_upto(answer, reader, ERROR_BODY_CAP)
    return reader.close()


async def _read_whole(answer: HttpAnswer, reader: ReplyReader) -> ModelReply:
    body, cap = bytearray(), reader.whole_cap
    try:
        while len(body) <= cap and (data := await _read(answer, reader)):
            body += data
            await checkpoint()
    except HttpFailed as error:
        raise reader.failure(_kind(error, "truncated"), str(error)) from error
    reader.read_whole(bytes(body))
    if reader.recovers:
        await _recover(reader)
    return reader.reply()


async def _read_upto(answer: HttpAnswer, reader: ReplyReader, cap: int) -> bytes:
    """Reads the rest of the answer, up to a cap; less if the connection breaks."""
    body = bytearray()
    with suppress(HttpFailed):  # the part before the failure is enough
        while len(body) < cap and (data := await _read(answer, reader)):
            body += data
    return bytes(body[:cap])


async def _read(answer: HttpAnswer, reader: ReplyReader) -> bytes:
    """Reads and records bytes that are not events."""
    try:
        data = await answer.read_some()
    except HttpFailed as error:
        reader.end(error.kind, str(error))
        raise
    if not data:
        reader.end("complete")
    elif reader.request.record is not None:
        reader.request.record("bytes", data)
    return data


async def _recover(reader: ReplyReader) -> None:
    for _ in reader.recover():
        await checkpoint()


def _kind(error: HttpFailed, otherwise: FailureKind) -> FailureKind:
    return "timeout" if error.kind == "timeout" else otherwise


def _invalid_key(key: str | None) -> str | None:
    if key is None or (key and key.isascii() and key.isprintable() and " " not in key):
        return None
    return "the configured key is empty or has invalid characters; set it again"
