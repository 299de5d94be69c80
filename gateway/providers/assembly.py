"""One reply while it arrives: what was heard, drafts of tool calls, and what it came to."""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from pydantic_core import from_json, to_json

from gateway.domain.errors import FailureKind, ModelFailed, NeverSent
from gateway.domain.messages import Extras, ToolCall
from gateway.domain.model import (
    FinishReason,
    Hear,
    ModelReply,
    ModelRequest,
    Progress,
    TextDelta,
    ThinkingDelta,
)
from gateway.domain.tokens import BYTES_A_TOKEN, estimate_tokens
from gateway.domain.usage import Usage
from gateway.providers.markup import Recovery, counted

log = logging.getLogger(__name__)

# A reply may be longer than what was asked for (servers count differently), but not boundless.
CHARACTERS_A_TOKEN = 64
LEAST_CAP = 1024 * 1024
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
        self._new_text: list[str] = []  # not heard yet
        self._new_thinking: list[str] = []
        tools = request.tools if recovers else ()
        self._in_text = Recovery(tools) if tools else None
        self._in_thinking = Recovery(tools, is_thought=True) if tools else None

    def say(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError("something that should be text is none")
        if text:
            self.grow(len(text))
            self.progress.characters += len(text)
            if shown := self._in_text.feed(text) if self._in_text else text:
                self._new_text.append(shown)

    def think(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError("something that should be text is none")
        if text:
            self.grow(len(text))
            self.progress.characters += len(text)
            if shown := self._in_thinking.feed(text) if self._in_thinking else text:
                self._new_thinking.append(shown)

    def begin_call(self, id: str = "", name: str = "") -> CallDraft:
        self.grow(CALL_COST)
        draft = CallDraft(id)
        self.calls.append(draft)
        self.add(draft, name)
        return draft

    def add(self, draft: CallDraft, name: str, piece: str = "") -> None:
        """More of a call. Its name is said again in every piece by some: it is never joined."""
        new = "" if draft.name else name
        self.grow(len(new) + len(piece))
        self.progress.characters += len(new) + len(piece)
        draft.name = draft.name or name
        if piece:
            draft.arguments.append(piece)

    def count(self, usage: Usage | None) -> None:
        """What the provider told of its usage before the end, if it can be believed."""
        if usage is not None and _is_sane(usage.input_tokens, self.sent_bytes):
            self.progress.told = usage

    def grow(self, size: int) -> None:
        """Counts what a reply takes; raises ModelFailed for one without an end."""
        self._room -= size
        if self._room < 0:
            raise self.failed("protocol", f"the reply is longer than {self._cap} characters")

    def end_read(self) -> None:
        """A network read is taken: what it brought is heard, of a flood once it is worth a delta."""
        if self._deltas_left > 0 or self._room_when_heard - self._room >= FLOOD_PIECE:
            self.flush()

    def flush(self) -> None:
        """Says what is unheard, as one delta of thinking and one of text at most."""
        self._room_when_heard = self._room
        if self._new_thinking:
            thinking = "".join(self._new_thinking)
            self._new_thinking.clear()
            self._thinking.append(thinking)
            self._deltas_left -= 1
            self._hear(ThinkingDelta(thinking))
        if self._new_text:
            text = "".join(self._new_text)
            self._new_text.clear()
            self._text.append(text)
            self._deltas_left -= 1
            self.started = True
            self._hear(TextDelta(text))

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
        if finish is None:
            raise self.failed("truncated", "the stream ended before the reply was complete")
        self._end()
        self.flush()
        text, thinking = "".join(self._text), "".join(self._thinking)
        self._recover(text)
        calls = self._finished_calls(finish, reply_id)
        if calls and finish == "stop":
            finish = "tool_calls"  # some servers say "stop" all the same
        elif finish == "tool_calls" and not calls:
            finish = "stop"
        kept = extras(calls)
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
        if self._in_text and (text := self._in_text.finish()):
            self._new_text.append(text)
        if self._in_thinking and (thinking := self._in_thinking.finish()):
            self._new_thinking.append(thinking)

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

    def _finished_calls(self, finish: FinishReason, reply_id: str) -> tuple[ToolCall, ...]:
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
