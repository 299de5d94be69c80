"""Accepts a message: routed, bounded, committed, and only then acknowledged and put in its lane."""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import anyio

from gateway.agent.effects import Gate
from gateway.agent.leaves import Plans
from gateway.domain.agents import Address, AgentDef, Share, share_of, speaker
from gateway.domain.errors import Busy, Conflict, NoRoute, NotFound, NotOfProject, StoreUnavailable
from gateway.domain.ids import AgentId, MessageId, NodeId, RunId, SessionKey
from gateway.domain.inbox import Accepted, Entry, EntryState, Inbound, NewEntry, RunRecord
from gateway.domain.mcp import Client, Served
from gateway.domain.messages import Node, ToolCall
from gateway.domain.model import ToolSpec
from gateway.domain.ports import Clock, Decode, Encode, Ids, Inbox, SessionStore, ToolScope
from gateway.domain.sessions import Erased, TakenIn
from gateway.memory.episodes import Episodes
from gateway.memory.souls import Souls
from gateway.memory.window import message_tokens
from gateway.routing import Route, Router
from gateway.sessions.lanes import Lanes, QueuedMessage, QueuePolicy, SessionQueues, WorkOn
from gateway.sessions.runs import LiveRun, LiveRuns, spoken, whole
from gateway.tools.gate import new_boundary

log = logging.getLogger(__name__)

MB = 1_048_576


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Beyond them a message is refused honestly; nothing that was accepted is dropped."""

    max_pending: int = 1_000  # of one session
    max_pending_total: int = 100_000
    max_pending_mb: int = 64  # of one session
    max_pending_total_mb: int = 1_024
    max_pending_per_principal: int = 5_000


@dataclass(slots=True)
class _Held:
    """What waits in a session."""

    count: int = 0
    size: int = 0


@dataclass(slots=True)
class _Load:
    """What an accepted message weighs until its end."""

    key: SessionKey
    held: _Held
    share: Share
    size: int


@dataclass(slots=True)
class MessageIntake:
    router: Router
    inbox: Inbox
    lanes: Lanes
    runs: LiveRuns
    work: WorkOn
    clock: Clock
    ids: Ids
    bounds: QueueBounds = QueueBounds()
    manner: QueuePolicy = QueuePolicy()
    lines: SessionQueues = field(init=False)
    _sessions: dict[SessionKey, _Held] = field(default_factory=dict)
    _principals: dict[Share, int] = field(default_factory=dict)
    _total: int = 0
    _total_size: int = 0
    _about_to_start: int = 0
    _refusal: str | None = "the gateway is starting; send it again in a moment"

    def __post_init__(self) -> None:
        self.lines = SessionQueues(self.lanes, self.work, self.clock, self.manner)

    def close(self) -> None:
        """From now on every message is refused with Busy: the gateway is about to restart."""
        self._refusal = "the gateway is restarting; send it again in a moment"

    @property
    def pending(self) -> int:
        return self._total

    async def accept(self, inbound: Inbound) -> Accepted:
        """Gives the ids once the message is durable. A repeated key gives the first one's ids.

        Raises NoRoute, NotOfProject, UnknownAgent, Busy, Conflict, AlreadyHeard or StoreUnavailable: then nothing was accepted.
        """
        route = self.router.resolve(inbound.address, requested=inbound.requested_agent)
        key = route.session_key
        load = self._admit(key, inbound)
        is_alone = load.held.count == 1 and not self.manner.debounce_s
        begin = is_alone and self.lanes.is_idle(key, spoken_for=self._about_to_start)
        # Whoever waits for this may vanish; the commit must still reach the lane.
        with anyio.CancelScope(shield=True):
            self._about_to_start += begin  # the first attempt is counted along with the accept
            try:
                entry = self._entry(inbound, route)
                accepted = await self.inbox.accept(entry, begin=begin)
            except BaseException:
                self._release(load)
                raise
            finally:
                self._about_to_start -= begin
            if accepted.duplicate:
                self._release(load)
            else:
                state: EntryState = "running" if accepted.attempts else "queued"
                entry = replace(entry, memos=()) if entry.memos else entry
                self._line_up(Entry(entry, accepted.seq, state, accepted.attempts), load)
        return accepted

    def open(self) -> None:
        """From now on messages are accepted."""
        self._refusal = None

    async def resume(self) -> int:
        """Takes up, in the order of their accepts, the messages that an earlier process left; only
        then may new ones come in behind them."""
        entries = await self.inbox.unfinished()
        for entry in entries:
            new = entry.new
            held = self._sessions.get(new.session_key) or _Held()
            size = size_of(new.content) + size_of(new.whence or "")
            load = _Load(new.session_key, held, share_of(new.session_key, new.sender), size)
            self._count(load)
            # The attempt of the process that died is counted; the next one is counted anew.
            self._line_up(replace(entry, state="queued"), load, wait=False)
        self.open()
        if entries:
            log.info("taking up unfinished messages", extra={"count": len(entries)})
        return len(entries)

    @contextmanager
    def holding(self, key: SessionKey, size: int) -> Iterator[None]:
        """So many bytes are on their way into a session besides messages. Raises Busy."""
        held = self._sessions.get(key) or _Held()
        self._require_room(held, size, is_whole=False)
        load = _Load(key, held, ((), ""), size)
        self._count(load)
        try:
            yield
        finally:
            self._release(load)

    def _admit(self, key: SessionKey, inbound: Inbound) -> _Load:
        """Counts the message, or raises Busy."""
        if self._refusal is not None:
            raise Busy(self._refusal)
        bounds, held = self.bounds, self._sessions.get(key) or _Held()
        share = share_of(key, inbound.address.sender)
        if held.count >= bounds.max_pending:
            raise Busy(f"{held.count} messages of this session are waiting already")
        theirs = self._principals.get(share, 0)
        if theirs >= bounds.max_pending_per_principal:
            raise Busy(f"{theirs} messages of the same sender are waiting already")
        if self._total >= bounds.max_pending_total:
            raise Busy(f"{self._total} messages are waiting already", retry_after_s=5.0)
        size = size_of(inbound.content) + (size_of(inbound.whence) if inbound.whence else 0)
        if held.size or self._total_size:  # a whole message always fits where nothing else waits
            self._require_room(held, size)
        load = _Load(key, held, share, size)
        self._count(load)
        return load

    def _require_room(self, held: _Held, size: int, *, is_whole: bool = True) -> None:
        """Raises Busy. A whole message always fits where nothing else waits: it could never be
        accepted otherwise."""
        bounds, total = self.bounds, self._total_size
        if held.size + size > bounds.max_pending_mb * MB and (held.size or not is_whole):
            raise Busy(
                f"what waits in this session would be more than {bounds.max_pending_mb} MB "
                "([queue] max_pending_mb): send it later, or in smaller parts"
            )
        if total + size > bounds.max_pending_total_mb * MB and (total or not is_whole):
            raise Busy(
                f"what waits would be more than {bounds.max_pending_total_mb} MB in all "
                "([queue] max_pending_total_mb): send it later, or in smaller parts",
                retry_after_s=5.0,
            )

    def _count(self, load: _Load) -> None:
        held = load.held
        if not held.count:
            self._sessions[load.key] = held
        held.count += 1
        held.size += load.size
        self._principals[load.share] = self._principals.get(load.share, 0) + 1
        self._total += 1
        self._total_size += load.size

    def _release(self, load: _Load) -> None:
        held = load.held
        held.count -= 1
        held.size -= load.size
        if not held.count:
            del self._sessions[load.key]
        self._principals[load.share] -= 1
        if not self._principals[load.share]:
            del self._principals[load.share]
        self._total -= 1
        self._total_size -= load.size

    def _entry(self, inbound: Inbound, route: Route) -> NewEntry:
        unique = self.ids.new()
        digest = ""
        if inbound.key is not None:
            digest = hashlib.sha256(inbound.fingerprint.encode()).hexdigest()
        return NewEntry(
            message_id=MessageId(f"m_{unique}"),
            run_id=RunId(f"r_{unique}"),
            session_key=route.session_key,
            matched_by=route.matched_by,
            content=inbound.content,
            accepted_at=self.clock.now(),
            platform_id=inbound.key,
            digest=digest,
            context_id=inbound.context_id,
            sender=inbound.address.sender,
            limits=inbound.limits,
            whence=inbound.whence,
            memos=inbound.memos,
        )

    def _line_up(self, entry: Entry, load: _Load, *, wait: bool = True) -> None:
        new = entry.new
        opened = self.clock.monotonic()
        run = self.runs.open(new.run_id, new.session_key, new.accepted_at, opened)
        waiting = QueuedMessage(entry, run, partial(self._release, load), load.share)
        self.lines.join(waiting, wait=wait)


def size_of(text: str) -> int:
    """In bytes; what cannot be encoded is refused by the store."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Everything here is durable when it comes back. `said` is told where messages came in,
    `forgotten` where they went; `holding` counts what is being taken in."""

    sessions: SessionStore
    episodes: Episodes
    clock: Clock
    said: Callable[[SessionKey], None] = lambda key: None
    forgotten: Callable[[SessionKey], None] = lambda key: None
    holding: Callable[[SessionKey, int], AbstractContextManager[None]] = lambda key, size: (
        nullcontext()
    )

    async def begin(self, key: SessionKey) -> None:
        """The next message is a root; what was said before stays, as another tree."""
        await self.sessions.start_over(key, now=self.clock.now())
        self.episodes.forget(key)

    async def take_in(self, key: SessionKey, nodes: Sequence[Node]) -> TakenIn:
        """Raises ImportRefused, and Busy if too much is on its way into the session already."""
        with self.holding(key, sum(map(_size, nodes))):
            bounded = [_bounded(node) for node in nodes]
            taken = await self.sessions.import_nodes(key, bounded, now=self.clock.now())
        self.episodes.forget(key)
        self.said(key)
        return taken

    async def erase(self, key: SessionKey, *, by: str, dry_run: bool = False) -> Erased:
        """Raises NotFound, and Busy while a message of the session is not answered yet."""
        now = self.clock.now()
        erased = await self.sessions.erase(key, by=by, dry_run=dry_run, now=now)
        if not dry_run:
            self.episodes.forget(key)
            self.forgotten(key)
            log.info("conversation erased", extra={"by": by, "tombstone": erased.tombstone})
        return erased


def _size(node: Node) -> int:
    message = node.message
    texts = (message.text, *(call.arguments for call in message.tool_calls))
    return sum(map(size_of, texts)) + (size_of(message.result.content) if message.result else 0)


def _bounded(node: Node) -> Node:
    """With a boundary around the result that it holds, as if a tool of ours had given it."""
    result = node.message.result
    if result is None:
        return node
    message = replace(node.message, result=replace(result, boundary=new_boundary()), kept={})
    more = message_tokens(message) - message_tokens(node.message)
    return replace(node, message=message, token_count=node.token_count + more)


@dataclass(frozen=True, slots=True)
class Front:
    """Reads go straight to the store's ports; everything that changes something has a method."""

    agents: Mapping[AgentId, AgentDef]
    router: Router
    reception: MessageIntake
    live: LiveRuns
    inbox: Inbox
    sessions: SessionStore
    episodes: Episodes
    souls: Souls
    plans: Plans
    clock: Clock
    upkeep: Upkeep

    async def run(self, run_id: str) -> LiveRun | RunRecord:
        """A run, live or ended; raises NotFound."""
        live = self.live.find(run_id)
        if live is not None:
            return live
        record = await self.inbox.find_run(RunId(run_id))
        # It may have been accepted, or have ended, while the store was asked.
        live = self.live.find(run_id)
        if live is not None:
            return live
        if record is None:
            raise NotFound(f"run {run_id[:64]!r}")
        return record

    def abort(self, run: LiveRun, *, at_once: bool) -> None:
        """Stops a run; one that is still waiting ends as soon as its turn comes, and one that a
        turn answers together with others stops that turn."""
        self.reception.lines.stop(run, at_once=at_once)

    async def node(self, key: SessionKey, node_id: str) -> Node:
        """A node of this session by id or label; raises NotFound."""
        node = await self.sessions.node(key, node_id)
        if node is None:
            raise NotFound(f"node {node_id[:64]!r}")
        return node

    async def move_head(self, key: SessionKey, node_id: str, *, label: str | None = None) -> NodeId:
        """The next message grows from that node. Raises NotFound, or Conflict when a message was
        answered meanwhile."""
        node = await self.node(key, node_id)
        record = await self.sessions.find_session(key)
        expected = record.head if record is not None else None
        moved = await self.sessions.move_head(key, node.id, expected=expected, label=label)
        if not moved:
            raise Conflict("HEAD has moved meanwhile; look at the session and try again")
        self.episodes.forget(key)
        return node.id


CHANNEL = "api"  # of what is asked: conversations are those of POST /api/chat
LATE = "The agent reached its time limit. What there is:\n"
AWAY = "The gateway's store cannot commit at the moment; nothing was accepted. Try again later."


@dataclass(frozen=True, slots=True)
class ServedDesk:
    """Implements the Desk port. `agent` has what is served for its tools."""

    front: Front
    gate: Gate
    agent: AgentDef
    encode: Encode
    decode: Decode
    ids: Ids

    def offered(self, client: Client) -> Sequence[ToolSpec]:
        return self.gate.offered(self._agent_for(client))

    def agents(self, client: Client) -> Sequence[AgentId]:
        at = Address(CHANNEL, client.principal)
        return [
            agent
            for agent in self.front.agents
            if client.agents is None or agent in client.agents
            if self.front.router.answers(agent, at)
        ]

    async def call(self, client: Client, name: str, arguments: Mapping[str, object]) -> Served:
        call = ToolCall(self.ids.new(), name, self.encode(arguments).decode())
        key = SessionKey(self.agent.id, "mcp", client.principal)
        person = speaker(CHANNEL, client.principal, client.principal)  # as one who chats is known
        scope = ToolScope(key, RunId(f"r_{call.id}"), person)
        result = await self.gate.call(self._agent_for(client), call, scope)
        return Served(result.content, result.is_error)

    async def ask(
        self, client: Client, message: str, *, agent: str | None, conversation: str | None
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

    async def _answer(self, client: Client, inbound: Inbound) -> Served:
        reached, asked = self.agents(client), inbound.requested_agent
        known = f"Agents: {', '.join(reached) or 'none'}."
        if asked is not None and asked not in reached:
            return Served(f"There is no agent {asked[:64]!r}. {known}", is_error=True)
        if self.front.router.resolve(inbound.address, requested=asked).agent_id not in reached:
            told = "The agent that answers there is out of your reach; name another."
            return Served(f"{told} {known}", is_error=True)
        accepted = await self.front.reception.accept(inbound)
        run_id: str = accepted.run_id
        events = await whole(await self.front.run(run_id), self.decode)
        while "merged_into" in events[-1]:  # one turn answers it together with a later message
            run_id = events[-1]["merged_into"]
            events = await whole(await self.front.run(run_id), self.decode)
        end = events[-1]
        is_late = end.get("reason") == "timeout"
        text = end["message"] if end["type"] == "error" else spoken(events)
        facts = {"conversation_id": inbound.address.peer, "run_id": run_id}
        return Served(
            f"{LATE}{text}" if is_late else text,
            is_error=is_late or end["type"] == "error",
            facts={"response": text, **facts},
        )

    def _agent_for(self, client: Client) -> AgentDef:
        """Whoever does not reach the agent has none of its tools."""
        return self.agent if self.agent.id in self.agents(client) else replace(self.agent, tools=())
