"""What people said and nobody has looked at yet for facts: kept per session, over restarts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gateway.domain.ids import NodeId, RunId, SessionKey


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a person; `sender` differs from the session's peer in a room."""

    message_id: NodeId
    run_id: RunId
    sender: str | None
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Heard:
    """A stretch of a session: what people said in it, and its last node; None: it is empty."""

    said: tuple[Said, ...] = ()
    upto: NodeId | None = None


class Hearing(Protocol):
    """Two readers: patterns look at everything that is ever said, a model at what it was owed. A
    node that is gone is passed over. Nothing here has an fsync of its own: what a crash undoes is
    looked at again. Raises StoreUnavailable."""

    async def behind(self) -> Sequence[SessionKey]:
        """Sessions in which patterns have not looked at everything."""
        ...

    async def next(self, key: SessionKey, *, limit: int) -> Heard:
        """The `limit` nodes after those that patterns have looked at."""
        ...

    async def looked(self, upto: Mapping[SessionKey, NodeId]) -> None: ...

    async def owe(self, key: SessionKey, since: NodeId) -> None:
        """A model has to look at that node and all after it, as far as it has not: besides what it
        is owed already."""
        ...

    async def owed(self) -> Sequence[SessionKey]: ...

    async def next_owed(self, key: SessionKey, *, limit: int) -> Heard: ...

    async def read(self, key: SessionKey, upto: NodeId) -> bool:
        """A model has looked at it; whether more is owed."""
        ...
