"""One reply while it arrives: server-sent events out of bytes, and a reply out of their pieces."""

import json
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from pydantic_core import from_json

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
    ReplyProgress,
    TextDelta,
    ThinkingDelta,
)
from gateway.domain.ports import MOST_READ
from gateway.providers.encoding import json_bytes, parsed_object
from gateway.providers.failures import kind_of, read_refusal
from gateway.providers.markup import Recovery, counted

log = logging.getLogger(__name__)

LINE_CAP = 1024 * 1024
EVENT_CAP = 4 * 1024 * 1024
_LINE_COST = 64  # what an empty line costs us in memory, so that millions of them hit the cap too
_BOM = b"\xef\xbb\xbf"

# Data and name. The data stays bytes: the parser checks the UTF-8 on the way.
Event = tuple[bytes, bytes]


class SseTooLong(ValueError):
    """A line or an event is longer than anything that a provider honestly sends."""


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
        if data:
            self._feed_lines(data, events)
        return events

    def _take_blocks(self, data: bytes, events: list[Event]) -> bytes:
        """The quick way for whole events of the usual shapes; gives back what is left over."""
        blocks = data.split(b"\n\n")
        rest = blocks.pop()
        for block in blocks:
            start = block.rfind(b"\n") + 1  # of the last line
            is_data = block[start : start + 6] == b"data: " and len(block) <= self._line_cap
            if is_data and not start:
                events.append((block[6:], b""))
            elif is_data and block[:7] == b"event: " and block.find(b"\n") == start - 1:
                events.append((block[start + 6 :], block[7 : start - 1]))
            elif block:
                self._take([*block.split(b"\n"), b""], events)
        return rest

    def finish(self) -> list[Event]:
        """At the end of the bytes: what an event without its empty line would have been."""
        events: list[Event] = []
        rest = (self._start or b"") + self._line
        self._start = None
        if rest or self._data:
            self._take([rest, b""], events)
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

    def _feed_lines(self, data: bytes, events: list[Event]) -> None:
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._line:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        self._take(lines, events)
        self._line += rest
        if len(self._line) > self._line_cap:
            raise SseTooLong(f"a line is longer than {self._line_cap} bytes")

    def _take(self, lines: list[bytes], events: list[Event]) -> None:
        for line in lines:
            if not line:
                if self._data:
                    joined = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append((joined, self._event))
                    self._data = []
                self._event = b""
                self._size = 0
            elif len(line) > self._line_cap:
                raise SseTooLong(f"a line is longer than {self._line_cap} bytes")
            elif line[0] != 58:  # ":" begins a comment
                self._take_field(line)

    def _take_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._event = value
        elif name == b"data":
            self._size += len(value) + _LINE_COST
            if self._size > self._event_cap:
                raise SseTooLong(f"an event is longer than {self._event_cap} bytes")
            self._data.append(value)


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
WRONG_SHAPE = (AttributeError, TypeError, KeyError, ValueError)
# A stream with all that is not text: names and braces around each token, comments, empty lines.
LEAST_STREAM_CAP = 64 * 1024 * 1024
STREAM_BYTES_A_TOKEN = 1024
# What the decoding of an answer looks at, and nothing else, is recorded of its head.
RECORDED_HEADERS = ("content-type", "content-encoding", "retry-after", "retry-after-ms")


class CallDraft:
    """A tool call of which more may come."""

    def __init__(self, id: str = "", name: str = "") -> None:
        self.id, self.name = id, name
        self.arguments: list[str] = []
        self.extra: object = None  # opaque, goes back to the same provider
        # Found in the text. A broken one stays, so that the model is told of it.
        self.is_recovered = False

    def is_whole(self) -> bool:
        """Whether the arguments so far are one complete JSON object."""
        return self.is_recovered or parsed_object("".join(self.arguments)) is not None


class ReplyReader(ABC):
    """Reads one answer into a reply; a subclass knows a wire. `hear` is told of text and thinking
    once a network read, unless it is flooded. `started` says that text was heard; thinking may be
    thought again. `recovers`: calls in the text are calls too, and `hear` gets no markup."""

    started = False
    has_ended = False  # nothing of interest follows, whatever the connection does
    is_recorded = False  # how it ended
    breath = 0  # bytes since others had their turn
    _size = _told_size = 0
    _beside = 0  # what a reply takes beside its text

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
        self.progress = request.progress or ReplyProgress()
        self.calls: list[CallDraft] = []
        self._hear, self._scrub, self._sent_bytes = hear, scrub, sent_bytes
        self._record = request.record
        self._sse = SseDecoder()
        self._stream_cap = max(LEAST_STREAM_CAP, request.max_tokens * STREAM_BYTES_A_TOKEN)
        self._cap = max(LEAST_CAP, request.max_tokens * CHARACTERS_A_TOKEN)
        self._deltas_left = request.max_tokens * DELTAS_A_TOKEN + LEAST_DELTAS
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._new_text: list[str] = []  # not heard yet
        self._new_thinking: list[str] = []
        self.recovers = recovers and bool(request.tools)
        self.texts, self.thoughts = self._new_text, self._new_thinking
        if self.recovers:
            self.texts, self.thoughts = [], []  # in which calls may stand
            self._in_text = Recovery(request.tools)
            self._in_thinking = Recovery(request.tools, is_thought=True)
        self.prepare()

    # What a wire knows of its answers.

    @abstractmethod
    def prepare(self) -> None:
        """Before anything has come."""

    @abstractmethod
    def take(self, chunk: dict[str, Any]) -> None:
        """One event's object."""

    @abstractmethod
    def take_body(self, body: dict[str, Any]) -> None:
        """The object of an answer that is not streamed."""

    @abstractmethod
    def finish(self) -> tuple[FinishReason | None, str]:
        """Why it ended, None if it is not complete; and the provider's id of it."""

    @abstractmethod
    def usage(self) -> Usage | None: ...

    @abstractmethod
    def extras(self, calls: tuple[ToolCall, ...]) -> str | None:
        """What has to be kept of a reply with these calls, for its provider alone."""

    # From bytes to a reply.

    def feed(self, data: bytes) -> bool:
        """A network read of a stream. False: it has ended, or others should have their turn before
        more is read. Raises ModelFailed."""
        if self._record is not None:
            self._record("bytes", data)
        self._size += len(data)
        self.breath += len(data)
        if self._size > self._stream_cap:
            raise self.failed("protocol", f"the stream is longer than {self._stream_cap} bytes")
        try:
            events = self._sse.feed(data)
        except SseTooLong as error:
            raise self.failed("protocol", str(error)) from error
        self._take_events(events)
        if self.recovers or self.is_overrun:
            return False
        self.tell()
        return not self.has_ended and self.breath < MOST_READ

    def close(self) -> ModelReply:
        """The bytes of a stream have ended. Raises ModelFailed."""
        if rest := self._sse.finish():
            # An event that was cut off is none: `reply` finds out whether it was needed.
            self._take_events([event for event in rest if _is_json(event[0])])
        return self.reply()

    def take_whole(self, body: bytes) -> None:
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
            self.take_body(parsed)
        except WRONG_SHAPE as error:
            raise self._misshapen(error) from error
        if is_cut and not self.is_overrun:
            raise self.failed("protocol", f"the answer is longer than {cap} bytes")
        self.grow(0)

    def _take_events(self, events: list[Event]) -> None:
        take, progress, most = self.take, self.progress, min(self.progress.most, self._cap)
        try:
            for data, event in events:
                if self.has_ended:
                    break
                try:
                    chunk = from_json(data)
                except ValueError as error:
                    chunk = self._without_json(data, error)
                if event == b"error" or type(chunk) is not dict or "error" in chunk:
                    self._refuse_error(chunk, is_error=event == b"error")
                take(chunk)
                if progress.size > most:
                    self._stop()
        except WRONG_SHAPE as error:
            raise self._misshapen(error) from error

    def _stop(self) -> None:
        """It is longer than what was reserved for it, or than any reply."""
        self.has_ended = self.is_overrun
        self.grow(0)

    def _without_json(self, data: bytes, problem: ValueError) -> Any:
        """What an event means whose data is no JSON. Raises ModelFailed."""
        if not data or data == b"[DONE]":
            self.has_ended = bool(data)
            return {}
        if b"\\ud" in data or b"\\uD" in data:
            # Some servers cut an escaped pair of surrogates in two: each becomes a replacement.
            with suppress(ValueError, RecursionError):
                return from_json(json_bytes(json.loads(data)))  # which is no deeper than any other
        raise self._malformed("malformed JSON in a stream", problem) from problem

    # From pieces to a reply.

    def say(self, text: str) -> None:
        self._add(text, self.texts)

    def think(self, text: str) -> None:
        self._add(text, self.thoughts)

    def _add(self, text: str, into: list[str]) -> None:
        if not isinstance(text, str):
            raise TypeError("something that should be text is none")
        if text:
            self.progress.size += len(text) if text.isascii() else len(text.encode())
            into.append(text)

    @property
    def is_overrun(self) -> bool:
        """Whether it is longer than what was reserved: then it is not read any further."""
        return self.progress.size > self.progress.most

    @property
    def whole_cap(self) -> int:
        """How many bytes of a whole answer are read: more are more output than was reserved."""
        return min(WHOLE_CAP, WHOLE_ENVELOPE + WHOLE_SWELL * self.progress.most)

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
        if usage is not None and 0 < usage.input_tokens <= self._sent_bytes + HIDDEN_INPUT:
            self.progress.told = usage

    def grow(self, size: int) -> None:
        """Counts what a reply takes beside its text; raises ModelFailed for one without an end, unless
        it is longer than what was reserved: then it is cut off."""
        self._beside += size
        if self.progress.size + self._beside > self._cap and not self.is_overrun:
            raise self.failed("protocol", f"the reply is longer than {self._cap} bytes")

    def recover(self) -> Iterator[None]:
        """Looks for calls in what came. It stops wherever others should have their turn."""
        size = 0
        for recovery, came, shown in (
            (self._in_text, self.texts, self._new_text),
            (self._in_thinking, self.thoughts, self._new_thinking),
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

    def tell(self, *, is_end: bool = False) -> None:
        """Tells `hear` what is new: one delta of thinking and one of text at most. In a flood it
        waits until that is worth a delta."""
        size = self.progress.size
        if self._deltas_left <= 0 and size - self._told_size < FLOOD_PIECE and not is_end:
            return
        self._told_size = size
        if thinking := "".join(self._new_thinking):
            self._new_thinking.clear()
            self._thinking.append(thinking)
            self._deltas_left -= 1
            self._hear(ThinkingDelta(thinking))
        if text := "".join(self._new_text):
            self._new_text.clear()
            self._text.append(text)
            self._deltas_left -= 1
            self.started = True
            self._hear(TextDelta(text))

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Records the head of the answer."""
        if self._record is not None:
            kept = {name: headers[name] for name in RECORDED_HEADERS if name in headers}
            self._record("head", status, kept)

    def end(self, how: str, detail: str) -> None:
        """Records how the answer ended: once, and first come."""
        if self._record is not None and not self.is_recorded:
            self._record("end", how, detail)
        self.is_recorded = True

    def leave(self) -> None:
        """The answer is left. Where its end was not reached, the recording says why; and of a whole
        answer, that it was too long although its last byte was read."""
        if not self.is_overrun:
            self.end("cut", "")
        elif self._record is not None:
            self._record("end", OVERRUN, str(self.progress.most))

    def failed(self, kind: FailureKind, detail: str, *, sent: bool = True) -> ModelFailed:
        """The failure to raise. Of a reply that nobody has read yet the rest stays unheard, so that
        it may be asked for again; of any other all is said."""
        if self.started:
            self._tell_rest()
        detail = self._scrub(detail)
        if not sent:
            return NeverSent(self.provider, kind, detail)
        return ModelFailed(self.provider, kind, detail, started=self.started)

    def reply(self) -> ModelReply:
        """The complete reply, or what was said of one that was cut off as an overrun: nothing of
        that is called, for the rest might have said something else. Raises ModelFailed."""
        finish, reply_id = self.finish()
        if self.is_overrun:
            finish = "overrun"
        if finish is None:
            raise self.failed("truncated", "the stream ended before the reply was complete")
        self._tell_rest()
        text, thinking = "".join(self._text), "".join(self._thinking)
        calls, kept = self._calls_and_extras(finish, reply_id, text)
        if calls and finish == "stop":
            finish = "tool_calls"  # some servers say "stop" all the same
        elif finish == "tool_calls" and not calls:
            finish = "stop"
        return ModelReply(
            provider=self.provider,
            model=self.request.model,
            text=text,
            thinking=thinking,
            tool_calls=calls,
            usage=self._sane(self.usage(), text, thinking, calls),
            finish=finish,
            extras=Extras(self.provider, kept) if kept else None,
        )

    def _calls_and_extras(
        self, finish: FinishReason, reply_id: str, answer: str
    ) -> tuple[tuple[ToolCall, ...], str | None]:
        if self.is_overrun:
            return (), None
        calls: tuple[ToolCall, ...] = ()
        if self.calls or self.recovers:
            self._settle_drafts(finish, answer)
            calls = self._finished_calls(reply_id)
        kept = self.extras(calls)
        self.grow(len(kept or ""))  # it is stored, and sent again with every request
        return calls, kept

    def _tell_rest(self) -> None:
        """No more comes: what was held back, as it might have been markup, is told too."""
        if self.recovers:
            deque(self.recover(), maxlen=0)
            self._new_text.append(self._in_text.finish())
            self._new_thinking.append(self._in_thinking.finish())
        if self.is_overrun:  # it may have come at once: no more is said than was reserved
            room = self.progress.most
            for unheard in (self._new_thinking, self._new_text):
                kept = "".join(unheard).encode()[:room]
                unheard[:] = [kept.decode(errors="ignore")] if kept else []
                room -= len(kept)
        if self._new_text or self._new_thinking:
            self.tell(is_end=True)

    def _settle_drafts(self, finish: FinishReason, answer: str) -> None:
        drafts = self.calls = [one for one in self.calls if one.name or one.arguments or one.id]
        if self.recovers and not drafts:
            self._find_calls(answer)
        if finish == "length":
            drafts[-1:] = [draft for draft in drafts[-1:] if draft.is_whole()]  # else cut off

    def _finished_calls(self, reply_id: str) -> tuple[ToolCall, ...]:
        calls: dict[str, ToolCall] = {}
        for place, draft in enumerate(self.calls):
            draft.name = draft.name[:LONGEST_NAME]  # no tool has one so long: its result says so
            arguments = "".join(draft.arguments).strip() or "{}"
            if not 0 < len(draft.id) <= LONGEST_ID or draft.id in calls:
                draft.id = _made_up_id(reply_id, place, draft.name, arguments)
            calls[draft.id] = ToolCall(draft.id, draft.name, arguments)
        return tuple(calls.values())

    def _find_calls(self, answer: str) -> None:
        """Calls that stand in the text or the thinking: they count if the wire brought none."""
        for name, arguments, _ in counted(self._in_text, self._in_thinking, answer):
            draft = self.begin_call(name=name)
            draft.arguments.append(arguments)  # which came as text
            draft.is_recovered = True
            log.info("tool call recovered", extra={"provider": self.provider, "tool": name})

    def _sane(
        self, told: Usage | None, text: str, thinking: str, calls: tuple[ToolCall, ...]
    ) -> Usage:
        """What the provider counted where it can be believed, else an estimate that says so."""
        called = "".join([call.name + call.arguments for call in calls]) if calls else ""
        told = told or Usage(-1, -1)
        visible = len(text) + len(thinking) + len(called)
        most_output = 4 * visible + max(HIDDEN_OUTPUT, 4 * self.request.max_tokens)
        input_is_sane = 0 < told.input_tokens <= self._sent_bytes + HIDDEN_INPUT
        output_is_sane = min(1, visible) <= told.output_tokens <= most_output
        if input_is_sane and output_is_sane:
            return told
        if not input_is_sane:
            input_tokens = int(self._sent_bytes / BYTES_A_TOKEN) + 1
            told = replace(told, input_tokens=input_tokens, cached_tokens=0, written_tokens=0)
        if not output_is_sane:
            told = replace(told, output_tokens=sum(map(estimate_tokens, (text, thinking, called))))
        return replace(told, reasoning_tokens=0, estimated=True)

    # What no reply can be made of.

    def _malformed(self, what: str, error: Exception) -> ModelFailed:
        failed = self.failed("protocol", f"{what}: {error}")
        return MalformedReply(failed.provider, failed.detail, started=failed.started)

    def _misshapen(self, error: Exception) -> ModelFailed:
        """A value of another type than the wire promises is the provider's fault, never a crash."""
        told = f"an answer has another shape than the wire promises ({error})"
        return self.failed("protocol", told)

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


def _is_json(data: bytes) -> bool:
    if data == b"[DONE]":
        return True
    try:
        from_json(data)
    except ValueError:
        return False
    return True


def _made_up_id(reply_id: str, place: int, name: str, arguments: str) -> str:
    """An id for a call that came without one: the same bytes give the same id, others another."""
    seed = "\x00".join((reply_id, str(place), name, arguments)).encode("utf-8", "replace")
    return "call_" + blake2b(seed, digest_size=10).hexdigest()


def counts(told: object) -> dict[str, int]:
    """The numbers of tokens that an object tells, without those that cannot be one."""
    if not isinstance(told, dict):
        return {}
    return {name: count for name, count in told.items() if type(count) is int and count >= 0}


def cost(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MOST_USD else None
