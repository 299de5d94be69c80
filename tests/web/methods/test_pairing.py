"""pair.list, pair.approve, pair.deny: decisions of an operator and their refusals."""

from typing import Any

import pytest

from gateway.api.errors import Forbidden, InvalidParams, failure_of
from gateway.channels.access import AccessControl
from gateway.channels.adapters import Sender
from gateway.domain.errors import Busy, Conflict, NotFound
from gateway.domain.ports import Stores
from gateway.web.identity import Principal
from gateway.web.operating import PairMethods
from gateway.web.rpc import handlers_of
from tests.channels.people import a_book, ask
from tests.fakes.clock import FakeClock
from tests.fakes.store import open_memory
from tests.web.methods.calling import call


async def told(book: AccessControl, name: str, /, **params: Any) -> Any:
    methods = handlers_of(PairMethods(book))
    return await call(methods, name, **params)


async def asked(stores: Stores, book: AccessControl, person: str) -> str:
    code = await ask(stores, book, Sender(person, person.title()))
    assert code is not None
    return code


async def test_who_waits_is_listed_without_a_code_then_approved_by_it() -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        code = await asked(stores, book, "ann")
        before = await told(book, "pair.list")
        approved = await told(book, "pair.approve", code=code)
        after = await told(book, "pair.list", channel="chat")
        (entry,) = await stores.audit.newest(kind="pair.approved")

    assert before == {
        "pairings": [
            {
                "channel": "chat",
                "account": "default",
                "person": "ann",
                "name": "Ann",
                "state": "asked",
                "owner": False,
                "asked_at": "2026-01-01T12:00:00Z",
                "expires_at": "2026-01-01T13:00:00Z",
            }
        ]
    }
    assert after["pairings"] == [approved]
    assert (approved["state"], approved["owner"], approved["expires_at"]) == ("paired", True, None)
    assert entry.actor == "p"


async def test_later_ones_own_the_account_only_if_that_is_said() -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        await told(book, "pair.approve", code=await asked(stores, book, "ann"))

        ben = await told(book, "pair.approve", code=await asked(stores, book, "ben"))
        cleo = await told(book, "pair.approve", code=await asked(stores, book, "cleo"), owner=True)

    assert (ben["owner"], cleo["owner"]) == (False, True)


async def test_who_is_denied_stays_so_until_it_is_unblocked() -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        denied = await told(book, "pair.deny", code=await asked(stores, book, "ann"))
        assert await ask(stores, book, Sender("ann")) is None

        again = await told(book, "pair.deny", channel="chat", person="ann")
        assert await ask(stores, book, Sender("ann")) is None
        with pytest.raises(Conflict, match="is blocked"):
            await told(book, "pair.revoke", channel="chat", person="ann")
        unblocked = await told(book, "pair.unblock", channel="chat", person="ann")

        assert await ask(stores, book, Sender("ann")) is not None
    assert denied == again
    assert denied["state"] == "denied"
    assert unblocked == {
        "channel": "chat",
        "account": "default",
        "person": "ann",
        "state": "unblocked",
    }


@pytest.mark.parametrize("name", ["pair.deny", "pair.revoke"])
async def test_who_was_let_in_can_be_made_a_stranger_again(name: str) -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        await told(book, "pair.approve", code=await asked(stores, book, "ann"))

        revoked = await told(book, name, channel="chat", person="ann")
        with pytest.raises(NotFound):
            await told(book, "pair.revoke", channel="chat", person="ann")

        assert await ask(stores, book, Sender("ann")) is not None
    assert revoked["state"] == "revoked"


async def test_who_waits_is_denied_by_name() -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        code = await asked(stores, book, "ann")

        denied = await told(book, "pair.deny", channel="chat", person="ann")

        with pytest.raises(NotFound):
            await told(book, "pair.approve", code=code)
    assert denied["state"] == "denied"


async def test_nobody_is_unblocked_who_was_not_blocked() -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        await told(book, "pair.approve", code=await asked(stores, book, "ann"))

        for person in ("ann", "ben"):
            with pytest.raises(NotFound):
                await told(book, "pair.unblock", channel="chat", person=person)

        assert await book.find("chat", "default", "ann") is not None


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"channel": "chat"},
        {"person": "ann"},
        {"code": "X", "channel": "chat"},
        {"code": "X", "person": "ann"},
    ],
)
async def test_it_has_to_be_said_who_is_denied(params: dict[str, str]) -> None:
    async with open_memory() as stores:
        with pytest.raises(InvalidParams):
            await told(a_book(stores, FakeClock()), "pair.deny", **params)


async def test_wrong_codes_are_not_found_and_soon_not_even_looked_at() -> None:
    async with open_memory() as stores:
        book = a_book(stores, FakeClock())
        for _ in range(5):
            with pytest.raises(NotFound) as unknown:
                await told(book, "pair.approve", code="AAAA-AAAA")
        with pytest.raises(Busy) as locked:
            await told(book, "pair.deny", code="AAAA-AAAA")

    assert failure_of(unknown.value).rpc == -32004
    assert locked.value.retry_after_s == 300


@pytest.mark.parametrize(
    ("name", "params"),
    [("pair.list", {}), ("pair.approve", {"code": "X"}), ("pair.deny", {"code": "X"})],
)
async def test_who_reaches_some_agents_only_decides_nothing(
    name: str, params: dict[str, str]
) -> None:
    some = Principal("s", frozenset({"admin"}), frozenset({"main"}))
    async with open_memory() as stores:
        with pytest.raises(Forbidden):
            await told(a_book(stores, FakeClock()), name, by=some, **params)
