"""The messages wire: an answer's events, its blocks kept in order, unknown ones as they came."""

from contextlib import suppress
from typing import Any

from pydantic_core import from_json

from gateway.domain.messages import ToolCall
from gateway.domain.model import FinishReason, ModelReply
from gateway.domain.usage import Usage
from gateway.providers.assembly import (
    PART_COST,
    Assembly,
    CallDraft,
    count,
    json_bytes,
    optional_count,
)

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


class AnthropicReading:
    """Complete with `message_stop`, or when the bytes end after a stop reason."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._blocks: dict[int, _Block] = {}
        self._order: list[_Block] = []
        self._finish: FinishReason | None = None
        self._id = ""
        self.is_done = False
        self._usage: dict[str, Any] = {}

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
                self.is_done = True
            case _:  # `ping`, `content_block_stop`, and events that nobody has invented yet
                pass

    def take_whole(self, body: dict[str, Any]) -> None:
        self._id = str(body.get("id") or "")
        for index, block in enumerate(body["content"]):
            self._begin(index, block)
        self._count(body.get("usage"))
        self._finished(body.get("stop_reason") or "end_turn")
        self.is_done = True

    def reply(self) -> ModelReply:
        finish = self._finish or ("stop" if self.is_done else None)
        return self._assembly.reply(
            finish, self._read_usage(), reply_id=self._id, extras=self._extras
        )

    def _finished(self, reason: str | None) -> None:
        if reason:
            self._finish = _FINISH.get(reason, "stop")

    def _begin(self, index: int, raw: dict[str, Any]) -> None:
        block = _Block(raw)
        self._assembly.grow(PART_COST)
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
        block.draft = self._assembly.begin_call(id, name)
        if given := block.raw.get("input"):  # all at once, where no deltas follow
            self._assembly.add(block.draft, "", json_bytes(given).decode())
        self._assembly.grow(len(id))

    def _take_delta(self, block: _Block, delta: dict[str, Any]) -> None:
        match delta.get("type"):
            case "text_delta" if block.type == "text":
                self._say(block, delta["text"])
            case "input_json_delta":
                self._take_input(block, delta["partial_json"])
            case "thinking_delta":
                self._assembly.think(delta["thinking"])
                block.pieces.setdefault("thinking", []).append(delta["thinking"])
            case "citations_delta":
                pass  # the text says it without them
            case _:
                self._take_opaque(block, delta)

    def _say(self, block: _Block, text: str) -> None:
        self._assembly.say(text)
        block.length += len(text)

    def _take_input(self, block: _Block, piece: str) -> None:
        if not isinstance(piece, str):
            raise TypeError("a piece of a call's arguments is no text")
        if block.draft is None:
            self._assembly.grow(len(piece))
            block.pieces.setdefault(_INPUT, []).append(piece)
        else:
            self._assembly.add(block.draft, "", piece)

    def _take_opaque(self, block: _Block, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if key != "type" and isinstance(value, str):
                self._assembly.grow(len(value))
                block.pieces.setdefault(key, []).append(value)

    def _count(self, usage: dict[str, Any] | None) -> None:
        """Later numbers are cumulative: they replace what was told before."""
        if usage:
            self._usage.update({key: told for key, told in usage.items() if told is not None})
            self._assembly.count(self._read_usage())

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
            written_tokens=written,
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
