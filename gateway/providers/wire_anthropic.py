"""The messages wire: encodes requests and reads the events of an answer."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

from gateway.domain.messages import Message, ToolCall, Usage
from gateway.domain.model import FinishReason, ModelRequest
from gateway.providers.prices import CANNOT_THINK, MIN_THINKING, THINKS_BY_BUDGET
from gateway.providers.wire import (
    PART_COST,
    CallDraft,
    ReplyReader,
    WireEncoder,
    as_text,
    count_in,
    encode_tools,
    json_bytes,
    parsed_object,
    sendable_name,
)

VERSION = "2023-06-01"
_NO_TEXT = "(no text)"  # the wire refuses a message of white space


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
        parts = [self.head(request)]
        for message in request.messages:
            piece = message.kept.get(key)
            if piece is None:
                piece = message.kept[key] = b",".join(map(json_bytes, self._plain(message)))
            if not piece:
                continue
            now = b"assistant" if message.role == "assistant" else b"user"
            if now == role:  # successive messages of one role become one message
                parts.append(b",")
            else:
                parts += (b"]}," if role else b"", b'{"role":"', now, b'","content":[')
            role = now
            parts.append(piece)
        return b"".join(parts) + (b"]}]}" if role else b"]}")

    def encode_head(self, request: ModelRequest) -> bytes:
        fields: dict[str, Any] = {
            "model": request.model,
            "max_tokens": request.max_tokens,
            "stream": request.stream,
        }
        if thinking := thinking_of(request):
            fields["thinking"] = thinking
        elif request.temperature is not None:  # the wire refuses both together
            fields["temperature"] = request.temperature
        if request.system:
            fields["system"] = request.system
        if request.tools:
            fields["tools"] = encode_tools(request, "input_schema")
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
            return _original_blocks(message, from_json(message.extras.json)["layout"])
        return _blocks(message)


def thinking_of(request: ModelRequest) -> dict[str, Any] | None:
    """Returns the thinking parameter for a model: adaptive, a budget, or None."""
    if not request.thinking or CANNOT_THINK.search(request.model):
        return None
    if not THINKS_BY_BUDGET.search(request.model):
        return {"type": "adaptive", "display": "summarized"}  # by default newer models hide it
    if request.max_tokens <= MIN_THINKING:
        return None
    return {"type": "enabled", "budget_tokens": max(MIN_THINKING, request.max_tokens // 2)}


def _blocks(message: Message) -> list[dict[str, Any]]:
    blocks = [_text(message.text)] if message.text.strip() else []
    for call in message.tool_calls:
        given = parsed_object(call.arguments)
        if given is None:  # the wire requires an object, also for invalid arguments
            given = {"invalid_arguments": call.arguments}
        name = sendable_name(call.name)
        blocks.append({"type": "tool_use", "id": call.id, "name": name, "input": given})
    return blocks


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _original_blocks(message: Message, layout: list[Any]) -> list[dict[str, Any]]:
    """Restores the block order of a reply. An item of the layout is an opaque block, a number of
    characters of the text, or None for the next call. If the message was changed since, opaque blocks come
    first."""
    opaque = [item for item in layout if isinstance(item, dict)]
    lengths = sum(item for item in layout if isinstance(item, int))
    if lengths != len(message.text) or layout.count(None) != len(message.tool_calls):
        return opaque + _blocks(message)
    calls = iter([block for block in _blocks(message) if block["type"] == "tool_use"])
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
    """A content block that is still arriving."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.type = raw.get("type")
        self.length = 0  # characters of text
        self.pieces: dict[str, list[str]] = {}  # opaque fields, by name
        self.draft: CallDraft | None = None

    def layout(self) -> int | dict[str, Any] | None:
        """Returns the item of the layout: a length of text, None for a call, or the opaque block."""
        if self.type == "text":
            return self.length
        if self.draft is not None:
            return None
        raw = dict(self.raw)
        for key, pieces in self.pieces.items():
            text = "".join(pieces)
            if key != _INPUT:
                raw[key] = f"{raw.get(key) or ''}{text}"
            elif text:
                with suppress(ValueError):
                    raw["input"] = from_json(text)
        return raw


class AnthropicReader(ReplyReader):
    """Reads a reply, which is complete after `message_stop`, or if the bytes end after a stop reason."""

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
            case _:  # `ping`, `content_block_stop` and unknown events
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
            block.draft = self.begin_call(as_text(raw.get("id") or ""))
            self.add(block.draft, raw.get("name") or "")
            if given := raw.get("input"):  # complete at once, without deltas
                self.add(block.draft, "", json_bytes(given).decode())
            self.grow(len(block.draft.id))
        elif block.type == "thinking" and raw.get("thinking"):
            self.add_thinking(raw["thinking"])
        else:
            self.grow(len(json_bytes(raw)))

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
                pass  # not shown
            case _:
                for key, value in delta.items():
                    if key != "type" and isinstance(value, str):
                        self.grow(len(value))
                        block.pieces.setdefault(key, []).append(value)

    def _add_text(self, block: _Block, text: str) -> None:
        self.add_text(text)
        block.length += len(text)

    def _read_input(self, block: _Block, piece: str) -> None:
        if block.draft is None:
            self.grow(len(as_text(piece)))
            block.pieces.setdefault(_INPUT, []).append(piece)
        else:
            self.add(block.draft, "", piece)

    def _read_usage(self, usage: dict[str, Any] | None) -> None:
        """Updates the usage; the counts are cumulative."""
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
        """Returns the order of the blocks if some of them are opaque."""
        layout = [block.layout() for block in self._order]
        return {"layout": layout} if any(isinstance(item, dict) for item in layout) else None
