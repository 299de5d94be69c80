"""[budgets]: numbers or tables, agents by name, and what holds for whoever has said nothing."""

from dataclasses import replace

import pytest

from gateway.config.reading import DEMO_TURNS
from gateway.domain.budgets import NANO, Budgets, Limit
from tests.config.arena import Arena

AGENT = "[agent]\nprovider = 'demo'\n"


@pytest.mark.requirement("S-003-Budget-09")
def test_a_limit_is_a_number_of_tokens_or_a_table(arena: Arena) -> None:
    config = arena.load(
        f"{AGENT}[budgets]\nsession = 5\ndaily = {{ usd = 0.5 }}\nmonthly = 0\n"
        "per_agent = 7\n[budgets.agent]\nmain = { tokens = 9, usd = 1 }\n"
    )

    assert config.budgets == Budgets(
        session=Limit(5),
        daily=Limit(None, NANO // 2),
        monthly=Limit(0),
        per_agent=Limit(7),
        agents={"main": Limit(9, NANO)},
    )


def test_a_limit_of_an_agent_that_is_not_there_is_an_error(arena: Arena) -> None:
    (problem,) = arena.problems(f"{AGENT}[budgets.agent]\nmian = 5\n")

    assert 'did you mean "main"' in problem.fix


@pytest.mark.parametrize(
    ("environment", "daily"), [({}, 20_000), ({"OPENAI_API_KEY": "sk-of-the-test"}, 200_000)]
)
def test_a_start_without_any_configuration_has_a_daily_budget(
    arena: Arena, environment: dict[str, str], daily: int
) -> None:
    assert replace(arena, environment=environment).load().budgets == Budgets(daily=Limit(daily))


def test_the_demo_is_shown_few_turns_unless_somebody_says_how_many(arena: Arena) -> None:
    (demo,), (other,) = (arena.load(text).agents for text in ("", "[context]\nrecent_turns = 9\n"))

    assert (demo.context.recent_turns, other.context.recent_turns) == (DEMO_TURNS, 9)


def test_who_names_an_agent_sets_budgets_too(arena: Arena) -> None:
    assert arena.load(AGENT).budgets == Budgets()


def test_another_limit_does_not_take_the_daily_one_away(arena: Arena) -> None:
    assert arena.load("[budgets]\nsession = 5\n").budgets == Budgets(Limit(5), daily=Limit(20_000))
