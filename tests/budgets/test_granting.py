"""What fits is granted, what does not is refused, whatever the scopes and units are."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.budgets import HELD_RETRY_S, LEAST_REPLY, ReserveRequest, due, fullest, grant
from gateway.domain.budgets import (
    NANO,
    Amount,
    BudgetExceeded,
    Budgets,
    Limit,
    Scope,
    Tally,
    scopes_of,
)
from tests.fakes.store import session_key

SCOPES = scopes_of(session_key(), "2026-01-31")
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ASK = ReserveRequest(100, 4096, at=NOW)


def tallies(used: int = 0, held: int = 0) -> list[Tally]:
    return [Tally(scope, Amount(used), Amount(held)) for scope in SCOPES]


@pytest.mark.requirement("S-003-Budget-05")
def test_without_a_limit_everything_fits() -> None:
    assert grant(Budgets(), ASK, tallies(10**12)).max_tokens == 4096


def test_a_reply_is_shortened_to_what_is_not_used() -> None:
    granted = grant(Budgets(daily=Limit(10_000)), ASK, tallies(8_900))

    assert (granted.max_tokens, granted.held) == (1_000, Amount(1_100))


def test_what_others_hold_shortens_no_reply_but_is_waited_for() -> None:
    budgets = Budgets(daily=Limit(10_000))

    assert grant(budgets, ASK, tallies(0, 5_804)).max_tokens == 4_096
    with pytest.raises(BudgetExceeded) as caught:
        grant(budgets, ASK, tallies(1_000, 5_804))
    assert caught.value.waits_for == {Scope("day", "")}
    assert str(caught.value) == "token budget exceeded (daily: 6804/10000)"
    assert (caught.value.used, caught.value.reserved) == (1_000, 5_804)
    assert caught.value.retry_after_s == HELD_RETRY_S


def test_what_costs_nothing_fits_beside_money_that_is_spent() -> None:
    free = [Tally(scope, Amount(0, NANO)) for scope in SCOPES]

    assert grant(Budgets(daily=Limit(None, NANO)), ASK, free).max_tokens == 4096
    with pytest.raises(BudgetExceeded):
        grant(Budgets(daily=Limit(None, 0)), ASK, free)


@pytest.mark.requirement("S-003-Budget-03")
@pytest.mark.parametrize(("limit", "fits"), [(356, True), (355, False), (0, False)])
def test_below_256_tokens_of_reply_a_call_is_refused(limit: int, fits: bool) -> None:
    budgets = Budgets(session=Limit(limit))
    if fits:
        assert grant(budgets, ASK, tallies()).max_tokens == LEAST_REPLY
        return

    with pytest.raises(BudgetExceeded) as caught:
        grant(budgets, ASK, tallies())
    assert str(caught.value) == f"token budget exceeded (session: 0/{limit})"
    assert caught.value.resets_at is None


def test_who_asks_for_less_than_256_gets_it_or_nothing() -> None:
    ask = ReserveRequest(100, 50, at=NOW)

    assert grant(Budgets(daily=Limit(150)), ask, tallies()).max_tokens == 50
    with pytest.raises(BudgetExceeded):
        grant(Budgets(daily=Limit(149)), ask, tallies())


@pytest.mark.requirement("S-003-Budget-04")
def test_the_tightest_scope_is_told() -> None:
    budgets = Budgets(
        session=Limit(1_000), daily=Limit(900), monthly=Limit(950), agents={"demo": Limit(990)}
    )

    with pytest.raises(BudgetExceeded) as caught:
        grant(budgets, ASK, tallies(880))
    assert str(caught.value) == "token budget exceeded (daily: 880/900)"
    assert caught.value.resets_at == datetime(2026, 2, 1, tzinfo=UTC)


def test_an_agents_own_limit_comes_before_that_of_all() -> None:
    budgets = Budgets(per_agent=Limit(0), agents={"demo": Limit(None)})

    assert grant(budgets, ASK, tallies()).max_tokens == 4096
    with pytest.raises(BudgetExceeded, match=r"\(agent:demo: 0/0\)"):
        grant(Budgets(per_agent=Limit(0)), ASK, tallies())


@pytest.mark.requirement("S-003-Budget-02")
@pytest.mark.parametrize(
    ("scope", "resets"),
    [
        (Scope("day", "2026-12-31"), datetime(2027, 1, 1, tzinfo=UTC)),
        (Scope("month", "2026-12"), datetime(2027, 1, 1, tzinfo=UTC)),
        (Scope("month", "2028-02"), datetime(2028, 3, 1, tzinfo=UTC)),
        (Scope("agent", "demo"), None),
    ],
)
def test_a_day_ends_at_midnight_and_a_month_on_the_first(
    scope: Scope, resets: datetime | None
) -> None:
    assert scope.resets_at == resets


def test_money_bounds_a_reply_like_tokens_do() -> None:
    ask = ReserveRequest(100, 1_000, prompt_nano_usd=NANO, whole_nano_usd=11 * NANO, at=NOW)
    budgets = Budgets(monthly=Limit(None, 6 * NANO))

    granted = grant(budgets, ask, tallies())

    assert (granted.max_tokens, granted.held) == (500, Amount(600, 6 * NANO))
    with pytest.raises(BudgetExceeded, match=r"\(monthly: 0\.0/3\.0 USD\)"):
        grant(Budgets(monthly=Limit(None, 3 * NANO)), ask, tallies())


@pytest.mark.parametrize(("used", "is_due"), [(799, False), (800, True), (5_000, True)])
def test_at_80_percent_somebody_is_warned(used: int, is_due: bool) -> None:
    tally, budgets = tallies(used)[2], Budgets(daily=Limit(1_000, NANO))

    assert bool(due(budgets, tally)) is is_due
    assert fullest(budgets, tally) == ("tokens", used, 1_000)
    assert due(Budgets(), tally) == ""


amounts = st.integers(0, 10_000)
limits = st.builds(Limit, st.none() | amounts, st.none() | amounts)


@given(
    st.builds(Budgets, limits, limits, limits, limits),
    st.lists(st.builds(Amount, amounts, amounts), min_size=8, max_size=8),
    st.tuples(amounts, st.integers(1, 5_000), amounts, amounts),
)
def test_what_is_granted_fits_into_every_scope(
    budgets: Budgets, counted: list[Amount], asked: tuple[int, int, int, int]
) -> None:
    input_tokens, most, prompt, reply = asked
    ask = ReserveRequest(input_tokens, most, prompt, prompt + reply, at=NOW)
    books = [
        Tally(scope, used, held)
        for scope, used, held in zip(SCOPES, counted[:4], counted[4:], strict=True)
    ]

    def left(tally: Tally, taken: Amount) -> tuple[float, float]:
        limit = budgets.limit(tally.scope)
        tokens = float("inf") if limit.tokens is None else limit.tokens
        money = float("inf") if limit.nano_usd is None else limit.nano_usd
        return tokens - taken.tokens, money - taken.nano_usd

    by_use = [left(one, one.used) for one in books]
    by_all = [left(one, one.used + one.held) for one in books]
    try:
        granted = grant(budgets, ask, books)
    except BudgetExceeded as refusal:
        least = ask.amount(min(LEAST_REPLY, most))
        if refusal.waits_for:
            assert not any(short(least, *room) for room in by_use)
        else:
            assert any(tokens < least.tokens or money <= least.nano_usd for tokens, money in by_use)
        return
    assert min(LEAST_REPLY, most) <= granted.max_tokens <= most
    assert granted.held == ask.amount(granted.max_tokens)
    assert not any(short(granted.held, *room) for room in by_all)


def short(wanted: Amount, tokens: float, money: float) -> bool:
    return wanted.tokens > tokens or wanted.nano_usd > max(0, money)
