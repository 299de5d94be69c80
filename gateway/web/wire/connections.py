"""The open connections of the server, HTTP and WebSocket: their limits, their addresses and how all of them end."""

import asyncio
import heapq
import random
from collections import Counter
from typing import Protocol

import anyio
from uvicorn.server import ServerState

from gateway.web.settings import WebSettings
from gateway.web.wire.visitors import IpAddress, VisitorReader, address_group

_REFUSED_AT_ONCE = 256  # connections beyond the limit that still get an answer
_REFUSED_OF_GROUP = 16


class Backlog:
    """The bytes that wait for slow readers, over all connections."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class OpenConnection(Protocol):
    @property
    def is_known(self) -> bool:
        """True if its latest request came with a credential."""
        ...

    def shutdown(self) -> None:
        """Closes the connection once the answers that it owes are sent."""
        ...

    def evict(self) -> None:
        """Closes the connection and tells the peer that there are too many."""
        ...

    def abort(self) -> None:
        """Closes the connection at once."""
        ...


class OpenConnections:
    """Counts the connections of the server, bounds them and waits for their end."""

    def __init__(self, settings: WebSettings) -> None:
        self.state = ServerState()
        self.backlog = Backlog()
        self._open: set[OpenConnection] = self.state.connections  # type: ignore[assignment]  # ours too
        self.renew(settings)
        self._removed = anyio.Event()
        self._groups: dict[OpenConnection, str] = {}  # address groups; loopback has none
        self._group_sizes: Counter[str] = Counter()
        self._unauthenticated: dict[OpenConnection, float] = {}  # with the time since when
        self._eviction: asyncio.TimerHandle | None = None

    def renew(self, settings: WebSettings) -> None:
        """Applies other limits to later checks. Open connections stay."""
        self._settings, self.visitor_reader = settings, VisitorReader(settings.trusted_proxies)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) > self._settings.max_connections

    @property
    def is_overrun(self) -> bool:
        """True if a new connection gets no answer, not even a refusal."""
        return len(self._open) > self._settings.max_connections + _REFUSED_AT_ONCE

    def remove(self, connection: OpenConnection) -> None:
        self._open.discard(connection)
        self._unauthenticated.pop(connection, None)
        self._forget_address(connection)
        if not self._open:
            self._removed.set()
            if self._eviction is not None:
                self._eviction.cancel()
                self._eviction = None

    def replace(self, connection: OpenConnection, other: OpenConnection) -> None:
        """Puts `other` in the place of a connection, as unauthenticated."""
        self._open.discard(connection)
        self._unauthenticated.pop(connection, None)
        self._open.add(other)
        if group := self._groups.pop(connection, None):
            self._groups[other] = group
        self.mark_unknown(other)

    # addresses and authentication

    def assign_address(self, connection: OpenConnection, address: IpAddress | None) -> bool:
        """Counts the connection at this address only. Returns False if the address has too many."""
        self._forget_address(connection)
        if address is None or address.is_loopback:
            return True
        group = self._groups[connection] = address_group(address)
        self._group_sizes[group] += 1
        return self._group_sizes[group] <= self._settings.max_connections_per_address

    def is_group_overrun(self, connection: OpenConnection) -> bool:
        """True if its address has so many connections that a new one gets no answer."""
        size = self._group_sizes[self._groups.get(connection, "")]
        return size > self._settings.max_connections_per_address + _REFUSED_OF_GROUP

    def _forget_address(self, connection: OpenConnection) -> None:
        group = self._groups.pop(connection, None)
        if group is not None:
            self._group_sizes[group] -= 1
            if not self._group_sizes[group]:
                del self._group_sizes[group]

    def mark_known(self, connection: OpenConnection) -> None:
        """Notes that the connection sent a credential, or that its request is being answered."""
        self._unauthenticated.pop(connection, None)

    def mark_unknown(self, connection: OpenConnection) -> None:
        """Notes that the connection sent no credential. It has a moment to send one, at any load."""
        if connection not in self._open:
            return
        loop, settings = asyncio.get_running_loop(), self._settings
        self._unauthenticated.setdefault(connection, loop.time())
        if self._eviction is None and len(self._unauthenticated) > settings.max_unauthenticated:
            self._eviction = loop.call_later(settings.unauthenticated_grace_s, self._evict_excess)

    def _evict_excess(self) -> None:
        """Evicts the newest connections of the addresses with most, so that no address can displace others."""
        loop, settings = asyncio.get_running_loop(), self._settings
        for connection in [one for one in self._unauthenticated if one.is_known]:
            del self._unauthenticated[connection]
        late = loop.time() - settings.unauthenticated_grace_s
        old = [one for one, since in self._unauthenticated.items() if since <= late]
        excess = len(old) - settings.max_unauthenticated
        for connection in self._newest_of_largest_groups(old, excess):
            del self._unauthenticated[connection]
            connection.evict()
        self._eviction = None
        if len(self._unauthenticated) > settings.max_unauthenticated:
            wait_s = settings.unauthenticated_grace_s / 2
            self._eviction = loop.call_later(wait_s, self._evict_excess)

    def _newest_of_largest_groups(
        self, connections: list[OpenConnection], number: int
    ) -> list[OpenConnection]:
        """Returns `number` connections, each the newest of the address that then has most."""
        by_group: dict[str, list[OpenConnection]] = {}
        for connection in connections:
            by_group.setdefault(self._groups.get(connection, ""), []).append(connection)
        sizes = [(-len(members), group) for group, members in by_group.items()]
        heapq.heapify(sizes)
        found: list[OpenConnection] = []
        while len(found) < number:
            size, group = heapq.heappop(sizes)
            found.append(by_group[group].pop())
            if size < -1:
                heapq.heappush(sizes, (size + 1, group))
        return found

    # shutdown

    def shut_down_all(self) -> None:
        for connection in tuple(self._open):
            connection.shutdown()

    def abort_all(self) -> None:
        for connection in tuple(self._open):
            connection.abort()

    async def wait_until_empty(self) -> None:
        while self._open:
            self._removed = anyio.Event()
            await self._removed.wait()

    def reconnect_hint(self) -> str:
        """Returns a delay as JSON, different for each client so that they do not all reconnect at once."""
        return f'{{"retry_after_s":{random.uniform(0.5, 5.0):.2f}}}'  # spread, not secret
