"""What every ledger promises of its sums, and of limits that are raised for a day."""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import get_args

import pytest

from gateway.domain.budgets import (
    Amount,
    Grant,
    Grouping,
    Payer,
    RecordQuery,
    Scope,
    TokenRecord,
    UsageSum,
    day_of,
    scopes_of,
)
from gateway.domain.errors import Conflict
from gateway.domain.events import AuditEvent
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.ports import Stores
from tests.fakes.ledger import a_record, a_reservation
from tests.fakes.store import NOON

Open = Callable[[], AbstractAsyncContextManager[Stores]]
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
DEED = AuditEvent(NOON, "budget.raised", "operator", {})
PHONE = SessionKey(AgentId("a"), "websocket", "phone")
KEYS = (
    PHONE,
    SessionKey(AgentId("b"), "api", "phone", "c1"),
    SessionKey(AgentId("a"), "telegram", "default", "5512"),
    SessionKey(AgentId("a"), "telegram", "default", "room:7"),
)


async def spent(stores: Stores, number: int, key: SessionKey, **more: object) -> TokenRecord:
    at = NOON + HOUR * 7 * number
    wanted = a_reservation(f"r{number:03}", key, at=at)
    person = "telegram:default:9" if key.peer == "room:7" else None
    wanted = replace(wanted, payer=Payer(key, RunId(f"run-{number}"), person))
    held, _ = await stores.ledger.reserve(wanted, lambda _: Grant(1, Amount()))
    record = a_record(held, **more, person=person)  # type: ignore[arg-type]  # any fields
    await stores.ledger.settle(record)
    return record


async def some_calls(stores: Stores, seed: int) -> list[TokenRecord]:
    dice = random.Random(seed)
    return [
        await spent(
            stores,
            number,
            dice.choice(KEYS),
            input_tokens=dice.randrange(1000),
            output_tokens=dice.randrange(1000),
            cached_tokens=dice.randrange(50),
            nano_usd=dice.randrange(10**9),
            pricing="table",
        )
        for number in range(30)
    ]


def name_of(by: Grouping, one: TokenRecord) -> str:
    key = one.session_key
    is_own = key.channel in {"websocket", "api"}
    person = one.person or (key.account if is_own else f"{key.channel}:{key.account}:{key.peer}")
    names = {"agent": key.agent, "person": person, "channel": key.channel, "day": day_of(one.at)}
    return str(names[by]) if by in names else str(getattr(one, by))


def added(by: Grouping, records: list[TokenRecord]) -> list[UsageSum]:
    sums: dict[str, UsageSum] = {}
    for one in records:
        name = name_of(by, one)
        figures = (one.input_tokens, one.output_tokens, one.cached_tokens, one.nano_usd)
        sums[name] = sums.get(name, UsageSum(name)) + UsageSum(name, 1, *figures)
    return [sums[name] for name in sorted(sums)]


@pytest.mark.parametrize("seed", [1, 2])
async def test_sums_are_those_of_the_records_to_the_token(opened: Open, seed: int) -> None:
    since, until = NOON + DAY, NOON + 3 * DAY
    async with opened() as stores:
        records = await some_calls(stores, seed)
        for by in get_args(Grouping):
            within = [one for one in records if since <= one.at < until]
            assert await stores.ledger.usage(by, None, None) == added(by, records)
            assert await stores.ledger.usage(by, since, until) == added(by, within)
        days = {one.name: one for one in await stores.ledger.usage("day", None, None)}
        tallies = await stores.ledger.tallies([Scope("day", max(days))])
        page = await stores.ledger.records(RecordQuery(limit=99))

    last = days[max(days)]
    assert tallies[0].used == Amount(last.input_tokens + last.output_tokens, last.nano_usd)
    assert {one.id: one.person for one in page.records} == {one.id: one.person for one in records}


async def test_a_token_has_counters_of_its_own_by_day_and_month(opened: Open) -> None:
    async with opened() as stores:
        records = await some_calls(stores, 3)
        last = max(day_of(one.at) for one in records)
        tallies = await stores.ledger.tallies(
            [Scope("token_day", f"{last} phone"), Scope("token_month", f"{last[:7]} phone")]
        )
        names = {str(one) for one in scopes_of(PHONE, last)[4:]}

    own, used = [one for one in records if one.session_key.account == "phone"], Counter[str]()
    for one in own:
        used[day_of(one.at)] += one.amount.tokens
        used[day_of(one.at)[:7]] += one.amount.tokens
    assert [one.used.tokens for one in tallies] == [used[last], used[last[:7]]]
    assert names == {"token:phone"}


async def test_a_raise_adds_up_and_ends_with_the_day(opened: Open) -> None:
    day, scopes = day_of(NOON), [Scope("day", day_of(NOON)), Scope("agent", "a")]
    async with opened() as stores:
        first = await stores.ledger.raise_today("daily", 500, DEED)
        second = await stores.ledger.raise_today("daily", 700, DEED)
        await stores.ledger.raise_today("agent:a", 1, DEED)
        with pytest.raises(Conflict):
            await stores.ledger.raise_today("daily", 2**53, DEED)
        entries = await stores.audit.after(0, limit=9)
    async with opened() as again:
        await again.ledger.load_raises(NOON)
        today = await again.ledger.tallies(scopes)
        tomorrow = await again.ledger.tallies([Scope("day", day_of(NOON + DAY)), scopes[1]])
        await again.ledger.load_raises(NOON + DAY)
        later = await again.ledger.tallies(scopes)

    assert (first.tokens, second.tokens) == (500, 1200)
    assert first.until == (NOON + DAY).replace(hour=0, minute=0, second=0, microsecond=0)
    assert [one.raised for one in today] == [1200, 1]
    assert [one.raised for one in tomorrow] == [0, 0]
    assert [one.raised for one in later] == [0, 0]
    assert [one.kind for one in entries] == ["budget.raised"] * 3
    assert day in str(first.until - DAY)
