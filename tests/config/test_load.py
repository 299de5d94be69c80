"""From a path, or none, to the one frozen configuration."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from gateway.config.environment import key_variables, value_of
from gateway.config.load import find_file
from gateway.config.reading import UsualProvider, default_model, usual_choice
from gateway.config.values import Inputs, Overrides, short_name
from tests.config.arena import KNOWN, Arena


@pytest.mark.requirement("S-003-Config-07")
def test_without_a_file_the_demo_answers_on_loopback(arena: Arena) -> None:
    config = arena.load()

    (agent,) = config.agents
    assert (agent.id, agent.provider, agent.model, agent.tools) == (
        "demo",
        "demo",
        "demo",
        ("echo", "time", "memory"),
    )
    assert (config.default_agent, config.gateway.bind, config.gateway.port) == (
        "demo",
        "127.0.0.1",
        7200,
    )
    assert config.gateway.data_dir == arena.home / ".local/share/exogate"
    assert config.origin is None
    assert config.notices == ()


def test_an_empty_file_is_as_good_as_none(arena: Arena) -> None:
    without = arena.load()

    empty = arena.load("")
    assert replace(empty, origin=None, other_files=without.other_files) == without


def test_a_file_that_names_no_agent_keeps_the_usual_one(arena: Arena) -> None:
    config = arena.load("[gateway]\nport = 7300")

    assert (config.gateway.port, config.default_agent) == (7300, "demo")
    assert config.agents[0].tools == ("echo", "time", "memory")
    assert config.origin == arena.cwd / "config.toml"


def test_agents_without_a_default_leave_no_default(arena: Arena) -> None:
    config = arena.load("[[agents]]\nid = 'helper'\nprovider = 'demo'")

    assert config.default_agent is None
    assert [agent.id for agent in config.agents] == ["helper"]


@pytest.mark.requirement("S-003-AgentDef-05")
def test_a_key_in_the_environment_is_enough(arena: Arena) -> None:
    config = replace(arena, environment={"OPENAI_API_KEY": "sk-value"}).load()

    (agent,) = config.agents
    assert (agent.id, agent.provider, agent.model) == ("main", "openai", "gpt-test")
    key = config.providers["openai"].api_key
    assert key is not None
    assert key.reveal() == "sk-value"
    assert config.key_origins == {"openai": "OPENAI_API_KEY"}


def test_of_several_keys_the_first_is_taken_and_said(arena: Arena) -> None:
    environment = {"OPENAI_API_KEY": "o", "ANTHROPIC_API_KEY": "a"}

    config = replace(arena, environment=environment).load()

    assert config.agents[0].provider == "anthropic"
    assert [(n.code, "OPENAI_API_KEY" in n.message) for n in config.notices] == [
        ("several-keys", True)
    ]


def test_the_file_is_found_in_the_promised_order(arena: Arena) -> None:
    at_home = arena.home / ".config/exogate/config.toml"
    at_home.parent.mkdir(parents=True)

    def found(path: Path | None = None, environment: dict[str, str] | None = None) -> Path | None:
        return find_file(path, environment=environment or {}, home=arena.home, cwd=arena.cwd)

    assert found() is None
    at_home.write_text("")
    assert found() == at_home
    here = arena.write("")
    assert found() == here
    assert found(None, {"EXOGATE_CONFIG": "other.toml"}) == arena.cwd / "other.toml"
    assert found(Path("/named.toml"), {"EXOGATE_CONFIG": "other.toml"}) == Path("/named.toml")


def test_a_named_file_must_exist(arena: Arena) -> None:
    (problem,) = replace(arena, environment={"EXOGATE_CONFIG": "no.toml"}).problems()

    assert (problem.code, problem.source) == ("CFG012", "no.toml")


@pytest.mark.requirement("S-004-Cfg-09")
def test_variables_stand_for_keys_of_the_default_agent(arena: Arena) -> None:
    environment = {
        "AGENT_SYSTEM_PROMPT": "be brief",
        "AGENT_TEMPERATURE": "0.7",
        "AGENT_TOKEN_BUDGET": "auto",
    }

    config = replace(arena, environment=environment).load("[agent]\ntemperature = 1.5")

    (agent,) = config.agents
    assert (agent.system_prompt, agent.temperature) == ("be brief", 0.7)
    assert agent.context.token_budget == 102_400


# What the seed says of its variables, at both edges and beyond them.
BOUNDS = {
    "AGENT_TEMPERATURE": (("0", "0.7", "2.0"), ("-0.1", "2.1", "inf", "nan", "warm", "1_0x")),
    "AGENT_TOKEN_BUDGET": (("4000", "128000", "auto"), ("0", "-1", "3999", "128001", "1.5")),
    "AGENT_MCP_SERVER_URL": (
        ("http://localhost:8001/mcp", "https://mcp.example/mcp"),
        ("localhost:8001", "ftp://mcp.example", "http://mcp.example/mcp"),
    ),
    "AGENT_MCP_TIMEOUT": (("0.1", "10", "600"), ("0", "-1", "601", "nan", "soon")),
    "AGENT_MCP_RETRY_ATTEMPTS": (("0", "3", "10"), ("-1", "11", "1.5")),
}
ROWS = [
    (variable, text, is_right)
    for variable, sides in BOUNDS.items()
    for is_right, texts in zip((True, False), sides, strict=True)
    for text in texts
]


@pytest.mark.requirement("S-004-Cfg-02", "S-004-Cfg-03", "S-004-Cfg-04")
@pytest.mark.requirement("S-004-Cfg-06", "S-004-Cfg-07", "S-004-Valid-01")
@pytest.mark.parametrize(("variable", "text", "is_right"), ROWS)
def test_a_variable_has_the_bounds_of_its_key(
    arena: Arena, variable: str, text: str, is_right: bool
) -> None:
    server = {"AGENT_MCP_SERVER_URL": "http://127.0.0.1:1/mcp"}
    arena = replace(arena, environment={**server, variable: text})

    if is_right:
        assert not arena.load().notices
    else:
        (problem,) = arena.problems("[gateway]\nport = 1")
        assert (problem.source, problem.line) == (variable, 0)
        assert problem.render().startswith(f"{variable}: error[{problem.code}] ")


@pytest.mark.requirement("S-004-Cfg-02", "S-004-Cfg-03", "S-004-Cfg-04", "S-004-Cfg-09")
def test_variables_stand_for_the_server_of_the_default_agent(arena: Arena) -> None:
    environment = {
        "AGENT_MCP_SERVER_URL": "http://localhost:8001/mcp",
        "AGENT_MCP_TIMEOUT": "2.5",
        "AGENT_MCP_RETRY_ATTEMPTS": "0",
    }
    arena = replace(arena, environment=environment)

    alone = arena.load()
    file = arena.load("[mcp.servers.default]\nurl = 'https://mcp.example'\ntimeout_s = 9\n[agent]")
    listed = arena.load("[agent]\ntools = []")

    for config in (alone, file, listed):
        (server,) = config.mcp.servers
        assert (server.name, server.url) == ("default", "http://localhost:8001/mcp")
        assert (server.timeout_s, server.retry_attempts) == (2.5, 0)
    assert alone.agents[0].tools == ("echo", "time", "memory", "mcp:default")
    assert file.agents[0].tools == ("mcp:default",)
    assert listed.agents[0].tools == ()


@pytest.mark.requirement("S-004-Cfg-08")
def test_whoever_names_a_tokenizer_is_told_that_tokens_are_estimated(arena: Arena) -> None:
    arena = replace(arena, environment={"AGENT_ENCODING_NAME": "cl100k_base"})

    (notice,) = arena.load("[agent]").notices

    assert notice.code == "unused-variable"
    assert "the gateway estimates tokens" in notice.message


@pytest.mark.parametrize("file", ["", "mcp = 3", "[mcp]\nservers = []"])
def test_a_variable_of_a_server_that_is_not_there_is_noted(arena: Arena, file: str) -> None:
    arena = replace(arena, environment={"AGENT_MCP_TIMEOUT": "5"})

    if file:
        assert arena.problems(file)
    else:
        assert [n.code for n in arena.load(file).notices] == ["unused-variable"]


def test_a_variable_without_a_default_agent_is_noted(arena: Arena) -> None:
    arena = replace(arena, environment={"AGENT_TEMPERATURE": "1"})

    config = arena.load("[[agents]]\nid = 'a'")

    assert [n.code for n in config.notices] == ["unused-variable"]


def test_the_command_line_wins_and_is_checked_too(arena: Arena) -> None:
    given = replace(arena, overrides=Overrides(Path("/data"), 0))
    config = given.load("[gateway]\nport = 7300\ndata_dir = 'x'")
    impossible = replace(arena, overrides=Overrides(port=70_000)).problems()

    assert (config.gateway.port, config.gateway.data_dir) == (0, Path("/data"))
    assert [p.source for p in impossible] == ["--port"]


@pytest.mark.parametrize(
    ("file", "column"),
    [
        ("[gateway]\nport = 'x'", 8),
        ("[gateway]\ntoken = 5", 9),
        ("[providers.openai]\napi_key = 5", 11),
    ],
)
def test_a_wrong_value_is_at_its_line_even_if_it_is_overridden(
    arena: Arena, file: str, column: int
) -> None:
    variables = {"EXOGATE_TOKEN": "t" * 16, "OPENAI_API_KEY": "k"}

    (problem,) = replace(arena, environment=variables, overrides=Overrides(port=1)).problems(file)

    assert (problem.source, problem.line, problem.column) == ("config.toml", 2, column)


def test_relative_paths_start_at_the_files_folder(arena: Arena) -> None:
    path = arena.write("[gateway]\ndata_dir = 'data'\n[agent]\nsoul_path = 'me.md'", "sub/c.toml")
    path.with_name("me.md").write_text("# Me")

    config = replace(arena, environment={"EXOGATE_CONFIG": "sub/c.toml"}).load()

    assert config.gateway.data_dir == path.parent / "data"
    assert config.agents[0].soul_path == str(path.parent / "me.md")


def test_a_configuration_cannot_be_changed(arena: Arena) -> None:
    config = arena.load()

    with pytest.raises(FrozenInstanceError):
        config.default_agent = None  # type: ignore[misc]  # that is the point


def test_a_configuration_is_read_without_pydantic() -> None:
    program = (
        "import sys, tempfile\n"
        "from pathlib import Path\n"
        "from gateway.config.load import load\n"
        "from gateway.config.values import Known\n"
        "known = Known({}, {}, lambda model: 128_000, lambda model: None)\n"
        "folder = Path(tempfile.mkdtemp())\n"
        "(folder / 'config.toml').write_text('[gateway]\\nport = 1')\n"
        "config = load(None, environment={}, home=folder, cwd=folder, known=known)\n"
        "print(config.gateway.port, 'pydantic' in sys.modules)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.strip() == "1 False"


INPUTS = Inputs({}, Path("/home/me"), Path("/cwd"), KNOWN)


@pytest.mark.parametrize(
    ("text", "path"),
    [("~", "/home/me"), ("~/x", "/home/me/x"), ("/abs", "/abs"), ("soul.md", "/etc/exo/soul.md")],
)
def test_home_and_the_files_folder_are_where_a_path_starts(text: str, path: str) -> None:
    assert INPUTS.path(text, Path("/etc/exo")) == Path(path)


@pytest.mark.parametrize(
    ("path", "name"),
    [("/cwd/sub/c.toml", "sub/c.toml"), ("/home/me/c.toml", "~/c.toml"), ("/etc/c", "/etc/c")],
)
def test_a_file_is_called_by_its_shortest_clear_name(path: str, name: str) -> None:
    assert INPUTS.name(Path(path)) == name
    assert short_name(Path(path), home=Path("/home/you"), cwd=Path("/")) == path


@pytest.mark.requirement("S-003-AgentDef-05")
@pytest.mark.parametrize(
    ("variables", "choice"),
    [
        ([], UsualProvider()),
        (["OPENAI_API_KEY"], UsualProvider("openai", "OPENAI_API_KEY")),
        (["AGENT_GEMINI_API_KEY"], UsualProvider("gemini", "AGENT_GEMINI_API_KEY")),
        (
            ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"],
            UsualProvider("anthropic", "ANTHROPIC_API_KEY", ("OPENAI_API_KEY",)),
        ),
    ],
)
def test_the_first_provider_with_a_key_is_chosen_and_the_others_are_told(
    variables: list[str], choice: UsualProvider
) -> None:
    assert usual_choice(dict.fromkeys(variables, "k"), KNOWN) == choice


def test_the_demo_needs_nothing_and_an_empty_variable_is_none() -> None:
    assert [value_of({"A": text}, "A") for text in ("", "x")] == [None, "x"]
    assert (UsualProvider().agent_id, default_model("demo", KNOWN)) == ("demo", "demo")
    assert default_model("ollama", KNOWN) is None
    assert key_variables("ollama", None) == ()
