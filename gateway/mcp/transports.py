"""How an MCP server is reached: HTTP by the gateway's own client, or a program of this machine.

A program is started without a shell, and ended with all it started. The SDK's own transport joins a line
of any length in memory, keeps what a server started alive if the server itself ends in good order, and
gives its errors to a file.
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
MOST_VALUES = 50_000  # to read them takes a quarter of a second at worst


class OverlongAnswer(Exception):
    """The text says of what."""


class MessageSize:
    """Of a message in JSON, while it comes: its bytes, and about how many values it has."""

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
NOTICE_S = 2.0  # for what nobody waits for: the SDK sends nothing else meanwhile
SESSION = "mcp-session-id"
_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_LEFT_OUT = {"set-cookie", "set-cookie2"}


@dataclass(slots=True)
class RequestState:
    """What became of the request of one call, as far as the wire can tell."""

    is_begun: bool = False
    is_lost: bool = False  # no answer came, or not all of it
    is_unsent: bool = False  # the server surely did not carry it out
    status: int = 0  # of the answer to a request within a session
    too_much: str | None = None  # that it answered with

    @property
    def is_done(self) -> bool | None:
        """False: the server surely did not carry it out."""
        return False if self.is_unsent or self.status == 404 else None

    def has_no_session(self, *, is_vague: bool) -> bool:
        """`is_vague`: so is the error that came with it."""
        return self.status == 404 or (self.status == 400 and is_vague)


current_user: ContextVar[str | None] = ContextVar(
    "user", default=None
)  # on whose behalf a call is made
current_trace: ContextVar[str | None] = ContextVar("trace", default=None)  # as `traceparent`
current_request: ContextVar[RequestState | None] = ContextVar(
    "fate", default=None
)  # of the call that is made


class HttpTransport(httpx2.AsyncBaseTransport):
    """No proxies, no cookies, nothing packed; `headers` go along, and the user of each call."""

    def __init__(self, http: Http, url: str, headers: Mapping[str, str], user_header: str) -> None:
        self._http, self._origin = http, _origin(httpx2.URL(url))
        self._headers, self._user_header = dict(headers), user_header

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if _origin(request.url) != self._origin:
            raise httpx2.UnsupportedProtocol("it leads to another server", request=request)
        headers, body = self._signed(request), await request.aread()
        idle_s = NOTICE_S if _is_notice(request.method, body) else IDLE_S
        call = HttpCall(request.method, str(request.url), headers, body, idle_timeout_s=idle_s)
        known = _begun() if request.method == "POST" else None
        try:
            answer = await self._http.send(call)
        except HttpFailed as error:
            return _unanswered(request, error, known)
        if known is not None and SESSION in headers:
            known.status = answer.status
        kept = {name: text for name, text in answer.headers.items() if name not in _LEFT_OUT}
        if kept.pop("content-encoding", "identity") != "identity":
            answer.close()
            raise httpx2.RemoteProtocolError("it sends what nobody asked to be packed")
        is_events = kept.get("content-type", "").startswith("text/event-stream")
        stream = _Body(answer, known, is_events=is_events)
        return httpx2.Response(answer.status, headers=kept, stream=stream, request=request)

    def _signed(self, request: httpx2.Request) -> dict[str, str]:
        headers = {
            **request.headers,
            **self._headers,
            "accept-encoding": "identity",
            DEPTH_HEADER: "1",
        }
        if (name := current_user.get()) is not None:
            headers[self._user_header] = quote(name, safe=_VISIBLE)
        if (trace := current_trace.get()) is not None:
            headers["traceparent"] = trace
        return headers


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: HttpAnswer, known: RequestState | None, *, is_events: bool) -> None:
        self._answer, self._known, self._is_events = answer, known, is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        weight = MessageSize()
        try:
            while data := await self._answer.read_some():
                weight.add(data)
                if self._is_events and (b"\n\n" in data or b"\r\n\r\n" in data):
                    weight = MessageSize()  # another message begins
                yield data
        except (HttpFailed, OverlongAnswer) as error:
            if self._known is not None:
                self._known.is_lost = True
                self._known.too_much = str(error) if isinstance(error, OverlongAnswer) else None
            raise httpx2.StreamError(str(error)) from error

    async def aclose(self) -> None:
        self._answer.close()


def _begun() -> RequestState | None:
    """Of the call itself: what is sent on its account later says nothing of it."""
    known = current_request.get()
    if known is None or known.is_begun:
        return None
    known.is_begun = True
    return known


def _unanswered(
    request: httpx2.Request, error: HttpFailed, known: RequestState | None
) -> httpx2.Response:
    """What is raised ends the connection, with the calls of everybody else."""
    if current_request.get() is None:
        raise httpx2.ConnectError(str(error), request=request) from error
    if known is not None:
        known.is_lost, known.is_unsent = True, not error.sent
    return httpx2.Response(502, request=request)


def _is_notice(method: str, body: bytes) -> bool:
    return method == "DELETE" or b'"method":"notifications/' in body[:64]


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


# ---------------------------------------------------------------------------------------- programs
log = logging.getLogger(__name__)

LONGEST_SAID = 500  # characters of a line in the log
MOST_SAID = 100  # lines a minute
_ID = re.compile(rb'"id": ?([0-9]{1,15})[,}]')  # where every server writes it: first, or last
_PATIENCE_S = 2.0  # for each step of its ending
_WATCH = f'read _; sleep {_PATIENCE_S:g}; kill -9 "-$0"'  # its input ends with us; $0: whose group

In = MemoryObjectSendStream[SessionMessage | Exception]
Out = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


@asynccontextmanager
async def child(
    server: McpServerDef, folder: Path, clock: Clock, ended: Callable[[str], None]
) -> AsyncIterator[Streams]:
    """`ended` is told why when it ends by itself. Raises OSError if it cannot be started."""
    own = {name: value.reveal() for name, value in server.env.items()}
    process = await anyio.open_process(
        [server.command or "", *server.args],
        env=get_default_environment() | own,
        cwd=folder,
        start_new_session=True,
    )
    incoming, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    said, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    journal = _Said(server.name, clock, tuple(own.values()))
    async with anyio.create_task_group() as group:
        group.start_soon(_hear, process, incoming, ended)
        group.start_soon(_tell, process, outgoing, ended)
        group.start_soon(journal.listen, process)
        try:
            async with _leash(process):
                yield heard, said
        finally:
            with anyio.CancelScope(shield=True):
                heard.close()
                said.close()
                await _end(process)
            group.cancel_scope.cancel()


@asynccontextmanager
async def _leash(process: Process) -> AsyncIterator[None]:
    """If the gateway itself is killed, so is what does not care for the end of its input."""
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


async def _hear(process: Process, incoming: In, ended: Callable[[str], None]) -> None:
    assert process.stdout is not None
    why = "it ended"
    async with incoming:
        try:
            async for line in _lines(process.stdout):
                await _pass_on(line, incoming)
        except OverlongAnswer as error:
            why = f"it wrote a line of {error}"
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # whoever listened is gone
        ended(why)


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
    """What is no message is left out: programs write to their output whatever they like."""
    try:
        MessageSize().add(line)
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except OverlongAnswer as error:
        if (found := _ID.search(line, 0, 64) or _ID.search(line, max(0, len(line) - 64))) is None:
            return
        told = types.ErrorData(code=types.INTERNAL_ERROR, message=f"It answered with {error}.")
        message = types.JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=told)
    except ValueError:
        return
    await incoming.send(SessionMessage(message))


async def _tell(process: Process, outgoing: Out, ended: Callable[[str], None]) -> None:
    assert process.stdin is not None
    try:
        async with outgoing:
            async for one in outgoing:
                text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode() + b"\n")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        ended("it reads nothing any more")


class _Said:
    """What it writes to its errors goes to the log, without what it was given in secret."""

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
            rest = rest[: 8 * LONGEST_SAID]  # a longer one is cut anyway

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


async def _end(process: Process) -> None:
    """Asked first by the end of its input, then told to end, then killed; with its descendants."""
    assert process.stdin is not None
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.aclose()
    with anyio.move_on_after(_PATIENCE_S):
        await process.wait()
    if sys.platform == "win32":
        if process.returncode is None:
            process.kill()
    else:
        await terminate_posix_process_tree(process, _PATIENCE_S)
    with anyio.move_on_after(_PATIENCE_S):
        await process.aclose()
