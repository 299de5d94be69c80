"""`[delegation]` names a subagent that is there, and gives agents the tool that reads the rest."""

import pytest

from gateway.domain.agents import Delegation
from tests.config.arena import Arena

LIBRARIAN = "[[subagents]]\nname = 'librarian'\nprompt_path = 'l.md'\n"
ON = f"{LIBRARIAN}[delegation]\nenabled = true\n"
FALLBACK = "fallback = { provider = 'demo', model = 'small' }\n"


@pytest.mark.requirement("S-002-Deleg-01", "S-002-Deleg-04")
def test_it_is_off_and_its_thresholds_are_those_of_the_seed(arena: Arena) -> None:
    config = arena.load("[agent]\ntools = ['memory']")

    assert config.delegation == Delegation()
    assert not config.delegation.is_enabled
    assert config.delegation.token_estimate == 4_000
    assert config.delegation.items == {
        "vault_search": 6,
        "search_code": 6,
        "vault_list": 10,
        "thread_read": 20,
    }
    assert config.delegation.score_similarity == 0.1
    assert config.agents[0].tools == ("memory",)


def test_whoever_has_tools_can_read_what_was_not_shown(arena: Arena) -> None:
    arena.write("You keep books.", "l.md")
    bare = "[[agents]]\nid = 'bare'\n[[agents]]\nid = 'two'\ntools = ['result']\n"

    config = arena.load(f"[agent]\ntools = ['memory']\n{FALLBACK}{bare}{ON}")

    tools = {agent.id: agent.tools for agent in config.agents}
    assert tools == {"main": ("memory", "result"), "bare": (), "two": ("result",)}
    assert config.agents[0].fallback is not None
    assert config.agents[0].fallback.tools == ("memory", "result")


def test_its_own_thresholds_stand_for_all(arena: Arena) -> None:
    arena.write("You keep books.", "l.md")

    config = arena.load(f"[agent]\n{ON}token_estimate = 900\nitems = {{ find = 0 }}")

    assert (config.delegation.token_estimate, config.delegation.items) == (900, {"find": 0})


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[delegation]\nenabled = true", ("CFG009", "delegation.subagent")),
        (f"{ON}subagent = 'libarian'", ("CFG009", "delegation.subagent")),
        (f"{ON}token_estimate = 99", ("CFG007", "delegation.token_estimate")),
        (f"{ON}items = {{ find = -1 }}", ("CFG007", "delegation.items.find")),
        (f"{ON}score_similarity = -0.1", ("CFG007", "delegation.score_similarity")),
        (f"{ON}librarian = 'x'", ("CFG002", "delegation.librarian")),
    ],
)
def test_what_does_not_fit_is_refused(arena: Arena, text: str, wrong: tuple[str, str]) -> None:
    arena.write("You keep books.", "l.md")

    problems = arena.problems(f"[agent]\n{text}")

    assert [(problem.code, problem.key) for problem in problems] == [wrong]


def test_one_that_is_off_needs_no_subagent(arena: Arena) -> None:
    assert arena.load("[agent]\n[delegation]\nsubagent = 'nobody'").delegation.subagent == "nobody"
