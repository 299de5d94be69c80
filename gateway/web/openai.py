"""/v1: agents for clients of OpenAI's API. The tool calls of an agent are not shown to them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from gateway.api import openai as api
from gateway.api.declarations import build, plain_changes
from gateway.api.errors import InvalidRequest, Stopping
from gateway.codec import decode
from gateway.domain.agents import Address, AgentDef
from gateway.domain.errors import GatewayError, NotFound, NotOfProject
from gateway.domain.inbox import Inbound
from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.sessions.intake import Front
from gateway.sessions.runs import LiveRun, events_of
from gateway.sessions.stateless import CHANNEL, Question, StatelessRuns
from gateway.web.asgi import Described, require_scope
from gateway.web.chat import STATUS, TOO_LATE, parse_idempotency_key, run_with_log
from gateway.web.identity import Principal, can_use
from gateway.web.responses import OpenAiFailure, encode, json_response
from gateway.web.rpc import Run, read_body

MOST_TEXT = 400_000  # characters of a question, and of instructions
COMPLETE = frozenset({"answered", "cancelled", "superseded", "merged"})  # no limit was reached
# The first of these events shows whether there is an answer to stream.
DECISIVE = frozenset({"content", "thinking", "tool_call", "done", "error"})


class NoSuchModel(NotFound):
    code = "model_not_found"


class BadParam(InvalidRequest):
    """A parameter whose value is valid, but not supported."""

    code = "unsupported_value"

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


_OWN_TOOLS = "the agent has its own tools, which the gateway runs; leave it out"
_NOT_SUPPORTED = "is not supported; leave it out"


def refuse_unsupported(body: api.Completion) -> None:
    """Raises BadParam for a parameter that would change the answer, but is not supported."""
    form = body.response_format
    is_text = form is None or (isinstance(form, dict) and form.get("type") == "text")
    is_one = body.n is None or (body.n == 1 and body.n is not True)
    checks = {
        "tools": (body.tools in (None, []), _OWN_TOOLS),
        "functions": (body.functions in (None, []), _OWN_TOOLS),
        "n": (is_one, "a request gets one answer"),
        "response_format": (is_text, "answers are text only"),
        "stop": (body.stop in (None, []), _NOT_SUPPORTED),
        "logprobs": (body.logprobs is None or body.logprobs is False, _NOT_SUPPORTED),
        "audio": (body.audio is None, _NOT_SUPPORTED),
    }
    for param, (is_supported, why) in checks.items():
        if not is_supported:
            raise BadParam(param, why)


def question_of(body: api.Completion) -> str:
    """Returns the text of the last message. Raises BadParam."""
    last, param = body.messages[-1], f"messages.{len(body.messages) - 1}"
    if last.role != "user":
        raise BadParam(param, "the last message must have the role user")
    if not last.text.strip() or len(last.text) > MOST_TEXT:
        raise BadParam(f"{param}.content", f"must have 1 to {MOST_TEXT} characters")
    return last.text


def instructions_of(body: api.Completion) -> str:
    """Joins the system messages. Raises BadParam if they are too long, as none of them may be left out."""
    texts = (one.text for one in body.messages if one.role in {"system", "developer"})
    together = "\n\n".join(text for text in texts if text)
    if len(together) > MOST_TEXT:
        raise BadParam("messages", f"system messages hold at most {MOST_TEXT} characters together")
    return together


def earlier_of(body: api.Completion) -> Sequence[Message]:
    """Returns the messages before the last one. Raises BadParam unless the result of every call follows it."""
    messages: list[Message] = []
    waiting: dict[str, str] = {}  # the names of calls without a result, by id
    for place, one in enumerate(body.messages):
        param = f"messages.{place}"
        if one.role == "tool":
            messages.append(_result(one, waiting, param))
        elif one.role in {"user", "assistant"}:
            if waiting:
                raise BadParam(param, f"the call {min(waiting)[:64]!r} before it has no result")
            messages.append(_message(one, param))
            waiting = {call.id: call.name for call in messages[-1].tool_calls}
    return [one for one in messages[:-1] if one.text or one.tool_calls or one.result]


def _message(one: api.Said, param: str) -> Message:
    if one.role == "user":
        return Message("user", one.text)
    calls = [
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in one.tool_calls or ()
    ]
    if len({call.id for call in calls}) < len(calls):
        raise BadParam(f"{param}.tool_calls", "two calls have the same id")
    return Message("assistant", one.text, tuple(calls))


def _result(one: api.Said, waiting: dict[str, str], param: str) -> Message:
    call_id = one.tool_call_id or ""
    if call_id not in waiting:
        raise BadParam(f"{param}.tool_call_id", "no call with that id stands right before it")
    return Message("tool", result=ToolResult(call_id, waiting.pop(call_id), one.text))


@dataclass(slots=True)
class AnswerText:
    """The answer of a run so far. Its pieces together are the answer, whether it is streamed or whole."""

    pieces: list[str] = field(default_factory=list)
    sent: int = 0
    received: int = 0
    end: Mapping[str, Any] | None = None
    _is_paragraph: bool = False  # the next piece begins a paragraph

    def add(self, event: Mapping[str, Any]) -> Sequence[api.Delta]:
        """Adds an event of the run and returns its deltas."""
        match event["type"]:
            case "content":
                return [self._delta(event["content"])]
            case "thinking":
                return [api.Delta(reasoning_content=event["content"])]
            case "tool_result":
                self._is_paragraph = True
            case "usage":
                self.sent += event["input_tokens"]
                self.received += event["output_tokens"]
            case "done" | "error":
                self.end = event
                return self._rest(event)
        return []

    def _delta(self, text: str) -> api.Delta:
        if self._is_paragraph and self.pieces:
            text = f"\n\n{text}"
        self._is_paragraph = False
        self.pieces.append(text)
        return api.Delta(content=text)

    def _rest(self, end: Mapping[str, Any]) -> Sequence[api.Delta]:
        """Returns the part of the response that was not streamed, such as the message of a limit."""
        response = end.get("response", "")
        if end.get("truncated") or self.text.endswith(response):
            return []
        self._is_paragraph = True
        return [self._delta(response)]

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def finish(self) -> api.FinishReason:
        end = self.end or {}
        if end.get("filtered"):
            return "content_filter"
        return "length" if end.get("cut") or end.get("reason") not in COMPLETE else "stop"

    @property
    def is_too_late(self) -> bool:
        return self.end is not None and self.end.get("reason") == "timeout"

    @property
    def usage(self) -> api.CompletionUsage:
        return api.CompletionUsage(
            prompt_tokens=self.sent,
            completion_tokens=self.received,
            total_tokens=self.sent + self.received,
        )


@dataclass(frozen=True, slots=True)
class OpenAiApi:
    front: Front
    stateless: StatelessRuns
    started: int  # seconds since 1970

    def routes(self) -> Sequence[Described]:
        return (
            Described(api.MODELS, self.models),
            Described(api.MODEL, self.model),
            Described(api.COMPLETIONS, self.complete),
        )

    async def models(self, request: Request) -> Response:
        principal, agents = require_scope(request, "chatting", "chat"), self.front.agents
        mine = [self._shown(one) for one in agents.values() if self._reaches(principal, one)]
        return json_response(api.ModelList(object="list", data=mine))

    async def model(self, request: Request) -> Response:
        principal = require_scope(request, "chatting", "chat")
        return json_response(self._shown(self._agent(principal, str(request.path_params["id"]))))

    async def complete(self, request: Request) -> Response:
        principal = require_scope(request, "chatting", "chat")
        body = read_body(api.Completion, await request.body(), "a model and messages")
        refuse_unsupported(body)
        agent, key = self._agent(principal, body.model), parse_idempotency_key(request)
        if "x-exogate-session" in request.headers:
            stored = await self._accept(request, body, principal)
            return await _CompletionAnswer(self, stored, body).answer(request)
        run = self._begin(request, body, agent, principal)
        return await _CompletionAnswer(self, run, body, run if key is None else None).answer(
            request
        )

    def _reaches(self, principal: Principal, agent: AgentDef) -> bool:
        try:
            self.front.router.require_user(agent.id, Address(CHANNEL, principal.name))
        except NotOfProject:
            return False
        return can_use(principal, agent.id)

    def _agent(self, principal: Principal, name: str) -> AgentDef:
        """Returns an agent. Raises NoSuchModel if there is none or the principal does not reach it."""
        for agent in self.front.agents.values():
            if agent.id == name and self._reaches(principal, agent):
                return agent
        raise NoSuchModel(f"model {name[:64]!r}")

    def _shown(self, agent: AgentDef) -> api.Model:
        return api.Model(id=agent.id, created=self.started)

    def _begin(
        self, request: Request, body: api.Completion, agent: AgentDef, principal: Principal
    ) -> LiveRun:
        """Starts a run that is not stored. Raises BadParam."""
        key = parse_idempotency_key(request)
        text, digest = question_of(body), ""
        if key is not None:
            same = plain_changes(body)
            same = {name: same[name] for name in same if name not in {"stream", "stream_options"}}
            digest = sha256(encode(same)).hexdigest()
        question = Question(
            agent,
            principal.name,
            text,
            earlier_of(body),
            instructions_of(body),
            temperature=body.temperature,
            max_tokens=body.most_tokens,
            key=key,
            fingerprint=digest,
            traceparent=request.headers.get("traceparent"),
        )
        return self.stateless.begin(question)

    async def _accept(self, request: Request, body: api.Completion, principal: Principal) -> Run:
        """Accepts the question in a stored conversation, which has its earlier messages. Raises BadParam."""
        session = request.headers["x-exogate-session"]
        if not 0 < len(session) <= 256:
            raise InvalidRequest("X-Exogate-Session must have 1 to 256 characters")
        for param in ("temperature", "max_tokens", "max_completion_tokens"):
            if getattr(body, param) is not None:
                raise BadParam(param, "the agent sets it in a stored conversation; leave it out")
        text = question_of(body)
        inbound = Inbound(
            address=Address(CHANNEL, principal.name, session),
            content=text,
            key=parse_idempotency_key(request),
            fingerprint=encode([body.model, session, text]).decode(),
            requested_agent=body.model,
            traceparent=request.headers.get("traceparent"),
        )
        accepted = await self.front.intake.accept(inbound)
        return await run_with_log(self.front, accepted.run_id)

    async def events(self, run: Run) -> AsyncIterator[Mapping[str, Any]]:
        """Yields the events of a run, or those of the run into which it was merged."""
        async for event in events_of(run):
            value = decode(event)
            assert isinstance(value, dict)
            if value.get("reason") != "merged":
                yield value
                continue
            carrying = await self.front.run(str(value["merged_into"]))
            async for other in self.events(carrying):
                yield other


@dataclass(slots=True)
class _CompletionAnswer:
    """An answer on its way to its caller. The run `abandoned` is cancelled when the caller leaves."""

    v1: OpenAiApi
    run: Run
    body: api.Completion
    abandoned: LiveRun | None = None
    text: AnswerText = field(default_factory=AnswerText)
    deltas: list[api.Delta] = field(default_factory=list)
    is_begun: bool = False
    _before: bytes = b""
    _after: bytes = b""

    async def answer(self, request: Request) -> Response:
        events = self.v1.events(self.run)
        with ExitStack() as failed_early:
            failed_early.callback(self._release)
            await _unless_disconnected(request, lambda: self._begin(events))
            failed_early.pop_all()
        headers = {"x-exogate-run": self._run_id}
        if not self.is_begun and (failed := self._failure()):
            if not self.text.is_too_late:
                return failed.response(headers)
            late = build(api.LateCompletion, self._whole(), error=failed.error)
            return json_response(late, failed.status, {**headers, **failed.headers})
        if self.body.stream:
            stream = self._stream(events)
            return StreamingResponse(stream, headers=headers, media_type="text/event-stream")
        return json_response(self._whole(), 200, headers)

    def _whole(self) -> api.ChatCompletion:
        message = api.AnswerMessage(content=self.text.text, refusal=None)
        choice = api.Choice(message=message, logprobs=None, finish_reason=self.text.finish)
        return build(api.ChatCompletion, self._head(), choices=[choice], usage=self.text.usage)

    async def _begin(self, events: AsyncIterator[Mapping[str, Any]]) -> None:
        """Reads the whole answer; of a stream, until it is known whether there is an answer."""
        async for event in events:
            self.deltas += self.text.add(event)
            if self.body.stream and event["type"] in DECISIVE:
                self.is_begun = event["type"] not in {"done", "error"}
                return

    async def _stream(self, events: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[bytes]:
        try:
            yield self._chunk(api.Delta(role="assistant", content=""))
            for delta in self.deltas:
                yield self._chunk(delta)
            async for event in events:
                for delta in self.text.add(event):
                    yield self._chunk(delta)
            for line in self._last():
                yield line
        except GatewayError as error:
            yield self._failed(OpenAiFailure.of_request(error))
        finally:
            self._release()

    def _last(self) -> Iterator[bytes]:
        if failed := self._failure():
            yield self._failed(failed)
            return
        yield self._chunk(api.Delta(), self.text.finish)
        if self._shows_usage:
            yield b"data: %b\n\n" % self._part(usage=self.text.usage)
        yield b"data: [DONE]\n\n"

    def _failure(self) -> OpenAiFailure | None:
        end = self.text.end
        if end is None:
            return OpenAiFailure.of_request(Stopping())
        if self.text.is_too_late and not self.is_begun:
            return OpenAiFailure.of_run({"error_type": "timeout", "message": TOO_LATE}, 504)
        status = STATUS.get(end.get("error_type", ""), 500)
        return OpenAiFailure.of_run(end, status) if end["type"] == "error" else None

    def _release(self) -> None:
        if self.abandoned is not None:
            self.v1.stateless.cancel(self.abandoned)

    @property
    def _run_id(self) -> str:
        return self.run.entry.new.run_id

    @property
    def _shows_usage(self) -> bool:
        options = self.body.stream_options
        return options is not None and options.include_usage is True

    def _head(self) -> Mapping[str, object]:
        created = int(self.run.entry.new.accepted_at.timestamp())
        return {"id": f"chatcmpl-{self._run_id}", "created": created, "model": self.body.model}

    def _part(self, **usage: api.CompletionUsage | None) -> bytes:
        """Encodes a part without choices."""
        return encode(build(api.CompletionPart, usage, self._head(), choices=[]))

    def _chunk(self, delta: api.Delta, finish: api.FinishReason | None = None) -> bytes:
        if not self._before:  # the common bytes of all parts are encoded once
            part = self._part(usage=None) if self._shows_usage else self._part()
            self._before, choices, self._after = part.partition(b'"choices":[')
            self._before += choices
        inside = (encode(delta), encode(finish))
        choice = b'{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}' % inside
        return b"data: %b%b%b\n\n" % (self._before, choice, self._after)

    def _failed(self, failed: OpenAiFailure) -> bytes:
        return b"data: %b\n\n" % encode(api.OpenAiErrorAnswer(error=failed.error))


async def _unless_disconnected(request: Request, work: Callable[[], Awaitable[None]]) -> None:
    """Runs `work`. Raises ClientDisconnect if the caller disconnects first."""
    failed: GatewayError | None = None
    is_done = False

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass  # the body is read already
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
