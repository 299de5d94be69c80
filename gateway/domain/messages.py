"""What is said in a conversation: messages with their tool calls and results, and nodes of the tree."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from gateway.domain.chunks import SystemType
from gateway.domain.ids import NodeId, RunId
from gateway.domain.usage import Spent

# A summary is nothing that anybody said: it stands in the tree for what was said before it.
Role = Literal["user", "assistant", "tool", "summary"]
NodeStatus = Literal["complete", "partial", "cancelled", "error"]
Standing = Literal["shown", "archived", "erased"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a model asks for; `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a tool call; an error is a result too, and tells the model what to do."""

    call_id: str
    name: str
    content: str
    is_error: bool = False
    duration_ms: float = 0.0
    spent: tuple[Spent, ...] = ()  # by models that worked for it; no conversation keeps it


@dataclass(frozen=True, slots=True)
class Extras:
    """Opaque JSON text that a provider wants back unchanged, and that nobody else may see."""

    provider: str
    json: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message as a model reads it. A `tool` message holds exactly one `result`."""

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    result: ToolResult | None = None
    thinking: str = ""
    extras: Extras | None = None
    notices: tuple[
        tuple[SystemType, str], ...
    ] = ()  # type and text: told beside it, and no model sees it
    # What a wire made of this message, kept so that it is encoded once in its life.
    kept: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Node:
    """A message in its place in the tree: append-only, never changed once written."""

    id: NodeId
    parent_id: NodeId | None
    run_id: RunId
    message: Message
    created_at: datetime
    token_count: int
    status: NodeStatus = "complete"
    model: str | None = None
    seq: int = 0  # position in its session, given by the store when it is appended
    label: str | None = None
    is_checkpoint: bool = False
    standing: Standing = "shown"  # in the tree; one that is erased holds no text
