"""session.list, session.get, session.tree, session.branch, session.checkout; GET /api/sessions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.errors import Forbidden, InvalidParams
from gateway.domain.agents import OWN_CHANNELS
from gateway.domain.errors import NotFound
from gateway.domain.ids import SessionKey
from gateway.domain.sessions import SessionQuery, SessionRecord
from gateway.sessions.intake import Front
from gateway.web.asgi import principal_of, query_of
from gateway.web.given import Moment
from gateway.web.identity import CHAT, READS, Principal, may
from gateway.web.methods.chat import Text, key_in_path, require_own, visible_key
from gateway.web.published.conversations import (
    Branched,
    HeadMoved,
    Session,
    SessionPage,
    SessionTree,
)
from gateway.web.published.operations import Answer, Described, Operation
from gateway.web.responses import json_response
from gateway.web.rpc import Call, Method
from gateway.web.shapes import session, tree_node

# What SessionKey.parse takes: escapes stand for what they have to, and for nothing else.
_PART = r"([^%:\x00-\x1f\x7f-\x9f]|%(25|3A|[01][0-9A-F]|7F|C2%[89][0-9A-F]))*"
Key = Annotated[
    str,
    StringConstraints(min_length=1, max_length=4096),
    Field(json_schema_extra={"pattern": f"^{_PART}:{_PART}:{_PART}:{_PART}$"}),
]
MOST_TREE_NODES = 3_000  # the newest ones: they fit into one frame


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid")


class List(_Params):
    agent: Text | None = None
    channel: Text | None = None
    query: Text | None = None
    before: Moment | None = None
    limit: int = Field(default=50, ge=1, le=500)


class Get(_Params):
    session_key: Key


class Tree(_Params):
    session_key: Key
    archived: bool = False


class Branch(_Params):
    session_key: Key
    node_id: Text
    label: Text | None = None


class Checkout(_Params):
    session_key: Key
    node_id: Text | None = None
    label: Text | None = None


SESSIONS = Operation(
    "GET",
    "/api/sessions",
    "The sessions that you may see, the one used last first.",
    (Answer(200, "A page of them.", SessionPage),),
    query=List,
    refusals=(422,),
)
SESSION = Operation(
    "GET",
    "/api/sessions/{key:path}",
    "One session, by its key.",
    (Answer(200, "It.", Session),),
    refusals=(404,),
)


@dataclass(frozen=True, slots=True)
class SessionMethods:
    front: Front

    def all(self) -> Sequence[Method]:
        return (
            Method("session.list", List, READS, self.list),
            Method("session.get", Get, READS, self.get),
            Method("session.tree", Tree, READS, self.tree),
            Method("session.branch", Branch, CHAT, self.branch),
            Method("session.checkout", Checkout, CHAT, self.checkout),
        )

    def routes(self) -> Sequence[Described]:
        return Described(SESSIONS, self.listed), Described(SESSION, self.one)

    async def listed(self, request: Request) -> Response:
        principal = _reader(request)
        return json_response(await self._page(principal, query_of(request, List)))

    async def one(self, request: Request) -> Response:
        principal, text = _reader(request), str(request.path_params["key"])
        key_in_path(principal, text)
        return json_response(session(await self._record(principal, text)))

    async def list(self, call: Call, params: List) -> SessionPage:
        """Sessions, those that were used last first."""
        return await self._page(call.principal, params)

    async def _page(self, principal: Principal, params: List) -> SessionPage:
        agents, channels, account = _reach(principal)
        query = SessionQuery(
            agents=_both(agents, params.agent),
            channels=_both(channels, params.channel),
            account=account,
            text=params.query,
            before=params.before,
            limit=params.limit,
        )
        page = await self.front.sessions.list_sessions(query)
        return {"sessions": [session(record) for record in page.sessions], "more": page.more}

    async def get(self, call: Call, params: Get) -> Session:
        """One session."""
        return session(await self._record(call.principal, params.session_key))

    async def tree(self, call: Call, params: Tree) -> SessionTree:
        """The messages of a session with their branches."""
        record = await self._record(call.principal, params.session_key)
        nodes = await self.front.sessions.tree(
            record.key, limit=MOST_TREE_NODES, archived=params.archived
        )
        return {"nodes": [tree_node(node) for node in nodes], "head": record.head}

    async def branch(self, call: Call, params: Branch) -> Branched:
        """Lets the next message grow from another one."""
        key = await self._own(call.principal, params.session_key)
        head = await self.front.move_head(key, params.node_id, label=params.label)
        return {"head": head, "label": params.label}

    async def checkout(self, call: Call, params: Checkout) -> HeadMoved:
        """Goes to a message, or to a label."""
        to = params.node_id or params.label
        if to is None or (params.node_id is not None and params.label is not None):
            raise InvalidParams("give either node_id or label")
        key = await self._own(call.principal, params.session_key)
        return {"head": await self.front.move_head(key, to)}

    async def _own(self, principal: Principal, text: str) -> SessionKey:
        key = (await self._record(principal, text)).key
        require_own(principal, key)
        return key

    async def _record(self, principal: Principal, text: str) -> SessionRecord:
        key = visible_key(principal, text)
        record = await self.front.sessions.find_session(key)
        if record is None:
            raise NotFound(f"session {text[:200]!r}")
        return record


def _reader(request: Request) -> Principal:
    principal = principal_of(request)
    if not any(may(principal, scope) for scope in READS):
        raise Forbidden("looking at sessions needs the scope 'chat' or 'read'")
    return principal


Names = tuple[str, ...] | None


def _reach(principal: Principal) -> tuple[Names, Names, str | None]:
    """Agents, channels and account to which a principal's eyes are limited; None: not at all."""
    agents = None if principal.agents is None else tuple(sorted(principal.agents))
    if may(principal, "read"):
        return agents, None, None
    return agents, tuple(sorted(OWN_CHANNELS)), principal.name


def _both(reach: Names, asked: str | None) -> Names:
    if asked is None:
        return reach
    return (asked,) if reach is None or asked in reach else ()
