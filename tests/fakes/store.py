"""Stores for tests: the shipped one without its threads, and values to put into any of them."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from shutil import rmtree
from sqlite3 import Connection
from tempfile import mkdtemp
from typing import Any, TypeVar, cast

from anyio import CancelScope, to_thread
from anyio.lowlevel import checkpoint

from gateway.domain.errors import StoreUnavailable
from gateway.domain.ids import AgentId, MessageId, NodeId, RunId, SessionKey, to_micros
from gateway.domain.inbox import Ending, EndState, Merged, NewDelivery, NewEntry
from gateway.domain.journal import pack_text
from gateway.domain.messages import Message, Node
from gateway.domain.ports import PluginSpace, Stores
from gateway.store.copying import copier
from gateway.store.faults import TextRefused
from gateway.store.sqlite import OpenDatabase, open_database, stores_over
from gateway.store.transaction import Transaction
from gateway.store.writer import (
    Commits,
    Engine,
    Operation,
    Query,
    Readers,
    Writer,
    WriteTransaction,
    open_to_read,
)
from tests.fakes.clock import FakeClock

T = TypeVar("T")

__all__ = ["NOON", "a_space", "an_ending", "an_entry", "an_exchange", "open_memory", "session_key"]

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
MERGED = pack_text([b'{"type":"merged"}'])


class InlineWriter(Writer):
    """Commits on the loop, so that a test that lets every task run sees all that was written."""

    async def write(self, operation: Operation[T], *, durable: bool) -> T:
        await checkpoint()
        return self._done(operation, durable=durable)

    def write_soon(self, operation: Operation[Any], failed: Callable[[Exception], None]) -> None:
        try:
            self._done(operation, durable=False)
        except StoreUnavailable as error:
            failed(error)

    async def caught_up(self) -> None:
        await checkpoint()  # as for the thread: who is cancelled hears of it here

    @property
    def commits(self) -> int:
        return self._commits.done

    def join(self) -> None:
        """There is no thread."""

    def _done(self, operation: Operation[T], *, durable: bool) -> T:
        if self._stopped is not None:
            raise StoreUnavailable(self._stopped)
        ((result, error),) = self._commits.commit([operation], durable=durable)
        if error is not None:
            raise error
        return cast(T, result)


class InlineReaders(Readers):
    def __init__(self, db: Connection, path: Path) -> None:
        super().__init__(path)
        self._db = db

    async def read(self, query: Query[T]) -> T:
        await checkpoint()
        if not self._is_open:
            raise StoreUnavailable("the store is closed")
        try:
            return query(Transaction(self._db))
        except UnicodeEncodeError as error:
            raise TextRefused from error

    def join(self) -> None:
        """There is no thread."""


@dataclass
class Mortal:
    """The embedded store without its threads, and processes over it that die."""

    opened: OpenDatabase
    db: Connection  # to read
    writer: InlineWriter = field(init=False)
    stores: Stores = field(init=False)

    async def begin(self) -> Stores:
        """A process that knows what is in the tables, and nothing else."""
        tx = await to_thread.run_sync(WriteTransaction, self.opened.db)
        where = str(self.opened.path)
        self.writer = InlineWriter(
            Commits(tx, self.opened.mark, self.opened.mark.read(), where, durable=False)
        )
        readers = InlineReaders(self.db, self.opened.path)
        engine = Engine(self.writer, readers, tx, copier(self.opened.path))
        self.stores = stores_over(engine, FakeClock())
        return self.stores

    @property
    def commits(self) -> int:
        return self.writer.commits

    async def rows(self) -> int:
        """Of calls that a process which dies now did not settle."""

        def count() -> int:
            return len(self.opened.db.execute("SELECT id FROM reservation").fetchall())

        return await to_thread.run_sync(count)

    async def die(self) -> Stores:
        self.writer.stop("the process is dead")
        return await self.begin()


@asynccontextmanager
async def open_mortal() -> AsyncIterator[Mortal]:
    """In a folder that is gone at the end."""
    folder = Path(await to_thread.run_sync(lambda: mkdtemp(prefix="exogate-")))
    now, kept = to_micros(FakeClock().now()), {"accept_loss": False, "durable": False}
    opened = await to_thread.run_sync(partial(open_database, folder, now, **kept))
    db = await to_thread.run_sync(partial(open_to_read, opened.path, any_thread=True))
    try:
        yield Mortal(opened, db)
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(db.close)
            await to_thread.run_sync(opened.close)
            await to_thread.run_sync(rmtree, folder)


@asynccontextmanager
async def open_memory() -> AsyncIterator[Stores]:
    """The embedded store in a folder that is gone at the end."""
    async with open_mortal() as mortal:
        yield await mortal.begin()


def session_key(peer: str = "main", *, agent: str = "demo", account: str = "local") -> SessionKey:
    return SessionKey(AgentId(agent), "websocket", account, peer)


def a_space(
    person: str | None = "ann", *, plugin: str = "notes", namespace: str = "notes"
) -> PluginSpace:
    return PluginSpace(plugin, namespace, person)


def an_entry(
    name: str,
    key: SessionKey | None = None,
    *,
    platform_id: str | None = None,
    digest: str = "",
    content: str = "hello",
    at: datetime = NOON,
) -> NewEntry:
    """Run `run-NAME` with message `msg-NAME`."""
    return NewEntry(
        MessageId(f"msg-{name}"),
        RunId(f"run-{name}"),
        key or session_key(),
        content,
        at,
        platform_id=platform_id,
        digest=digest,
    )


def an_exchange(name: str, *texts: str) -> tuple[Node, ...]:
    """Nodes NAME-1, NAME-2 …: a question and its answer, unless told otherwise."""
    return tuple(
        Node(
            NodeId(f"{name}-{number}"),
            None,
            RunId(f"run-{name}"),
            Message("user" if number % 2 else "assistant", text),
            NOON,
            3,
        )
        for number, text in enumerate(texts or ("question", "answer"), 1)
    )


def an_ending(
    name: str,
    key: SessionKey | None = None,
    *,
    grown_from: str | None = None,
    nodes: Sequence[Node] | None = None,
    take_head: bool = False,
    state: EndState = "done",
    deliveries: Sequence[NewDelivery] = (),
    after_s: float = 1.0,
    merged: Sequence[str] = (),
) -> Ending:
    """How `run-NAME` ends: an exchange that grows from `grown_from`, with the runs `merged`."""
    return Ending(
        RunId(f"run-{name}"),
        key or session_key(),
        state,
        "answered",
        tuple(an_exchange(name) if nodes is None else nodes),
        None if grown_from is None else NodeId(grown_from),
        take_head,
        lambda: pack_text([b'{"type":"done"}']),
        '{"turn":1}',
        NOON + timedelta(seconds=after_s),
        tuple(deliveries),
        merged=tuple(
            Merged(RunId(f"run-{one}"), MERGED, f'{{"merged_into":"{name}"}}') for one in merged
        ),
    )
