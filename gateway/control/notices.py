"""Events told to whoever listens, and notices that wait for their moment in a run."""

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Literal, get_args

from gateway.domain.events import CLOSING, OPENING, Event, Notice, Point, Priority
from gateway.domain.mcp import FAMILY, UnreachableServer
from gateway.domain.messages import Chunk

log = logging.getLogger(__name__)

Listener = Callable[[Event], None]
MOST_DEPTH = 8  # an event that is caused by an event that is caused by an event …
MOST_CAUSED = 4_000  # events in all that come of one: each may cause several, and each of those
MOST_WAITING = 1_000  # events that listeners caused and that nobody has heard yet
MOST_REMEMBERED = 1_000  # types of events


class _Heard(dict[str, bool]):
    """Whether anybody listens, found once for each type of event until a listener comes or goes."""

    def __init__(self, listeners: Mapping[object, tuple[Listener, frozenset[str] | None]]) -> None:
        self._listeners = listeners

    def __missing__(self, event_type: str) -> bool:
        types_of = (types for _, types in self._listeners.values())
        found = any(types is None or event_type in types for types in types_of)
        if len(self) < MOST_REMEMBERED:
            self[event_type] = found
        return found


class Bus:
    """Delivers events to listeners, in one thread. An event that a listener publishes is delivered after
    the one that caused it."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[Listener, frozenset[str] | None]] = {}
        self._heard = _Heard(self._listeners)
        # Whether anybody listens to events of this type.
        self.hears: Callable[[str], bool] = self._heard.__getitem__
        self._waiting: deque[tuple[Event, int]] = deque()
        self._depth = 0  # of the event that is being told; 0: none is
        self._caused = 0  # by the event that was published first
        self._has_refused = False
        self._dropped = 0

    def subscribe(
        self, listener: Listener, *, types: frozenset[str] | None = None
    ) -> Callable[[], None]:
        """Calls the listener for events of these types, or of all, until the returned function is called."""
        mine = object()
        self._listeners[mine] = (listener, types)
        self._heard.clear()

        def stop() -> None:
            self._listeners.pop(mine, None)
            self._heard.clear()

        return stop

    def publish(self, event: Event) -> None:
        if not self._listeners:
            return
        if self._depth >= MOST_DEPTH or self._caused > MOST_CAUSED:
            if not self._has_refused:  # once for all events that one event caused
                log.error("event_chain_cut", extra=_facts(event))
            self._has_refused = True
            return
        self._caused += 1
        self._waiting.append((event, self._depth + 1))
        if len(self._waiting) > MOST_WAITING:
            self._make_room()
        if not self._depth:
            self._tell_all()

    def _tell_all(self) -> None:
        try:
            while self._waiting:
                event, self._depth = self._waiting.popleft()
                self._tell(event)
                if self._dropped and not self._waiting:
                    self._tell_of_dropped(event)
        finally:
            self._depth = self._caused = 0
            self._has_refused = False

    def _tell(self, event: Event) -> None:
        for mine, (listener, types) in tuple(self._listeners.items()):
            if mine not in self._listeners or (types is not None and event.type not in types):
                continue
            try:
                listener(event)
            except Exception:  # one bad listener disturbs no other
                log.exception("event_listener_failed", extra=_facts(event))

    def _make_room(self) -> None:
        """Drops the oldest event that nobody needs. Warnings, errors and ends stay, even beyond the bound."""
        for place, (event, _) in enumerate(self._waiting):
            if event.severity in {"debug", "info"} and event.type != "session.end":
                del self._waiting[place]
                self._dropped += 1
                return

    def _tell_of_dropped(self, last: Event) -> None:
        count, self._dropped = self._dropped, 0
        log.warning("events_dropped", extra={"count": count})
        told = Event("bus.dropped", "warning", "bus", last.at, None, None, {"n": count})
        self._waiting.append((told, min(self._depth + 1, MOST_DEPTH)))  # however deep it was


def _facts(event: Event) -> dict[str, str]:
    return {"event": event.type, "source": event.source}


Moment = Literal["immediate", "turn_start", "after_tool"]
MOST_NOTICES = 256
MOST_CONTENT = 2_000  # characters that a model is told of one notice
MOST_CELL = 200
Cell = str | int | float | bool | None

_RANK: Mapping[Priority, int] = {name: rank for rank, name in enumerate(get_args(Priority))}
_TOLD_AT: Mapping[Moment, frozenset[Point]] = {
    "immediate": frozenset({"immediate", "deferred"}),
    "turn_start": frozenset({"immediate", "deferred", "turn_start", "cross_session"}),
    "after_tool": frozenset({"immediate", "deferred", "after_tool"}),
}
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(slots=True)
class _Waiting:
    notice: Notice
    turn: int  # in which it came
    tool_came: bool


@dataclass(slots=True)
class _Batch:
    number: int
    since: datetime
    size: int = 1


@dataclass(slots=True, eq=False)
class Notices:
    """The notices of one run. Each is told once, unless it expires first."""

    waiting: list[_Waiting] = field(default_factory=list)
    turn: int = 0  # of the run, when something was told last
    _known_until: dict[tuple[str, str | None], datetime] = field(
        default_factory=dict
    )  # by source and key
    _batches: dict[str, _Batch] = field(default_factory=dict)  # the newest of each source
    _numbers: int = 0

    def push(self, notice: Notice, now: datetime) -> bool:
        """False: it has expired, is a repetition, or too many wait already."""
        if len(self.waiting) >= MOST_NOTICES:
            log.warning("notice_queue_full", extra={"source": notice.source})
            return False
        if not self.is_news(notice, now):
            return False
        numbered = replace(notice, batch=self._batch_of(notice, now))
        self.waiting.append(_Waiting(numbered, self.turn, notice.after_tool is None))
        return True

    def is_news(self, notice: Notice, now: datetime) -> bool:
        """False if it has expired or repeats another. From now on a repetition of this one is known."""
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
        """What is to be told now, the most urgent first. `tools` have run since the last time."""
        self.turn = turn
        due: list[_Waiting] = []
        rest: list[_Waiting] = []
        for one in self.waiting:
            one.tool_came = one.tool_came or one.notice.after_tool in tools
            if _has_expired(one.notice, now):
                continue
            is_due = one.notice.inject_at in _TOLD_AT[point] and _has_come(one, turn, holds)
            (due if is_due else rest).append(one)
        self.waiting = rest
        due.sort(key=lambda one: _RANK[one.notice.priority])
        return tuple(one.notice for one in due)


def _has_expired(notice: Notice, now: datetime) -> bool:
    return notice.expires_at is not None and notice.expires_at <= now


def _has_come(one: _Waiting, turn: int, holds: Callable[[str], bool]) -> bool:
    notice = one.notice
    if not one.tool_came or turn - one.turn < notice.after_turns:
        return False
    return notice.when is None or holds(notice.when)


def notice_block(notices: Iterable[Notice]) -> str:
    """One block of text, or none if no notice is for the model. A notice cannot break out of the
    block: its line breaks and tags are escaped."""
    groups: dict[object, list[Notice]] = {}
    for notice in notices:
        if notice.to != "client":
            same = (notice.batch, notice.source, notice.priority, *_cells(notice))
            groups.setdefault(same if notice.batch else object(), []).append(notice)
    told = "\n".join(line for group in groups.values() for line in _lines(group) if line)
    return f"{OPENING}\n{told}\n{CLOSING}" if told else ""


def _lines(group: Sequence[Notice]) -> Iterable[str]:
    """The first notice of a batch in its own words, then a table of all of them."""
    first = group[0]
    columns = tuple(_cells(first))
    if len(group) == 1 or not columns:
        return dict.fromkeys(_line(notice.content, MOST_CONTENT) for notice in group)
    name = _line(first.source.rpartition(":")[2], MOST_CELL)
    rows = [tuple(_cells(notice).values()) for notice in group]
    return _line(first.content, MOST_CONTENT), table(name, columns, rows)


def _cells(notice: Notice) -> dict[str, Cell]:
    """The parts of its data that fit into a table."""
    return {
        _line(key, MOST_CELL): _line(value, MOST_CELL) if isinstance(value, str) else value
        for key, value in notice.data.items()
        if isinstance(value, Cell)
    }


def _line(text: str, most: int) -> str:
    text = " ".join(_CONTROLS.sub(" ", text).split())
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text.replace("<", "&lt;")


def notice_of(lacking: UnreachableServer) -> Notice:
    """The notice about a server that is not available."""
    return Notice(lacking.why, "high", source=f"{FAMILY}{lacking.server}")


def notice_chunk(notice: Notice, at: datetime) -> Chunk:
    """The chunk that tells a client of a notice."""
    metadata = {"source": notice.source, "priority": notice.priority}
    if notice.source.startswith(FAMILY):
        server = notice.source.removeprefix(FAMILY)
        metadata |= {"error_type": "mcp_connection_error", "server": server}
    return Chunk(
        "system",
        {
            "system_type": "notice",
            "system_message": notice.content,
            "metadata": metadata,
            "timestamp": at,
        },
    )


# Rows as a compact table that models read well: the tabular form of TOON, with its quoting.
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_LIKE_A_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRUCTURE = re.compile(r'[,:"\\\[\]{}\x00-\x1f]')
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_SHORT_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def table(name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """`name[n]{columns}:` and a line for each row."""
    head = f"{_key(name)}[{len(rows)}]{{{','.join(map(_key, columns))}}}:"
    return "\n".join((head, *("  " + ",".join(map(_cell, row)) for row in rows)))


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        return value if _is_plain(value) else _quoted(value)
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
    return text if _PLAIN_KEY.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    def escaped(match: re.Match[str]) -> str:
        return _SHORT_ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}"

    return f'"{_ESCAPED.sub(escaped, text)}"'
