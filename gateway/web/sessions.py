"""session.*: conversations, their trees, and conversations from elsewhere."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
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

MOST_TREE_NODES = 3_000  # the newest ones: they fit into one frame
MOST_READ = 2_000  # messages of which an OracleContext is made
Names = tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class SessionMethods:
    front: Front

    async def session_list(self, call: Call, params: api.SessionList) -> api.SessionPage:
        agents, channels, account = _reach(call.principal)
        query = SessionQuery(
            agents=_both(agents, params.agent),
            channels=_both(channels, params.channel),
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
            taken = await self.front.import_nodes(key, _nodes(params.messages))
        else:
            assert params.context is not None
            taken = await self.front.import_nodes(key, _nodes_of(params.context))
            if params.context.status == "closed":
                await self.front.sessions.close_session(key)
        return api.Imported(session_key=key, imported=taken.added, head=taken.head)

    async def session_export(self, call: Call, params: api.OfSession) -> api.OracleExport:
        record = await self._record(call, params)
        key, agents = record.key, self.front.agents
        if key.agent not in agents:
            raise UnknownAgent(key.agent, tuple(agents))
        agent = agents[key.agent]
        path = await self.front.sessions.path(key, limit=MOST_READ)
        summary = summary_of(path.summary)
        context = export_context(
            record, path.nodes, summary, agent, user=key.account, project=agent.project
        )
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
        """Where the principal may talk, also for the first time."""
        key = own_key(call.principal, params.session_key)
        if key.agent not in self.front.agents:
            raise UnknownAgent(key.agent, tuple(self.front.agents))
        return key


def _reach(principal: Principal) -> tuple[Names, Names, str | None]:
    """Agents, channels and account to which a principal's eyes are limited; None: not at all."""
    agents = None if principal.agents is None else tuple(sorted(principal.agents))
    if has_scope(principal, "read"):
        return agents, None, None
    return agents, tuple(sorted(OWN_CHANNELS)), principal.name


def _both(reach: Names, asked: str | None) -> Names:
    if asked is None:
        return reach
    return (asked,) if reach is None or asked in reach else ()


def session(record: SessionRecord) -> api.Session:
    key, usage = record.key, build(api.TokenUsage, record)
    return build(api.Session, record, key, session_key=key, agent_id=key.agent, token_usage=usage)


def _tree_node(node: Node) -> api.TreeNode:
    is_archived = node.standing == "archived"
    return build(
        api.TreeNode,
        node,
        role=node.message.role,
        checkpoint=node.is_checkpoint,
        archived=is_archived,
    )


def _nodes(messages: Sequence[api.ImportedMessage]) -> list[Node]:
    """Raises ImportRefused."""
    nodes: list[Node] = []
    for place, one in enumerate(messages):
        _require_whole(one, f"messages[{place}]")
        message = _message(one)
        parent = one.parent_id
        if parent == "":
            parent = nodes[-1].id if nodes else None
        tokens = one.token_count or message_tokens(message)
        above = None if parent is None else NodeId(parent)
        node = Node(NodeId(one.id), above, IMPORTED, message, one.created_at, tokens)
        nodes.append(replace(node, status=one.status, model=one.model))
    return nodes


def _require_whole(one: api.ImportedMessage, where: str) -> None:
    if one.role == "tool" and one.tool_call_id is None:
        raise ImportRefused(f"{where}.tool_call_id: a tool's message needs it")
    if one.role != "tool" and not (one.content.strip() or one.tool_calls):
        raise ImportRefused(f"{where}.content: it is empty")


def _message(one: api.ImportedMessage) -> Message:
    if one.tool_call_id is not None and one.role == "tool":
        told = (one.tool_call_id, one.name, one.content, one.is_error, one.duration_ms)
        return Message("tool", result=ToolResult(*told))
    calls = [
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in one.tool_calls or ()
    ]
    return Message(one.role, one.content, tuple(calls))


def _nodes_of(context: api.OracleContext) -> Sequence[Node]:
    """A summary of its older part, if it has one, and its messages under each other. An exchange may
    be several messages: the last has its id."""
    nodes: list[Node] = []
    first = NodeId(f"{context.id}-summary")
    summary = summary_from(context, first)
    if summary is not None:
        message = summary_message(summary)
        tokens = message_tokens(message)
        nodes.append(Node(first, None, IMPORTED, message, context.session_start, tokens))
    told = messages_in(context)
    for place, (id_, at, message) in enumerate(told):
        later = sum(other == id_ for other, _, _ in told[place + 1 :])
        name = NodeId(f"{id_}.{later}" if later else id_)
        parent = nodes[-1].id if nodes else None
        node = Node(name, parent, IMPORTED, message, at, message_tokens(message))
        is_answer = message.role == "assistant"
        nodes.append(replace(node, model=context.last_model if is_answer else None))
    return nodes


NO_ANSWER = "(no answer)"
UNNAMED = "unnamed"  # a call that a model made without a name
_UNREADABLE = "_unreadable"  # holds arguments that are no JSON object
_ALL = 1 << 40


# -- from a conversation


def export_context(
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
    told = summary_text(replace(summary, decisions=()), _ALL) if summary else ""
    return told.removeprefix(f"{SUMMARY_OPENING}\n").removesuffix(f"\n{SUMMARY_CLOSING}")


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


def messages_in(context: OracleContext) -> Sequence[tuple[str, datetime, Message]]:
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


def summary_from(context: OracleContext, node: NodeId) -> Summary | None:
    """What the context says of its older part, for a summary that stands at `node`, in front of what
    was `messages_in` it."""
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
