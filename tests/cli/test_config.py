"""`exogate config` as it is typed."""

import json
from contextlib import chdir
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from gateway.cli.command import CliContext, report_errors
from gateway.cli.config import config
from tests.fakes.compiled import USUAL, compiled

UNSET = [
    "EXOGATE_CONFIG",
    "EXOGATE_TOKEN",
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "GEMINI_API_KEY",
    "OPENROUTER_API_KEY",
    "AGENT_GEMINI_API_KEY",
    "AGENT_SYSTEM_PROMPT",
    "AGENT_TEMPERATURE",
    "AGENT_TOKEN_BUDGET",
]


class Shell:
    """Runs the verbs with a home and an environment of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.file = home / ".config" / "exogate" / "config.toml"
        self.folder = home / "here"
        for folder in (self.file.parent, self.folder):
            folder.mkdir(parents=True)

    def run(self, *arguments: str, as_json: bool = False, **environment: str) -> Result:
        unset: dict[str, str | None] = dict.fromkeys(UNSET)
        runner = CliRunner(env={**unset, "HOME": str(self.home), **environment})
        context = CliContext(json=as_json)

        @click.command()
        def whole() -> None:
            with report_errors(debug=False, as_json=as_json):
                config(list(arguments), obj=context, standalone_mode=False)

        with chdir(self.folder):
            return runner.invoke(whole)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_a_valid_file_and_no_file_are_valid(shell: Shell) -> None:
    compiled(shell.home / ".local/share/exogate", *USUAL)
    missing = shell.run("validate")
    shell.file.write_text("[gateway]\nport = 7300")
    done = shell.run("validate")

    said = "no config file; the defaults are valid\n"
    assert (missing.exit_code, missing.stdout) == (0, said)
    assert (done.exit_code, done.stdout) == (0, "~/.config/exogate/config.toml is valid\n")


@pytest.mark.requirement("S-003-Config-08")
def test_validate_prints_every_error_and_ends_with_78(shell: Shell) -> None:
    shell.file.write_text("[gateway]\nprot = 1\nport = 'x'")

    done = shell.run("validate")

    assert done.exit_code == 78
    assert "~/.config/exogate/config.toml:2:1: error[CFG002] gateway.prot" in done.stdout
    assert "~/.config/exogate/config.toml:3:8: error[CFG005] gateway.port" in done.stdout
    assert done.stdout.endswith("2 errors. Nothing was changed.\n")


def test_validate_as_json(shell: Shell) -> None:
    shell.file.write_text("[gateway]\nprot = 1")

    done = shell.run("validate", as_json=True)

    said = json.loads(done.stdout)
    assert (done.exit_code, said["ok"]) == (78, False)
    assert said["problems"] == [
        {
            "code": "CFG002",
            "source": "~/.config/exogate/config.toml",
            "line": 2,
            "column": 1,
            "key": "gateway.prot",
            "message": 'unknown key "prot"',
            "fix": 'did you mean "port"?',
        }
    ]


def test_validate_tells_notices_on_stderr(shell: Shell) -> None:
    compiled(shell.home / ".local/share/exogate", *USUAL)
    shell.file.write_text("[gateway]\ntoken = 'hunter2-hunter2'")

    done = shell.run("validate")

    assert done.exit_code == 0
    assert "gateway.token" in done.stderr
    assert "hunter2" not in done.output


def test_show_has_values_origins_and_no_secret(shell: Shell) -> None:
    shell.file.write_text("[gateway]\nport = 7300\ntoken = 'hunter2-hunter2'")

    done = shell.run("show")

    assert done.exit_code == 0
    assert "gateway.port = 7300  # ~/.config/exogate/config.toml:2\n" in done.stdout
    assert 'gateway.token = "***"  # ~/.config/exogate/config.toml:3\n' in done.stdout
    assert "gateway.drain_s = 20.0  # default\n" in done.stdout
    assert "hunter2" not in done.output


def test_show_has_plugins_without_their_secrets(shell: Shell) -> None:
    shell.file.write_text(
        "[[plugins]]\nname = 'web'\npath = 'bundled:fetch'\n"
        "capabilities = ['http:api.example.com']\nsecrets.key = 'hunter2-hunter2'\n"
    )

    done = shell.run("show")

    assert 'plugins.0.secrets.key.value = "***"  # ~/.config/exogate/config.toml:5\n' in done.stdout
    assert 'plugins.1.name = "echo"  # default\n' in done.stdout
    assert "hunter2" not in done.output


MCP_SECRETS = """
[mcp.servers.program]
command = "npx"
args = [
  "-y", "@scope/server@2.1", "--api-key", "sesame-1", "--token=sesame-2", "-H", "X-Team: sesame-3",
  "Authorization: Bearer sesame-4", "postgres://me:sesame-5@db/x", "DB_PASSWORD=sesame-6",
  '{"clientSecret": "sesame-7"}', "--accessToken", "sesame-8", "sesame-9-in-env", "/srv/notes",
  "--secret-key", "sesame-13",
]
env = { API_TOKEN = "sesame-9-in-env", PLACE = "${env:HOME}" }
[mcp.servers.remote]
url = "https://mcp.example.com/mcp"
headers = { X-Team = "sesame-10" }
[[plugins]]
name = "echo"
path = "bundled:echo"
config = { accessToken = "sesame-11", dsn = "postgres://me:sesame-12@db/x", password = ["sesame-14"] }
"""


@pytest.mark.parametrize("as_json", [False, True])
def test_show_masks_what_servers_of_mcp_and_plugins_are_given(shell: Shell, as_json: bool) -> None:
    shell.file.write_text(MCP_SECRETS)
    result = shell.run("show", as_json=as_json)
    assert result.exit_code == 0, result.output
    assert "sesame" not in result.output
    for harmless in ("@scope/server@2.1", "--api-key", "/srv/notes", "postgres://***db/x"):
        assert harmless in result.output


def test_show_as_json_has_every_value(shell: Shell) -> None:
    done = shell.run("show", as_json=True, OPENAI_API_KEY="sk-hunter2-hunter2")

    said = json.loads(done.stdout)
    values = {row["key"]: (row["value"], row["origin"]) for row in said["values"]}
    assert said["file"] is None
    assert values["gateway.token"] == (None, "default")
    assert values["agent.provider"] == ("openai", "environment OPENAI_API_KEY")
    assert values["providers.openai.api_key"] == ("***", "environment OPENAI_API_KEY")
    assert "hunter2" not in done.output


def test_show_of_an_invalid_file_prints_no_value(shell: Shell) -> None:
    shell.file.write_text("prot = 1")

    done = shell.run("show")

    assert (done.exit_code, done.stdout) == (78, "")
    assert "CFG002" in done.stderr


def test_get_prints_one_value_plainly(shell: Shell) -> None:
    assert shell.run("get", "gateway.bind").stdout == "127.0.0.1\n"
    assert shell.run("get", "gateway.port").stdout == "7200\n"
    assert shell.run("get", "agent.tools").stdout == '["echo", "calc", "time", "notes", "memory"]\n'
    assert shell.run("get", "gateway.token").stdout == "\n"
    assert shell.run("get", "budgets.daily").stdout == "20000\n"
    assert json.loads(shell.run("get", "gateway.port", as_json=True).stdout) == {
        "key": "gateway.port",
        "value": 7200,
        "origin": "default",
    }


def test_get_prints_all_below_a_key(shell: Shell) -> None:
    done = shell.run("get", "store")

    lines = done.stdout.splitlines()
    assert lines[0] == 'store.url = "embedded"  # default'
    assert lines[-1] == "store.journal_days = 30  # default"
    named = [
        row for row in json.loads(shell.run("get", "store", as_json=True).stdout) if row["value"]
    ]
    assert len(named) == len(lines)


def test_get_of_an_unknown_key_suggests_one(shell: Shell) -> None:
    done = shell.run("get", "gateway.prot")

    assert done.exit_code == 1
    assert "did you mean gateway.port?" in done.stderr


def test_schema_prints_json_schema(shell: Shell) -> None:
    done = shell.run("schema")

    assert done.exit_code == 0
    assert json.loads(done.stdout)["$schema"].endswith("2020-12/schema")


def test_path_prints_the_file_that_counts(shell: Shell) -> None:
    missing = shell.run("path")
    shell.file.write_text("")

    assert (missing.exit_code, missing.stdout) == (0, f"{shell.file}\n")
    assert "defaults are in force" in missing.stderr

    assert shell.run("path").stdout == f"{shell.file}\n"
    assert json.loads(shell.run("path", as_json=True).stdout) == {"path": str(shell.file)}
    assert shell.run("path", EXOGATE_CONFIG="/other.toml").stdout == "/other.toml\n"


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        ("provider = 'demo'", "the demo cannot think"),
        ("provider = 'openai'\nmodel = 'gpt-4o'", "gpt-4o is not known to think"),
        ("provider = 'anthropic'\nmodel = 'claude-3-5-haiku-latest'", "cannot think"),
        (
            "provider = 'anthropic'\nmodel = 'claude-sonnet-4-5'\nmax_tokens = 1000",
            "only thinks with max_tokens above 1024",
        ),
        ("provider = 'own'\nmodel = 'm'", "own has no known way to request thinking"),
    ],
)
@pytest.mark.parametrize("section", ["[agent]", "[agent]\nprovider = 'demo'\n[agent.fallback]"])
def test_thinking_where_the_model_cannot_is_an_error(
    shell: Shell, section: str, agent: str, why: str
) -> None:
    own = "[providers.own]\nwire = 'openai'\nbase_url = 'http://127.0.0.1:1/v1'\n"
    lines = f"{own}{section}\n{agent}\nthinking = true\n"
    shell.file.write_text(lines)

    done = shell.run("validate", OPENAI_API_KEY="k", ANTHROPIC_API_KEY="k")

    line = lines[: lines.index("thinking")].count("\n") + 1
    assert done.exit_code == 78
    assert f"config.toml:{line}:12: error[CFG003]" in done.output
    assert why in done.output


@pytest.mark.parametrize(
    "agent",
    [
        "provider = 'openai'\nmodel = 'gpt-5'",
        "provider = 'openrouter'\nmodel = 'any/one'",
        "provider = 'anthropic'\nmodel = 'claude-opus-5'",
        "provider = 'anthropic'\nmodel = 'claude-sonnet-4-5'",
    ],
)
def test_thinking_where_the_model_can_is_fine(shell: Shell, agent: str) -> None:
    shell.file.write_text(f"[agent]\n{agent}\nthinking = true\n")
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY"), "k")

    assert shell.run("validate", as_json=False, **keys).exit_code == 0


FREE = "prices = { m = { input = 0, output = 0 }, n = { input = 0.0, output = 1 } }"
UNPRICED = """
[providers.mine]
wire = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key = "k"
{prices}
[agent]
provider = "mine"
model = "m"
subagents = ["helper"]
[agent.fallback]
provider = "mine"
model = "n"
[[agents]]
id = "other"
provider = "demo"
[[subagents]]
name = "helper"
prompt_path = "soul.md"
provider = "mine"
model = "s"
{budgets}
"""


@pytest.mark.parametrize(
    "budgets",
    [
        "[budgets]\ndaily = { usd = 1 }",
        "[budgets]\nsession = { tokens = 5, usd = 0 }",
        "[budgets]\nper_agent = { usd = 1 }",
        "[budgets.agent]\nmain = { usd = 1 }",
    ],
)
def test_a_budget_in_usd_needs_the_price_of_every_model(shell: Shell, budgets: str) -> None:
    (shell.file.parent / "soul.md").write_text("you help")
    shell.file.write_text(UNPRICED.format(prices="", budgets=budgets))
    done = shell.run("validate")
    shell.file.write_text(UNPRICED.format(prices=FREE, budgets=budgets))
    some = shell.run("validate")
    shell.file.write_text(
        UNPRICED.format(
            prices=FREE.replace(" }, n", " }, s = { input = 1, output = 1 }, n"), budgets=budgets
        )
    )
    all_of_them = shell.run("validate")

    places = [line for line in done.output.splitlines() if "error[" in line]
    assert (done.exit_code, [line.split(": ")[0].split("config.toml")[1] for line in places]) == (
        78,
        [":9:9", ":13:9", ":21:9"],
    )
    assert done.output.count("in [providers.mine] add prices") == 3
    assert (some.exit_code, some.output.count("error[")) == (78, 1)
    assert "subagents.0.model" in some.output
    assert all_of_them.exit_code == 0


@pytest.mark.parametrize(
    "budgets", ["", "[budgets]\ndaily = 5", "[budgets.agent]\nother = { usd = 1 }"]
)
def test_without_a_budget_in_usd_no_price_is_needed(shell: Shell, budgets: str) -> None:
    (shell.file.parent / "soul.md").write_text("you help")
    shell.file.write_text(UNPRICED.format(prices="", budgets=budgets))

    assert shell.run("validate").exit_code == 0


def test_set_shows_the_change_and_writes_it(shell: Shell) -> None:
    shell.file.write_text("[gateway]\nport = 7300  # ours\n")

    done = shell.run("set", "gateway.port", "7400", "--yes")

    assert done.exit_code == 0
    assert "-port = 7300  # ours\n+port = 7400  # ours" in done.stdout
    assert shell.file.read_text() == "[gateway]\nport = 7400  # ours\n"
    assert shell.run("get", "gateway.port").stdout == "7400\n"


def test_set_without_a_file_makes_the_usual_one(shell: Shell) -> None:
    assert shell.run("set", "gateway.port", "7400", "--yes").exit_code == 0

    assert shell.file.read_text() == "[gateway]\nport = 7400\n"
    assert shell.file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("verb", [["set", "gateway.port", "7400"], ["unset", "gateway.port"]])
def test_nothing_is_written_without_a_terminal_and_without_yes(
    shell: Shell, verb: list[str]
) -> None:
    shell.file.write_text("[gateway]\nport = 7300\n")

    done = shell.run(*verb)

    assert done.exit_code == 1
    assert "rerun with --yes" in done.stderr
    assert shell.file.read_text() == "[gateway]\nport = 7300\n"


def test_what_would_not_be_valid_is_refused_with_78(shell: Shell) -> None:
    shell.file.write_text("[gateway]\nport = 7300\n")

    done = shell.run("set", "gateway.port", "99999", "--yes")

    assert done.exit_code == 78
    assert "error[CFG007] gateway.port: 99999 is out of range" in done.stderr
    assert shell.file.read_text() == "[gateway]\nport = 7300\n"


def test_a_link_stays_one_when_a_value_is_set(shell: Shell) -> None:
    kept = shell.home / "dotfiles.toml"
    kept.write_text("[gateway]\nport = 7300\n")
    shell.file.symlink_to(kept)

    assert shell.run("set", "gateway.port", "7400", "--yes").exit_code == 0

    assert shell.file.is_symlink()
    assert kept.read_text() == "[gateway]\nport = 7400\n"


def test_unset_mends_a_file_with_an_unknown_key(shell: Shell) -> None:
    shell.file.write_text("[gateway]\nprot = 7300\ndrain_s = 5\n")

    done = shell.run("unset", "gateway.prot", "--yes", as_json=True)

    assert json.loads(done.stdout) == {
        "key": "gateway.prot",
        "config": str(shell.file),
        "changed": True,
    }
    assert shell.file.read_text() == "[gateway]\ndrain_s = 5\n"


def test_items_are_named_by_their_id(shell: Shell) -> None:
    agent = 'provider = "demo"\nmodel = "demo"\n'
    shell.file.write_text(f'[agent]\n{agent}\n[[agents]]\nid = "second"\n{agent}')

    assert shell.run("set", "agents.second.max_tokens", "500", "--yes").exit_code == 0

    assert shell.run("get", "agents.second.max_tokens").stdout == "500\n"
    assert shell.run("get", "agents.0.max_tokens").stdout == "500\n"
    assert 'agents.0.id = "second"' in shell.run("get", "agents.second").stdout


def test_a_secret_that_is_set_is_not_shown_but_that_it_changed_is(shell: Shell) -> None:
    done = shell.run("set", "gateway.token", "f00ba4-f00ba4-f00ba4", "--yes")
    again = shell.run("set", "gateway.token", "f00ba5-f00ba5-f00ba5", "--yes")

    assert (done.exit_code, again.exit_code) == (0, 0)
    assert "f00ba" not in done.stdout + done.stderr + again.stdout + again.stderr
    assert "+token = ***   (changed, not shown)" in again.stdout
