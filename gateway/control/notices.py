"""The bus that delivers events to listeners, and the notices that wait for their point in a run."""

import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Literal, TypeVar, get_args

from gateway.domain.events import CLOSING, OPENING, Event, Notice, Point, Priority
from gateway.domain.mcp import FAMILY, UnreachableServer
from gateway.domain.messages import Chunk

log = logging.getLogger(__name__)

T = TypeVar("T")
Listener = Callable[[Event], None]
MAX_CHAIN = 8  # length of a chain of events that cause each other
MAX_CAUSED = 4_000  # events in all that one event may cause
MAX_WAITING = 1_000  # events that listeners published and that are not delivered yet
MAX_CACHED = 1_000  # event types in a cache


class EventTypeCache(dict[str, T]):
    """A bounded cache of a function of event types."""

    def __init__(self, find: Callable[[str], T]) -> None:
        self._find = find

    def __missing__(self, event_type: str) -> T:
        found = self._find(event_type)
        if len(self) < MAX_CACHED:
            self[event_type] = found
        return found


class Bus:
    """Delivers events to listeners, in one thread. An event that a listener publishes is delivered
    after the event that caused it."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[Listener, frozenset[str] | None]] = {}
        self._listened = EventTypeCache(self._is_listened_to)  # cleared when the listeners change
        self.has_listener: Callable[[str], bool] = self._listened.__getitem__  # for an event type
        self._waiting: deque[tuple[Event, int]] = deque()
        self._depth = 0  # of the event in delivery; 0: none
        self._caused = 0  # number of events that the first event caused
        self._has_refused = False
        self._dropped = 0

    def subscribe(
        self, listener: Listener, *, types: frozenset[str] | None = None
    ) -> Callable[[], None]:
        """Adds a listener for these event types, or for all. Returns the function that removes it."""
        mine = object()
        self._listeners[mine] = (listener, types)
        self._listened.clear()

        def stop() -> None:
            self._listeners.pop(mine, None)
            self._listened.clear()

        return stop

    def _is_listened_to(self, event_type: str) -> bool:
        return any(types is None or event_type in types for _, types in self._listeners.values())

    def publish(self, event: Event) -> None:
        if not self._listeners:
            return
        if self._depth >= MAX_CHAIN or self._caused > MAX_CAUSED:
            if not self._has_refused:  # logged once per first event
                log.error("event_chain_cut", extra=_log_fields(event))
            self._has_refused = True
            return
        self._caused += 1
        self._waiting.append((event, self._depth + 1))
        if len(self._waiting) > MAX_WAITING:
            self._drop_one()
        if self._depth:
            return
        try:
            while self._waiting:
                event, self._depth = self._waiting.popleft()
                self._deliver(event)
                if self._dropped and not self._waiting:
                    self._report_dropped(event)
        finally:
            self._depth = self._caused = 0
            self._has_refused = False

    def _deliver(self, event: Event) -> None:
        for mine, (listener, types) in tuple(self._listeners.items()):
            if mine not in self._listeners or (types is not None and event.type not in types):
                continue
            try:
                listener(event)
            except Exception:  # a failing listener does not affect the others
                log.exception("event_listener_failed", extra=_log_fields(event))

    def _drop_one(self) -> None:
        """Drops the oldest event of low severity. Warnings, errors and session ends stay, even beyond
        the bound."""
        for place, (event, _) in enumerate(self._waiting):
            if event.severity in {"debug", "info"} and event.type != "session.end":
                del self._waiting[place]
                self._dropped += 1
                return

    def _report_dropped(self, last: Event) -> None:
        count, self._dropped = self._dropped, 0
        log.warning("events_dropped", extra={"count": count})
        report = Event("bus.dropped", "warning", "bus", last.at, None, None, {"n": count})
        self._waiting.append((report, min(self._depth + 1, MAX_CHAIN)))  # delivered at any depth


def _log_fields(event: Event) -> dict[str, str]:
    return {"event": event.type, "source": event.source}


Moment = Literal["immediate", "turn_start", "after_tool"]
MAX_NOTICES = 256
MAX_CONTENT = 2_000  # characters of one notice in the model's block
MAX_CELL = 200  # characters
Cell = str | int | float | bool | None

_RANK: Mapping[Priority, int] = {name: rank for rank, name in enumerate(get_args(Priority))}
_POINTS_AT: Mapping[Moment, frozenset[Point]] = {
    "immediate": frozenset({"immediate", "deferred"}),
    "turn_start": frozenset({"immediate", "deferred", "turn_start", "cross_session"}),
    "after_tool": frozenset({"immediate", "deferred", "after_tool"}),
}
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(slots=True)
class _Waiting:
    notice: Notice
    turn: int  # in which it was pushed
    tool_has_run: bool  # the tool that it waits for


@dataclass(slots=True)
class _Batch:
    number: int
    since: datetime
    size: int = 1


@dataclass(slots=True, eq=False)
class Notices:
    """The queue of notices of one run. Each notice is delivered once, unless it expires first."""

    waiting: list[_Waiting] = field(default_factory=list)
    turn: int = 0  # of the last `drain`
    # (source, dedupe key) -> time until which an equal notice is a repetition
    _known_until: dict[tuple[str, str | None], datetime] = field(default_factory=dict)
    _batches: dict[str, _Batch] = field(default_factory=dict)  # source -> its newest batch
    _numbers: int = 0

    def push(self, notice: Notice, now: datetime) -> bool:
        """Queues a notice. False: it has expired, it repeats another, or the queue is full."""
        if len(self.waiting) >= MAX_NOTICES:
            log.warning("notice_queue_full", extra={"source": notice.source})
            return False
        if not self.is_new(notice, now):
            return False
        numbered = replace(notice, batch=self._batch_of(notice, now))
        self.waiting.append(_Waiting(numbered, self.turn, notice.after_tool is None))
        return True

    def is_new(self, notice: Notice, now: datetime) -> bool:
        """True unless the notice has expired or repeats another. Remembers it, to find repetitions."""
        same = (notice.source, notice.dedupe_key)
        self._known_until = {key: at for key, at in self._known_until.items() if at > now}
        if _has_expired(notice, now) or same in self._known_until:
            return False
        if notice.dedupe_key is not None:
            self._known_until[same] = now + timedelta(seconds=notice.batching.dedupe_s)
        return True

    def _batch_of(self, notice: Notice, now: datetime) -> int:
        if notice.priority == "critical":
            return 0
        rules, batch = notice.batching, self._batches.get(notice.source)
        window = timedelta(seconds=rules.window_s)
        if batch is not None and batch.size < rules.most and now - batch.since <= window:
            batch.size += 1
            return batch.number
        self._numbers += 1
        self._batches[notice.source] = _Batch(self._numbers, now)
        return self._numbers

    def drain(
        self,
        point: Moment,
        *,
        turn: int,
        now: datetime,
        holds: Callable[[str], bool],
        tools: frozenset[str] = frozenset(),
    ) -> tuple[Notice, ...]:
        """Removes and returns the notices that are due, the most urgent first. `tools`: names of the
        tools that have run since the last call."""
        self.turn = turn
        due: list[_Waiting] = []
        rest: list[_Waiting] = []
        for one in self.waiting:
            notice = one.notice
            one.tool_has_run = one.tool_has_run or notice.after_tool in tools
            if _has_expired(notice, now):
                continue
            is_due = (
                notice.inject_at in _POINTS_AT[point]
                and one.tool_has_run
                and turn - one.turn >= notice.after_turns
                and (notice.when is None or holds(notice.when))
            )
            (due if is_due else rest).append(one)
        self.waiting = rest
        due.sort(key=lambda one: _RANK[one.notice.priority])
        return tuple(one.notice for one in due)


def _has_expired(notice: Notice, now: datetime) -> bool:
    return notice.expires_at is not None and notice.expires_at <= now


def notice_block(notices: Iterable[Notice]) -> str:
    """Renders the notices for the model as one block of text; "" if there is none. Line breaks and tags
    are escaped, so a notice cannot break out of the block."""
    groups: dict[object, list[Notice]] = {}
    for notice in notices:
        if notice.to != "client":
            same = (notice.batch, notice.source, notice.priority, *_cells(notice))
            groups.setdefault(same if notice.batch else object(), []).append(notice)
    text = "\n".join(line for group in groups.values() for line in _lines(group) if line)
    return f"{OPENING}\n{text}\n{CLOSING}" if text else ""


def _lines(group: Sequence[Notice]) -> Iterable[str]:
    """Renders a batch: the text of its first notice, then a table of the data of all of them."""
    first = group[0]
    columns = tuple(_cells(first))
    if len(group) == 1 or not columns:
        return dict.fromkeys(_line(notice.content, MAX_CONTENT) for notice in group)
    name = _line(first.source.rpartition(":")[2], MAX_CELL)
    rows = [tuple(_cells(notice).values()) for notice in group]
    return _line(first.content, MAX_CONTENT), render_table(name, columns, rows)


def _cells(notice: Notice) -> dict[str, Cell]:
    """Returns the scalar values of a notice's data."""
    return {
        _line(key, MAX_CELL): _line(value, MAX_CELL) if isinstance(value, str) else value
        for key, value in notice.data.items()
        if isinstance(value, Cell)
    }


def _line(text: str, most: int) -> str:
    text = " ".join(_CONTROLS.sub(" ", text).split())
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text.replace("<", "&lt;")


def unavailable_notice(server: UnreachableServer) -> Notice:
    """Returns the notice about an MCP server that is not available."""
    return Notice(server.why, "high", source=f"{FAMILY}{server.server}")


def notice_chunk(notice: Notice, at: datetime) -> Chunk:
    """Returns the chunk that shows a notice to a client."""
    metadata = {"source": notice.source, "priority": notice.priority}
    if notice.source.startswith(FAMILY):
        server = notice.source.removeprefix(FAMILY)
        metadata |= {"error_type": "mcp_connection_error", "server": server}
    shown = {"system_type": "notice", "system_message": notice.content}
    return Chunk("system", {**shown, "metadata": metadata, "timestamp": at})


# A compact table that models read well: the tabular form of TOON, with its quoting.
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_LIKE_A_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRUCTURE = re.compile(r'[,:"\\\[\]{}\x00-\x1f]')


def render_table(name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Renders `name[n]{columns}:` and one line per row."""
    head = f"{_key(name)}[{len(rows)}]{{{','.join(map(_key, columns))}}}:"
    return "\n".join((head, *("  " + ",".join(map(_cell, row)) for row in rows)))


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return "null"
    return str(int(value)) if value == int(value) else f"{Decimal(repr(value)):f}"


def _is_plain(text: str) -> bool:
    return not (
        not text
        or text[0] in " -#"
        or text[-1] == " "
        or text in {"true", "false", "null"}
        or _STRUCTURE.search(text)
        or _LIKE_A_NUMBER.fullmatch(text)
    )


def _key(text: str) -> str:
    return text if _PLAIN_KEY.fullmatch(text) else json.dumps(text, ensure_ascii=False)
