"""This process: its streams, its signals, its limit of open files, and how often Python looks for garbage."""

import atexit
import contextlib
import gc
import io
import os
import resource
import select
import signal
import sys
import threading
import time
from queue import SimpleQueue
from typing import ClassVar, TextIO

MOST_WAITING_BYTES = 4 * 1_048_576  # then what comes is dropped
LAST_WORDS_S = 0.3  # of all streams together
# New objects before a look; Python's own 700 costs a busy gateway a tenth of its time.
YOUNG = 10_000


def detach_streams() -> None:
    """From here on no write to stdout or stderr waits for its reader, and none fails."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # one that was closed: no file of ours must get its number
    os.close(opened)
    sys.stdout, sys.stderr = detached(sys.stdout), detached(sys.stderr)


def has_terminal() -> bool:
    """Whether SIGHUP comes from a terminal that closes."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def hold_hangup() -> None:
    """Keeps SIGHUP from ending the process before the gateway handles it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and not has_terminal():
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def detached(stream: TextIO | None) -> TextIO:
    """The stream, written by a thread: what nobody reads is dropped, and never waited for."""
    if stream is None:  # closed before the start
        return io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8", write_through=True)
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return stream  # of a test
    kind = type(stream) if isinstance(stream, io.TextIOWrapper) else io.TextIOWrapper
    how = {"encoding": stream.encoding, "errors": stream.errors}
    return kind(_Writer(number), **how, line_buffering=True, write_through=True)


class _Writer(io.RawIOBase):
    """A thread writes to the file. It may block for ever; the end of the process waits for it only a
    moment."""

    until: ClassVar[float] = 0.0  # when the process ends at the latest, once it does

    def __init__(self, number: int) -> None:
        self._number = number
        self._queue: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: object, /) -> int:
        assert isinstance(data, bytes | bytearray | memoryview)
        copy = bytes(data)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stream writer", daemon=True)
                self._thread.start()
                atexit.register(self._last_words)
            if self._waiting + len(copy) <= MOST_WAITING_BYTES:
                self._waiting += len(copy)
                self._queue.put(copy)
        return len(copy)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            with contextlib.suppress(OSError):
                self._write_all(item)
            with self._lock:
                self._waiting -= len(item)

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._number, rest) :]
            except BlockingIOError:
                select.select((), (self._number,), ())

    def _last_words(self) -> None:
        written = threading.Event()
        self._queue.put(written)
        _Writer.until = _Writer.until or time.monotonic() + LAST_WORDS_S
        written.wait(max(0.0, _Writer.until - time.monotonic()))


def allow_open_files() -> None:
    """Raises the limit of open files to what the system allows without privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle() -> None:
    """Excludes all present objects from garbage collection: after a start they stay until the end.
    A last look among them would take a tenth of the start, and finds next to nothing."""
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 100)
