"""What a turn is given for one run, and what comes of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gateway.agent.wishes import End
from gateway.control.policy import DefaultDecisionTree, MakeDecisionTree
from gateway.control.rules.acts import Act
from gateway.control.trees.plan import TreePlan
from gateway.domain.agents import AgentDef
from gateway.domain.chunks import Chunk, SystemType
from gateway.domain.events import Event
from gateway.domain.ids import NodeId, RunId
from gateway.domain.mcp import Lacking
from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.domain.model import FinishReason, ModelReply, ToolSpec
from gateway.domain.notices import Notice
from gateway.domain.ports import Decode, ToolScope
from gateway.domain.usage import Spent, Usage
from gateway.memory.context import Context
from gateway.tools.sources import Listed

Emit = Callable[[Chunk], None]


class Gate(Protocol):
    """What a run needs of the gate in front of the tools."""

    async def prepare(self, agent: AgentDef) -> Sequence[Lacking]:
        """Before `offered`: what it has and cannot have now."""
        ...

    def offered(self, agent: AgentDef) -> tuple[ToolSpec, ...]: ...

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult: ...

    def listed(self, result: ToolResult) -> Listed: ...


class Rules(Protocol):
    """Those that apply to a run."""

    def on(self, event: Event, scope: Mapping[str, object], /) -> Sequence[Act]: ...

    @property
    def kept(self) -> Mapping[str, object] | None:
        """What they keep of the session from now on; None: as it was."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One run: who answers, by which tree, what it is shown, which tools it is told of."""

    agent: AgentDef
    plan: TreePlan
    context: Context
    tools: tuple[ToolSpec, ...]
    scope: ToolScope
    rules: Rules
    publish: Callable[[Event], None]
    decode: Decode
    decision: MakeDecisionTree = DefaultDecisionTree
    context_id: NodeId | None = None  # the node that the message wants to grow from
    known: Callable[[int, ToolCall], ToolResult | None] = lambda step, call: None  # has it run?
    waiting: tuple[Notice, ...] = ()  # from other sessions
    was_near: bool = False  # the window's end, when the run before ended, and is still


@dataclass(frozen=True, slots=True)
class Answer:
    """`said` are the messages of the run after the question, in order, the answer last. `taken` are
    the runs whose messages were heard in it; `posts` are notices for other sessions. `finish`:
    why the last reply ended."""

    end: End
    said: tuple[Message, ...]
    usage: Usage
    model: str
    provider: str
    taken: tuple[RunId, ...] = ()
    posts: tuple[Notice, ...] = ()
    farewell: Event | None = None  # to be told once the end is durable
    kept: Mapping[str, object] | None = None  # by the rules
    has_told: bool = True  # a model what was waiting for it: that one said something, or refused
    finish: FinishReason | None = None


def add_usage(one: Usage, other: Usage) -> Usage:
    costs = [usage.cost_usd for usage in (one, other) if usage.cost_usd is not None]
    return Usage(
        one.input_tokens + other.input_tokens,
        one.output_tokens + other.output_tokens,
        one.cached_tokens + other.cached_tokens,
        one.reasoning_tokens + other.reasoning_tokens,
        sum(costs) if costs else None,
        one.estimated or other.estimated,
    )


def usage_chunk(reply: ModelReply | Spent) -> Chunk:
    usage = reply.usage
    return Chunk(
        "usage",
        {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": usage.cost_usd,
            "model": reply.model,
            "provider": reply.provider,
            "estimated": usage.estimated,
        },
    )


def with_distinct_ids(reply: ModelReply, said: Sequence[Message]) -> ModelReply:
    """Some models reuse an id within a reply or a run; each result has to find its own call."""
    if not reply.tool_calls:
        return reply
    taken = {call.id for message in said for call in message.tool_calls}
    calls: list[ToolCall] = []
    for call in reply.tool_calls:
        number, distinct = len(taken), call.id
        while distinct in taken:
            distinct, number = f"{call.id}-{number}", number + 1
        taken.add(distinct)
        calls.append(replace(call, id=distinct) if distinct != call.id else call)
    return replace(reply, tool_calls=tuple(calls))


def with_last_word(
    said: Sequence[Message], text: str, notices: tuple[tuple[SystemType, str], ...] = ()
) -> tuple[Message, ...]:
    """The answer stands at the end, once; an empty reply gives way to what the user was told."""
    *before, last = said or [Message("assistant")]
    if last.role != "assistant" or (last.text.strip() and last.text != text):
        before, last = [*before, last], Message("assistant")
    if (last.text, last.notices) != (text, notices):
        last = replace(last, text=text, notices=notices)
    return (*before, last)
