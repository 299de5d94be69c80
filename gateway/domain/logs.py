"""Filters for log lines, and the log lines that describe a run from its journal."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import merge
from typing import Any, Literal, get_args

from gateway.domain.budgets import Scope, Unit, in_unit
from gateway.domain.ids import to_time
from gateway.domain.inbox import RunHistory
from gateway.domain.journal import JournalUnreadable, lines_of

LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
JOURNAL = "exogate.journal"
ENDED = ("reason", "merged_into", "tokens_used", "model", "execution_time_ms")
BROKEN = ("error_type", "message", "provider", "provider_status", "scope")
USED = ("input_tokens", "output_tokens", "cost_usd")
Line = Mapping[str, Any]


def stamp(at: datetime) -> str:
    """Returns a time in the form of log lines."""
    text = at.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Selects log lines; `level` is the lowest level."""

    since: datetime | None = None
    level: LogLevel = "debug"
    run: str | None = None
    session: str | None = None
    channel: str | None = None
    event: str | None = None

    def needle(self) -> bytes:
        """Returns bytes that every matching line contains, so that other lines need no parsing."""
        wanted = (one for one in (self.run, self.event, self.session, self.channel) if one)
        plain = (one for one in wanted if one.isascii() and json.dumps(one) == f'"{one}"')
        return max((one.encode() for one in plain), key=len, default=b"")

    def fits(self, line: Line) -> bool:
        level = line.get("level")
        if level in LEVELS and LEVELS.index(level) < LEVELS.index(self.level):
            return False
        if self.since is not None and str(line.get("at", "")) < stamp(self.since):
            return False
        wanted = {name: getattr(self, name) for name in ("run", "session", "channel", "event")}
        return all(line.get(name) == one for name, one in wanted.items() if one is not None)


# -- the lines of a journal


class _JournalLines:
    """Builds log lines from the entries of a journal. A line after a wait gets the time of the next
    reading of the clock."""

    def __init__(self, common: Line, at: datetime) -> None:
        self.lines: list[dict[str, Any]] = []
        self._common, self._at = common, stamp(at)
        self._open: list[dict[str, Any]] = []
        self._settings: Mapping[str, Any] = {}

    def add(self, event: str, at: str | None = None, level: str = "info", **facts: object) -> None:
        line = {"at": at or self._at, "level": level, "event": event, "logger": JOURNAL}
        self.lines.append({**line, **self._common, **facts})

    def read(self, entry: Sequence[Any]) -> None:
        match entry:
            case ["at", int(micros), *_]:
                self._at = stamp(to_time(micros))
                for line in self._open:
                    line["at"] = self._at
                self._open.clear()
                return
            case ["attempt", int(number), [*runs]]:
                self.add("attempt_started", attempt=number, answers=runs)
            case ["ask", dict(changes)]:
                self._settings = changes.get("settings", self._settings)
                self.add("model_asked", provider=self._of("provider"), model=self._of("model"))
                return
            case ["reply", *_]:
                self.add("model_replied", provider=self._of("provider"), model=self._of("model"))
            case ["failed", failure]:
                self._add_failure(failure or {})
            case ["refused", kind, str(name), unit, used, limit, reserved, *_]:
                self._add_refusal(Scope(kind, name), unit, used, reserved, limit)
            case _:
                return
        self._open.append(self.lines[-1])

    def _add_failure(self, failure: Mapping[str, Any]) -> None:
        """Adds a model's failure; journals of earlier versions record no details."""
        names = {"provider": self._of("provider"), "model": self._of("model")}
        about = _some(failure, ("kind", "status", "attempts"))
        why = {"why": failure["detail"]} if failure else {}
        self.add("model_failed", None, "warning", **names, **about, **why)

    def _add_refusal(self, scope: Scope, unit: Unit, *amounts: int) -> None:
        """Adds a refusal; `amounts` are used, reserved and the limit."""
        shown_amounts = [in_unit(unit, one) for one in amounts]
        about = dict(zip(("used", "reserved", "limit"), shown_amounts, strict=True))
        self.add("budget_refused", None, "warning", scope=str(scope), **about, unit=unit)

    def chunk(self, chunk: Line) -> None:
        match chunk.get("type"):
            case "tool_call":
                call = chunk["tool_call"]
                self.add("tool_called", tool=call["name"], id=call["id"])
            case "tool_result":
                call = chunk["tool_call"]
                level = "info" if call["status"] == "success" else "warning"
                about = _some(call, ("id", "status", "duration_ms"))
                self.add("tool_answered", None, level, tool=call["name"], **about)
            case "usage" if self.lines[-1]["event"] == "model_replied":
                self.lines[-1] |= _some(chunk, USED)
            case "error":
                self.add("run_ended", None, "warning", **_some(chunk, BROKEN))
            case "done":
                self.add("run_ended", **_some(chunk, ENDED))

    def _of(self, name: str) -> object:
        return self._settings.get(name)


def _some(chunk: Line, names: Sequence[str]) -> dict[str, Any]:
    return {name: chunk[name] for name in names if chunk.get(name) is not None}


def describe_run(history: RunHistory, decode: Callable[[bytes], Any]) -> Iterator[Line]:
    """Yields the log lines of a run in order, without any text of the conversation."""
    entry, new = history.record.entry, history.record.entry.new
    key = new.session_key
    ids = {"run": new.run_id, "session": str(key), "agent": key.agent, "channel": key.channel}
    lines = _JournalLines(ids, new.accepted_at)
    facts: dict[str, Any] = {
        "message": new.message_id,
        "seq": entry.seq,
        "characters": len(new.content),
    }
    lines.add("message_accepted", matched_by=new.matched_by, **facts)
    try:
        for line in lines_of(history.parts):
            if line[:1] == b"[":
                lines.read(decode(line))
            elif line[:1] == b"{":
                lines.chunk(decode(line))
    except (JournalUnreadable, ValueError) as error:
        lines.add("journal_unreadable", level="warning", why=str(error))
    finished = history.record.finished_at
    if finished is not None:
        outcome, attempts = history.record.outcome, entry.attempts
        lines.add("run_committed", stamp(finished), outcome=outcome, attempts=attempts)
    if (delivery := history.delivery) is not None:
        at = stamp(delivery.settled_at or delivery.due_at)
        level = "info" if delivery.state in {"pending", "sending", "sent"} else "warning"
        about = {"attempts": delivery.attempts, "why": delivery.why, "receipt": delivery.receipt}
        lines.add("delivery", at, level, state=delivery.state, **about)
    yield from sorted(lines.lines, key=_at)


def merge_lines(lines: Iterable[Line], journal: Iterable[Line]) -> Iterator[Line]:
    """Merges both by time; an event that both have is taken from the journal."""
    of_journal = list(journal)
    both = {line["event"] for line in of_journal}
    return merge(of_journal, (one for one in lines if one.get("event") not in both), key=_at)


def _at(line: Line) -> str:
    return str(line.get("at", ""))
