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
from gateway.web.wire.visitors import IpAddress, VisitorReader, address_group

_REFUSED_AT_ONCE = 256
_REFUSED_OF_ADDRESS = 16


class Backlog:
    """Bytes that wait for their readers, of all connections."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class OpenConnection(Protocol):
    @property
    def is_known(self) -> bool:
        """Whether what it sends now came with a credential."""
        ...

    def shutdown(self) -> None:
        """Leaves as soon as it politely can."""
        ...

    def evict(self) -> None:
        """Leaves, and is told that there are too many."""
        ...

    def abort(self) -> None:
        """Leaves now."""
        ...


class Connections:
    """The server's own set of connections, counted and waited for."""

    def __init__(self, settings: WebSettings) -> None:
        self.state = ServerState()
        self.backlog = Backlog()
        self._open: set[OpenConnection] = self.state.connections  # type: ignore[assignment]  # ours too
        self.renew(settings)
        self._left = anyio.Event()
        self._groups: dict[OpenConnection, str] = {}  # by address; those on loopback have none
        self._group_sizes: Counter[str] = Counter()  # connections of each place
        self._unauthenticated: dict[OpenConnection, float] = {}  # unauthenticated, since when
        self._eviction: asyncio.TimerHandle | None = None

    def renew(self, settings: WebSettings) -> None:
        """From now on connections are counted and bounded so; who is there stays."""
        self._settings, self.visitor_reader = settings, VisitorReader(settings.trusted_proxies)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) > self._settings.max_connections

    @property
    def is_overrun(self) -> bool:
        """Too full even for saying so."""
        return len(self._open) > self._settings.max_connections + _REFUSED_AT_ONCE

    def remove(self, connection: OpenConnection) -> None:
        self._open.discard(connection)
        self._unauthenticated.pop(connection, None)
        self._forget_address(connection)
        if not self._open:
            self._left.set()
            if self._eviction is not None:
                self._eviction.cancel()
                self._eviction = None

    def replace(self, connection: OpenConnection, other: OpenConnection) -> None:
        """The same connection as another connection, of whom nothing is known yet."""
        self._open.discard(connection)
        self._unauthenticated.pop(connection, None)
        self._open.add(other)
        if place := self._groups.pop(connection, None):
            self._groups[other] = place
        self.mark_unknown(other)

    # whose they are

    def assign_address(self, connection: OpenConnection, address: IpAddress | None) -> bool:
        """Counts it at that address, and nowhere else; False: there are too many."""
        self._forget_address(connection)
        if address is None or address.is_loopback:
            return True
        place = self._groups[connection] = address_group(address)
        self._group_sizes[place] += 1
        return self._group_sizes[place] <= self._settings.max_connections_per_address

    def is_group_overrun(self, connection: OpenConnection) -> bool:
        """Too many of its address even for saying so."""
        crowd = self._group_sizes[self._groups.get(connection, "")]
        return crowd > self._settings.max_connections_per_address + _REFUSED_OF_ADDRESS

    def _forget_address(self, connection: OpenConnection) -> None:
        place = self._groups.pop(connection, None)
        if place is not None:
            self._group_sizes[place] -= 1
            if not self._group_sizes[place]:
                del self._group_sizes[place]

    def mark_known(self, connection: OpenConnection) -> None:
        """It has brought a credential, or is answered just now."""
        self._unauthenticated.pop(connection, None)

    def mark_unknown(self, connection: OpenConnection) -> None:
        """It has brought no credential. It may do so within a moment, however many there are."""
        if connection not in self._open:
            return
        loop, settings = asyncio.get_running_loop(), self._settings
        self._unauthenticated.setdefault(connection, loop.time())
        if self._eviction is None and len(self._unauthenticated) > settings.max_unauthenticated:
            self._eviction = loop.call_later(settings.unauthenticated_grace_s, self._evict_excess)

    def _evict_excess(self) -> None:
        """Who holds most seats loses the newest of them: nobody can take those of others."""
        loop, settings = asyncio.get_running_loop(), self._settings
        for connection in [
            connection for connection in self._unauthenticated if connection.is_known
        ]:
            del self._unauthenticated[connection]
        late = loop.time() - settings.unauthenticated_grace_s
        old = [connection for connection, since in self._unauthenticated.items() if since <= late]
        for connection in self._newest_of_largest_groups(
            old, len(old) - settings.max_unauthenticated
        ):
            del self._unauthenticated[connection]
            connection.evict()
        self._eviction = None
        if len(self._unauthenticated) > settings.max_unauthenticated:
            wait_s = settings.unauthenticated_grace_s / 2
            self._eviction = loop.call_later(wait_s, self._evict_excess)

    def _newest_of_largest_groups(
        self, connections: list[OpenConnection], number: int
    ) -> list[OpenConnection]:
        """So many of them, each the newest of the address that then has most."""
        by_place: dict[str, list[OpenConnection]] = {}
        for connection in connections:
            by_place.setdefault(self._groups.get(connection, ""), []).append(connection)
        sizes = [(-len(crowd), place) for place, crowd in by_place.items()]
        heapq.heapify(sizes)
        found: list[OpenConnection] = []
        while len(found) < number:
            size, place = heapq.heappop(sizes)
            found.append(by_place[place].pop())
            if size < -1:
                heapq.heappush(sizes, (size + 1, place))
        return found

    # how they leave

    def shut_down_all(self) -> None:
        for connection in tuple(self._open):
            connection.shutdown()

    def abort_all(self) -> None:
        for connection in tuple(self._open):
            connection.abort()

    async def wait_until_empty(self) -> None:
        """Returns when nobody is left."""
        while self._open:
            self._left = anyio.Event()
            await self._left.wait()

    def reconnect_hint(self) -> str:
        """When to come back; not everybody in the same moment."""
        return f'{{"retry_after_s":{random.uniform(0.5, 5.0):.2f}}}'  # spread, not secret
