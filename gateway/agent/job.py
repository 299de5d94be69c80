"""What a driver is given for one run, and what it gives back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gateway.agent.turn import Fail, Finish
from gateway.domain.agents import AgentDef, Limits
from gateway.domain.chunks import Chunk
from gateway.domain.messages import Message, ToolCall
from gateway.domain.model import ModelReply, ToolSpec, Usage
from gateway.domain.ports import ToolScope
from gateway.memory.context import Context

Emit = Callable[[Chunk], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One run: who answers, what it is shown, which tools it is told of."""

    agent: AgentDef
    context: Context
    tools: tuple[ToolSpec, ...]
    scope: ToolScope


@dataclass(frozen=True, slots=True)
class Answer:
    """`said` are the messages of the run after the question, in order, the answer last."""

    end: Finish | Fail
    said: tuple[Message, ...]
    usage: Usage
    model: str
    provider: str


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


def usage_chunk(reply: ModelReply) -> Chunk:
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


def stop_chunk(end: Finish, limits: Limits, at: datetime) -> Chunk:
    """Tells the user why a run was stopped, before it ends."""
    limit = {
        "max_iterations": limits.max_iterations,
        "token_budget": limits.token_budget,
        "timeout": limits.timeout_seconds,
    }.get(end.reason)
    metadata = {} if limit is None else {"limit_type": end.reason, "limit_value": limit}
    return Chunk(
        "system",
        {
            "system_type": "notice" if limit is None else "limit_reached",
            "system_message": end.notice,
            "metadata": metadata,
            "timestamp": at,
        },
    )


def with_distinct_ids(reply: ModelReply, said: Sequence[Message]) -> ModelReply:
    """Some models reuse an id within a reply or a run; each result has to find its own call."""
    taken = {call.id for message in said for call in message.tool_calls}
    calls: list[ToolCall] = []
    for call in reply.tool_calls:
        number, distinct = len(taken), call.id
        while distinct in taken:
            distinct, number = f"{call.id}-{number}", number + 1
        taken.add(distinct)
        calls.append(replace(call, id=distinct) if distinct != call.id else call)
    return replace(reply, tool_calls=tuple(calls))


def open_calls(said: Sequence[Message]) -> list[ToolCall]:
    """Calls that no result answers yet, in order."""
    answered = {message.result.call_id for message in said if message.result is not None}
    asked = (call for message in said for call in message.tool_calls)
    return [call for call in asked if call.id not in answered]


def with_last_word(said: list[Message], text: str) -> list[Message]:
    """The answer stands at the end, once; an empty reply gives way to what the user was told."""
    last = said[-1] if said else None
    if last is None or last.role != "assistant" or last.text not in {"", text}:
        return [*said, Message("assistant", text)]
    return [*said[:-1], replace(last, text=text)]
