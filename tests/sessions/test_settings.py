"""The book of users' settings: read once, changed without losing anything."""

import anyio
import pytest

from gateway.domain.errors import StoreUnavailable
from gateway.domain.ports import SessionStore
from gateway.domain.sessions import RECORD_BYTES, SettingsRefused
from gateway.sessions.worker import MOST_KNOWN, SettingsBook
from tests.fakes.ports import PartOfSessionStore
from tests.fakes.store import open_memory


class CountedStore(PartOfSessionStore):
    """Counts what is read; lets writes fail, and holds answers back until an event is set."""

    def __init__(self, store: SessionStore) -> None:
        self._inner = store
        self.store = store
        self.reads: list[str] = []
        self.failing = False
        self.hold: anyio.Event | None = None
        self.hold_writes: anyio.Event | None = None

    async def read_settings(self, user: str) -> str | None:
        self.reads.append(user)
        record = await self.store.read_settings(user)
        if self.hold is not None:
            await self.hold.wait()
        return record

    async def write_settings(self, user: str, record: str, *, expected: str | None) -> bool:
        if self.failing:
            raise StoreUnavailable("the disk is full")
        if self.hold_writes is not None:
            await self.hold_writes.wait()
        return await self.store.write_settings(user, record, expected=expected)


def book_of(store: SessionStore) -> SettingsBook:
    return SettingsBook(store)


async def test_a_user_is_read_once_until_the_settings_change() -> None:
    async with open_memory() as stores:
        store = CountedStore(stores.sessions)
        book = book_of(store)
        for _ in range(3):
            assert (await book.of("ann")).kept == {}
            assert (await book.of("bob")).kept == {}
        before = len(store.reads)

        await book.change("ann", {"max_iterations": 3})
        after = [(await book.of("ann")).kept for _ in range(3)]

    assert before == 2
    assert after == [{"max_iterations": 3}] * 3
    assert store.reads == ["ann", "bob", "ann"]


async def test_changes_at_the_same_time_lose_nothing() -> None:
    async with open_memory() as stores:
        book = book_of(stores.sessions)
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(book.change, "ann", {f"k{number}": number})

        kept = (await book.of("ann")).kept
        assert kept == {f"k{number}": number for number in range(20)}
        assert (await book_of(stores.sessions).of("ann")).kept == kept


async def test_what_was_read_before_a_change_does_not_come_back_after_it() -> None:
    async with open_memory() as stores:
        store = CountedStore(stores.sessions)
        book, hold = book_of(store), anyio.Event()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                store.hold = hold
                group.start_soon(book.of, "ann")
                await anyio.wait_all_tasks_blocked()
                store.hold = None
                await book.change("ann", {"theme": "dark"})
                hold.set()

        assert (await book.of("ann")).kept == {"theme": "dark"}


async def test_a_change_that_nobody_waits_for_any_more_is_known_all_the_same() -> None:
    async with open_memory() as stores:
        store = CountedStore(stores.sessions)
        book, held = book_of(store), anyio.Event()
        await book.of("ann")
        store.hold_writes = held
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(book.change, "ann", {"theme": "dark"})
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
                held.set()

        assert (await book.of("ann")).kept == {"theme": "dark"}


async def test_a_change_that_cannot_be_stored_changes_nothing() -> None:
    async with open_memory() as stores:
        store = CountedStore(stores.sessions)
        book = book_of(store)
        await book.change("ann", {"theme": "dark"})
        store.failing = True

        with pytest.raises(StoreUnavailable):
            await book.change("ann", {"theme": "light"})

        assert (await book.of("ann")).kept == {"theme": "dark"}


async def test_there_is_an_end_to_what_is_kept_for_a_user() -> None:
    async with open_memory() as stores:
        book = book_of(stores.sessions)
        room = RECORD_BYTES - len('{"a":""}')
        await book.change("ann", {"a": "x" * room})

        with pytest.raises(SettingsRefused, match="nothing was changed"):
            await book.change("ann", {"b": 1})

        assert set((await book.of("ann")).kept) == {"a"}
        assert (await book.change("ann", {"a": None, "b": 1})).kept == {"b": 1}


async def test_only_so_many_users_are_known_by_heart() -> None:
    async with open_memory() as stores:
        store = CountedStore(stores.sessions)
        book = book_of(store)
        for number in range(MOST_KNOWN + 1):
            await book.of(f"u{number}")
        store.reads.clear()

        await book.of(f"u{MOST_KNOWN}")
        await book.of("u0")

    assert store.reads == ["u0"]
