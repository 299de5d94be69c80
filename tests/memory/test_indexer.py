"""What was said becomes findable by itself, also after trouble and after a restart."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from gateway.domain.errors import StoreLost, StoreUnavailable
from gateway.domain.ids import SessionKey
from gateway.memory.recall import AGAIN_S, AT_ONCE, GATHER_S, SESSIONS_AT_ONCE, Indexer
from tests.fakes.clock import FakeClock
from tests.fakes.ports import PartOfFactStore
from tests.fakes.store import session_key

HERE, THERE = session_key("here"), session_key("there")


class FakeIndex(PartOfFactStore):
    """Counts what was said, and what of it was taken in."""

    def __init__(self, said: dict[SessionKey, int] | None = None) -> None:
        self.said = said or {}
        self.rounds: list[list[SessionKey]] = []
        self.fails: list[Exception] = []
        self.while_taking: dict[SessionKey, Indexer] = {}

    async def unindexed(self, *, limit: int) -> Sequence[SessionKey]:
        await anyio.lowlevel.checkpoint()
        return [key for key, left in self.said.items() if left][:limit]

    async def index_turns(self, keys: Sequence[SessionKey], *, limit: int) -> Sequence[SessionKey]:
        await anyio.lowlevel.checkpoint()
        self.rounds.append(list(keys))
        if self.fails:
            raise self.fails.pop()
        for key in keys:
            taken = min(limit, self.said[key])
            self.said[key] -= taken
            limit -= taken
            if indexer := self.while_taking.pop(key, None):
                self.said[key] += 1
                indexer.note(key)
        return [key for key in keys if self.said[key]]


@asynccontextmanager
async def at_work(index: FakeIndex, clock: FakeClock) -> AsyncIterator[Indexer]:
    indexer = Indexer(index, clock)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(indexer.run)
            await anyio.wait_all_tasks_blocked()
            yield indexer
            group.cancel_scope.cancel()


async def pass_by(clock: FakeClock, seconds: float = GATHER_S) -> None:
    clock.move(seconds)
    await anyio.wait_all_tasks_blocked()


async def test_what_an_earlier_process_left_is_taken_up_at_once() -> None:
    index = FakeIndex({HERE: 3, THERE: 0})

    async with at_work(index, FakeClock()) as indexer:
        assert index.said[HERE] == 0
        assert indexer.backlog == 0
    assert index.rounds == [[HERE]]


async def test_more_sessions_than_one_look_holds_are_all_taken_up() -> None:
    keys = [session_key(f"s{number}") for number in range(SESSIONS_AT_ONCE + 10)]
    index, clock = FakeIndex(dict.fromkeys(keys, 1)), FakeClock()

    async with at_work(index, clock):
        while any(index.said.values()):
            await pass_by(clock)

    assert sum(map(len, index.rounds)) == len(keys)


async def test_what_is_said_in_a_while_is_taken_in_together() -> None:
    index, clock = FakeIndex({HERE: 0, THERE: 0}), FakeClock()

    async with at_work(index, clock) as indexer:
        for key in (HERE, THERE, HERE):
            index.said[key] += 2
            indexer.note(key)
            await anyio.wait_all_tasks_blocked()
        assert (indexer.backlog, index.rounds) == (2, [])
        await pass_by(clock)
        assert indexer.backlog == 0

    assert index.rounds == [[HERE, THERE]]


async def test_a_long_session_does_not_keep_the_others_waiting() -> None:
    index, clock = FakeIndex({HERE: AT_ONCE * 5, THERE: 1}), FakeClock()

    async with at_work(index, clock):
        while any(index.said.values()):
            await pass_by(clock)

    assert index.said == {HERE: 0, THERE: 0}
    assert len(index.rounds) == 6


async def test_what_is_said_while_it_is_taken_in_is_not_lost() -> None:
    index, clock = FakeIndex({HERE: 0}), FakeClock()

    async with at_work(index, clock) as indexer:
        index.said[HERE] = 1
        index.while_taking[HERE] = indexer
        indexer.note(HERE)
        await anyio.wait_all_tasks_blocked()
        await pass_by(clock)
        await pass_by(clock)

        assert index.said[HERE] == 0


async def test_a_store_that_is_away_is_asked_again() -> None:
    index, clock = FakeIndex({HERE: 1}), FakeClock()
    index.fails = [StoreUnavailable("away"), StoreUnavailable("away")]

    async with at_work(index, clock) as indexer:
        assert indexer.backlog == 1
        while index.said[HERE]:
            await pass_by(clock, AGAIN_S)

    assert index.rounds == [[HERE]] * 3


async def test_a_store_that_is_lost_ends_the_work() -> None:
    index = FakeIndex({HERE: 1})
    index.fails = [StoreLost("for good")]

    with pytest.raises(StoreLost):
        await Indexer(index, FakeClock()).run()


async def test_a_session_can_be_brought_up_to_date_for_a_question() -> None:
    index = FakeIndex({HERE: AT_ONCE * 2 + 1, THERE: 1})

    await Indexer(index, FakeClock()).catch_up(HERE)

    assert index.said == {HERE: 0, THERE: 1}
