"""One reply while it arrives: what was heard, drafts of tool calls, and what it came to."""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from math import isfinite
from typing import Any

from pydantic_core import from_json, to_json

from gateway.domain.errors import FailureKind, ModelFailed
from gateway.domain.messages import Extras, ToolCall
from gateway.domain.model import (
    FinishReason,
    Hear,
    ModelReply,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    Usage,
)
from gateway.domain.tokens import BYTES_A_TOKEN, estimate_tokens

# A reply may be longer than what was asked for (servers count differently), but not boundless.
CHARACTERS_A_TOKEN = 64
LEAST_CAP = 1024 * 1024
# Tokens that a provider may count though we neither sent nor saw them (own prompts, hidden thought).
HIDDEN_INPUT = 200_000
HIDDEN_OUTPUT = 200_000


class CallDraft:
    """A tool call of which more may come."""

    __slots__ = ("arguments", "extra", "id", "name")

    def __init__(self, id: str = "", name: str = "") -> None:
        self.id, self.name = id, name
        self.arguments: list[str] = []
        self.extra: object = None  # opaque, goes back to the same provider

    def is_whole(self) -> bool:
        """Whether the arguments so far are one complete JSON object."""
        try:
            return isinstance(from_json("".join(self.arguments)), dict)
        except ValueError:
            return False


class Assembly:
    """Gathers text, thinking and calls; tells `hear` once for all that one network read brought."""

    __slots__ = (
        "_cap",
        "_hear",
        "_room",
        "_scrub",
        "_text",
        "_thinking",
        "_unheard",
        "_unheard_is_text",
        "calls",
        "provider",
        "request",
        "sent_bytes",
        "started",
    )

    def __init__(
        self, request: ModelRequest, hear: Hear, scrub: Callable[[str], str], sent_bytes: int
    ) -> None:
        self.request, self.provider = request, request.provider
        self.sent_bytes = sent_bytes
        self.started = False
        self.calls: list[CallDraft] = []
        self._hear, self._scrub = hear, scrub
        self._cap = max(LEAST_CAP, request.max_tokens * CHARACTERS_A_TOKEN)
        self._room = self._cap
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._unheard: list[str] = []
        self._unheard_is_text = True

    def say(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError("something that should be text is none")
        if not self._unheard_is_text:
            self.flush()
            self._unheard_is_text = True
        self.grow(len(text))
        self._unheard.append(text)

    def think(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError("something that should be text is none")
        if self._unheard_is_text:
            self.flush()
            self._unheard_is_text = False
        self.grow(len(text))
        self._unheard.append(text)

    def grow(self, size: int) -> None:
        """Counts what a reply takes; raises ModelFailed for one without an end."""
        self._room -= size
        if self._room < 0:
            raise self.failed("protocol", f"the reply is longer than {self._cap} characters")

    def flush(self) -> None:
        """Says what is unheard, as one delta."""
        if not self._unheard:
            return
        text = "".join(self._unheard)
        self._unheard.clear()
        if not text:
            return
        self.started = True
        if self._unheard_is_text:
            self._text.append(text)
            self._hear(TextDelta(text))
        else:
            self._thinking.append(text)
            self._hear(ThinkingDelta(text))

    def failed(
        self, kind: FailureKind, detail: str, retry_after_s: float | None = None
    ) -> ModelFailed:
        return ModelFailed(
            self.provider,
            kind,
            self._scrub(detail),
            started=self.started,
            retry_after_s=retry_after_s,
        )

    def reply(
        self,
        finish: FinishReason,
        usage: Usage | None,
        *,
        reply_id: str = "",
        model: str = "",
        extras: Callable[[tuple[ToolCall, ...]], str | None] | None = None,
    ) -> ModelReply:
        """The complete reply. `extras` turns the finished calls into what has to be kept."""
        self.flush()
        text, thinking = "".join(self._text), "".join(self._thinking)
        calls = self._finished_calls(finish, reply_id)
        if calls and finish == "stop":
            finish = "tool_calls"  # some servers say "stop" all the same
        elif finish == "tool_calls" and not calls:
            finish = "stop"
        kept = extras(calls) if extras else None
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

    def _finished_calls(self, finish: FinishReason, reply_id: str) -> tuple[ToolCall, ...]:
        drafts = [draft for draft in self.calls if draft.name or draft.arguments]
        if finish == "length":
            drafts[-1:] = [draft for draft in drafts[-1:] if draft.is_whole()]  # else cut off
        self.calls = drafts
        calls: dict[str, ToolCall] = {}
        for place, draft in enumerate(drafts):
            if not draft.name:
                raise self.failed("protocol", "a tool call came without a name")
            arguments = "".join(draft.arguments).strip() or "{}"
            if not draft.id or draft.id in calls:
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
        input_is_sane = 0 < told.input_tokens <= self.sent_bytes + HIDDEN_INPUT
        output_is_sane = min(1, visible) <= told.output_tokens <= most_output
        if input_is_sane and output_is_sane:
            return told
        input_tokens = told.input_tokens if input_is_sane else self._estimated_input()
        output_tokens = told.output_tokens if output_is_sane else sum(map(estimate_tokens, written))
        return Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=told.cached_tokens if input_is_sane else 0,
            cost_usd=told.cost_usd,
            estimated=True,
        )

    def _estimated_input(self) -> int:
        return int(self.sent_bytes / BYTES_A_TOKEN) + 1


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
    return float(value) if isfinite(value) and value >= 0 else None


def object_of(arguments: str) -> Mapping[str, Any]:
    """A call's arguments as the object that wires insist on, also if the model wrote nonsense."""
    try:
        parsed = from_json(arguments)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"invalid_arguments": arguments}


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
