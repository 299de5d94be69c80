"""session.create, .label, .checkpoint, .close, .import, .export: a conversation as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from gateway.api.errors import InvalidParams
from gateway.domain.errors import NotFound, UnknownAgent
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Message, Node, NodeStatus, ToolCall, ToolResult
from gateway.domain.sessions import IMPORTED, ImportRefused
from gateway.memory.compaction import summary_message
from gateway.memory.window import message_tokens, summary_of
from gateway.sessions.intake import Front
from gateway.web.given import Moment
from gateway.web.identity import CHAT, READS, Principal
from gateway.web.methods.chat import Text, require_own, visible_key
from gateway.web.methods.sessions import Get, Key
from gateway.web.oracle import OracleContext, said_in, summary_in, viewed
from gateway.web.published.conversations import (
    Checkpointed,
    Closed,
    Created,
    Imported,
    Labelled,
    OracleExport,
)
from gateway.web.rpc import Call, Method

MOST_AT_ONCE = 500  # messages
MOST_READ = 2_000  # messages of which an OracleContext is made
Id = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Said = Annotated[str, StringConstraints(max_length=400_000)]


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Label(_Params):
    session_key: Key
    node_id: Text
    label: Text | None


class Checkpoint(_Params):
    session_key: Key
    node_id: Text | None = None
    checkpoint: bool = True


class ImportedFunction(BaseModel):
    name: Text
    arguments: Said = "{}"


class ImportedCall(BaseModel):
    id: Id
    function: ImportedFunction


class ImportedMessage(BaseModel):
    """A message as `chat.history` shows it; what is derived from others is not looked at."""

    id: Id
    parent_id: Id | None = None
    role: Literal["user", "assistant", "tool"]
    content: Said
    tool_calls: Annotated[list[ImportedCall], Field(max_length=100)] | None = None
    tool_call_id: Id | None = None
    name: Annotated[str, StringConstraints(max_length=256)] = ""
    is_error: bool = False
    duration_ms: float = Field(default=0.0, ge=0, le=1e12, allow_inf_nan=False)
    status: NodeStatus = "complete"
    created_at: Moment
    token_count: int | None = Field(default=None, ge=1, le=100_000_000)
    model: Text | None = None


class Import(_Params):
    session_key: Key
    messages: Annotated[list[ImportedMessage], Field(max_length=MOST_AT_ONCE)] | None = None
    context: OracleContext | None = None


@dataclass(frozen=True, slots=True)
class UpkeepMethods:
    front: Front

    def all(self) -> Sequence[Method]:
        return (
            Method("session.create", Get, CHAT, self.create),
            Method("session.label", Label, CHAT, self.label),
            Method("session.checkpoint", Checkpoint, CHAT, self.checkpoint),
            Method("session.close", Get, CHAT, self.close),
            Method("session.import", Import, CHAT, self.take_in),
            Method("session.export", Get, READS, self.export),
        )

    async def create(self, call: Call, params: Get) -> Created:
        """Begins a new tree; what was said before stays."""
        key = self._own_place(call.principal, params.session_key)
        await self.front.start_over(key)
        return {"session_key": str(key), "head": None}

    async def label(self, call: Call, params: Label) -> Labelled:
        """Gives a message a name, or takes it away."""
        key = _own(call.principal, params.session_key)
        node = await self.front.node(key, params.node_id)
        await self.front.sessions.label_node(key, node.id, params.label)
        return {"node_id": node.id, "label": params.label}

    async def checkpoint(self, call: Call, params: Checkpoint) -> Checkpointed:
        """Keeps a message and the path to it from the archive."""
        key = _own(call.principal, params.session_key)
        record = await self.front.sessions.find_session(key)
        head = None if record is None else record.head
        node = await self.front.node(key, params.node_id or head or "")
        await self.front.sessions.checkpoint(key, node.id, is_kept=params.checkpoint)
        return {"node_id": node.id, "label": node.label, "checkpoint": params.checkpoint}

    async def close(self, call: Call, params: Get) -> Closed:
        """Closes a session until its next message."""
        key = _own(call.principal, params.session_key)
        await self.front.sessions.close_session(key)
        return {"session_key": str(key), "state": "closed"}

    async def take_in(self, call: Call, params: Import) -> Imported:
        """Takes in messages of another conversation."""
        key = self._own_place(call.principal, params.session_key)
        if (params.messages is None) == (params.context is None):
            raise InvalidParams("give either messages or context")
        if params.messages is not None:
            taken = await self.front.import_nodes(key, _nodes(params.messages))
        else:
            assert params.context is not None
            taken = await self.front.import_nodes(key, _nodes_of(params.context))
            if params.context.status == "closed":
                await self.front.sessions.close_session(key)
        return {"session_key": str(key), "imported": taken.added, "head": taken.head}

    async def export(self, call: Call, params: Get) -> OracleExport:
        """The end of a conversation as one OracleContext."""
        key = visible_key(call.principal, params.session_key)
        record, agent = (
            await self.front.sessions.find_session(key),
            self.front.agents.get(key.agent),
        )
        if record is None:
            raise NotFound(f"session {params.session_key[:200]!r}")
        if agent is None:
            raise UnknownAgent(key.agent, tuple(self.front.agents))
        path = await self.front.sessions.path(key, limit=MOST_READ)
        summary = summary_of(path.summary)
        context = viewed(
            record, path.nodes, summary, agent, user=key.account, project=agent.project
        )
        return {"context": context}

    def _own_place(self, principal: Principal, text: str) -> SessionKey:
        """Where the principal may talk, also for the first time."""
        key = _own(principal, text)
        if key.agent not in self.front.agents:
            raise UnknownAgent(key.agent, tuple(self.front.agents))
        return key


def _own(principal: Principal, text: str) -> SessionKey:
    key = visible_key(principal, text)
    require_own(principal, key)
    return key


def _nodes(messages: Sequence[ImportedMessage]) -> list[Node]:
    """Without a `parent_id` a message follows the one before it. Raises ImportRefused."""
    nodes: list[Node] = []
    for place, one in enumerate(messages):
        _require_whole(one, f"messages[{place}]")
        message, parent = _message(one), one.parent_id
        if "parent_id" not in one.model_fields_set and nodes:
            parent = nodes[-1].id
        tokens = one.token_count or message_tokens(message)
        above = None if parent is None else NodeId(parent)
        node = Node(NodeId(one.id), above, IMPORTED, message, one.created_at, tokens)
        nodes.append(replace(node, status=one.status, model=one.model))
    return nodes


def _require_whole(one: ImportedMessage, where: str) -> None:
    if one.role == "tool" and one.tool_call_id is None:
        raise ImportRefused(f"{where}.tool_call_id: a tool's message needs it")
    if one.role != "tool" and not (one.content.strip() or one.tool_calls):
        raise ImportRefused(f"{where}.content: it is empty")


def _message(one: ImportedMessage) -> Message:
    if one.tool_call_id is not None and one.role == "tool":
        told = (one.tool_call_id, one.name, one.content, one.is_error, one.duration_ms)
        return Message("tool", result=ToolResult(*told))
    calls = [
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in one.tool_calls or ()
    ]
    return Message(one.role, one.content, tuple(calls))


def _nodes_of(context: OracleContext) -> Sequence[Node]:
    """A summary of its older part, if it has one, and its messages under each other. An exchange may
    be several messages: the last has its id."""
    nodes: list[Node] = []
    first = NodeId(f"{context.id}-summary")
    summary = summary_in(context, first)
    if summary is not None:
        message = summary_message(summary)
        tokens = message_tokens(message)
        nodes.append(Node(first, None, IMPORTED, message, context.session_start, tokens))
    told = said_in(context)
    for place, (id_, at, message) in enumerate(told):
        later = sum(other == id_ for other, _, _ in told[place + 1 :])
        name = NodeId(f"{id_}.{later}" if later else id_)
        parent = nodes[-1].id if nodes else None
        node = Node(name, parent, IMPORTED, message, at, message_tokens(message))
        is_answer = message.role == "assistant"
        nodes.append(replace(node, model=context.last_model if is_answer else None))
    return nodes
