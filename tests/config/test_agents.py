"""Agents with everything merged that they stand on."""

from dataclasses import replace

import pytest

from tests.config.arena import Arena

BOUNDS = {
    "max_iterations": (15, 1, 50),
    "soft_warning_percent": (70, 50, 90),
    "token_budget": (50_000, 1_000, 200_000),
    "token_warning_percent": (80, 50, 95),
    "timeout_seconds": (120, 10, 600),
    "max_tool_calls_per_turn": (5, 1, 20),
    "max_parallel_tools": (3, 1, 10),
    "error_limit": (3, 1, 20),
    "loop_window": (6, 2, 20),
    "loop_threshold": (3, 2, 10),
    "no_progress_repeats": (3, 2, 10),
}


@pytest.mark.requirement(
    "S-001-Config-01",
    "S-001-Config-02",
    "S-001-Config-03",
    "S-001-Config-04",
    "S-001-Config-05",
    "S-001-Config-06",
    "S-001-Config-07",
)
@pytest.mark.parametrize(
    ("section", "name"), [*(("limits", name) for name in BOUNDS), ("context", "warning_percent")]
)
@pytest.mark.parametrize("above", ["", "agent."])
def test_a_limit_has_its_default_and_both_bounds(
    arena: Arena, section: str, name: str, above: str
) -> None:
    default, least, most = BOUNDS.get(name, (70, 50, 95))

    def loaded(value: int | None) -> int:
        text = "[agent]" if value is None else f"[{above}{section}]\n{name} = {value}"
        return int(getattr(getattr(arena.load(text).agents[0], section), name))

    assert loaded(None) == default
    assert (loaded(least), loaded(most)) == (least, most)
    for outside in (least - 1, most + 1):
        (problem,) = arena.problems(f"[{above}{section}]\n{name} = {outside}")
        assert (problem.code, problem.key) == ("CFG007", f"{above}{section}.{name}")


def test_a_template_is_checked_and_its_fault_told_with_its_place(arena: Arena) -> None:
    file = arena.write("[agent]\nprompt_template = 'p.md'").parent / "p.md"
    told = []
    for text in (b"\xef\xbb\xbf{soul}\n{nots}", b"\n}", b"\xff", None):
        file.write_bytes(text) if text is not None else file.unlink()
        (problem,) = arena.problems("[agent]\nprompt_template = 'p.md'")
        assert (problem.line, problem.key) == (2, "agent.prompt_template")
        told.append((problem.code, problem.message.rpartition("p.md")[2], problem.fix[:29]))

    file.write_text("{soul}")
    assert told[0] == (
        "CFG006",
        ":2:1: there is no placeholder {nots}",
        'did you mean "notes"? choose ',
    )
    assert told[1] == (
        "CFG006",
        ":2:1: write {{ or }} for a single brace",
        "correct the file",
    )
    assert told[2] == ("CFG006", " is not UTF-8 (byte 0)", "save it as UTF-8")
    assert told[3][0] == "CFG012"
    agent = arena.load("[agent]\nprompt_template = 'p.md'\n[[agents]]\nid = 'b'").agents[0]
    assert agent.prompt_template == str(file)


@pytest.mark.requirement("S-001-Config-08")
def test_no_warning_can_be_set_to_come_at_the_limit_itself(arena: Arena) -> None:
    sections = {
        "limits": ("soft_warning_percent", "token_warning_percent"),
        "context": ("warning_percent",),
    }
    for section, names in sections.items():
        for name in names:
            for percent in (99, 100):
                (problem,) = arena.problems(f"[{section}]\n{name} = {percent}")
                assert (problem.code, problem.key) == ("CFG007", f"{section}.{name}")


@pytest.mark.parametrize("seconds", ["0.0", "0.09", "600.1", "inf"])
def test_a_tool_gets_a_tenth_of_a_second_to_ten_minutes(arena: Arena, seconds: str) -> None:
    assert arena.load("limits.tool_timeout_s = 0.1").agents[0].limits.tool_timeout_s == 0.1
    assert arena.load("limits.tool_timeout_s = 600").agents[0].limits.tool_timeout_s == 600

    (problem,) = arena.problems(f"[limits]\ntool_timeout_s = {seconds}")

    assert problem.key == "limits.tool_timeout_s"


def test_what_an_agent_says_goes_before_what_holds_for_everyone(arena: Arena) -> None:
    agent = arena.load(
        "[limits]\nmax_iterations = 9\ntool_timeout_s = 5\n[agent.limits]\nmax_iterations = 15\n"
        "[context]\ntoken_budget = 5000\nrecent_turns = 3\n[agent.context]\nrecent_turns = 4"
    ).agents[0]

    assert (agent.limits.max_iterations, agent.limits.tool_timeout_s) == (15, 5.0)
    assert (agent.context.token_budget, agent.context.recent_turns) == (5_000, 4)


@pytest.mark.parametrize(
    ("text", "window", "budget"),
    [
        ("model = 'claude-test'\ncontext.token_budget = 'auto'", 200_000, 160_000),
        ("model = 'unheard-of'\ncontext.token_budget = 'auto'", 128_000, 102_400),
        ("context_window = 10000\ncontext.token_budget = 'auto'", 10_000, 8_000),
        ("model = 'claude-test'\ncontext.token_budget = 128000", 200_000, 128_000),
        ("model = 'small'", 8_000, 6_400),
        ("model = 'small'\ncontext.token_budget = 16000", 8_000, 6_400),
    ],
)
def test_the_budget_fits_the_models_window(
    arena: Arena, text: str, window: int, budget: int
) -> None:
    agent = arena.load(f"[agent]\nprovider = 'demo'\n{text}").agents[0]

    assert (agent.context_window, agent.context.token_budget) == (window, budget)


def test_a_budget_that_the_model_cannot_read_is_noted(arena: Arena) -> None:
    config = arena.load("[context]\ntoken_budget = 16000\n[agent]\nmodel = 'small'")

    assert [n.code for n in config.notices] == ["context-clamped"]


@pytest.mark.requirement("S-003-AgentDef-01", "S-003-AgentDef-13", "S-003-Config-03")
def test_a_fallback_is_the_same_agent_with_another_model(arena: Arena) -> None:
    (agent,) = arena.load(
        "[agent]\nid = 'a-1'\nprovider = 'ollama'\nmodel = 'claude-test'\ntemperature = 1\n"
        "system_prompt = 'brief'\ntools = ['echo']\ncontext.token_budget = 'auto'\n"
        "[agent.fallback]\nprovider = 'demo'\nmax_tokens = 100\n"
        "[agent.fallback.fallback]\nprovider = 'ollama'\nmodel = 'small'\nthinking = true\n"
        "[[plugins]]\nname = 'echo'\npath = 'bundled:echo'"
    ).agents

    first, second = agent.fallback, agent.fallback and agent.fallback.fallback
    assert first is not None
    assert second is not None
    assert [a.id for a in (agent, first, second)] == ["a-1"] * 3
    assert [a.model for a in (agent, first, second)] == ["claude-test", "demo", "small"]
    assert [a.max_tokens for a in (agent, first, second)] == [4_096, 100, 4_096]
    assert [a.temperature for a in (agent, first, second)] == [1.0, None, None]
    assert [a.thinking for a in (agent, first, second)] == [False, False, True]
    assert {(a.system_prompt, a.tools) for a in (agent, first, second)} == {("brief", ("echo",))}
    assert [a.context.token_budget for a in (agent, first, second)] == [160_000, 102_400, 6_400]
    assert second.fallback is None


@pytest.mark.requirement("S-003-AgentDef-12")
def test_a_chain_of_fallbacks_has_an_end(arena: Arena) -> None:
    chain = "".join(f"[agent{'.fallback' * depth}]\nprovider = 'demo'\n" for depth in range(7))

    (problem,) = arena.problems(chain)

    assert (problem.code, problem.line) == ("CFG007", 13)


def test_an_endless_chain_of_fallbacks_is_an_error_and_no_crash(arena: Arena) -> None:
    text = f"[agent{'.fallback' * 5_000}]\nprovider = 'demo'"

    assert arena.problems(text)


@pytest.mark.requirement("S-003-AgentDef-03")
@pytest.mark.parametrize("name", ["", "a b", "a_b", "a/b", "ä", "a" * 65, "a\\n"])
def test_an_agents_id_is_letters_digits_and_hyphens(arena: Arena, name: str) -> None:
    (problem,) = arena.problems(f'[agent]\nid = "{name}"')

    assert (problem.code, problem.key) == ("CFG006", "agent.id")


@pytest.mark.requirement("S-003-AgentDef-07")
def test_an_unknown_tool_names_agent_and_tool(arena: Arena) -> None:
    (problem,) = arena.problems(
        "[agent]\nid = 'luna'\ntools = ['wether']\n[[plugins]]\nname = 'weather'\npath = 'bundled:echo'"
    )

    assert problem.code == "CFG009"
    assert '"luna"' in problem.message
    assert '"wether"' in problem.message
    assert 'did you mean "weather"?' in problem.fix


@pytest.mark.requirement("S-003-AgentDef-04", "S-003-AgentDef-07")
@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (
            "[agent]\nprovider = 'antropic'\n[providers.ollama]",
            'did you mean "anthropic"? '
            "choose one of: anthropic, openai, gemini, openrouter, ollama, demo",
        ),
        ("[agent]\ntools = ['echo']", 'add [[plugins]] name = "echo", path = "bundled:echo"'),
        (
            "[agent]\ntools = ['time']",
            'add [[plugins]] name = "time", path = "bundled:time", '
            'capabilities = ["host_function:clock"]',
        ),
        ("[agent]\nproject = 'x'", "choose one of: default; or add it as [[projects]]"),
        ("[agent]\nsubagents = ['x']", "none is defined; or add it as [[subagents]]"),
        (
            "[agent]\ntools = ['zzz']\n[[plugins]]\nname = 'echo'\npath = 'bundled:echo'",
            "choose one of: echo, memory, result, time, notes, fetch, webhook, telegram, discord; "
            'or add [[plugins]] name = "zzz"',
        ),
    ],
)
def test_what_there_is_is_listed_once(arena: Arena, text: str, fix: str) -> None:
    (problem,) = arena.problems(text)

    assert problem.code in {"CFG003", "CFG009"}
    assert problem.fix == fix


def test_an_agent_may_list_the_memory_which_no_plugin_may_be(arena: Arena) -> None:
    own = arena.load("[agent]\ntools = ['memory']")
    (problem,) = arena.problems("[agent]\n[[plugins]]\nname = 'memory'\npath = 'bundled:echo'\n")

    assert own.agents[0].tools == ("memory",)
    assert (problem.key, problem.code) == ("plugins.0.name", "CFG008")


def test_an_agent_may_list_a_plugin_that_is_switched_off(arena: Arena) -> None:
    config = arena.load(
        "[agent]\ntools = ['echo']\n[[plugins]]\nname = 'echo'\npath = 'bundled:echo'\nenabled = false"
    )

    assert config.agents[0].tools == ("echo",)
    assert [notice.code for notice in config.notices] == ["plugin-disabled"]


def test_a_plugin_that_is_wrong_itself_is_no_mistake_of_the_agent(arena: Arena) -> None:
    problems = arena.problems(
        "[agent]\ntools = ['Bad']\n[[plugins]]\nname = 'Bad'\npath = 'bundled:echo'"
    )

    assert [problem.key for problem in problems] == ["plugins.0.name"]


@pytest.mark.requirement("S-003-AgentDef-02", "S-003-AgentDef-06")
@pytest.mark.parametrize(
    ("model", "tokens", "is_right"),
    [
        *(("claude-test", *one) for one in ((0, 0), (-1, 0), (1, 1), (8_192, 1), (8_193, 0))),
        ("unheard-of", 1_000_000, 1),
    ],
)
def test_max_tokens_is_what_the_model_can_give(
    arena: Arena, model: str, tokens: int, is_right: int
) -> None:
    text = f"[agent]\nmodel = '{model}'\nmax_tokens = {tokens}"

    if is_right:
        assert arena.load(text).agents[0].max_tokens == tokens
    else:
        assert [p.key for p in arena.problems(text)] == ["agent.max_tokens"]


def test_a_provider_without_a_usual_model_needs_one(arena: Arena) -> None:
    (problem,) = arena.problems("[agent]\nprovider = 'ollama'")

    assert (problem.code, problem.key) == ("CFG004", "agent.model")


def test_an_agent_without_a_provider_takes_the_one_at_hand(arena: Arena) -> None:
    arena = replace(arena, environment={"OPENAI_API_KEY": "k"})

    agent = arena.load("[agent]\nsystem_prompt = 'brief'").agents[0]

    assert (agent.id, agent.provider, agent.model) == ("main", "openai", "gpt-test")


@pytest.mark.requirement("S-003-Binding-08", "S-003-Config-05")
def test_bindings_lead_to_agents(arena: Arena) -> None:
    config = arena.load(
        "[[agents]]\nid = 'helper'\n"
        "[[bindings]]\nagent_id = 'helper'\nchannel = 'c'\naccount_id = 'a'\n"
        "peer_id = 'p'\nguild_id = 'g'\nteam_id = 't'"
    )

    (binding,) = config.bindings
    assert binding.agent_id == "helper"
    assert (binding.channel, binding.account_id, binding.peer_id) == ("c", "a", "p")
    assert (binding.guild_id, binding.team_id) == ("g", "t")


@pytest.mark.requirement("S-003-Binding-08")
def test_a_binding_to_nobody_is_refused(arena: Arena) -> None:
    (problem,) = arena.problems(
        "[[agents]]\nid = 'personal'\n[[bindings]]\nagent_id = 'persnal'\nchannel = 'x'"
    )

    assert (problem.code, problem.line) == ("CFG009", 4)
    assert '"personal"' in problem.fix


@pytest.mark.requirement("S-003-Binding-09")
def test_a_binding_without_any_field_is_refused_with_its_index(arena: Arena) -> None:
    (problem,) = arena.problems("[agent]\nid = 'a'\n[[bindings]]\nagent_id = 'a'")

    assert (problem.code, problem.key, problem.line) == ("CFG004", "bindings.0", 3)
    assert "binding 0" in problem.message


def test_a_number_for_an_id_is_refused_with_its_string(arena: Arena) -> None:
    (problem,) = arena.problems("[[bindings]]\nagent_id = 'demo'\npeer_id = 5512")

    assert problem.fix == 'put it in quotes: "5512"'


PROJECT = """
[agent]
provider = "demo"
model = "demo"
project = "garden"

[[projects]]
id = "garden"
users = ["ann"]
"""


def test_an_agent_may_belong_to_a_project_that_is_defined(arena: Arena) -> None:
    config = arena.load(PROJECT)

    assert config.agents[0].project == "garden"
    assert [(one.id, one.users) for one in config.projects] == [("garden", ("ann",))]
    assert arena.load('[agent]\nprovider = "demo"\nmodel = "demo"').agents[0].project == "default"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PROJECT.replace('id = "garden"', 'id = "gardens"'), "there is no project"),
        (PROJECT.replace('"garden"', '"default"'), "is open to all"),
        (PROJECT + '[[projects]]\nid = "garden"\nusers = []', "another one has the id"),
        (PROJECT.replace('users = ["ann"]', ""), "users"),
    ],
)
def test_a_wrong_project_is_named_with_its_place(arena: Arena, text: str, message: str) -> None:
    (problem,) = arena.problems(text)

    assert message in problem.message
    assert problem.line
