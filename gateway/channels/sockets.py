"""WebSockets that adapters describe: what to do with each frame, decided without any I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic_core import from_json

from gateway.channels.adapters import Act, FrameRule, Socket, Table
from gateway.channels.encoding import readable
from gateway.channels.recipes import RecipeUnfilled, Values, at, fill_frame, fits

LONGEST_KEPT = 2_048  # characters of a value
_BEAT_MS = (1_000, 3_600_000)  # no platform sets another pace

Kept = dict[str, object]


@dataclass(frozen=True, slots=True)
class Send:
    text: str


@dataclass(frozen=True, slots=True)
class Take:
    """An event: to be committed with what the session keeps from then on, then acknowledged."""

    frame: str
    kept: Kept
    acknowledge: str | None


@dataclass(frozen=True, slots=True)
class Ready:
    """The session stands; what is kept of it lasts."""

    kept: Kept


@dataclass(frozen=True, slots=True)
class Beat:
    every_s: float


@dataclass(frozen=True, slots=True)
class Alive:
    """The platform answered a heartbeat."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Another connection is to be opened, and then this one closed."""


@dataclass(frozen=True, slots=True)
class Leave:
    """This connection is over; with `is_final` no other one helps."""

    why: str
    is_final: bool = False
    is_asked: bool = False  # by the platform: nothing is wrong


Wish = Send | Take | Ready | Beat | Alive | Renew | Leave


class Machine:
    """One connection of a session. Told what happens, it says what is to be done, in order.

    `kept` is what the session keeps, and outlives the connection; whoever carries a Take out puts
    its `kept` there once it is committed.
    """

    def __init__(self, socket: Socket, kept: Kept, values: Values) -> None:
        self._socket, self.kept, self._values = socket, kept, values
        self._is_beating = False
        self._unanswered = False

    @property
    def says_ready(self) -> bool:
        """Whether the platform tells that a session stands."""
        return any("ready" in rule.do for rule in self._socket.frames)

    def opened(self) -> list[Wish]:
        return list(self._begin_beating({}))

    def told(self, text: str) -> list[Wish]:
        """A frame came. Raises RecipeUnfilled, Denied."""
        try:
            frame = from_json(readable(text), allow_inf_nan=False)
        except ValueError:
            return [Leave("the platform sent a frame that is no JSON")]
        rule = next((rule for rule in self._socket.frames if fits(rule.when, frame)), None)
        return [] if rule is None else list(self._follow(rule, frame, text))

    def beat_due(self) -> list[Wish]:
        heartbeat = self._socket.heartbeat
        if heartbeat is None:
            return []
        if self._unanswered:
            return [Leave("the platform did not answer a heartbeat")]
        self._unanswered = heartbeat.needs_answer
        return [Send(self._beat(heartbeat.frame))]

    def closed(self, code: int | None) -> list[Wish]:
        if code in self._socket.fresh_codes:
            self.kept.clear()
        reason = self._socket.reasons.get(str(code))
        told = f"the platform closed the connection (code {code})"
        told = f"{reason} ({told})" if reason else told
        return [Leave(told, is_final=code in self._socket.fatal_codes)]

    def _follow(self, rule: FrameRule, frame: object, text: str) -> Iterator[Wish]:
        new = {**self.kept, **_picked(rule.keep, frame)}
        if "event" not in rule.do:
            self.kept.update(new)
        yield from self._begin_beating(new)
        for act in rule.do:
            yield from self._wishes(act, new, frame, text)

    def _wishes(self, act: Act, new: Kept, frame: object, text: str) -> Iterator[Wish]:
        match act:
            case "event":
                yield Take(text, new, self._acknowledgement(frame))
            case "identify":
                yield Send(self._introduction())
            case "beat" if self._socket.heartbeat is not None:
                yield Send(self._beat(self._socket.heartbeat.frame))
            case "alive":
                self._unanswered = False
                yield Alive()
            case "ready":
                yield Ready(new)
            case "reconnect":
                yield Leave("the platform asked for another connection", is_asked=True)
            case "renew":
                yield Renew()
            case "forget":
                self.kept.clear()

    def _begin_beating(self, kept: Mapping[str, object]) -> Iterator[Wish]:
        heartbeat = self._socket.heartbeat
        if heartbeat is None or self._is_beating:
            return
        told = kept.get(heartbeat.kept_ms) if heartbeat.kept_ms is not None else None
        own_ms = None if heartbeat.every_s is None else heartbeat.every_s * 1_000
        every_ms = told if isinstance(told, int | float) else own_ms
        if every_ms is not None:
            self._is_beating = True
            yield Beat(min(max(every_ms, _BEAT_MS[0]), _BEAT_MS[1]) / 1_000)

    def _introduction(self) -> str:
        """Of a session that goes on, if all of it is kept; else of a new one."""
        values = replace(self._values, kept=self.kept)
        if self._socket.resume is not None:
            try:
                return fill_frame(self._socket.resume, values)
            except RecipeUnfilled as error:
                if not error.name.startswith("kept."):
                    raise
        return fill_frame(self._socket.identify or {}, values)

    def _beat(self, frame: Table) -> str:
        """What was not kept yet is null in it."""
        return fill_frame(frame, replace(self._values, kept=self.kept), null_for="kept.")

    def _acknowledgement(self, frame: object) -> str | None:
        if self._socket.acknowledge is None:
            return None
        try:
            return fill_frame(self._socket.acknowledge, replace(self._values, frame=frame))
        except RecipeUnfilled:
            return None  # a frame without an id wants no acknowledgement


def _picked(keep: Mapping[str, str], frame: object) -> Kept:
    """Single values only, and none of any length: they are written with every event."""
    found = {name: at(frame, path) for name, path in keep.items()}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, bool | int | float)
        or (isinstance(value, str) and len(value) <= LONGEST_KEPT)
    }
