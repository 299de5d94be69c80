"""Messages of a conversation, their usage, and the chunks that listeners of a run get."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil
from typing import Any, Literal, get_args

from gateway.domain.ids import NodeId, RunId

BYTES_A_TOKEN = 3.2  # measured over mixed prose and JSON; 4 would underestimate JSON
MESSAGE_OVERHEAD = 4  # role and separators


def estimate_tokens(text: str) -> int:
    """Estimates the tokens of a text; 0 for an empty text."""
    return ceil((len(text) if text.isascii() else len(text.encode())) / BYTES_A_TOKEN)


def text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of a call. `estimated`: the provider reported no usage, or an absurd one."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None  # None: unknown
    estimated: bool = False
    written_tokens: int = 0  # input tokens written to the provider's cache

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens


# Returns the cost in USD of a call to a provider's model; None: unknown.
Price = Callable[[str, str, Usage], float | None]


def unpriced(_provider: str, _model: str, _usage: Usage) -> None:
    """A Price for callers that need no cost."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The usage of models behind a tool's result; it counts towards the calling run."""

    usage: Usage
    provider: str
    model: str


DoneReason = Literal[
    "answered",
    "max_iterations",
    "token_budget",
    "timeout",
    "no_progress",
    "error_limit",
    "cancelled",
    "merged",
    "superseded",
]
SystemType = Literal["limit_warning", "limit_reached", "no_progress", "error_limit", "notice"]
ErrorType = Literal["provider_error", "budget_exceeded", "config_error", "internal_error"]
ERROR_TYPES = frozenset(get_args(ErrorType))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk without its `seq`, which the run's log assigns. `gateway/api/chunks.py` declares the
    data of each type."""

    type: str
    data: Mapping[str, object]


READS = "result"  # the tool that reads the rest of an excerpt
TAG = "tool-result-"
# A summary stands in the tree for the messages above it; no person and no model said it.
Role = Literal["user", "assistant", "tool", "summary"]
NodeStatus = Literal["complete", "partial", "cancelled", "error"]
Standing = Literal["shown", "archived", "erased"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool; `arguments` is JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The part of a large result that a model gets: characters of its beginning and of its end. The
    tool `result` reads all `size` characters by the `reference`, if there is one."""

    head: int
    tail: int
    size: int
    reference: str = ""

    def of(self, content: str) -> str:
        """Returns the excerpt with a marker that names the reference."""
        reads = json.dumps({"id": self.reference, "offset": self.head})
        how = f"; the tool {READS} reads them: {reads}" if self.reference else ""
        left_out = f"[… {self.size - self.head - self.tail} characters left out{how} …]"
        return f"{content[: self.head]}\n{left_out}\n{content[len(content) - self.tail :]}"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call; an error is a result that tells the model what to do. A model gets
    the content between two tags with the random `boundary`, which no content can predict. The
    boundary is generated once, so that repeated requests are byte-identical."""

    call_id: str
    name: str
    content: str
    is_error: bool = False
    duration_ms: float = 0.0
    spent: tuple[Spent, ...] = ()  # usage of models for it; not stored in conversations
    boundary: str = field(default="", compare=False)
    excerpt: Excerpt | None = None

    @property
    def for_model(self) -> str:
        """The text that models get."""
        content = self.content if self.excerpt is None else self.excerpt.of(self.content)
        return within_boundary(content, self.boundary)


def within_boundary(content: str, boundary: str) -> str:
    """Puts the content between two tags; without a boundary (results of old versions) returns it
    unchanged."""
    if not boundary:
        return content
    return f"<{TAG}{boundary}>\n{content}\n</{TAG}{boundary}>"


@dataclass(frozen=True, slots=True)
class Extras:
    """Opaque JSON text that a provider wants back unchanged and that nothing else may read."""

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
    # Type and text; clients get them beside the message, models do not.
    notices: tuple[tuple[SystemType, str], ...] = ()
    # Cached derivations of the message: its encoding for a wire, its size in bytes.
    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Node:
    """A message at its place in the tree; append-only, never changed once written."""

    id: NodeId
    parent_id: NodeId | None
    run_id: RunId
    message: Message
    created_at: datetime
    token_count: int
    status: NodeStatus = "complete"
    model: str | None = None
    seq: int = 0  # position in its session; the store assigns it
    label: str | None = None
    is_checkpoint: bool = False
    standing: Standing = "shown"  # an erased node holds no text
