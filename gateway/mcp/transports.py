"""Transports to MCP servers: HTTP through the gateway's client, or a local program.

A program starts without a shell, and its end includes its descendants. The SDK's own transport has no
bound for a line, leaves descendants running after a clean exit, and writes stderr to a file.
"""

import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import anyio
import httpx2
import mcp_types as types
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage

from gateway.codec import ValueCount
from gateway.domain.mcp import DEPTH_HEADER, McpServerDef
from gateway.domain.ports import Clock, Http, HttpAnswer, HttpCall, HttpFailed
from gateway.domain.scrubbing import scanner

# ------------------------------------------------------------------------------- sizes of messages
MOST_BYTES = 16 * 1024 * 1024
MOST_VALUES = 50_000  # reading them takes at most a quarter of a second


class OverlongAnswer(Exception):
    """An answer exceeds a bound; the text names it."""


class MessageSize:
    """The size of an incoming JSON message: its bytes and the approximate number of its values."""

    def __init__(self) -> None:
        self._bytes, self._count = 0, ValueCount(MOST_VALUES)

    def add(self, data: bytes) -> None:
        """Raises OverlongAnswer."""
        self._bytes += len(data)
        check_size(self._bytes)
        self._count.add(data)
        if self._count.is_over:
            raise OverlongAnswer(f"more than {MOST_VALUES} values")


def check_size(size: int) -> None:
    """Raises OverlongAnswer."""
    if size > MOST_BYTES:
        raise OverlongAnswer(f"more than {MOST_BYTES} bytes")


# -------------------------------------------------------------------------------------------- HTTP
IDLE_S = 300.0
NOTICE_S = 2.0  # for notifications, because the SDK sends no other message meanwhile
SESSION = "mcp-session-id"
_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_LEFT_OUT = {"set-cookie", "set-cookie2"}


@dataclass(slots=True)
class RequestState:
    """The state of one call's request on the wire."""

    is_begun: bool = False
    is_lost: bool = False  # no complete answer arrived
    is_unsent: bool = False  # the server did not execute it
    status: int = 0  # of the answer to a request within a session
    too_much: str | None = None  # the exceeded bound of the answer

    @property
    def is_done(self) -> bool | None:
        """False if the server did not execute the request; None if it may have."""
        return False if self.is_unsent or self.status == 404 else None

    def has_no_session(self, *, is_vague: bool) -> bool:
        """True if the server has forgotten the session; `is_vague` says that the error has the
        SDK's general code."""
        return self.status == 404 or (self.status == 400 and is_vague)


# The user of a call, its `traceparent`, and its request.
current_user: ContextVar[str | None] = ContextVar("user", default=None)
current_trace: ContextVar[str | None] = ContextVar("trace", default=None)
current_request: ContextVar[RequestState | None] = ContextVar("request", default=None)


class HttpTransport(httpx2.AsyncBaseTransport):
    """HTTP without proxies, cookies and compression. Sends `headers` and the user of each call."""

    def __init__(self, http: Http, url: str, headers: Mapping[str, str], user_header: str) -> None:
        self._http, self._origin = http, _origin(httpx2.URL(url))
        self._headers, self._user_header = dict(headers), user_header

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if _origin(request.url) != self._origin:
            raise httpx2.UnsupportedProtocol("the URL is of another server", request=request)
        headers, body = self._headers_of(request), await request.aread()
        is_notice = request.method == "DELETE" or b'"method":"notifications/' in body[:64]
        idle_s = NOTICE_S if is_notice else IDLE_S
        call = HttpCall(request.method, str(request.url), headers, body, idle_timeout_s=idle_s)
        state = _claim_state() if request.method == "POST" else None
        try:
            answer = await self._http.send(call)
        except HttpFailed as error:
            return _failed_answer(request, error, state)
        if state is not None and SESSION in headers:
            state.status = answer.status
        kept = {name: text for name, text in answer.headers.items() if name not in _LEFT_OUT}
        if kept.pop("content-encoding", "identity") != "identity":
            answer.close()
            raise httpx2.RemoteProtocolError("the server compresses its answer without a request")
        is_events = kept.get("content-type", "").startswith("text/event-stream")
        stream = _Body(answer, state, is_events=is_events)
        return httpx2.Response(answer.status, headers=kept, stream=stream, request=request)

    def _headers_of(self, request: httpx2.Request) -> dict[str, str]:
        headers = {**request.headers, **self._headers, "accept-encoding": "identity"}
        headers[DEPTH_HEADER] = "1"
        if (name := current_user.get()) is not None:
            headers[self._user_header] = quote(name, safe=_VISIBLE)
        if (trace := current_trace.get()) is not None:
            headers["traceparent"] = trace
        return headers


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: HttpAnswer, state: RequestState | None, *, is_events: bool) -> None:
        self._answer, self._state, self._is_events = answer, state, is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = MessageSize()
        try:
            while data := await self._answer.read_some():
                size.add(data)
                if self._is_events and (b"\n\n" in data or b"\r\n\r\n" in data):
                    size = MessageSize()  # another message begins
                yield data
        except (HttpFailed, OverlongAnswer) as error:
            if self._state is not None:
                self._state.is_lost = True
                self._state.too_much = str(error) if isinstance(error, OverlongAnswer) else None
            raise httpx2.StreamError(str(error)) from error

    async def aclose(self) -> None:
        self._answer.close()


def _claim_state() -> RequestState | None:
    """Returns the state of the current call for its first request; None for later requests."""
    state = current_request.get()
    if state is None or state.is_begun:
        return None
    state.is_begun = True
    return state


def _failed_answer(
    request: httpx2.Request, error: HttpFailed, state: RequestState | None
) -> httpx2.Response:
    """Returns a 502 for a failed call, because an exception would end the connection and the calls
    of other people. Raises ConnectError outside of a call."""
    if current_request.get() is None:
        raise httpx2.ConnectError(str(error), request=request) from error
    if state is not None:
        state.is_lost, state.is_unsent = True, not error.sent
    return httpx2.Response(502, request=request)


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


# ---------------------------------------------------------------------------------------- programs
log = logging.getLogger(__name__)

LONGEST_SAID = 500  # characters of a line in the log
MOST_SAID = 100  # lines a minute
_ID = re.compile(rb'"id": ?([0-9]{1,15})[,}]')  # at the start or the end of a message
_STOP_S = 2.0  # for each step of stopping a program
# Its stdin ends with the gateway; $0 is the process group to kill.
_WATCH = f'read _; sleep {_STOP_S:g}; kill -9 "-$0"'

In = MemoryObjectSendStream[SessionMessage | Exception]
Out = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


@asynccontextmanager
async def run_program(
    server: McpServerDef, folder: Path, clock: Clock, on_end: Callable[[str], None]
) -> AsyncIterator[Streams]:
    """Runs the program of a server. `on_end` gets the reason if the program ends by itself. Raises
    OSError if the program cannot be started."""
    own = {name: value.reveal() for name, value in server.env.items()}
    process = await anyio.open_process(
        [server.command or "", *server.args],
        env=get_default_environment() | own,
        cwd=folder,
        start_new_session=True,
    )
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    output = _ErrorOutput(server.name, clock, tuple(own.values()))
    async with anyio.create_task_group() as group:
        group.start_soon(_read_output, process, incoming, on_end)
        group.start_soon(_write_input, process, outgoing, on_end)
        group.start_soon(output.listen, process)
        try:
            async with _kill_after_gateway(process):
                yield received, sent
        finally:
            with anyio.CancelScope(shield=True):
                received.close()
                sent.close()
                await _stop(process)
            group.cancel_scope.cancel()


@asynccontextmanager
async def _kill_after_gateway(process: Process) -> AsyncIterator[None]:
    """Kills a program that ignores the end of its input if the gateway itself was killed."""
    if sys.platform == "win32":
        yield
        return
    nowhere = subprocess.DEVNULL
    command = ["/bin/sh", "-c", _WATCH, str(process.pid)]
    watch = await anyio.open_process(
        command, env={}, stdout=nowhere, stderr=nowhere, start_new_session=True
    )
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            watch.kill()
            await watch.aclose()


async def _read_output(process: Process, incoming: In, on_end: Callable[[str], None]) -> None:
    assert process.stdout is not None
    why = "it ended"
    async with incoming:
        try:
            async for line in _lines(process.stdout):
                await _pass_on(line, incoming)
        except OverlongAnswer as error:
            why = f"it wrote a line of {error}"
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the client is closed
        on_end(why)


async def _lines(stream: ByteReceiveStream) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for data in stream:
        rest += data
        if b"\n" in data:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield bytes(line)
        check_size(len(rest))


async def _pass_on(line: bytes, incoming: In) -> None:
    """Passes a message on and drops other output. An overlong message becomes an error of its
    request."""
    try:
        MessageSize().add(line)
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except OverlongAnswer as error:
        if (found := _ID.search(line, 0, 64) or _ID.search(line, max(0, len(line) - 64))) is None:
            return
        problem = types.ErrorData(code=types.INTERNAL_ERROR, message=f"the answer has {error}")
        message = types.JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=problem)
    except ValueError:
        return
    await incoming.send(SessionMessage(message))


async def _write_input(process: Process, outgoing: Out, on_end: Callable[[str], None]) -> None:
    assert process.stdin is not None
    try:
        async with outgoing:
            async for one in outgoing:
                text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode() + b"\n")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        on_end("it no longer reads its input")


class _ErrorOutput:
    """Logs the stderr of a program without the program's secrets, at most MOST_SAID lines a minute."""

    def __init__(self, server: str, clock: Clock, secrets: Sequence[str]) -> None:
        self._server, self._clock = server, clock
        self._scanner = scanner(tuple((secret, "***") for secret in secrets))
        self._minute, self._count = 0, 0

    async def listen(self, process: Process) -> None:
        assert process.stderr is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._read(process.stderr)

    async def _read(self, stream: ByteReceiveStream) -> None:
        rest = b""
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._note(line)
            rest = rest[: 8 * LONGEST_SAID]  # _note cuts a longer line anyway

    def _note(self, line: bytes) -> None:
        minute = int(self._clock.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._count = minute, 0
        self._count += 1
        if self._count > MOST_SAID:
            return
        text = self._scanner.text(line.decode("utf-8", "replace"))
        extra = {"server": self._server, "line": text[:LONGEST_SAID]}
        log.debug("mcp_server_output", extra=extra)


async def _stop(process: Process) -> None:
    """Closes the program's input, then terminates, then kills the program and its descendants."""
    assert process.stdin is not None
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.aclose()
    with anyio.move_on_after(_STOP_S):
        await process.wait()
    if sys.platform == "win32":
        if process.returncode is None:
            process.kill()
    else:
        await terminate_posix_process_tree(process, _STOP_S)
    with anyio.move_on_after(_STOP_S):
        await process.aclose()
