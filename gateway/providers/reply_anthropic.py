"""The messages wire: an answer's events, its blocks kept in order, unknown ones as they came."""

from typing import Any

from pydantic_core import from_json

from gateway.domain.messages import ToolCall
from gateway.domain.model import FinishReason, ModelReply, Usage
from gateway.providers.assembly import Assembly, CallDraft, count, json_bytes, optional_count

_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "pause",
    "refusal": "refusal",
}


class _Block:
    """A content block of which more may come."""

    __slots__ = ("draft", "input", "length", "raw", "type")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.type = raw.get("type")
        self.length = 0  # characters of text
        self.input: list[str] = []  # of an opaque block, JSON in pieces
        self.draft: CallDraft | None = None


class AnthropicReading:
    """Complete with `message_stop`, or when the bytes end after a stop reason."""

    __slots__ = ("_assembly", "_blocks", "_finish", "_id", "_is_done", "_order", "_usage")

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._blocks: dict[int, _Block] = {}
        self._order: list[_Block] = []
        self._finish: FinishReason | None = None
        self._id = ""
        self._is_done = False
        self._usage: dict[str, Any] = {}

    @property
    def is_done(self) -> bool:
        return self._is_done

    def take(self, chunk: dict[str, Any]) -> None:
        match chunk.get("type"):
            case "content_block_delta":
                self._take_delta(self._blocks[chunk["index"]], chunk["delta"])
            case "content_block_start":
                self._begin(chunk["index"], chunk["content_block"])
            case "message_delta":
                self._count(chunk.get("usage"))
                self._finished(chunk["delta"].get("stop_reason"))
            case "message_start":
                self._id = str(chunk["message"].get("id") or "")
                self._count(chunk["message"].get("usage"))
            case "message_stop":
                self._is_done = True
            case _:  # `ping`, `content_block_stop`, and events that nobody has invented yet
                pass

    def take_whole(self, body: dict[str, Any]) -> None:
        self._id = str(body.get("id") or "")
        for index, block in enumerate(body["content"]):
            self._begin(index, block)
        self._count(body.get("usage"))
        self._finished(body.get("stop_reason") or "end_turn")
        self._is_done = True

    def reply(self) -> ModelReply:
        if self._finish is None and not self._is_done:
            raise self._assembly.failed(
                "truncated", "the stream ended before the reply was complete"
            )
        return self._assembly.reply(
            self._finish or "stop", self._read_usage(), reply_id=self._id, extras=self._extras
        )

    def _finished(self, reason: str | None) -> None:
        if reason:
            self._finish = _FINISH.get(reason, "stop")

    def _begin(self, index: int, raw: dict[str, Any]) -> None:
        block = _Block(raw)
        self._blocks[index] = block
        self._order.append(block)
        if block.type == "text":
            self._say(block, raw.get("text") or "")
        elif block.type == "tool_use":
            self._begin_call(block)
        elif block.type == "thinking" and raw.get("thinking"):
            self._assembly.think(raw["thinking"])
        else:
            self._assembly.grow(len(json_bytes(raw)))

    def _begin_call(self, block: _Block) -> None:
        id, name = block.raw.get("id") or "", block.raw.get("name") or ""
        if not isinstance(id, str) or not isinstance(name, str):
            raise TypeError("a tool call's id or name is no text")
        block.draft = CallDraft(id, name)
        self._assembly.calls.append(block.draft)
        if given := block.raw.get("input"):  # all at once, where no deltas follow
            block.draft.arguments.append(json_bytes(given).decode())
        self._assembly.grow(len(id) + len(name) + sum(map(len, block.draft.arguments)))

    def _take_delta(self, block: _Block, delta: dict[str, Any]) -> None:
        match delta.get("type"):
            case "text_delta" if block.type == "text":
                self._say(block, delta["text"])
            case "input_json_delta":
                self._take_input(block, delta["partial_json"])
            case "thinking_delta":
                self._assembly.think(delta["thinking"])
                _append(block.raw, "thinking", delta["thinking"])
            case "signature_delta":
                _append(block.raw, "signature", delta["signature"])
            case "citations_delta":
                pass  # the text says it without them
            case _:
                self._take_opaque(block, delta)

    def _say(self, block: _Block, text: str) -> None:
        self._assembly.say(text)
        block.length += len(text)

    def _take_input(self, block: _Block, piece: str) -> None:
        self._assembly.grow(len(piece))
        pieces = block.input if block.draft is None else block.draft.arguments
        if piece:
            pieces.append(piece)

    def _take_opaque(self, block: _Block, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if key != "type" and isinstance(value, str):
                self._assembly.grow(len(value))
                _append(block.raw, key, value)

    def _count(self, usage: dict[str, Any] | None) -> None:
        """Later numbers are cumulative: they replace what was told before."""
        if usage:
            self._usage.update({key: told for key, told in usage.items() if told is not None})

    def _read_usage(self) -> Usage | None:
        usage = self._usage
        if not usage:
            return None
        cached = optional_count(usage.get("cache_read_input_tokens"))
        fresh = count(usage.get("input_tokens"))
        written = optional_count(usage.get("cache_creation_input_tokens"))
        return Usage(
            input_tokens=fresh + cached + written if fresh >= 0 else -1,
            output_tokens=count(usage.get("output_tokens")),
            cached_tokens=cached,
        )

    def _extras(self, calls: tuple[ToolCall, ...]) -> str | None:
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
        return None if is_plain else json_bytes({"layout": layout}).decode()


def _append(raw: dict[str, Any], key: str, piece: str) -> None:
    raw[key] = (raw.get(key) or "") + piece


def _whole_raw(block: _Block) -> dict[str, Any]:
    if not block.input:
        return block.raw
    try:
        return block.raw | {"input": from_json("".join(block.input))}
    except ValueError:
        return block.raw
