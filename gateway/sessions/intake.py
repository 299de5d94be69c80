"""Accepts messages: each is routed, bounded and committed, then acknowledged and put in its lane."""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import repeat
from typing import Any, Protocol

import anyio

from gateway.agent.effects import Gate
from gateway.agent.leaves import Plans
from gateway.codec import encode
from gateway.domain.agents import Address, AgentDef, Share, share_of, speaker
from gateway.domain.errors import Busy, Conflict, NoRoute, NotFound, NotOfProject, StoreUnavailable
from gateway.domain.events import Recurrences
from gateway.domain.ids import AgentId, MessageId, NodeId, RunId, SessionKey
from gateway.domain.inbox import (
    Accepted,
    Entry,
    EntryState,
    Inbound,
    NewEntry,
    RunRecord,
    SessionChoice,
)
from gateway.domain.mcp import McpClient, Served
from gateway.domain.messages import Message, Node, ToolCall, ToolResult
from gateway.domain.model import ToolSpec
from gateway.domain.ports import Clock, Ids, Inbox, SessionStore, ToolScope
from gateway.domain.sessions import Erased, ImportResult
from gateway.memory.context import Episodes, message_tokens
from gateway.memory.souls import Souls
from gateway.routing import Route, Router
from gateway.sessions.lanes import Lanes, QueuePolicy, SessionQueues, WorkOn
from gateway.sessions.runs import LiveRun, LiveRuns, answer_text, read_events
from gateway.sessions.worker import RunWorker
from gateway.tools import new_boundary

log = logging.getLogger(__name__)

MB = 1_048_576


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Bounds of what may wait. A message beyond them is refused; an accepted one is never dropped."""

    max_pending: int = 1_000  # of one session
    max_pending_total: int = 100_000
    max_pending_mb: int = 64  # of one session
    max_pending_total_mb: int = 1_024
    max_pending_per_principal: int = 5_000


# The three keys under which a message counts: its session, its sender, and all messages.
Counted = tuple[SessionKey, Share, None]
_NOBODY: Share = ((), "")


class Sharing(Protocol):
    """Passes messages to the node that works on their session, if several nodes share the work."""

    queues: SessionQueues

    async def open(self) -> None: ...

    def around(self, work: WorkOn) -> WorkOn: ...

    def accepted(self, entry: Entry, leave: Callable[[], None], share: Share) -> None: ...

    def mirror(self, record: RunRecord) -> LiveRun: ...

    async def stop(self, run: LiveRun, *, at_once: bool) -> None: ...

    async def stop_all(self, key: SessionKey) -> int: ...

    async def load(self, key: SessionKey) -> tuple[int, int]: ...

    async def choose(self, key: SessionKey, named: Mapping[str, Any]) -> SessionChoice: ...


@dataclass(slots=True)
class MessageIntake:
    """Accepts messages and queues their runs."""

    router: Router
    worker: RunWorker
    lanes: Lanes
    ids: Ids
    bounds: QueueBounds = QueueBounds()
    policy: QueuePolicy = QueuePolicy()
    sharing: Sharing | None = None  # None: this node works on all sessions
    queues: SessionQueues = field(init=False)
    # Waiting and running messages, and their bytes.
    _load: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    _about_to_start: int = 0
    _refused: Recurrences = field(default_factory=Recurrences)
    _refusal: str | None = "the gateway is starting; send it again in a moment"

    def __post_init__(self) -> None:
        work = self._around(self.worker.work)
        self.queues = SessionQueues(self.lanes, work, self.worker.clock, self.policy)
        if self.sharing is not None:
            self.sharing.queues = self.queues

    def renew(
        self, router: Router, worker: RunWorker, bounds: QueueBounds, policy: QueuePolicy
    ) -> None:
        """Replaces the parts of an older configuration. The new worker also runs messages that wait."""
        self.router, self.worker, self.bounds, self.policy = router, worker, bounds, policy
        self.queues.renew(self._around(worker.work), policy)

    def _around(self, work: WorkOn) -> WorkOn:
        return work if self.sharing is None else self.sharing.around(work)

    def open(self) -> None:
        """Starts to accept messages."""
        self._refusal = None

    def close(self) -> None:
        """Refuses every message from now on with Busy, because the gateway restarts."""
        self._refusal = "the gateway is restarting; send it again in a moment"

    @property
    def pending(self) -> int:
        return self._load.get(None, (0, 0))[0]

    async def accept(self, inbound: Inbound, route: Route | None = None) -> Accepted:
        """Returns the ids of a durable message; for a repeated key, those of the first message. `route` is
        the route that the caller has checked, if any.

        Raises NoRoute, NotOfProject, UnknownAgent, Busy, Conflict, AlreadyReceived or StoreUnavailable, and
        then nothing was accepted.
        """
        if route is None:
            route = self.router.resolve(inbound.address, requested=inbound.requested_agent)
        key, sender = route.session_key, inbound.address.sender
        size = size_of(inbound.content) + (size_of(inbound.whence) if inbound.whence else 0)
        counted = (key, share_of(key, sender), None)
        self._require_places(counted, size)
        self._count(counted, 1, size)
        unique = self.ids.new()
        digest = "" if inbound.key is None else sha256(inbound.fingerprint.encode()).hexdigest()
        new = NewEntry(
            message_id=MessageId(f"m_{unique}"),
            run_id=RunId(f"r_{unique}"),
            session_key=key,
            matched_by=route.matched_by,
            content=inbound.content,
            accepted_at=self.worker.clock.now(),
            platform_id=inbound.key,
            digest=digest,
            context_id=inbound.context_id,
            sender=sender,
            limits=inbound.limits,
            whence=inbound.whence,
            memos=inbound.memos,
            traceparent=inbound.traceparent,
        )
        is_alone = self._load[key][0] == 1 and not self.policy.debounce_s
        begin = is_alone and self.lanes.is_idle(key, reserved=self._about_to_start)
        # The caller may be cancelled; a committed message must still reach its lane.
        with anyio.CancelScope(shield=True):
            self._about_to_start += begin  # the accept counts the first attempt too
            is_new = False
            try:
                accepted = await self.worker.inbox.accept(new, begin=begin)
                is_new = not accepted.duplicate
            finally:
                self._about_to_start -= begin
                if not is_new:
                    self._count(counted, -1, -size)
            if is_new:
                state: EntryState = "running" if accepted.attempts else "queued"
                new = replace(new, memos=()) if new.memos else new
                self._join(Entry(new, accepted.seq, state, accepted.attempts), counted, size)
        return accepted

    async def resume(self) -> int:
        """Queues the unfinished messages of an earlier process in their order, then opens the intake.
        Returns how many. With several nodes, each resumes the messages of its partitions."""
        if self.sharing is not None:
            self.open()
            await self.sharing.open()
            return 0
        entries = await self.worker.inbox.unfinished()
        for entry in entries:
            new, key = entry.new, entry.new.session_key
            counted = (key, share_of(key, new.sender), None)
            size = size_of(new.content) + size_of(new.whence or "")
            self._count(counted, 1, size)
            # `begin` counts the next attempt; the dead process's attempt is counted already.
            self._join(replace(entry, state="queued"), counted, size, wait=False)
        self.open()
        if entries:
            log.info("messages_resumed", extra={"count": len(entries)})
        return len(entries)

    @contextmanager
    def holding(self, key: SessionKey, size: int) -> Iterator[None]:
        """Counts bytes of an import into a session while the block runs. Raises Busy."""
        counted = (key, _NOBODY, None)
        self._require_room(key, size)
        self._count(counted, 1, size)
        try:
            yield
        finally:
            self._count(counted, -1, -size)

    def _require_places(self, counted: Counted, size: int) -> None:
        """Raises Busy unless one more message may wait, and logs the refusal."""
        bounds, key = self.bounds, counted[0]
        (here, _), (theirs, _), (total, _) = map(self._load.get, counted, repeat((0, 0)))
        try:
            if self._refusal is not None:
                raise Busy(self._refusal)
            if here >= bounds.max_pending:
                raise Busy(f"{here} messages of this session are waiting already")
            if theirs >= bounds.max_pending_per_principal:
                raise Busy(f"{theirs} messages of the same sender are waiting already")
            if total >= bounds.max_pending_total:
                raise Busy(f"{total} messages are waiting already", retry_after_s=5.0)
            if total:
                self._require_room(key, size, is_whole=True)
        except Busy as error:
            if times := self._refused.worth(str(key), self.worker.clock.now()):
                extra = {"session": str(key), "why": str(error), "times": times}
                log.warning("message_refused", extra=extra)
            raise

    def _require_room(self, key: SessionKey, size: int, *, is_whole: bool = False) -> None:
        """Raises Busy if the bytes exceed a bound. A whole message always fits if nothing else waits, or
        it could never be accepted."""
        bounds = self.bounds
        here, total = self._load.get(key, (0, 0))[1], self._load.get(None, (0, 0))[1]
        if here + size > bounds.max_pending_mb * MB and (here or not is_whole):
            raise Busy(
                f"the waiting messages of this session would exceed {bounds.max_pending_mb} MB "
                "([queue] max_pending_mb); send it later, or in smaller parts"
            )
        if total + size > bounds.max_pending_total_mb * MB and (total or not is_whole):
            raise Busy(
                f"all waiting messages would exceed {bounds.max_pending_total_mb} MB "
                "([queue] max_pending_total_mb); send it later, or in smaller parts",
                retry_after_s=5.0,
            )

    def _count(self, counted: Counted, count: int, size: int) -> None:
        """Adds messages and bytes to the load, or subtracts them."""
        for name in counted:
            had, held = self._load.get(name, (0, 0))
            self._load[name] = (had + count, held + size)
            if not had + count:
                del self._load[name]

    def _join(self, entry: Entry, counted: Counted, size: int, *, wait: bool = True) -> None:
        leave = partial(self._count, counted, -1, -size)
        if self.sharing is not None:
            self.sharing.accepted(entry, leave, counted[1])
            return
        run = LiveRun(entry, self.worker.clock.monotonic(), leave, counted[1])
        run.trace = self.worker.trace(entry.new.traceparent)
        self.worker.runs[run.run_id] = run
        self.queues.join(run, wait=wait)


def size_of(text: str) -> int:
    """Returns the size in bytes. The store refuses text that cannot be encoded."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def _size(node: Node) -> int:
    message = node.message
    texts = (message.text, *(call.arguments for call in message.tool_calls))
    return sum(map(size_of, texts)) + (size_of(message.result.content) if message.result else 0)


def with_boundary(message: Message, boundary_of: Callable[[ToolResult], str]) -> Message:
    """Returns the message with a boundary around its result, if it has one."""
    result = message.result
    if result is None:
        return message
    return replace(message, result=replace(result, boundary=boundary_of(result)), kept={})


def _bounded(node: Node) -> Node:
    """Returns an imported node with a new boundary around its result, like a result of the gate."""
    message = with_boundary(node.message, lambda _: new_boundary())
    more = message_tokens(message) - message_tokens(node.message)
    return replace(node, message=message, token_count=node.token_count + more)


@dataclass(frozen=True, slots=True)
class Front:
    """The operations of front doors on conversations and runs. Reads use the store's ports directly.
    Changes have a method here and are durable when it returns. `on_import` and `on_erase` are called
    with the changed session."""

    agents: Mapping[AgentId, AgentDef]
    router: Router
    intake: MessageIntake
    live: LiveRuns
    inbox: Inbox
    sessions: SessionStore
    episodes: Episodes
    souls: Souls
    plans: Plans
    clock: Clock
    on_import: Callable[[SessionKey], None] = lambda key: None
    on_erase: Callable[[SessionKey], None] = lambda key: None

    async def run(self, run_id: str) -> LiveRun | RunRecord:
        """Returns a live or ended run. Raises NotFound."""
        found: LiveRun | RunRecord | None = self.live.get(run_id)
        if found is None:
            record = await self.inbox.find_run(RunId(run_id))
            # The run may have been accepted during the read.
            found = self.live.get(run_id) or record
        sharing = self.intake.sharing
        if sharing and isinstance(found, RunRecord) and found.finished_at is None:
            return sharing.mirror(found)
        if found is None:
            raise NotFound(f"run {run_id[:64]!r}")
        return found

    async def abort(self, run: LiveRun, *, at_once: bool) -> None:
        """Stops a run. A waiting run ends when its turn comes; a merged run stops the turn that answers
        it. Raises StoreUnavailable for a run of another node."""
        if self.intake.sharing is not None:
            await self.intake.sharing.stop(run, at_once=at_once)
        else:
            self.intake.queues.stop(run, at_once=at_once)

    async def stop_all(self, key: SessionKey) -> int:
        """Stops every run of a session. Returns how many. Raises StoreUnavailable, as the next two do."""
        sharing = self.intake.sharing
        return await sharing.stop_all(key) if sharing else self.intake.queues.stop_all(key)

    async def load(self, key: SessionKey) -> tuple[int, int]:
        """Returns how many messages of a session are running, and how many wait."""
        sharing = self.intake.sharing
        return await sharing.load(key) if sharing else self.intake.queues.load(key)

    async def choose(self, key: SessionKey, **named: Any) -> None:
        """Changes the named fields of a session's choice, for the turns that begin from now on."""
        sharing, queues = self.intake.sharing, self.intake.queues
        if sharing is not None:
            choice = await sharing.choose(key, named)
        else:
            choice = replace(queues.choice(key), **named)
        queues.choose(key, choice)

    async def node(self, key: SessionKey, node_id: str) -> Node:
        """Returns a node of this session by id or label. Raises NotFound."""
        node = await self.sessions.node(key, node_id)
        if node is None:
            raise NotFound(f"node {node_id[:64]!r}")
        return node

    async def move_head(self, key: SessionKey, node_id: str, *, label: str | None = None) -> NodeId:
        """Moves HEAD, so that the next message grows from that node. Raises NotFound, or Conflict if a
        message was answered meanwhile."""
        node, record = await self.node(key, node_id), await self.sessions.find_session(key)
        expected = record.head if record is not None else None
        if not await self.sessions.move_head(key, node.id, expected=expected, label=label):
            raise Conflict("HEAD has moved meanwhile; read the session and try again")
        self.episodes.forget(key)
        return node.id

    async def start_over(self, key: SessionKey) -> None:
        """Makes the next message a root. The earlier messages stay as another tree."""
        await self.sessions.start_over(key, now=self.clock.now())
        self.episodes.forget(key)

    async def import_nodes(self, key: SessionKey, nodes: Sequence[Node]) -> ImportResult:
        """Imports messages. Raises ImportRefused, and Busy if too much waits in the session."""
        with self.intake.holding(key, sum(map(_size, nodes))):
            bounded = [_bounded(node) for node in nodes]
            taken = await self.sessions.import_nodes(key, bounded, now=self.clock.now())
        self.episodes.forget(key)
        self.on_import(key)
        return taken

    async def erase(self, key: SessionKey, *, by: str, dry_run: bool = False) -> Erased:
        """Erases a session. Raises NotFound, and Busy while a message of the session is unanswered."""
        now = self.clock.now()
        erased = await self.sessions.erase(key, by=by, dry_run=dry_run, now=now)
        if not dry_run:
            self.episodes.forget(key)
            self.on_erase(key)
            log.info("session_erased", extra={"by": by, "tombstone": erased.tombstone})
        return erased


CHANNEL = "api"  # so that `ask` and POST /api/chat share their conversations
LATE = "The agent reached its time limit. The answer so far:\n"
AWAY = "The gateway's store cannot commit at the moment; nothing was accepted. Try again later."


@dataclass(slots=True)
class ServedDesk:
    """Implements the Desk port for MCP clients. The tools of `agent` are the served tools."""

    front: Front
    gate: Gate
    agent: AgentDef
    ids: Ids

    def renew(self, front: Front, gate: Gate, agent: AgentDef) -> None:
        """Replaces the parts of an older configuration."""
        self.front, self.gate, self.agent = front, gate, agent

    def offered(self, client: McpClient) -> Sequence[ToolSpec]:
        return self.gate.offered(self._agent_for(client))

    def agents(self, client: McpClient) -> Sequence[AgentId]:
        at = Address(CHANNEL, client.principal)
        return [
            agent
            for agent in self.front.agents
            if client.agents is None or agent in client.agents
            if self.front.router.answers(agent, at)
        ]

    async def call(self, client: McpClient, name: str, arguments: Mapping[str, object]) -> Served:
        call = ToolCall(self.ids.new(), name, encode(arguments).decode())
        key = SessionKey(self.agent.id, "mcp", client.principal)
        person = speaker(CHANNEL, client.principal, client.principal)  # the same person as in chats
        scope = ToolScope(key, RunId(f"r_{call.id}"), person)
        result = await self.gate.call(self._agent_for(client), call, scope)
        return Served(result.content, result.is_error)

    async def ask(
        self, client: McpClient, message: str, *, agent: str | None, conversation: str | None
    ) -> Served:
        asked = conversation or self.ids.new()
        address = Address(CHANNEL, client.principal, asked)
        inbound = Inbound(address, message, requested_agent=agent)
        try:
            return await self._answer(client, inbound)
        except StoreUnavailable:
            return Served(AWAY, is_error=True)
        except (Busy, NoRoute, NotOfProject) as error:
            return Served(f"{error}.", is_error=True)

    async def _answer(self, client: McpClient, inbound: Inbound) -> Served:
        reached, asked = self.agents(client), inbound.requested_agent
        known = f"Agents: {', '.join(reached) or 'none'}."
        if asked is not None and asked not in reached:
            return Served(f"There is no agent {asked[:64]!r}. {known}", is_error=True)
        if self.front.router.resolve(inbound.address, requested=asked).agent_id not in reached:
            text = "Your token does not reach the agent that answers there; name another."
            return Served(f"{text} {known}", is_error=True)
        accepted = await self.front.intake.accept(inbound)
        run_id: str | None = accepted.run_id
        while run_id is not None:
            run = await self.front.run(run_id)
            events = await read_events(run)
            end = events[-1]
            facts = {"conversation_id": inbound.address.peer, "run_id": run_id}
            run_id = end.get("merged_into")  # the run of a later message answered it
        is_late, is_error = end.get("reason") == "timeout", end["type"] == "error"
        text = end["message"] if is_error else answer_text(events)
        facts = {"response": text, **facts}
        return Served(f"{LATE}{text}" if is_late else text, is_late or is_error, facts)

    def _agent_for(self, client: McpClient) -> AgentDef:
        """Returns the agent; without tools if the client does not reach it."""
        return self.agent if self.agent.id in self.agents(client) else replace(self.agent, tools=())
