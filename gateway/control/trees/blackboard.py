"""What a run knows: typed keys in frames, time, wake-ups, and why a node failed last."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.control.trees.plan import FAILED, Key, NodePlan
from gateway.control.trees.types import ANY, KeyType
from gateway.domain.errors import GatewayError

Emit = Callable[[str, Mapping[str, object]], None]


MOST_WORK = 1_000  # items of loops, and events, before something happens outside
MOST_PARTS = 10_000  # of a value
PARTS_A_WORK = 100  # to look at so many is as much work as an event


class TooMuch(GatewayError):
    """A tree that goes on by itself for too long: nothing else would have its turn."""

    code = "internal_error"


class BadWrite(GatewayError):
    """A key that is not there, or a value that it does not take."""

    code = "bad_write"


@dataclass(slots=True, eq=False)
class Ground:
    """What all nodes and frames of a run share."""

    file: str
    now: Callable[[], float]
    emit: Emit
    woken: Callable[[], None]  # something happened outside of a tick
    roots: Mapping[str, object]  # what the host lets trees look up
    watched: frozenset[str] = frozenset()  # keys whose writers wake the run
    timers: dict[object, float] = field(default_factory=dict)  # who waits -> until when
    is_awake: bool = True  # another tick makes sense
    is_ticking: bool = False
    has_heard: bool = False  # something came from outside since the last tick
    work: int = 0  # done since then
    _note: tuple[NodePlan, str, str] | None = None

    def spend(self, work: int = 1) -> None:
        """Raises TooMuch."""
        self.work += work
        if self.work > MOST_WORK:
            raise TooMuch(f"more than {MOST_WORK} items and events, and nothing happened meanwhile")

    def wake(self) -> None:
        """Asks for another tick; during a tick it is the tree itself that asks."""
        self.is_awake = True
        if not self.is_ticking:
            self.has_heard = True
            self.woken()

    def note(self, plan: NodePlan, kind: str, message: str) -> None:
        """A reason that says nothing does not replace one that the same node has just given."""
        if message or self._note is None or self._note[0] is not plan:
            self._note = (plan, kind, message)

    @property
    def failure(self) -> Mapping[str, object] | None:
        """Why a node failed last."""
        if self._note is None:
            return None
        plan, kind, message = self._note
        return {
            "node": plan.label,
            "path": plan.path,
            "file": self.file,
            "line": plan.line,
            "type": kind,
            "message": message or f"{plan.label} failed",
        }


@dataclass(slots=True, eq=False)
class Frame:
    """Keys with their values; what is not here is in the frame outside, and then among the roots."""

    ground: Ground
    values: dict[str, object]
    types: Mapping[str, KeyType]
    outer: "Frame | None" = None
    links: dict[str, "tuple[Frame, str]"] = field(default_factory=dict)  # keys that are another's
    is_item: bool = False  # of a `for-each`: its node gives a "result"

    def get(self, name: str, /) -> object:
        values = self.values
        if name in values:
            return values[name]
        if name in self.links:
            frame, key = self.links[name]
            return frame.get(key)
        if self.outer is not None:
            return self.outer.get(name)
        return self.ground.failure if name == FAILED else self.ground.roots.get(name)

    def set(self, name: str, value: object) -> None:
        """Raises BadWrite."""
        if name in self.links:
            frame, key = self.links[name]
            frame.set(key, value)
        elif name in self.values:
            self._put(name, value)
        elif self.outer is not None:
            self.outer.set(name, value)
        else:
            raise BadWrite(f"the blackboard has no key {name!r}")

    def has(self, name: str) -> bool:
        is_here = name in self.values or name in self.links
        return is_here or (self.outer is not None and self.outer.has(name))

    def item(self) -> "Frame | None":
        """The innermost loop's frame around this place."""
        if self.is_item or self.outer is None:
            return self if self.is_item else None
        return self.outer.item()

    def _put(self, name: str, value: object) -> None:
        wanted = self.types.get(name, ANY)
        if not wanted.accepts(value):
            raise BadWrite(f"{name} is {wanted}, and not {type(value).__name__}")
        if isinstance(value, list | dict):
            parts = parts_of(value)
            self.ground.spend(parts // PARTS_A_WORK)
            if parts > MOST_PARTS:
                raise BadWrite(f"{name} cannot hold more than {MOST_PARTS} parts")
        if self.values[name] is not value:
            self.values[name] = value
            if name in self.ground.watched:
                self.ground.wake()


def defaults(schema: Mapping[str, Key]) -> dict[str, object]:
    """A copy: runs share a plan and not its lists."""
    return {name: _copied(key.default) for name, key in schema.items()}


def _copied(value: object) -> object:
    if isinstance(value, list):
        return [_copied(one) for one in value]
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return value


def parts_of(value: object) -> int:
    """How much there is to compare or to write: what it holds twice counts twice. Beyond MOST_PARTS
    nobody counts on."""
    waiting, count = [value], 0
    while waiting and count <= MOST_PARTS:
        one = waiting.pop()
        if isinstance(one, list | tuple | dict):
            count += len(one)
            if count <= MOST_PARTS:
                waiting.extend(one.values() if isinstance(one, dict) else one)
    return count
