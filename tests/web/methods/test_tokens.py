"""Tokens of a store that two gateways share, and the notes of their use."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import pytest

from gateway.api.errors import Unauthorized
from gateway.api.spending import CreateToken, RevokeToken
from gateway.budgets import LiveBudgets
from gateway.domain.budgets import Budgets, Scope
from gateway.domain.errors import StoreUnavailable
from gateway.domain.events import AuditEvent
from gateway.domain.ports import Stores
from gateway.web.identity import LOCAL, Identities
from gateway.web.rpc import Call
from gateway.web.settings import WebSettings
from gateway.web.spending import TokenMethods, TokenRegistry
from gateway.web.wire.connections import Visitor
from tests.fakes.clock import FakeClock
from tests.fakes.store import open_memory

NOBODY = Visitor(client=None, server="")


@dataclass
class Node:
    keys: TokenRegistry
    identities: Identities
    methods: TokenMethods

    async def create(self, budget: int | None = None) -> str:
        params = CreateToken(name="phone", budget=budget)
        return (await self.methods.token_create(Call(LOCAL), params)).token

    async def revoke(self, name: str = "phone") -> None:
        await self.methods.token_revoke(Call(LOCAL), RevokeToken(name=name))

    def lets_in(self, token: str) -> bool:
        try:
            self.identities.authenticate(token, NOBODY)
        except Unauthorized:
            return False
        return True


def node(stores: Stores, clock: FakeClock) -> Node:
    keys = TokenRegistry(stores.tokens, stores.ledger, LiveBudgets(Budgets()), clock)
    identities = Identities(WebSettings(), clock, used=keys.note_use)
    keys.attach(identities)
    return Node(keys, identities, TokenMethods(keys, identities, ("main",)))


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Stores, FakeClock, Node, Node]]:
    with anyio.fail_after(60):
        async with open_memory() as stores:
            clock = FakeClock()
            yield stores, clock, node(stores, clock), node(stores, clock)


async def test_what_one_gateway_hands_out_and_takes_back_holds_at_the_other_after_a_look() -> None:
    async with two() as (stores, clock, here, there):
        token = await here.create(budget=500)
        before = there.lets_in(token)
        await there.keys.refresh()
        meanwhile = there.lets_in(token)
        limit = there.keys.limits.now.limit(Scope("token_day", "2026-01-01 phone"))
        await here.revoke()
        event = AuditEvent(clock.now(), "budget.raised", "local", {})
        await stores.ledger.raise_today("daily", 3, event)
        await there.keys.refresh()

        assert (before, meanwhile, there.lets_in(token)) == (False, True, False)
    assert limit.tokens == 500


async def test_a_look_at_a_store_that_nobody_changed_reads_one_row() -> None:
    async with two() as (_, _clock, here, _there):
        await here.create()
        await here.keys.refresh()
        known = here.keys.tokens
        await here.keys.refresh()

        assert here.keys.tokens is known


async def test_a_use_is_written_once_a_minute() -> None:
    async with two() as (stores, clock, here, _):
        token, first = await here.create(), clock.now()
        for _ in range(3):
            here.lets_in(token)
            clock.move(25)
        (early,) = await stores.tokens.tokens()
        here.lets_in(token)
        (late,) = await stores.tokens.tokens()

        assert early.last_used_at == first
        assert late.last_used_at == clock.now()


async def test_a_revoked_token_s_limit_holds_for_the_runs_that_it_left() -> None:
    async with two() as (_, clock, here, _there):
        await here.create(budget=500)
        await here.revoke()
        left = here.keys.limits.now.tokens
        clock.move(90_000)
        await here.keys.load()

        assert [*left] == ["phone"]
        assert [*here.keys.limits.now.tokens] == []


async def test_a_failed_commit_leaves_no_token_in_force() -> None:
    async with two() as (stores, _clock, here, _there):
        await stores.care.close()
        with pytest.raises(StoreUnavailable):
            await here.create()

        assert here.keys.tokens == ()
