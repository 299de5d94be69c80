"""All connections there are, of both kinds: how many and whose, how they are asked to leave, when all
have."""

import asyncio
import heapq
import random
from collections import Counter
from typing import Protocol

import anyio
from uvicorn.server import ServerState

from gateway.web.settings import WebSettings
from gateway.web.wire.visitors import IpAddress, Reception, place_of

_REFUSED_AT_ONCE = 256
_REFUSED_OF_ADDRESS = 16


class Backlog:
    """Bytes that wait for their readers, of all connections."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Guest(Protocol):
    @property
    def is_known(self) -> bool:
        """Whether what it sends now came with a credential."""
        ...

    def shutdown(self) -> None:
        """Leaves as soon as it politely can."""
        ...

    def make_room(self) -> None:
        """Leaves, and is told that there are too many."""
        ...

    def cut(self) -> None:
        """Leaves now."""
        ...


class Lobby:
    """The server's own set of connections, counted and waited for."""

    def __init__(self, settings: WebSettings) -> None:
        self.state = ServerState()
        self.backlog = Backlog()
        self._guests: set[Guest] = self.state.connections  # type: ignore[assignment]  # ours too
        self.renew(settings)
        self._left = anyio.Event()
        self._places: dict[Guest, str] = {}  # by address; those on loopback have none
        self._crowds: Counter[str] = Counter()  # guests of each place
        self._strangers: dict[Guest, float] = {}  # unauthenticated, since when
        self._thinning: asyncio.TimerHandle | None = None

    def renew(self, settings: WebSettings) -> None:
        """From now on guests are counted and bounded so; who is there stays."""
        self._settings, self.reception = settings, Reception(settings.trusted_proxies)

    def __len__(self) -> int:
        return len(self._guests)

    @property
    def is_full(self) -> bool:
        return len(self._guests) > self._settings.max_connections

    @property
    def is_overrun(self) -> bool:
        """Too full even for saying so."""
        return len(self._guests) > self._settings.max_connections + _REFUSED_AT_ONCE

    def leave(self, guest: Guest) -> None:
        self._guests.discard(guest)
        self._strangers.pop(guest, None)
        self._clear_place(guest)
        if not self._guests:
            self._left.set()
            if self._thinning is not None:
                self._thinning.cancel()
                self._thinning = None

    def change(self, guest: Guest, other: Guest) -> None:
        """The same connection as another guest, of whom nothing is known yet."""
        self._guests.discard(guest)
        self._strangers.pop(guest, None)
        self._guests.add(other)
        if place := self._places.pop(guest, None):
            self._places[other] = place
        self.doubt(other)

    # whose they are

    def settle(self, guest: Guest, address: IpAddress | None) -> bool:
        """Counts it at that address, and nowhere else; False: there are too many."""
        self._clear_place(guest)
        if address is None or address.is_loopback:
            return True
        place = self._places[guest] = place_of(address)
        self._crowds[place] += 1
        return self._crowds[place] <= self._settings.max_connections_per_address

    def is_besieged(self, guest: Guest) -> bool:
        """Too many of its address even for saying so."""
        crowd = self._crowds[self._places.get(guest, "")]
        return crowd > self._settings.max_connections_per_address + _REFUSED_OF_ADDRESS

    def _clear_place(self, guest: Guest) -> None:
        place = self._places.pop(guest, None)
        if place is not None:
            self._crowds[place] -= 1
            if not self._crowds[place]:
                del self._crowds[place]

    def know(self, guest: Guest) -> None:
        """It has brought a credential, or is answered just now."""
        self._strangers.pop(guest, None)

    def doubt(self, guest: Guest) -> None:
        """It has brought no credential. It may do so within a moment, however many there are."""
        if guest not in self._guests:
            return
        loop, settings = asyncio.get_running_loop(), self._settings
        self._strangers.setdefault(guest, loop.time())
        if self._thinning is None and len(self._strangers) > settings.max_unauthenticated:
            self._thinning = loop.call_later(settings.unauthenticated_grace_s, self._thin_out)

    def _thin_out(self) -> None:
        """Who holds most seats loses the newest of them: nobody can take those of others."""
        loop, settings = asyncio.get_running_loop(), self._settings
        for guest in [guest for guest in self._strangers if guest.is_known]:
            del self._strangers[guest]
        late = loop.time() - settings.unauthenticated_grace_s
        old = [guest for guest, since in self._strangers.items() if since <= late]
        for guest in self._newest_of_most(old, len(old) - settings.max_unauthenticated):
            del self._strangers[guest]
            guest.make_room()
        self._thinning = None
        if len(self._strangers) > settings.max_unauthenticated:
            wait_s = settings.unauthenticated_grace_s / 2
            self._thinning = loop.call_later(wait_s, self._thin_out)

    def _newest_of_most(self, guests: list[Guest], number: int) -> list[Guest]:
        """So many of them, each the newest of the address that then has most."""
        by_place: dict[str, list[Guest]] = {}
        for guest in guests:
            by_place.setdefault(self._places.get(guest, ""), []).append(guest)
        sizes = [(-len(crowd), place) for place, crowd in by_place.items()]
        heapq.heapify(sizes)
        found: list[Guest] = []
        while len(found) < number:
            size, place = heapq.heappop(sizes)
            found.append(by_place[place].pop())
            if size < -1:
                heapq.heappush(sizes, (size + 1, place))
        return found

    # how they leave

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
