"""A server that is a program of this machine: started without a shell, and ended with all it started.

The SDK's own transport joins a line of any length in memory, keeps what a server started alive if
the server itself ends in good order, and gives its errors to a file.
"""

import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import mcp_types as types
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage

from gateway.domain.mcp import McpServerDef
from gateway.domain.ports import Clock
from gateway.domain.scrubbing import scanner
from gateway.mcp.bounds import TooMuch, Weight, check_size

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
        except TooMuch as error:
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
        Weight().add(line)
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except TooMuch as error:
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
        log.debug("an MCP server says", extra=extra)


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
