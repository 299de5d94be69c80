"""A key comes from the environment, a secret file or the configuration, and goes to one address."""

from dataclasses import replace

import pytest

from tests.config.arena import Arena

AGENT = "[agent]\nprovider = 'anthropic'\n"
SECTION = "[providers.anthropic]\napi_key = '${env:OWN}'\n"
ELSEWHERE = "base_url = 'https://proxy.example/v1'\n"


def key_of(arena: Arena, text: str, name: str = "anthropic") -> tuple[str | None, str | None]:
    config = arena.load(text)
    key = config.providers[name].api_key
    return (key.reveal() if key else None), config.key_origins.get(name)


@pytest.mark.requirement("S-003-AgentDef-05")
def test_the_order_is_environment_file_configuration(arena: Arena) -> None:
    own = {"OWN": "from-config"}

    assert key_of(replace(arena, environment=own), AGENT + SECTION) == ("from-config", "config")
    arena.secret("anthropic_api_key", "from-file")
    assert key_of(replace(arena, environment=own), AGENT + SECTION) == (
        "from-file",
        "secret file anthropic_api_key",
    )
    both = {**own, "ANTHROPIC_API_KEY": "from-environment"}
    assert key_of(replace(arena, environment=both), AGENT + SECTION) == (
        "from-environment",
        "ANTHROPIC_API_KEY",
    )


def test_the_older_name_of_geminis_variable_is_an_override(arena: Arena) -> None:
    environment = {"GEMINI_API_KEY": "one", "AGENT_GEMINI_API_KEY": "two"}

    found = key_of(replace(arena, environment=environment), "[agent]\nprovider='gemini'", "gemini")

    assert found == ("two", "AGENT_GEMINI_API_KEY")


def test_a_key_at_hand_does_not_go_to_another_address(arena: Arena) -> None:
    arena.secret("anthropic_api_key", "from-file")
    arena = replace(arena, environment={"ANTHROPIC_API_KEY": "from-environment"})

    config = arena.load(f"{AGENT}[providers.anthropic]\n{ELSEWHERE}")

    assert config.providers["anthropic"].api_key is None
    assert [n.code for n in config.notices] == ["key-kept-back"]


def test_an_explicit_reference_goes_to_another_address(arena: Arena) -> None:
    arena = replace(arena, environment={"OWN": "mine", "ANTHROPIC_API_KEY": "other"})

    assert key_of(arena, AGENT + SECTION + ELSEWHERE) == ("mine", "config")


def test_the_presets_own_address_may_be_written_out(arena: Arena) -> None:
    arena = replace(arena, environment={"ANTHROPIC_API_KEY": "k"})
    text = f"{AGENT}[providers.anthropic]\nbase_url = 'https://api.anthropic.com/v1/'"

    assert key_of(arena, text) == ("k", "ANTHROPIC_API_KEY")


@pytest.mark.requirement("S-003-AgentDef-05", "S-004-Cfg-01")
def test_a_missing_key_names_the_variable(arena: Arena) -> None:
    (problem,) = arena.problems(AGENT)

    assert problem.code == "CFG014"
    assert "ANTHROPIC_API_KEY" in problem.message
    assert "providers.anthropic.api_key" in problem.fix


def test_a_fallback_needs_its_key_too(arena: Arena) -> None:
    arena = replace(arena, environment={"ANTHROPIC_API_KEY": "k"})

    (problem,) = arena.problems(f"{AGENT}[agent.fallback]\nprovider = 'openai'")

    assert (problem.code, problem.key) == ("CFG014", "agent.fallback.provider")


def test_a_secret_that_nobody_uses_may_be_missing(arena: Arena) -> None:
    config = arena.load("[agent]\nprovider = 'demo'\n" + SECTION)

    assert [n.code for n in config.notices] == ["unused-secret"]


def test_a_secret_that_an_agent_uses_may_not_be_missing(arena: Arena) -> None:
    (problem,) = arena.problems(AGENT + SECTION)

    assert (problem.code, problem.line) == ("CFG010", 4)


def test_a_secret_file_that_others_may_read_stops_the_start(arena: Arena) -> None:
    arena.secret("anthropic_api_key", "from-file", 0o644)

    (problem,) = arena.problems(AGENT)

    assert problem.code == "CFG011"
    assert problem.fix.startswith("chmod 600 ")


def test_a_broken_key_of_the_environment_is_named_and_not_shown(arena: Arena) -> None:
    arena = replace(arena, environment={"ANTHROPIC_API_KEY": "top\nsecret"})

    refusal = arena.refusal(AGENT)

    assert [p.source for p in refusal.problems] == ["ANTHROPIC_API_KEY"]
    assert "secret" not in refusal.render()


def test_a_provider_of_ones_own_needs_no_key(arena: Arena) -> None:
    text = (
        "[agent]\nprovider = 'mine'\nmodel = 'm'\n"
        "[providers.mine]\nwire = 'openai'\nbase_url = 'http://localhost:8000/v1'\n"
        "headers = { X-Team = 'blue', Authorization = 'Bearer ${env:OWN}' }\n"
        "connect_timeout_s = 3\nidle_timeout_s = 4.5\nmax_retries = 0\n"
        "tool_markup = 'recover'\n"
    )

    provider = replace(arena, environment={"OWN": "mine"}).load(text).providers["mine"]

    assert (provider.wire, provider.base_url, provider.api_key) == (
        "openai",
        "http://localhost:8000/v1",
        None,
    )
    assert provider.headers == {"X-Team": "blue", "Authorization": "Bearer mine"}
    assert (provider.connect_timeout_s, provider.idle_timeout_s, provider.max_retries) == (
        3,
        4.5,
        0,
    )
    assert provider.tool_markup == "recover"


@pytest.mark.parametrize(
    ("text", "code", "key"),
    [
        ("[providers.demo]\nmax_retries = 1", "CFG006", "providers.demo.max_retries"),
        ("[providers.openai]\nwire = 'anthropic'", "CFG003", "providers.openai.wire"),
        ("[providers.openai]\nbase_url = 'x'", "CFG006", "providers.openai.base_url"),
        ("[providers.'a b']\nwire = 'openai'", "CFG006", 'providers."a b"'),
        ("[providers.openai.headers]\n'a b' = 'x'", "CFG006", 'providers.openai.headers."a b"'),
        ('[providers.openai.headers]\na = "x\\ny"', "CFG006", "providers.openai.headers.a"),
        ("[providers.openai]\nprices = { m = 1 }", "CFG005", "providers.openai.prices.m"),
        ("[providers.openai]\ntool_markup = 'on'", "CFG003", "providers.openai.tool_markup"),
    ],
)
def test_a_wrong_provider_is_refused(arena: Arena, text: str, code: str, key: str) -> None:
    assert [(p.code, p.key) for p in arena.problems(text)] == [(code, key)]
