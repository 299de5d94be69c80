"""Installing, granting and revoking: shown and agreed to, then written whole, or not at all."""

import hashlib
import json
import os
import pty
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.plugin_bench import CLOCK, HTTP, Bench, folder_of, guest, unchanged
from tests.fakes.commands import commands
from tests.fakes.compiled import compiled

ROOT = Path(__file__).parents[2]
FIRST = guest('{"name": "spy", "version": "1", "tools": [{"name": "spy"}]}', CLOCK)
SECOND = guest('{"name": "spy", "version": "2", "tools": [{"name": "spy"}]}', CLOCK + HTTP)
AGENTS = """\
# ours
[agent]
id = "main"
provider = "demo"
tools = []  # none yet

[[agents]]
id = "second"
provider = "demo"
"""


@pytest.fixture(scope="module")
def guests(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("guests")
    files = [folder / "first.wasm", folder / "second.wasm"]
    for file, wasm in zip(files, (FIRST, SECOND), strict=True):
        file.write_bytes(wasm)
    return files


@pytest.fixture
def bench(tmp_path: Path, guests: list[Path]) -> Bench:
    data = compiled(tmp_path / "data", *guests, "echo", "notes", "time", "fetch", "telegram")
    return Bench(tmp_path, data)


def spy(folder: Path, version: int = 1, *capabilities: str) -> str:
    about = f'name = "spy"\nversion = "{version}"\ncapabilities = {json.dumps(capabilities)}\n'
    return str(folder_of(folder / "source", about, FIRST if version == 1 else SECOND))


def plugins(bench: Bench) -> Any:
    return tomllib.loads(bench.config.read_text())["plugins"]


def test_a_plugin_that_is_named_like_a_place_is_none_of_those_there(
    bench: Bench, tmp_path: Path
) -> None:
    bench.run("install", "bundled:notes", "--yes")

    done = bench.run("install", spy(tmp_path), "--name", "0", "--yes")

    assert done.exit_code == 0, done.output
    assert [one["name"] for one in plugins(bench)] == ["notes", "0"]


def test_a_plugin_is_installed_pinned_and_at_hand(bench: Bench, tmp_path: Path) -> None:
    done = bench.run("install", spy(tmp_path), "--yes", "--json")

    assert done.exit_code == 0
    sha256 = hashlib.sha256(FIRST).hexdigest()
    copy = bench.data / "plugins" / "installed" / f"spy-{sha256[:12]}.wasm"
    assert plugins(bench) == [
        {
            "name": "spy",
            "path": str(copy),
            "capabilities": ["host_function:clock"],
            "sha256": sha256,
        }
    ]
    assert copy.read_bytes() == FIRST
    assert bench.data.stat().st_mode & 0o077 == 0
    assert json.loads(done.stdout)["sha256"] == sha256
    assert "host_function:clock   may read the clock" in done.stderr
    assert "It takes effect at the next `exogate run`." in done.stderr
    again = bench.run("install", spy(tmp_path))
    assert (again.exit_code, "nothing changed" in again.stdout) == (0, True)


@pytest.mark.parametrize("verb", ["install", "grant", "revoke"])
def test_nothing_is_written_without_somebody_who_agrees(
    bench: Bench, tmp_path: Path, verb: str
) -> None:
    bench.written('[[plugins]]\nname = "t"\npath = "bundled:time"\ncapabilities = ["store:a"]\n')
    words = {"grant": ["t", "store:b"], "revoke": ["t", "store:a"]}.get(verb, [spy(tmp_path)])

    with unchanged(bench.config):
        done = bench.run(verb, *words)

    assert done.exit_code == 1
    assert "--- ~/.config/exogate/config.toml" in done.stdout
    assert "not a terminal; rerun with --yes" in done.stderr
    assert bench.installed == []


def test_the_default_agent_gets_the_tools_or_the_one_that_is_named(
    bench: Bench, tmp_path: Path
) -> None:
    bench.written(AGENTS)

    first = bench.run("install", spy(tmp_path), "--yes")
    second = bench.run("install", "bundled:echo", "--agent", "second", "--yes")
    nobody = bench.run("install", "bundled:calc", "--agent", "secnd", "--yes")

    assert (first.exit_code, second.exit_code, nobody.exit_code) == (0, 0, 1)
    assert '+tools = ["spy"]  # none yet' in first.stdout
    assert 'no agent has id "secnd"; did you mean "second"?' in nobody.stderr
    config = tomllib.loads(bench.config.read_text())
    assert (config["agent"]["tools"], config["agents"][0]["tools"]) == (["spy"], ["echo"])
    assert config["plugins"][1] == {"name": "echo", "path": "bundled:echo", "capabilities": []}
    assert bench.config.read_text().startswith("# ours\n")


@pytest.mark.requirement("S-003-Plugin-08")
def test_what_would_be_refused_is_not_installed(bench: Bench, tmp_path: Path) -> None:
    with unchanged(bench.config):
        lacking = bench.run("install", spy(tmp_path, 2), "--yes")
        broken = bench.run("install", str(ROOT / "README.md"), "--yes")
        taken = bench.run("install", spy(tmp_path), "--name", "echo", "--yes")
        unnamed = bench.run("install", spy(tmp_path), "--name", "E", "--yes")

    assert "needs http:HOST: add --grant http:HOST" in lacking.stderr
    assert "it is not WebAssembly" in broken.stderr
    assert "a bundled plugin is named echo; choose another with --name" in taken.stderr
    assert '"E" is not a plugin name' in unnamed.stderr
    assert {one.exit_code for one in (lacking, broken, taken, unnamed)} == {1}
    assert bench.installed == []


def test_another_file_says_what_it_asks_for_more_and_is_pinned_anew(
    bench: Bench, tmp_path: Path
) -> None:
    bench.run("install", spy(tmp_path), "--yes")

    done = bench.run("install", spy(tmp_path, 2), "--grant", "http:wttr.in", "--yes")

    old, new = (hashlib.sha256(one).hexdigest() for one in (FIRST, SECOND))
    assert f"new {new}" in done.stdout
    assert f"old {old}" in done.stdout
    assert "http:wttr.in   may send requests to https://wttr.in   NEW" in done.stdout
    assert "It requests new capabilities: http:wttr.in" in done.stdout
    (plugin,) = plugins(bench)
    assert plugin["sha256"] == new
    assert plugin["capabilities"] == ["host_function:clock", "http:wttr.in"]
    assert [str(one) for one in bench.installed] == [plugin["path"]]


def test_a_configuration_that_could_not_be_used_is_not_written(
    bench: Bench, tmp_path: Path
) -> None:
    bench.written("[gateway]\nport = 70000\n")

    with unchanged(bench.config):
        done = bench.run("install", spy(tmp_path), "--yes")

    assert (done.exit_code, "gateway.port" in done.stderr) == (78, True)
    assert bench.installed == []


@pytest.mark.requirement("S-003-Plugin-09")
@pytest.mark.parametrize("words", [["grant", "t"], ["revoke", "t"], ["install", "x", "--grant"]])
@pytest.mark.parametrize(
    ("capability", "fix"),
    [("http", "write http:HOST"), ("http:", "names no host"), ("filesystem:/", "no known type")],
)
def test_a_capability_is_read_strictly(
    bench: Bench, words: list[str], capability: str, fix: str
) -> None:
    done = bench.run(*words, capability)

    assert (done.exit_code, fix in done.stderr) == (2, True)


def test_a_grant_is_written_and_taken_back_and_nothing_else_changes(bench: Bench) -> None:
    text = '# t\n[[plugins]]\nname = "t"  # a clock\npath = "bundled:time"\ncapabilities = []\n'
    bench.written(text)

    granted = bench.run("grant", "t", "host_function:clock", "--yes", "--json")
    (plugin,) = plugins(bench)
    again = bench.run("grant", "t", "host_function:clock", "--json")
    revoked = bench.run("revoke", "t", "host_function:clock", "--yes")

    assert json.loads(granted.stdout)["changed"] is True
    assert json.loads(again.stdout)["changed"] is False
    assert plugin["capabilities"] == ["host_function:clock"]
    assert "nothing changed" in again.stderr
    assert revoked.exit_code == 0
    assert bench.config.read_text() == text
    nothing = bench.run("revoke", "t", "host_function:clock", "--yes")
    assert (nothing.exit_code, "is not granted" in nothing.stderr) == (1, True)
    nobody = bench.run("grant", "u", "store:a", "--yes")
    assert (nobody.exit_code, 'no [[plugins]] named "u"' in nobody.stderr) == (1, True)


@pytest.mark.parametrize(("typed", "code", "granted"), [("y\n", 0, ["store:a"]), ("\n", 1, [])])
def test_a_terminal_is_asked(bench: Bench, typed: str, code: int, granted: list[str]) -> None:
    bench.written('[[plugins]]\nname = "t"\npath = "bundled:echo"\ncapabilities = []\n')
    terminal, far_end = pty.openpty()
    words = ["plugin", "grant", "t", "store:a", "--data-dir", str(bench.data)]
    os.write(terminal, typed.encode())
    done = commands().run(words, env={"HOME": str(bench.home)}, typed=far_end)
    os.close(terminal)
    os.close(far_end)

    assert "Grant it? [y/N]" in done.err
    assert done.code == code
    assert plugins(bench)[0]["capabilities"] == granted


def test_revoking_the_host_of_a_secret_removes_the_secret_and_says_so(bench: Bench) -> None:
    secrets = 'A = "${env:A}", B = { value = "${env:B}", hosts = ["a.example"] }'
    bench.written(
        '[[plugins]]\nname = "t"  # a plugin\npath = "bundled:fetch"\n'
        f'deny_unused = true\ncapabilities = ["http:a.example"]\nsecrets = {{ {secrets} }}\n\n'
        '[[plugins]]\nname = "u"\npath = "bundled:time"\ncapabilities = ["host_function:clock"]\n'
    )

    asked = bench.run("revoke", "t", "http:a.example")
    done = bench.run("revoke", "t", "http:a.example", "--yes", "--json")

    assert asked.exit_code == 1
    assert "its entry is removed from the file; the secret behind" in asked.stdout
    assert (done.exit_code, done.stderr.count("is removed from the file")) == (0, 2)
    told = sorted(json.loads(done.stdout)["secrets"], key=lambda one: str(one["name"]))
    assert told == [{"name": "A", "hosts": []}, {"name": "B", "hosts": []}]
    first, second = plugins(bench)
    assert (first["capabilities"], "secrets" in first) == ([], False)
    assert second["name"] == "u"
    assert "# a plugin" in bench.config.read_text()
    assert bench.run("validate", verb="config").exit_code == 0


def test_a_secret_for_several_hosts_stays_for_the_others_also_in_a_channel(bench: Bench) -> None:
    value = 'value = "${env:A}"'
    bench.written(f"""
[[plugins]]
name = "telegram"
path = "bundled:telegram"
capabilities = ["http:api.telegram.org", "http:b.example"]
secrets = {{ key = {{ {value}, hosts = ["B.example", "api.telegram.org"] }} }}

[channels.tg]
plugin = "telegram"
secrets.bot_token = {{ {value}, hosts = ["api.telegram.org", "b.example"] }}
secrets.webhook_secret = {{ {value}, hosts = ["b.example"] }}
""")

    done = bench.run("revoke", "telegram", "http:b.example", "--yes", env={"A": "x"})
    valid = bench.run("validate", verb="config", env={"A": "x"})

    assert done.exit_code == 0, done.stderr
    assert "Secret key is no longer sent there; api.telegram.org still gets it." in done.stdout
    assert "Secret webhook_secret is for this host alone" in done.stdout
    config = tomllib.loads(bench.config.read_text())
    assert config["plugins"][0]["secrets"]["key"]["hosts"] == ["api.telegram.org"]
    assert config["channels"]["tg"]["secrets"] == {
        "bot_token": {"value": "${env:A}", "hosts": ["api.telegram.org"]}
    }
    assert valid.exit_code == 0, valid.stdout + valid.stderr
