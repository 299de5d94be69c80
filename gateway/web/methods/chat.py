"""chat.send, chat.abort, chat.history, chat.resume."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

from anyio.lowlevel import checkpoint
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from gateway.api.errors import Forbidden, InvalidParams
from gateway.domain.agents import address_in
from gateway.domain.errors import BadSessionKey, NotFound
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.inbox import Inbound, RunRecord
from gateway.domain.messages import Node
from gateway.domain.ports import Encode
from gateway.domain.sessions import Path
from gateway.routing import Route
from gateway.sessions.intake import Front
from gateway.sessions.runs import LiveRun
from gateway.web.given import WHOLE, Whole
from gateway.web.identity import CHAT, READS, Principal, may_use, sees_session, speaks_as
from gateway.web.published.conversations import HistoryPage
from gateway.web.published.runs import Aborted, Resumed, Sent
from gateway.web.rpc import Call, Method, Peer
from gateway.web.shapes import TOLD, message

Text = Annotated[str, StringConstraints(min_length=1, max_length=256)]
# More than what str.strip takes away, which is looked for by hand: with errors of its own.
_BLANKS = r"\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
SPOKEN = Field(json_schema_extra={"pattern": f"[^{_BLANKS}]"})
Content = Annotated[str, StringConstraints(min_length=1, max_length=400_000), SPOKEN]
PAGE_CHARACTERS = 150_000  # of a history page: at six bytes each, still one frame
REPLAYED_AT_ONCE = 200  # events, between which other work and the socket get their turn


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Tighter = Annotated[int, Field(ge=1), WHOLE] | None


class OwnLimits(_Params):
    """A request's own limits: they only tighten what holds anyway."""

    max_iterations: Tighter = None
    soft_warning_percent: Tighter = None
    token_budget: Tighter = None
    token_warning_percent: Tighter = None
    timeout_seconds: Tighter = None
    max_tool_calls_per_turn: Tighter = None
    max_parallel_tools: Tighter = None


class Send(_Params):
    content: Content
    channel: Text = "websocket"
    account: Text | None = None
    peer: Text = "main"
    guild: Text | None = None
    team: Text | None = None
    thread: Text | None = None
    idempotency_key: Text | None = None
    context_id: Text | None = None
    agent: Text | None = None
    limits: OwnLimits | None = None


class Abort(_Params):
    run_id: Text
    mode: Literal["immediate", "after_turn"] = "immediate"


class History(_Params):
    session_key: Annotated[str, StringConstraints(min_length=1, max_length=4096)]
    before: Text | None = None
    limit: Whole = Field(default=50, ge=1, le=500)


class Resume(_Params):
    run_id: Text
    after_seq: Whole = Field(default=0, ge=0)


@dataclass(frozen=True, slots=True)
class ChatMethods:
    front: Front
    encode: Encode

    def all(self) -> Sequence[Method]:
        return (
            Method("chat.send", Send, CHAT, self.send),
            Method("chat.abort", Abort, CHAT, self.abort),
            Method("chat.history", History, READS, self.history),
            Method("chat.resume", Resume, READS, self.resume),
        )

    async def send(self, call: Call, params: Send) -> Sent:
        """Says something; the run's events follow."""
        principal = call.principal
        account = params.account or principal.name
        if not speaks_as(principal, params.channel, account):
            raise Forbidden(
                f"you may only speak as {principal.name!r} on websocket; other channels and "
                "accounts need the scope 'impersonate'"
            )
        inbound = self._inbound(params, account)
        route = reachable_route(self.front, principal, inbound)
        if inbound.context_id is not None:
            node = await self.front.node(route.session_key, inbound.context_id)
            inbound = replace(inbound, context_id=node.id)
        accepted = await self.front.intake.accept(inbound)
        if not accepted.duplicate:
            run, peer = self.front.live.get(accepted.run_id), call.peer
            if run is not None:
                call.after_answer.append(partial(follow, self.front, run, peer))
        return {
            "message_id": accepted.message_id,
            "run_id": accepted.run_id,
            "session_key": str(accepted.session_key),
            "agent_id": accepted.session_key.agent,
            "matched_by": accepted.matched_by,
            "duplicate": accepted.duplicate,
        }

    def _inbound(self, params: Send, account: str) -> Inbound:
        if not params.content.strip():
            raise InvalidParams("content: is empty", [("content", "is empty")])
        fingerprint = ""
        if params.idempotency_key is not None:
            same = params.model_dump(exclude={"idempotency_key"}, exclude_defaults=True)
            fingerprint = self.encode({**same, "account": account}).decode()
        return Inbound(
            address=replace(
                address_in(params.channel, account, params.peer, is_raw=False),
                guild=params.guild,
                team=params.team,
                thread=params.thread,
            ),
            content=params.content,
            key=params.idempotency_key,
            fingerprint=fingerprint,
            requested_agent=params.agent,
            context_id=None if params.context_id is None else NodeId(params.context_id),
            limits=given(params.limits),
        )

    async def abort(self, call: Call, params: Abort) -> Aborted:
        """Stops a run."""
        run = await find_run(self.front, call.principal, params.run_id)
        require_own(call.principal, key_of(run))
        if isinstance(run, LiveRun):
            self.front.abort(run, at_once=params.mode == "immediate")
        return {"run_id": params.run_id, "aborted": isinstance(run, LiveRun)}

    async def history(self, call: Call, params: History) -> HistoryPage:
        """A page of a conversation, up to its HEAD."""
        key = visible_key(call.principal, params.session_key)
        return await history_page(self.front, key, params.before, params.limit)

    async def resume(self, call: Call, params: Resume) -> Resumed:
        """The events of a run that were missed, then those to come.

        Missed events come first, then the answer, then what is still to come."""
        run = await find_run(self.front, call.principal, params.run_id)
        call.peer.catch_up(params.run_id, None)
        live = await _replay(self.front, run, call.peer, params.after_seq)
        return {"run_id": params.run_id, "live": live}


async def history_page(
    front: Front, key: SessionKey, before: str | None, limit: int
) -> HistoryPage:
    """Raises NotFound for a `before` that is not there."""
    start = None if before is None else NodeId(before)
    if start is not None:
        await front.node(key, start)
    path = page = await front.sessions.path(key, before=start, limit=limit)
    while not (said := _said(page)) and page.more:
        page = await front.sessions.path(key, before=page.nodes[0].id, limit=limit)
    shown = newest_within(said, PAGE_CHARACTERS)
    return {
        "messages": [message(node, PAGE_CHARACTERS) for node in shown],
        "head": path.head,
        "more": page.more or len(shown) < len(said),
    }


def _said(page: Path) -> tuple[Node, ...]:
    """Without summaries: nobody said them."""
    return tuple(node for node in page.nodes if node.message.role != "summary")


def given(limits: OwnLimits | None) -> Mapping[str, int]:
    return {} if limits is None else limits.model_dump(exclude_none=True)


def follow(front: Front, run: LiveRun, peer: Peer, *, after_seq: int = 0) -> None:
    """Sends the events of a run to a peer until either of them ends. Nothing is queued for a peer that reads
    too slowly: it catches up from the run's own events."""
    seq = max(after_seq, run.first_seq - 1)
    for event in run.events_after(seq, len(run.events)) if run.events else ():
        if not peer.offer("chat.event", event):
            _follow_later(front, run, peer, seq)
            return
        seq += 1
    if run.ended:
        return

    def hear(event: bytes, last: bool) -> None:  # noqa: FBT001  # the shape of a Listener
        if event and not peer.offer("chat.event", event):
            stop()
            forget()
            _follow_later(front, run, peer, run.first_seq + len(run.events) - 2)
        elif last:
            forget()

    def replaced() -> None:
        forget()

    forget: Callable[[], object] = _nothing
    stop = run.listen(hear, after_seq=seq, owner=peer, replaced=replaced)
    forget = peer.on_close(stop)


def _nothing() -> None:
    """Nothing is registered yet."""


def _follow_later(front: Front, run: LiveRun, peer: Peer, seq: int) -> None:
    """Sends the events after `seq` once the peer has read."""
    run_id = run.run_id

    async def go_on() -> None:
        await _replay(front, await front.run(run_id), peer, seq)

    peer.catch_up(run_id, go_on)


async def _replay(front: Front, run: LiveRun | RunRecord, peer: Peer, after_seq: int) -> bool:
    """Sends the missed events as fast as they are read, then follows the run. True if it is still live."""
    if isinstance(run, RunRecord):
        events = run.log.split(b"\n") if run.log else []
        await _tell(events[max(0, after_seq + 1 - run.first_seq) :], peer)
        return False
    seq = after_seq
    while missed := run.events_after(seq, REPLAYED_AT_ONCE):
        seq = max(seq, run.first_seq - 1) + len(missed)
        await _tell(missed, peer)
        await checkpoint()
    follow(front, run, peer, after_seq=seq)
    return not run.ended


async def _tell(events: Sequence[bytes], peer: Peer) -> None:
    for place, event in enumerate(events, 1):
        while not peer.offer("chat.event", event):
            await peer.room()
        if place % REPLAYED_AT_ONCE == 0:
            await checkpoint()


async def find_run(front: Front, principal: Principal, run_id: str) -> LiveRun | RunRecord:
    """A run that the principal may see; raises NotFound, alike for absent and for forbidden."""
    run = await front.run(run_id)
    if not sees_session(principal, key_of(run)):
        raise NotFound(f"run {run_id[:64]!r}")
    return run


def reachable_route(front: Front, principal: Principal, inbound: Inbound) -> Route:
    """An agent that the principal does not reach raises NotFound, like one that does not exist. Raises
    NotOfProject, Forbidden, and what `resolve` raises."""
    asked = inbound.requested_agent
    if asked is not None and not may_use(principal, asked):
        raise NotFound(f"agent {asked[:64]!r}")
    route = front.router.resolve(inbound.address, requested=asked)
    if not may_use(principal, route.agent_id):
        raise Forbidden("your token does not reach the agent that answers there")
    return route


def key_of(run: LiveRun | RunRecord) -> SessionKey:
    return run.session_key if isinstance(run, LiveRun) else run.entry.new.session_key


def require_own(principal: Principal, key: SessionKey) -> None:
    """Only the owner may change a session. Raises Forbidden."""
    if not speaks_as(principal, key.channel, key.account):
        raise Forbidden("your token may read this, but not change it")


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


def key_in_path(principal: Principal, text: str) -> SessionKey:
    """As `visible_key`, but raises NotFound also for a text that is no key."""
    try:
        return visible_key(principal, text)
    except BadSessionKey as error:
        raise NotFound(f"session {text[:200]!r}") from error


def visible_key(principal: Principal, text: str) -> SessionKey:
    """A session key that the principal may see; raises BadSessionKey, NotFound."""
    key = SessionKey.parse(text)
    if not sees_session(principal, key):
        raise NotFound(f"session {text[:200]!r}")
    return key
