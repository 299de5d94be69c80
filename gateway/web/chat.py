"""chat.*, run.*, context.explain: sending messages, streaming and inspecting runs; over HTTP POST /api/chat,
/api/conversations and POST /mcp."""

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
from gateway.api.declarations import build, plain_changes
from gateway.api.errors import Forbidden, InvalidRequest, wrong
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
from gateway.sessions.runs import AT_REST, LiveRun, answer_text, events_of, read_events
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
from gateway.web.responses import json_response, retry_headers
from gateway.web.rpc import Call, Run, parse_json, read_body

PAGE_CHARACTERS = 150_000  # of a history page: with six bytes each it still fits into a frame
CALL_COPIES = 2  # a message shows its calls twice: as they are, and in its metadata


@dataclass(frozen=True, slots=True)
class ChatMethods:
    front: Front
    replays: Replayer

    async def chat_send(self, call: Call, params: api.ChatSend) -> api.Sent:
        principal = call.principal
        account = params.account or principal.name
        if not can_speak_as(principal, params.channel, account):
            raise Forbidden(
                f"your token sends messages as {principal.name!r} on websocket; other channels "
                "and accounts need the scope 'impersonate'"
            )
        if not params.content.strip():
            raise wrong("content", "is empty")
        fingerprint = ""
        if params.idempotency_key is not None:
            same = plain_changes(params)
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
            limits=plain_changes(params.limits) if params.limits else {},
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
        require_own(call.principal, run.entry.new.session_key)
        if isinstance(run, LiveRun):
            await self.front.abort(run, at_once=params.mode == "immediate")
        return api.Aborted(run_id=params.run_id, aborted=isinstance(run, LiveRun))

    async def chat_history(self, call: Call, params: api.ChatHistory) -> api.HistoryPage:
        key = visible_key(call.principal, params.session_key)
        return await history_page(self.front, key, params.before, params.limit)

    async def chat_resume(self, call: Call, params: api.ChatResume) -> api.Resumed:
        """Sends the missed events, then the answer, then the events to come."""
        run = await find_run(self.front, call.principal, params.run_id)
        live = await call.peer.replay(run, self.front.run, params.after_seq)
        return api.Resumed(run_id=params.run_id, live=live)

    async def run_inspect(self, call: Call, params: api.RunInspect) -> Mapping[str, object]:
        summary = await self._summary(call, params.run_id)
        return {name: summary[name] for name in summary if name != "context"}

    async def context_explain(self, call: Call, params: api.ContextExplain) -> Mapping[str, object]:
        context = (await self._summary(call, params.run_id)).get("context")
        return context_report(params.run_id, context if isinstance(context, dict) else None)

    async def _summary(self, call: Call, run_id: str) -> Mapping[str, object]:
        """Returns the summary of a live run, or the stored one, as plain data."""
        run = await find_run(self.front, call.principal, run_id)
        if isinstance(run, LiveRun):
            return run.summary(self.front.clock)
        if run.summary:
            stored = decode(run.summary)
            assert isinstance(stored, dict)
            return stored
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
            found, other = await self.replays.replay(run), {}
        elif has_scope(call.principal, "admin"):
            found = await self.replays.compare(run, params.model)
            other = {"response": found.response, "tokens_used": found.tokens_used}
        else:  # the scope 'chat' allows only the models of the own agents
            raise Forbidden("replaying with another model needs the scope 'admin'")
        difference = found.divergence
        return api.RunReplay(
            run_id=params.run_id,
            identical=difference is None,
            divergence=None if difference is None else build(api.Divergence, difference),
            chunks=found.chunks,
            calls=found.calls,
            **other,  # type: ignore[arg-type]  # response and tokens_used
        )


async def history_page(
    front: Front, key: SessionKey, before: str | None, limit: int
) -> api.HistoryPage:
    """Returns the messages before a node, without summaries. Raises NotFound if there is no such node."""
    start = None if before is None else NodeId(before)
    if start is not None:
        await front.node(key, start)
    path = page = await front.sessions.path(key, before=start, limit=limit)
    while not (nodes := _messages(page)) and page.more:
        page = await front.sessions.path(key, before=page.nodes[0].id, limit=limit)
    shown = newest_within(nodes, PAGE_CHARACTERS)
    return api.HistoryPage(
        messages=[message(node, PAGE_CHARACTERS) for node in shown],
        head=path.head,
        more=page.more or len(shown) < len(nodes),
    )


def _messages(page: Path) -> Sequence[Node]:
    return [node for node in page.nodes if node.message.role != "summary"]


def newest_within(nodes: Sequence[Node], most: int) -> Sequence[Node]:
    """Returns the newest nodes up to a size in characters, at least one: a page must fit into a frame."""
    size = 0
    for place in range(len(nodes) - 1, -1, -1):
        one = nodes[place].message
        size += len(one.text) + CALL_COPIES * sum(len(call.arguments) for call in one.tool_calls)
        size += len(one.result.content) if one.result else 0
        if size > most:
            return nodes[min(place + 1, len(nodes) - 1) :]
    return nodes


def message(node: Node, most: int) -> api.HistoryMessage:
    """Describes a message, cut to `most` characters and then marked as truncated."""
    own, result = node.message, node.message.result
    text = result.content if result else own.text
    room = most - len(text)
    calls = []
    for call in own.tool_calls:
        arguments = call.arguments[: max(0, room // CALL_COPIES)]
        function = api.CalledFunction(name=call.name, arguments=arguments)
        calls.append(api.MessageCall(id=call.id, type="function", function=function))
        room -= CALL_COPIES * len(call.arguments)
    notices = [
        api.MessageNotice(system_type=kind, system_message=words) for kind, words in own.notices
    ]
    return build(
        api.HistoryMessage,
        node,
        result,
        role=own.role,
        content=text[:most],
        tool_calls=calls or None,
        metadata=build(api.MessageMetadata, node, tool_calls=calls or None),
        tool_call_id=result.call_id if result else None,
        notices=notices or None,
        truncated=room < 0 or None,
    )


async def find_run(front: Front, principal: Principal, run_id: str) -> Run:
    """Returns a run. Raises NotFound if there is no such run or the principal cannot see it."""
    run = await front.run(run_id)
    if not can_see_session(principal, run.entry.new.session_key):
        raise NotFound(f"run {run_id[:64]!r}")
    return run


def reachable_route(front: Front, principal: Principal, inbound: Inbound) -> Route:
    """Resolves the route of a message. Raises NotFound if the requested agent is missing or out of reach, Forbidden
    if the resolved agent is out of reach, NotOfProject, and the errors of `resolve`."""
    requested = inbound.requested_agent
    if requested is not None and not can_use(principal, requested):
        raise NotFound(f"agent {requested[:64]!r}")
    route = front.router.resolve(inbound.address, requested=requested)
    if not can_use(principal, route.agent_id):
        raise Forbidden("your token does not reach the agent of this address")
    return route


CHANNEL = "api"
STATUS = {"provider_error": 502, "budget_exceeded": 429, "internal_error": 500, "config_error": 500}
TOO_LATE = "the run reached its time limit; the answer so far comes with this error"


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
        return self._answer(accepted, await read_events(run), headers)

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
            limits=plain_changes(body.limits) if body.limits else {},
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
            return json_response(failed, status, {**headers, **retry_headers(end)})
        calls, usage = _tool_calls(events), _usage(events)
        known = {**ids, "response": answer_text(events), "usage": usage, "tool_calls_made": calls}
        if end["reason"] != "timeout":
            return json_response(build(http.ChatAnswer, end, **known), 200, headers)
        facts = {"message": TOO_LATE, "retryable": True, "timestamp": end["timestamp"]}
        late = build(http.LateChat, end, **known, error=_error("timeout", facts))
        return json_response(late, 504, headers)

    async def messages(self, request: Request) -> Response:
        """Returns the messages as `chat.history` does, of the latest conversation if several agents have one."""
        principal = require_scope(request, "reading a conversation", "chat", "read")
        name = str(request.path_params["id"])
        query = query_of(request, http.ConversationQuery)
        key = (await self._resolve(principal, name))[0]
        page = await history_page(self.front, key, query.before, query.limit)
        return json_response(
            build(http.ConversationPage, page, conversation_id=name, session_key=str(key))
        )

    async def erase(self, request: Request) -> Response:
        principal = require_scope(request, "erasing a conversation", "chat")
        name = str(request.path_params["id"])
        keys = await self._resolve(principal, name)
        for key in keys:
            require_own(principal, key)
        erased = []
        for key in keys:
            found = await self.front.erase(key, by=principal.name)
            erased.append(build(http.ErasedSession, found, session_key=str(key)))
        return json_response(http.ErasedConversation(conversation_id=name, erased=erased))

    async def _resolve(self, principal: Principal, name: str) -> Sequence[SessionKey]:
        """Returns the sessions of the principal's conversation of that id, one for each agent, or else the session
        with that key. Raises NotFound."""
        query = SessionQuery(channels=(CHANNEL,), account=principal.name, peer=name, limit=500)
        page = await self.front.sessions.list_sessions(query)
        if own := [one.key for one in page.sessions if can_use(principal, one.key.agent)]:
            return own
        try:
            return (visible_key(principal, name),)
        except BadSessionKey as error:
            raise NotFound(f"session {name[:200]!r}") from error


def parse_idempotency_key(request: Request) -> str | None:
    """Returns the key of the header, if there is one. Raises InvalidRequest."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= 256:
        raise InvalidRequest("Idempotency-Key must have 1 to 256 characters")
    return key


async def run_with_log(front: Front, run_id: str) -> Run:
    """Returns a run with its events. Raises NotFound if they are deleted already."""
    run = await front.run(run_id)
    if isinstance(run, RunRecord) and not run.log:
        raise NotFound(f"the answer of run {run_id[:64]!r} (older than [store] journal_days)")
    return run


async def _stream(run: Run) -> AsyncIterator[bytes]:
    async for event in events_of(run):
        yield b"data: %b\n\n" % event


def _tool_calls(events: Sequence[Mapping[str, Any]]) -> Sequence[http.CallMade]:
    """Returns the ended calls in the order in which they were made."""
    calls = {e["tool_call"]["id"]: e["tool_call"] for e in events if e["type"] == "tool_call"}
    ended = [e["tool_call"] for e in events if e["type"] == "tool_result"]
    places = {id: place for place, id in enumerate(calls)}
    ended.sort(key=lambda call: places.get(call["id"], len(places)))
    return [
        build(http.CallMade, call, arguments=calls.get(call["id"], {}).get("arguments", ""))
        for call in ended
    ]


def _usage(events: Sequence[Mapping[str, Any]]) -> TokenUsage:
    """Sums the usage of all models of the run. The cost is that of the calls with a known price."""
    used = [event for event in events if event["type"] == "usage"]
    costs = [event["cost_usd"] for event in used if event["cost_usd"] is not None]
    return TokenUsage(
        input_tokens=sum(event["input_tokens"] for event in used),
        output_tokens=sum(event["output_tokens"] for event in used),
        cost_usd=round(sum(costs), 9) if costs else None,
    )


def _error(kind: str, facts: Mapping[str, Any]) -> http.RunError:
    """Describes the error of a run. Its message is the gateway's own, never a provider's."""
    message = facts["message"]
    names = {"type": kind, "code": kind, "error_type": kind}
    return build(http.RunError, facts, **names, message=message, user_facing_message=message)


@dataclass(frozen=True, slots=True)
class McpApi:
    """The route of MCP; there is none without a server."""

    server: Door | None

    def routes(self) -> Sequence[Described]:
        return () if self.server is None else (Described(MCP, McpDoor(self.server)),)


@dataclass(frozen=True, slots=True)
class McpDoor:
    """The ASGI endpoint of MCP. Raises Forbidden, InvalidJson."""

    server: Door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        principal = require_scope(request, "MCP", "chat")
        body = await request.body()
        parse_json(body)
        scope["state"][CLIENT] = McpClient(principal.name, principal.agents)
        read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def once_more() -> Message:
            return read.pop() if read else await receive()

        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        await self.server({**scope, "headers": headers}, once_more, send)
