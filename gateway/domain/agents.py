"""Who answers: an agent's definition with its limits and context rules."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from gateway.domain.ids import AgentId
from gateway.domain.messages import READS

# Who looks for facts. "auto": patterns after each turn, and a model where one compacts anyway.
Extraction = Literal["auto", "model", "patterns", "off"]
FactScope = Literal["person", "agent"]  # "agent": all who talk to the agent know the same facts
MEMORY, RESULT = "memory", READS
OWN_TOOLS = (MEMORY, RESULT)  # that an agent may list besides plugins


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one run, and when to warn before they are reached."""

    max_iterations: int = 15
    soft_warning_percent: int = 70
    token_budget: int = 50_000
    token_warning_percent: int = 80
    timeout_seconds: int = 120
    max_tool_calls_per_turn: int = 5
    max_parallel_tools: int = 3
    tool_timeout_s: float = 30.0
    error_limit: int = 3  # turns in a row in which every call failed
    loop_window: int = 6  # turns
    loop_threshold: int = 3  # the same calls so often within the window
    no_progress_repeats: int = 3  # the same call with the same result so often in a row


# From and to, both allowed, of every limit: in a configuration and in what users set themselves.
BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "max_iterations": (1, 50),
        "soft_warning_percent": (50, 90),
        "token_budget": (1_000, 200_000),
        "token_warning_percent": (50, 95),
        "timeout_seconds": (10, 600),
        "max_tool_calls_per_turn": (1, 20),
        "max_parallel_tools": (1, 10),
        "tool_timeout_s": (0.1, 600),
        "error_limit": (1, 20),
        "loop_window": (2, 20),
        "loop_threshold": (2, 10),
        "no_progress_repeats": (2, 10),
    }
)


@dataclass(frozen=True, slots=True)
class ContextRules:
    """How much of a conversation a model is shown."""

    token_budget: int = 16_000  # what is sent, in estimated tokens
    recent_turns: int = 12  # whole exchanges
    warning_percent: int = 70  # of the model's window
    extraction: Extraction = "auto"
    fact_scope: FactScope = "person"
    quiet_s: float = 5.0  # in a session, before a model looks at what was said in it
    facts: int = 12  # at most, of what is known
    semantic: bool = True  # whether facts and earlier turns are looked for at all
    compact_percent: int = 80  # of token_budget: beyond it a summary is made
    max_nodes: int = 30  # of a tree with branches: beyond it those off the path are archived
    expire_days: int | None = None  # unused for so long a session is closed


OPEN_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class ProjectDef:
    """Its agents answer only these: principals by name, people elsewhere as `speaker` says."""

    id: str
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AgentDef:
    """One agent. `fallback` answers when this one's provider cannot."""

    id: AgentId
    provider: str
    model: str
    max_tokens: int = 4096
    temperature: float | None = None
    context_window: int = 128_000
    thinking: bool = False
    stream: bool = True
    system_prompt: str = ""
    soul_path: str | None = None
    prompt_template: str | None = None
    tools: tuple[str, ...] = ()
    project: str = OPEN_PROJECT
    tree: str = "default"
    decision: str = "default"
    rules: tuple[str, ...] = ()
    fallback: "AgentDef | None" = None
    limits: Limits = field(default_factory=Limits)
    context: ContextRules = field(default_factory=ContextRules)
