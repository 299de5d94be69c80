"""A model call: what is asked, what is heard while it streams, what it came to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from sys import maxsize
from typing import Literal

from gateway.domain.budgets import Payer, Unit
from gateway.domain.messages import Extras, Message, ToolCall
from gateway.domain.tape import Record
from gateway.domain.usage import Usage

# overrun: the provider ignored `max_tokens`, and its stream was closed.
FinishReason = Literal[
    "stop", "tool_calls", "length", "content_filter", "refusal", "pause", "overrun"
]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool: its first three fields are what a model is told; `parameters` is JSON Schema text."""

    name: str
    description: str
    parameters: str = '{"type":"object","properties":{}}'
    family: str = ""  # how an agent's list names it: its plugin
    category: str | None = None
    agent_scope: tuple[str, ...] = ()  # agents that may have it; none named: any that lists it
    timeout_s: float | None = None  # of a call; None: the agent's
    may_repeat: bool = True  # False: a call that may have been carried out is not made again


@dataclass(slots=True)
class Progress:
    """What came of a reply so far, for the case that no more comes."""

    size: int = 0  # bytes, also of what nobody hears, like the arguments of calls
    told: Usage | None = None  # by the provider, so far; only what it sent in is certain
    most: int = maxsize  # bytes after which it is longer than what was reserved for it


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """All that a provider needs for one call. `messages` follow each other as a wire wants them:
    every tool call has its result, none is orphaned."""

    provider: str
    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 4096
    temperature: float | None = None
    thinking: bool = False
    stream: bool = True
    idle_timeout_s: float | None = None  # a tighter one than the provider's own
    deadline_s: float = 120.0  # no retry begins later; who asks bounds the call itself
    payer: Payer | None = None  # who asks always says it; providers do not care
    record: Record | None = field(default=None, compare=False, repr=False)  # takes down the bytes
    progress: Progress | None = field(default=None, compare=False, repr=False)  # the meter's


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    """Told once a scope and limit, when most of it is used."""

    scope: str
    unit: Unit
    used: float
    limit: float


Delta = TextDelta | ThinkingDelta
Hear = Callable[[Delta], None]


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A complete reply; an incomplete one is a ModelFailed."""

    provider: str
    model: str
    text: str = ""
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish: FinishReason = "stop"
    extras: Extras | None = None
    warnings: tuple[BudgetWarning, ...] = ()  # of the meter
