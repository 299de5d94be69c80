"""`exogate plugin`: check, test, inspect, new, build, list."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.cli.plugin_bench import CLOCK, HTTP, Bench, folder_of, guest

ROOT = Path(__file__).parents[2]
SAYS = {"name": "spy", "version": "1.0.0", "tools": [{"name": "spy"}]}
ABOUT = 'name = "spy"\nversion = "1.0.0"\n'


@pytest.mark.requirement("S-003-Plugin-04")
def test_a_plugin_is_checked_without_a_gateway(bench: Bench) -> None:
    done = bench.run("check", str(ROOT / "plugins" / "time"), "--json")

    told = json.loads(done.stdout)
    assert (done.exit_code, told["ok"], told["problems"]) == (0, True, [])
    assert (told["name"], told["kind"], told["guest"]) == ("time", "tool", "exogate")
    assert [tool["name"] for tool in told["tools"]] == ["time"]
    assert told["imports"] == [
        {
            "name": "exogate:plugin/clock@1.0.0#now-ms",
            "needs": "host_function:clock",
            "denied": False,
        }
    ]


@pytest.mark.requirement("S-003-Plugin-08")
def test_everything_that_is_wrong_is_said_at_once(bench: Bench, tmp_path: Path) -> None:
    said = {**SAYS, "tools": [{"name": "a", "parameters": {"type": 3}}, {"name": "b"}]}
    about = f'{ABOUT}kind = "channel"\nsha256 = "{"0" * 64}"\ncapabilities = ["http:*.a", "x"]\n'
    folder = folder_of(tmp_path / "spy", about.replace("1.0.0", "2"), guest(json.dumps(said), HTTP))

    done = bench.run("check", str(folder))

    assert done.exit_code == 1
    for problem in (
        "capability 'http:*.a' needs an exact host",
        "capability 'x' does not have the form type:value",
        "plugin.toml says 000000",
        "it is a tool plugin; plugin.toml says channel",
        "it describes version '1.0.0'; plugin.toml says '2'",
        "tool spy__a: the schema cannot be used",
        "it imports exogate:plugin/http@1.0.0#request, which needs http:HOST",
    ):
        assert problem in done.stdout


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"hello", "it is not WebAssembly"), (b"\0asm\1\0\0\0", "not an Extism plugin")],
)
def test_what_is_no_plugin_is_told_in_a_sentence(
    bench: Bench, tmp_path: Path, content: bytes, problem: str
) -> None:
    file = tmp_path / "x.wasm"
    file.write_bytes(content)

    done = bench.run("check", str(file))

    assert (done.exit_code, problem in done.stdout) == (1, True)


def test_an_authors_words_cannot_play_with_the_terminal(bench: Bench, tmp_path: Path) -> None:
    words = "\x1b[2J\x1b]0;owned\x07 nice\nasks for none\r\u202e" + "A" * 4000
    said = {**SAYS, "description": words, "tools": [{"name": "spy", "description": words}]}
    file = tmp_path / "spy.wasm"
    file.write_bytes(guest(json.dumps(said)))

    for verb in ("check", "inspect", "install"):
        done = bench.run(verb, str(file))
        assert all(c.isprintable() or c == "\n" for c in done.stdout)
        assert "\nasks for none" not in done.stdout
        assert "(the author's words)" in done.stdout


def test_recorded_cases_are_run_and_failures_are_shown(bench: Bench, tmp_path: Path) -> None:
    cases = {"cases": [{"name": "t", "clock_ms": 0, "call": {"tool": "time"}, "expect": {"a": 1}}]}
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(cases))

    good = bench.run("test", str(ROOT / "plugins" / "time"))
    bad = bench.run("test", str(ROOT / "plugins" / "time"), "--case", str(file))

    assert good.exit_code == 0
    assert "host_function:clock   may read the clock" in good.stdout
    assert "9 of 9 cases passed" in good.stdout
    assert bad.exit_code == 1
    assert '-  "a": 1' in bad.stdout
    assert '+  "iso": "1970-01-01T00:00:00+00:00"' in bad.stdout


def test_a_file_is_inspected_with_what_it_asks_for_and_what_it_has(
    bench: Bench, tmp_path: Path
) -> None:
    about = f'{ABOUT}capabilities = ["host_function:clock"]\nasks = ["http:HOST"]\n'
    folder = folder_of(tmp_path / "spy", about, guest(json.dumps(SAYS), CLOCK + HTTP))

    new = json.loads(bench.run("inspect", str(folder), "--json").stdout)
    bench.written(f'[[plugins]]\nname = "spy"\npath = "{folder}/tool.wasm"\n')
    configured = json.loads(bench.run("inspect", "spy", "--json").stdout)

    assert new["requested"] == ["host_function:clock", "http:HOST"]
    assert (new["granted"], new["live"]) == (None, None)
    assert configured["granted"] == []
    assert {one["name"] for one in configured["imports"] if one["denied"]} == {
        "exogate:plugin/clock@1.0.0#now-ms",
        "exogate:plugin/http@1.0.0#request",
    }


def test_what_is_neither_a_file_nor_a_plugin_is_said(bench: Bench) -> None:
    done = bench.run("inspect", "tiem")

    assert (done.exit_code, done.stdout) == (1, "")
    assert 'there is no file and no plugin "tiem"; did you mean "time"?' in done.stderr


@pytest.mark.requirement("S-003-Plugin-04")
def test_a_running_gateway_tells_what_its_plugins_did(shell: Shell) -> None:
    before = shell("plugin", "inspect", "time", "--json").json["live"]["used"]
    shell("chat", "-m", "what time is it?")
    after = shell("plugin", "inspect", "time", "--json").json["live"]
    listed = shell("plugin", "list")

    clock = "host_function:clock"
    assert after["used"][clock] == before.get(clock, 0) + 1
    assert after["denied"] == {}
    assert listed.out.splitlines()[1].split() == ["time", "loaded", "1.0.0", "tool", "time", clock]


def test_without_a_gateway_there_is_no_list(alone: Shell) -> None:
    assert alone("plugin", "list").code == 69


def test_a_plugin_is_made_and_built(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "counter"

    made = bench.run("new", "counter", "--lang", "zig", "--dir", str(folder), "--json")
    about = (folder / "plugin.toml").read_text()
    command = f'command = "cp {ROOT}/wasm-examples/zig/tool.wasm tool.wasm"\n'
    (folder / "plugin.toml").write_text(about[: about.index("[build]")] + "[build]\n" + command)
    built = bench.run("build", str(folder), "--json")

    assert json.loads(made.stdout)["next"][0] == f"exogate plugin build {folder}"
    sha256 = json.loads(built.stdout)["sha256"]
    assert f'sha256 = "{sha256}"' in (folder / "plugin.toml").read_text()


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("Weather", "--lang", "zig"), 1, '"Weather" is not a plugin name'),
        (("a__b", "--lang", "zig"), 1, "is not a plugin name"),
        (("weather", "--lang", "cobol"), 2, "--kind tool --lang zig"),
        (("weather", "--lang", "zig", "--kind", "channel"), 2, "no example of a channel in zig"),
        (("weather",), 2, "--lang"),
    ],
)
def test_what_cannot_be_made_is_said(
    bench: Bench, tmp_path: Path, words: tuple[str, ...], code: int, problem: str
) -> None:
    done = bench.run("new", *words, "--dir", str(tmp_path / "new"))

    assert (done.exit_code, problem in done.stderr) == (code, True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("verb", ["check", "test", "inspect", "install", "build"])
@pytest.mark.parametrize("name", ["nope.wasm", "empty"])
def test_what_is_not_there_is_said_in_a_sentence(
    bench: Bench, tmp_path: Path, verb: str, name: str
) -> None:
    (tmp_path / "empty").mkdir()

    done = bench.run(verb, str(tmp_path / name))

    assert done.exit_code == 1
    assert done.stderr.startswith("exogate: there is no")
    assert done.stderr.count("\n") == 1
