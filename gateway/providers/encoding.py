"""What both wires share when they encode a request."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from gateway.domain.model import ModelRequest, ToolSpec

LONGEST_SENT = 64  # characters of a tool's name
_SENDABLE, _UNSENDABLE = re.compile(r"[A-Za-z0-9_-]{1,64}"), re.compile(r"[^A-Za-z0-9_-]+")
_MOST_HEADS = 64


class Heads:
    """All that a request says before its messages, encoded: the same for every call of an agent."""

    def __init__(self, encode: Callable[[ModelRequest], bytes]) -> None:
        self._encode = encode
        self._kept: dict[tuple[object, ...], tuple[tuple[ToolSpec, ...], bytes]] = {}

    def of(self, request: ModelRequest) -> bytes:
        one = request
        key = (one.model, one.max_tokens, one.stream, one.temperature, one.thinking, one.system)
        tools, head = self._kept.get(key, ((), b""))
        if not head or tools != one.tools:  # tools are compared: to hash each takes longer
            if len(self._kept) >= _MOST_HEADS:
                self._kept.clear()
            head = self._encode(request)
            self._kept[key] = one.tools, head
        return head


def parsed_object(arguments: str) -> dict[str, Any] | None:
    """A call's arguments as an object; None if they are none."""
    try:
        parsed = from_json(arguments)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def object_of(arguments: str) -> Mapping[str, Any]:
    """The same as wires insist on it: an object, also if the model wrote nonsense."""
    parsed = parsed_object(arguments)
    return {"invalid_arguments": arguments} if parsed is None else parsed


def sendable_name(name: str) -> str:
    """The name of a call as every server takes it: a model may have called what no tool is named."""
    if _SENDABLE.fullmatch(name):
        return name
    return _UNSENDABLE.sub("_", name)[:LONGEST_SENT] or "unnamed"


def json_bytes(value: object) -> bytes:
    """Compact JSON. A lone surrogate, which no wire can carry, becomes a replacement character."""
    try:
        return to_json(value)
    except ValueError:
        return to_json(_mended(value))


def _mended(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_mended(key): _mended(item) for key, item in value.items()}
        case list() | tuple():
            return [_mended(item) for item in value]
        case _:
            return value
