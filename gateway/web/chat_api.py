"""POST /api/chat: one message in, its answer out, whole or as a stream of its chunks; and /api/conversations."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.api import http as api
from gateway.api.conversations import TokenUsage
from gateway.api.declarations import build, differing
from gateway.api.errors import InvalidRequest
from gateway.domain.agents import Address
from gateway.domain.errors import BadSessionKey, NotFound
from gateway.domain.ids import SessionKey
from gateway.domain.inbox import Accepted, Inbound, RunRecord
from gateway.domain.ports import Decode, Encode, Ids
from gateway.domain.sessions import SessionQuery
from gateway.sessions.intake import Front
from gateway.sessions.runs import events_of, spoken, whole
from gateway.web.asgi import Described, query_of, require_scope
from gateway.web.identity import Principal, may_use, require_own, visible_key
from gateway.web.methods.chat import history_page, reachable_route
from gateway.web.responses import json_response, waiting
from gateway.web.rpc import Run, read_body

CHANNEL = "api"
STATUS = {
    "provider_error": 502,
    "budget_exceeded": 429,
    "internal_error": 500,
    "config_error": 500,
}
TOO_LATE = "the run reached its time limit; what there is comes with this error"


@dataclass(frozen=True, slots=True)
class ChatApi:
    front: Front
    encode: Encode
    decode: Decode
    ids: Ids

    def routes(self) -> Sequence[Described]:
        return (
            Described(api.CHAT, self.chat),
            Described(api.MESSAGES, self.messages),
            Described(api.ERASE, self.erase),
        )

    async def chat(self, request: Request) -> Response:
        body = read_body(api.ChatBody, await request.body(), "a message")
        if not body.message.strip():
            raise InvalidRequest("message: is empty")
        principal = require_scope(request, "chatting", "chat")
        accepted = await self._accept(body, principal, key_of_header(request))
        run = await run_with_log(self.front, accepted.run_id)
        headers = {"x-exogate-run": accepted.run_id}
        if body.stream or "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(_stream(run), headers=headers, media_type="text/event-stream")
        return self._answer(accepted, await whole(run, self.decode), headers)

    async def _accept(self, body: api.ChatBody, principal: Principal, key: str | None) -> Accepted:
        conversation = body.conversation_id or self.ids.new()
        same = asdict(body)
        del same["stream"]
        inbound = Inbound(
            address=Address(CHANNEL, principal.name, conversation),
            content=body.message,
            key=key,
            fingerprint=self.encode(same).decode(),
            requested_agent=body.agent,
            limits=differing(body.limits) if body.limits else {},
        )
        reachable_route(self.front, principal, inbound)
        return await self.front.intake.accept(inbound)

    def _answer(
        self, accepted: Accepted, events: Sequence[Mapping[str, Any]], headers: Mapping[str, str]
    ) -> Response:
        end = events[-1]
        ids = {"conversation_id": accepted.session_key.peer, "run_id": accepted.run_id}
        if end["type"] == "error":
            status = STATUS.get(end["error_type"], 500)
            error = _error(end["error_type"], end)
            failed = build(api.FailedChat, ids, error=error)
            return json_response(failed, status, {**headers, **waiting(end)})
        calls, usage = _tool_calls(events), _usage(events)
        told = {**ids, "response": spoken(events), "usage": usage, "tool_calls_made": calls}
        if end["reason"] != "timeout":
            return json_response(build(api.ChatAnswer, end, **told), 200, headers)
        facts = {"message": TOO_LATE, "retryable": True, "timestamp": end["timestamp"]}
        late = build(api.LateChat, end, **told, error=_error("timeout", facts))
        return json_response(late, 504, headers)

    async def messages(self, request: Request) -> Response:
        """As `chat.history` has them; of several agents' conversations the one that was used last."""
        principal = require_scope(request, "reading a conversation", "chat", "read")
        name = str(request.path_params["id"])
        page = query_of(request, api.ConversationQuery)
        key = (await self._meant(principal, name))[0]
        shown = await history_page(self.front, key, page.before, page.limit)
        return json_response(
            build(api.ConversationPage, shown, conversation_id=name, session_key=str(key))
        )

    async def erase(self, request: Request) -> Response:
        principal = require_scope(request, "erasing a conversation", "chat")
        name = str(request.path_params["id"])
        keys = await self._meant(principal, name)
        for key in keys:
            require_own(principal, key)
        gone = [
            build(
                api.ErasedSession,
                await self.front.erase(key, by=principal.name),
                session_key=str(key),
            )
            for key in keys
        ]
        return json_response(api.ErasedConversation(conversation_id=name, erased=gone))

    async def _meant(self, principal: Principal, name: str) -> Sequence[SessionKey]:
        """The principal's own conversation of that id, with whichever agents; or a session by its
        key. Raises NotFound."""
        query = SessionQuery(channels=(CHANNEL,), account=principal.name, peer=name, limit=500)
        page = await self.front.sessions.list_sessions(query)
        if own := [one.key for one in page.sessions if may_use(principal, one.key.agent)]:
            return own
        try:
            return (visible_key(principal, name),)
        except BadSessionKey as error:
            raise NotFound(f"session {name[:200]!r}") from error


def key_of_header(request: Request) -> str | None:
    """Raises InvalidRequest."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= 256:
        raise InvalidRequest("Idempotency-Key must have 1 to 256 characters")
    return key


async def run_with_log(front: Front, run_id: str) -> Run:
    """Raises NotFound for one that is too old to be told again."""
    run = await front.run(run_id)
    if isinstance(run, RunRecord) and not run.log:
        raise NotFound("the answer is older than [store] journal_days: it")
    return run


async def _stream(run: Run) -> AsyncIterator[bytes]:
    async for event in events_of(run):
        yield b"data: %b\n\n" % event


def _tool_calls(events: Sequence[Mapping[str, Any]]) -> Sequence[api.CallMade]:
    """In the order of the calls, whichever ended first."""
    asked = {e["tool_call"]["id"]: e["tool_call"] for e in events if e["type"] == "tool_call"}
    ended = [e["tool_call"] for e in events if e["type"] == "tool_result"]
    places = {id: place for place, id in enumerate(asked)}
    ended.sort(key=lambda call: places.get(call["id"], len(places)))
    return [
        build(api.CallMade, call, arguments=asked.get(call["id"], {}).get("arguments", ""))
        for call in ended
    ]


def _usage(events: Sequence[Mapping[str, Any]]) -> TokenUsage:
    """Of all models that worked for it. The cost is of those calls of which it is known."""
    told = [event for event in events if event["type"] == "usage"]
    costs = [event["cost_usd"] for event in told if event["cost_usd"] is not None]
    return TokenUsage(
        input_tokens=sum(event["input_tokens"] for event in told),
        output_tokens=sum(event["output_tokens"] for event in told),
        cost_usd=round(sum(costs), 9) if costs else None,
    )


def _error(kind: str, facts: Mapping[str, Any]) -> api.RunError:
    """Its message is one of our own sentences, never a provider's words."""
    message = facts["message"]
    names = {"type": kind, "code": kind, "error_type": kind}
    return build(api.RunError, facts, **names, message=message, user_facing_message=message)
