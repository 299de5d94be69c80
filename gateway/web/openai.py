"""/v1: agents for clients that speak as to OpenAI; what an agent does with its tools stays inside."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from gateway.api import openai as api
from gateway.api.declarations import build, differing
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
WHOLE_REASONS = frozenset({"answered", "cancelled", "superseded", "merged"})  # no limit was reached
# Before one of these it is not known whether there is an answer to begin.
TELLING = frozenset({"content", "thinking", "tool_call", "done", "error"})


class NoSuchModel(NotFound):
    code = "model_not_found"


class BadParam(InvalidRequest):
    """It is understood, but cannot be had."""

    code = "unsupported_value"

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


_OWN_TOOLS = "the agent has its own tools, which run here; leave it out"
_NOT_TAKEN = "is not taken here; leave it out"


def refuse_unsupported(asked: api.Completion) -> None:
    """Raises BadParam for what changes an answer, and would not."""
    form = asked.response_format
    is_text = form is None or (isinstance(form, dict) and form.get("type") == "text")
    is_one = asked.n is None or (asked.n == 1 and asked.n is not True)
    fine = {
        "tools": (_is_nothing(asked.tools), _OWN_TOOLS),
        "functions": (_is_nothing(asked.functions), _OWN_TOOLS),
        "n": (is_one, "there is one answer to a request"),
        "response_format": (is_text, "only text is answered"),
        "stop": (_is_nothing(asked.stop), _NOT_TAKEN),
        "logprobs": (asked.logprobs is None or asked.logprobs is False, _NOT_TAKEN),
        "audio": (asked.audio is None, _NOT_TAKEN),
    }
    for param, (is_fine, why) in fine.items():
        if not is_fine:
            raise BadParam(param, why)


def _is_nothing(asked: object) -> bool:
    return asked is None or asked == []


def question_of(asked: api.Completion) -> str:
    """The last message. Raises BadParam."""
    last, param = asked.messages[-1], f"messages.{len(asked.messages) - 1}"
    if last.role != "user":
        raise BadParam(param, "the last message has to be the user's")
    if not last.text.strip() or len(last.text) > MOST_TEXT:
        raise BadParam(f"{param}.content", f"has to hold 1 to {MOST_TEXT} characters")
    return last.text


def instructions_of(asked: api.Completion) -> str:
    """Raises BadParam for more of them than a question may hold: they are never left out."""
    told = (said.text for said in asked.messages if said.role in {"system", "developer"})
    together = "\n\n".join(text for text in told if text)
    if len(together) > MOST_TEXT:
        raise BadParam("messages", f"system messages hold at most {MOST_TEXT} characters together")
    return together


def earlier_of(asked: api.Completion) -> Sequence[Message]:
    """What was said before the last message. Raises BadParam unless every call has its result, right
    after it."""
    said: list[Message] = []
    waiting: dict[str, str] = {}  # the names of calls by their ids
    for place, one in enumerate(asked.messages):
        param = f"messages.{place}"
        if one.role == "tool":
            said.append(_result(one, waiting, param))
        elif one.role in {"user", "assistant"}:
            if waiting:
                raise BadParam(param, f"the call {min(waiting)[:64]!r} before it has no result")
            said.append(_message(one, param))
            waiting = {call.id: call.name for call in said[-1].tool_calls}
    return [one for one in said[:-1] if one.text or one.tool_calls or one.result]


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
        raise BadParam(f"{param}.tool_call_id", "there is no call with that id right before it")
    return Message("tool", result=ToolResult(call_id, waiting.pop(call_id), one.text))


@dataclass(slots=True)
class AnswerText:
    """What a caller has been told of a run so far. `said`, put together, is the answer, whether it
    is told in pieces or whole."""

    said: list[str] = field(default_factory=list)
    sent: int = 0
    received: int = 0
    end: Mapping[str, Any] | None = None
    _is_apart: bool = False

    def take(self, event: Mapping[str, Any]) -> Sequence[api.Delta]:
        """The deltas that an event is worth."""
        match event["type"]:
            case "content":
                return [self._delta(event["content"])]
            case "thinking":
                return [api.Delta(reasoning_content=event["content"])]
            case "tool_result":
                self._is_apart = True
            case "usage":
                self.sent += event["input_tokens"]
                self.received += event["output_tokens"]
            case "done" | "error":
                self.end = event
                return self._rest(event)
        return []

    def _delta(self, text: str) -> api.Delta:
        if self._is_apart and self.said:
            text = f"\n\n{text}"
        self._is_apart = False
        self.said.append(text)
        return api.Delta(content=text)

    def _rest(self, end: Mapping[str, Any]) -> Sequence[api.Delta]:
        """What stands in the answer and was not told in pieces, as the words of a limit."""
        response = end.get("response", "")
        if end.get("truncated") or self.text.endswith(response):
            return []
        self._is_apart = True
        return [self._delta(response)]

    @property
    def text(self) -> str:
        return "".join(self.said)

    @property
    def finish(self) -> api.FinishReason:
        end = self.end or {}
        if end.get("filtered"):
            return "content_filter"
        return "length" if end.get("cut") or end.get("reason") not in WHOLE_REASONS else "stop"

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
        asked = read_body(api.Completion, await request.body(), "a model and messages")
        refuse_unsupported(asked)
        agent, key = self._agent(principal, asked.model), parse_idempotency_key(request)
        session, trace = map(request.headers.get, ("x-exogate-session", "traceparent"))
        if session is None:
            run: Run = self._begun(asked, agent, principal, key, trace=trace)
        else:
            run = await self._said(asked, principal, session, key, trace=trace)
        is_nobodys = session is None and key is None
        nobodys = run if is_nobodys and isinstance(run, LiveRun) else None
        return await _Answering(self, run, asked, nobodys).answer(request)

    def _reaches(self, principal: Principal, agent: AgentDef) -> bool:
        try:
            self.front.router.require_user(agent.id, Address(CHANNEL, principal.name))
        except NotOfProject:
            return False
        return can_use(principal, agent.id)

    def _agent(self, principal: Principal, name: str) -> AgentDef:
        """One that is out of reach and one that is not there are alike: NoSuchModel."""
        for agent in self.front.agents.values():
            if agent.id == name and self._reaches(principal, agent):
                return agent
        raise NoSuchModel(f"model {name[:64]!r}")

    def _shown(self, agent: AgentDef) -> api.Model:
        return api.Model(id=agent.id, created=self.started)

    def _begun(
        self,
        asked: api.Completion,
        agent: AgentDef,
        principal: Principal,
        key: str | None,
        *,
        trace: str | None,
    ) -> LiveRun:
        text, digest = question_of(asked), ""
        if key is not None:
            same = differing(asked)
            same = {name: same[name] for name in same if name not in {"stream", "stream_options"}}
            digest = sha256(encode(same)).hexdigest()
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
            traceparent=trace,
        )
        return self.stateless.begin(question)

    async def _said(
        self,
        asked: api.Completion,
        principal: Principal,
        session: str,
        key: str | None,
        *,
        trace: str | None,
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
            fingerprint=encode([asked.model, session, text]).decode(),
            requested_agent=asked.model,
            traceparent=trace,
        )
        accepted = await self.front.intake.accept(inbound)
        return await run_with_log(self.front, accepted.run_id)

    async def events(self, run: Run) -> AsyncIterator[Mapping[str, Any]]:
        """Of the run; and where another one answered its question, of that one."""
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
class _Answering:
    """One answer on its way to its caller; `nobodys`: a run to cancel when that one has left."""

    door: OpenAiApi
    run: Run
    asked: api.Completion
    nobodys: LiveRun | None
    telling: AnswerText = field(default_factory=AnswerText)
    deltas: list[api.Delta] = field(default_factory=list)
    is_begun: bool = False
    _head: bytes = b""
    _tail: bytes = b""

    async def answer(self, request: Request) -> Response:
        events = self.door.events(self.run)
        with ExitStack() as left:
            left.callback(self._let_go)
            await _unless_left(request, lambda: self._begin(events))
            left.pop_all()
        headers = {"x-exogate-run": self._run_id}
        if not self.is_begun and (failed := self._failure()):
            if not self.telling.is_too_late:
                return failed.response(headers)
            late = build(api.LateCompletion, self._whole(), error=failed.error)
            return json_response(late, failed.status, {**headers, **failed.headers})
        if self.asked.stream:
            stream = self._stream(events)
            return StreamingResponse(stream, headers=headers, media_type="text/event-stream")
        return json_response(self._whole(), 200, headers)

    def _whole(self) -> api.ChatCompletion:
        message = api.AnswerMessage(content=self.telling.text, refusal=None)
        choice = api.Choice(message=message, logprobs=None, finish_reason=self.telling.finish)
        return api.ChatCompletion(
            id=f"chatcmpl-{self._run_id}",
            created=self._created,
            model=self.asked.model,
            choices=[choice],
            usage=self.telling.usage,
        )

    async def _begin(self, events: AsyncIterator[Mapping[str, Any]]) -> None:
        """All of it; of a stream until it is known that there is one."""
        async for event in events:
            self.deltas += self.telling.take(event)
            if self.asked.stream and event["type"] in TELLING:
                self.is_begun = event["type"] not in {"done", "error"}
                return

    async def _stream(self, events: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[bytes]:
        try:
            yield self._chunk(api.Delta(role="assistant", content=""))
            for delta in self.deltas:
                yield self._chunk(delta)
            async for event in events:
                for delta in self.telling.take(event):
                    yield self._chunk(delta)
            for line in self._last():
                yield line
        except GatewayError as error:
            yield self._failed(OpenAiFailure.of_request(error))
        finally:
            self._let_go()

    def _last(self) -> Iterator[bytes]:
        if failed := self._failure():
            yield self._failed(failed)
            return
        yield self._chunk(api.Delta(), self.telling.finish)
        if self._tells_usage:
            yield b"data: %b\n\n" % self._part(usage=self.telling.usage)
        yield b"data: [DONE]\n\n"

    def _failure(self) -> OpenAiFailure | None:
        end = self.telling.end
        if end is None:
            return OpenAiFailure.of_request(Stopping())
        if self.telling.is_too_late and not self.is_begun:
            return OpenAiFailure.of_run({"error_type": "timeout", "message": TOO_LATE}, 504)
        status = STATUS.get(end.get("error_type", ""), 500)
        return OpenAiFailure.of_run(end, status) if end["type"] == "error" else None

    def _let_go(self) -> None:
        if self.nobodys is not None:
            self.door.stateless.cancel(self.nobodys)

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
        at = run.entry.new.accepted_at
        return int(at.timestamp())

    def _part(self, **usage: api.CompletionUsage | None) -> bytes:
        """One that has no choices."""
        part = build(
            api.CompletionPart,
            usage,
            id=f"chatcmpl-{self._run_id}",
            created=self._created,
            model=self.asked.model,
            choices=[],
        )
        return encode(part)

    def _chunk(self, delta: api.Delta, finish: api.FinishReason | None = None) -> bytes:
        """What is the same in all parts of a stream is encoded once."""
        if not self._head:
            part = self._part(usage=None) if self._tells_usage else self._part()
            self._head, choices, self._tail = part.partition(b'"choices":[')
            self._head += choices
        told = (encode(delta), encode(finish))
        choice = b'{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}' % told
        return b"data: %b%b%b\n\n" % (self._head, choice, self._tail)

    def _failed(self, failed: OpenAiFailure) -> bytes:
        return b"data: %b\n\n" % encode(api.OpenAiErrorAnswer(error=failed.error))


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
