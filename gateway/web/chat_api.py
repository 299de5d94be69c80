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
from gateway.domain.errors import Busy, NotFound
from gateway.domain.inbound import Inbound
from gateway.domain.inbox import Accepted, RunRecord
from gateway.domain.ports import Decode, Encode, Ids
from gateway.sessions.front import Front
from gateway.sessions.listening import events_of
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
_TOLD = ("message", "retryable", "retry_after_s", "scope", "used", "limit", "unit", "resets_at")


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
        events = [self._read(event) async for event in events_of(run)]
        if not events or events[-1]["type"] not in {"done", "error"}:
            raise Busy(f"the gateway restarts before {accepted.run_id} has ended; ask again")
        return self._answer(accepted, events, headers)

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

    def _read(self, event: bytes) -> Mapping[str, Any]:
        value = self.decode(event)
        assert isinstance(value, dict)
        return value

    def _answer(
        self, accepted: Accepted, events: Sequence[Mapping[str, Any]], headers: Mapping[str, str]
    ) -> Response:
        end = events[-1]
        ids = {"conversation_id": accepted.session_key.peer, "run_id": accepted.run_id}
        if end["type"] == "error":
            status = STATUS.get(end["error_type"], 500)
            after = end.get("retry_after_s")
            wait = {} if after is None else {"retry-after": str(ceil(after))}
            return json_response({"error": _error(end), **ids}, status, {**headers, **wait})
        answer = {
            "response": _text(events) if end.get("truncated") else end["response"],
            **ids,
            "message_id": end["message_id"],
            "tokens_used": end["tokens_used"],
            "model": end["model"],
            "execution_time_ms": end["execution_time_ms"],
            "reason": end["reason"],
            **({"merged_into": end["merged_into"]} if "merged_into" in end else {}),
            "partial": end["partial"],
            "tool_calls_made": _tool_calls(events),
        }
        if end["reason"] == "timeout":
            told = "the run reached its time limit; what there is comes with this error"
            error = {"type": "timeout", "code": "timeout", "message": told, "retryable": True}
            return json_response({"error": error, **answer}, 504, headers)
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


def _text(events: Sequence[Mapping[str, Any]]) -> str:
    """What was said last: after the last tools, or else before them."""
    said: list[str] = []
    after_tools = False
    for event in events:
        if event["type"] == "tool_result":
            after_tools = True
        elif event["type"] == "content":
            if after_tools:
                said.clear()
            said.append(event["content"])
            after_tools = False
    return "".join(said)


def _tool_calls(events: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, object]]:
    asked = {e["tool_call"]["id"]: e["tool_call"] for e in events if e["type"] == "tool_call"}
    ended = [e["tool_call"] for e in events if e["type"] == "tool_result"]
    return [{**asked.get(call["id"], {}), **call} for call in ended]


def _error(end: Mapping[str, Any]) -> Mapping[str, object]:
    kept = {name: end[name] for name in _TOLD if name in end}
    return {"type": end["error_type"], "code": end["error_type"], **kept}
