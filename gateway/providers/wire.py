"""The common part of both wires: encoding of requests, and reading of replies from arriving bytes."""

import json
import logging
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Protocol

from pydantic_core import from_json, to_json

from gateway.domain.errors import FailureKind, MalformedReply, ModelFailed, NeverSent
from gateway.domain.messages import (
    BYTES_A_TOKEN,
    Extras,
    ToolCall,
    Usage,
    estimate_tokens,
    text_bytes,
)
from gateway.domain.model import (
    FinishReason,
    ModelReply,
    ModelRequest,
    OnDelta,
    ProviderDef,
    ReplyProgress,
    TextDelta,
    ThinkingDelta,
    ToolSpec,
)
from gateway.domain.ports import MOST_READ
from gateway.providers.failures import kind_of, read_refusal
from gateway.providers.markup import Recovery, choose_calls

log = logging.getLogger(__name__)

MAX_HEADS = 64
MAX_SENT_NAME = 64  # characters of a tool name in a request
_UNSENDABLE = re.compile(r"[^A-Za-z0-9_-]+")


class Encoder(Protocol):
    """Encodes the requests of one wire."""

    @property
    def path(self) -> str: ...

    def headers(self, api_key: str | None) -> Mapping[str, str]: ...

    def body(self, request: ModelRequest) -> bytes: ...

    def adapt(self, refusal: str) -> bool:
        """Learns from a refusal. Returns True if the same request would now be encoded differently."""
        return False


class WireEncoder(Encoder, ABC):
    """Encodes each message once, and the head of a request (all before its messages) once for all calls of
    an agent. A request joins the cached parts."""

    def __init__(self, definition: ProviderDef) -> None:
        self._provider = definition.name
        self._heads: dict[tuple[object, ...], tuple[tuple[ToolSpec, ...], bytes]] = {}

    @abstractmethod
    def encode_head(self, request: ModelRequest) -> bytes:
        """Encodes the part of a request before its messages."""

    def head(self, request: ModelRequest) -> bytes:
        one = request
        key = (one.model, one.max_tokens, one.stream, one.temperature, one.thinking, one.system)
        tools, head = self._heads.get(key, ((), b""))
        if not head or tools != one.tools:  # comparing the tools is faster than hashing them
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            head = self.encode_head(request)
            self._heads[key] = one.tools, head
        return head


def encode_tools(request: ModelRequest, parameters: str) -> list[dict[str, Any]]:
    """Returns the tools of a request; `parameters` is the wire's key for their schema."""
    return [
        {"name": one.name, "description": one.description, parameters: from_json(one.parameters)}
        for one in request.tools
    ]


def sendable_name(name: str) -> str:
    """Returns a tool name that every server accepts. A model can have called an invalid name."""
    return _UNSENDABLE.sub("_", name)[:MAX_SENT_NAME] or "unnamed"


def parsed_object(arguments: str) -> dict[str, Any] | None:
    """Parses the arguments of a call; None if they are not a JSON object."""
    try:
        parsed = from_json(arguments)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def json_bytes(value: object) -> bytes:
    """Encodes compact JSON. A lone surrogate, which UTF-8 cannot encode, becomes a replacement
    character."""
    try:
        return to_json(value)
    except ValueError:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def as_text(value: object) -> str:
    """Returns a string. Raises TypeError for any other value."""
    if not isinstance(value, str):
        raise TypeError(f"expected a string, not {type(value).__name__}")
    return value


EVENT_CAP = 1024 * 1024
MAX_LINES = 10_000  # of an event; they are parsed without a pause for other tasks
_BOM = b"\xef\xbb\xbf"
_NAMED_EVENT = re.compile(rb"event: ([^\n]*)\ndata: ([^\n]*)")

# Data and name. The data stays bytes, because the JSON parser checks the UTF-8.
Event = tuple[bytes, bytes]


@dataclass(slots=True, eq=False)
class SseDecoder:
    """Decodes server-sent events from arriving bytes, however the bytes are split."""

    cap: int = EVENT_CAP
    rest: bytearray = field(default_factory=bytearray)  # the beginning of an incomplete event
    _skip_lf: bool = False

    def feed(self, data: bytes) -> list[Event]:
        """Returns the events that these bytes complete. Raises ValueError for an event longer than
        `cap`."""
        if b"\r" in data or self._skip_lf:
            data = self._only_lf(data)
        rest, seam = self.rest, max(len(self.rest) - 1, 0)
        rest += data
        blocks: list[bytes] = []
        if rest.find(b"\n\n", seam) >= 0:
            *blocks, rest[:] = bytes(rest).split(b"\n\n")
        if max(map(len, (rest, *blocks))) > self.cap:
            raise ValueError(f"an event is longer than {self.cap} bytes")
        events: list[Event] = []
        for block in blocks:
            if block[:6] == b"data: " and b"\n" not in block:
                events.append((block[6:], b""))
            elif named := _NAMED_EVENT.fullmatch(block):
                events.append((named[2], named[1]))
            elif b"data" in block:
                events += _event(block)
        return events

    def _only_lf(self, data: bytes) -> bytes:
        """Replaces CR and CRLF by LF, also a CRLF that was split between two reads."""
        if self._skip_lf and data[:1] == b"\n":
            data = data[1:]
        self._skip_lf = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _event(block: bytes) -> Iterator[Event]:
    """Parses an event in any valid form; yields nothing if it has no data. Raises ValueError."""
    if block.count(b"\n") > MAX_LINES:
        raise ValueError(f"an event has more than {MAX_LINES} lines")
    name, data = b"", list[bytes]()
    for line in block.removeprefix(_BOM).split(b"\n"):
        field, _, value = line.partition(b":")  # a comment has no field name
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    if data:
        yield b"\n".join(data), name


# Bounds of a reply. It may be longer than max_tokens, because servers count tokens differently.
CHARACTERS_A_TOKEN = 64
MIN_CAP = 1024 * 1024
WHOLE_CAP = 4 * 1024 * 1024
# Bytes of a whole answer: for links and signatures, and for each byte of output. Escapes take six
# bytes, and some servers send thinking twice.
WHOLE_ENVELOPE, WHOLE_SWELL = 256 * 1024, 12
# Counted for each call and each other part, so that many empty ones reach the bound too.
CALL_COST = 1024
PART_COST = 16
# Servers accept tool names of 64 characters. An id may hold a signature; a longer one is replaced.
MAX_NAME, MAX_ID = 256, 16_384
# Deltas that are emitted as they arrive; later ones are joined to larger pieces.
DELTAS_A_TOKEN = 4
MIN_DELTAS = 1000
FLOOD_PIECE = 4096
# Tokens that a provider may count although they are not visible (its own prompts, hidden thinking).
HIDDEN_INPUT = 200_000
HIDDEN_OUTPUT = 200_000
# The search for tool markup: characters of a piece, the cost of a parser step in characters, and the
# characters (about two milliseconds) after which other tasks run.
RECOVERED_PIECE, STEP_COST, RECOVERED_AT_ONCE = 1024, 64, 32 * 1024
MAX_USD = 10_000  # for one call; a higher reported cost is an error
WRONG_SHAPE = (AttributeError, TypeError, KeyError, ValueError)
# Bounds of a stream with everything around its text: JSON of each token, comments, empty lines.
MIN_STREAM_CAP = 64 * 1024 * 1024
STREAM_BYTES_A_TOKEN = 1024
_PLAIN_TEXT = re.compile(rb"[ !#-\[\]-~]+")  # JSON text without escapes
# The decoding of an answer uses these headers only, and the journal records them.
RECORDED_HEADERS = ("content-type", "content-encoding", "retry-after", "retry-after-ms")


@dataclass(slots=True, eq=False)
class CallDraft:
    """A tool call that is still arriving."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra: object = None  # opaque; sent back to the same provider
    is_recovered: bool = False  # found in the text; kept even if broken, so that the model sees it

    def is_begun(self) -> bool:
        return bool(self.name or self.arguments or self.id)

    def is_whole(self) -> bool:
        """True if the arguments so far are a complete JSON object."""
        return self.is_recovered or parsed_object("".join(self.arguments)) is not None


class ReplyReader(ABC):
    """Reads one answer into a reply; a subclass implements a wire.

    `on_delta` gets text and thinking once per network read, less often in a flood. `recovers`: calls in the
    text count, and `on_delta` gets no markup.
    """

    started = False  # text was emitted, so the call cannot be repeated
    has_ended = False  # the rest of the answer has no content
    is_recorded = False  # the end of the answer is in the journal
    unyielded = 0  # bytes since other tasks could run
    finish: FinishReason | None = None  # None: the reply is not complete
    finish_at_end: FinishReason | None = None  # of a stream that ends with `[DONE]` and no reason
    refused = False  # the model refused to answer
    reply_id = ""  # from the provider
    # The bytes around the text of an event that has nothing else, once known. An event that differs in
    # its text only is read without a JSON parser.
    around_text: tuple[bytes, bytes] | None = None
    _size = _emitted_size = 0
    _overhead = 0  # size of the reply beside its text

    def __init__(
        self,
        request: ModelRequest,
        on_delta: OnDelta,
        scrub: Callable[[str], str],
        sent_bytes: int,
        *,
        recovers: bool = False,
    ) -> None:
        self.request, self.provider = request, request.provider
        self.progress = request.progress or ReplyProgress()
        self.calls: list[CallDraft] = []
        self._on_delta, self._scrub, self._sent_bytes = on_delta, scrub, sent_bytes
        self._record = request.record
        self._sse = SseDecoder()
        self._stream_cap = max(MIN_STREAM_CAP, request.max_tokens * STREAM_BYTES_A_TOKEN)
        self._cap = max(MIN_CAP, request.max_tokens * CHARACTERS_A_TOKEN)
        self._deltas_left = request.max_tokens * DELTAS_A_TOKEN + MIN_DELTAS
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._new_text: list[str] = []  # not emitted yet
        self._new_thinking: list[str] = []
        self.texts, self.thoughts = self._new_text, self._new_thinking
        self.recovers = recovers and bool(request.tools)
        if self.recovers:
            self.texts, self.thoughts = [], []  # not searched for calls yet
            self._text_recovery = Recovery(request.tools)
            self._thinking_recovery = Recovery(request.tools, is_thought=True)
        self.prepare()

    # Implemented by a wire.

    @abstractmethod
    def prepare(self) -> None:
        """Initialises the state of the wire."""

    @abstractmethod
    def read_event(self, chunk: dict[str, Any], data: bytes) -> None:
        """Reads an event: its object and its bytes."""

    @abstractmethod
    def read_body(self, body: dict[str, Any]) -> None:
        """Reads the object of an answer that is not streamed."""

    @abstractmethod
    def usage(self) -> Usage | None: ...

    @abstractmethod
    def extras(self, calls: tuple[ToolCall, ...]) -> object:
        """Returns the opaque data to keep with a reply for its provider; false if there is none."""

    # From bytes to a reply.

    def feed(self, data: bytes) -> bool:
        """Reads the bytes of a network read of a stream. False: the stream has ended, or other tasks should
        run before the next read. Raises ModelFailed."""
        if self._record is not None:
            self._record("bytes", data)
        self._size += len(data)
        self.unyielded += len(data)
        if self._size > self._stream_cap:
            raise self.failure("protocol", f"the stream is longer than {self._stream_cap} bytes")
        self._read_events(data)
        if self.recovers or self.progress.size > self.progress.most:
            return False
        self.emit()
        return not self.has_ended and self.unyielded < MOST_READ

    def close(self) -> ModelReply:
        """Ends a stream and returns its reply. Raises ModelFailed."""
        if self._sse.rest:
            self._read_events(b"\n\n", is_cut=True)
        return self.reply()

    def read_whole(self, body: bytes) -> None:
        """Reads an answer that is one JSON object, or its beginning if it is longer than the cap. Raises
        ModelFailed."""
        cap = self.whole_cap
        is_cut = len(body) > cap
        try:
            parsed = from_json(body, allow_partial="trailing-strings" if is_cut else False)
        except ValueError as error:
            raise self._malformed("malformed JSON", error) from error
        self._raise_error(parsed, is_error=False)
        try:
            self.read_body(parsed)
        except WRONG_SHAPE as error:
            raise self._wrong_shape(error) from error
        if is_cut and not self.is_overrun:
            raise self.failure("protocol", f"the answer is longer than {cap} bytes")
        self.grow(0)

    def _read_events(self, received: bytes, *, is_cut: bool = False) -> None:
        """`is_cut`: invalid JSON is the cut-off end of the stream; `reply` checks if it was needed."""
        progress, most = self.progress, min(self.progress.most, self._cap)
        try:
            for data, event in self._sse.feed(received):
                if self.has_ended:
                    break
                around, plain = self.around_text, None
                if around and event != b"error" and data.startswith(around[0]):
                    end = len(data) - len(around[1])
                    plain = data.endswith(around[1]) and _PLAIN_TEXT.fullmatch(
                        data, len(around[0]), end
                    )
                if plain:
                    text = plain[0].decode()
                    progress.size += len(text)
                    self.texts.append(text)
                else:
                    self.read_event(self._parse(data, event, is_cut=is_cut), data)
                if progress.size > most:  # the reservation, or the bound of a reply
                    self.has_ended = self.is_overrun
                    self.grow(0)
        except WRONG_SHAPE as error:
            raise self._wrong_shape(error) from error

    def _parse(self, data: bytes, event: bytes, *, is_cut: bool) -> Any:
        """Parses an event. Raises ModelFailed for a provider's error and for invalid JSON."""
        if not data or data == b"[DONE]":
            self.has_ended = bool(data)
            self.finish = self.finish or (self.finish_at_end if data else None)
            return {}
        try:
            chunk = from_json(data)
        except ValueError as error:
            if is_cut:
                return {}
            chunk = self._with_surrogates(data, error)
        if event == b"error" or type(chunk) is not dict or "error" in chunk:
            self._raise_error(chunk, is_error=event == b"error")
        return chunk

    def _with_surrogates(self, data: bytes, problem: ValueError) -> Any:
        if b"\\ud" in data or b"\\uD" in data:
            # Some servers split an escaped surrogate pair; each half becomes a replacement character.
            with suppress(ValueError, RecursionError):
                return from_json(json_bytes(json.loads(data)))  # from_json limits the depth
        raise self._malformed("malformed JSON in a stream", problem) from problem

    # From pieces to a reply.

    def add_text(self, text: str) -> None:
        self._add(text, self.texts)

    def add_thinking(self, text: str) -> None:
        self._add(text, self.thoughts)

    def _add(self, text: str, into: list[str]) -> None:
        if as_text(text):
            self.progress.size += text_bytes(text)
            into.append(text)

    @property
    def is_overrun(self) -> bool:
        """True if the reply is longer than its reservation; then reading stops."""
        return self.progress.size > self.progress.most

    @property
    def whole_cap(self) -> int:
        """Returns the bytes of a whole answer to read; more would exceed the reservation."""
        return min(WHOLE_CAP, WHOLE_ENVELOPE + WHOLE_SWELL * self.progress.most)

    def begin_call(self, id: str = "") -> CallDraft:
        self.grow(CALL_COST)
        self.calls.append(CallDraft(id))
        return self.calls[-1]

    def add(self, draft: CallDraft, name: str, piece: str = "") -> None:
        """Adds a piece to a call. Names are not joined, because some servers repeat the name in every
        piece."""
        new = "" if draft.name else as_text(name)
        self.progress.size += text_bytes(new) + text_bytes(as_text(piece))
        self.grow(len(new) + len(piece))
        draft.name = draft.name or name
        if piece:
            draft.arguments.append(piece)

    def count(self, usage: Usage | None) -> None:
        """Keeps the usage that the provider reports before the end, if it is plausible."""
        if usage is not None and 0 < usage.input_tokens <= self._sent_bytes + HIDDEN_INPUT:
            self.progress.reported = usage

    def grow(self, size: int) -> None:
        """Counts size beside the text. Raises ModelFailed for a reply beyond the bound, unless it exceeds
        its reservation: then the reply is cut off."""
        self._overhead += size
        if self.progress.size + self._overhead > self._cap and not self.is_overrun:
            raise self.failure("protocol", f"the reply is longer than {self._cap} bytes")

    def recover(self) -> Iterator[None]:
        """Searches the new text for calls. Yields where other tasks should run."""
        size = 0
        for recovery, pieces, shown in (
            (self._text_recovery, self.texts, self._new_text),
            (self._thinking_recovery, self.thoughts, self._new_thinking),
        ):
            text = "".join(pieces)
            pieces.clear()
            for start in range(0, len(text), RECOVERED_PIECE):
                before = recovery.steps
                shown.append(recovery.feed(text[start : start + RECOVERED_PIECE]))
                size += RECOVERED_PIECE + (recovery.steps - before) * STEP_COST
                if size > RECOVERED_AT_ONCE:
                    size = 0
                    yield

    def emit(self, *, is_end: bool = False) -> None:
        """Passes new output to `on_delta`, at most one delta of thinking and one of text. In a flood it waits for
        FLOOD_PIECE bytes."""
        size = self.progress.size
        if self._deltas_left <= 0 and size - self._emitted_size < FLOOD_PIECE and not is_end:
            return
        self._emitted_size = size
        if thinking := "".join(self._new_thinking):
            self._new_thinking.clear()
            self._thinking.append(thinking)
            self._deltas_left -= 1
            self._on_delta(ThinkingDelta(thinking))
        if text := "".join(self._new_text):
            self._new_text.clear()
            self._text.append(text)
            self._deltas_left -= 1
            self.started = True
            self._on_delta(TextDelta(text))

    def end(self, how: str, detail: str = "") -> None:
        """Records how the answer ended; only the first call counts."""
        if self._record is not None and not self.is_recorded:
            self._record("end", how, detail)
        self.is_recorded = True

    def failure(self, kind: FailureKind, detail: str, *, sent: bool = True) -> ModelFailed:
        """Returns the exception to raise. Emits the rest if text was emitted before; else emits nothing, so
        that the call can be repeated."""
        if self.started:
            self._emit_rest()
        detail = self._scrub(detail)
        if not sent:
            return NeverSent(self.provider, kind, detail)
        return ModelFailed(self.provider, kind, detail, started=self.started)

    def reply(self) -> ModelReply:
        """Returns the complete reply. An overrun has its text but no calls, because they may be
        incomplete. Raises ModelFailed."""
        finish = "overrun" if self.is_overrun else self.finish
        if finish == "stop" and self.refused:
            finish = "refusal"
        if finish is None:
            raise self.failure("truncated", "the stream ended before the reply was complete")
        self._emit_rest()
        text, thinking = "".join(self._text), "".join(self._thinking)
        calls: tuple[ToolCall, ...] = ()
        extras = None
        if finish != "overrun":
            calls = self._finished_calls(finish, text)
            if opaque := self.extras(calls):
                extras = Extras(self.provider, json_bytes(opaque).decode())
                self.grow(len(extras.json))  # sent again with every request
        if finish in {"stop", "tool_calls"}:  # some servers say "stop" with calls
            finish = "tool_calls" if calls else "stop"
        return ModelReply(
            provider=self.provider,
            model=self.request.model,
            text=text,
            thinking=thinking,
            tool_calls=calls,
            usage=self._plausible(self.usage(), text, thinking, calls),
            finish=finish,
            extras=extras,
        )

    def _emit_rest(self) -> None:
        """Emits the rest at the end, with the text that was held back as possible markup."""
        if self.recovers:
            deque(self.recover(), maxlen=0)
            self._new_text.append(self._text_recovery.finish())
            self._new_thinking.append(self._thinking_recovery.finish())
        if self.is_overrun:  # emits no more than was reserved, also if all of it came at once
            room = self.progress.most
            for pieces in (self._new_thinking, self._new_text):
                kept = "".join(pieces).encode()[:room]
                pieces[:] = [kept.decode(errors="ignore")] if kept else []
                room -= len(kept)
        if self._new_text or self._new_thinking:
            self.emit(is_end=True)

    def _finished_calls(self, finish: FinishReason, answer: str) -> tuple[ToolCall, ...]:
        drafts = self.calls = [*filter(CallDraft.is_begun, self.calls)]
        if self.recovers and not drafts:
            self._find_calls(answer)
        if finish == "length":
            drafts[-1:] = [draft for draft in drafts[-1:] if draft.is_whole()]
        calls: dict[str, ToolCall] = {}
        for place, draft in enumerate(drafts):
            draft.name = draft.name[:MAX_NAME]  # no tool has a longer name, so the call fails
            arguments = "".join(draft.arguments).strip() or "{}"
            if not 0 < len(draft.id) <= MAX_ID or draft.id in calls:
                draft.id = _generate_id(self.reply_id, place, draft.name, arguments)
            calls[draft.id] = ToolCall(draft.id, draft.name, arguments)
        return tuple(calls.values())

    def _find_calls(self, answer: str) -> None:
        """Adds the calls in the text or thinking; they count if the wire had none."""
        found = choose_calls(self._text_recovery, self._thinking_recovery, answer)
        for name, arguments, _ in found:
            draft = self.begin_call()
            self.add(draft, name)
            draft.arguments.append(arguments)  # counted already, as text
            draft.is_recovered = True
            log.info("tool_call_recovered", extra={"provider": self.provider, "tool": name})

    def _plausible(
        self, reported: Usage | None, text: str, thinking: str, calls: tuple[ToolCall, ...]
    ) -> Usage:
        """Returns the usage from the provider where it is plausible, else an estimate marked as one."""
        called = "".join([call.name + call.arguments for call in calls]) if calls else ""
        reported = reported or Usage(-1, -1)
        visible = len(text) + len(thinking) + len(called)
        most_output = 4 * visible + max(HIDDEN_OUTPUT, 4 * self.request.max_tokens)
        input_is_sane = 0 < reported.input_tokens <= self._sent_bytes + HIDDEN_INPUT
        output_is_sane = min(1, visible) <= reported.output_tokens <= most_output
        if input_is_sane and output_is_sane:
            return reported
        if not input_is_sane:
            sent = int(self._sent_bytes / BYTES_A_TOKEN) + 1
            reported = replace(reported, input_tokens=sent, cached_tokens=0, written_tokens=0)
        if not output_is_sane:
            output = sum(map(estimate_tokens, (text, thinking, called)))
            reported = replace(reported, output_tokens=output)
        return replace(reported, reasoning_tokens=0, estimated=True)

    # Invalid answers.

    def _malformed(self, what: str, error: Exception) -> ModelFailed:
        failed = self.failure("protocol", f"{what}: {error}")
        return MalformedReply(failed.provider, failed.detail, started=failed.started)

    def _wrong_shape(self, error: Exception) -> ModelFailed:
        """Returns the failure for a value of an unexpected type."""
        return self.failure("protocol", f"the answer has an unexpected structure ({error})")

    def _raise_error(self, chunk: Any, *, is_error: bool) -> None:
        """Raises ModelFailed if an answer with status 200 has a provider's error."""
        if isinstance(chunk, list) and chunk and isinstance(chunk[0], dict):
            is_error = is_error or "error" in chunk[0]
        elif isinstance(chunk, dict):
            is_error = is_error or bool(chunk.get("error"))
        if is_error:
            refusal = read_refusal(chunk)
            message = refusal.message or "an error without an explanation"
            raise self.failure(kind_of(refusal, None), message)


def _generate_id(reply_id: str, place: int, name: str, arguments: str) -> str:
    """Returns an id for a call without one, equal for equal bytes."""
    seed = "\x00".join((reply_id, str(place), name, arguments)).encode("utf-8", "replace")
    return "call_" + blake2b(seed, digest_size=10).hexdigest()


def count_in(reported: object, name: str, otherwise: int = 0) -> int:
    """Returns a token count from an object; `otherwise` if it is missing or invalid."""
    count = reported.get(name) if isinstance(reported, dict) else None
    return count if type(count) is int and count >= 0 else otherwise


def cost(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_USD else None
