"""One reply while it arrives: server-sent events out of bytes, drafts of tool calls, and what it came to."""

import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

from pydantic_core import from_json, to_json

from gateway.domain.errors import FailureKind, MalformedReply, ModelFailed, NeverSent
from gateway.domain.journal import OVERRUN
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
    Hear,
    ModelReply,
    ModelRequest,
    Progress,
    TextDelta,
    ThinkingDelta,
)
from gateway.providers.failures import kind_of, read_refusal
from gateway.providers.markup import Recovery, counted

LINE_CAP = 1024 * 1024
EVENT_CAP = 4 * 1024 * 1024
_LINE_COST = 64  # what an empty line costs us in memory, so that millions of them hit the cap too
_BOM = b"\xef\xbb\xbf"


class SseTooLong(ValueError):
    """A line or an event is longer than anything that a provider honestly sends."""


class Event(NamedTuple):
    """One event. `data` stays bytes: whoever parses it checks the UTF-8 on the way."""

    data: bytes
    event: bytes = b""


class SseDecoder:
    """Takes bytes as they arrive; the same bytes cut in any other way give the same events."""

    def __init__(self, *, line_cap: int = LINE_CAP, event_cap: int = EVENT_CAP) -> None:
        self._line = bytearray()  # the beginning of a line whose end has not come
        self._data: list[bytes] = []
        self._event = b""
        self._size = 0
        self._skip_lf = False
        self._start: bytes | None = b""  # what may be a byte order mark; None once decided
        self._line_cap, self._event_cap = line_cap, event_cap

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete. Raises SseTooLong."""
        if self._start is not None:
            data = self._without_bom(data)
        if b"\r" in data or self._skip_lf:
            data = self._only_lf(data)
        events: list[Event] = []
        if not (self._line or self._data or self._event):
            data = self._take_blocks(data, events)
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._line:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        self._take(lines, events)
        self._line += rest
        if len(self._line) > self._line_cap:
            raise SseTooLong(f"a line is longer than {self._line_cap} bytes")
        return events

    def finish(self) -> list[Event]:
        """At the end of the bytes: what an event without its empty line would have been."""
        events: list[Event] = []
        start = self._start or b""
        self._start = None
        self._take([start + bytes(self._line), b""], events)
        self._line.clear()
        return events

    def _without_bom(self, data: bytes) -> bytes:
        data = (self._start or b"") + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._start = data
            return b""
        self._start = None
        return data.removeprefix(_BOM)

    def _only_lf(self, data: bytes) -> bytes:
        """CR and CRLF become LF, also where a CRLF was cut in the middle."""
        if not data:
            return data
        if self._skip_lf and data[0] == 10:
            data = data[1:]
        self._skip_lf = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take_blocks(self, data: bytes, events: list[Event]) -> bytes:
        """The quick way for whole events of the usual shapes; gives back what is left over."""
        blocks = data.split(b"\n\n")
        rest = blocks.pop()
        for block in blocks:
            start = block.rfind(b"\n") + 1  # of the last line
            is_short = len(block) <= self._line_cap
            if is_short and block[start : start + 6] == b"data: ":
                if not start:
                    events.append(Event(block[6:], b""))
                    continue
                if block[:7] == b"event: " and block.find(b"\n") == start - 1:
                    events.append(Event(block[start + 6 :], block[7 : start - 1]))
                    continue
            if block:
                self._take([*block.split(b"\n"), b""], events)
        return rest

    def _take(self, lines: list[bytes], events: list[Event]) -> None:
        for line in lines:
            if not line:
                if self._data:
                    joined = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append(Event(joined, self._event))
                    self._data = []
                self._event = b""
                self._size = 0
            elif len(line) > self._line_cap:
                raise SseTooLong(f"a line is longer than {self._line_cap} bytes")
            elif line[:6] == b"data: ":
                self._add(line[6:])
            elif line[0] != 58:  # ":" begins a comment
                self._other_field(line)

    def _other_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._add(value)
        elif name == b"event":
            self._event = value

    def _add(self, value: bytes) -> None:
        self._size += len(value) + _LINE_COST
        if self._size > self._event_cap:
            raise SseTooLong(f"an event is longer than {self._event_cap} bytes")
        self._data.append(value)


log = logging.getLogger(__name__)

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
LONGEST_SENT = 64
_SENDABLE, _UNSENDABLE = re.compile(r"[A-Za-z0-9_-]{1,64}"), re.compile(r"[^A-Za-z0-9_-]+")
# So many deltas a reply are heard as they come. After that it is a flood, heard in larger pieces.
DELTAS_A_TOKEN = 4
LEAST_DELTAS = 1000
FLOOD_PIECE = 4096
# Tokens that a provider may count though we neither sent nor saw them (own prompts, hidden thought).
HIDDEN_INPUT = 200_000
HIDDEN_OUTPUT = 200_000
# Tool markup is looked for in pieces of so many characters. A step takes as long as so many that
# nothing begins with; after so many of these (about two milliseconds) others have their turn.
RECOVERED_PIECE, STEP_COST, RECOVERED_AT_ONCE = 1024, 64, 32 * 1024
MOST_USD = 10_000  # for one call; a cost beyond it is a mistake of who tells it


class CallDraft:
    """A tool call of which more may come."""

    def __init__(self, id: str = "", name: str = "") -> None:
        self.id, self.name = id, name
        self.arguments: list[str] = []
        self.extra: object = None  # opaque, goes back to the same provider
        self.is_recovered = (
            False  # found in the text; a broken one stays, so that the model is told
        )

    def is_whole(self) -> bool:
        """Whether the arguments so far are one complete JSON object."""
        return self.is_recovered or parsed_object("".join(self.arguments)) is not None


class Assembly:
    """Gathers text, thinking and calls; tells `hear` of them once a network read, unless it is
    flooded. `started` says that text was heard; thinking may be thought again. `recovers`: calls
    that stand in the text are calls too, and nobody hears their markup."""

    def __init__(
        self,
        request: ModelRequest,
        hear: Hear,
        scrub: Callable[[str], str],
        sent_bytes: int,
        *,
        recovers: bool = False,
    ) -> None:
        self.request, self.provider = request, request.provider
        self.sent_bytes = sent_bytes
        self.started = False
        self.progress = request.progress or Progress()
        self.calls: list[CallDraft] = []
        self._hear, self._scrub = hear, scrub
        self._cap = max(LEAST_CAP, request.max_tokens * CHARACTERS_A_TOKEN)
        self._room = self._room_when_heard = self._cap
        self._deltas_left = request.max_tokens * DELTAS_A_TOKEN + LEAST_DELTAS
        self._text: list[str] = []
        self._thinking: list[str] = []
        self.unread: list[tuple[Recovery, list[str], str]] = []  # in which calls may stand
        self._new_text: list[str] = []  # not heard yet
        self._new_thinking: list[str] = []
        tools = request.tools if recovers else ()
        self._in_text = Recovery(tools) if tools else None
        self._in_thinking = Recovery(tools, is_thought=True) if tools else None

    @property
    def is_overrun(self) -> bool:
        """Whether it is longer than what was reserved: then it is not read any further."""
        return self.progress.size > self.progress.most

    @property
    def whole_cap(self) -> int:
        """How many bytes of a whole answer are read: more are more output than was reserved."""
        return min(WHOLE_CAP, WHOLE_ENVELOPE + WHOLE_SWELL * self.progress.most)

    def say(self, text: str, *, is_thought: bool = False) -> None:
        if not isinstance(text, str):
            raise TypeError("something that should be text is none")
        if text:
            size = len(text) if text.isascii() else len(text.encode())
            self.progress.size += size
            self.grow(size)
            recovery, unheard = self._in_text, self._new_text
            if is_thought:
                recovery, unheard = self._in_thinking, self._new_thinking
            if recovery:
                self.unread.append((recovery, unheard, text))
            else:
                unheard.append(text)

    def think(self, text: str) -> None:
        self.say(text, is_thought=True)

    def begin_call(self, id: str = "", name: str = "") -> CallDraft:
        self.grow(CALL_COST)
        draft = CallDraft(id)
        self.calls.append(draft)
        self.add(draft, name)
        return draft

    def add(self, draft: CallDraft, name: str, piece: str = "") -> None:
        """More of a call. Its name is said again in every piece by some: it is never joined."""
        new = "" if draft.name else name
        self.progress.size += text_bytes(new) + text_bytes(piece)
        self.grow(len(new) + len(piece))
        draft.name = draft.name or name
        if piece:
            draft.arguments.append(piece)

    def count(self, usage: Usage | None) -> None:
        """What the provider told of its usage before the end, if it can be believed."""
        if usage is not None and _is_sane(usage.input_tokens, self.sent_bytes):
            self.progress.told = usage

    def grow(self, size: int) -> None:
        """Counts what a reply takes; raises ModelFailed for one without an end, unless it is longer
        than what was reserved: then it is cut off."""
        self._room -= size
        if self._room < 0 and not self.is_overrun:
            raise self.failed("protocol", f"the reply is longer than {self._cap} bytes")

    def recover(self) -> Iterator[None]:
        """Looks for calls in what came. It stops wherever others should have their turn."""
        unread, self.unread = self.unread, []
        size = 0
        for recovery, shown, text in unread:
            for start in range(0, len(text), RECOVERED_PIECE):
                before = recovery.steps
                if said := recovery.feed(text[start : start + RECOVERED_PIECE]):
                    shown.append(said)
                size += RECOVERED_PIECE + (recovery.steps - before) * STEP_COST
                if size > RECOVERED_AT_ONCE:
                    size = 0
                    yield

    def why_left(self) -> tuple[str, str]:
        """Why an answer was not read to its end, as a tape keeps it."""
        return (OVERRUN, str(self.progress.most)) if self.is_overrun else ("cut", "")

    def end_read(self) -> None:
        """A network read is taken: what it brought is heard, of a flood once it is worth a delta."""
        if self._deltas_left > 0 or self._room_when_heard - self._room >= FLOOD_PIECE:
            self.flush()

    def flush(self) -> None:
        """Says what is unheard, as one delta of thinking and one of text at most."""
        self._room_when_heard = self._room
        for unheard, said, delta in (
            (self._new_thinking, self._thinking, ThinkingDelta),
            (self._new_text, self._text, TextDelta),
        ):
            if unheard:
                piece = "".join(unheard)
                unheard.clear()
                said.append(piece)
                self._deltas_left -= 1
                self.started = self.started or delta is TextDelta
                self._hear(delta(piece))

    def failed(self, kind: FailureKind, detail: str, *, sent: bool = True) -> ModelFailed:
        """The failure to raise. Of a reply that nobody has read yet the rest stays unheard, so that
        it may be asked for again; of any other all is said."""
        if self.started:
            self._end()
            self.flush()
        detail = self._scrub(detail)
        if not sent:
            return NeverSent(self.provider, kind, detail)
        return ModelFailed(self.provider, kind, detail, started=self.started)

    def reply(
        self,
        finish: FinishReason | None,
        usage: Usage | None,
        *,
        reply_id: str,
        extras: Callable[[tuple[ToolCall, ...]], str | None],
    ) -> ModelReply:
        """The complete reply. `extras` turns the finished calls into what has to be kept.
        Raises ModelFailed, also for one that nothing has finished."""
        if self.is_overrun:
            finish = "overrun"
        if finish is None:
            raise self.failed("truncated", "the stream ended before the reply was complete")
        self._end()
        self.flush()
        text, thinking = "".join(self._text), "".join(self._thinking)
        calls = self._finished_calls(finish, text, reply_id)
        if calls and finish == "stop":
            finish = "tool_calls"  # some servers say "stop" all the same
        elif finish == "tool_calls" and not calls:
            finish = "stop"
        kept = None if self.is_overrun else extras(calls)
        self.grow(len(kept or ""))  # it is stored, and sent again with every request
        return ModelReply(
            provider=self.provider,
            model=self.request.model,
            text=text,
            thinking=thinking,
            tool_calls=calls,
            usage=self._sane(usage, text, thinking, calls),
            finish=finish,
            extras=Extras(self.provider, kept) if kept else None,
        )

    def _end(self) -> None:
        """No more comes: what was held back, as it might have been markup, is said."""
        while self.unread:  # of a reply that broke; of any other nothing is left
            deque(self.recover(), maxlen=0)
        if self._in_text and (text := self._in_text.finish()):
            self._new_text.append(text)
        if self._in_thinking and (thinking := self._in_thinking.finish()):
            self._new_thinking.append(thinking)
        if self.is_overrun:  # it may have come at once: no more is said than was reserved
            room = self.progress.most
            for unheard in (self._new_thinking, self._new_text):
                kept = "".join(unheard).encode()[:room]
                unheard[:] = [kept.decode(errors="ignore")] if kept else []
                room -= len(kept)

    def _recover(self, answer: str) -> None:
        """Calls that stand in the text or the thinking, unless the wire brought its own."""
        self.calls = [one for one in self.calls if one.name or one.arguments or one.id]
        if self.calls or not self._in_text or not self._in_thinking:
            return
        for name, arguments, _ in counted(self._in_text, self._in_thinking, answer):
            draft = self.begin_call(name=name)
            draft.arguments.append(arguments)  # which came as text
            draft.is_recovered = True
            log.info("tool call recovered", extra={"provider": self.provider, "tool": name})

    def _finished_calls(
        self, finish: FinishReason, text: str, reply_id: str
    ) -> tuple[ToolCall, ...]:
        """None of a reply that was cut off: the rest might have said something else."""
        if finish == "overrun":
            return ()
        self._recover(text)
        drafts = self.calls
        if finish == "length":
            drafts[-1:] = [draft for draft in drafts[-1:] if draft.is_whole()]  # else cut off
        calls: dict[str, ToolCall] = {}
        for place, draft in enumerate(drafts):
            draft.name = draft.name[:LONGEST_NAME]  # no tool has one so long: its result says so
            arguments = "".join(draft.arguments).strip() or "{}"
            if not 0 < len(draft.id) <= LONGEST_ID or draft.id in calls:
                draft.id = _made_up_id(reply_id, place, draft.name, arguments)
            calls[draft.id] = ToolCall(draft.id, draft.name, arguments)
        return tuple(calls.values())

    def _sane(
        self, usage: Usage | None, text: str, thinking: str, calls: tuple[ToolCall, ...]
    ) -> Usage:
        """What the provider counted where it can be believed, else an estimate that says so."""
        written = (text, thinking, "".join([call.name + call.arguments for call in calls]))
        visible = sum(map(len, written))
        told = usage or Usage(-1, -1)
        most_output = 4 * visible + max(HIDDEN_OUTPUT, 4 * self.request.max_tokens)
        input_is_sane = _is_sane(told.input_tokens, self.sent_bytes)
        output_is_sane = min(1, visible) <= told.output_tokens <= most_output
        if input_is_sane and output_is_sane:
            return told
        if not input_is_sane:
            told = replace(
                told,
                input_tokens=int(self.sent_bytes / BYTES_A_TOKEN) + 1,
                cached_tokens=0,
                written_tokens=0,
            )
        if not output_is_sane:
            told = replace(told, output_tokens=sum(map(estimate_tokens, written)))
        return replace(told, reasoning_tokens=0, estimated=True)


def _is_sane(input_tokens: int, sent_bytes: int) -> bool:
    return 0 < input_tokens <= sent_bytes + HIDDEN_INPUT


def _made_up_id(reply_id: str, place: int, name: str, arguments: str) -> str:
    """An id for a call that came without one: the same bytes give the same id, others another."""
    seed = "\x00".join((reply_id, str(place), name, arguments)).encode("utf-8", "replace")
    return "call_" + blake2b(seed, digest_size=10).hexdigest()


def count(value: object) -> int:
    """A number of tokens as it was told; -1 for what cannot be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def optional_count(value: object) -> int:
    """The same for details that may be missing: 0 unless it is a sane number."""
    return max(0, count(value))


def cost(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MOST_USD else None


def parsed_object(arguments: str) -> dict[str, Any] | None:
    """A call's arguments as an object; None if they are none."""
    try:
        parsed = from_json(arguments)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def sendable_name(name: str) -> str:
    """The name of a call as every server takes it: a model may have called what no tool is named."""
    if _SENDABLE.fullmatch(name):
        return name
    return _UNSENDABLE.sub("_", name)[:LONGEST_SENT] or "unnamed"


def object_of(arguments: str) -> Mapping[str, Any]:
    """The same as wires insist on it: an object, also if the model wrote nonsense."""
    parsed = parsed_object(arguments)
    return {"invalid_arguments": arguments} if parsed is None else parsed


def without_messages(request: ModelRequest) -> ModelRequest:
    """What stays the same for every call of an agent."""
    return replace(request, messages=(), deadline_s=0.0, payer=None, record=None, progress=None)


def json_bytes(value: object) -> bytes:
    """Compact JSON. A lone surrogate, which no wire can carry, becomes a replacement character."""
    try:
        return to_json(value)
    except ValueError:
        return to_json(mended(value))


def mended(value: Any) -> Any:
    """A JSON value without lone surrogates."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {mended(key): mended(item) for key, item in value.items()}
        case list() | tuple():
            return [mended(item) for item in value]
        case _:
            return value


WRONG_SHAPE = (AttributeError, TypeError, KeyError, ValueError)
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
        """A part of what was read. Nothing is heard before `Assembly.end_read`. Raises ModelFailed."""
        self._size += len(data)
        if self._size > self._cap:
            raise self._assembly.failed("protocol", f"the stream is longer than {self._cap} bytes")
        try:
            events = self._sse.feed(data)
        except SseTooLong as error:
            raise self._assembly.failed("protocol", str(error)) from error
        self._take(events)

    def close(self) -> ModelReply:
        """The bytes have ended. Raises ModelFailed."""
        # An event that was cut off is none: `reply` finds out whether it was needed.
        self._take([event for event in self._sse.finish() if _is_json(event.data)])
        return self._reading.reply()

    def _take(self, events: list[Event]) -> None:
        take, progress = self._reading.take, self._assembly.progress
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
                if progress.size > progress.most:
                    self._ended = True
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


def take_whole(body: bytes, reading: Reading, assembly: Assembly) -> None:
    """Takes an answer that is one JSON object; of one beyond the cap it is the beginning. Raises
    ModelFailed."""
    cap = assembly.whole_cap
    is_cut = len(body) > cap
    try:
        parsed = from_json(body, allow_partial="trailing-strings" if is_cut else False)
    except ValueError as error:
        raise malformed(assembly, f"malformed JSON: {error}") from error
    refuse_error(assembly, parsed, is_error=False)
    try:
        reading.take_whole(parsed)
    except WRONG_SHAPE as error:
        raise misshapen(assembly, error) from error
    if is_cut and not assembly.is_overrun:
        raise assembly.failed("protocol", f"the answer is longer than {cap} bytes")


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
