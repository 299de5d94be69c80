"""Nobody who works for a run is given what another has, and the run keeps a share itself."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.driver import Carving
from gateway.domain.messages import ToolCall


def turn(left: int, *calls: str) -> Any:
    """One with these calls open, by ticket, and so many tokens left."""
    open_ = {n: SimpleNamespace(wanted=ToolCall(str(n), name)) for n, name in enumerate(calls)}
    limits, usage = SimpleNamespace(token_budget=left), SimpleNamespace(total=0)
    return SimpleNamespace(
        tickets=SimpleNamespace(open=open_), course=SimpleNamespace(limits=limits, usage=usage)
    )


def test_each_that_waits_gets_as_much_as_the_run_keeps() -> None:
    carving, its = Carving(), turn(9_000, "delegate_a", "delegate_b", "echo")

    shares = [carving.share(ticket, its, 5.0).tokens for ticket in (0, 1)]

    assert shares == [3_000, 3_000]


def test_what_one_did_not_use_is_there_for_the_next() -> None:
    carving, its = Carving(), turn(9_000, "delegate_a")
    carving.share(0, its, 5.0)
    its.tickets.open.clear()
    its.course.usage.total = 1_000
    its.tickets.open[7] = SimpleNamespace(wanted=ToolCall("7", "delegate_b"))

    share = carving.share(7, its, 5.0)

    assert (share.tokens, share.seconds) == (4_000, 5.0)


@given(st.integers(-100, 1_000_000), st.integers(1, 20), st.randoms())
def test_together_they_never_have_more_than_is_left(left: int, count: int, order: Any) -> None:
    carving, its = Carving(), turn(left, *["delegate_a"] * count)
    tickets = list(its.tickets.open)
    order.shuffle(tickets)

    shares = [carving.share(ticket, its, 1.0).tokens for ticket in tickets]

    assert min(shares) >= 0
    assert sum(shares) <= max(0, left)
    assert max(shares) - min(shares) <= 1
