"""Log records are written by a thread: the event loop never waits for a reader of the log."""

import contextlib
import json
import logging
import queue
from collections.abc import Iterator
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Literal, TextIO

from gateway.host.terminal import one_line, visible

Format = Literal["auto", "json", "console"]

MOST_WAITING = 10_000
LAST_WORDS_S = 1.0
_USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class _DroppingQueue(QueueHandler):
    """A full queue drops the record: a log that nobody reads must not stop the gateway."""

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # the listener is a thread of ours: nothing has to be made picklable


class _Listener(QueueListener):
    """Its thread may block in a write for ever; the end waits for it only a moment."""

    def enqueue_sentinel(self) -> None:
        try:
            self.queue.put_nowait(None)
        except queue.Full:
            with contextlib.suppress(queue.Empty):
                self.dequeue(block=False)
            with contextlib.suppress(queue.Full):
                self.queue.put_nowait(None)

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        self.enqueue_sentinel()
        if thread is not None:
            thread.join(LAST_WORDS_S)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        shown = {**_facts(record), **_bound(record)}
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return visible(json.dumps(shown, default=str, ensure_ascii=False))


class Console(logging.Formatter):
    """For a person: time, level, event, then what is bound to it."""

    def format(self, record: logging.LogRecord) -> str:
        facts = _facts(record)
        bound = " ".join(f"{name}={value!r}" for name, value in _bound(record).items())
        line = one_line(
            f"{facts['at'][11:19]} {record.levelname.lower():7} {facts['event']} {bound}".rstrip()
        )
        if record.exc_info:  # set in, so that no message in it looks like another line
            line += "\n" + visible(self.formatException(record.exc_info))
            line = line.replace("\n", "\n    ")
        return line


def _facts(record: logging.LogRecord) -> dict[str, str]:
    at = datetime.fromtimestamp(record.created, UTC)
    return {
        "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name.replace("gateway.", "exogate.", 1),
        "event": record.getMessage(),
    }


def _bound(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _USUAL}


@contextlib.contextmanager
def logging_to(target: TextIO, level: str, form: Format) -> Iterator[None]:
    """Writes everything that is logged inside to the target, in order."""
    as_json = form == "json" or (form == "auto" and not target.isatty())
    stream = logging.StreamHandler(target)
    stream.setFormatter(JsonLines() if as_json else Console())
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(MOST_WAITING)
    listener = _Listener(waiting, stream)
    root, handler = logging.getLogger(), _DroppingQueue(waiting)
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        listener.stop()
