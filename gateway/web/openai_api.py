"""/v1: agents for clients that speak as to OpenAI; what an agent does with its tools stays inside."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from gateway.api.errors import Forbidden, InvalidRequest, Stopping
from gateway.domain.agents import Address, AgentDef
from gateway.domain.errors import GatewayError, NotFound, NotOfProject
from gateway.domain.inbox import Inbound, RunRecord
from gateway.domain.ports import Decode, Encode
from gateway.sessions.intake import Front
from gateway.sessions.runs import LiveRun, events_of
from gateway.sessions.stateless import CHANNEL, Question, StatelessRuns
from gateway.web.asgi import principal_of
from gateway.web.chat_api import JSON_DEPTH, STATUS, TOO_LATE, checked_key
from gateway.web.identity import Principal, may, may_use
from gateway.web.openai_shapes import (
    BadParam,
    Completion,
    Failed,
    Telling,
    earlier_of,
    instructions_of,
    question_of,
    refuse_what_would_be_ignored,
)
from gateway.web.published.errors import OpenAiErrorAnswer
from gateway.web.published.openai import (
    ChatCompletion,
    CompletionPart,
    Delta,
    FinishReason,
    LateCompletion,
    Model,
    ModelList,
    PartChoice,
)
from gateway.web.published.operations import (
    IDEMPOTENCY_KEY,
    RUN,
    STREAM,
    WORD,
    Answer,
    Described,
    Header,
    Operation,
)
from gateway.web.responses import json_response
from gateway.web.rpc import validate
from gateway.web.wire.guards import parse_json

Run = LiveRun | RunRecord
# Before one of these it is not known whether there is an answer to begin.
TELLING = frozenset({"content", "thinking", "tool_call", "done", "error"})


class NoSuchModel(NotFound):
    code = "model_not_found"


SESSION = Header(
    "X-Exogate-Session", "Makes it a message of that conversation, which is kept here.", WORD
)
MODELS = Operation(
    "GET",
    "/v1/models",
    "The agents that you may use, as OpenAI lists models.",
    (Answer(200, "All of them.", ModelList),),
    error=OpenAiErrorAnswer,
)
MODEL = Operation(
    "GET",
    "/v1/models/{id:path}",
    "One agent.",
    (Answer(200, "It is there.", Model),),
    refusals=(404,),
    error=OpenAiErrorAnswer,
)
COMPLETIONS = Operation(
    "POST",
    "/v1/chat/completions",
    "An answer of an agent, as OpenAI tells it.",
    (
        Answer(200, "The answer.", ChatCompletion, headers=(RUN,)),
        Answer(504, "The run reached its time limit.", LateCompletion, headers=(RUN,)),
        Answer(
            200,
            "With `stream`: the answer in pieces, or what ended it.",
            CompletionPart | OpenAiErrorAnswer,
            STREAM,
            (RUN,),
            last="[DONE]",
        ),
    ),
    body=Completion,
    headers=(IDEMPOTENCY_KEY, SESSION),
    refusals=(404, 409, 502),
    error=OpenAiErrorAnswer,
)


@dataclass(frozen=True, slots=True)
class OpenAiApi:
    front: Front
    stateless: StatelessRuns
    encode: Encode
    decode: Decode
    started: int  # seconds since 1970

    def routes(self) -> Sequence[Described]:
        return (
            Described(MODELS, self.models),
            Described(MODEL, self.model),
            Described(COMPLETIONS, self.complete),
        )

    async def models(self, request: Request) -> Response:
        principal = _chatting(request)
        mine = [one for one in self.front.agents.values() if self._reaches(principal, one)]
        shown: ModelList = {"object": "list", "data": [self._shown(one) for one in mine]}
        return json_response(shown)

    async def model(self, request: Request) -> Response:
        agent = self._agent(_chatting(request), str(request.path_params["id"]))
        return json_response(self._shown(agent))

    async def complete(self, request: Request) -> Response:
        principal, asked = _chatting(request), _asked(await request.body())
        agent = self._agent(principal, asked.model)
        key = checked_key(request.headers.get("idempotency-key"))
        session = request.headers.get("x-exogate-session")
        if session is None:
            run: Run = self._begun(asked, agent, principal, key)
        else:
            run = await self._said(asked, principal, session, key)
        is_nobodys = session is None and key is None
        nobodys = run if is_nobodys and isinstance(run, LiveRun) else None
        answering = _Answering(self, run, asked, nobodys)
        return await answering.answer(request)

    def _reaches(self, principal: Principal, agent: AgentDef) -> bool:
        try:
            self.front.router.require_user(agent.id, Address(CHANNEL, principal.name))
        except NotOfProject:
            return False
        return may_use(principal, agent.id)

    def _agent(self, principal: Principal, name: str) -> AgentDef:
        """One that is out of reach and one that is not there are alike: NoSuchModel."""
        for agent in self.front.agents.values():
            if agent.id == name and self._reaches(principal, agent):
                return agent
        raise NoSuchModel(f"model {name[:64]!r}")

    def _shown(self, agent: AgentDef) -> Model:
        return {"id": agent.id, "object": "model", "created": self.started, "owned_by": "exogate"}

    def _begun(
        self, asked: Completion, agent: AgentDef, principal: Principal, key: str | None
    ) -> LiveRun:
        text, digest = question_of(asked), ""
        if key is not None:
            same = asked.model_dump(exclude={"stream", "stream_options"}, exclude_defaults=True)
            digest = sha256(self.encode(same)).hexdigest()
        question = Question(
            agent,
            principal.name,
            text,
            earlier_of(asked),
            instructions_of(asked),
            temperature=asked.temperature,
            max_tokens=asked.most_tokens,
            key=key,
            fingerprint=digest,
        )
        return self.stateless.begin(question)

    async def _said(
        self, asked: Completion, principal: Principal, session: str, key: str | None
    ) -> Run:
        """In a conversation of ours, where what was said before is known."""
        if not 0 < len(session) <= 256:
            raise InvalidRequest("X-Exogate-Session must have 1 to 256 characters")
        for param in ("temperature", "max_tokens", "max_completion_tokens"):
            if getattr(asked, param) is not None:
                raise BadParam(param, "in a conversation kept here it is the agent's; leave it out")
        text = question_of(asked)
        inbound = Inbound(
            address=Address(CHANNEL, principal.name, session),
            content=text,
            key=key,
            fingerprint=self.encode([asked.model, session, text]).decode(),
            requested_agent=asked.model,
        )
        accepted = await self.front.intake.accept(inbound)
        run = await self.front.run(accepted.run_id)
        if isinstance(run, RunRecord) and not run.log:
            raise NotFound("the answer is older than [store] journal_days: it")
        return run

    async def events(self, run: Run) -> AsyncIterator[Mapping[str, Any]]:
        """Of the run; and where another one answered its question, of that one."""
        async for event in events_of(run):
            value = self.decode(event)
            assert isinstance(value, dict)
            if value.get("reason") != "merged":
                yield value
                continue
            carrying = await self.front.run(str(value["merged_into"]))
            async for other in self.events(carrying):
                yield other


@dataclass(slots=True)
class _Answering:
    """One answer on its way to its caller; `nobodys`: a run to cancel when that one has left."""

    api: OpenAiApi
    run: Run
    asked: Completion
    nobodys: LiveRun | None
    telling: Telling = field(default_factory=Telling)
    deltas: list[Delta] = field(default_factory=list)
    is_begun: bool = False

    async def answer(self, request: Request) -> Response:
        events = self.api.events(self.run)
        try:
            await _unless_left(request, lambda: self._begin(events))
        except BaseException:
            self._let_go()
            raise
        headers = {"x-exogate-run": self._run_id}
        if not self.is_begun and (failed := self._failure()):
            if not self.telling.is_too_late:
                return failed.response(headers)
            late: LateCompletion = {"error": failed.error, **self._whole()}
            return json_response(late, failed.status, {**headers, **failed.headers})
        if self.asked.stream:
            stream = self._stream(events)
            return StreamingResponse(stream, headers=headers, media_type="text/event-stream")
        return json_response(self._whole(), 200, headers)

    def _whole(self) -> ChatCompletion:
        return {
            "id": f"chatcmpl-{self._run_id}",
            "object": "chat.completion",
            "created": self._created,
            "model": self.asked.model,
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": self.telling.text,
                        "refusal": None,
                    },
                    "logprobs": None,
                    "finish_reason": self.telling.finish,
                }
            ],
            "usage": self.telling.usage,
        }

    async def _begin(self, events: AsyncIterator[Mapping[str, Any]]) -> None:
        """All of it; of a stream until it is known that there is one."""
        async for event in events:
            self.deltas += self.telling.take(event)
            if self.asked.stream and event["type"] in TELLING:
                self.is_begun = event["type"] not in {"done", "error"}
                return

    async def _stream(self, events: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[bytes]:
        try:
            yield self._chunk({"role": "assistant", "content": ""})
            for delta in self.deltas:
                yield self._chunk(delta)
            async for event in events:
                for delta in self.telling.take(event):
                    yield self._chunk(delta)
            for line in self._last():
                yield line
        except GatewayError as error:
            yield self._failed(Failed.by(error))
        finally:
            self._let_go()

    def _last(self) -> Iterator[bytes]:
        if failed := self._failure():
            yield self._failed(failed)
            return
        yield self._chunk({}, self.telling.finish)
        if self._tells_usage:
            yield self._line({**self._part(), "usage": self.telling.usage})
        yield b"data: [DONE]\n\n"

    def _failure(self) -> Failed | None:
        end = self.telling.end
        if end is None:
            return Failed.by(Stopping())
        if self.telling.is_too_late and not self.is_begun:
            return Failed.of({"error_type": "timeout", "message": TOO_LATE}, 504)
        status = STATUS.get(end.get("error_type", ""), 500)
        return Failed.of(end, status) if end["type"] == "error" else None

    def _let_go(self) -> None:
        if self.nobodys is not None:
            self.api.stateless.cancel(self.nobodys)

    @property
    def _run_id(self) -> str:
        run = self.run
        return run.run_id if isinstance(run, LiveRun) else run.entry.new.run_id

    @property
    def _tells_usage(self) -> bool:
        options = self.asked.stream_options
        return options is not None and options.include_usage is True

    @property
    def _created(self) -> int:
        run = self.run
        at = run.accepted_at if isinstance(run, LiveRun) else run.entry.new.accepted_at
        return int(at.timestamp())

    def _part(self, *choices: PartChoice) -> CompletionPart:
        return {
            "id": f"chatcmpl-{self._run_id}",
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self.asked.model,
            "choices": list(choices),
        }

    def _chunk(self, delta: Delta, finish: FinishReason | None = None) -> bytes:
        part = self._part({"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish})
        if self._tells_usage:
            part["usage"] = None
        return self._line(part)

    def _failed(self, failed: Failed) -> bytes:
        answer: OpenAiErrorAnswer = {"error": failed.error}
        return self._line(answer)

    def _line(self, value: object) -> bytes:
        return b"data: %b\n\n" % self.api.encode(value)


async def _unless_left(request: Request, work: Callable[[], Awaitable[None]]) -> None:
    """Raises ClientDisconnect if the caller leaves before it is done."""
    failed: GatewayError | None = None
    is_done = False

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass  # the body is here already
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            await work()
        except GatewayError as error:
            failed = error
        is_done = True
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed
    if not is_done:
        raise ClientDisconnect


def _chatting(request: Request) -> Principal:
    principal = principal_of(request)
    if not may(principal, "chat"):
        raise Forbidden("chatting needs the scope 'chat'")
    return principal


def _asked(raw: bytes) -> Completion:
    """Raises InvalidRequest, InvalidParams, BadParam."""
    value = parse_json(raw, JSON_DEPTH)
    if not isinstance(value, dict):
        raise InvalidRequest("the body has to be a JSON object with a model and messages")
    asked = validate(Completion, value)
    assert isinstance(asked, Completion)
    refuse_what_would_be_ignored(asked)
    return asked
