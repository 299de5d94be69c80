"""What stands for the older part of a conversation: its form, and the port that keeps it."""

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node


@dataclass(frozen=True, slots=True)
class Summary:
    """Stands for everything up to the node `covers`. `made` counts it and those folded into it."""

    covers: NodeId
    goal: str = ""
    decisions: tuple[str, ...] = ()  # all that were ever made
    facts: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    key_insight: str = ""
    symbols: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    made: int = 1
    text: str = ""  # as somebody else wrote it, whole


def to_plain(summary: Summary) -> dict[str, object]:
    return asdict(summary)


def from_plain(plain: object) -> Summary:
    """Raises ValueError for what `to_plain` never gives."""
    if not isinstance(plain, dict) or not isinstance(plain.get("covers"), str):
        raise ValueError("it is no summary")
    values: dict[str, Any] = {
        name: tuple(map(str, value)) if isinstance(value, list | tuple) else value
        for name, value in plain.items()
    }
    try:
        return Summary(**values)
    except TypeError as error:
        raise ValueError("it is no summary") from error


class Summaries(Protocol):
    """Keeps summaries where they belong: in the tree."""

    async def append(self, key: SessionKey, node: Node, *, expected: NodeId | None) -> bool:
        """Compare-and-set: under HEAD, which moves to it; False, and nothing written, if HEAD was
        not `expected`. Not fsynced. Raises NotFound for a session that is not there."""
        ...
