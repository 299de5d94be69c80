"""Bytes of an answer to a reply, whichever wire: events or one JSON object, read once."""

import json
from typing import Any, Protocol

from pydantic_core import from_json

from gateway.domain.errors import MalformedReply, ModelFailed
from gateway.domain.model import ModelReply
from gateway.providers.assembly import Assembly, json_bytes
from gateway.providers.failures import kind_of, read_refusal
from gateway.providers.sse import Event, SseDecoder, SseTooLong

WRONG_SHAPE = (AttributeError, TypeError, KeyError, ValueError)
WHOLE_CAP = 4 * 1024 * 1024
# A stream with all that is not text: names and braces around each token, comments, empty lines.
LEAST_STREAM_CAP = 64 * 1024 * 1024
STREAM_BYTES_A_TOKEN = 1024


class Reading(Protocol):
    """What one wire knows of its answers."""

    @property
    def is_done(self) -> bool:
        """Nothing of interest follows, whatever the connection does."""
        ...

    def take(self, chunk: dict[str, Any]) -> None:
        """One event's object."""
        ...

    def take_whole(self, body: dict[str, Any]) -> None:
        """The object of an answer that is not streamed."""
        ...

    def reply(self) -> ModelReply:
        """Raises ModelFailed if the reply is not complete."""
        ...


class StreamReader:
    """Feeds a wire's reading from network reads of an event stream."""

    def __init__(self, reading: Reading, assembly: Assembly) -> None:
        self._reading, self._assembly = reading, assembly
        self._sse = SseDecoder()
        self._ended = False
        self._size = 0
        self._cap = max(LEAST_STREAM_CAP, assembly.request.max_tokens * STREAM_BYTES_A_TOKEN)

    @property
    def is_done(self) -> bool:
        return self._ended or self._reading.is_done

    def feed(self, data: bytes) -> None:
        """One network read: at most one delta of each kind is heard. Raises ModelFailed."""
        self._size += len(data)
        if self._size > self._cap:
            raise self._assembly.failed("protocol", f"the stream is longer than {self._cap} bytes")
        try:
            events = self._sse.feed(data)
        except SseTooLong as error:
            raise self._assembly.failed("protocol", str(error)) from error
        self._take(events)
        self._assembly.end_read()

    def close(self) -> ModelReply:
        """The bytes have ended. Raises ModelFailed."""
        # An event that was cut off is none: `reply` finds out whether it was needed.
        self._take([event for event in self._sse.finish() if _is_json(event.data)])
        return self._reading.reply()

    def _take(self, events: list[Event]) -> None:
        take = self._reading.take
        try:
            for data, event in events:
                if self._ended or not data:
                    continue
                if data == b"[DONE]":
                    self._ended = True
                    continue
                chunk = _parsed(self._assembly, data)
                if event == b"error" or type(chunk) is not dict or "error" in chunk:
                    refuse_error(self._assembly, chunk, is_error=event == b"error")
                take(chunk)
        except WRONG_SHAPE as error:
            raise misshapen(self._assembly, error) from error


def _parsed(assembly: Assembly, data: bytes) -> Any:
    try:
        return from_json(data)
    except ValueError as error:
        problem: Exception = error
    if b"\\ud" in data or b"\\uD" in data:
        # Some servers cut an escaped pair of surrogates in two: each half becomes a replacement.
        try:
            return from_json(json_bytes(json.loads(data)))  # which is no deeper than any other
        except (ValueError, RecursionError) as error:
            problem = error
    raise malformed(assembly, f"malformed JSON in a stream: {problem}") from problem


def _is_json(data: bytes) -> bool:
    if data == b"[DONE]":
        return True
    try:
        from_json(data)
    except ValueError:
        return False
    return True


def read_whole(body: bytes, reading: Reading, assembly: Assembly) -> ModelReply:
    """The reply of an answer that is one JSON object. Raises ModelFailed."""
    try:
        parsed = from_json(body)
    except ValueError as error:
        raise malformed(assembly, f"malformed JSON: {error}") from error
    refuse_error(assembly, parsed, is_error=False)
    try:
        reading.take_whole(parsed)
    except WRONG_SHAPE as error:
        raise misshapen(assembly, error) from error
    return reading.reply()


def malformed(assembly: Assembly, detail: str) -> ModelFailed:
    """The failure to raise for bytes that are no JSON."""
    failed = assembly.failed("protocol", detail)
    return MalformedReply(failed.provider, failed.detail, started=failed.started)


def refuse_error(assembly: Assembly, chunk: Any, *, is_error: bool) -> None:
    """Raises ModelFailed if this is a provider's error in the clothes of a good answer."""
    if isinstance(chunk, list) and chunk and isinstance(chunk[0], dict):
        is_error = is_error or "error" in chunk[0]
    elif isinstance(chunk, dict):
        is_error = is_error or bool(chunk.get("error"))
    if is_error:
        refusal = read_refusal(chunk)
        said = refusal.message or "an error without an explanation"
        raise assembly.failed(kind_of(refusal, None), said)


def misshapen(assembly: Assembly, error: Exception) -> ModelFailed:
    """A value of another type than the wire promises is the provider's fault, never a crash."""
    return assembly.failed(
        "protocol", f"an answer has another shape than the wire promises ({error})"
    )
