"""The chat completions wire: encodes requests and reads answers, with the differences between servers."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import from_json

from gateway.domain.messages import Message, ToolCall, Usage
from gateway.domain.model import FinishReason, ModelRequest, ProviderDef
from gateway.providers.prices import REASONING_FAMILIES, Quirks, quirks_of
from gateway.providers.wire import (
    PART_COST,
    CallDraft,
    ReplyReader,
    WireEncoder,
    as_text,
    cost,
    count_in,
    encode_tools,
    json_bytes,
    parsed_object,
    sendable_name,
)


class OpenAiEncoder(WireEncoder):
    path = "/chat/completions"

    def __init__(self, definition: ProviderDef) -> None:
        super().__init__(definition)
        self._quirks = quirks_of(definition)
        self._has_swapped = False

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        return headers | ({"authorization": f"Bearer {api_key}"} if api_key else {})

    def body(self, request: ModelRequest) -> bytes:
        # Gemini 3 refuses calls without a signature, so calls of other models get a dummy signature.
        signature = self._quirks.foreign_signature if "gemini-3" in request.model else None
        key = f"openai:{self._provider}" + (":signed" if signature else "")
        messages = []
        for message in request.messages:
            encoded = message.kept.get(key)
            if encoded is None:
                encoded = message.kept[key] = json_bytes(self._plain(message, signature))
            messages.append(encoded)
        head = self.head(request)
        return head + (b"," if request.system and messages else b"") + b",".join(messages) + b"]}"

    def adapt(self, refusal: str) -> bool:
        """Learns a quirk from a server's refusal. Returns True if it is new."""
        quirks = self._quirks
        if "stream_options" in refusal and quirks.stream_usage:
            quirks = replace(quirks, stream_usage=False)
        elif "max_completion_tokens" in refusal and not self._has_swapped:
            self._has_swapped = True
            is_old = quirks.max_tokens_key == "max_tokens"
            quirks = replace(
                quirks, max_tokens_key="max_completion_tokens" if is_old else "max_tokens"
            )
        else:
            return False
        self._quirks = quirks
        self._heads.clear()
        return True

    def encode_head(self, request: ModelRequest) -> bytes:
        quirks = self._quirks
        fields: dict[str, Any] = {
            "model": request.model,
            quirks.max_tokens_key: request.max_tokens,
            "stream": request.stream,
        }
        if request.stream and quirks.stream_usage:
            fields["stream_options"] = {"include_usage": True}
        if request.temperature is not None:
            fields["temperature"] = request.temperature
        if request.thinking:
            fields |= _thinking(quirks, request.model)
        if request.tools:
            functions = encode_tools(request, "parameters")
            fields["tools"] = [{"type": "function", "function": one} for one in functions]
        head = json_bytes(fields)[:-1] + b',"messages":['
        if request.system:
            head += json_bytes({"role": "system", "content": request.system})
        return head

    def _plain(self, message: Message, signature: str | None) -> dict[str, Any]:
        if message.result is not None:
            result = message.result
            return {"role": "tool", "tool_call_id": result.call_id, "content": result.for_model}
        if message.role == "user":
            return {"role": "user", "content": message.text}
        plain: dict[str, Any] = {"role": "assistant", "content": message.text}
        extras: Mapping[str, Any] = {}
        if message.extras is not None and message.extras.provider == self._provider:
            extras = from_json(message.extras.json)
        if message.tool_calls:
            plain["content"] = message.text or None
            plain["tool_calls"] = calls = _calls(message, extras.get("calls", {}))
            if signature:  # parallel calls have one signature, at the first of them
                calls[0].setdefault("extra_content", {"google": {"thought_signature": signature}})
        if details := extras.get("reasoning_details"):
            plain["reasoning_details"] = details
        return plain


def _thinking(quirks: Quirks, model: str) -> dict[str, Any]:
    """Returns the field that enables thinking; empty unless the server is known to accept one."""
    if quirks.thinking_by == "reasoning_enabled":
        return {"reasoning": {"enabled": True}}
    if quirks.thinking_by == "reasoning_effort" and model.startswith(REASONING_FAMILIES):
        return {"reasoning_effort": "medium"}
    return {}


def _calls(message: Message, extras: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for call in message.tool_calls:
        arguments = call.arguments
        if parsed_object(arguments) is None:
            # Servers that render templates parse the arguments, so invalid JSON is wrapped.
            arguments = json_bytes({"invalid_arguments": arguments}).decode()
        plain: dict[str, Any] = {
            "id": call.id,
            "type": "function",
            "function": {"name": sendable_name(call.name), "arguments": arguments},
        }
        if call.id in extras:
            plain["extra_content"] = extras[call.id]
        calls.append(plain)
    return calls


_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "refusal": "refusal",
}


class OpenAiReader(ReplyReader):
    """Reads a reply, which is complete after a finish reason. Reads on to `[DONE]`, because usage may
    follow."""

    def prepare(self) -> None:
        self._by_index: dict[int, CallDraft] = {}
        self._details: list[dict[str, Any]] = []  # OpenRouter's opaque reasoning
        self._usage: object = None
        self._guesses = 3  # attempts to find `around_text`

    def read_event(self, chunk: dict[str, Any], data: bytes) -> None:
        self.reply_id = self.reply_id or str(chunk.get("id") or "")
        if usage := chunk.get("usage"):
            self._usage = usage  # cumulative, so the last one counts
        for choice in chunk.get("choices") or ():
            if not choice.get("index"):  # the request asks for one choice
                self._read_choice(choice, chunk, data)

    def _read_choice(self, choice: dict[str, Any], chunk: dict[str, Any], data: bytes) -> None:
        delta = choice.get("delta") or choice.get("message") or {}
        content = delta.get("content")
        if len(delta) == 1 and type(content) is str:  # the usual delta
            self.progress.size += len(content.encode())
            self.texts.append(content)
            if self._guesses:
                self._guesses -= 1
                self.around_text = self.around_text or _around_text(chunk, data)
        elif delta:
            self._read_delta(delta)
        if reason := choice.get("finish_reason"):
            if reason == "error":
                raise self.failure("server", "the provider ended the reply with an error")
            self.finish = _FINISH.get(reason, "stop")

    def read_body(self, body: dict[str, Any]) -> None:
        self.read_event(body, b"")
        if body.get("choices"):
            self.finish = self.finish or "stop"  # a JSON object is always complete

    def _read_delta(self, delta: dict[str, Any]) -> None:
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        if details := delta.get("reasoning_details"):
            self._read_details(details, is_emitted=bool(thought))
        if thought:
            self.add_thinking(thought)
        content = delta.get("content")
        if isinstance(content, list):
            self._read_parts(content)
        elif content:
            self.add_text(content)
        if refusal := delta.get("refusal"):
            self.refused = True
            self.add_text(refusal)
        for call in delta.get("tool_calls") or ():
            self._read_call(call)

    def _read_parts(self, parts: list[dict[str, Any]]) -> None:
        """Reads content that is a list of text and thinking; thinking can be a list of texts."""
        for part in parts:
            if text := part.get("text"):
                self.add_text(text)
            thinking = part.get("thinking")
            if isinstance(thinking, str):
                self.add_thinking(thinking)
            for piece in thinking if isinstance(thinking, list) else ():
                self.add_thinking(piece.get("text") or "")

    def _read_details(self, details: list[dict[str, Any]], *, is_emitted: bool) -> None:
        """Joins the pieces of a reasoning block. Its text is thinking unless `is_emitted`."""
        for detail in details:
            text = detail.get("text") or detail.get("summary") or ""
            self.grow(len(text) + len(detail.get("data") or ""))
            if text and not is_emitted:
                self.add_thinking(text)
            last = self._details[-1] if self._details else {}
            place = detail.get("type"), detail.get("index")
            if place[1] is not None and place == (last.get("type"), last.get("index")):
                _join_detail(last, detail)
            else:
                self.grow(PART_COST)
                self._details.append(dict(detail))

    def _read_call(self, call: dict[str, Any]) -> None:
        function = call.get("function") or {}
        id, name = as_text(call.get("id") or ""), as_text(function.get("name") or "")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else json_bytes(arguments).decode()
        self.grow(len(id) + len(name))
        draft = self._draft(call.get("index"), id, name, begins=bool(arguments))
        draft.id = draft.id or id
        self.add(draft, name, arguments)
        draft.extra = call.get("extra_content") or draft.extra

    def _draft(self, index: int | None, id: str, name: str, *, begins: bool) -> CallDraft:
        """Returns the draft of a piece; a new one if the piece begins another call."""
        calls = self.calls
        if index is None:
            known = next((draft for draft in calls if id and draft.id == id), None)
            if known is not None:
                return known
            current = calls[-1] if calls else None
        else:
            current = self._by_index.get(index)
        if current is None or (name and _begins_another(current, id, name, begins=begins)):
            current = self.begin_call()
            if index is not None:
                self._by_index[index] = current
        return current

    def usage(self) -> Usage | None:
        usage = self._usage
        if not isinstance(usage, dict):
            return None
        input_tokens = count_in(usage, "prompt_tokens", -1)
        output_tokens = count_in(usage, "completion_tokens", -1)
        cached = count_in(usage.get("prompt_tokens_details"), "cached_tokens")
        cached = cached or count_in(usage, "prompt_cache_hit_tokens")
        reasoning = count_in(usage.get("completion_tokens_details"), "reasoning_tokens")
        return Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=min(cached, max(0, input_tokens)),
            reasoning_tokens=min(reasoning, max(0, output_tokens)),
            cost_usd=cost(usage["cost"]) if "cost" in usage else None,
        )

    def extras(self, calls: tuple[ToolCall, ...]) -> object:
        extras: dict[str, Any] = {}
        drafts = zip(calls, self.calls, strict=True)
        if calls and (opaque := {call.id: draft.extra for call, draft in drafts if draft.extra}):
            extras["calls"] = opaque
        if self._details:
            extras["reasoning_details"] = self._details
        return extras


_CONTENT = re.compile(rb'"content": ?"')


def _around_text(chunk: dict[str, Any], data: bytes) -> tuple[bytes, bytes] | None:
    """Returns the bytes before and after the text of an event; None if the event may hold anything
    else."""
    found = _CONTENT.search(data)
    begin = found.end() if found else 0
    head, tail = data[:begin], data[data.find(b'"', begin) :]
    try:
        other = from_json(head + b"other" + tail)
    except ValueError:
        return None
    choices = other.get("choices") or []
    if len(choices) != 1 or choices[0].get("finish_reason") or other.get("usage"):
        return None
    if choices[0].get("delta") != {"content": "other"}:
        return None
    choices[0]["delta"] = chunk["choices"][0]["delta"]
    return (head, tail) if other == chunk else None


def _begins_another(current: CallDraft, id: str, name: str, *, begins: bool) -> bool:
    """True if a piece with a name begins another call."""
    if id and current.id:
        return id != current.id
    if not current.name:
        return False
    return name != current.name or (begins and current.is_whole())


def _join_detail(into: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if key in {"text", "summary", "data"} and isinstance(value, str):
            into[key] = (into.get(key) or "") + value
        elif value is not None:
            into[key] = value
