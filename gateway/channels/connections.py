"""Connections that the gateway opens to platforms: long polls and WebSockets, one task a channel.

A WebSocket follows the frame rules of the adapter's description. Its session spans connections.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import anyio
from anyio.abc import TaskGroup
from pydantic_core import from_json, to_json

from gateway.channels.adapter_json import read_json, readable
from gateway.channels.adapters import Act, CallRecipe, Poll, Socket, Webhook
from gateway.channels.intake import OpenChannel, Received
from gateway.channels.recipes import (
    Arrived,
    RecipeUnfilled,
    TryAgain,
    Values,
    at,
    fill_call,
    fill_frame,
    fill_url,
    fits,
    plain,
    read_answer,
)
from gateway.domain.channels import ChannelMemo
from gateway.domain.errors import Denied, GatewayError
from gateway.domain.ports import (
    ChannelStore,
    ClientSocket,
    Clock,
    Fetch,
    Fetched,
    FetchGrant,
    HttpFailed,
    SocketClient,
    SocketRequest,
)
from gateway.domain.supervision import backoff_s

log = logging.getLogger(__name__)

LONGEST_NAMED_S = 3_600.0  # bound of a wait that the platform asks for
STEADY_S = 60.0  # after a connection of this length the backoff starts at its shortest wait
READY_S = 30.0  # a session must be ready within this time
MOST_SENT, SENT_WITHIN_S = 120, 60.0  # frames without acknowledgements
LONGEST_KEPT = 2_048  # characters of a value
_SHORTEST_POLL_S = 0.2  # between requests, for a platform that answers at once
_HEARTBEAT_MS = (1_000, 3_600_000)  # bounds of an interval that the platform sets

Kept = dict[str, object]
Work = Callable[[], Awaitable[None]]


class ConnectionEnded(GatewayError):
    """A connection to a platform ended, or was refused. `is_final` means that a retry cannot help."""

    code = "line_lost"
    retryable = True

    def __init__(
        self, why: str, *, retry_after_s: float | None = None, is_final: bool = False
    ) -> None:
        super().__init__(why)
        self.retry_after_s, self.is_final = retry_after_s, is_final


class ReconnectAsked(ConnectionEnded):
    """The platform asked for another connection, which is no failure."""


@dataclass(frozen=True, slots=True)
class ConnectedChannel:
    """An open channel and the dependencies of its transport. `jitter` returns 0 to 1."""

    channel: OpenChannel
    fetch: Fetch
    sockets: SocketClient
    store: ChannelStore
    clock: Clock
    jitter: Callable[[], float]

    @property
    def grant(self) -> FetchGrant:
        """The plugin's grants and all secrets of the channel; only recipes use it."""
        channel = self.channel
        return FetchGrant(channel.adapter.plugin.origins, channel.settings.secrets)

    def memo(self, kept: Mapping[str, object]) -> ChannelMemo:
        """Returns the memo that stores the kept values of the socket."""
        settings = self.channel.settings
        return ChannelMemo(settings.name, settings.account, "socket", to_json(kept).decode())

    async def read_memos(self) -> str:
        """Sets the channel's state to the last commit and returns the JSON of the socket's kept
        values. Raises StoreUnavailable."""
        settings = self.channel.settings
        memos = await self.store.read_memos(settings.name, settings.account)
        found = {memo.slot: memo.text for memo in memos}
        self.channel.state = found.get("adapter", "")
        return found.get("socket", "")

    def values(self) -> Values:
        settings, public = self.channel.settings, self.channel.settings.config.get("public_url")
        is_set = isinstance(public, str)
        url = f"{str(public).rstrip('/')}/webhooks/{settings.name}" if is_set else None
        return Values(self.channel.api_base, url, self.channel.state, settings.config)

    async def ask(self, recipe: CallRecipe, timeout_s: float = 30.0) -> Fetched:
        """Sends the request of a recipe. Raises ConnectionEnded if the platform refuses it,
        RecipeUnfilled, Denied, HttpFailed."""
        request = fill_call(recipe, self.values(), timeout_s)
        fetched = await self.fetch.fetch(request, self.grant)
        answer = read_answer(self.channel.adapter.description.outbound, fetched)
        if not isinstance(answer, Arrived):
            wait_s = answer.after_s if isinstance(answer, TryAgain) else None
            raise ConnectionEnded(answer.why, retry_after_s=wait_s)
        return fetched


# ----------------------------------------------------------------------------------- supervision
async def keep_connected(live: ConnectedChannel) -> None:
    """Runs the transport and restarts it after a loss, with backoff. Returns when only an operator
    can help."""
    health, clock = live.channel.health, live.clock
    work: Work | None = None
    tries = 0
    while True:
        began, count = clock.monotonic(), health.count
        named_s: float | None = None
        try:
            work = work or await _prepare(live)
            await work()
        except (GatewayError, HttpFailed) as error:
            if _is_final(live, error):
                return
            named_s = error.retry_after_s if isinstance(error, ConnectionEnded) else None
        except Exception as error:  # a failure that an adapter causes ends only its connection
            log.exception("channel_failed", extra={"channel": live.channel.settings.name})
            why = f"internal error ({type(error).__name__}); see the log of the gateway"
            health.record_failure("in", why)
        is_steady = clock.monotonic() - began >= STEADY_S and health.count > count
        tries = 1 if is_steady else tries + 1
        jitter = live.jitter()
        wait_s = backoff_s(tries) * jitter
        await clock.sleep(wait_s if named_s is None else min(named_s, LONGEST_NAMED_S) + jitter)


def _is_final(live: ConnectedChannel, error: GatewayError | HttpFailed) -> bool:
    """Logs a loss and records it in the channel's health. True if a retry cannot help."""
    why, health = str(error), live.channel.health
    extra = {"channel": live.channel.settings.name, "why": why}
    match error:
        case ReconnectAsked():
            return False
        case RecipeUnfilled():
            health.end("refused", why)
        case ConnectionEnded() if error.is_final:
            health.end("failing", why)
        case _:
            health.record_failure("in", why)
            log.warning("channel_disconnected", extra=extra)
            return False
    log.error("channel_given_up", extra=extra)
    return True


async def _prepare(live: ConnectedChannel) -> Work:
    kept = await live.read_memos()
    match live.channel.transport:
        case Webhook() as webhook:
            return partial(_stand_by, live, webhook)
        case Poll() as recipe:
            return partial(_poll, live, recipe)
        case Socket() as socket:
            return SocketSession(live, socket, kept).run


async def _stand_by(live: ConnectedChannel, webhook: Webhook) -> None:
    await _set_up(live, webhook.setup)
    live.channel.health.mark_open()
    await anyio.sleep_forever()


async def _set_up(live: ConnectedChannel, recipe: CallRecipe | None) -> None:
    if recipe is None:
        return
    try:
        await live.ask(recipe)
    except RecipeUnfilled as error:
        extra = {"channel": live.channel.settings.name, "why": str(error)}
        log.info("channel_setup_skipped", extra=extra)


async def _poll(live: ConnectedChannel, recipe: Poll) -> None:
    """Polls the platform; commits each answer before the next request. Raises ConnectionEnded,
    HttpFailed, Denied, RecipeUnfilled, and as OpenChannel.receive."""
    await _set_up(live, recipe.setup)
    while True:
        began = live.clock.monotonic()
        # The state in the request is committed with the messages of the last answer.
        answer = await live.ask(recipe.request, recipe.timeout_s)
        got = Received("poll", answer.body, answer.headers, status=answer.status)
        with anyio.CancelScope(shield=True):  # a committed message must also start its turn
            await live.channel.receive(got)
        live.channel.health.record_success("in")
        elapsed_s = live.clock.monotonic() - began
        rest_s = max(recipe.interval_s, _SHORTEST_POLL_S - elapsed_s)
        if rest_s > 0:
            await live.clock.sleep(rest_s)


# ----------------------------------------------------------------------------------- WebSockets
def _may_be_kept(value: object) -> bool:
    """True for a bounded scalar: the store writes the kept values with every event."""
    is_short = isinstance(value, str) and len(value) <= LONGEST_KEPT
    return is_short or isinstance(value, bool | int | float)


class SocketSession:
    """A session that spans connections; each connection resumes it with the `kept` values."""

    def __init__(self, live: ConnectedChannel, recipe: Socket, kept: str = "") -> None:
        self.live, self.recipe = live, recipe
        memo = read_json(kept)
        self.kept: Kept = memo if isinstance(memo, dict) else {}

    async def run(self) -> None:
        """Runs until a connection is lost without a replacement. Raises ConnectionEnded, HttpFailed,
        Denied, RecipeUnfilled, and as OpenChannel.receive."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._connect, group, None)
        except ExceptionGroup as errors:
            first: Exception = errors
            while isinstance(first, ExceptionGroup):
                first = first.exceptions[0]
            raise first from errors

    async def _connect(self, group: TaskGroup, replaces: anyio.CancelScope | None) -> None:
        """Runs one connection to its end. Its first frame closes the connection it `replaces`."""

        def renew() -> None:
            group.start_soon(self._connect, group, scope)

        with anyio.CancelScope() as scope:
            async with self._open() as socket:
                await _Connection(self, socket, renew, replaces).run()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[ClientSocket]:
        live, socket = self.live, None
        async with AsyncExitStack() as stack:

            async def connect(url: str) -> ClientSocket:
                opening = live.sockets.connect(SocketRequest(url), live.grant)
                return await stack.enter_async_context(opening)

            # A resume address without a grant is not used.
            with suppress(Denied):
                if (again := self._resume_url()) is not None:
                    socket = await connect(again)
            if socket is None:
                socket = await connect(await self._first_url())
            try:
                yield socket
            finally:
                with anyio.CancelScope(shield=True):
                    await socket.close(self.recipe.close_code)

    def _resume_url(self) -> str | None:
        """Returns the kept address, with the query of `url` if it has none; None without a kept
        address. Raises Denied."""
        kept = self.kept.get(self.recipe.resume_url or "")
        if not isinstance(kept, str):
            return None
        _, mark, query = (self.recipe.url or "").partition("?")
        url = plain("resume_url", kept)
        return url if "?" in url else f"{url}{mark}{query}"

    async def _first_url(self) -> str:
        recipe = self.recipe
        if recipe.open is None:
            return fill_url(recipe.url or "", self.live.values())
        answer = await self.live.ask(recipe.open)
        url = at(read_json(answer.body), recipe.url_at)
        if not isinstance(url, str):
            raise ConnectionEnded("the platform sent no address to connect to")
        return plain("url", url)


class _Connection:
    """One open WebSocket of a session. The first matching rule handles a frame."""

    def __init__(
        self,
        session: SocketSession,
        socket: ClientSocket,
        renew: Callable[[], None],
        replaces: anyio.CancelScope | None,
    ) -> None:
        self._live, self._recipe, self._kept = session.live, session.recipe, session.kept
        self._values = session.live.values()
        self._socket, self._renew, self._replaces = socket, renew, replaces
        self._group = anyio.create_task_group()
        self._is_renewed = self._is_beating = self._is_unanswered = False
        self._is_ready = not any("ready" in rule.do for rule in self._recipe.frames)
        self._sent: deque[float] = deque(maxlen=MOST_SENT)

    async def run(self) -> None:
        """Runs the connection. Raises an exception group at its end, unless a requested connection
        replaces it."""
        try:
            async with self._group:
                self._group.start_soon(self._require_ready)
                self._start_heartbeat({})
                while (text := await self._socket.receive()) is not None:
                    await self._handle(text)
                raise self._closed(self._socket.close_code)
        except ExceptionGroup as errors:
            is_expected = errors.split((GatewayError, HttpFailed))[1] is None
            if not self._is_renewed or not is_expected:
                raise

    async def _handle(self, text: str) -> None:
        """Handles one frame. Raises RecipeUnfilled, Denied, ConnectionEnded, and as
        OpenChannel.receive."""
        if self._replaces is not None:
            self._replaces.cancel()
            self._replaces = None
        try:
            frame = from_json(readable(text), allow_inf_nan=False)
        except ValueError:
            raise ConnectionEnded("the platform sent a frame that is not JSON") from None
        rule = next((rule for rule in self._recipe.frames if fits(rule.when, frame)), None)
        if rule is None:
            return
        found = {name: at(frame, path) for name, path in rule.keep.items()}
        kept = self._kept | {name: one for name, one in found.items() if _may_be_kept(one)}
        if "event" not in rule.do:  # the values of an event count from its commit
            self._kept.update(kept)
        self._start_heartbeat(kept)
        for act in rule.do:
            await self._act(act, kept, frame, text)

    async def _act(self, act: Act, kept: Kept, frame: object, text: str) -> None:
        live = self._live
        match act:
            case "event":
                await self._receive_event(text, kept, frame)
            case "identify":
                await self._send(self._introduction())
            case "beat":
                await self._send_heartbeat()
            case "alive":
                self._is_unanswered = False
                live.channel.health.record_success("in")
            case "ready":
                self._is_ready = True
                if kept:
                    await live.store.write_memos(live.memo(kept))
                live.channel.health.record_success("in")
            case "reconnect":
                raise ReconnectAsked("the platform asked for another connection")
            case "renew" if not self._is_renewed:
                self._is_renewed = True
                self._renew()
            case "forget":
                self._kept.clear()

    async def _receive_event(self, text: str, kept: Kept, frame: object) -> None:
        """Commits an event together with the kept values, then acknowledges it."""
        live = self._live
        memo = live.memo(kept) if kept != self._kept else None
        with anyio.CancelScope(shield=True):  # a committed message must also start its turn
            await live.channel.receive(Received("socket", text.encode()), memo)
        self._kept.update(kept)
        live.channel.health.record_success("in")
        if self._recipe.acknowledge is not None:
            try:
                values = replace(self._values, frame=frame)
                acknowledgement = fill_frame(self._recipe.acknowledge, values)
            except RecipeUnfilled:
                return  # a frame without an id needs no acknowledgement
            await self._socket.send(acknowledgement)

    async def _send(self, text: str) -> None:
        now = self._live.clock.monotonic()
        if len(self._sent) == MOST_SENT and now - self._sent[0] < SENT_WITHIN_S:
            raise ConnectionEnded(f"the platform requested over {MOST_SENT} frames in a minute")
        self._sent.append(now)
        await self._socket.send(text)

    def _introduction(self) -> str:
        """Returns the frame that resumes the session if its values are kept, else the frame that
        starts a new one."""
        values = replace(self._values, kept=self._kept)
        if self._recipe.resume is not None:
            try:
                return fill_frame(self._recipe.resume, values)
            except RecipeUnfilled as error:
                if not error.name.startswith("kept."):
                    raise
        return fill_frame(self._recipe.identify or {}, values)

    def _start_heartbeat(self, kept: Kept) -> None:
        heartbeat = self._recipe.heartbeat
        if heartbeat is None or self._is_beating:
            return
        named = kept.get(heartbeat.kept_ms) if heartbeat.kept_ms is not None else None
        own_ms = None if heartbeat.every_s is None else heartbeat.every_s * 1_000
        every_ms = named if isinstance(named, int | float) else own_ms
        if every_ms is not None:
            self._is_beating = True
            every_ms = min(max(every_ms, _HEARTBEAT_MS[0]), _HEARTBEAT_MS[1])
            self._group.start_soon(self._keep_beating, every_ms / 1_000)

    async def _keep_beating(self, every_s: float) -> None:
        await self._live.clock.sleep(every_s * self._live.jitter())
        while True:
            if self._is_unanswered:
                raise ConnectionEnded("the platform did not answer a heartbeat")
            heartbeat = self._recipe.heartbeat
            self._is_unanswered = heartbeat is not None and heartbeat.needs_answer
            await self._send_heartbeat()
            await self._live.clock.sleep(every_s)

    async def _send_heartbeat(self) -> None:
        """Sends the heartbeat; a value that is not kept yet becomes null."""
        if (heartbeat := self._recipe.heartbeat) is not None:
            values = replace(self._values, kept=self._kept)
            await self._send(fill_frame(heartbeat.frame, values, null_for="kept."))

    def _closed(self, code: int | None) -> ConnectionEnded:
        if code in self._recipe.fresh_codes:
            self._kept.clear()
        reason = self._recipe.reasons.get(str(code))
        why = f"the platform closed the connection (code {code})"
        why = f"{reason} ({why})" if reason else why
        return ConnectionEnded(why, is_final=code in self._recipe.fatal_codes)

    async def _require_ready(self) -> None:
        if self._is_ready:
            return
        await self._live.clock.sleep(READY_S)
        if not self._is_ready:
            raise ConnectionEnded(f"the platform did not start the session within {READY_S:g} s")
