"""What happens in a run, as others hear of it: typed events under every name that they have."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from gateway.domain.ids import RunId, SessionKey

Severity = Literal["debug", "info", "warning", "error", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # least first


@dataclass(frozen=True, slots=True)
class EventKind:
    """A type of event with its severity, its constant name, and its name as a hook, if it has one."""

    type: str
    severity: Severity
    constant: str
    hook: str | None = None


KINDS: tuple[EventKind, ...] = (
    EventKind("query.start", "info", "QUERY_START", "on_query_start"),
    EventKind("session.resumed", "info", "SESSION_RESUMED"),
    EventKind("session.end", "info", "SESSION_END", "on_session_end"),
    EventKind("agent.turn.started", "debug", "AGENT_TURN_STARTED", "on_turn_start"),
    EventKind("agent.turn.ended", "debug", "AGENT_TURN_ENDED", "on_turn_end"),
    EventKind("agent.loop.detected", "warning", "AGENT_LOOP_DETECTED"),
    EventKind("agent.no_progress", "warning", "AGENT_NO_PROGRESS"),
    EventKind("tool.call.started", "debug", "TOOL_CALL_STARTED", "on_tool_call"),
    EventKind("tool.call.success", "info", "TOOL_CALL_SUCCESS", "on_tool_complete"),
    EventKind("tool.call.failure", "error", "TOOL_CALL_FAILURE", "on_tool_failure"),
    EventKind("budget.iteration.warning", "warning", "BUDGET_ITERATION_WARNING"),
    EventKind("budget.iteration.exceeded", "error", "BUDGET_ITERATION_EXCEEDED"),
    EventKind("budget.token.warning", "warning", "BUDGET_TOKEN_WARNING"),
    EventKind("budget.token.exceeded", "error", "BUDGET_TOKEN_EXCEEDED"),
    EventKind("context.approaching_limit", "warning", "CONTEXT_APPROACHING_LIMIT"),
    EventKind("model.failed", "error", "MODEL_FAILED"),
    EventKind("delivery.failed", "error", "DELIVERY_FAILED"),
    EventKind("delivery.unknown", "warning", "DELIVERY_UNKNOWN"),
    EventKind("rule.error", "error", "RULE_ERROR"),
    EventKind("bus.dropped", "warning", "BUS_DROPPED"),
    EventKind("tree.reloaded", "info", "TREE_RELOADED"),
    EventKind("tree.refused", "error", "TREE_REFUSED"),
    EventKind("pair.asked", "info", "PAIR_ASKED"),
    EventKind("pair.approved", "info", "PAIR_APPROVED"),
    EventKind("channel.connected", "info", "CHANNEL_CONNECTED"),
    EventKind("channel.failing", "error", "CHANNEL_FAILING"),
    EventKind("channel.refused", "error", "CHANNEL_REFUSED"),
    EventKind("mcp.connected", "info", "MCP_CONNECTED"),
    EventKind("mcp.disconnected", "warning", "MCP_DISCONNECTED"),
    EventKind("mcp.tool.changed", "warning", "MCP_TOOL_CHANGED"),
)

_BY_NAME: Mapping[str, EventKind] = {
    name: kind for kind in KINDS for name in (kind.type, kind.constant, kind.hook) if name
}


def kind_named(name: str) -> EventKind | None:
    """By its type, its constant name or its name as a hook."""
    return _BY_NAME.get(name)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. Types that no kind is listed for come from rules and trees."""

    type: str
    severity: Severity
    source: str  # the part that tells it: agent, tools, rule:ID, tree:NAME
    at: datetime
    session_key: SessionKey | None
    run_id: RunId | None
    payload: Mapping[str, object]
