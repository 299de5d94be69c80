"""What every store promises of tokens that are created while a gateway runs."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from gateway.domain.budgets import NANO, Limit, TokenBudget
from gateway.domain.errors import Conflict, GatewayError, NotFound
from gateway.domain.events import AuditEvent
from gateway.domain.ports import Stores
from gateway.domain.tokens import CreatedToken, digest_of
from tests.fakes.store import NOON

Open = Callable[[], AbstractAsyncContextManager[Stores]]
EVENT = AuditEvent(NOON, "token.created", "operator", {"name": "phone"})
HOUR = timedelta(hours=1)


def a_token(name: str = "phone", secret: str = "one") -> CreatedToken:
    return CreatedToken(
        digest=digest_of(secret),
        name=name,
        hint="exo_abcd",
        scopes=frozenset({"chat", "agent:helper"}),
        created_at=NOON,
        created_by="operator",
        budget=TokenBudget(daily=Limit(10_000), monthly=Limit(None, NANO)),
        expires_at=NOON + HOUR,
    )


async def test_a_created_token_is_there_with_its_entry_of_the_audit(opened: Open) -> None:
    async with opened() as stores:
        await stores.tokens.create(a_token(), EVENT, inherits=False)

    async with opened() as again:
        found = await again.tokens.tokens()
        (entry,) = await again.audit.newest()

    assert found == [a_token()]
    assert (entry.kind, entry.actor) == ("token.created", "operator")


async def test_of_two_that_create_one_name_at_a_time_one_is_refused(opened: Open) -> None:
    refused: list[str] = []

    async def create(stores: Stores, secret: str) -> None:
        try:
            await stores.tokens.create(a_token(secret=secret), EVENT, inherits=False)
        except Conflict as error:
            refused.append(str(error))

    async with opened() as stores:
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(create, stores, f"secret {number}")
        found = await stores.tokens.tokens()

    assert len(found) == 1
    assert len(refused) == 3
    assert "choose another name" in refused[0]


async def test_the_name_of_a_revoked_token_is_given_again_to_an_heir_alone(opened: Open) -> None:
    async with opened() as stores:
        await stores.tokens.create(a_token(), EVENT, inherits=False)
        await stores.tokens.revoke("phone", replace(EVENT, kind="token.revoked"))
        with pytest.raises(Conflict, match="--inherit"):
            await stores.tokens.create(a_token(secret="two"), EVENT, inherits=False)
        await stores.tokens.create(a_token(secret="two"), EVENT, inherits=True)
        found = await stores.tokens.tokens()
        with pytest.raises(NotFound):
            await stores.tokens.revoke("other", EVENT)

    assert {one.digest: one.revoked_at for one in found} == {
        digest_of("one"): NOON,
        digest_of("two"): None,
    }


async def test_the_version_grows_with_each_change_and_with_no_use(opened: Open) -> None:
    versions: list[int] = []
    async with opened() as stores:
        versions.append(await stores.tokens.version())
        await stores.tokens.create(a_token(), EVENT, inherits=False)
        versions.append(await stores.tokens.version())
        stores.tokens.note_use(digest_of("one"), NOON + HOUR)
        (used,) = await stores.tokens.tokens()
        versions.append(await stores.tokens.version())
        await stores.ledger.raise_today("daily", 5, replace(EVENT, kind="budget.raised"))
        versions.append(await stores.tokens.version())
        await stores.tokens.revoke("phone", EVENT)
        versions.append(await stores.tokens.version())

    assert versions == [0, 1, 1, 2, 3]
    assert used.last_used_at == NOON + HOUR


async def test_what_is_refused_leaves_nothing_behind(opened: Open) -> None:
    async with opened() as stores:
        await stores.tokens.create(a_token(), EVENT, inherits=False)
        for broken in (a_token(), a_token("\ud800", "three")):
            with pytest.raises(GatewayError):
                await stores.tokens.create(broken, EVENT, inherits=False)
        found, entries = await stores.tokens.tokens(), await stores.audit.after(0, limit=9)

    assert len(found) == len(entries) == 1
