"""/api/conversations/{id}: its messages are read, or it is gone for good, and a tombstone stays."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.errors import Forbidden
from gateway.domain.ids import SessionKey
from gateway.domain.sessions import SessionQuery
from gateway.sessions.intake import Front
from gateway.web.asgi import principal_of, query_of
from gateway.web.chat_api import CHANNEL
from gateway.web.identity import READS, Principal, may, may_use
from gateway.web.methods.chat import Text, history_page, key_in_path, require_own
from gateway.web.published.answers import ConversationPage, ErasedConversation, ErasedSession
from gateway.web.published.operations import Answer, Described, Operation
from gateway.web.responses import json_response


class Page(BaseModel):
    """Not strict: in an address everything is text."""

    model_config = ConfigDict(extra="forbid")

    before: Text | None = None
    limit: int = Field(default=50, ge=1, le=500)


MESSAGES = Operation(
    "GET",
    "/api/conversations/{id:path}/messages",
    "The messages of a conversation, by its id or its session key.",
    (Answer(200, "A page of them.", ConversationPage),),
    query=Page,
    refusals=(404, 422),
)
ERASE = Operation(
    "DELETE",
    "/api/conversations/{id:path}",
    "Erase a conversation for good, by its id or its session key.",
    (Answer(200, "What is gone.", ErasedConversation),),
    refusals=(404, 409),
)


@dataclass(frozen=True, slots=True)
class ConversationsApi:
    front: Front

    def routes(self) -> Sequence[Described]:
        return Described(MESSAGES, self.messages), Described(ERASE, self.erase)

    async def messages(self, request: Request) -> Response:
        """As `chat.history` has them; of several agents' conversations the one that was used last."""
        principal, name = principal_of(request), str(request.path_params["id"])
        if not any(may(principal, scope) for scope in READS):
            raise Forbidden("reading a conversation needs the scope 'chat' or 'read'")
        page = query_of(request, Page)
        key = (await self._meant(principal, name))[0]
        shown = await history_page(self.front, key, page.before, page.limit)
        said: ConversationPage = {"conversation_id": name, "session_key": str(key), **shown}
        return json_response(said)

    async def erase(self, request: Request) -> Response:
        principal, name = principal_of(request), str(request.path_params["id"])
        if not may(principal, "chat"):
            raise Forbidden("erasing a conversation needs the scope 'chat'")
        gone: list[ErasedSession] = []
        keys = await self._meant(principal, name)
        for key in keys:
            require_own(principal, key)
        for key in keys:
            erased = await self.front.erase(key, by=principal.name)
            gone.append(
                {
                    "session_key": str(key),
                    "messages": erased.messages,
                    "facts": erased.facts,
                    "tombstone": erased.tombstone,
                }
            )
        answer: ErasedConversation = {"conversation_id": name, "erased": gone}
        return json_response(answer)

    async def _meant(self, principal: Principal, name: str) -> Sequence[SessionKey]:
        """The principal's own conversation of that id, with whichever agents; or a session by its
        key. Raises NotFound."""
        query = SessionQuery(channels=(CHANNEL,), account=principal.name, peer=name, limit=500)
        page = await self.front.sessions.list_sessions(query)
        if own := [one.key for one in page.sessions if may_use(principal, one.key.agent)]:
            return own
        return (key_in_path(principal, name),)
