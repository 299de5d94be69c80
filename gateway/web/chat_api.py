"""POST /api/chat: one message in, its answer out, whole or as a stream of its chunks."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.api.errors import Forbidden, InvalidRequest
from gateway.domain.agents import Address
from gateway.domain.errors import NotFound
from gateway.domain.inbox import Accepted, Inbound, RunRecord
from gateway.domain.ports import Decode, Encode, Ids
from gateway.sessions.intake import Front
from gateway.sessions.runs import LiveRun, events_of, spoken, whole
from gateway.web.asgi import principal_of
from gateway.web.identity import Principal, may
from gateway.web.methods.chat import SPOKEN, OwnLimits, Text, given, reachable_route
from gateway.web.published.answers import CallMade, ChatAnswer, FailedChat, LateChat, RunError
from gateway.web.published.chunks import RunEvent, WhyFailed
from gateway.web.published.conversations import TokenUsage
from gateway.web.published.errors import ErrorAnswer
from gateway.web.published.operations import (
    IDEMPOTENCY_KEY,
    RUN,
    STREAM,
    WAIT,
    Answer,
    Described,
    Operation,
)
from gateway.web.responses import json_response
from gateway.web.rpc import validate
from gateway.web.wire.guards import parse_json

CHANNEL = "api"
JSON_DEPTH = 64
STATUS = {
    "provider_error": 502,
    "budget_exceeded": 429,
    "internal_error": 500,
    "config_error": 500,
}
TOO_LATE = "the run reached its time limit; what there is comes with this error"


class ChatBody(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [{"message": "Good morning!", "conversation_id": "of-today"}]
        },
    )

    message: Annotated[str, StringConstraints(max_length=400_000), SPOKEN]
    conversation_id: Text | None = None
    agent: Text | None = None
    stream: bool = False
    limits: OwnLimits | None = None


CHAT = Operation(
    "POST",
    "/api/chat",
    "Say something to an agent, and wait for the answer.",
    (
        Answer(200, "The answer.", ChatAnswer, headers=(RUN,)),
        Answer(
            200, "With `stream`, or if asked for: the events of the run.", RunEvent, STREAM, (RUN,)
        ),
        Answer(
            429,
            "A budget is spent, or too many failures.",
            FailedChat | ErrorAnswer,
            headers=(WAIT,),
        ),
        Answer(
            500,
            "Our mistake, or our configuration's.",
            FailedChat | ErrorAnswer,
            headers=(WAIT,),
        ),
        Answer(502, "The model service failed.", FailedChat, headers=(RUN, WAIT)),
        Answer(
            504,
            "The run reached its time limit; what there is comes along.",
            LateChat,
            headers=(RUN,),
        ),
    ),
    body=ChatBody,
    headers=(IDEMPOTENCY_KEY,),
    refusals=(404, 409, 422),
)


@dataclass(frozen=True, slots=True)
class ChatApi:
    front: Front
    encode: Encode
    decode: Decode
    ids: Ids

    def routes(self) -> Sequence[Described]:
        return (Described(CHAT, self.chat),)

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
        return await self.front.intake.accept(inbound)

    def _answer(
        self, accepted: Accepted, events: Sequence[Mapping[str, Any]], headers: Mapping[str, str]
    ) -> Response:
        end = events[-1]
        conversation, run_id = accepted.session_key.peer, accepted.run_id
        if end["type"] == "error":
            status = STATUS.get(end["error_type"], 500)
            after = end.get("retry_after_s")
            wait = {} if after is None else {"retry-after": str(ceil(after))}
            failed: FailedChat = {
                "error": _error(end["error_type"], end),
                "conversation_id": conversation,
                "run_id": run_id,
            }
            return json_response(failed, status, {**headers, **wait})
        answer: ChatAnswer = {
            "response": spoken(events),
            "conversation_id": conversation,
            "run_id": run_id,
            "message_id": end["message_id"],
            "tokens_used": end["tokens_used"],
            "usage": _usage(events),
            "model": end["model"],
            "execution_time_ms": end["execution_time_ms"],
            "reason": end["reason"],
            "partial": end["partial"],
            "tool_calls_made": _tool_calls(events),
        }
        if "merged_into" in end:
            answer["merged_into"] = end["merged_into"]
        if end["reason"] == "timeout":
            facts = {"message": TOO_LATE, "retryable": True, "timestamp": end["timestamp"]}
            late: LateChat = {"error": _error("timeout", facts), **answer}
            return json_response(late, 504, headers)
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


def _tool_calls(events: Sequence[Mapping[str, Any]]) -> list[CallMade]:
    """In the order of the calls, whichever ended first."""
    asked = {e["tool_call"]["id"]: e["tool_call"] for e in events if e["type"] == "tool_call"}
    ended = [e["tool_call"] for e in events if e["type"] == "tool_result"]
    places = {id: place for place, id in enumerate(asked)}
    ended.sort(key=lambda call: places.get(call["id"], len(places)))
    return [
        {
            "id": call["id"],
            "name": call["name"],
            "arguments": asked.get(call["id"], {}).get("arguments", ""),
            "status": call["status"],
            "result": call["result"],
            "duration_ms": call["duration_ms"],
        }
        for call in ended
    ]


def _usage(events: Sequence[Mapping[str, Any]]) -> TokenUsage:
    """Of all models that worked for it. The cost is of those calls of which it is known."""
    told = [event for event in events if event["type"] == "usage"]
    costs = [event["cost_usd"] for event in told if event["cost_usd"] is not None]
    return {
        "input_tokens": sum(event["input_tokens"] for event in told),
        "output_tokens": sum(event["output_tokens"] for event in told),
        "cost_usd": round(sum(costs), 9) if costs else None,
    }


def _error(kind: str, facts: Mapping[str, Any]) -> RunError:
    """Its message is one of our own sentences, never a provider's words."""
    error: RunError = {
        "type": kind,
        "code": kind,
        "error_type": kind,
        "message": facts["message"],
        "user_facing_message": facts["message"],
        "retryable": facts["retryable"],
        "timestamp": facts["timestamp"],
    }
    error.update({name: facts[name] for name in WhyFailed.__annotations__ if name in facts})  # type: ignore[typeddict-item]  # each of them is one of its
    return error
