"""chat.*, run.*, context.explain: saying something, following a run, and looking at it later; POST /api/chat,
/api/conversations and POST /mcp over HTTP."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from gateway.api import conversations as api
from gateway.api import http
from gateway.api.conversations import TokenUsage
from gateway.api.declarations import build, differing
from gateway.api.errors import Forbidden, InvalidParams, InvalidRequest
from gateway.api.http import MCP
from gateway.codec import decode, encode
from gateway.domain.agents import Address, address_in
from gateway.domain.errors import BadSessionKey, Conflict, NotFound
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.inbox import Accepted, Inbound, RunRecord
from gateway.domain.mcp import CLIENT, Door, McpClient
from gateway.domain.messages import Node
from gateway.domain.ports import Ids
from gateway.domain.sessions import Path, SessionQuery
from gateway.memory.context import context_report
from gateway.routing import Route
from gateway.sessions.intake import Front
from gateway.sessions.replay import Replayer
from gateway.sessions.runs import AT_REST, LiveRun, events_of, spoken, whole
from gateway.web.asgi import Described, query_of, require_scope
from gateway.web.identity import (
    Principal,
    can_see_session,
    can_speak_as,
    can_use,
    has_scope,
    require_own,
    visible_key,
)
from gateway.web.responses import json_response, waiting
from gateway.web.rpc import Call, Run, parse_json, read_body

PAGE_CHARACTERS = 150_000  # of a history page: at six bytes each, still one frame
TOLD = 2  # times that a message's calls are shown: as they are, and in its metadata


@dataclass(frozen=True, slots=True)
class ChatMethods:
    front: Front
    replays: Replayer

    async def chat_send(self, call: Call, params: api.ChatSend) -> api.Sent:
        principal = call.principal
        account = params.account or principal.name
        if not can_speak_as(principal, params.channel, account):
            raise Forbidden(
                f"you may only speak as {principal.name!r} on websocket; other channels and "
                "accounts need the scope 'impersonate'"
            )
        if not params.content.strip():
            raise InvalidParams("content: is empty", [("content", "is empty")])
        fingerprint = ""
        if params.idempotency_key is not None:
            same = differing(params)
            del same["idempotency_key"]
            same.pop("traceparent", None)
            fingerprint = encode({**same, "account": account}).decode()
        address = address_in(params.channel, account, params.peer, is_raw=False)
        inbound = Inbound(
            replace(address, guild=params.guild, team=params.team, thread=params.thread),
            params.content,
            key=params.idempotency_key,
            fingerprint=fingerprint,
            requested_agent=params.agent,
            limits=differing(params.limits) if params.limits else {},
            traceparent=params.traceparent or call.peer.traceparent,
        )
        route = reachable_route(self.front, principal, inbound)
        if params.context_id is not None:
            node = await self.front.node(route.session_key, NodeId(params.context_id))
            inbound = replace(inbound, context_id=node.id)
        accepted = await self.front.intake.accept(inbound, route)
        if not accepted.duplicate:
            run = self.front.live.get(accepted.run_id)
            if run is not None:
                call.after_answer.append(partial(call.peer.stream_run, run, self.front.run))
        return api.Sent(
            message_id=accepted.message_id,
            run_id=accepted.run_id,
            session_key=accepted.session_key,
            agent_id=accepted.session_key.agent,
            matched_by=accepted.matched_by,
            duplicate=accepted.duplicate,
        )

    async def chat_abort(self, call: Call, params: api.ChatAbort) -> api.Aborted:
        run = await find_run(self.front, call.principal, params.run_id)
        require_own(call.principal, key_of(run))
        if isinstance(run, LiveRun):
            await self.front.abort(run, at_once=params.mode == "immediate")
        return api.Aborted(run_id=params.run_id, aborted=isinstance(run, LiveRun))

    async def chat_history(self, call: Call, params: api.ChatHistory) -> api.HistoryPage:
        key = visible_key(call.principal, params.session_key)
        return await history_page(self.front, key, params.before, params.limit)

    async def chat_resume(self, call: Call, params: api.ChatResume) -> api.Resumed:
        """Missed events come first, then the answer, then what is still to come."""
        run = await find_run(self.front, call.principal, params.run_id)
        live = await call.peer.replay(run, self.front.run, params.after_seq)
        return api.Resumed(run_id=params.run_id, live=live)

    async def run_inspect(self, call: Call, params: api.RunInspect) -> Mapping[str, object]:
        shown = await self._summary(call, params.run_id)
        return {name: shown[name] for name in shown if name != "context"}

    async def context_explain(self, call: Call, params: api.ContextExplain) -> Mapping[str, object]:
        kept = (await self._summary(call, params.run_id)).get("context")
        return context_report(params.run_id, kept if isinstance(kept, dict) else None)

    async def _summary(self, call: Call, run_id: str) -> Mapping[str, object]:
        """Plain data, as a run tells it or has left it."""
        run = await find_run(self.front, call.principal, run_id)
        if isinstance(run, LiveRun):
            return run.summary(self.front.clock)
        if run.summary:
            kept = decode(run.summary)
            assert isinstance(kept, dict)
            return kept
        new = run.entry.new
        return {
            **AT_REST,
            "run_id": new.run_id,
            "session_key": new.session_key,
            "agent_id": new.session_key.agent,
            "state": run.entry.state,
            "elapsed_s": 0.0,
            "timings": {"accepted_at": new.accepted_at},
            "termination_reason": run.outcome,
        }

    async def run_replay(self, call: Call, params: api.Replay) -> api.RunReplay:
        run = await find_run(self.front, call.principal, params.run_id)
        if isinstance(run, LiveRun):
            raise Conflict("the run has not ended yet")
        if params.model is None:
            told, other = await self.replays.replay(run), {}
        elif has_scope(call.principal, "admin"):
            told = await self.replays.compare(run, params.model)
            other = {"response": told.response, "tokens_used": told.tokens_used}
        else:  # whoever may talk has only the models of their agents
            raise Forbidden("to ask another model takes the scope 'admin'")
        parted = told.divergence
        return api.RunReplay(
            run_id=params.run_id,
            identical=parted is None,
            divergence=None if parted is None else build(api.Divergence, parted),
            chunks=told.chunks,
            calls=told.calls,
            **other,  # type: ignore[arg-type]  # those two
        )


async def history_page(
    front: Front, key: SessionKey, before: str | None, limit: int
) -> api.HistoryPage:
    """Raises NotFound for a `before` that is not there."""
    start = None if before is None else NodeId(before)
    if start is not None:
        await front.node(key, start)
    path = page = await front.sessions.path(key, before=start, limit=limit)
    while not (said := _said(page)) and page.more:
        page = await front.sessions.path(key, before=page.nodes[0].id, limit=limit)
    shown = newest_within(said, PAGE_CHARACTERS)
    return api.HistoryPage(
        messages=[message(node, PAGE_CHARACTERS) for node in shown],
        head=path.head,
        more=page.more or len(shown) < len(said),
    )


def _said(page: Path) -> tuple[Node, ...]:
    """Without summaries: nobody said them."""
    return tuple(node for node in page.nodes if node.message.role != "summary")


def newest_within(nodes: Sequence[Node], most: int) -> Sequence[Node]:
    """The newest of them up to a size, at least one: a page must fit into a socket."""
    size = 0
    for place in range(len(nodes) - 1, -1, -1):
        said = nodes[place].message
        size += len(said.text) + TOLD * sum(len(call.arguments) for call in said.tool_calls)
        size += len(said.result.content) if said.result else 0
        if size > most:
            return nodes[min(place + 1, len(nodes) - 1) :]
    return nodes


def message(node: Node, most: int) -> api.HistoryMessage:
    """A message of more than `most` characters is cut, and says so. A summary is none."""
    said, result = node.message, node.message.result
    text = result.content if result else said.text
    room = most - len(text)
    calls = []
    for call in said.tool_calls:
        arguments = call.arguments[: max(0, room // TOLD)]
        function = api.CalledFunction(name=call.name, arguments=arguments)
        calls.append(api.MessageCall(id=call.id, type="function", function=function))
        room -= TOLD * len(call.arguments)
    notices = [
        api.MessageNotice(system_type=kind, system_message=told) for kind, told in said.notices
    ]
    return build(
        api.HistoryMessage,
        node,
        result,
        role=said.role,
        content=text[:most],
        tool_calls=calls or None,
        metadata=build(api.MessageMetadata, node, tool_calls=calls or None),
        tool_call_id=result.call_id if result else None,
        notices=notices or None,
        truncated=room < 0 or None,
    )


async def find_run(front: Front, principal: Principal, run_id: str) -> Run:
    """A run that the principal may see; raises NotFound, alike for absent and for forbidden."""
    run = await front.run(run_id)
    if not can_see_session(principal, key_of(run)):
        raise NotFound(f"run {run_id[:64]!r}")
    return run


def key_of(run: LiveRun | RunRecord) -> SessionKey:
    return run.session_key if isinstance(run, LiveRun) else run.entry.new.session_key


def reachable_route(front: Front, principal: Principal, inbound: Inbound) -> Route:
    """An agent that the principal does not reach raises NotFound, like one that does not exist. Raises
    NotOfProject, Forbidden, and what `resolve` raises."""
    asked = inbound.requested_agent
    if asked is not None and not can_use(principal, asked):
        raise NotFound(f"agent {asked[:64]!r}")
    route = front.router.resolve(inbound.address, requested=asked)
    if not can_use(principal, route.agent_id):
        raise Forbidden("your token does not reach the agent that answers there")
    return route


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
    ids: Ids

    def routes(self) -> Sequence[Described]:
        return (
            Described(http.CHAT, self.chat),
            Described(http.MESSAGES, self.messages),
            Described(http.ERASE, self.erase),
        )

    async def chat(self, request: Request) -> Response:
        body = read_body(http.ChatBody, await request.body(), "a message")
        if not body.message.strip():
            raise InvalidRequest("message: is empty")
        principal = require_scope(request, "chatting", "chat")
        accepted = await self._accept(body, principal, request)
        run = await run_with_log(self.front, accepted.run_id)
        headers = {"x-exogate-run": accepted.run_id}
        if body.stream or "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(_stream(run), headers=headers, media_type="text/event-stream")
        return self._answer(accepted, await whole(run), headers)

    async def _accept(
        self, body: http.ChatBody, principal: Principal, request: Request
    ) -> Accepted:
        conversation = body.conversation_id or self.ids.new()
        same = asdict(body)
        del same["stream"]
        inbound = Inbound(
            address=Address(CHANNEL, principal.name, conversation),
            content=body.message,
            key=parse_idempotency_key(request),
            fingerprint=encode(same).decode(),
            requested_agent=body.agent,
            limits=differing(body.limits) if body.limits else {},
            traceparent=request.headers.get("traceparent"),
        )
        route = reachable_route(self.front, principal, inbound)
        return await self.front.intake.accept(inbound, route)

    def _answer(
        self, accepted: Accepted, events: Sequence[Mapping[str, Any]], headers: Mapping[str, str]
    ) -> Response:
        end = events[-1]
        ids = {"conversation_id": accepted.session_key.peer, "run_id": accepted.run_id}
        if end["type"] == "error":
            status = STATUS.get(end["error_type"], 500)
            error = _error(end["error_type"], end)
            failed = build(http.FailedChat, ids, error=error)
            return json_response(failed, status, {**headers, **waiting(end)})
        calls, usage = _tool_calls(events), _usage(events)
        told = {**ids, "response": spoken(events), "usage": usage, "tool_calls_made": calls}
        if end["reason"] != "timeout":
            return json_response(build(http.ChatAnswer, end, **told), 200, headers)
        facts = {"message": TOO_LATE, "retryable": True, "timestamp": end["timestamp"]}
        late = build(http.LateChat, end, **told, error=_error("timeout", facts))
        return json_response(late, 504, headers)

    async def messages(self, request: Request) -> Response:
        """As `chat.history` has them; of several agents' conversations the one that was used last."""
        principal = require_scope(request, "reading a conversation", "chat", "read")
        name = str(request.path_params["id"])
        page = query_of(request, http.ConversationQuery)
        key = (await self._meant(principal, name))[0]
        shown = await history_page(self.front, key, page.before, page.limit)
        return json_response(
            build(http.ConversationPage, shown, conversation_id=name, session_key=str(key))
        )

    async def erase(self, request: Request) -> Response:
        principal = require_scope(request, "erasing a conversation", "chat")
        name = str(request.path_params["id"])
        keys = await self._meant(principal, name)
        for key in keys:
            require_own(principal, key)
        gone = [
            build(
                http.ErasedSession,
                await self.front.erase(key, by=principal.name),
                session_key=str(key),
            )
            for key in keys
        ]
        return json_response(http.ErasedConversation(conversation_id=name, erased=gone))

    async def _meant(self, principal: Principal, name: str) -> Sequence[SessionKey]:
        """The principal's own conversation of that id, with whichever agents; or a session by its
        key. Raises NotFound."""
        query = SessionQuery(channels=(CHANNEL,), account=principal.name, peer=name, limit=500)
        page = await self.front.sessions.list_sessions(query)
        if own := [one.key for one in page.sessions if can_use(principal, one.key.agent)]:
            return own
        try:
            return (visible_key(principal, name),)
        except BadSessionKey as error:
            raise NotFound(f"session {name[:200]!r}") from error


def parse_idempotency_key(request: Request) -> str | None:
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


def _tool_calls(events: Sequence[Mapping[str, Any]]) -> Sequence[http.CallMade]:
    """In the order of the calls, whichever ended first."""
    asked = {e["tool_call"]["id"]: e["tool_call"] for e in events if e["type"] == "tool_call"}
    ended = [e["tool_call"] for e in events if e["type"] == "tool_result"]
    places = {id: place for place, id in enumerate(asked)}
    ended.sort(key=lambda call: places.get(call["id"], len(places)))
    return [
        build(http.CallMade, call, arguments=asked.get(call["id"], {}).get("arguments", ""))
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


def _error(kind: str, facts: Mapping[str, Any]) -> http.RunError:
    """Its message is one of our own sentences, never a provider's words."""
    message = facts["message"]
    names = {"type": kind, "code": kind, "error_type": kind}
    return build(http.RunError, facts, **names, message=message, user_facing_message=message)


JSON_DEPTH = 64


@dataclass(frozen=True, slots=True)
class McpApi:
    """Without a server there is no such address."""

    server: Door | None

    def routes(self) -> Sequence[Described]:
        return () if self.server is None else (Described(MCP, McpDoor(self.server)),)


@dataclass(frozen=True, slots=True)
class McpDoor:
    """ASGI, and raises what is refused."""

    server: Door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        principal = require_scope(request, "MCP", "chat")
        body = await request.body()
        parse_json(body, JSON_DEPTH)
        scope["state"][CLIENT] = McpClient(principal.name, principal.agents)
        read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def once_more() -> Message:
            return read.pop() if read else await receive()

        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        await self.server({**scope, "headers": headers}, once_more, send)
