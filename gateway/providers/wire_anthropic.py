"""The messages wire: a request as bytes, and an answer's events in order."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

from gateway.domain.messages import Message, ToolCall, Usage
from gateway.domain.model import FinishReason, ModelRequest
from gateway.providers.prices import CANNOT_THINK, LEAST_THINKING, THINKS_BY_BUDGET
from gateway.providers.wire import (
    PART_COST,
    CallDraft,
    ReplyReader,
    WireEncoder,
    as_text,
    count_in,
    json_bytes,
    parsed_object,
    sendable_name,
    tools_of,
)

VERSION = "2023-06-01"
_NO_TEXT = "(no text)"  # the wire refuses a message of nothing but white space


class AnthropicEncoder(WireEncoder):
    path = "/messages"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "anthropic-version": VERSION,
        }
        return headers | ({"x-api-key": api_key} if api_key else {})

    def body(self, request: ModelRequest) -> bytes:
        key, role = f"anthropic:{self._provider}", b""
        said = [self.head(request)]
        for message in request.messages:
            piece = message.kept.get(key)
            if piece is None:
                piece = message.kept[key] = b",".join(map(json_bytes, self._plain(message)))
            if not piece:
                continue
            now = b"assistant" if message.role == "assistant" else b"user"
            if now == role:  # neighbours of one role become one message
                said.append(b",")
            else:
                said += (b"]}," if role else b"", b'{"role":"', now, b'","content":[')
            role = now
            said.append(piece)
        return b"".join(said) + (b"]}]}" if role else b"]}")

    def encode_head(self, request: ModelRequest) -> bytes:
        fields: dict[str, Any] = {
            "model": request.model,
            "max_tokens": request.max_tokens,
            "stream": request.stream,
        }
        if thinking := thinking_of(request):
            fields["thinking"] = thinking
        elif request.temperature is not None:  # the wire takes only one of the two
            fields["temperature"] = request.temperature
        if request.system:
            fields["system"] = request.system
        if request.tools:
            fields["tools"] = tools_of(request, "input_schema")
        return json_bytes(fields)[:-1] + b',"messages":['

    def _plain(self, message: Message) -> list[dict[str, Any]]:
        if message.result is not None:
            block: dict[str, Any] = {
                "type": "tool_result",
                "tool_use_id": message.result.call_id,
                "content": message.result.for_model,
            }
            return [block | {"is_error": True}] if message.result.is_error else [block]
        if message.role == "user":
            return [_text(message.text if message.text.strip() else _NO_TEXT)]
        if message.extras is not None and message.extras.provider == self._provider:
            return _as_it_came(message, from_json(message.extras.json)["layout"])
        return _said(message)


def thinking_of(request: ModelRequest) -> dict[str, Any] | None:
    """How this model is asked to think: by itself, within a budget, or not at all."""
    if not request.thinking or CANNOT_THINK.search(request.model):
        return None
    if not THINKS_BY_BUDGET.search(request.model):
        return {"type": "adaptive", "display": "summarized"}  # newer models hide it otherwise
    if request.max_tokens <= LEAST_THINKING:
        return None
    return {"type": "enabled", "budget_tokens": max(LEAST_THINKING, request.max_tokens // 2)}


def _said(message: Message) -> list[dict[str, Any]]:
    blocks = [_text(message.text)] if message.text.strip() else []
    for call in message.tool_calls:
        given = parsed_object(call.arguments)
        if given is None:  # the wire insists on an object, also where the model wrote nonsense
            given = {"invalid_arguments": call.arguments}
        name = sendable_name(call.name)
        blocks.append({"type": "tool_use", "id": call.id, "name": name, "input": given})
    return blocks


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _as_it_came(message: Message, layout: list[Any]) -> list[dict[str, Any]]:
    """The reply in its own order: an opaque block as it is, a number for so many characters of
    the text, None for the next call. Where the message was changed since, opaque blocks lead."""
    opaque = [item for item in layout if isinstance(item, dict)]
    lengths = sum(item for item in layout if isinstance(item, int))
    if lengths != len(message.text) or layout.count(None) != len(message.tool_calls):
        return opaque + _said(message)
    calls = iter([block for block in _said(message) if block["type"] == "tool_use"])
    blocks: list[dict[str, Any]] = []
    start = 0
    for item in layout:
        if isinstance(item, dict):
            blocks.append(item)
        elif item is None:
            blocks.append(next(calls))
        else:
            text = message.text[start : start + item]
            start += item
            if text.strip():
                blocks.append(_text(text))
    return blocks


_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "pause",
    "refusal": "refusal",
}
_INPUT = "partial_json"


class _Block:
    """A content block of which more may come."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.type = raw.get("type")
        self.length = 0  # characters of text
        self.pieces: dict[str, list[str]] = {}  # of what only the provider can read, by field
        self.draft: CallDraft | None = None


class AnthropicReader(ReplyReader):
    """Complete with `message_stop`, or when the bytes end after a stop reason."""

    finish_at_end = "stop"

    def prepare(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._order: list[_Block] = []
        self._usage: dict[str, Any] = {}

    def read_event(self, chunk: dict[str, Any], data: bytes) -> None:
        match chunk.get("type"):
            case "content_block_delta":
                self._read_delta(self._blocks[chunk["index"]], chunk["delta"])
            case "content_block_start":
                self._begin(chunk["index"], chunk["content_block"])
            case "message_delta":
                self._read_usage(chunk.get("usage"))
                self._finished(chunk["delta"].get("stop_reason"))
            case "message_start":
                self.reply_id = str(chunk["message"].get("id") or "")
                self._read_usage(chunk["message"].get("usage"))
            case "message_stop":
                self.has_ended = True
                self.finish = self.finish or "stop"
            case _:  # `ping`, `content_block_stop`, and events that nobody has invented yet
                pass

    def read_body(self, body: dict[str, Any]) -> None:
        self.reply_id = str(body.get("id") or "")
        for index, block in enumerate(body["content"]):
            self._begin(index, block)
        self._read_usage(body.get("usage"))
        self._finished(body.get("stop_reason") or "end_turn")

    def _finished(self, reason: str | None) -> None:
        if reason:
            self.finish = _FINISH.get(reason, "stop")

    def _begin(self, index: int, raw: dict[str, Any]) -> None:
        block = _Block(raw)
        self.grow(PART_COST)
        self._blocks[index] = block
        self._order.append(block)
        if block.type == "text":
            self._add_text(block, raw.get("text") or "")
        elif block.type == "tool_use":
            self._begin_call(block)
        elif block.type == "thinking" and raw.get("thinking"):
            self.add_thinking(raw["thinking"])
        else:
            self.grow(len(json_bytes(raw)))

    def _begin_call(self, block: _Block) -> None:
        block.draft = self.begin_call(as_text(block.raw.get("id") or ""))
        self.add(block.draft, block.raw.get("name") or "")
        if given := block.raw.get("input"):  # all at once, where no deltas follow
            self.add(block.draft, "", json_bytes(given).decode())
        self.grow(len(block.draft.id))

    def _read_delta(self, block: _Block, delta: dict[str, Any]) -> None:
        match delta.get("type"):
            case "text_delta" if block.type == "text":
                self._add_text(block, delta["text"])
            case "input_json_delta":
                self._read_input(block, delta["partial_json"])
            case "thinking_delta":
                self.add_thinking(delta["thinking"])
                block.pieces.setdefault("thinking", []).append(delta["thinking"])
            case "citations_delta":
                pass  # the text says it without them
            case _:
                self._read_opaque(block, delta)

    def _add_text(self, block: _Block, text: str) -> None:
        self.add_text(text)
        block.length += len(text)

    def _read_input(self, block: _Block, piece: str) -> None:
        if block.draft is None:
            self.grow(len(as_text(piece)))
            block.pieces.setdefault(_INPUT, []).append(piece)
        else:
            self.add(block.draft, "", piece)

    def _read_opaque(self, block: _Block, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if key != "type" and isinstance(value, str):
                self.grow(len(value))
                block.pieces.setdefault(key, []).append(value)

    def _read_usage(self, usage: dict[str, Any] | None) -> None:
        """Later numbers are cumulative: they replace earlier ones."""
        if usage:
            self._usage.update({key: count for key, count in usage.items() if count is not None})
            self.count(self.usage())

    def usage(self) -> Usage | None:
        if not self._usage:
            return None
        cached = count_in(self._usage, "cache_read_input_tokens")
        written = count_in(self._usage, "cache_creation_input_tokens")
        fresh = count_in(self._usage, "input_tokens", -1)
        return Usage(
            input_tokens=fresh + cached + written if fresh >= 0 else -1,
            output_tokens=count_in(self._usage, "output_tokens", -1),
            cached_tokens=cached,
            written_tokens=written,
        )

    def extras(self, calls: tuple[ToolCall, ...]) -> object:
        """How the blocks followed each other, if there are some that only the provider can read."""
        layout: list[object] = []
        for block in self._order:
            if block.type == "text":
                layout.append(block.length)
            elif block.draft is not None:
                layout.append(None)
            else:
                layout.append(_whole_raw(block))
        is_plain = all(item is None or isinstance(item, int) for item in layout)
        return None if is_plain else {"layout": layout}


def _whole_raw(block: _Block) -> dict[str, Any]:
    raw = dict(block.raw)
    for key, pieces in block.pieces.items():
        said = "".join(pieces)
        if key != _INPUT:
            raw[key] = f"{raw.get(key) or ''}{said}"
        elif said:
            with suppress(ValueError):
                raw["input"] = from_json(said)
    return raw
