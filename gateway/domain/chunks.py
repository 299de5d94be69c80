"""What a listener of a run is told: one terminal chunk a run, always the last."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ChunkType = Literal[
    "thinking",
    "content",
    "source",
    "tool_call",
    "tool_result",
    "context_update",
    "system",
    "usage",
    "done",
    "error",
]
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


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk without its `seq`: the run's log numbers it."""

    type: ChunkType
    data: Mapping[str, object]
