"""All connections there are, of both kinds: how many, how they are asked to leave, when all have."""

import random
from typing import Protocol

import anyio
from uvicorn.server import ServerState

from gateway.web.outgoing import Backlog

_REFUSED_AT_ONCE = 256


class Guest(Protocol):
    def shutdown(self) -> None:
        """Leaves as soon as it politely can."""
        ...

    def cut(self) -> None:
        """Leaves now."""
        ...


class Lobby:
    """The server's own set of connections, counted and waited for."""

    def __init__(self, limit: int) -> None:
        self.state = ServerState()
        self._guests: set[Guest] = self.state.connections  # type: ignore[assignment]  # ours too
        self._limit = limit
        self._left = anyio.Event()
        self.backlog = Backlog()

    def __len__(self) -> int:
        return len(self._guests)

    @property
    def is_full(self) -> bool:
        return len(self._guests) > self._limit

    @property
    def is_overrun(self) -> bool:
        """Too full even for saying so."""
        return len(self._guests) > self._limit + _REFUSED_AT_ONCE

    def enter(self, guest: Guest) -> None:
        self._guests.add(guest)

    def leave(self, guest: Guest) -> None:
        self._guests.discard(guest)
        if not self._guests:
            self._left.set()

    def ask_all_to_leave(self) -> None:
        for guest in tuple(self._guests):
            guest.shutdown()

    def throw_all_out(self) -> None:
        for guest in tuple(self._guests):
            guest.cut()

    async def empty(self) -> None:
        """Returns when nobody is left."""
        while self._guests:
            self._left = anyio.Event()
            await self._left.wait()

    def farewell(self) -> str:
        """When to come back; not everybody in the same moment."""
        return f'{{"retry_after_s":{random.uniform(0.5, 5.0):.2f}}}'  # spread, not secret
