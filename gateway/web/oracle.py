"""A conversation as an OracleContext: the documented JSON, what a conversation shows in it, and back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_URL, uuid5

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from gateway.domain.agents import AgentDef
from gateway.domain.ids import NodeId
from gateway.domain.messages import Message, Node, ToolCall, ToolResult, estimate_tokens
from gateway.domain.sessions import SessionRecord, Summary
from gateway.memory.compaction import CLOSING, OPENING, told_summary
from gateway.memory.window import Exchange, exchanges_of
from gateway.memory.wording import files_and_symbols
from gateway.web.given import WHOLE

OVERFLOW = 1.1  # times the budget
LEAST_BUDGET, MOST_BUDGET = 4_000, 128_000
NO_ANSWER = "(no answer)"
UNNAMED = "unnamed"  # a call that a model made without a name
_UNREADABLE = "_unreadable"  # holds arguments that are no JSON object
_ALL = 1 << 40


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


Time = Annotated[datetime, AfterValidator(_utc)]
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0, strict=True), WHOLE]
Status = Literal["active", "suspended", "closed"]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OracleCall(_Form):
    id: Name
    name: Name
    arguments: dict[str, Any]
    result: str | None = None
    status: Literal["pending", "success", "error"] = "pending"
    duration_ms: Count | None = None


class OracleExchange(_Form):
    """A question, or an answer with all the calls that led to it."""

    id: Name
    role: Literal["user", "assistant", "tool"]
    content: str
    tool_calls: tuple[OracleCall, ...] | None = None
    tool_call_id: Name | None = Field(default=None, validate_default=True)
    timestamp: Time
    token_count: Annotated[int, Field(ge=1, strict=True), WHOLE]
    key_insight: str | None = None
    mentioned_symbols: tuple[str, ...] = ()
    mentioned_files: tuple[str, ...] = ()

    @field_validator("content")
    @classmethod
    def _says_something(cls, content: str, info: ValidationInfo) -> str:
        if not content.strip() and info.data.get("role") != "tool":
            raise ValueError("it is empty")
        return content

    @field_validator("tool_call_id")
    @classmethod
    def _names_its_call(cls, call_id: str | None, info: ValidationInfo) -> str | None:
        if call_id is None and info.data.get("role") == "tool":
            raise ValueError("a tool's message names the call that it answers")
        return call_id


class OracleContext(_Form):
    id: Name
    user_id: Name
    project_id: Name
    session_start: Time
    last_activity: Time | None = None
    last_model: str | None = None
    token_budget: Annotated[int, Field(ge=LEAST_BUDGET, le=MOST_BUDGET, strict=True), WHOLE] = (
        16_000
    )
    tokens_used: Count = 0
    compressed_summary: str | None = None
    recent_exchanges: tuple[OracleExchange, ...] = ()
    key_decisions: tuple[str, ...] = ()
    mentioned_symbols: str | None = None
    mentioned_files: str | None = None
    status: Status = "active"
    compression_count: Count = 0

    @field_validator("tokens_used")
    @classmethod
    def _is_within_its_budget(cls, used: int, info: ValidationInfo) -> int:
        if used > OVERFLOW * info.data.get("token_budget", used):
            raise ValueError(f"more than {OVERFLOW} times the token_budget")
        return used

    @field_validator("recent_exchanges")
    @classmethod
    def _has_a_call_for_each_result(
        cls, exchanges: tuple[OracleExchange, ...]
    ) -> tuple[OracleExchange, ...]:
        known: set[str | None] = {None}
        for one in exchanges:
            known.update(call.id for call in one.tool_calls or ())
            if one.tool_call_id not in known:
                raise ValueError(f"{one.id[:64]!r} answers a call that is not before it")
        return exchanges


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


def _status(record: SessionRecord, last_model: str | None, agent: AgentDef) -> Status:
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
            folded[-1] = folded[-1].model_copy(update=insight)
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
    return [*folded, told.model_copy(update={"tool_calls": made})]


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
