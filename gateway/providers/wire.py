"""What both wires share: how a request is encoded, and how a reply is read out of bytes as they arrive."""

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
from gateway.providers.markup import Recovery, counted

log = logging.getLogger(__name__)

MOST_HEADS = 64
LONGEST_SENT = 64  # characters of a tool's name
_UNSENDABLE = re.compile(r"[^A-Za-z0-9_-]+")


class Encoder(Protocol):
    """What one wire knows of its requests."""

    @property
    def path(self) -> str: ...

    def headers(self, api_key: str | None) -> Mapping[str, str]: ...

    def body(self, request: ModelRequest) -> bytes: ...

    def adapt(self, refusal: str) -> bool:
        """Whether, after these words, the same request would be encoded in another way."""
        return False


class WireEncoder(Encoder, ABC):
    """Encodes a message once in its life, and the head of a request (all before its messages) once for
    all calls of an agent. A request joins what is kept."""

    def __init__(self, definition: ProviderDef) -> None:
        self._provider = definition.name
        self._heads: dict[tuple[object, ...], tuple[tuple[ToolSpec, ...], bytes]] = {}

    @abstractmethod
    def encode_head(self, request: ModelRequest) -> bytes:
        """All of a request before its messages."""

    def head(self, request: ModelRequest) -> bytes:
        one = request
        key = (one.model, one.max_tokens, one.stream, one.temperature, one.thinking, one.system)
        tools, head = self._heads.get(key, ((), b""))
        if not head or tools != one.tools:  # tools are compared: to hash each takes longer
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            head = self.encode_head(request)
            self._heads[key] = one.tools, head
        return head


def tools_of(request: ModelRequest, parameters: str) -> list[dict[str, Any]]:
    """The tools that a request offers; `parameters` is what a wire calls their schema."""
    return [
        {"name": one.name, "description": one.description, parameters: from_json(one.parameters)}
        for one in request.tools
    ]


def sendable_name(name: str) -> str:
    """The name of a call as every server takes it: a model may have called what no tool is named."""
    return _UNSENDABLE.sub("_", name)[:LONGEST_SENT] or "unnamed"


def parsed_object(arguments: str) -> dict[str, Any] | None:
    """A call's arguments as an object; None if they are none."""
    try:
        parsed = from_json(arguments)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def json_bytes(value: object) -> bytes:
    """Compact JSON. A lone surrogate, which no wire can carry, becomes a replacement character."""
    try:
        return to_json(value)
    except ValueError:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def as_text(value: object) -> str:
    """Raises TypeError for what is no text."""
    if not isinstance(value, str):
        raise TypeError("something that should be text is none")
    return value


EVENT_CAP = 1024 * 1024
MOST_LINES = 10_000  # of an event: they are read one by one, while everybody else waits
_BOM = b"\xef\xbb\xbf"
_NAMED_EVENT = re.compile(rb"event: ([^\n]*)\ndata: ([^\n]*)")

# Data and name. The data stays bytes: the parser checks the UTF-8 on the way.
Event = tuple[bytes, bytes]


@dataclass(slots=True, eq=False)
class SseDecoder:
    """Takes bytes as they arrive; the same bytes cut in any other way give the same events."""

    cap: int = EVENT_CAP
    rest: bytearray = field(default_factory=bytearray)  # an event whose end has not come
    _skip_lf: bool = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete. Raises ValueError for one that is longer than
        anything that a provider honestly sends."""
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
        """CR and CRLF become LF, also where a CRLF was cut in the middle."""
        if self._skip_lf and data[:1] == b"\n":
            data = data[1:]
        self._skip_lf = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _event(block: bytes) -> Iterator[Event]:
    """An event that is written in any way; none if it has no data. Raises ValueError."""
    if block.count(b"\n") > MOST_LINES:
        raise ValueError(f"an event has more than {MOST_LINES} lines")
    name, data = b"", list[bytes]()
    for line in block.removeprefix(_BOM).split(b"\n"):
        field, _, value = line.partition(b":")  # a comment has no name
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    if data:
        yield b"\n".join(data), name


# A reply may be longer than what was asked for (servers count differently), but not boundless.
CHARACTERS_A_TOKEN = 64
LEAST_CAP = 1024 * 1024
WHOLE_CAP = 4 * 1024 * 1024
# What a whole answer may take besides its output: links, signatures. And a byte of output in JSON:
# six if it is escaped, and some say their thinking twice.
WHOLE_ENVELOPE, WHOLE_SWELL = 256 * 1024, 12
# What a call, or any other part, takes of that besides its text: a million empty ones end too.
CALL_COST = 1024
PART_COST = 16
# Servers take tools' names of 64. In an id some hide a signature; one that is longer we replace.
LONGEST_NAME, LONGEST_ID = 256, 16_384
# So many deltas of a reply are emitted as they come; the rest of a flood in larger pieces.
DELTAS_A_TOKEN = 4
LEAST_DELTAS = 1000
FLOOD_PIECE = 4096
# Tokens that a provider may count though we neither sent nor saw them (own prompts, hidden thought).
HIDDEN_INPUT = 200_000
HIDDEN_OUTPUT = 200_000
# Tool markup is looked for in pieces of so many characters. A step takes as long as so many that
# nothing begins with; after so many of these (about two milliseconds) others have their turn.
RECOVERED_PIECE, STEP_COST, RECOVERED_AT_ONCE = 1024, 64, 32 * 1024
MOST_USD = 10_000  # for one call; a provider that reports more is mistaken
WRONG_SHAPE = (AttributeError, TypeError, KeyError, ValueError)
# A stream with all that is not text: names and braces around each token, comments, empty lines.
LEAST_STREAM_CAP = 64 * 1024 * 1024
STREAM_BYTES_A_TOKEN = 1024
_PLAIN_TEXT = re.compile(rb"[ !#-\[\]-~]+")  # what stands in JSON as it is
# What the decoding of an answer looks at, and nothing else, is known and recorded of its head.
RECORDED_HEADERS = ("content-type", "content-encoding", "retry-after", "retry-after-ms")


class CallDraft:
    """A tool call of which more may come."""

    def __init__(self, id: str = "") -> None:
        self.id, self.name = id, ""
        self.arguments: list[str] = []
        self.extra: object = None  # opaque, goes back to the same provider
        # Found in the text. A broken one stays, so that the model learns of it.
        self.is_recovered = False

    def is_begun(self) -> bool:
        return bool(self.name or self.arguments or self.id)

    def is_whole(self) -> bool:
        """Whether the arguments so far are one complete JSON object."""
        return self.is_recovered or parsed_object("".join(self.arguments)) is not None


class ReplyReader(ABC):
    """Reads one answer into a reply; a subclass knows a wire. `on_delta` gets text and thinking once a
    network read, less often in a flood. `started`: text was emitted, so the call cannot be repeated;
    thinking alone can. `recovers`: calls in the text are calls too, and `on_delta` gets no markup."""

    started = False
    has_ended = False  # nothing of interest follows, whatever the connection does
    is_recorded = False  # how it ended
    unyielded = 0  # bytes since others had their turn
    finish: FinishReason | None = None  # None: it is not complete
    finish_at_end: FinishReason | None = None  # of a stream that ends with `[DONE]` and no reason
    refused = False  # to answer, in words of the model's own
    reply_id = ""  # the provider's
    # The bytes around the text of an event that has nothing else, once they are known. Events that
    # differ in their text alone need no parser.
    around_text: tuple[bytes, bytes] | None = None
    _size = _emitted_size = 0
    _overhead = 0  # what a reply takes beside its text

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
        self._stream_cap = max(LEAST_STREAM_CAP, request.max_tokens * STREAM_BYTES_A_TOKEN)
        self._cap = max(LEAST_CAP, request.max_tokens * CHARACTERS_A_TOKEN)
        self._deltas_left = request.max_tokens * DELTAS_A_TOKEN + LEAST_DELTAS
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._new_text: list[str] = []  # not emitted yet
        self._new_thinking: list[str] = []
        self.texts, self.thoughts = self._new_text, self._new_thinking
        self.recovers = recovers and bool(request.tools)
        if self.recovers:
            self.texts, self.thoughts = [], []  # in which calls may stand
            self._text_recovery = Recovery(request.tools)
            self._thinking_recovery = Recovery(request.tools, is_thought=True)
        self.prepare()

    # What a wire knows of its answers.

    @abstractmethod
    def prepare(self) -> None:
        """Before anything has come."""

    @abstractmethod
    def read_event(self, chunk: dict[str, Any], data: bytes) -> None:
        """One event's object, and the bytes of it."""

    @abstractmethod
    def read_body(self, body: dict[str, Any]) -> None:
        """The object of an answer that is not streamed."""

    @abstractmethod
    def usage(self) -> Usage | None: ...

    @abstractmethod
    def extras(self, calls: tuple[ToolCall, ...]) -> object:
        """What has to be kept of a reply with these calls, for its provider alone; false: nothing."""

    # From bytes to a reply.

    def feed(self, data: bytes) -> bool:
        """A network read of a stream. False: it has ended, or others should have their turn before
        more is read. Raises ModelFailed."""
        if self._record is not None:
            self._record("bytes", data)
        self._size += len(data)
        self.unyielded += len(data)
        if self._size > self._stream_cap:
            raise self.failed("protocol", f"the stream is longer than {self._stream_cap} bytes")
        self._read_events(data)
        if self.recovers or self.progress.size > self.progress.most:
            return False
        self.emit()
        return not self.has_ended and self.unyielded < MOST_READ

    def close(self) -> ModelReply:
        """The bytes of a stream have ended. Raises ModelFailed."""
        if self._sse.rest:
            self._read_events(b"\n\n", is_cut=True)
        return self.reply()

    def read_whole(self, body: bytes) -> None:
        """An answer that is one JSON object; of one beyond the cap it is the beginning. Raises
        ModelFailed."""
        cap = self.whole_cap
        is_cut = len(body) > cap
        try:
            parsed = from_json(body, allow_partial="trailing-strings" if is_cut else False)
        except ValueError as error:
            raise self._malformed("malformed JSON", error) from error
        self._refuse_error(parsed, is_error=False)
        try:
            self.read_body(parsed)
        except WRONG_SHAPE as error:
            raise self._misshapen(error) from error
        if is_cut and not self.is_overrun:
            raise self.failed("protocol", f"the answer is longer than {cap} bytes")
        self.grow(0)

    def _read_events(self, came: bytes, *, is_cut: bool = False) -> None:
        """`is_cut`: an event that is no JSON was cut off; `reply` finds out whether it was needed."""
        progress, most = self.progress, min(self.progress.most, self._cap)
        try:
            for data, event in self._sse.feed(came):
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
                    self.read_event(self._parsed(data, event, is_cut=is_cut), data)
                if progress.size > most:  # than was reserved, or than any reply
                    self.has_ended = self.is_overrun
                    self.grow(0)
        except WRONG_SHAPE as error:
            raise self._misshapen(error) from error

    def _parsed(self, data: bytes, event: bytes, *, is_cut: bool) -> Any:
        """An event's object. Raises ModelFailed for an error, and for what is no JSON."""
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
            self._refuse_error(chunk, is_error=event == b"error")
        return chunk

    def _with_surrogates(self, data: bytes, problem: ValueError) -> Any:
        if b"\\ud" in data or b"\\uD" in data:
            # Some servers cut an escaped pair of surrogates in two: each becomes a replacement.
            with suppress(ValueError, RecursionError):
                return from_json(json_bytes(json.loads(data)))  # which is no deeper than any other
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
        """Whether it is longer than what was reserved: then it is not read any further."""
        return self.progress.size > self.progress.most

    @property
    def whole_cap(self) -> int:
        """How many bytes of a whole answer are read: more are more output than was reserved."""
        return min(WHOLE_CAP, WHOLE_ENVELOPE + WHOLE_SWELL * self.progress.most)

    def begin_call(self, id: str = "") -> CallDraft:
        self.grow(CALL_COST)
        self.calls.append(CallDraft(id))
        return self.calls[-1]

    def add(self, draft: CallDraft, name: str, piece: str = "") -> None:
        """More of a call. Some servers repeat its name in every piece: names are never joined."""
        new = "" if draft.name else as_text(name)
        self.progress.size += text_bytes(new) + text_bytes(as_text(piece))
        self.grow(len(new) + len(piece))
        draft.name = draft.name or name
        if piece:
            draft.arguments.append(piece)

    def count(self, usage: Usage | None) -> None:
        """What the provider reported of its usage before the end, if it can be believed."""
        if usage is not None and 0 < usage.input_tokens <= self._sent_bytes + HIDDEN_INPUT:
            self.progress.reported = usage

    def grow(self, size: int) -> None:
        """Counts what a reply takes beside its text; raises ModelFailed for one without an end, unless
        it is longer than what was reserved: then it is cut off."""
        self._overhead += size
        if self.progress.size + self._overhead > self._cap and not self.is_overrun:
            raise self.failed("protocol", f"the reply is longer than {self._cap} bytes")

    def recover(self) -> Iterator[None]:
        """Looks for calls in what came. It stops wherever others should have their turn."""
        size = 0
        for recovery, came, shown in (
            (self._text_recovery, self.texts, self._new_text),
            (self._thinking_recovery, self.thoughts, self._new_thinking),
        ):
            text = "".join(came)
            came.clear()
            for start in range(0, len(text), RECOVERED_PIECE):
                before = recovery.steps
                shown.append(recovery.feed(text[start : start + RECOVERED_PIECE]))
                size += RECOVERED_PIECE + (recovery.steps - before) * STEP_COST
                if size > RECOVERED_AT_ONCE:
                    size = 0
                    yield

    def emit(self, *, is_end: bool = False) -> None:
        """Passes what is new to `on_delta`: one delta of thinking and one of text at most. In a flood it
        waits until there is enough for a delta."""
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
        """Records how the answer ended: first come."""
        if self._record is not None and not self.is_recorded:
            self._record("end", how, detail)
        self.is_recorded = True

    def failed(self, kind: FailureKind, detail: str, *, sent: bool = True) -> ModelFailed:
        """The failure to raise. If no text was emitted the rest is not either, so that the call can be
        repeated; otherwise all that came is emitted."""
        if self.started:
            self._emit_rest()
        detail = self._scrub(detail)
        if not sent:
            return NeverSent(self.provider, kind, detail)
        return ModelFailed(self.provider, kind, detail, started=self.started)

    def reply(self) -> ModelReply:
        """The complete reply; or the text of an overrun, without its calls, for they may not be
        complete. Raises ModelFailed."""
        finish = "overrun" if self.is_overrun else self.finish
        if finish == "stop" and self.refused:
            finish = "refusal"
        if finish is None:
            raise self.failed("truncated", "the stream ended before the reply was complete")
        self._emit_rest()
        text, thinking = "".join(self._text), "".join(self._thinking)
        calls: tuple[ToolCall, ...] = ()
        extras = None
        if finish != "overrun":
            calls = self._finished_calls(finish, text)
            if opaque := self.extras(calls):
                extras = Extras(self.provider, json_bytes(opaque).decode())
                self.grow(len(extras.json))  # it is sent again with every request
        if finish in {"stop", "tool_calls"}:  # some servers say "stop" all the same
            finish = "tool_calls" if calls else "stop"
        return ModelReply(
            provider=self.provider,
            model=self.request.model,
            text=text,
            thinking=thinking,
            tool_calls=calls,
            usage=self._believed(self.usage(), text, thinking, calls),
            finish=finish,
            extras=extras,
        )

    def _emit_rest(self) -> None:
        """At the end: what was held back because it might have been markup is emitted too."""
        if self.recovers:
            deque(self.recover(), maxlen=0)
            self._new_text.append(self._text_recovery.finish())
            self._new_thinking.append(self._thinking_recovery.finish())
        if self.is_overrun:  # it may have come at once: no more is emitted than was reserved
            room = self.progress.most
            for unheard in (self._new_thinking, self._new_text):
                kept = "".join(unheard).encode()[:room]
                unheard[:] = [kept.decode(errors="ignore")] if kept else []
                room -= len(kept)
        if self._new_text or self._new_thinking:
            self.emit(is_end=True)

    def _finished_calls(self, finish: FinishReason, answer: str) -> tuple[ToolCall, ...]:
        drafts = self.calls = [*filter(CallDraft.is_begun, self.calls)]
        if self.recovers and not drafts:
            self._find_calls(answer)
        if finish == "length":
            drafts[-1:] = [draft for draft in drafts[-1:] if draft.is_whole()]  # else cut off
        calls: dict[str, ToolCall] = {}
        for place, draft in enumerate(drafts):
            draft.name = draft.name[:LONGEST_NAME]  # no tool has one so long: its result says so
            arguments = "".join(draft.arguments).strip() or "{}"
            if not 0 < len(draft.id) <= LONGEST_ID or draft.id in calls:
                draft.id = _made_up_id(self.reply_id, place, draft.name, arguments)
            calls[draft.id] = ToolCall(draft.id, draft.name, arguments)
        return tuple(calls.values())

    def _find_calls(self, answer: str) -> None:
        """Calls that stand in the text or the thinking: they count if the wire brought none."""
        for name, arguments, _ in counted(self._text_recovery, self._thinking_recovery, answer):
            draft = self.begin_call()
            self.add(draft, name)
            draft.arguments.append(arguments)  # which came as text
            draft.is_recovered = True
            log.info("tool_call_recovered", extra={"provider": self.provider, "tool": name})

    def _believed(
        self, reported: Usage | None, text: str, thinking: str, calls: tuple[ToolCall, ...]
    ) -> Usage:
        """What the provider counted where it can be believed, else an estimate that says so."""
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
            came = sum(map(estimate_tokens, (text, thinking, called)))
            reported = replace(reported, output_tokens=came)
        return replace(reported, reasoning_tokens=0, estimated=True)

    # What no reply can be made of.

    def _malformed(self, what: str, error: Exception) -> ModelFailed:
        failed = self.failed("protocol", f"{what}: {error}")
        return MalformedReply(failed.provider, failed.detail, started=failed.started)

    def _misshapen(self, error: Exception) -> ModelFailed:
        """A value of another type than the wire promises is the provider's fault, never a crash."""
        detail = f"an answer has another shape than the wire promises ({error})"
        return self.failed("protocol", detail)

    def _refuse_error(self, chunk: Any, *, is_error: bool) -> None:
        """Raises ModelFailed if a good answer holds a provider's error."""
        if isinstance(chunk, list) and chunk and isinstance(chunk[0], dict):
            is_error = is_error or "error" in chunk[0]
        elif isinstance(chunk, dict):
            is_error = is_error or bool(chunk.get("error"))
        if is_error:
            refusal = read_refusal(chunk)
            said = refusal.message or "an error without an explanation"
            raise self.failed(kind_of(refusal, None), said)


def _made_up_id(reply_id: str, place: int, name: str, arguments: str) -> str:
    """An id for a call that came without one: the same bytes give the same id, others another."""
    seed = "\x00".join((reply_id, str(place), name, arguments)).encode("utf-8", "replace")
    return "call_" + blake2b(seed, digest_size=10).hexdigest()


def count_in(reported: object, name: str, otherwise: int = 0) -> int:
    """A number of tokens in an object; `otherwise` if there is none that can be one."""
    count = reported.get(name) if isinstance(reported, dict) else None
    return count if type(count) is int and count >= 0 else otherwise


def cost(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MOST_USD else None
