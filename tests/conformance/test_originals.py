"""Whole results of tools are found by the session that has them, and go with it or with the journals."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.domain.agents import Original
from gateway.domain.ids import RunId
from gateway.domain.ports import Stores
from tests.fakes.store import NOON, an_ending, an_entry, open_memory, session_key

KEY, OTHERS = session_key(), session_key("other")
ONE = Original("r/1", KEY, RunId("r"), "search", "much \x00 of \ud800 it", NOON)
LATER = NOON + timedelta(days=1)


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    async with open_memory() as stores:
        yield stores


async def test_it_is_read_as_it_was_kept(stores: Stores) -> None:
    await stores.tools.keep_original(ONE)

    assert await stores.tools.read_original(KEY, "r/1") == ONE
    assert await stores.tools.read_original(KEY, "r/2") is None


async def test_another_session_does_not_find_it(stores: Stores) -> None:
    await stores.tools.keep_original(ONE)

    assert await stores.tools.read_original(OTHERS, "r/1") is None


async def test_the_first_that_is_kept_stays(stores: Stores) -> None:
    await stores.tools.keep_original(ONE)
    await stores.tools.keep_original(replace(ONE, content="another"))

    assert await stores.tools.read_original(KEY, "r/1") == ONE


async def test_what_is_forgotten_is_one_sessions_alone(stores: Stores) -> None:
    theirs = replace(ONE, reference="r/2", session_key=OTHERS)
    await stores.tools.keep_original(ONE)
    await stores.tools.keep_original(theirs)
    await stores.tools.forget_originals(KEY)

    assert await stores.tools.read_original(KEY, "r/1") is None
    assert await stores.tools.read_original(OTHERS, "r/2") == theirs


async def test_it_goes_with_the_journals_a_few_at_a_time(stores: Stores) -> None:
    for number in range(5):
        await stores.tools.keep_original(replace(ONE, reference=f"r/{number}"))
    await stores.tools.keep_original(replace(ONE, reference="new", at=LATER))

    swept = [await stores.care.sweep(before=LATER, limit=3) for _ in range(3)]

    assert swept == [3, 2, 0]
    assert await stores.tools.read_original(KEY, "r/4") is None
    assert await stores.tools.read_original(KEY, "new") is not None


async def test_it_is_erased_with_its_conversation(stores: Stores) -> None:
    await stores.inbox.accept(an_entry("a"), begin=True)
    await stores.inbox.finish(an_ending("a", grown_from=None))
    await stores.tools.keep_original(ONE)
    await stores.sessions.erase(KEY, by="op", dry_run=False, now=NOON)

    assert await stores.tools.read_original(KEY, "r/1") is None
