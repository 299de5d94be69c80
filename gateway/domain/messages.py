"""What is said in a conversation, what it cost, and what a listener of a run is told."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil
from typing import Any, Literal, get_args

from gateway.domain.ids import NodeId, RunId

BYTES_A_TOKEN = 3.2  # measured over mixed prose and JSON; four is far too hopeful for JSON
MESSAGE_OVERHEAD = 4  # role and separators


def estimate_tokens(text: str) -> int:
    """Estimated tokens of a text; 0 for none."""
    return ceil((len(text) if text.isascii() else len(text.encode())) / BYTES_A_TOKEN)


def text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call. `estimated`: the provider did not say, or what it said was absurd."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None  # None: not known
    estimated: bool = False
    written_tokens: int = 0  # of the input, into the provider's cache

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens


# What a call of a provider's model costs in USD; None: nobody knows.
Price = Callable[[str, str, Usage], float | None]


def unpriced(_provider: str, _model: str, _usage: Usage) -> None:
    """Where nobody asks for a cost."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What stands behind a tool's result that models worked on; counted to the run that asked."""

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
    """A chunk without its `seq`: the run's log numbers it. `gateway/api/chunks.py` declares what each type holds."""

    type: str
    data: Mapping[str, object]


READS = "result"  # the tool that reads on
TAG = "tool-result-"
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
class Excerpt:
    """How much a model is shown of a result that is too large: characters of its begin and of its
    end. The tool `result` reads all `size` of them by the `reference`, if there is one."""

    head: int
    tail: int
    size: int
    reference: str = ""

    def of(self, content: str) -> str:
        """With a marker that names the reference."""
        reads = json.dumps({"id": self.reference, "offset": self.head})
        how = f"; the tool {READS} reads them: {reads}" if self.reference else ""
        left_out = f"[… {self.size - self.head - self.tail} characters left out{how} …]"
        return f"{content[: self.head]}\n{left_out}\n{content[len(content) - self.tail :]}"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a tool call; an error is a result too, and tells the model what to do. The
    `boundary` is random: a model is shown the content between two tags of that name, which nothing
    in the content can know. It is made once, so that the same bytes are sent again."""

    call_id: str
    name: str
    content: str
    is_error: bool = False
    duration_ms: float = 0.0
    spent: tuple[Spent, ...] = ()  # by models that worked for it; no conversation keeps it
    boundary: str = field(default="", compare=False)
    excerpt: Excerpt | None = None

    @property
    def for_model(self) -> str:
        """As a model is shown it."""
        content = self.content if self.excerpt is None else self.excerpt.of(self.content)
        return within_boundary(content, self.boundary)


def within_boundary(content: str, boundary: str) -> str:
    """Between two tags; as it is if there is none, as in what was kept before there were any."""
    if not boundary:
        return content
    return f"<{TAG}{boundary}>\n{content}\n</{TAG}{boundary}>"


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
    # Type and text: shown beside it, and no model sees it.
    notices: tuple[tuple[SystemType, str], ...] = ()
    # What was made of this message and is needed again: its encoding for a wire, its size in bytes.
    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


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
