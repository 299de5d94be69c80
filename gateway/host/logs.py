"""The log: JSON lines in files and lines on stderr, written by a thread; and streams that never block a writer.

A caller puts a record on a queue and continues. The thread formats the line, strikes out every secret, and writes
it. A line that cannot be written is dropped and counted.
"""

import atexit
import io
import json
import logging
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import ClassVar, Literal, TextIO

from gateway.domain.figures import BOUND
from gateway.domain.logs import Line, LogFilter, stamp
from gateway.domain.text import one_line, visible

Format = Literal["auto", "json", "console"]
Facts = Mapping[str, object]

MOST_WAITING = 10_000  # records in the queue; more are dropped and counted
# Pause after a line, to write many lines in one wake-up: a thread that wakes takes the GIL from the others.
GATHER_S = 0.02
MOST_EARLY = 1_000  # lines kept until the folder is known
LAST_WORDS_S = 2.0
MOST_WAITING_BYTES = 4 * 1_048_576  # bytes in the queue of a stream; more is dropped
STREAM_LAST_WORDS_S = 0.3  # for all streams together
MB = 1_000_000
FILES = 10  # a file has at most one tenth of the total size
NAME = re.compile(r"exogate-(\d{4}-\d\d-\d\d)(?:\.(\d{1,9}))?\.jsonl")
FOLDER = "logs"  # in the data directory
STARS = "***"
SECRET = 8  # characters of the shortest secret
OWN, RUNS = "exogate.host.logs", "exogate.sessions"
# A token of a client; the log does not know all of them.
_TOKEN = re.compile(r"\bexo_[0-9A-Za-z]{38}\b")
_ENCODER = json.JSONEncoder(default=str, ensure_ascii=False)
_USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def facts_of(record: logging.LogRecord, bound: Facts) -> dict[str, object]:
    """Returns the fields of a line. Records of libraries get the event `library_message` and their text."""
    shown: dict[str, object] = {"at": utc_stamp(record.created)}
    shown["level"] = record.levelname.lower()
    if record.name.startswith("gateway."):
        shown["event"] = record.getMessage()
        shown["logger"] = record.name.replace("gateway.", "exogate.", 1)
    else:
        shown |= {"event": "library_message", "logger": record.name, "text": record.getMessage()}
    shown.update(bound)
    for name, value in record.__dict__.items():
        if name not in _USUAL:
            shown[name] = value
    if record.exc_info:
        shown["exception"] = logging.Formatter().formatException(record.exc_info)
    return shown


def utc_stamp(seconds: float) -> str:
    """Formats seconds since 1970 as a time stamp of a line."""
    return stamp(datetime.fromtimestamp(seconds, UTC))


def json_line(facts: Facts) -> str:
    """Returns a JSON object on one line, without terminal control characters."""
    line = _ENCODER.encode(facts)
    return line if line.isprintable() else visible(line)


def console_line(facts: Facts, time_of: slice = slice(11, 19)) -> str:
    """Returns a line for people: time, level, event and fields."""
    shown = dict(facts)
    at, level, event = (str(shown.pop(name)) for name in ("at", "level", "event"))
    shown.pop("logger", None)
    trouble = shown.pop("exception", None)
    bound = " ".join(f"{name}={value!r}" for name, value in shown.items())
    line = one_line(f"{at[time_of]} {level:7} {event} {bound}".rstrip())
    if trouble is not None:  # indented, so that its text never looks like another line
        line += "\n    " + visible(str(trouble)).replace("\n", "\n    ")
    return line


class LogFiles:
    """The log files of a folder: `exogate-DATE.jsonl`, then `exogate-DATE.1.jsonl` when a file is full. Files older
    than `keep_days` days and the oldest files beyond `most_bytes` in total are deleted."""

    def __init__(self, folder: Path, keep_days: int, most_bytes: int) -> None:
        self.folder, self.keep_days, self.most_bytes = folder, keep_days, most_bytes
        self._file, self._path, self._day, self._size, self._looked = -1, folder, "", 0, 0.0

    def append(self, day: str, data: bytes, now: float) -> None:
        """Appends a whole line or nothing. Raises OSError."""
        is_full = self._size + len(data) > self.most_bytes // FILES and self._size
        if self._file < 0 or day > self._day or is_full:
            self._rotate(day, len(data))
        elif now - self._looked >= 1.0:
            self._looked = now
            if not os.fstat(self._file).st_nlink:  # the file was deleted
                self._rotate(day, len(data))
        written = 0
        try:
            written = os.write(self._file, data)
            if written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            if written:
                os.ftruncate(self._file, self._size)
            raise
        self._size += written

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _rotate(self, day: str, more: int) -> None:
        self.close()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = max((number for on, number, _ in list_files(self.folder) if on == day), default=0)
        while True:
            name = f"exogate-{day}.{number}.jsonl" if number else f"exogate-{day}.jsonl"
            path = self.folder / name
            how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(path, how, 0o600)
            size = os.fstat(file).st_size
            if not size or size + more <= self.most_bytes // FILES:
                break
            os.close(file)
            number += 1
        self._file, self._path, self._day, self._size = file, path, day, size
        self._prune(day)

    def _prune(self, day: str) -> None:
        oldest = (date.fromisoformat(day) - timedelta(days=self.keep_days)).isoformat()
        room = self.most_bytes - self.most_bytes // FILES  # without the current file
        for on, _, path in reversed(list_files(self.folder)):
            if path == self._path:
                continue
            room -= path.stat().st_size
            if on <= oldest or room < 0:
                with suppress(OSError):  # the next rotation tries again
                    path.unlink()


_Item = tuple[logging.LogRecord, Facts] | tuple[str, Facts, float] | LogFiles | None


def list_files(folder: Path) -> list[tuple[str, int, Path]]:
    """Returns the log files of a folder with their days and numbers, the oldest first."""
    found = ((NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((name[1], int(name[2] or 0), path) for name, path in found if name)


class Log(logging.Handler):
    """The log: a queue and the thread that writes it. The folder of the files is set after the start."""

    def __init__(self, target: TextIO, form: Format = "auto") -> None:
        super().__init__()
        self.dropped = 0  # records since the start
        self.failing = ""  # why the files cannot be written
        self._target, self._stream = target, getattr(target, "buffer", None)
        self.show_as(form)
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._reported = self._lost = 0
        self._secrets: tuple[str, ...] = ()
        self._files: LogFiles | None = None
        self._early: deque[tuple[str, str]] = deque(maxlen=MOST_EARLY)
        self._is_open = False
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)

    # -- for callers

    def createLock(self) -> None:  # noqa: N802  # the queue needs none
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._queue.qsize() >= MOST_WAITING:
            self.dropped += 1
            return
        bound = BOUND.get()()
        self._queue.put((record, bound.bound() if bound and not bound.ended else {}))

    def event(self, name: str, facts: Facts) -> None:
        """Logs plain values at level info, which costs a fraction of a record."""
        if logging.root.level > logging.INFO or not self._is_open:
            return
        if self._queue.qsize() >= MOST_WAITING:
            self.dropped += 1
        else:
            self._queue.put((name, facts, time.time()))  # noqa: TID251  # as in a record

    # -- for the setup

    def show_as(self, form: Format) -> None:
        """Sets the format of the stream; files are always JSON."""
        self._is_json = form == "json" or (form == "auto" and not self._target.isatty())

    def keep_in(self, data_dir: Path, *, days: int, most_mb: int) -> None:
        """Writes lines to files in this directory, including the lines before this call."""
        self._queue.put(LogFiles(data_dir / FOLDER, days, most_mb * MB))

    def hide(self, secrets: Iterable[str]) -> None:
        """Strikes these values out of every line. Values with fewer than eight characters stay: they also occur in
        other words."""
        found = {form for one in secrets if len(one) >= SECRET for form in _forms(one)}
        self._secrets = tuple(sorted({*self._secrets, *found}, key=len, reverse=True))

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False
            self._queue.put(None)
            self._thread.join(LAST_WORDS_S)

    # -- in the thread

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            match item:
                case LogFiles():
                    self._open(item)
                    continue
                case (logging.LogRecord() as record, facts):
                    shown = facts_of(record, facts)
                case (name, facts, at):
                    head = {"at": utc_stamp(at), "level": "info", "event": name}
                    shown = {**head, "logger": RUNS, **facts}
            self._write(shown)
            if self.dropped > self._reported:
                dropped, self._reported = self.dropped - self._reported, self.dropped
                self._write(self._own("log_records_dropped", count=dropped))
            if self._queue.empty():
                time.sleep(GATHER_S)
        if self._files is not None:
            self._files.close()

    def _own(self, event: str, **facts: object) -> Facts:
        at = utc_stamp(time.time())  # noqa: TID251  # as in a record
        return {"at": at, "level": "warning", "event": event, "logger": OWN, **facts}

    def _open(self, files: LogFiles) -> None:
        if self._files is not None:
            self._files.close()
        self._files = files
        while self._early:
            self._keep(*self._early.popleft())

    def _write(self, facts: Facts) -> None:
        line = self.clean(json_line(facts))
        self._show(line if self._is_json else self.clean(console_line(facts)))
        self._keep(str(facts["at"])[:10], line)

    def clean(self, line: str) -> str:
        """Returns the text with all secrets struck out."""
        for secret in self._secrets:
            if secret in line:
                line = line.replace(secret, STARS)
        return _TOKEN.sub(STARS, line) if "exo_" in line else line

    def _show(self, line: str) -> None:
        with suppress(OSError, ValueError):  # the reader is gone
            if self._stream is None:
                self._target.write(line + "\n")
            else:
                self._stream.write(line.encode(errors="replace") + b"\n")
                self._stream.flush()

    def _keep(self, day: str, line: str) -> None:
        """Writes a line to the files. A failing disk drops lines, which are reported once it works again."""
        if self._files is None:
            self._early.append((day, line))
            return
        try:
            if self._lost:
                report = json_line(self._own("log_files_written_again", lost=self._lost))
                self._files.append(day, report.encode() + b"\n", time.monotonic())
                self._lost, self.failing = 0, ""
                self._show(report)
            self._files.append(day, line.encode() + b"\n", time.monotonic())
        except OSError as error:
            self._lost += 1
            if not self.failing:
                self.failing = f"{self._files.folder}: {error.strerror}"
                self._show(json_line(self._own("log_files_failing", why=self.failing)))


def _forms(secret: str) -> set[str]:
    """Returns the forms of a secret in a line: plain, JSON, Python's repr, and these nested once."""
    forms = {secret}
    for _ in range(2):
        forms |= {json.dumps(one, ensure_ascii=False)[1:-1] for one in forms}
        forms |= {repr(one)[1:-1] for one in forms}
    return forms


@contextmanager
def logging_to(target: TextIO, level: str, form: Format) -> Iterator[Log]:
    """Writes all records of the block to the target, in order. Use a stream of `detach` for a target that may block."""
    log, root = Log(target, form), logging.getLogger()
    before = root.level
    root.addHandler(log)
    root.setLevel(level.upper())
    try:
        with log.running():
            yield log
    finally:
        root.removeHandler(log)
        root.setLevel(before)


# -- streams


def detach_streams() -> None:
    """Replaces stdout and stderr by streams whose writes never block or fail."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # fills a closed standard stream: no other file may get its number
    os.close(opened)
    sys.stdout, sys.stderr = detach(sys.stdout), detach(sys.stderr)


def detach(stream: TextIO | None) -> TextIO:
    """Returns the stream with a writing thread: output beyond its buffer is dropped, and no write blocks."""
    if stream is None:  # closed before the start
        return io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8", write_through=True)
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return stream  # a stream without a file, in a test
    kind = type(stream) if isinstance(stream, io.TextIOWrapper) else io.TextIOWrapper
    how = {"encoding": stream.encoding, "errors": stream.errors}
    return kind(_StreamWriter(number), **how, line_buffering=True, write_through=True)


class _StreamWriter(io.RawIOBase):
    """Writes to a file in a thread, which may block forever; the end of the process waits for it only briefly."""

    until: ClassVar[float] = 0.0  # the deadline of the ending process

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
            with suppress(OSError):
                self._write_all(item)
            with self._lock:
                self._waiting -= len(item)
            if self._queue.empty():
                time.sleep(GATHER_S)

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
        _StreamWriter.until = _StreamWriter.until or time.monotonic() + STREAM_LAST_WORDS_S
        written.wait(max(0.0, _StreamWriter.until - time.monotonic()))


# -- reading

_AT = slice(8, 32)  # the time in a line that starts with `_BEGIN`
_BEGIN = b'{"at": "'


def read_log(folder: Path, wanted: LogFilter) -> Iterator[Line]:
    """Yields the lines that match. A file that is deleted meanwhile is skipped."""
    since = stamp(wanted.since) if wanted.since else ""
    for day, _, path in list_files(folder) if folder.is_dir() else ():
        if day < since[:10]:
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        yield from _fitting(data, wanted, since.encode())


def _fitting(data: bytes, wanted: LogFilter, since: bytes) -> Iterator[Line]:
    """Yields the lines that match; only lines whose bytes may match are parsed."""
    needle = wanted.needle()
    for raw in _holding(data, needle) if needle else data.splitlines():
        if since and raw.startswith(_BEGIN) and raw[_AT] < since:
            continue
        line = _parsed(raw)
        if line is not None and wanted.fits(line):
            yield line


def _holding(data: bytes, needle: bytes) -> Iterator[bytes]:
    place = data.find(needle)
    while place >= 0:
        begin, end = data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place)
        end = len(data) if end < 0 else end
        yield data[begin:end]
        place = data.find(needle, end)


def _parsed(raw: bytes) -> Line | None:
    """Parses a line; None if it is incomplete."""
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


class LogTail:
    """The lines written after its creation. It reads each file to its end before the next one, oldest first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = {path: path.stat().st_size for path in self._paths()}

    def lines(self, wanted: LogFilter) -> Iterator[Line]:
        """Yields the matching lines written since the last call."""
        for path in self._paths():
            try:
                yield from _fitting(self._more(path), wanted, b"")
            except FileNotFoundError:
                continue

    def _paths(self) -> list[Path]:
        is_there = self._folder.is_dir()
        return [path for _, _, path in list_files(self._folder)] if is_there else []

    def _more(self, path: Path) -> bytes:
        """Returns the new complete lines of a file. Raises FileNotFoundError."""
        place, size = self._read.get(path, 0), path.stat().st_size
        place = place if size >= place else 0  # the file was replaced
        with path.open("rb") as file:
            file.seek(place)
            data = file.read(size - place)
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = place + len(whole)
        return whole
