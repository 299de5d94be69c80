"""Pairing: a code for whoever asks, an operator who knows it, and nobody who guesses it."""

import json
import re
from collections.abc import Mapping

import pytest

from gateway.channels.access import ALPHABET, AccessControl, Place
from gateway.channels.adapters import Sender
from gateway.domain.channels import MOST_WAITING, Pairing
from gateway.domain.errors import Busy, NotFound
from gateway.domain.ports import Stores
from tests.channels.people import a_book, ask
from tests.fakes.clock import CountingIds, FakeClock
from tests.fakes.ports import PartOfChannelStore
from tests.fakes.store import open_memory

ANN = ("chat", "default", "ann")


async def asked(
    stores: Stores, book: AccessControl, person: str = "ann", channel: str = "chat"
) -> str:
    code = await ask(stores, book, Sender(person, person.title()), channel)
    assert code is not None
    return code


async def audit_events(stores: Stores) -> list[tuple[str, str, Mapping[str, object]]]:
    found = await stores.audit.after(0, limit=100)
    return [(one.kind, one.actor, json.loads(one.detail)) for one in found]


async def guess(book: AccessControl, times: int) -> None:
    for _ in range(times):
        with pytest.raises(NotFound):
            await book.approve("AAAA-AAAA", by="local")


async def test_a_code_is_easy_to_read_and_is_kept_nowhere() -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        codes = {await asked(stores, book, f"p{number}", f"c{number}") for number in range(50)}
        kept = repr(await stores.channels.list_pairings(limit=100))

    assert len(codes) == 50
    for code in codes:
        assert re.fullmatch(f"[{ALPHABET}]{{4}}-[{ALPHABET}]{{4}}", code)
        assert code not in kept
    assert set(ALPHABET).isdisjoint("0O1IL")


@pytest.mark.parametrize("typed", ["{}", " {} ", "{}\n"])
async def test_a_code_counts_however_it_is_typed(typed: str) -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        code = await asked(stores, book)

        paired = await book.approve(typed.format(code.lower().replace("-", " ")), by="local")

        assert (paired.person, paired.state) == ("ann", "paired")
        assert await book.find(*ANN) == paired


async def test_a_code_lives_an_hour() -> None:
    clock = FakeClock()
    async with open_memory() as stores:
        book = a_book(stores, clock)
        code = await asked(stores, book)
        clock.move(3600)

        assert await book.find(*ANN) is None
        assert await book.list_pairings(limit=9) == []
        with pytest.raises(NotFound, match="no pairing request has that code"):
            await book.approve(code, by="local")
        assert await asked(stores, book) != code


async def test_a_line_of_one_account_is_bounded() -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        for number in range(MOST_WAITING):
            await asked(stores, book, f"p{number}")

        assert await book.ask("chat", "default", Sender("late")) is None
        assert await book.ask("chat", "other", Sender("late")) is not None


async def test_codes_cannot_be_guessed_for_long() -> None:
    clock = FakeClock()
    async with open_memory() as stores:
        book = a_book(stores, clock)
        code = await asked(stores, book)
        await guess(book, 5)

        for wait in (0.0, 299.0):
            clock.move(wait)
            with pytest.raises(Busy, match="too many wrong codes"):
                await book.approve(code, by="local")
        with pytest.raises(Busy):
            await book.deny(code, by="local")
        clock.move(1)

        assert (await book.approve(code, by="local")).state == "paired"


async def test_a_few_wrong_codes_now_and_then_lock_nothing() -> None:
    clock = FakeClock()
    async with open_memory() as stores:
        book = a_book(stores, clock)
        code = await asked(stores, book)
        for _ in range(3):
            await guess(book, 4)
            clock.move(61)

        assert (await book.approve(code, by="local")).state == "paired"


async def test_wrong_codes_in_a_chat_lock_no_operator_and_no_other_account_out() -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        code = await asked(stores, book)
        for _ in range(5):
            with pytest.raises(NotFound):
                await book.approve("WRNG-WRNG", by="owner", at=("chat", "default"))

        with pytest.raises(Busy, match="too many wrong codes"):
            await book.approve(code, by="owner", at=("chat", "default"))
        with pytest.raises(NotFound):
            await book.approve(code, by="owner", at=("chat", "other"))
        assert (await book.approve(code, by="local")).state == "paired"


async def test_decisions_are_told_to_the_audit_and_to_those_who_listen() -> None:
    told: list[tuple[str, object]] = []
    async with open_memory() as stores:
        book = AccessControl(
            stores.channels,
            stores.audit,
            FakeClock(),
            CountingIds(),
            lambda kind, payload: told.append((kind, payload["person"])),
        )
        await book.approve(await asked(stores, book), by="local")
        await book.deny(await asked(stores, book, "ben"), by="chat:default:ann")
        await book.revoke(*ANN, by="local")
        noted = await audit_events(stores)

    assert told == [("pair.asked", "ann"), ("pair.approved", "ann"), ("pair.asked", "ben")]
    assert [(kind, by, detail["person"]) for kind, by, detail in noted] == [
        ("pair.approved", "local", "ann"),
        ("pair.denied", "chat:default:ann", "ben"),
        ("pair.denied", "local", "ann"),
    ]
    assert noted[0][2]["owner"] is True
    assert noted[2][2]["revoked"] is True


async def test_who_is_revoked_is_a_stranger_at_once() -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        await book.approve(await asked(stores, book), by="local")
        assert await book.find(*ANN) is not None

        await book.revoke(*ANN, by="local")

        assert await book.find(*ANN) is None
        assert await asked(stores, book)
        with pytest.raises(NotFound, match="person 'ben' of chat:default not found"):
            await book.revoke("chat", "default", "ben", by="local")


async def test_who_is_revoked_while_being_looked_up_is_not_remembered() -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        await book.approve(await asked(stores, book), by="local")

        class Slow(PartOfChannelStore):
            """Somebody is revoked between the look and what is made of it."""

            def __init__(self) -> None:
                self.may_ask, self.decide_pairing = (
                    stores.channels.may_ask,
                    stores.channels.decide_pairing,
                )
                self.remove_pairing, self.list_pairings = (
                    stores.channels.remove_pairing,
                    stores.channels.list_pairings,
                )
                self.block = stores.channels.block

            async def find_pairing(self, channel: str, account: str, person: str) -> Pairing | None:
                found = await stores.channels.find_pairing(channel, account, person)
                if found is not None:
                    await book.revoke(channel, account, person, by="local")
                return found

        book.store = Slow()
        await book.find(*ANN)

        assert await book.find(*ANN) is None


@pytest.mark.parametrize("at", [("chat", "other"), ("other", "default")])
async def test_who_decides_for_one_account_decides_for_no_other(at: Place) -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        code = await asked(stores, book)

        with pytest.raises(NotFound):
            await book.approve(code, by="owner", at=at)
        with pytest.raises(NotFound):
            await book.deny(code, by="owner", at=at)

        assert (await book.approve(code, by="owner", at=("chat", "default"))).person == "ann"
