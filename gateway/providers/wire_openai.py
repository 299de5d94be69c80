"""The chat completions wire: a request as bytes."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pydantic_core import from_json

from gateway.domain.messages import Message
from gateway.domain.model import ModelRequest
from gateway.domain.providers import ProviderDef
from gateway.providers.assembly import (
    json_bytes,
    object_of,
    parsed_object,
    sendable_name,
    without_messages,
)
from gateway.providers.presets import Quirks, quirks_of
from gateway.providers.thinking import REASONING_FAMILIES

PATH = "/chat/completions"


class OpenAiEncoder:
    """Encodes each message once in its life; a request joins what is kept."""

    path = PATH

    def __init__(self, definition: ProviderDef) -> None:
        self._name = definition.name
        self._own_key = f"openai:{definition.name}"
        self._quirks = quirks_of(definition)
        self._has_swapped = False

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        return headers | ({"authorization": f"Bearer {api_key}"} if api_key else {})

    def body(self, request: ModelRequest) -> bytes:
        # Gemini 3 refuses calls without a signature, so those of other models get one that says so.
        signature = self._quirks.foreign_signature if "gemini-3" in request.model else None
        messages = b",".join([self._message(one, signature) for one in request.messages])
        head = _head(self._quirks, without_messages(request))
        if request.system and messages:
            head += b","
        return head + messages + b"]}"

    def adapt(self, refusal: str) -> bool:
        """Whether the server's words tell a quirk that was not known yet; it is kept from now on."""
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
        return True

    def _message(self, message: Message, signature: str | None) -> bytes:
        own = message.extras is not None and message.extras.provider == self._name
        signature = signature if message.tool_calls else None
        key = self._own_key if own or signature else "openai"
        key += ":signed" if signature else ""
        kept = message.kept.get(key)
        if kept is None:
            kept = message.kept[key] = json_bytes(_plain(message, signature, extras_too=own))
        return kept


@lru_cache(maxsize=64)
def _head(quirks: Quirks, request: ModelRequest) -> bytes:
    """All that comes before the messages: the same for every call of an agent."""
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
        functions = [
            {"name": t.name, "description": t.description, "parameters": from_json(t.parameters)}
            for t in request.tools
        ]
        fields["tools"] = [{"type": "function", "function": told} for told in functions]
    head = json_bytes(fields)[:-1] + b',"messages":['
    if request.system:
        head += json_bytes({"role": "system", "content": request.system})
    return head


def _thinking(quirks: Quirks, model: str) -> dict[str, Any]:
    """Asks for thinking only where the server is known to take the field."""
    if quirks.thinking_by == "reasoning_enabled":
        return {"reasoning": {"enabled": True}}
    if quirks.thinking_by == "reasoning_effort" and model.startswith(REASONING_FAMILIES):
        return {"reasoning_effort": "medium"}
    return {}


def _plain(message: Message, signature: str | None, *, extras_too: bool) -> dict[str, Any]:
    if message.result is not None:
        result = message.result
        return {"role": "tool", "tool_call_id": result.call_id, "content": result.told}
    if message.role == "user":
        return {"role": "user", "content": message.text}
    plain: dict[str, Any] = {"role": "assistant", "content": message.text}
    extras: Mapping[str, Any] = {}
    if extras_too and message.extras is not None:
        extras = from_json(message.extras.json)
    if message.tool_calls:
        plain["content"] = message.text or None
        plain["tool_calls"] = calls = _calls(message, extras.get("calls", {}))
        if signature:  # calls that are made side by side have one together, at the first of them
            calls[0].setdefault("extra_content", {"google": {"thought_signature": signature}})
    if details := extras.get("reasoning_details"):
        plain["reasoning_details"] = details
    return plain


def _calls(message: Message, extras: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for call in message.tool_calls:
        # Servers that render a template parse the arguments: what a model got wrong is wrapped.
        is_object = parsed_object(call.arguments) is not None
        arguments = call.arguments if is_object else json_bytes(object_of(call.arguments)).decode()
        plain: dict[str, Any] = {
            "id": call.id,
            "type": "function",
            "function": {"name": sendable_name(call.name), "arguments": arguments},
        }
        if call.id in extras:
            plain["extra_content"] = extras[call.id]
        calls.append(plain)
    return calls
