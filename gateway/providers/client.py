"""One provider that is asked over HTTP: encode, send, read, and try again where that is right."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import anyio
from anyio.lowlevel import checkpoint

from gateway.domain.errors import FailureKind, ModelFailed
from gateway.domain.ids import to_micros
from gateway.domain.model import Hear, ModelReply, ModelRequest, ProviderDef
from gateway.domain.ports import Clock, Http, HttpAnswer, HttpCall, HttpFailed, Model
from gateway.providers.failures import Scrub, refused
from gateway.providers.prices import missing_key, quirks_of
from gateway.providers.reply import Assembly, Reading, StreamReader, take_whole
from gateway.providers.taping import Recording
from gateway.providers.wire_anthropic import AnthropicEncoder, AnthropicReading
from gateway.providers.wire_openai import OpenAiEncoder, OpenAiReading

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 8.0
Attempt = Callable[[float], Awaitable[ModelReply]]  # is told how many seconds are left


@dataclass(frozen=True, slots=True)
class Retries:
    """How often, and the two things that make it testable. `random` gives 0 up to 1."""

    max_retries: int
    clock: Clock
    random: Callable[[], float]

    async def run(self, attempt: Attempt, deadline_s: float) -> ModelReply:
        """The first reply that succeeds. Raises the last ModelFailed."""
        end = self.clock.monotonic() + deadline_s
        tried, left_s = 0, deadline_s
        while True:
            try:
                return await attempt(left_s)
            except ModelFailed as failed:
                left_s = end - self.clock.monotonic()
                pause = self.pause_s(failed, tried, left_s)
                if pause is None:
                    raise
                log.info(
                    "a model call is tried again",
                    extra={
                        "provider": failed.provider,
                        "kind": failed.kind,
                        "detail": failed.detail,
                        "pause_s": round(pause, 3),
                    },
                )
            tried, left_s = tried + 1, left_s - pause
            await self.clock.sleep(pause)

    def pause_s(self, failed: ModelFailed, tried: int, left_s: float) -> float | None:
        """How long to wait before the next try; None: do not try again."""
        if failed.started or not failed.retryable or tried >= self.max_retries:
            return None
        told = failed.retry_after_s
        if told is None:
            pause = self.random() * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**tried)
        else:
            pause = told + self.random() * min(1.0, 0.1 + told / 10)
        return pause if pause < left_s else None


ERROR_BODY_CAP = 64 * 1024
# So much of an answer is worked on, then others have their turn, however fast it arrives.
BREATH_BYTES = 64 * 1024
# After the last event its connection may be used again, if the server ends the answer soon.
END_WITHIN_S = 0.25
_LEAST_SECRET = 8  # shorter header values are no secrets, and scrubbing them would mangle texts


class Encoder(Protocol):
    """What one wire knows of its requests."""

    @property
    def path(self) -> str: ...

    def headers(self, api_key: str | None) -> Mapping[str, str]: ...

    def body(self, request: ModelRequest) -> bytes: ...

    def adapt(self, refusal: str) -> bool:
        """Whether, after these words, the same request would be encoded in another way."""
        ...


class ProviderClient:
    """Implements the Model port for one provider: its retries, each of which is metered."""

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
        self._line = _Line(definition, http, clock, encoder)
        self._metered = metered(self._line)
        self._retries = Retries(definition.max_retries, clock, random)

    async def reply(self, request: ModelRequest, hear: Hear) -> ModelReply:
        self._line.require_key(request)

        async def attempt(left_s: float) -> ModelReply:
            now = request if left_s >= request.deadline_s else replace(request, deadline_s=left_s)
            try:
                return await self._metered.reply(now, hear)
            except ModelFailed as failed:
                if failed.kind != "bad_request" or not self._line.adapt(failed.detail):
                    raise
                return await self._metered.reply(now, hear)

        return await self._retries.run(attempt, request.deadline_s)


class _Line:
    """Implements the Model port: one request, one answer."""

    def __init__(
        self, definition: ProviderDef, http: Http, clock: Clock, encoder: Encoder | None
    ) -> None:
        self._http, self._clock = http, clock
        self._timeouts_s = definition.connect_timeout_s, definition.idle_timeout_s
        self._recovers = definition.tool_markup == "recover"
        self._quirks = quirks_of(definition)
        key = definition.api_key.reveal().strip() if definition.api_key else None
        self._key_problem = missing_key(definition) or _unsendable(key)
        self._encoder: Encoder
        self._new_reading: Callable[[Assembly], Reading]
        if definition.wire == "openai":
            self._encoder, self._new_reading = OpenAiEncoder(definition), OpenAiReading
        else:
            self._encoder, self._new_reading = AnthropicEncoder(definition), AnthropicReading
        self._encoder = encoder or self._encoder
        self._url = definition.base_url.rstrip("/") + self._encoder.path
        own = {name.lower(): value for name, value in definition.headers.items()}
        # Compressed bytes would be held back, and swell to any size.
        plain = {"user-agent": "exogate", "accept-encoding": "identity"}
        self._headers = {**plain, **self._encoder.headers(key), **own}
        words = [word for value in own.values() for word in (value, *value.split()[-1:])]
        secrets = ([key] if key else []) + [one for one in words if len(one) >= _LEAST_SECRET]
        self._secrets = tuple(dict.fromkeys(secrets))
        self._scrub = Scrub(self._secrets)

    def require_key(self, request: ModelRequest) -> None:
        if self._key_problem:
            raise ModelFailed(request.provider, "refused_key", self._key_problem)

    def adapt(self, refusal: str) -> bool:
        """Whether, after these words, the same request would be encoded in another way."""
        return self._encoder.adapt(refusal)

    async def reply(self, request: ModelRequest, hear: Hear) -> ModelReply:
        body = self._encoder.body(request)
        if request.record is not None:
            request.record.hide(*self._secrets)
        assembly = Assembly(request, hear, self._scrub, len(body), recovers=self._recovers)
        try:
            return await self._exchange(assembly, body)
        except HttpFailed as error:
            kind, advice = _kind(error, "network"), "" if error.sent else self._quirks.unreachable
            told = f"{error} ({advice})" if advice else str(error)
            raise assembly.failed(kind, told, sent=error.sent) from error

    async def _exchange(self, assembly: Assembly, body: bytes) -> ModelReply:
        connect_s, idle_s = self._timeouts_s
        idle_s = min(idle_s, assembly.request.idle_timeout_s or idle_s)
        call = HttpCall("POST", self._url, self._headers, body, connect_s, idle_s)
        record, http = assembly.request.record, self._http
        if record is not None:
            http = Recording(http, record, BREATH_BYTES, assembly.why_left)
        async with http.send(call) as answer:
            status, headers = answer.status, answer.headers
            encoding = headers.get("content-encoding", "identity").strip().lower()
            is_plain = encoding in {"", "identity"}
            if not 200 <= status < 300:
                said = await _read_upto(answer, ERROR_BODY_CAP) if is_plain else b""
                now = self._clock.now()
                if record is not None:
                    record("now", to_micros(now))
                failed = refused(
                    assembly.provider, status, headers, said, scrub=self._scrub, now=now
                )
                raise self._advised(failed, assembly.request.model)
            if not is_plain:
                raise assembly.failed("protocol", f"the answer is encoded ({encoding}), unasked")
            reading = self._new_reading(assembly)
            if _is_stream(headers.get("content-type", ""), asked=assembly.request.stream):
                return await _read_stream(answer, StreamReader(reading, assembly), assembly)
            return await _read_whole(answer, reading, assembly)

    def _advised(self, failed: ModelFailed, model: str) -> ModelFailed:
        advice = self._quirks.unknown_model
        if failed.kind != "not_found" or not advice:
            return failed
        told = f"{failed.detail} ({advice.format(model=model)})"
        return ModelFailed(failed.provider, failed.kind, told, status=failed.status)


async def _read_stream(answer: HttpAnswer, reader: StreamReader, assembly: Assembly) -> ModelReply:
    breath = 0
    while not reader.is_done:
        try:
            data = await answer.read_some()
        except HttpFailed as error:
            return _broken_off(reader, assembly, error)
        if not data:
            return reader.close()
        while len(data) > BREATH_BYTES:
            reader.feed(data[:BREATH_BYTES])
            await _recover(assembly)
            assembly.end_read()
            data = data[BREATH_BYTES:]
            await checkpoint()
        reader.feed(data)
        if assembly.unread:
            await _recover(assembly)
        assembly.end_read()
        breath += len(data)
        if breath > BREATH_BYTES:
            breath = 0
            await checkpoint()
    if not answer.is_over and not assembly.is_overrun:
        with anyio.move_on_after(END_WITHIN_S):
            await _read_upto(answer, ERROR_BODY_CAP)
    return reader.close()


async def _recover(assembly: Assembly) -> None:
    for _ in assembly.recover():
        await checkpoint()


def _broken_off(reader: StreamReader, assembly: Assembly, error: HttpFailed) -> ModelReply:
    """A reply that had said all before its connection broke is complete; any other is not."""
    try:
        return reader.close()
    except ModelFailed as failed:
        if failed.kind != "truncated":
            raise
        raise assembly.failed(_kind(error, "truncated"), str(error)) from error


def _kind(error: HttpFailed, otherwise: FailureKind) -> FailureKind:
    return "timeout" if error.kind == "timeout" else otherwise


async def _read_whole(answer: HttpAnswer, reading: Reading, assembly: Assembly) -> ModelReply:
    body, cap = bytearray(), assembly.whole_cap
    try:
        while len(body) <= cap and (data := await answer.read_some()):
            body += data
            await checkpoint()
    except HttpFailed as error:
        raise assembly.failed(_kind(error, "truncated"), str(error)) from error
    take_whole(bytes(body), reading, assembly)
    await _recover(assembly)
    return reading.reply()


async def _read_upto(answer: HttpAnswer, cap: int) -> bytes:
    """What the answer still holds, up to a cap; less if the connection breaks."""
    said = bytearray()
    with suppress(HttpFailed):  # what was read says enough
        while len(said) < cap and (data := await answer.read_some()):
            said += data
    return bytes(said[:cap])


def _is_stream(content_type: str, *, asked: bool) -> bool:
    """What the server says it sends counts; some say nothing, or nonsense."""
    if "event-stream" in content_type:
        return True
    return asked and "json" not in content_type


def _unsendable(key: str | None) -> str | None:
    if key is None or (key and key.isascii() and key.isprintable() and " " not in key):
        return None
    return "the configured key is empty or holds characters that no key has; set it again"


class Models:
    """Implements the Model port over providers by name."""

    def __init__(self, providers: Mapping[str, Model]) -> None:
        self._providers = dict(providers)

    async def reply(self, request: ModelRequest, hear: Hear) -> ModelReply:
        provider = self._providers.get(request.provider)
        if provider is None:
            known = ", ".join(sorted(self._providers)) or "none"
            raise ModelFailed(
                request.provider, "not_found", f"no such provider is configured; there are: {known}"
            )
        return await provider.reply(request, hear)
