"""Opens a SurrealDB server as the store, and claims it for this gateway."""

import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio

from gateway.app.nodes import SharedStore
from gateway.cluster.node import ClusterNode, ClusterSettings
from gateway.config.values import Clustering, StoreSettings
from gateway.domain.cluster import Lease, NoHints, Presence
from gateway.domain.errors import StoreUnavailable
from gateway.domain.figures import Figures
from gateway.domain.ids import Secret
from gateway.domain.ports import Clock
from gateway.store.sharing import SharedLedger, SurrealLeases
from gateway.store.surreal import Waiting, open_surreal, retry_until_open
from gateway.store.surreal_connection import ConnectionSettings, Credentials, SurrealConnection

Note = Callable[[str], Awaitable[None]]

_USUAL = ConnectionSettings()
RELEASE_S = 3.0  # to release the claim at the end; otherwise it expires


class AllWork:
    """The partitioned work of a gateway that owns the whole store: leases change nothing."""

    def start(self, lease: Lease) -> None:
        """Does nothing: the gateway starts all work itself."""

    async def drain(self, lease: Lease) -> None:
        """Does nothing: the gateway has drained."""

    def drop(self, lease: Lease) -> None:
        """Does nothing: the next owner takes over."""


@asynccontextmanager
async def open_shared_store(  # noqa: PLR0913  # the options of a store
    settings: StoreSettings,
    clock: Clock,
    *,
    ended: str | None,
    waiting: Waiting | None,
    note: Note | None = None,
    cluster: Clustering | None = None,
    figures: Figures | None = None,
) -> AsyncIterator[SharedStore]:
    """Opens and claims a shared store. `ended`: the name of a dead node of ours. `note` is called with the name of the new
    node before it claims anything. In a `cluster` the caller runs the node. Raises StoreRefused, StoreInUse."""
    usual, claim = (
        await connection_to(settings),
        partial(claim_store, settings, clock, cluster=cluster),
    )
    figures = figures or Figures()
    usual.figures = figures.share(cluster=cluster is not None)
    opened = partial(open_surreal, usual, clock, waiting, on_commit=figures.commit)
    if cluster is None:
        async with (
            opened(is_alone=True) as stores,
            claim(ended=ended, waiting=waiting, note=note, bound=usual) as node,
        ):
            yield SharedStore(node.presence().node, stores, node, None, usual.figures)
        return
    async with claim(ended=ended, waiting=waiting, note=note, bound=usual) as node:
        alive = partial(node.leases.alive, 2 * cluster.lease_s)
        ledger = partial(SharedLedger, node=node.presence().node, alive=alive)
        async with (
            opened(ledger) as stores,
            anyio.create_task_group() as group,
        ):
            assert isinstance(stores.ledger, SharedLedger)
            group.start_soon(stores.ledger.run)
            yield SharedStore(node.presence().node, stores, node, cluster, usual.figures)
            await stores.ledger.drain()
            group.cancel_scope.cancel()


@asynccontextmanager
async def claim_store(  # noqa: PLR0913  # the options of a node
    settings: StoreSettings,
    clock: Clock,
    *,
    ended: str | None = None,
    waiting: Waiting | None = None,
    note: Note | None = None,
    bound: SurrealConnection | None = None,
    cluster: Clustering | None = None,
) -> AsyncIterator[ClusterNode]:
    """Keeps all other gateways out of the store until the end; a `cluster` keeps out gateways without one. Raises
    StoreRefused, StoreInUse."""
    # The node has its own connection, so that no queue delays a renewal.
    own = await connection_to(settings, ConnectionSettings(is_logged=False))
    how, label = ClusterSettings(partitions=None), os.uname().nodename
    if cluster is not None:
        how, label = ClusterSettings(cluster.partitions, cluster.lease_s), cluster.node or label
    leases, name = SurrealLeases(own, how.lease_s / 3), f"{label}-{secrets.token_hex(4)}"
    node = ClusterNode(
        presence=lambda: Presence(name, is_alone=cluster is None),
        settings=how,
        leases=leases,
        hints=NoHints(),
        work=AllWork(),
        clock=clock,
    )

    async def claim() -> None:
        if ended is not None:
            await leases.bury(ended)
        if note is not None:
            await note(name)
        await node.join()

    async with anyio.create_task_group() as group:
        if bound is not None:
            own.bound, own.figures = bound.bound, bound.figures
        group.start_soon(own.run)
        try:
            await retry_until_open(claim, own, waiting)
            if cluster is None:
                group.start_soon(node.run)
            yield node
        finally:
            scope = anyio.move_on_after(RELEASE_S, shield=True)
            with scope, suppress(StoreUnavailable):
                await leases.bury(name)
            group.cancel_scope.cancel()


async def connection_to(
    store: StoreSettings, how: ConnectionSettings = _USUAL
) -> SurrealConnection:
    user = Credentials(store.username or "", store.password or Secret(""))
    return await SurrealConnection(store.url, store.namespace, store.database, user, how).open()
