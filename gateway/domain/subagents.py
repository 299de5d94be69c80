"""Agents that work for agents, and results that are too large to be shown whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from gateway.domain.ids import RunId, SessionKey

DELEGATE = "delegate_"  # so begin the names of the tools that subagents are
MOST_DEPTH = 2  # a subagent may have one of its own, and that one none


@dataclass(frozen=True, slots=True)
class SubagentDef:
    """What is absent is as its parent has it."""

    name: str
    prompt_path: str
    description: str = ""
    tools: tuple[str, ...] = ()
    max_turns: int = 10
    timeout_seconds: int = 1_200
    provider: str | None = None
    model: str | None = None
    context_window: int | None = None  # of its own model
    output_limit: int | None = None  # tokens of a reply of its own model

    @property
    def tool(self) -> str:
        """What the tool is called that its parent has."""
        return f"{DELEGATE}{self.name}"


@dataclass(frozen=True, slots=True)
class Delegation:
    """When a subagent reads a tool's result first. `items` by a tool's bare name."""

    is_enabled: bool = False
    subagent: str = "librarian"
    token_estimate: int = 4_000
    items: Mapping[str, int] = field(
        default_factory=lambda: {
            "vault_search": 6,
            "search_code": 6,
            "vault_list": 10,
            "thread_read": 20,
        }
    )
    score_similarity: float = 0.1


@dataclass(frozen=True, slots=True)
class Original:
    """A tool's whole result, of which a model was shown less. `reference` follows from its run and
    its call, so that a second attempt finds it."""

    reference: str
    session_key: SessionKey
    run_id: RunId
    tool: str
    content: str
    at: datetime


class Originals(Protocol):
    """Raises StoreUnavailable."""

    async def keep(self, original: Original) -> None:
        """The same reference again changes nothing. Gone with its session, or with the journals."""
        ...

    async def read(self, session_key: SessionKey, reference: str) -> Original | None:
        """None also for what another session kept."""
        ...

    async def forget(self, session_key: SessionKey) -> None:
        """All of a session that is over."""
        ...
