"""What every store promises about who may talk, whatever it is made of."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from gateway.domain.channels import Pairing, PairingState
from gateway.domain.inbox import NewDelivery, ReceivedMessage
from gateway.domain.ports import Stores
from tests.channels.people import commit
from tests.conformance.test_ledger import opening
from tests.fakes.store import NOON

Open = Callable[[], AbstractAsyncContextManager[Stores]]
HOUR = timedelta(hours=1)
ANN = ("chat", "default", "ann")


def asking(person: str, *, account: str = "default", minutes: int = 0) -> Pairing:
    at = NOON + timedelta(minutes=minutes)
    digest = f"digest of {account}/{person} at {minutes}"
    return Pairing("chat", account, person, person.title(), "asked", digest, at, at + HOUR)


async def ask(stores: Stores, one: Pairing) -> bool:
    may = await stores.channels.may_ask(one)
    return await commit(stores, one) and may


async def pair(stores: Stores, one: Pairing, *, is_owner: bool = False) -> Pairing | None:
    digest, at = one.code_digest, one.asked_at
    return await stores.channels.decide_pairing(digest, "paired", is_owner=is_owner, now=at)


async def test_who_asked_is_found_and_nobody_else(opened: Open) -> None:
    async with opened() as stores:
        assert await ask(stores, asking("ann"))

        assert await stores.channels.find_pairing(*ANN) == asking("ann")
        assert await stores.channels.find_pairing("chat", "other", "ann") is None
        assert await stores.channels.find_pairing("other", "default", "ann") is None


async def test_who_waits_does_not_ask_again_until_the_code_has_expired(opened: Open) -> None:
    async with opened() as stores:
        await ask(stores, asking("ann"))

        assert not await ask(stores, asking("ann", minutes=59))
        assert await ask(stores, asking("ann", minutes=60))

        assert await stores.channels.find_pairing(*ANN) == asking("ann", minutes=60)
        assert await pair(stores, replace(asking("ann"), asked_at=NOON + HOUR)) is None


async def test_a_line_is_bounded_for_each_account_by_itself(opened: Open) -> None:
    async with opened() as stores:
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(ask, stores, asking(f"p{number}"))

        waiting = await stores.channels.list_pairings(limit=100)
        assert len(waiting) == 3
        assert await ask(stores, asking("ann", account="other"))
        assert await ask(stores, asking("late", minutes=61))  # the three have expired, and are gone
        assert await ask(stores, asking("ann", account="other", minutes=61))
        assert len(await stores.channels.list_pairings(limit=100)) == 2


async def test_a_code_counts_once_and_until_it_expires(opened: Open) -> None:
    async with opened() as stores:
        await ask(stores, asking("ann"))

        assert await pair(stores, replace(asking("ann"), asked_at=NOON + HOUR)) is None
        paired = await pair(stores, asking("ann"))
        assert await pair(stores, asking("ann")) is None

        assert paired == replace(asking("ann"), state="paired", is_owner=True)
        assert await stores.channels.find_pairing(*ANN) == paired


async def test_the_first_who_is_paired_on_an_account_owns_it_and_others_only_if_told(
    opened: Open,
) -> None:
    async with opened() as stores:
        people = [asking("ann"), asking("ben"), asking("cleo"), asking("ann", account="other")]
        for one in people:
            await ask(stores, one)
        denied = await stores.channels.decide_pairing(
            people[2].code_digest, "denied", is_owner=True, now=NOON
        )

        ann = await pair(stores, people[0])
        ben = await pair(stores, people[1])
        other = await pair(stores, people[3])
        await ask(stores, asking("dan"))
        dan = await pair(stores, asking("dan"), is_owner=True)

    made = [one is not None and one.is_owner for one in (denied, ann, ben, other, dan)]
    assert made == [False, True, False, True, True]


@pytest.mark.parametrize("state", ["paired", "denied"])
async def test_what_was_decided_holds_until_it_is_removed(
    opened: Open, state: PairingState
) -> None:
    async with opened() as stores:
        await ask(stores, asking("ann"))
        digest = asking("ann").code_digest
        await stores.channels.decide_pairing(digest, state, is_owner=False, now=NOON)
        assert not await ask(stores, asking("ann", minutes=600))

        assert await stores.channels.remove_pairing(*ANN)
        assert not await stores.channels.remove_pairing(*ANN)

        assert await stores.channels.find_pairing(*ANN) is None
        assert await ask(stores, asking("ann", minutes=600))


async def test_who_waits_is_listed_first_then_the_newest(opened: Open) -> None:
    async with opened() as stores:
        for minutes, person in enumerate(["ann", "ben", "cleo"]):
            await ask(stores, asking(person, minutes=minutes))
        await pair(stores, asking("cleo", minutes=2))
        await pair(stores, asking("ann"))

        listed = await stores.channels.list_pairings(limit=100)
        assert [one.person for one in listed] == ["ben", "cleo", "ann"]
        assert [one.person for one in await stores.channels.list_pairings(limit=1)] == ["ben"]
        assert await stores.channels.list_pairings(channel="other", limit=100) == []
        assert len(await stores.channels.list_pairings(channel="chat", limit=100)) == 3


async def test_who_is_paired_stays_so_after_a_restart(tmp_path: Path) -> None:
    async with opening("embedded", tmp_path) as stores:
        await ask(stores, asking("ann"))
        paired = await pair(stores, asking("ann"))

    async with opening("embedded", tmp_path) as stores:
        assert await stores.channels.find_pairing(*ANN) == paired


async def hear(stores: Stores, one: Pairing, *, platform_id: str = "1") -> bool:
    heard = ReceivedMessage("chat", "default", platform_id, "told", one.asked_at)
    notice = NewDelivery(f"d-{one.person}", "chat", "default", one.person, None, "a code", "{}")
    return await stores.channels.record(heard, [notice], (), one)


async def test_who_asks_and_what_the_person_is_told_are_one_commit(opened: Open) -> None:
    async with opened() as stores:
        told = [await hear(stores, asking(person), platform_id=person) for person in "abcd"]
        twice = await hear(stores, asking("a"), platform_id="another message")
        again = await hear(stores, asking("late", minutes=61), platform_id="a")

        due = await stores.outbox.due("chat", now=NOON + HOUR, limit=9)
        assert (told, twice, again) == ([True, True, True, False], False, False)
        assert [one.new.peer for one in due] == ["a", "b", "c"]
        assert {one.person for one in await stores.channels.list_pairings(limit=9)} == {
            "a",
            "b",
            "c",
        }
        assert not await stores.channels.knows("chat", "default", "d")
