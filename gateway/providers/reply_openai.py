"""The chat completions wire: an answer's chunks, with all that servers of this wire do to them."""

from typing import Any

from gateway.domain.messages import ToolCall
from gateway.domain.model import FinishReason, ModelReply
from gateway.domain.usage import Usage
from gateway.providers.assembly import (
    PART_COST,
    Assembly,
    CallDraft,
    cost,
    count,
    json_bytes,
    optional_count,
)

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "refusal": "refusal",
}


class OpenAiReading:
    """Complete once a finish reason came; yet read on, for usage and more may follow it."""

    is_done = False  # only `[DONE]` and the end of the bytes say so

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._by_index: dict[int, CallDraft] = {}
        self._details: list[dict[str, Any]] = []  # OpenRouter's opaque reasoning
        self._finish: FinishReason | None = None
        self._id = ""
        self._is_whole = False
        self._refused = False
        self._usage: dict[str, Any] | None = None

    def take(self, chunk: dict[str, Any]) -> None:
        usage = chunk.get("usage")
        if usage:
            self._usage = usage  # cumulative where it comes often: the last one counts
        choices = chunk.get("choices")
        if not choices:
            return
        if not self._id:
            self._id = str(chunk.get("id") or "")
        for choice in choices:
            if choice.get("index"):
                continue  # one answer was asked for
            delta = choice.get("delta") or choice.get("message")
            if delta:
                self._take_delta(delta)
            reason = choice.get("finish_reason")
            if reason:
                self._finished(reason)

    def take_whole(self, body: dict[str, Any]) -> None:
        self._is_whole = bool(body.get("choices"))
        self.take(body)

    def reply(self) -> ModelReply:
        # One JSON object is complete in itself.
        finish = self._finish or ("stop" if self._is_whole else None)
        if finish == "stop" and self._refused:
            finish = "refusal"
        return self._assembly.reply(
            finish, self._read_usage(), reply_id=self._id, extras=self._extras
        )

    def _finished(self, reason: str) -> None:
        if reason == "error":
            raise self._assembly.failed("server", "the provider gave up in the middle of its reply")
        self._finish = _FINISH.get(reason, "stop")

    def _take_delta(self, delta: dict[str, Any]) -> None:
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        details = delta.get("reasoning_details")
        if details:
            self._take_details(details, is_heard=bool(thought))
        if thought:
            self._assembly.think(thought)
        content = delta.get("content")
        if content:
            if isinstance(content, str):
                self._assembly.say(content)
            else:
                self._take_parts(content)
        if refusal := delta.get("refusal"):
            self._refused = True
            self._assembly.say(refusal)
        for call in delta.get("tool_calls") or ():
            self._take_call(call)

    def _take_parts(self, parts: list[dict[str, Any]]) -> None:
        """Content as a list: text, and thinking that holds text again."""
        for part in parts:
            if text := part.get("text"):
                self._assembly.say(text)
            thinking = part.get("thinking")
            if isinstance(thinking, str):
                self._assembly.think(thinking)
            for piece in thinking if isinstance(thinking, list) else ():
                self._assembly.think(piece.get("text") or "")

    def _take_details(self, details: list[dict[str, Any]], *, is_heard: bool) -> None:
        """Pieces of one block are put together again; its text is heard only if nobody said it."""
        for detail in details:
            words = detail.get("text") or detail.get("summary") or ""
            self._assembly.grow(len(words) + len(detail.get("data") or ""))
            if words and not is_heard:
                self._assembly.think(words)
            if self._details and _is_same_block(self._details[-1], detail):
                _join_detail(self._details[-1], detail)
            else:
                self._assembly.grow(PART_COST)
                self._details.append(dict(detail))

    def _take_call(self, call: dict[str, Any]) -> None:
        function = call.get("function") or {}
        id, name = call.get("id") or "", function.get("name") or ""
        if not isinstance(id, str) or not isinstance(name, str):
            raise TypeError("a tool call's id or name is no text")
        arguments = _arguments_text(function.get("arguments"))
        self._assembly.grow(len(id) + len(name))
        draft = self._draft(call.get("index"), id, name, begins=bool(arguments))
        draft.id = draft.id or id
        self._assembly.add(draft, name, arguments)
        draft.extra = call.get("extra_content") or draft.extra

    def _draft(self, index: int | None, id: str, name: str, *, begins: bool) -> CallDraft:
        """The draft that a piece belongs to; a new one if it begins another call."""
        calls = self._assembly.calls
        if index is None:
            known = next((draft for draft in calls if id and draft.id == id), None)
            if known is not None:
                return known
            current = calls[-1] if calls else None
        else:
            current = self._by_index.get(index)
        if current is None or (name and _begins_another(current, id, name, begins=begins)):
            current = self._assembly.begin_call()
            if index is not None:
                self._by_index[index] = current
        return current

    def _read_usage(self) -> Usage | None:
        usage = self._usage
        if not isinstance(usage, dict):
            return None
        inputs = usage.get("prompt_tokens_details")
        outputs = usage.get("completion_tokens_details")
        cached = inputs.get("cached_tokens") if isinstance(inputs, dict) else None
        reasoning = outputs.get("reasoning_tokens") if isinstance(outputs, dict) else None
        input_tokens = count(usage.get("prompt_tokens"))
        output_tokens = count(usage.get("completion_tokens"))
        cached = optional_count(cached or usage.get("prompt_cache_hit_tokens"))
        return Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=min(cached, max(0, input_tokens)),
            reasoning_tokens=min(optional_count(reasoning), max(0, output_tokens)),
            cost_usd=cost(usage.get("cost")),
        )

    def _extras(self, calls: tuple[ToolCall, ...]) -> str | None:
        drafts = zip(calls, self._assembly.calls, strict=True)
        by_call = {call.id: draft.extra for call, draft in drafts if draft.extra}
        kept: dict[str, Any] = {}
        if by_call:
            kept["calls"] = by_call
        if self._details:
            kept["reasoning_details"] = self._details
        return json_bytes(kept).decode() if kept else None


def _begins_another(current: CallDraft, id: str, name: str, *, begins: bool) -> bool:
    """Whether a piece with a name is a call of its own rather than more of the current one."""
    if id and current.id:
        return id != current.id
    if not current.name:
        return False
    return name != current.name or (begins and current.is_whole())


def _arguments_text(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else json_bytes(arguments).decode()


def _is_same_block(last: dict[str, Any], piece: dict[str, Any]) -> bool:
    if piece.get("index") is None:
        return False
    return all(last.get(key) == piece.get(key) for key in ("type", "index"))


def _join_detail(into: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if key in {"text", "summary", "data"} and isinstance(value, str):
            into[key] = (into.get(key) or "") + value
        elif value is not None:
            into[key] = value
