"""`[[subagents]]` with everything checked that they name."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.domain.agents import SubagentDef
from tests.config.arena import Arena

ONE = "[[subagents]]\nname = 'librarian'\nprompt_path = 'l.md'\n"
PLUGIN = "[[plugins]]\nname = 'notes'\npath = 'bundled:notes'\ncapabilities = ['store:notes']\n"


def loaded(arena: Arena, text: str) -> SubagentDef:
    arena.write("You keep books.", "l.md")
    (one,) = arena.load(f"[agent]\n{text}").subagents
    return one


def problems(arena: Arena, text: str) -> list[tuple[str, str | None]]:
    arena.write("You keep books.", "l.md")
    return [(problem.code, problem.key) for problem in arena.problems(f"[agent]\n{text}")]


@pytest.mark.requirement("S-000-Subagent-04")
def test_what_is_not_said_is_as_its_parent_has_it(arena: Arena) -> None:
    one = loaded(arena, ONE)

    assert one == SubagentDef("librarian", str(arena.cwd / "l.md"))
    assert (one.max_turns, one.timeout_seconds, one.tools) == (10, 1_200, ())
    assert (one.provider, one.model) == (None, None)


@pytest.mark.requirement("S-000-Subagent-05")
def test_a_model_of_its_own_is_known_with_its_window(arena: Arena) -> None:
    arena = replace(arena, environment={"ANTHROPIC_API_KEY": "k"})

    usual = loaded(arena, f"{ONE}provider = 'anthropic'")
    small = loaded(arena, f"{ONE}model = 'small'")

    assert (usual.provider, usual.model) == ("anthropic", "claude-test")
    assert (usual.context_window, usual.output_limit) == (200_000, 8_192)
    assert (small.provider, small.model, small.context_window) == (None, "small", 8_000)


def test_an_agent_has_those_that_it_lists_as_tools(arena: Arena) -> None:
    arena.write("You keep books.", "l.md")

    config = arena.load(f"[agent]\ntools = ['memory']\nsubagents = ['librarian']\n{ONE}")

    assert config.agents[0].tools == ("memory", "delegate_librarian")


@pytest.mark.requirement("S-000-Subagent-01", "S-000-Subagent-02")
@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (f"{ONE}{ONE}", ("CFG008", "subagents.1.name")),
        (f"{ONE}[[agents]]\nid = 'librarian'", ("CFG008", "subagents.0.name")),
        (ONE.replace("librarian", "main"), ("CFG008", "subagents.0.name")),
        (ONE.replace("librarian", "a_b"), ("CFG006", "subagents.0.name")),
        (ONE.replace("librarian", "a" * 56), ("CFG006", "subagents.0.name")),
        (ONE.replace("l.md", "m.md"), ("CFG012", "subagents.0.prompt_path")),
        (f"{ONE}provider = 'antropic'", ("CFG003", "subagents.0.provider")),
        (f"{ONE}tools = ['notes']", ("CFG009", "subagents.0.tools.0")),
        (f"{ONE}tools = ['delegate_librarian']", ("CFG009", "subagents.0.tools.0")),
        (f"subagents = ['libarian']\n{ONE}", ("CFG009", "agent.subagents.0")),
        (f"{ONE}max_turns = 51", ("CFG007", "subagents.0.max_turns")),
        (f"{ONE}timeout_seconds = 0", ("CFG007", "subagents.0.timeout_seconds")),
    ],
)
def test_what_cannot_be_is_told_with_its_place(
    arena: Arena, text: str, wrong: tuple[str, Any]
) -> None:
    assert problems(arena, text) == [wrong]


def test_the_longest_name_makes_a_tools_name(arena: Arena) -> None:
    assert len(loaded(arena, ONE.replace("librarian", "a" * 55)).tool) == 64


@pytest.mark.requirement("S-000-Subagent-03")
def test_it_may_have_single_tools_of_plugins_and_other_subagents(arena: Arena) -> None:
    arena.write("You keep books.", "l.md")
    tools = ["notes/vault_read", "delegate_clerk"]
    clerk = ONE.replace("librarian", "clerk")

    config = arena.load(f"[agent]\n{PLUGIN}{ONE}tools = {tools}\n{clerk}")

    assert config.subagents[0].tools == tuple(tools)


def test_what_is_nearly_right_is_proposed(arena: Arena) -> None:
    arena.write("You keep books.", "l.md")

    (problem,) = arena.problems(f"[agent]\nsubagents = ['libarian']\n{ONE}")

    assert problem.fix.startswith('did you mean "librarian"?')
