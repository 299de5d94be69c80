"""How sessions, messages, plugins and rules look outside. Pure."""

from collections.abc import Mapping
from datetime import datetime

from gateway.control.rules import Faults, RuleSet
from gateway.domain.budgets import Limit, Tally, TokenRecord, Unit, shown
from gateway.domain.events import RuleDef
from gateway.domain.facts import YOU, Fact, Recalled, SaidSource
from gateway.domain.messages import Node
from gateway.domain.model import ToolSpec
from gateway.domain.plugins import PluginAccount, PluginInfo
from gateway.domain.ports import Decode
from gateway.domain.sessions import SessionRecord
from gateway.web.published.about import Rule, RuleList
from gateway.web.published.conversations import (
    CalledFunction,
    HistoryMessage,
    MessageCall,
    MessageMetadata,
    Session,
    TreeNode,
)
from gateway.web.published.memory import FactSource, Found, FoundFact, FoundTurn, KnownFact
from gateway.web.published.money import BudgetRow, SpendingRecord
from gateway.web.published.plugins import Plugin, PluginAccess, Tool

TOLD = 2  # times that a message's calls are shown: as they are, and in its metadata


def stamp(at: datetime) -> str:
    """ISO 8601, UTC, with Z."""
    return at.isoformat().replace("+00:00", "Z")


def stamp_or_none(at: datetime | None) -> str | None:
    return None if at is None else stamp(at)


def message(node: Node, most: int) -> HistoryMessage:
    """A message of more than `most` characters is cut, and says so. A summary is none."""
    said = node.message
    assert said.role != "summary"
    text = said.result.content if said.result else said.text
    room = most - len(text)
    calls: list[MessageCall] = []
    metadata: MessageMetadata = {"token_count": node.token_count}
    for call in said.tool_calls:
        arguments = call.arguments[: max(0, room // TOLD)]
        function: CalledFunction = {"name": call.name, "arguments": arguments}
        calls.append({"id": call.id, "type": "function", "function": function})
        room -= TOLD * len(call.arguments)
    if calls:
        metadata["tool_calls"] = calls
    if node.model is not None:
        metadata["model"] = node.model
    shown: HistoryMessage = {
        "id": node.id,
        "seq": node.seq,
        "role": said.role,
        "content": text[:most],
        "tool_calls": calls or None,
        "run_id": node.run_id,
        "parent_id": node.parent_id,
        "status": node.status,
        "created_at": stamp(node.created_at),
        "token_count": node.token_count,
        "model": node.model,
        "metadata": metadata,
    }
    if said.result is not None:
        shown["tool_call_id"] = said.result.call_id
        shown["name"] = said.result.name
        shown["is_error"] = said.result.is_error
        shown["duration_ms"] = said.result.duration_ms
    if said.notices:
        shown["notices"] = [
            {"system_type": kind, "system_message": told} for kind, told in said.notices
        ]
    if room < 0:
        shown["truncated"] = True
    return shown


def tree_node(node: Node) -> TreeNode:
    return {
        "id": node.id,
        "parent_id": node.parent_id,
        "role": node.message.role,
        "run_id": node.run_id,
        "label": node.label,
        "checkpoint": node.is_checkpoint,
        "archived": node.standing == "archived",
        "created_at": stamp(node.created_at),
    }


def session(record: SessionRecord) -> Session:
    return {
        "session_key": str(record.key),
        "agent_id": record.key.agent,
        "channel": record.key.channel,
        "account": record.key.account,
        "peer": record.key.peer,
        "created_at": stamp(record.created_at),
        "updated_at": stamp(record.updated_at),
        "message_count": record.message_count,
        "token_usage": {
            "input_tokens": record.input_tokens,
            "output_tokens": record.output_tokens,
            "cost_usd": record.cost_usd,
        },
        "state": record.state,
        "head": record.head,
    }


def plugin(info: PluginInfo, refused: Mapping[tuple[str, str], str], decode: Decode) -> Plugin:
    """`refused` says by (family, name) why a tool is offered to nobody."""
    tools = info.tools if info.state == "loaded" else ()
    shown: Plugin = {
        "name": info.name,
        "kind": info.kind,
        "version": info.version,
        "description": info.description,
        "tools": [_tool(one, refused.get((one.family, one.name)), decode) for one in tools],
        "capabilities": list(info.capabilities),
        "sha256": info.sha256,
        "state": info.state,
    }
    if info.why is not None:
        shown["reason"] = info.why
    return shown


def account(told: PluginAccount) -> PluginAccess:
    """What `plugin` does not say."""
    return {
        "guest": told.guest,
        "imports": [
            {"name": name, "needs": need, "denied": name in told.lacking}
            for name, need in told.needs.items()
        ],
        "used": dict(told.used),
        "denied": dict(told.denied),
    }


def _tool(spec: ToolSpec, why: str | None, decode: Decode) -> Tool:
    shown: Tool = {
        "name": spec.name,
        "description": spec.description,
        "category": spec.category,
        "agent_scope": list(spec.agent_scope),
    }
    if why is not None:  # its parameters may be anything
        return {**shown, "reason": why}
    return {**shown, "parameters": decode(spec.parameters)}


def rules(found: RuleSet) -> RuleList:
    """In the order of firing."""
    return {
        "rules": [_rule(one.definition, found.faults[one.definition.id]) for one in found.rules],
        "refused": [{"file": one.file, "why": one.why} for one in found.refused],
    }


def _rule(rule: RuleDef, faults: Faults) -> Rule:
    return {
        "id": rule.id,
        "description": rule.description,
        "on": list(rule.on),
        "core": rule.is_core,
        "enabled": rule.is_enabled,
        "priority": rule.priority,
        "source": rule.source,
        "errors": faults.count,
        "last_error": faults.last or None,
        "quarantined": faults.is_quarantined,
    }


def budget(tally: Tally, limit: Limit) -> list[BudgetRow]:
    """A row for each unit that is bounded; without any, one for tokens."""
    bounds = limit.bounds()
    rows = [_budget_row(tally, unit, bound) for unit, bound in bounds]
    return rows or [_budget_row(tally, "tokens", None)]


def _budget_row(tally: Tally, unit: Unit, bound: int | None) -> BudgetRow:
    scope, in_tokens = tally.scope, unit == "tokens"
    start, resets = scope.period_start or tally.since, scope.resets_at
    return {
        "scope": str(scope),
        "limit": None if bound is None else shown(unit, bound),
        "used": shown(unit, tally.used.tokens if in_tokens else tally.used.nano_usd),
        "reserved": shown(unit, tally.held.tokens if in_tokens else tally.held.nano_usd),
        "period_start": stamp_or_none(start),
        "resets_at": stamp_or_none(resets),
        "unit": unit,
    }


def token_record(record: TokenRecord) -> SpendingRecord:
    return {
        "seq": record.seq,
        "id": record.id,
        "timestamp": stamp(record.at),
        "session_key": str(record.session_key),
        "agent_id": record.session_key.agent,
        "run_id": record.run_id,
        "provider": record.provider,
        "model": record.model,
        "outcome": record.outcome,
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "reasoning_tokens": record.reasoning_tokens,
        "cost_estimate_usd": shown("usd", record.nano_usd),
        "pricing": record.pricing,
        "estimated": record.estimated,
    }


def fact(known: Fact) -> KnownFact:
    return {
        "id": known.id,
        "entity_type": known.entity_type,
        "subject": known.subject,
        "predicate": known.predicate,
        "object": known.object,
        "functional": known.functional,
        "confidence": known.confidence,
        "scope": known.scope,
        "session_key": str(known.session_key),
        "learned_at": stamp(known.learned_at),
        "valid_from": stamp(known.valid_from),
        "valid_to": stamp_or_none(known.valid_to),
        "superseded_at": stamp_or_none(known.superseded_at),
        "superseded_by": known.superseded_by,
        "source_message_ids": list(known.source_message_ids),
    }


def source(said: SaidSource) -> FactSource:
    return {
        "message_id": said.message_id,
        "session_key": str(said.session_key),
        "at": stamp(said.at),
        "quote": said.quote,
        "said_by": said.said_by,
    }


def recalled(found: Recalled) -> FoundFact | FoundTurn:
    told: Found = {
        "id": found.id,
        "text": found.text,
        "score": found.score,
        "why": found.why,
        "session_key": str(found.session_key),
        "message_id": found.message_id,
        "at": stamp(found.at),
    }
    if found.fact is not None:
        return {"kind": "fact", **told, "fact": fact(found.fact)}
    said_by = "assistant" if found.said_by == YOU else found.said_by
    return {"kind": "turn", **told, "said_by": said_by}
