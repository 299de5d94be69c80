"""The messages wire: a request as bytes."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic_core import from_json

from gateway.domain.messages import Message
from gateway.domain.model import ModelRequest
from gateway.domain.providers import ProviderDef
from gateway.providers.assembly import json_bytes, object_of, sendable_name, without_messages
from gateway.providers.thinking import CANNOT_THINK, LEAST_THINKING, THINKS_BY_BUDGET

PATH = "/messages"
VERSION = "2023-06-01"
_NO_TEXT = "(no text)"  # the wire refuses a message of nothing but white space


class AnthropicEncoder:
    """Encodes each message's content blocks once in its life; a request joins what is kept."""

    path = PATH

    def __init__(self, definition: ProviderDef) -> None:
        self._name = definition.name
        self._own_key = f"anthropic:{definition.name}"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "anthropic-version": VERSION,
        }
        return headers | ({"x-api-key": api_key} if api_key else {})

    def body(self, request: ModelRequest) -> bytes:
        turns: list[bytes] = []
        blocks: list[bytes] = []
        role = b""
        for message in request.messages:
            piece = self._blocks(message)
            if not piece:
                continue
            now = b"assistant" if message.role == "assistant" else b"user"
            if now != role and blocks:  # neighbours of one role become one message
                turns.append(_turn(role, blocks))
                blocks = []
            role = now
            blocks.append(piece)
        if blocks:
            turns.append(_turn(role, blocks))
        return _head(without_messages(request)) + b",".join(turns) + b"]}"

    def adapt(self, refusal: str) -> bool:
        """Servers of this wire have no quirks to learn."""
        return False

    def _blocks(self, message: Message) -> bytes:
        own = message.extras is not None and message.extras.provider == self._name
        key = self._own_key if own else "anthropic"
        kept = message.kept.get(key)
        if kept is None:
            blocks = _plain_blocks(message, extras_too=own)
            kept = message.kept[key] = b",".join([json_bytes(block) for block in blocks])
        return kept


def _turn(role: bytes, blocks: list[bytes]) -> bytes:
    return b'{"role":"' + role + b'","content":[' + b",".join(blocks) + b"]}"


@lru_cache(maxsize=64)
def _head(request: ModelRequest) -> bytes:
    """All that comes before the messages: the same for every call of an agent."""
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
        fields["tools"] = [
            {"name": t.name, "description": t.description, "input_schema": from_json(t.parameters)}
            for t in request.tools
        ]
    return json_bytes(fields)[:-1] + b',"messages":['


def thinking_of(request: ModelRequest) -> dict[str, Any] | None:
    """How this model is asked to think: by itself, within a budget, or not at all."""
    if not request.thinking or CANNOT_THINK.search(request.model):
        return None
    if not THINKS_BY_BUDGET.search(request.model):
        return {"type": "adaptive", "display": "summarized"}  # newer models hide it otherwise
    if request.max_tokens <= LEAST_THINKING:
        return None
    return {"type": "enabled", "budget_tokens": max(LEAST_THINKING, request.max_tokens // 2)}


def _plain_blocks(message: Message, *, extras_too: bool) -> list[dict[str, Any]]:
    if message.result is not None:
        block: dict[str, Any] = {
            "type": "tool_result",
            "tool_use_id": message.result.call_id,
            "content": message.result.told,
        }
        return [block | {"is_error": True}] if message.result.is_error else [block]
    if message.role == "user":
        return [_text(message.text if message.text.strip() else _NO_TEXT)]
    if extras_too and message.extras is not None:
        return _as_it_came(message, from_json(message.extras.json)["layout"])
    return _said(message)


def _said(message: Message) -> list[dict[str, Any]]:
    blocks = [_text(message.text)] if message.text.strip() else []
    for call in message.tool_calls:
        given = object_of(call.arguments)
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
