"""What a driver is given for one run, and what it gives back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gateway.agent.turn import Fail, Finish
from gateway.domain.agents import AgentDef, Limits
from gateway.domain.budgets import BudgetExceeded
from gateway.domain.chunks import Chunk
from gateway.domain.messages import Message, ToolCall
from gateway.domain.model import BudgetWarning, ModelReply, ToolSpec, Usage
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


def budget_chunk(warning: BudgetWarning, at: datetime) -> Chunk:
    """Tells the user that most of a budget is used."""
    percent = round(100 * warning.used / warning.limit, 1) if warning.limit else 100.0
    unit = "tokens" if warning.unit == "tokens" else "USD"
    told = f"{percent:g} % of the {warning.scope} budget is used"
    return Chunk(
        "system",
        {
            "system_type": "limit_warning",
            "system_message": f"{told} ({warning.used}/{warning.limit} {unit}).",
            "metadata": {
                "current_value": warning.used,
                "limit_value": warning.limit,
                "percent": percent,
                "limit_type": f"budget.{warning.scope}",
            },
            "timestamp": at,
        },
    )


def refusal_data(refusal: BudgetExceeded) -> Mapping[str, object]:
    """What a program wants to know of it."""
    return {
        "scope": refusal.scope,
        "used": refusal.used,
        "limit": refusal.limit,
        "unit": refusal.unit,
        "resets_at": refusal.resets_at,
    }


def stop_chunk(end: Finish, limits: Limits, refusal: BudgetExceeded | None, at: datetime) -> Chunk:
    """Tells the user why a run was stopped, before it ends."""
    if refusal is not None and end.reason == "token_budget":
        return Chunk(
            "system",
            {
                "system_type": "limit_reached",
                "system_message": end.notice,
                "metadata": {
                    "limit_type": f"budget.{refusal.scope}",
                    "limit_value": refusal.limit,
                    "current_value": refusal.used,
                    **refusal_data(refusal),
                },
                "timestamp": at,
            },
        )
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
