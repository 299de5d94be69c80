"""No provider is asked without a reservation, and what it took is in the ledger, whatever happens."""

import json
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import anyio
import pytest

from gateway.budgets import LiveBudgets, Meter
from gateway.domain.budgets import (
    NANO,
    SCOPE_KINDS,
    Amount,
    BudgetExceeded,
    Budgets,
    Decide,
    Grant,
    Limit,
    Payer,
    RecordQuery,
    Reservation,
    ScopeKind,
    Tally,
    TokenRecord,
    scopes_of,
)
from gateway.domain.errors import ModelFailed, NeverSent
from gateway.domain.ids import RunId
from gateway.domain.messages import Message, Usage
from gateway.domain.model import (
    BudgetWarning,
    ModelReply,
    ModelRequest,
    OnDelta,
    TextDelta,
    ThinkingDelta,
)
from gateway.domain.ports import Stores
from tests.fakes.clock import CountingIds, FakeClock
from tests.fakes.ledger import AwayLedger, FixedPrices
from tests.fakes.model import ScriptedModel, StallingModel, Step, say, says
from tests.fakes.ports import PartOfLedger
from tests.fakes.store import open_memory, session_key
from tests.providers.asking import Heard

PAYER = Payer(session_key(), RunId("run-1"))


def a_request(text: str = "hello", **changes: object) -> ModelRequest:
    request = ModelRequest("fake", "fake-1", "", (Message("user", text),), payer=PAYER)
    return replace(request, **changes)  # type: ignore[arg-type]  # the tests' own short-hand


@dataclass
class Bench:
    """A meter over a store in memory."""

    stores: Stores
    clock: FakeClock
    meter: Meter

    async def ask(self, *script: Step, on_delta: OnDelta | None = None) -> ModelReply:
        model = self.meter.around(ScriptedModel(*script))
        return await model.reply(a_request(), on_delta or Heard())

    async def records(self) -> Sequence[TokenRecord]:
        page = await self.stores.ledger.records(RecordQuery())
        return list(reversed(page.records))

    async def daily(self) -> Tally:
        now = self.clock.now().date().isoformat()
        return (await self.stores.ledger.tallies(scopes_of(PAYER.session_key, now)))[2]


@asynccontextmanager
async def bench(
    budgets: Budgets | None = None, *, price: int | None = None
) -> AsyncIterator[Bench]:
    with anyio.fail_after(60):
        async with open_memory() as stores:
            clock, prices = FakeClock(), FixedPrices(price)
            meter = Meter(
                stores.ledger,
                LiveBudgets(budgets or Budgets()),
                prices,
                clock,
                CountingIds(),
                stores.audit,
            )
            yield Bench(stores, clock, meter)


def failed(**how: object) -> ModelFailed:
    return ModelFailed("fake", "server", "it broke", **how)  # type: ignore[arg-type]  # by name


# --- what is recorded --------------------------------------------------------------------------


@pytest.mark.requirement("S-003-Record-02")
async def test_the_providers_own_count_is_recorded() -> None:
    async with bench() as at:
        usage = Usage(11, 7, cached_tokens=5, reasoning_tokens=3)
        await at.ask(replace(says("hi"), usage=usage))

        (record,) = await at.records()
    assert (record.outcome, record.amount, record.estimated) == ("answered", Amount(18), False)
    assert (record.cached_tokens, record.reasoning_tokens) == (5, 3)
    assert (record.session_key, record.run_id) == (PAYER.session_key, PAYER.run_id)


@pytest.mark.requirement("S-003-Record-03")
async def test_what_has_no_price_costs_nothing_and_says_so() -> None:
    async with bench() as at:
        reply = await at.ask(says("hi"))

        (record,) = await at.records()
    assert (record.nano_usd, record.pricing, reply.usage.cost_usd) == (0, "unpriced", None)


async def test_what_the_provider_says_it_cost_comes_before_any_price() -> None:
    async with bench(price=NANO) as at:
        first = await at.ask(says("hi", tokens=10))
        await at.ask(replace(says("hi"), usage=Usage(5, 5, cost_usd=0.25)))

        one, other = await at.records()
    assert (one.nano_usd, one.pricing, first.usage.cost_usd) == (10 * NANO, "table", 10.0)
    assert (other.nano_usd, other.pricing) == (NANO // 4, "provider")


async def test_a_call_that_never_left_is_no_record() -> None:
    async with bench() as at:
        with pytest.raises(ModelFailed):
            await at.ask(NeverSent("fake", "network", "refused"))

        assert (await at.records(), (await at.daily()).held) == ([], Amount())


@pytest.mark.requirement("S-003-Record-01")
async def test_a_call_that_was_refused_is_a_record_without_tokens() -> None:
    async with bench() as at:
        with pytest.raises(ModelFailed):
            await at.ask(failed(status=503))

        (record,) = await at.records()
    assert (record.outcome, record.amount) == ("failed", Amount())


@pytest.mark.requirement("S-003-Record-01")
async def test_a_stream_that_breaks_is_recorded_by_what_was_heard() -> None:
    async def half(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        say(request, on_delta, ThinkingDelta("so many tho"))
        say(request, on_delta, TextDelta("ughts"))
        raise failed(started=True)

    async with bench() as at:
        with pytest.raises(ModelFailed):
            await at.ask(half)

        (record,) = await at.records()
    assert (record.outcome, record.estimated, record.output_tokens) == ("broken", True, 5)
    assert record.input_tokens > 0


@pytest.mark.requirement("S-003-Record-01")
async def test_what_came_of_a_broken_stream_counts_although_nobody_heard_it() -> None:
    async def breaks(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        assert request.progress is not None
        request.progress.size = 320
        request.progress.reported = Usage(77, 1, cached_tokens=70)
        raise failed()

    async with bench(price=1) as at:
        with pytest.raises(ModelFailed):
            await at.ask(breaks)

        (record,) = await at.records()
    assert (record.outcome, record.estimated, record.nano_usd) == ("broken", True, 177)
    assert (record.input_tokens, record.cached_tokens, record.output_tokens) == (77, 70, 100)


@pytest.mark.parametrize(
    ("status", "outcome", "output"), [(None, "broken", 500), (503, "failed", 0)]
)
async def test_a_whole_answer_that_never_came_is_taken_as_spent(
    status: int | None, outcome: str, output: int
) -> None:
    async with bench() as at:
        model = at.meter.around(ScriptedModel(failed(status=status)))
        with pytest.raises(ModelFailed):
            await model.reply(a_request(stream=False, max_tokens=500), Heard())

        (record,) = await at.records()
    assert (record.outcome, record.output_tokens) == (outcome, output)


async def test_a_call_that_is_cancelled_is_recorded_and_holds_nothing() -> None:
    stalling = StallingModel(TextDelta("once upon a time"))
    async with bench() as at:
        async with anyio.create_task_group() as group:
            group.start_soon(at.meter.around(stalling).reply, a_request(), Heard())
            await stalling.reached.wait()
            assert (await at.daily()).held.tokens > 4096
            group.cancel_scope.cancel()

        (record,) = await at.records()
        assert (record.outcome, record.output_tokens) == ("broken", 5)
        assert (await at.daily()).held == Amount()


async def test_a_call_that_is_cancelled_counts_what_nobody_heard_too() -> None:
    stalling = StallingModel(TextDelta("once"), characters=320)
    async with bench() as at:
        async with anyio.create_task_group() as group:
            group.start_soon(at.meter.around(stalling).reply, a_request(), Heard())
            await stalling.reached.wait()
            group.cancel_scope.cancel()

        (record,) = await at.records()
    assert (record.outcome, record.output_tokens) == ("broken", 100)


async def test_who_is_cancelled_before_it_asked_pays_nothing() -> None:
    model = ScriptedModel(says("never"))
    async with bench(Budgets(daily=Limit(10_000))) as at:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await at.meter.around(model).reply(a_request(), Heard())

        assert (model.asked, await at.records(), (await at.daily()).held) == ([], [], Amount())


# --- what is refused ---------------------------------------------------------------------------


async def test_what_is_written_for_somebody_who_has_gone_is_let_go() -> None:
    written = anyio.Event()

    class SlowLedger(AwayLedger, PartOfLedger):
        async def reserve(
            self, wanted: Reservation, decide: Decide, kinds: Collection[ScopeKind] = SCOPE_KINDS
        ) -> tuple[Reservation, Grant]:
            await super().reserve(wanted, decide, kinds)
            written.set()
            await anyio.sleep_forever()
            raise AssertionError("unreachable")

    async with bench(Budgets(daily=Limit(10_000))) as at:
        at.meter.ledger = SlowLedger(at.stores.ledger)
        async with anyio.create_task_group() as group:
            group.start_soon(at.ask, says("hi"))
            await written.wait()
            assert (await at.daily()).held.tokens > 4096
            group.cancel_scope.cancel()

        assert ((await at.daily()).held, await at.records()) == (Amount(), [])


@pytest.mark.requirement("S-003-Budget-03", "S-003-Budget-06")
async def test_of_fifty_at_once_as_many_are_asked_as_fit() -> None:
    refusals = 0

    async def one() -> None:
        nonlocal refusals
        try:
            await at.meter.around(model).reply(a_request(max_tokens=1000), Heard())
        except BudgetExceeded as refusal:
            refusals += refusal.scope == "daily"

    async def long_answer(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        await anyio.lowlevel.checkpoint()
        return replace(says("x"), usage=Usage(4, request.max_tokens))

    model = ScriptedModel(long_answer)
    async with bench(Budgets(daily=Limit(10_000))) as at:
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(one)

        tally = await at.daily()
    assert 9_000 < tally.used.tokens <= 10_000
    assert len(model.asked) + refusals == 50
    assert len(model.asked) == 10
    assert tally.held == Amount()


@pytest.mark.requirement("S-003-Budget-08")
async def test_each_attempt_needs_a_reservation_of_its_own() -> None:
    async with bench(Budgets(session=Limit(330))) as at:
        with pytest.raises(ModelFailed):
            await at.ask(failed(started=True))
        await at.ask(says("hi", tokens=60))

        with pytest.raises(BudgetExceeded):
            await at.ask(says("hi"))
        assert len(await at.records()) == 2


async def test_the_reply_is_bounded_by_what_is_left() -> None:
    model = ScriptedModel(says("hi"))
    async with bench(Budgets(daily=Limit(1_000))) as at:
        await at.meter.around(model).reply(a_request(), Heard())

    assert 900 < model.asked[0].max_tokens < 1_000


@pytest.mark.requirement("S-003-Budget-02")
async def test_a_new_day_has_a_new_budget_and_an_old_one_none() -> None:
    most = replace(says("hi"), usage=Usage(5, 800))
    async with bench(Budgets(daily=Limit(1_000))) as at:
        await at.ask(most)
        noon = at.clock.now()
        with pytest.raises(BudgetExceeded):
            await at.ask(says("hi"))

        at.clock.set_wall(noon + timedelta(days=1))
        await at.ask(most)
        at.clock.set_wall(noon)
        with pytest.raises(BudgetExceeded):
            await at.ask(says("hi"))


async def test_a_refusal_is_noted_in_the_audit_and_counted() -> None:
    async with bench(Budgets(per_agent=Limit(100))) as at:
        with pytest.raises(BudgetExceeded):
            await at.ask(says("hi"))
        (entry,) = await at.stores.audit.newest(limit=9)

        assert (entry.kind, entry.actor) == ("budget.refused", str(PAYER.session_key))
        assert json.loads(entry.detail) == {
            "scope": f"agent:{PAYER.session_key.agent}",
            "used": 0,
            "reserved": 0,
            "limit": 100,
            "unit": "tokens",
            "run_id": "run-1",
            "model": "fake/fake-1",
            "times": 1,
        }
        assert at.meter.refusals == {"agent": 1}


async def test_many_refusals_are_few_entries() -> None:
    async with bench(Budgets(session=Limit(100), per_agent=Limit(0))) as at:
        for _ in range(120):
            with pytest.raises(BudgetExceeded):
                await at.ask(says("hi"))
        at.clock.set_wall(at.clock.now() + timedelta(days=1))
        with pytest.raises(BudgetExceeded):
            await at.ask(says("hi"))
        entries = await at.stores.audit.after(0, limit=99)

        assert [json.loads(entry.detail)["times"] for entry in entries] == [1, 10, 100, 1]
        assert at.meter.refusals.total() == 121


# --- the ledger being away ---------------------------------------------------------------------


async def test_without_a_ledger_nobody_is_asked() -> None:
    model = ScriptedModel(says("hi"))
    async with bench() as at:
        at.meter.ledger = AwayLedger(at.stores.ledger, {"reserve"})

        with pytest.raises(ModelFailed) as caught:
            await at.meter.around(model).reply(a_request(), Heard())
    assert (caught.value.kind, model.asked) == ("unmetered", [])


async def test_what_could_not_be_recorded_is_held_until_it_is() -> None:
    async with bench() as at:
        ledger = AwayLedger(at.stores.ledger, {"settle"})
        at.meter.ledger = ledger
        reply = await at.ask(says("hi", tokens=10))
        with pytest.raises(ModelFailed, match="ledger"):
            await at.ask(says("hi"))
        held = (await at.daily()).held

        ledger.away.clear()
        await at.ask(says("hi", tokens=20))

        tally = await at.daily()
    assert (reply.text, held.tokens > 4096) == ("hi", True)
    assert (tally.used, tally.held) == (Amount(30), Amount())


@pytest.mark.requirement("S-003-Budget-07")
async def test_what_a_dead_process_held_is_taken_as_spent() -> None:
    async with bench() as at:
        await at.meter.reserve(a_request(), 100)
        held = (await at.daily()).held

        await at.meter.settle_lost()
        await at.meter.settle_lost()

        (record,) = await at.records()
        tally = await at.daily()
    assert (record.outcome, record.estimated, record.amount) == ("lost", True, held)
    assert (tally.used, tally.held) == (held, Amount())


# --- warnings and estimates --------------------------------------------------------------------


async def test_the_call_that_passes_80_percent_tells_it_once() -> None:
    async with bench(Budgets(daily=Limit(10_000))) as at:
        told = [await at.ask(says("hi", tokens=tokens)) for tokens in (7_000, 1_000, 500)]

    assert [reply.warnings for reply in told] == [
        (),
        (BudgetWarning("daily", "tokens", 8_000, 10_000),),
        (),
    ]


async def test_of_many_at_once_one_tells_that_80_percent_are_passed() -> None:
    replies: list[ModelReply] = []
    budgets = Budgets(daily=Limit(100_000))

    async def ask() -> None:
        replies.append(await at.ask(says("hi", tokens=8_500)))

    async with bench(budgets) as at, anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(ask)

    told = [warning.scope for reply in replies for warning in reply.warnings]
    assert (len(replies), told) == (10, ["daily"])


async def test_a_warning_waits_for_a_reply_that_somebody_hears() -> None:
    async def breaks(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        say(request, on_delta, TextDelta("x" * 26_000))
        raise failed(started=True)

    async with bench(Budgets(daily=Limit(10_000))) as at:
        with pytest.raises(ModelFailed):
            await at.ask(breaks)
        reply = await at.ask(says("hi", tokens=10))

    assert [one.scope for one in reply.warnings] == ["daily"]


async def test_estimates_learn_from_what_is_reported() -> None:
    async with bench() as at:
        first, _ = await at.meter.reserve(a_request(), 100)
        for reported in (400, 100):
            at.meter.estimates.learn(100, PAYER.session_key, "fake-1", reported)
        second, _ = await at.meter.reserve(a_request(), 100)
        at.meter.estimates.learn(100, PAYER.session_key, "fake-1", 900)
        third, _ = await at.meter.reserve(a_request(), 100)
        other = replace(PAYER, session_key=session_key("another"))
        fourth, _ = await at.meter.reserve(a_request(payer=other), 100)

    found = [one.input_tokens for one in (first, second, third, fourth)]
    assert found == [125, 341, 900, 900]
