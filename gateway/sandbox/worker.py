"""A worker process: reads calls from its socket, runs each in a thread, and answers.

It has no environment and no secrets, and gives up network, files and programs before it loads guest
code. A guest reaches other resources only through the gateway at the other end of the socket.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from wasmtime import Engine

from gateway.sandbox.calls import (
    THREAD_STACK_BYTES,
    TICK_S,
    GuestCall,
    component_engine,
    core_engine,
    keep_interpreter_lock,
)
from gateway.sandbox.components import ComponentGuest, FunctionsGuest, NearGuest
from gateway.sandbox.confinement import confine
from gateway.sandbox.extism import ExtismGuest
from gateway.sandbox.protocol import (
    Bounds,
    BrokenFrame,
    Frame,
    Kind,
    Program,
    Reader,
    Status,
    encode,
)

_READ_BYTES = 256 * 1024
_NICER_BY = 5  # the gateway runs before computing guests
# Short calls run before long ones. Other systems would slow the whole process.
_SLOWER_BY = 10 if sys.platform == "linux" else 0


class LoadedGuest(Protocol):
    """A guest in memory, ready for calls from any thread."""

    def run(self, call: GuestCall, function: str, text: str) -> tuple[Status, str]: ...


class Worker:
    """Loads guests and runs their calls in threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._components, self._cores = component_engine(), core_engine()
        self._guests: dict[int, LoadedGuest | str] = {}  # or the reason of a failed load
        self._bounds: dict[int, Bounds] = {}
        self._calls: dict[int, GuestCall] = {}
        self._work: SimpleQueue[tuple[GuestCall, LoadedGuest, str, str]] = SimpleQueue()
        self._threads: set[threading.Thread] = set()  # threads that take further calls
        self._busy = threading.Event()

    def serve(self) -> None:
        """Handles frames until the gateway closes its end."""
        threading.Thread(target=self._tick, daemon=True).start()
        reader = Reader()
        while data := self._connection.recv(_READ_BYTES):
            for frame in reader.feed(data):
                self._handle(frame)

    def say(self, kind: Kind, call: int, texts: tuple[str, ...]) -> None:
        frame = encode(kind, call, texts)
        try:
            with self._sending:
                self._connection.sendall(frame)
        except OSError:
            os._exit(0)  # the gateway is gone

    def _tick(self) -> None:
        engines: tuple[Engine, ...] = (self._components, self._cores)
        while True:
            self._busy.clear()
            if not self._calls:
                self._busy.wait()
            time.sleep(TICK_S)
            for engine in engines:
                engine.increment_epoch()

    def _handle(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.CALL:
                self._start(frame.call, *frame.texts)
            case Kind.ANSWER | Kind.CANCEL:
                if (call := self._calls.get(frame.call)) is None:
                    return
                if frame.kind is Kind.CANCEL:
                    call.cancel()
                else:
                    call.answers.put(frame.texts)
            case Kind.LOAD:
                self._load(frame.call, frame.texts[0])
            case kind:
                raise BrokenFrame(f"the gateway may not send {kind.name}")

    def _load(self, number: int, described: str) -> None:
        fields = json.loads(described)
        program = Program(**{**fields, "bounds": Bounds(**fields["bounds"])})
        self._bounds[number] = program.bounds
        try:
            self._guests[number] = self._load_guest(program)
        except Exception:  # noqa: BLE001  # reason: a failed load must not end the calls of others
            self._guests[number] = "its compiled form cannot be loaded"

    def _load_guest(self, program: Program) -> LoadedGuest:
        match program.guest:
            case "extism":
                return ExtismGuest(self._cores, program)
            case "near":
                return NearGuest(self._components, program)
            case "functions":
                return FunctionsGuest(self._components, program)
            case "exogate":
                return ComponentGuest(self._components, program)

    def _start(self, number: int, program: str, function: str, seconds: str, text: str) -> None:
        guest = self._guests[int(program)]
        if isinstance(guest, str):
            self.say(Kind.RESULT, number, ("load", guest, "0", "0", "0"))
            return
        end, ask = time.monotonic() + float(seconds), partial(self.say, Kind.HOST)
        call = GuestCall(number, self._bounds[int(program)], end, ask, slower_by=_SLOWER_BY)
        self._calls[number] = call
        self._busy.set()
        self._work.put((call, guest, function, text))
        if len(self._calls) > len(self._threads):
            thread = threading.Thread(target=self._run, daemon=True)
            self._threads.add(thread)
            thread.start()

    def _run(self) -> None:
        while True:
            call, guest, function, text = self._work.get()
            status, answer = run_guest(call, guest, function, text)
            if call.is_slow:  # removed before its call, so that the next call starts a new thread
                self._threads.discard(threading.current_thread())
            del self._calls[call.number]
            self.say(Kind.RESULT, call.number, (status, answer, *call.usage()))
            if call.is_slow:
                return


def run_guest(call: GuestCall, guest: LoadedGuest, function: str, text: str) -> tuple[Status, str]:
    """Runs a call and returns its outcome for every error, so that other calls go on."""
    try:
        return check_answer(function, *guest.run(call, function, text), call.bounds)
    except Exception:  # noqa: BLE001  # reason: see above; the worker has no log
        return "trap", "it crashed"


def check_answer(function: str, status: Status, answer: str, bounds: Bounds) -> tuple[Status, str]:
    """Returns a guest's answer if it is valid and within the bounds; unquotes the string of a tool."""
    if len(answer.encode()) > bounds.output_bytes:
        return "output_too_large", f"its output is larger than {bounds.output_bytes // 1024} KiB"
    if status != "ok" or function != "handle-tool-call":
        return status, answer
    try:
        value = json.loads(answer, parse_constant=_refuse)
        text = value if isinstance(value, str) else answer
        text.encode()
    except (ValueError, RecursionError):  # half a surrogate pair is a ValueError too
        return "invalid", "its answer is not valid JSON"
    return "ok", text


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _die_first() -> None:
    """Makes the kernel kill this process before the gateway if memory runs out."""
    with suppress(OSError):  # not Linux, or no /proc
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def main() -> None:
    # A signal to the process group must not end the worker while the gateway drains; the closed socket
    # ends it.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    _die_first()
    os.nice(_NICER_BY)
    connection = socket.socket(fileno=int(sys.argv[1]))
    threading.stack_size(THREAD_STACK_BYTES)
    keep_interpreter_lock()
    worker = Worker(connection)
    confinement = confine(readable=[Path(sys.argv[2])])
    worker.say(Kind.READY, 0, (json.dumps(asdict(confinement)),))
    worker.serve()


if __name__ == "__main__":
    main()
