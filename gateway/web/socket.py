"""The `/ws` endpoint: authentication, one JSON-RPC message a frame, calls side by side, pushed events."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVarTuple

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import checkpoint

from gateway.api.errors import AnswerTooLarge, NotHere, TooManyFailures, Unauthorized, delay_of
from gateway.api.operating import Auth, Introduced
from gateway.domain.errors import Busy, GatewayError
from gateway.domain.inbox import RunRecord
from gateway.domain.supervision import contain, survives
from gateway.sessions.runs import LiveRun
from gateway.web import rpc
from gateway.web.identity import Identities, Identity, Principal
from gateway.web.settings import WebSettings
from gateway.web.wire.connections import Endpoint, Headers, OriginGuard, Visitor
from gateway.web.wire.frames import LAGGING, TOO_MANY, Wire
from gateway.web.wire.http import Admission

log = logging.getLogger(__name__)

PATH = "/ws"
UNAUTHORIZED = 4401
NOT_UTF8 = 1007
KEPT_IDLE = 256  # workers
BUSY_S = 0.1  # between two requests for a worker
CALLS, GUESS = "calls", "guess"  # reasons to pause reading
REPLAYED_AT_ONCE = 200  # events before other tasks get their turn
CHAT_EVENT = rpc.NOTIFICATION.replace(b"%b", b"chat.event", 1)
Job = tuple[Callable[..., Awaitable[None]], tuple[Any, ...]]
Args = TypeVarTuple("Args")
_BUSY = Busy("too many running calls; this one was not started")
_TOO_LARGE = AnswerTooLarge("the answer is too large; ask for less at once")
_BATCH_TOO_LARGE = AnswerTooLarge(
    "the answers of this batch are too large; send the requests one by one"
)


class Workers:
    """Reusable tasks: a call that waits costs a wake-up, not a new task. Jobs start in the order of `submit`; their
    tasks live in the group of `run`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._group: TaskGroup | None = None
        self._idle: list[asyncio.Future[Job]] = []
        self._busy = 0
        self._became_idle: anyio.Event | None = None  # None: nothing waits for it

    @property
    def busy(self) -> int:
        return self._busy

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Runs jobs until it is cancelled."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                task_status.started()
                await anyio.sleep_forever()
        finally:
            self._group = None
            self._idle.clear()

    def submit(self, work: Callable[[*Args], Awaitable[None]], *args: *Args) -> bool:
        """Starts a job. Returns False, and starts nothing, if too many jobs run."""
        if self._group is None or self._busy >= self._limit:
            return False
        self._busy += 1
        while self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result((work, args))
                return True
        self._group.start_soon(self._work, (work, args), name="rpc worker")
        return True

    async def wait_until_idle(self) -> None:
        """Returns once no job runs."""
        while self._busy:
            self._became_idle = anyio.Event()
            await self._became_idle.wait()

    async def _work(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await contain("rpc_call", partial(job[0], *job[1]))
            finally:
                self._busy -= 1
                if not self._busy and self._became_idle is not None:
                    self._became_idle.set()
            if len(self._idle) >= KEPT_IDLE:
                return
            waiting: asyncio.Future[Job] = loop.create_future()
            self._idle.append(waiting)
            try:
                job = await waiting
            except asyncio.CancelledError as error:
                if not survives(error):
                    raise
                if waiting.cancelled():
                    return  # `submit` starts another task when it needs one
                job = waiting.result()


class Sockets:
    """All WebSockets of the gateway: admits them and closes them when their token ends."""

    def __init__(
        self,
        settings: WebSettings,
        registry: rpc.Registry,
        guard: OriginGuard,
        identities: Identities,
    ) -> None:
        self.identities = identities
        self.workers = Workers(settings.max_calls_total)
        self.connections: set[Connection] = set()
        self.renew(settings, registry, guard)
        identities.on_change(self.close_revoked)

    def renew(self, settings: WebSettings, registry: rpc.Registry, guard: OriginGuard) -> None:
        """Applies other settings and methods to later handshakes and calls, also of open sockets."""
        self.settings, self.registry, self._guard = settings, registry, guard

    def admit(self, path: str, headers: Headers, client: Endpoint, server: Endpoint) -> Admission:
        """Raises HostRefused, OriginRefused, NotHere, Unauthorized, TooManyFailures."""
        visitor = self._guard.admit(headers, client, server)
        identity = self.identities.identify(visitor)
        if path != PATH:
            raise NotHere if identity else Unauthorized
        settings = self.settings
        max_frame = settings.max_frame_bytes if identity else settings.pre_auth_frame_bytes
        return Admission(max_frame, partial(self._open, visitor, identity))

    def _open(self, visitor: Visitor, identity: Identity | None, wire: Wire) -> None:
        wire.listen(Connection(self, wire, visitor, identity))

    def close_revoked(self) -> None:
        """Closes the sockets whose token is no longer valid."""
        for one in tuple(self.connections):
            if one.identity is not None and not self.identities.is_valid(one.identity):
                one.wire.close(UNAUTHORIZED, "your token is no longer valid")


@dataclass(slots=True, eq=False)
class Connection:
    """An open socket with its identity and its calls. Without an identity the peer must call `auth` first. Calls
    start in the order of their frames and run side by side. While too many run, the socket is not read."""

    sockets: Sockets
    wire: Wire
    visitor: Visitor
    identity: Identity | None
    peer: "SocketPeer | None" = None
    _deadline: asyncio.TimerHandle | None = None  # of authentication
    _late: asyncio.TimerHandle | None = None  # of a delayed refusal
    _in_flight: int = 0  # calls
    _unstarted: int = 0  # submitted calls that have not begun: later calls must not overtake them

    def __post_init__(self) -> None:
        self.sockets.connections.add(self)
        if self.identity is not None:
            self.wire.trust()
            self.peer = self._new_peer(self.identity.principal)
        else:
            timeout_s, close = self.sockets.settings.pre_auth_timeout_s, self.wire.close
            self._deadline = asyncio.get_running_loop().call_later(
                timeout_s, close, LAGGING, "authenticate first"
            )

    def _new_peer(self, principal: Principal) -> "SocketPeer":
        return SocketPeer(self.wire, principal, self.sockets.workers, self.visitor.traceparent)

    # callbacks of the wire

    def message_received(self, data: bytes) -> None:
        if self._late is not None:
            return
        try:
            text = data.decode()
        except UnicodeDecodeError:
            self.wire.close(NOT_UTF8, "a text frame must be UTF-8")
            return
        settings, peer = self.sockets.settings, self.peer
        frame = rpc.read_frame(text, max_depth=settings.json_depth, max_batch=settings.max_batch)
        if peer is None or (type(frame) is rpc.Request and frame.method == "auth"):
            self._authenticate(frame)
            return
        self._start(frame, peer)

    def _start(self, frame: rpc.Frame, peer: "SocketPeer") -> None:
        """Answers a call that waits for nothing at once; queues other calls for a worker."""
        work = frame if isinstance(frame, tuple) else self._prepare(frame, peer)
        if isinstance(work, bytes):
            if work:
                self.wire.out.send(work)
        elif isinstance(work, rpc.Prepared) and not (work.waits or self._unstarted):
            self._send(work.request, rpc.answer_sync(work))
            rpc.run_all(work.call.after_answer)
        elif self.sockets.workers.submit(self._work, work, peer):
            self._in_flight += 1
            self._unstarted += 1
            if self._in_flight >= self.sockets.settings.max_calls:
                self.wire.pause_reading(CALLS)
        else:
            id_ = None if isinstance(work, tuple) else work.request.id
            self.wire.out.send(rpc.encode_error(id_, _BUSY))

    def room_available(self) -> None:
        if self.peer is not None:
            self.peer.room_available()

    def socket_closed(self) -> None:
        self.sockets.connections.discard(self)
        for timer in (self._deadline, self._late):
            if timer is not None:
                timer.cancel()
        if self.peer is not None:
            self.peer.end()

    # authentication

    def _authenticate(self, frame: rpc.Frame) -> None:
        """Answers `auth`, the only method without an identity. A failure closes the socket."""
        id_ = None if isinstance(frame, tuple) else frame.id
        try:
            if not isinstance(frame, rpc.Request) or frame.method != "auth":
                raise Unauthorized
            token = rpc.validate(Auth, frame.params).token
            self.identity = self.sockets.identities.authenticate(token, self.visitor)
        except GatewayError as error:
            self._refuse(rpc.encode_error(id_, error), error)
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self.wire.trust()
        self.wire.limit_messages(self.sockets.settings.max_frame_bytes)
        principal = self.identity.principal
        if self.peer is None or self.peer.principal != principal:
            if self.peer is not None:
                self.peer.end()
            self.peer = self._new_peer(principal)
        if not frame.is_notification:
            self.wire.out.send(rpc.encode_result(id_, _introduce(principal)))

    def _refuse(self, answer: bytes, error: GatewayError) -> None:
        """Sends a refusal and closes the socket, later if the token was guessed."""
        code = TOO_MANY if isinstance(error, TooManyFailures) else UNAUTHORIZED

        def refuse() -> None:
            self.wire.out.send(answer)
            self.wire.close(code, "authenticate first")

        if delay_s := delay_of(error):
            self.wire.pause_reading(GUESS)
            self._late = asyncio.get_running_loop().call_later(delay_s, refuse)
        else:
            refuse()

    # calls

    def _prepare(self, item: rpc.Item, peer: "SocketPeer") -> rpc.Prepared | bytes:
        """Returns a call that may run, else the refusal to send; b"" for a notification."""
        if isinstance(item, rpc.Malformed):
            return rpc.encode_error(item.id, item.error)
        try:
            return self.sockets.registry.prepare(item, peer.principal, peer)
        except GatewayError as error:
            return b"" if item.is_notification else rpc.encode_error(item.id, error)

    async def _work(self, work: rpc.Prepared | tuple[rpc.Item, ...], peer: "SocketPeer") -> None:
        """Answers a call, or the calls of a batch in order in one frame."""
        self._unstarted -= 1
        try:
            if isinstance(work, rpc.Prepared):
                self._send(work.request, await rpc.answer(work))
                callbacks = work.call.after_answer
            else:
                callbacks = await self._answer_batch(work, peer)
            if callbacks:
                rpc.run_all(callbacks)
        finally:
            self._in_flight -= 1
            if self._in_flight == self.sockets.settings.max_calls - 1:
                self.wire.resume_reading(CALLS)

    async def _answer_batch(
        self, items: tuple[rpc.Item, ...], peer: "SocketPeer"
    ) -> list[Callable[[], None]]:
        """Answers a batch. Returns the callbacks of its calls."""
        answers: list[bytes] = []
        callbacks: list[Callable[[], None]] = []
        # No answer is larger than this, so all answers together are hardly twice as large.
        room = most = self.sockets.settings.send_queue_bytes // 2
        for item in items:
            if room < 0 and isinstance(item, rpc.Request) and not item.is_notification:
                answers.append(rpc.encode_error(item.id, _BATCH_TOO_LARGE))
                continue
            work = self._prepare(item, peer)
            if isinstance(work, bytes):
                answer = work
            else:
                answer = await rpc.answer(work)
                callbacks += work.call.after_answer
                if work.request.is_notification:
                    answer = b""
                elif len(answer) > most:
                    answer = rpc.encode_error(work.request.id, _BATCH_TOO_LARGE)
            if answer:
                answers.append(answer)
                room -= len(answer)
        if answers:
            self.wire.out.send(b"[%b]" % b",".join(answers))
        return callbacks

    def _send(self, request: rpc.Request, payload: bytes) -> None:
        """Sends an answer, or an error in its place if it is larger than the send queue."""
        if request.is_notification:
            return
        if len(payload) > self.sockets.settings.send_queue_bytes:
            payload = rpc.encode_error(request.id, _TOO_LARGE)
        self.wire.out.send(payload)


def _introduce(principal: Principal) -> Introduced:
    agents = None if principal.agents is None else sorted(principal.agents)
    return Introduced(principal=principal.name, scopes=sorted(principal.scopes), agents=agents)


@dataclass(slots=True, eq=False)
class SocketPeer:
    """A principal on a socket. It gets nothing once the socket has closed or belongs to another principal. Methods
    and listeners never wait for it, except in `replay`."""

    wire: Wire
    principal: Principal
    workers: Workers
    traceparent: str | None = None
    is_open: bool = True
    streams: set["RunStream"] = field(default_factory=set)
    _callbacks: dict[int, Callable[[], None]] = field(default_factory=dict)
    _behind: dict[str, tuple[rpc.FindRun, int]] = field(default_factory=dict)  # last event sent
    _is_catching_up: bool = False

    def notify(self, method: str, params_json: bytes) -> None:
        if self.is_open:
            self.wire.out.push(rpc.NOTIFICATION % (method.encode(), params_json))

    def stream_run(self, run: LiveRun, find: rpc.FindRun, *, after_seq: int = 0) -> None:
        """Sends the events after `after_seq`, then new ones until the run or the peer ends."""
        seq = max(after_seq, run.first_seq - 1)
        for event in run.events_after(seq, len(run.events)) if run.events else ():
            if self.is_open and not self.wire.out.send(CHAT_EVENT % event, if_room=True):
                self.catch_up(run.run_id, find, seq)
                return
            seq += 1
        if self.is_open and not run.ended:
            stream = RunStream(self, run, find)
            forget = partial(self.streams.discard, stream)
            self.streams.add(stream)
            stream.stop = run.listen(stream, after_seq=seq, owner=self, replaced=forget)

    async def replay(self, run: rpc.Run, find: rpc.FindRun, after_seq: int) -> bool:
        if isinstance(run, RunRecord):
            self._behind.pop(run.entry.new.run_id, None)
            events = run.log.split(b"\n") if run.log else []
            await self._send_events(events[max(0, after_seq + 1 - run.first_seq) :])
            return False
        self._behind.pop(run.run_id, None)
        seq = after_seq
        while missed := run.events_after(seq, REPLAYED_AT_ONCE):
            seq = max(seq, run.first_seq - 1) + len(missed)
            await self._send_events(missed)
            await checkpoint()
        self.stream_run(run, find, after_seq=seq)
        return not run.ended

    async def _send_events(self, events: Sequence[bytes]) -> None:
        for place, event in enumerate(events, 1):
            while self.is_open and not self.wire.out.send(CHAT_EVENT % event, if_room=True):
                await self.wire.wait_for_room()
            if place % REPLAYED_AT_ONCE == 0:
                await checkpoint()

    def catch_up(self, run_id: str, find: rpc.FindRun, after_seq: int) -> None:
        """Sends the events after `after_seq` as soon as the peer has read."""
        if self.is_open:
            self._behind[run_id] = (find, after_seq)

    def room_available(self) -> None:
        """Starts one worker for all runs that this peer lags behind, so that it starves no other socket."""
        if not self._behind or self._is_catching_up or not self.is_open:
            return
        self._is_catching_up = self.workers.submit(self._catch_up)
        if not self._is_catching_up:
            asyncio.get_running_loop().call_later(BUSY_S, self.room_available)

    async def _catch_up(self) -> None:
        try:
            while self._behind and self.is_open:
                await self.wire.wait_for_room()
                run_id = next(iter(self._behind))
                find, after_seq = self._behind.pop(run_id)
                await self.replay(await find(run_id), find, after_seq)
        except GatewayError as error:
            log.warning("reader_not_caught_up", extra={"why": str(error)})
            self.wire.close(LAGGING, "you read too slowly; resume from the last seq")
        finally:
            self._is_catching_up = False

    def on_close(self, callback: Callable[[], None]) -> Callable[[], object]:
        """Calls `callback` when the peer ends, at once if it has ended. Returns a function that removes it."""
        if not self.is_open:
            callback()
            return _nothing
        key = id(callback)  # a callback is called once, also if it was added twice
        self._callbacks[key] = callback
        return partial(self._callbacks.pop, key, None)

    def end(self) -> None:
        self.is_open = False
        self._behind.clear()
        callbacks = tuple(self._callbacks.values())
        self._callbacks.clear()
        for stream in self.streams:
            stream.stop()
        self.streams.clear()
        rpc.run_all(callbacks)


@dataclass(slots=True, eq=False)
class RunStream:
    """Sends the events of a run to a peer until either of them ends. Nothing is queued for a slow reader: it catches
    up from the run's own events."""

    peer: SocketPeer
    run: LiveRun
    find: rpc.FindRun
    stop: Callable[[], None] = lambda: None

    def __call__(self, event: bytes, last: bool) -> None:  # noqa: FBT001  # the shape of a Listener
        peer = self.peer
        if event and peer.is_open and not peer.wire.out.send(CHAT_EVENT % event, if_room=True):
            self.stop()
            run = self.run
            peer.catch_up(run.run_id, self.find, run.first_seq + len(run.events) - 2)
        elif not last:
            return
        peer.streams.discard(self)
        self.stop = _nothing  # else the stream and its stop would refer to each other


def _nothing() -> None: ...
