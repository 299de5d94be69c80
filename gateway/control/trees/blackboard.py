"""What a run knows: typed keys, frames for subtrees and loops, and what the host lets trees look up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.control.trees.plan import FAILED, Key
from gateway.control.trees.types import ANY, KeyType
from gateway.domain.errors import GatewayError


class BadWrite(GatewayError):
    """A key that is not there, or a value that it does not take."""

    code = "bad_write"


@dataclass(slots=True)
class Board:
    """What all frames of a run share."""

    roots: Mapping[str, object]
    failure: Callable[[], Mapping[str, object] | None]
    changed: Callable[[], None]  # a watched key was written
    watched: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Frame:
    """Keys with their values; what is not here is in the frame outside, and then among the roots."""

    board: Board
    values: dict[str, object]
    types: Mapping[str, KeyType]
    outer: "Frame | None" = None
    links: dict[str, "tuple[Frame, str]"] = field(default_factory=dict)  # keys that are another's

    def get(self, name: str, /) -> object:
        values = self.values
        if name in values:
            return values[name]
        if name in self.links:
            frame, key = self.links[name]
            return frame.get(key)
        if self.outer is not None:
            return self.outer.get(name)
        return self.board.failure() if name == FAILED else self.board.roots.get(name)

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

    def item(self) -> "Frame | None":
        """The innermost loop's frame around this place."""
        if "result" in self.values and self.types.get("result") is None:
            return self
        return self.outer.item() if self.outer is not None else None

    def _put(self, name: str, value: object) -> None:
        wanted = self.types.get(name, ANY)
        if not wanted.accepts(value):
            raise BadWrite(f"{name} is {wanted}, and not {type(value).__name__}")
        if self.values[name] is not value:
            self.values[name] = value
            if name in self.board.watched:
                self.board.changed()


def defaults(schema: Mapping[str, Key]) -> dict[str, object]:
    """A copy: runs share a plan and not its lists."""
    return {name: _copied(key.default) for name, key in schema.items()}


def _copied(value: object) -> object:
    if isinstance(value, list):
        return [_copied(one) for one in value]
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return value


def types(schema: Mapping[str, Key]) -> dict[str, KeyType]:
    return {name: key.type for name, key in schema.items()}
