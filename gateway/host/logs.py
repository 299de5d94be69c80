"""The log: JSON lines in files and lines on stderr, written by a thread of its own; and streams that nobody waits
for.

Whoever logs puts one record on a queue and goes on. The thread makes the line, strikes out every secret, and writes
it. A line that cannot be written is lost and counted; nothing waits for it.
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

MOST_WAITING = 10_000  # records; more are dropped, and counted
# After a line, so that many lines cost one wake-up: a thread that wakes takes the interpreter from the others.
GATHER_S = 0.02
MOST_EARLY = 1_000  # lines that wait for the folder of the files
LAST_WORDS_S = 2.0
MOST_WAITING_BYTES = 4 * 1_048_576  # of a stream; then what comes is dropped
STREAM_LAST_WORDS_S = 0.3  # of all streams together
MB = 1_000_000
FILES = 10  # the size of a file is this share of the size of all
NAME = re.compile(r"exogate-(\d{4}-\d\d-\d\d)(?:\.(\d{1,9}))?\.jsonl")
FOLDER = "logs"  # in the data directory
STARS = "***"
SECRET = 8  # characters that the shortest has
OWN, RUNS = "exogate.host.logs", "exogate.sessions"
_TOKEN = re.compile(r"\bexo_[0-9A-Za-z]{38}\b")  # of a client: nobody here knows them all
_ENCODER = json.JSONEncoder(default=str, ensure_ascii=False)
_USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def facts_of(record: logging.LogRecord, bound: Facts) -> dict[str, object]:
    """What a line holds. The event of a library is its text: only ours are constants."""
    shown: dict[str, object] = {"at": stamped(record.created), "level": record.levelname.lower()}
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


def stamped(seconds: float) -> str:
    """Seconds since 1970 as lines have them."""
    return stamp(datetime.fromtimestamp(seconds, UTC))


def json_line(facts: Facts) -> str:
    """One JSON object on one line, which steers no terminal."""
    line = _ENCODER.encode(facts)
    return line if line.isprintable() else visible(line)


def console_line(facts: Facts, time_of: slice = slice(11, 19)) -> str:
    """For a person: time, level, event, then what is bound to it."""
    shown = dict(facts)
    at, level, event = (str(shown.pop(name)) for name in ("at", "level", "event"))
    shown.pop("logger", None)
    trouble = shown.pop("exception", None)
    bound = " ".join(f"{name}={value!r}" for name, value in shown.items())
    line = one_line(f"{at[time_of]} {level:7} {event} {bound}".rstrip())
    if trouble is not None:  # set in, so that no message in it looks like another line
        line += "\n    " + visible(str(trouble)).replace("\n", "\n    ")
    return line


class LogFiles:
    """The files of a folder, by day: `exogate-DATE.jsonl`, then `exogate-DATE.1.jsonl` when one is full. The
    oldest are deleted: those of more than `keep_days` days, and those beyond `most_bytes` in all."""

    def __init__(self, folder: Path, keep_days: int, most_bytes: int) -> None:
        self.folder, self.keep_days, self.most_bytes = folder, keep_days, most_bytes
        self._file, self._path, self._day, self._size, self._looked = -1, folder, "", 0, 0.0

    def append(self, day: str, data: bytes, now: float) -> None:
        """Writes a whole line or nothing of it. Raises OSError."""
        is_full = self._size + len(data) > self.most_bytes // FILES and self._size
        if self._file < 0 or day > self._day or is_full:
            self._rotate(day, len(data))
        elif now - self._looked >= 1.0:
            self._looked = now
            if not os.fstat(self._file).st_nlink:  # somebody has deleted it
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
        number = max((number for on, number, _ in listed(self.folder) if on == day), default=0)
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
        room = self.most_bytes - self.most_bytes // FILES  # for the one that is being written
        for on, _, path in reversed(listed(self.folder)):
            if path == self._path:
                continue
            room -= path.stat().st_size
            if on <= oldest or room < 0:
                with suppress(OSError):  # it is tried again with the next file
                    path.unlink()


_Item = tuple[logging.LogRecord, Facts] | tuple[str, Facts, float] | LogFiles | None


def listed(folder: Path) -> list[tuple[str, int, Path]]:
    """The files of a folder, the oldest first, with their days and numbers."""
    found = ((NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((name[1], int(name[2] or 0), path) for name, path in found if name)


class Log(logging.Handler):
    """The queue, and the thread behind it. The files are those of a folder that is known later."""

    def __init__(self, target: TextIO, form: Format = "auto") -> None:
        super().__init__()
        self.dropped = 0  # records since the start
        self.failing = ""  # why nothing reaches the files
        self._target, self._stream = target, getattr(target, "buffer", None)
        self.show_as(form)
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._told = self._lost = 0
        self._secrets: tuple[str, ...] = ()
        self._files: LogFiles | None = None
        self._early: deque[tuple[str, str]] = deque(maxlen=MOST_EARLY)
        self._is_open = False
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)

    # -- for whoever logs

    def createLock(self) -> None:  # noqa: N802  # the queue needs none
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._queue.qsize() >= MOST_WAITING:
            self.dropped += 1
            return
        bound = BOUND.get()()
        self._queue.put((record, bound.bound() if bound and not bound.ended else {}))

    def event(self, name: str, facts: Facts) -> None:
        """Logs plain values at level info, for a fraction of what a record costs."""
        if logging.root.level > logging.INFO or not self._is_open:
            return
        if self._queue.qsize() >= MOST_WAITING:
            self.dropped += 1
        else:
            self._queue.put((name, facts, time.time()))  # noqa: TID251  # as in a record

    # -- for whoever sets it up

    def show_as(self, form: Format) -> None:
        """Of the lines on the stream; those of files are JSON."""
        self._is_json = form == "json" or (form == "auto" and not self._target.isatty())

    def keep_in(self, data_dir: Path, *, days: int, most_mb: int) -> None:
        """From now on lines go to files in this directory, also those that came before."""
        self._queue.put(LogFiles(data_dir / FOLDER, days, most_mb * MB))

    def hide(self, secrets: Iterable[str]) -> None:
        """Strikes these values out of every line. Shorter ones are no secrets, and would mangle texts."""
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
                    head = {"at": stamped(at), "level": "info", "event": name, "logger": RUNS}
                    shown = {**head, **facts}
            self._write(shown)
            if self.dropped > self._told:
                dropped, self._told = self.dropped - self._told, self.dropped
                self._write(self._own("log_records_dropped", count=dropped))
            if self._queue.empty():
                time.sleep(GATHER_S)
        if self._files is not None:
            self._files.close()

    def _own(self, event: str, **facts: object) -> Facts:
        at = stamped(time.time())  # noqa: TID251  # as in a record
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
        """The text without any secret."""
        for secret in self._secrets:
            if secret in line:
                line = line.replace(secret, STARS)
        return _TOKEN.sub(STARS, line) if "exo_" in line else line

    def _show(self, line: str) -> None:
        with suppress(OSError, ValueError):  # nobody is there to be told
            if self._stream is None:
                self._target.write(line + "\n")
            else:  # no line holds anything that a terminal would follow
                self._stream.write(line.encode(errors="replace") + b"\n")
                self._stream.flush()

    def _keep(self, day: str, line: str) -> None:
        """A full disk loses lines, and is told of when it is over."""
        if self._files is None:
            self._early.append((day, line))
            return
        try:
            if self._lost:
                told = json_line(self._own("log_files_written_again", lost=self._lost))
                self._files.append(day, told.encode() + b"\n", time.monotonic())
                self._lost, self.failing = 0, ""
                self._show(told)
            self._files.append(day, line.encode() + b"\n", time.monotonic())
        except OSError as error:
            self._lost += 1
            if not self.failing:
                self.failing = f"{self._files.folder}: {error.strerror}"
                self._show(json_line(self._own("log_files_failing", why=self.failing)))


def _forms(secret: str) -> set[str]:
    """How it stands in a line: as JSON, as Python shows it, and as a text in a text."""
    forms = {secret}
    for _ in range(2):
        forms |= {json.dumps(one, ensure_ascii=False)[1:-1] for one in forms}
        forms |= {repr(one)[1:-1] for one in forms}
    return forms


@contextmanager
def logging_to(target: TextIO, level: str, form: Format) -> Iterator[Log]:
    """Writes everything that is logged inside to the target, in order. A target that must not be waited
    for is a `detached` stream."""
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
    """From here on no write to stdout or stderr waits for its reader, and none fails."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # one that was closed: no file of ours must get its number
    os.close(opened)
    sys.stdout, sys.stderr = detached(sys.stdout), detached(sys.stderr)


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
    return kind(_StreamWriter(number), **how, line_buffering=True, write_through=True)


class _StreamWriter(io.RawIOBase):
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

_AT = slice(8, 32)  # of a line that begins with its time, as ours do
_BEGIN = b'{"at": "'


def read_log(folder: Path, wanted: LogFilter) -> Iterator[Line]:
    """The lines that fit. A file that is deleted meanwhile is passed over."""
    since = stamp(wanted.since) if wanted.since else ""
    for day, _, path in listed(folder) if folder.is_dir() else ():
        if day < since[:10]:
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        yield from _fitting(data, wanted, since.encode())


def _fitting(data: bytes, wanted: LogFilter, since: bytes) -> Iterator[Line]:
    """Only lines that may fit are parsed: bytes are looked at first."""
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
    """None for a line that was cut off."""
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


class LogTail:
    """What is written after this was made. Files are followed by their names, the oldest first, so each is read
    to its end before the next one begins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = {path: path.stat().st_size for path in self._paths()}

    def lines(self, wanted: LogFilter) -> Iterator[Line]:
        """Those that fit among what was written since the last call."""
        for path in self._paths():
            try:
                yield from _fitting(self._more(path), wanted, b"")
            except FileNotFoundError:
                continue

    def _paths(self) -> list[Path]:
        return [path for _, _, path in listed(self._folder)] if self._folder.is_dir() else []

    def _more(self, path: Path) -> bytes:
        """Whole lines. Raises FileNotFoundError."""
        place, size = self._read.get(path, 0), path.stat().st_size
        place = place if size >= place else 0  # it was begun anew
        with path.open("rb") as file:
            file.seek(place)
            data = file.read(size - place)
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = place + len(whole)
        return whole
