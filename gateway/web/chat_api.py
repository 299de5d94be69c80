"""POST /api/chat: one message in, its answer out, whole or as a stream of its chunks."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from gateway.domain.bindings import Address
from gateway.domain.errors import NotFound
from gateway.domain.inbound import Inbound
from gateway.domain.inbox import Accepted, RunRecord
from gateway.domain.ports import Decode, Encode, Ids
from gateway.sessions.front import Front
from gateway.sessions.listening import events_of, spoken, whole
from gateway.sessions.runs import LiveRun
from gateway.web.asgi import principal_of
from gateway.web.guards import parse_json
from gateway.web.identity import Principal, may
from gateway.web.methods.chat import OwnLimits, Text, given, reachable_route
from gateway.web.refusals import Forbidden, InvalidRequest
from gateway.web.responses import json_response
from gateway.web.rpc import validate

CHANNEL = "api"
JSON_DEPTH = 64
STATUS = {
    "provider_error": 502,
    "budget_exceeded": 429,
    "internal_error": 500,
    "config_error": 500,
}
TOO_LATE = "the run reached its time limit; what there is comes with this error"
_TOLD = (
    *("message", "retryable", "timestamp", "provider", "provider_status", "retry_after_s"),
    *("scope", "used", "limit", "unit", "resets_at"),
)


class ChatBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    message: Annotated[str, StringConstraints(max_length=400_000)]
    conversation_id: Text | None = None
    agent: Text | None = None
    stream: bool = False
    limits: OwnLimits | None = None


@dataclass(frozen=True, slots=True)
class ChatApi:
    front: Front
    encode: Encode
    decode: Decode
    ids: Ids

    def routes(self) -> Sequence[BaseRoute]:
        return (Route("/api/chat", self.chat, methods=["POST"]),)

    async def chat(self, request: Request) -> Response:
        body = _body(await request.body())
        principal = principal_of(request)
        if not may(principal, "chat"):
            raise Forbidden("chatting needs the scope 'chat'")
        accepted = await self._accept(body, principal, request.headers.get("idempotency-key"))
        run = await self.front.run(accepted.run_id)
        if isinstance(run, RunRecord) and not run.log:
            raise NotFound("the answer is older than [store] journal_days: it")
        headers = {"x-exogate-run": accepted.run_id}
        if body.stream or "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(_stream(run), headers=headers, media_type="text/event-stream")
        return self._answer(accepted, await whole(run, self.decode), headers)

    async def _accept(self, body: ChatBody, principal: Principal, key: str | None) -> Accepted:
        conversation = body.conversation_id or self.ids.new()
        inbound = Inbound(
            address=Address(CHANNEL, principal.name, conversation),
            content=body.message,
            key=checked_key(key),
            fingerprint=self.encode(body.model_dump(exclude={"stream"})).decode(),
            requested_agent=body.agent,
            limits=given(body.limits),
        )
        reachable_route(self.front, principal, inbound)
        return await self.front.reception.accept(inbound)

    def _answer(
        self, accepted: Accepted, events: Sequence[Mapping[str, Any]], headers: Mapping[str, str]
    ) -> Response:
        end = events[-1]
        ids = {"conversation_id": accepted.session_key.peer, "run_id": accepted.run_id}
        if end["type"] == "error":
            status = STATUS.get(end["error_type"], 500)
            after = end.get("retry_after_s")
            wait = {} if after is None else {"retry-after": str(ceil(after))}
            error = _error(end["error_type"], end)
            return json_response({"error": error, **ids}, status, {**headers, **wait})
        answer = {
            "response": spoken(events),
            **ids,
            "message_id": end["message_id"],
            "tokens_used": end["tokens_used"],
            "usage": _usage(events),
            "model": end["model"],
            "execution_time_ms": end["execution_time_ms"],
            "reason": end["reason"],
            **({"merged_into": end["merged_into"]} if "merged_into" in end else {}),
            "partial": end["partial"],
            "tool_calls_made": _tool_calls(events),
        }
        if end["reason"] == "timeout":
            facts = {"message": TOO_LATE, "retryable": True, "timestamp": end["timestamp"]}
            return json_response({"error": _error("timeout", facts), **answer}, 504, headers)
        return json_response(answer, 200, headers)


def checked_key(key: str | None) -> str | None:
    """What stands in the header Idempotency-Key. Raises InvalidRequest."""
    if key is not None and not 0 < len(key) <= 256:
        raise InvalidRequest("Idempotency-Key must have 1 to 256 characters")
    return key


def _body(raw: bytes) -> ChatBody:
    value = parse_json(raw, JSON_DEPTH)
    if not isinstance(value, dict):
        raise InvalidRequest("the body has to be a JSON object with a message")
    body = validate(ChatBody, value)
    assert isinstance(body, ChatBody)
    if not body.message.strip():
        raise InvalidRequest("message: is empty")
    return body


async def _stream(run: LiveRun | RunRecord) -> AsyncIterator[bytes]:
    async for event in events_of(run):
        yield b"data: %b\n\n" % event


def _tool_calls(events: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, object]]:
    """In the order of the calls, whichever ended first."""
    asked = {e["tool_call"]["id"]: e["tool_call"] for e in events if e["type"] == "tool_call"}
    ended = [e["tool_call"] for e in events if e["type"] == "tool_result"]
    places = {id: place for place, id in enumerate(asked)}
    ended.sort(key=lambda call: places.get(call["id"], len(places)))
    return [{**asked.get(call["id"], {}), **call} for call in ended]


def _usage(events: Sequence[Mapping[str, Any]]) -> Mapping[str, object]:
    """Of all models that worked for it. The cost is of those calls of which it is known."""
    told = [event for event in events if event["type"] == "usage"]
    costs = [event["cost_usd"] for event in told if event["cost_usd"] is not None]
    return {
        "input_tokens": sum(event["input_tokens"] for event in told),
        "output_tokens": sum(event["output_tokens"] for event in told),
        "cost_usd": round(sum(costs), 9) if costs else None,
    }


def _error(kind: str, facts: Mapping[str, Any]) -> Mapping[str, object]:
    """Its message is one of our own sentences, never a provider's words."""
    kept = {name: facts[name] for name in _TOLD if name in facts}
    same = {"type": kind, "code": kind, "error_type": kind}
    return {**same, "user_facing_message": facts["message"], **kept}
