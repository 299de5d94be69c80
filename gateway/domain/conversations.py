"""What may be done to a whole conversation: begun anew, marked, taken in, erased; and the ports."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Protocol

from gateway.domain.errors import GatewayError
from gateway.domain.ids import NodeId, RunId, SessionKey
from gateway.domain.messages import Node

IMPORTED = RunId("imported")  # of messages that no run of ours made
_MOST_NAMES = 9


class ImportRefused(GatewayError):
    """It names the place in what was given; nothing was taken in."""

    code = "bad_import"


@dataclass(frozen=True, slots=True)
class TakenIn:
    """`added`: the others were there before."""

    added: int
    head: NodeId | None


@dataclass(frozen=True, slots=True)
class Erased:
    """What went, or would go; the tombstone tells nobody what it was."""

    messages: int
    facts: int
    tombstone: str | None = None


class Conversations(Protocol):
    """Durable, all of it. Raises NotFound, StoreUnavailable."""

    async def begin(self, key: SessionKey, *, now: datetime) -> None:
        """HEAD goes to no message: the next one is a root. Makes the session if there is none."""
        ...

    async def label(self, key: SessionKey, node: NodeId, label: str | None) -> None:
        """A label that another node of the session has moves here; None: it has none any more."""
        ...

    async def checkpoint(self, key: SessionKey, node: NodeId, *, is_kept: bool) -> None:
        """A checkpoint and the path to it are never archived."""
        ...

    async def take_in(self, key: SessionKey, nodes: Sequence[Node], *, now: datetime) -> TakenIn:
        """Nodes that are not there yet, each under its `parent_id`: one of the session, or one
        before it. HEAD goes along where they grow from it. Raises ImportRefused."""
        ...


class Erasures(Protocol):
    async def erase(self, key: SessionKey, *, by: str, dry_run: bool, now: datetime) -> Erased:
        """All that was said in a session, whatever was made of it, and the facts that were learned
        there: gone for good in ONE durable commit; ids, counts, ledger and audit stay. Raises
        NotFound, StoreUnavailable, and Busy while a run of the session has not ended."""
        ...


def not_there_yet(
    key: SessionKey, nodes: Sequence[Node], is_known: Callable[[NodeId], bool | None]
) -> list[Node]:
    """Those that the session does not know, with the ids that they get; `is_known` says None of an
    id that is taken by somebody else. Raises ImportRefused."""
    names: dict[NodeId, NodeId] = {}
    new: list[Node] = []

    def name_of(place: int, given: NodeId) -> tuple[NodeId, bool]:
        for name in _names_for(key, given):
            known = is_known(name)
            if known is not None:
                return name, known
        raise ImportRefused(f"messages[{place}].id: {given[:64]!r} is taken: give it another one")

    for place, node in enumerate(nodes):
        parent = node.parent_id
        if parent is not None and parent not in names:
            names[parent], known = name_of(place, parent)
            if not known:
                where = f"messages[{place}].parent_id: {parent[:64]!r}"
                raise ImportRefused(f"{where} is neither in this session nor before it")
        if node.id not in names:
            names[node.id], known = name_of(place, node.id)
            if not known:
                above = None if parent is None else names[parent]
                new.append(replace(node, id=names[node.id], parent_id=above))
    return new


def _names_for(key: SessionKey, node_id: NodeId) -> Iterator[NodeId]:
    """Its own, and others where that one is taken."""
    yield node_id
    of_session = sha256(str(key).encode()).hexdigest()[:8]
    for number in range(1, _MOST_NAMES):
        yield NodeId(f"{node_id}~{of_session}{number}")
