"""What a call of a foreign tool gave, as text for a model."""

import json
from collections.abc import Callable

import mcp_types as types

from gateway.domain.errors import ToolFailed

Problem = Callable[[object], str | None]


def told(result: types.CallToolResult, problem: Problem | None = None) -> str:
    """Raises ToolFailed if it is an error, or not what the tool promised."""
    text = "\n\n".join(_part(one) for one in result.content)
    if result.is_error:
        raise ToolFailed(text or "The tool failed and did not say why.")
    facts = result.structured_content
    wrong = problem(facts) if problem and facts is not None else None
    if wrong:
        raise ToolFailed(f"The tool gave a result that does not fit its own schema: {wrong}.")
    if not text and facts is not None:
        return json.dumps(facts, ensure_ascii=False)
    return text


def _part(part: types.ContentBlock) -> str:
    match part:
        case types.TextContent():
            return part.text
        case types.ImageContent() | types.AudioContent():
            return _unseen(part.mime_type, part.data)
        case types.ResourceLink():
            return f"[resource: {part.name} {part.uri}]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as inner):
            return inner.text
        case types.EmbeddedResource(resource=types.BlobResourceContents() as blob):
            return _unseen(blob.mime_type or "unknown type", blob.blob)
    raise ToolFailed("The tool gave a result of a kind that is not known here.")


def _unseen(kind: str, packed: str) -> str:
    """The size of what base64 holds, without unpacking it."""
    size = len(packed) * 3 // 4 - packed[-2:].count("=")
    return f"[{kind}, {size} bytes: not shown]"
