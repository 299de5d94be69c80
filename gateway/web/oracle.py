"""A conversation as an OracleContext: the documented JSON, what a conversation shows in it, and back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import NAMESPACE_URL, uuid5

from gateway.api.conversations import (
    LEAST_BUDGET,
    MOST_BUDGET,
    OVERFLOW,
    OracleCall,
    OracleContext,
    OracleExchange,
    OracleStatus,
)
from gateway.api.declarations import build
from gateway.domain.agents import AgentDef
from gateway.domain.ids import NodeId
from gateway.domain.messages import Message, Node, ToolCall, ToolResult, estimate_tokens
from gateway.domain.sessions import SessionRecord, Summary
from gateway.memory.compaction import CLOSING, OPENING, told_summary
from gateway.memory.window import Exchange, exchanges_of
from gateway.memory.wording import files_and_symbols

NO_ANSWER = "(no answer)"
UNNAMED = "unnamed"  # a call that a model made without a name
_UNREADABLE = "_unreadable"  # holds arguments that are no JSON object
_ALL = 1 << 40


# -- from a conversation


def viewed(
    record: SessionRecord,
    nodes: Sequence[Node],
    summary: Summary | None,
    agent: AgentDef,
    *,
    user: str,
    project: str = "default",
) -> OracleContext:
    """`nodes` are the end of the path to HEAD. The newest exchanges, as many as the budget has room
    for; one that was answered by another model than the agent's is suspended until the next turn."""
    said = [node for node in nodes if node.message.role != "summary"]
    told, named = _without_decisions(summary), summary or Summary(NodeId(""), made=0)
    budget = min(max(agent.context.token_budget, LEAST_BUDGET), MOST_BUDGET)
    recent = _recent(exchanges_of(said), named, int(budget * OVERFLOW) - estimate_tokens(told))
    last_model = next((node.model for node in reversed(said) if node.model), None)
    symbols = [named.symbols, *(one.mentioned_symbols for one in recent)]
    files = [named.files, *(one.mentioned_files for one in recent)]
    return OracleContext(
        id=str(uuid5(NAMESPACE_URL, str(record.key))),
        user_id=user,
        project_id=project,
        session_start=record.created_at,
        last_activity=record.updated_at,
        last_model=last_model,
        token_budget=budget,
        tokens_used=estimate_tokens(told) + sum(one.token_count for one in recent),
        compressed_summary=told or None,
        recent_exchanges=tuple(recent),
        key_decisions=named.decisions,
        mentioned_symbols=_listed(symbols),
        mentioned_files=_listed(files),
        status=_status(record, last_model, agent),
        compression_count=named.made,
    )


def _status(record: SessionRecord, last_model: str | None, agent: AgentDef) -> OracleStatus:
    if record.state == "closed":
        return "closed"
    return "active" if last_model in {None, agent.model} else "suspended"


def _listed(names: Sequence[Sequence[str]]) -> str | None:
    return ", ".join(dict.fromkeys(name for some in names for name in some)) or None


def _recent(exchanges: Sequence[Exchange], named: Summary, room: int) -> Sequence[OracleExchange]:
    recent: list[OracleExchange] = []
    for exchange in reversed(exchanges):
        folded = _folded(exchange)
        if (room := room - sum(one.token_count for one in folded)) < 0:
            break
        if any(node.id == named.covers for node in exchange):
            insight = {"key_insight": named.key_insight or None}
            folded[-1] = build(OracleExchange, folded[-1], **insight)
        recent[:0] = folded
    return recent


def _without_decisions(summary: Summary | None) -> str:
    told = told_summary(replace(summary, decisions=()), _ALL) if summary else ""
    return told.removeprefix(f"{OPENING}\n").removesuffix(f"\n{CLOSING}")


def _folded(exchange: Exchange) -> list[OracleExchange]:
    """Its questions, and after them one answer with everything that led to it."""
    folded = [_told(one, one.message.text, (one,)) for one in exchange if _asks(one)]
    answers = [node for node in exchange if not _asks(node)]
    if not answers:
        return folded
    results = {
        one.message.result.call_id: one.message.result for one in answers if one.message.result
    }
    calls = [call for node in answers for call in node.message.tool_calls]
    text = "\n\n".join(node.message.text for node in answers if node.message.text)
    told = _told(answers[-1], text, answers)
    made = tuple(_call(call, results) for call in calls) or None
    return [*folded, build(OracleExchange, told, tool_calls=made)]


def _asks(node: Node) -> bool:
    return node.message.role == "user"


def _told(node: Node, text: str, nodes: Sequence[Node]) -> OracleExchange:
    files, symbols = files_and_symbols([text])
    return OracleExchange(
        id=node.id,
        role="user" if _asks(node) else "assistant",
        content=text if text.strip() else NO_ANSWER,
        timestamp=node.created_at,
        token_count=max(1, sum(one.token_count for one in nodes)),
        mentioned_symbols=tuple(symbols),
        mentioned_files=tuple(files),
    )


def _call(call: ToolCall, results: Mapping[str, ToolResult]) -> OracleCall:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = None
    given = arguments if isinstance(arguments, dict) else {_UNREADABLE: call.arguments}
    result = results.get(call.id)
    return OracleCall(
        id=call.id,
        name=call.name or UNNAMED,
        arguments=given,
        result=result.content if result else None,
        status="success" if result and not result.is_error else "error",
        duration_ms=round(result.duration_ms) if result else None,
    )


# -- to a conversation


def said_in(context: OracleContext) -> Sequence[tuple[str, datetime, Message]]:
    """The messages with the id and time of their exchange, in order. A call that was pending has
    ended: nobody waits for it any more."""
    told: list[tuple[str, datetime, Message]] = []
    for one in context.recent_exchanges:
        made = one.tool_calls or ()
        calls = tuple(ToolCall(call.id, call.name, _arguments(call)) for call in made)
        if calls:
            results = [Message("tool", result=_result(call)) for call in made]
            asked = Message("assistant", tool_calls=calls)
            told += [(one.id, one.timestamp, message) for message in (asked, *results)]
        if one.role == "tool":
            result = ToolResult(one.tool_call_id or "", "", one.content)
            _answer(told, result)
        else:
            told.append((one.id, one.timestamp, Message(one.role, one.content)))
    return told


def _answer(told: list[tuple[str, datetime, Message]], result: ToolResult) -> None:
    """A result that stands by itself takes the place of the one that its call was given."""
    for place, (id_, at, message) in enumerate(told):
        if message.result is not None and message.result.call_id == result.call_id:
            named = replace(result, name=message.result.name)
            told[place] = (id_, at, replace(message, result=named))


def _arguments(call: OracleCall) -> str:
    unreadable = call.arguments.get(_UNREADABLE)
    if isinstance(unreadable, str) and len(call.arguments) == 1:
        return unreadable
    return json.dumps(call.arguments, ensure_ascii=False)


def _result(call: OracleCall) -> ToolResult:
    took_ms = float(call.duration_ms or 0)
    if call.result is None:
        return ToolResult(call.id, call.name, "No result.", is_error=True, duration_ms=took_ms)
    return ToolResult(call.id, call.name, call.result, call.status != "success", took_ms)


def summary_in(context: OracleContext, node: NodeId) -> Summary | None:
    """What the context says of its older part, for a summary that stands at `node`, in front of what
    was `said_in` it."""
    if not (context.compressed_summary or context.key_decisions):
        return None
    return Summary(
        node,
        decisions=context.key_decisions,
        text=context.compressed_summary or "",
        symbols=_names(context.mentioned_symbols),
        files=_names(context.mentioned_files),
        made=context.compression_count,
    )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name for name in (text or "").split(", ") if name)
