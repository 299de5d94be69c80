"""/api/conversations/{id}: its messages are read, or it is gone for good, and a tombstone stays."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.domain.errors import BadSessionKey, NotFound
from gateway.domain.ids import SessionKey
from gateway.domain.sessions import SessionQuery
from gateway.sessions.front import Front
from gateway.web.asgi import principal_of
from gateway.web.chat_api import CHANNEL
from gateway.web.identity import READS, Principal, may, may_use
from gateway.web.methods.chat import Text, history_page, require_own, visible_key
from gateway.web.refusals import Forbidden
from gateway.web.responses import json_response
from gateway.web.rpc import validate


class Page(BaseModel):
    """Not strict: in an address everything is text."""

    model_config = ConfigDict(extra="forbid")

    before: Text | None = None
    limit: int = Field(default=50, ge=1, le=500)


@dataclass(frozen=True, slots=True)
class ConversationsApi:
    front: Front

    def routes(self) -> Sequence[BaseRoute]:
        return (
            Route("/api/conversations/{id:path}/messages", self.messages, methods=["GET"]),
            Route("/api/conversations/{id:path}", self.erase, methods=["DELETE"]),
        )

    async def messages(self, request: Request) -> Response:
        """As `chat.history` has them; of several agents' conversations the one that was used last."""
        principal, name = principal_of(request), str(request.path_params["id"])
        if not any(may(principal, scope) for scope in READS):
            raise Forbidden("reading a conversation needs the scope 'chat' or 'read'")
        page = validate(Page, dict(request.query_params))
        assert isinstance(page, Page)
        key = (await self._meant(principal, name))[0]
        shown = await history_page(self.front, key, page.before, page.limit)
        return json_response({"conversation_id": name, "session_key": str(key), **shown})

    async def erase(self, request: Request) -> Response:
        principal, name = principal_of(request), str(request.path_params["id"])
        if not may(principal, "chat"):
            raise Forbidden("erasing a conversation needs the scope 'chat'")
        gone, keys = [], await self._meant(principal, name)
        for key in keys:
            require_own(principal, key)
        for key in keys:
            erased = await self.front.upkeep.erase(key, by=principal.name)
            counts = {"messages": erased.messages, "facts": erased.facts}
            gone.append({"session_key": str(key), **counts, "tombstone": erased.tombstone})
        return json_response({"conversation_id": name, "erased": gone})

    async def _meant(self, principal: Principal, name: str) -> Sequence[SessionKey]:
        """The principal's own conversation of that id, with whichever agents; or a session by its
        key. Raises NotFound."""
        query = SessionQuery(channels=(CHANNEL,), account=principal.name, peer=name, limit=500)
        page = await self.front.sessions.list(query)
        if own := [one.key for one in page.sessions if may_use(principal, one.key.agent)]:
            return own
        try:
            return (visible_key(principal, name),)
        except BadSessionKey as error:
            raise NotFound(f"conversation {name[:64]!r}") from error
