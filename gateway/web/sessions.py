"""session.*: conversations, their trees, their import and export."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from uuid import NAMESPACE_URL, uuid5

from gateway.api import conversations as api
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
from gateway.api.errors import InvalidParams
from gateway.domain.agents import OWN_CHANNELS, AgentDef
from gateway.domain.errors import NotFound, UnknownAgent
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Message, Node, ToolCall, ToolResult, estimate_tokens
from gateway.domain.sessions import IMPORTED, ImportRefused, SessionQuery, SessionRecord, Summary
from gateway.memory.compaction import summary_message
from gateway.memory.context import (
    SUMMARY_CLOSING,
    SUMMARY_OPENING,
    Exchange,
    exchanges_of,
    message_tokens,
    summary_of,
    summary_text,
)
from gateway.memory.wording import files_and_symbols
from gateway.sessions.intake import Front
from gateway.web.identity import Principal, has_scope, own_key, require_own, visible_key
from gateway.web.rpc import Call

MOST_TREE_NODES = 3_000  # the newest ones, which fit into one frame
MOST_READ = 2_000  # messages from which an OracleContext is made
NO_ANSWER = "(no answer)"
UNNAMED = "unnamed"  # a call that a model made without a name
_UNREADABLE = "_unreadable"  # the key of arguments that are no JSON object
_ALL = 1 << 40
Names = tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class SessionMethods:
    front: Front

    async def session_list(self, call: Call, params: api.SessionList) -> api.SessionPage:
        agents, channels, account = _reach(call.principal)
        query = SessionQuery(
            agents=_narrow(agents, params.agent),
            channels=_narrow(channels, params.channel),
            account=account,
            text=params.query,
            before=params.before,
            limit=params.limit,
        )
        page = await self.front.sessions.list_sessions(query)
        return api.SessionPage(sessions=[session(one) for one in page.sessions], more=page.more)

    async def session_get(self, call: Call, params: api.OfSession) -> api.Session:
        return session(await self._record(call, params))

    async def session_tree(self, call: Call, params: api.GetTree) -> api.SessionTree:
        record = await self._record(call, params)
        nodes = await self.front.sessions.tree(
            record.key, limit=MOST_TREE_NODES, archived=params.archived
        )
        return api.SessionTree(nodes=[_tree_node(node) for node in nodes], head=record.head)

    async def session_branch(self, call: Call, params: api.SessionBranch) -> api.Branched:
        key = await self._own(call, params)
        head = await self.front.move_head(key, params.node_id, label=params.label)
        return api.Branched(head=head, label=params.label)

    async def session_checkout(self, call: Call, params: api.SessionCheckout) -> api.HeadMoved:
        to = params.node_id or params.label
        if to is None or (params.node_id is not None and params.label is not None):
            raise InvalidParams("give either node_id or label")
        key = await self._own(call, params)
        return api.HeadMoved(head=await self.front.move_head(key, to))

    async def session_create(self, call: Call, params: api.OfSession) -> api.Created:
        key = self._own_place(call, params)
        await self.front.start_over(key)
        return api.Created(session_key=key, head=None)

    async def session_label(self, call: Call, params: api.SessionLabel) -> api.Labelled:
        key = own_key(call.principal, params.session_key)
        node = await self.front.node(key, params.node_id)
        await self.front.sessions.label_node(key, node.id, params.label)
        return api.Labelled(node_id=node.id, label=params.label)

    async def session_checkpoint(
        self, call: Call, params: api.SessionCheckpoint
    ) -> api.Checkpointed:
        key = own_key(call.principal, params.session_key)
        record = await self.front.sessions.find_session(key)
        head = None if record is None else record.head
        node = await self.front.node(key, params.node_id or head or "")
        await self.front.sessions.checkpoint(key, node.id, is_kept=params.checkpoint)
        return api.Checkpointed(node_id=node.id, label=node.label, checkpoint=params.checkpoint)

    async def session_close(self, call: Call, params: api.OfSession) -> api.Closed:
        key = own_key(call.principal, params.session_key)
        await self.front.sessions.close_session(key)
        return api.Closed(session_key=key, state="closed")

    async def session_import(self, call: Call, params: api.SessionImport) -> api.Imported:
        key = self._own_place(call, params)
        if (params.messages is None) == (params.context is None):
            raise InvalidParams("give either messages or context")
        if params.messages is not None:
            added = await self.front.import_nodes(key, _nodes(params.messages))
        else:
            assert params.context is not None
            added = await self.front.import_nodes(key, _nodes_of(params.context))
            if params.context.status == "closed":
                await self.front.sessions.close_session(key)
        return api.Imported(session_key=key, imported=added.added, head=added.head)

    async def session_export(self, call: Call, params: api.OfSession) -> api.OracleExport:
        record = await self._record(call, params)
        key, agents = record.key, self.front.agents
        if key.agent not in agents:
            raise UnknownAgent(key.agent, tuple(agents))
        path = await self.front.sessions.path(key, limit=MOST_READ)
        summary = summary_of(path.summary)
        context = export_context(record, path.nodes, summary, agents[key.agent])
        return api.OracleExport(context=context)

    async def _record(self, call: Call, params: api.OfSession) -> SessionRecord:
        text = params.session_key
        record = await self.front.sessions.find_session(visible_key(call.principal, text))
        if record is None:
            raise NotFound(f"session {text[:200]!r}")
        return record

    async def _own(self, call: Call, params: api.OfSession) -> SessionKey:
        key = (await self._record(call, params)).key
        require_own(call.principal, key)
        return key

    def _own_place(self, call: Call, params: api.OfSession) -> SessionKey:
        """Returns the key of a session, new or not, in which the principal may write."""
        key = own_key(call.principal, params.session_key)
        if key.agent not in self.front.agents:
            raise UnknownAgent(key.agent, tuple(self.front.agents))
        return key


def _reach(principal: Principal) -> tuple[Names, Names, str | None]:
    """Returns the agents, channels and account that a principal can see; None means no limit."""
    agents = None if principal.agents is None else tuple(sorted(principal.agents))
    if has_scope(principal, "read"):
        return agents, None, None
    return agents, tuple(sorted(OWN_CHANNELS)), principal.name


def _narrow(reach: Names, requested: str | None) -> Names:
    if requested is None:
        return reach
    return (requested,) if reach is None or requested in reach else ()


def session(record: SessionRecord) -> api.Session:
    key, usage = record.key, build(api.TokenUsage, record)
    return build(api.Session, record, key, session_key=key, agent_id=key.agent, token_usage=usage)


def _tree_node(node: Node) -> api.TreeNode:
    role, is_archived = node.message.role, node.standing == "archived"
    return build(api.TreeNode, node, role=role, checkpoint=node.is_checkpoint, archived=is_archived)


def _nodes(messages: Sequence[api.ImportedMessage]) -> list[Node]:
    """Makes nodes of imported messages. Raises ImportRefused."""
    nodes: list[Node] = []
    for place, one in enumerate(messages):
        _require_complete(one, f"messages[{place}]")
        message = _message(one)
        parent = one.parent_id
        if parent == "":
            parent = nodes[-1].id if nodes else None
        tokens = one.token_count or message_tokens(message)
        above = None if parent is None else NodeId(parent)
        node = Node(NodeId(one.id), above, IMPORTED, message, one.created_at, tokens)
        nodes.append(replace(node, status=one.status, model=one.model))
    return nodes


def _require_complete(one: api.ImportedMessage, where: str) -> None:
    if one.role == "tool" and one.tool_call_id is None:
        raise ImportRefused(f"{where}.tool_call_id: the message of a tool needs it")
    if one.role != "tool" and not (one.content.strip() or one.tool_calls):
        raise ImportRefused(f"{where}.content: is empty")


def _message(one: api.ImportedMessage) -> Message:
    if one.tool_call_id is not None and one.role == "tool":
        parts = (one.tool_call_id, one.name, one.content, one.is_error, one.duration_ms)
        return Message("tool", result=ToolResult(*parts))
    calls = [
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in one.tool_calls or ()
    ]
    return Message(one.role, one.content, tuple(calls))


def _nodes_of(context: api.OracleContext) -> Sequence[Node]:
    """Makes nodes of an OracleContext: its summary, if it has one, and its messages in one path. An exchange may be
    several messages; the last of them has its id."""
    nodes: list[Node] = []
    first = NodeId(f"{context.id}-summary")
    summary = summary_from(context, first)
    if summary is not None:
        message = summary_message(summary)
        tokens = message_tokens(message)
        nodes.append(Node(first, None, IMPORTED, message, context.session_start, tokens))
    messages = messages_in(context)
    for place, (id_, at, message) in enumerate(messages):
        later = sum(other == id_ for other, _, _ in messages[place + 1 :])
        name = NodeId(f"{id_}.{later}" if later else id_)
        parent = nodes[-1].id if nodes else None
        node = Node(name, parent, IMPORTED, message, at, message_tokens(message))
        is_answer = message.role == "assistant"
        nodes.append(replace(node, model=context.last_model if is_answer else None))
    return nodes


# -- export


def export_context(
    record: SessionRecord, nodes: Sequence[Node], summary: Summary | None, agent: AgentDef
) -> OracleContext:
    """Makes an OracleContext of the end of the path to HEAD, with the newest exchanges that the budget has room for.
    It is suspended if another model than the agent's answered last, until the next turn."""
    messages = [node for node in nodes if node.message.role != "summary"]
    text, known = _without_decisions(summary), summary or Summary(NodeId(""), made=0)
    budget = min(max(agent.context.token_budget, LEAST_BUDGET), MOST_BUDGET)
    room = int(budget * OVERFLOW) - estimate_tokens(text)
    recent = _recent(exchanges_of(messages), known, room)
    last_model = next((node.model for node in reversed(messages) if node.model), None)
    symbols = [known.symbols, *(one.mentioned_symbols for one in recent)]
    files = [known.files, *(one.mentioned_files for one in recent)]
    return OracleContext(
        id=str(uuid5(NAMESPACE_URL, str(record.key))),
        user_id=record.key.account,
        project_id=agent.project,
        session_start=record.created_at,
        last_activity=record.updated_at,
        last_model=last_model,
        token_budget=budget,
        tokens_used=estimate_tokens(text) + sum(one.token_count for one in recent),
        compressed_summary=text or None,
        recent_exchanges=tuple(recent),
        key_decisions=known.decisions,
        mentioned_symbols=_join_names(symbols),
        mentioned_files=_join_names(files),
        status=_status(record, last_model, agent),
        compression_count=known.made,
    )


def _status(record: SessionRecord, last_model: str | None, agent: AgentDef) -> OracleStatus:
    if record.state == "closed":
        return "closed"
    return "active" if last_model in {None, agent.model} else "suspended"


def _join_names(names: Sequence[Sequence[str]]) -> str | None:
    return ", ".join(dict.fromkeys(chain.from_iterable(names))) or None


def _recent(exchanges: Sequence[Exchange], known: Summary, room: int) -> Sequence[OracleExchange]:
    """Returns the newest exchanges within `room` tokens."""
    recent: list[OracleExchange] = []
    for exchange in reversed(exchanges):
        folded = _fold(exchange)
        if (room := room - sum(one.token_count for one in folded)) < 0:
            break
        if any(node.id == known.covers for node in exchange):
            insight = {"key_insight": known.key_insight or None}
            folded[-1] = build(OracleExchange, folded[-1], **insight)
        recent[:0] = folded
    return recent


def _without_decisions(summary: Summary | None) -> str:
    text = summary_text(replace(summary, decisions=()), _ALL) if summary else ""
    return text.removeprefix(f"{SUMMARY_OPENING}\n").removesuffix(f"\n{SUMMARY_CLOSING}")


def _fold(exchange: Exchange) -> list[OracleExchange]:
    """Returns the questions of an exchange, and one answer with all calls that led to it."""
    folded = [_entry(one, one.message.text, (one,)) for one in exchange if _asks(one)]
    answers = [node for node in exchange if not _asks(node)]
    if not answers:
        return folded
    results = {
        one.message.result.call_id: one.message.result for one in answers if one.message.result
    }
    calls = [call for node in answers for call in node.message.tool_calls]
    text = "\n\n".join(node.message.text for node in answers if node.message.text)
    answer = _entry(answers[-1], text, answers)
    made = tuple(_call(call, results) for call in calls) or None
    return [*folded, build(OracleExchange, answer, tool_calls=made)]


def _asks(node: Node) -> bool:
    return node.message.role == "user"


def _entry(node: Node, text: str, nodes: Sequence[Node]) -> OracleExchange:
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
    known = arguments if isinstance(arguments, dict) else {_UNREADABLE: call.arguments}
    result = results.get(call.id)
    return OracleCall(
        id=call.id,
        name=call.name or UNNAMED,
        arguments=known,
        result=result.content if result else None,
        status="success" if result and not result.is_error else "error",
        duration_ms=round(result.duration_ms) if result else None,
    )


# -- import


def messages_in(context: OracleContext) -> Sequence[tuple[str, datetime, Message]]:
    """Returns the messages with the id and time of their exchange, in order. A pending call counts as ended."""
    messages: list[tuple[str, datetime, Message]] = []
    for one in context.recent_exchanges:
        made = one.tool_calls or ()
        calls = tuple(ToolCall(call.id, call.name, _arguments(call)) for call in made)
        if calls:
            results = [Message("tool", result=_result(call)) for call in made]
            request = Message("assistant", tool_calls=calls)
            messages += [(one.id, one.timestamp, message) for message in (request, *results)]
        if one.role == "tool":
            _replace_result(messages, one.tool_call_id or "", one.content)
        else:
            messages.append((one.id, one.timestamp, Message(one.role, one.content)))
    return messages


def _replace_result(
    messages: list[tuple[str, datetime, Message]], call_id: str, content: str
) -> None:
    """Puts a separate result in the place of the one that its call has."""
    for place, (id_, at, message) in enumerate(messages):
        if message.result is not None and message.result.call_id == call_id:
            result = ToolResult(call_id, message.result.name, content)
            messages[place] = (id_, at, replace(message, result=result))


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


def summary_from(context: OracleContext, node: NodeId) -> Summary | None:
    """Returns the summary of a context, for a node before its messages; None if it has none."""
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
