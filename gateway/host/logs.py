"""How log records look: one JSON object a line, or a line for a person."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal, TextIO

from gateway.host.terminal import one_line, visible

Format = Literal["auto", "json", "console"]

_USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


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


@contextmanager
def logging_to(target: TextIO, level: str, form: Format) -> Iterator[None]:
    """Writes everything that is logged inside to the target, in order. A target that must not be waited
    for is a stream of `host/process.py`."""
    as_json = form == "json" or (form == "auto" and not target.isatty())
    handler, root = logging.StreamHandler(target), logging.getLogger()
    handler.setFormatter(JsonLines() if as_json else Console())
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
