"""session.list, session.get, session.tree, session.branch, session.checkout."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from gateway.domain.errors import NotFound
from gateway.domain.ids import SessionKey
from gateway.domain.sessions import SessionQuery, SessionRecord
from gateway.sessions.front import Front
from gateway.web.identity import Principal, may, sees_session
from gateway.web.methods.chat import Text, visible_key
from gateway.web.refusals import InvalidParams
from gateway.web.rpc import Call, Method
from gateway.web.shapes import session, tree_node

Key = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
MOST_TREE_NODES = 10_000


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid")


class List(_Params):
    agent: Text | None = None
    channel: Text | None = None
    query: Text | None = None
    before: AwareDatetime | None = None
    limit: int = Field(default=50, ge=1, le=500)


class Get(_Params):
    session_key: Key


class Branch(_Params):
    session_key: Key
    node_id: Text
    label: Text | None = None


class Checkout(_Params):
    session_key: Key
    node_id: Text | None = None
    label: Text | None = None


@dataclass(frozen=True, slots=True)
class SessionMethods:
    front: Front

    def all(self) -> Sequence[Method]:
        return (
            Method("session.list", List, None, self.list),
            Method("session.get", Get, None, self.get),
            Method("session.tree", Get, None, self.tree),
            Method("session.branch", Branch, "chat", self.branch),
            Method("session.checkout", Checkout, "chat", self.checkout),
        )

    async def list(self, call: Call, params: List) -> object:
        principal = call.principal
        query = SessionQuery(
            agent=params.agent,
            channel=params.channel,
            account=None if may(principal, "read") else principal.name,
            text=params.query,
            before=params.before,
            limit=params.limit,
        )
        page = await self.front.sessions.list(query)
        seen = [record for record in page.sessions if sees_session(principal, record.key)]
        return {"sessions": [session(record) for record in seen], "more": page.more}

    async def get(self, call: Call, params: Get) -> object:
        return session(await self._record(call.principal, params.session_key))

    async def tree(self, call: Call, params: Get) -> object:
        record = await self._record(call.principal, params.session_key)
        nodes = await self.front.transcript.tree(record.key, limit=MOST_TREE_NODES)
        return {"nodes": [tree_node(node) for node in nodes], "head": record.head}

    async def branch(self, call: Call, params: Branch) -> object:
        key = await self._own(call.principal, params.session_key)
        head = await self.front.move_head(key, params.node_id, label=params.label)
        return {"head": head, "label": params.label}

    async def checkout(self, call: Call, params: Checkout) -> object:
        to = params.node_id or params.label
        if to is None or (params.node_id is not None and params.label is not None):
            raise InvalidParams("give either node_id or label")
        key = await self._own(call.principal, params.session_key)
        return {"head": await self.front.move_head(key, to)}

    async def _own(self, principal: Principal, text: str) -> SessionKey:
        return (await self._record(principal, text)).key

    async def _record(self, principal: Principal, text: str) -> SessionRecord:
        key = visible_key(principal, text)
        record = await self.front.sessions.find(key)
        if record is None:
            raise NotFound(f"session {text[:200]!r}")
        return record
