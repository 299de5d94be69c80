"""docs/how-to/plugins.md is true: its commands do what it says, its examples are read as it says."""

import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import click
import pytest

from gateway.cli.main import exogate
from gateway.cli.plugin_files import AboutPlugin, Cases
from gateway.sandbox.plugins import HOST_FUNCTIONS, PluginDescription
from tests.cli.conftest import end
from tests.fakes.commands import commands as forked
from tests.fakes.compiled import USUAL, compiled
from tests.fakes.gateway import Command

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "how-to" / "plugins.md").read_text(encoding="utf-8")
HEAD = 8  # of a component, before the core module that it begins with


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(text: str = TEXT) -> list[list[str]]:
    return [shlex.split(line)[1:] for block in blocks("sh", text) for line in block.splitlines()]


def core_of(component: bytes) -> bytes:
    """The core module that was wrapped into it."""
    at, size, shift = HEAD + 1, 0, 0
    while True:
        byte = component[at]
        size, shift, at = size | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return component[at : at + size]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_of_the_guide_is_one(words: list[str]) -> None:
    command: click.Command = exogate
    context = click.Context(exogate, info_name="exogate")
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, name
        command = found

    command.make_context("it", words, parent=context)


def test_the_examples_of_the_guide_are_read_as_it_says() -> None:
    said, given, cases = map(json.loads, blocks("json"))
    about, package = map(tomllib.loads, blocks("toml"))
    assert HOST_FUNCTIONS in package["project"]["entry-points"]

    assert PluginDescription.model_validate(said).tools[0].name == "weather"
    assert given.keys() == {"tool", "arguments", "call_id", "session", "config"}
    assert Cases.model_validate(cases).cases[0].http[0].body == "rain"
    assert AboutPlugin.model_validate(about).problems == ()


@pytest.fixture
def toolchain(tmp_path: Path) -> Path:
    """Compilers that give what is in the repository, and nobody else's."""
    examples = ROOT / "wasm-examples"
    (tmp_path / "core.wasm").write_bytes(core_of((examples / "zig" / "tool.wasm").read_bytes()))
    shutil.copy(examples / "js" / "tool.wasm", tmp_path / "js.wasm")
    made = {"npx": "js.wasm tool.wasm", "python": "core.wasm core.wasm"}
    for name, files in made.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncp {tmp_path}/{files}\n")
        program.chmod(0o755)
    return tmp_path / "bin"


@contextmanager
def running(words: list[str], home: Path, environment: dict[str, str]) -> Iterator[None]:
    with (home / "log").open("wb") as log:
        process = forked().start([*words, "--port", "0"], env=environment, err=log, cwd=home)
    gateway = Command(process, home / "output")
    try:
        assert anyio.run(gateway.ready), (home / "log").read_text()
        yield
    finally:
        end(gateway)


@pytest.mark.requirement("S-003-Plugin-04", "S-003-Plugin-05")
@pytest.mark.parametrize("language", ["JavaScript", "Zig"])
def test_five_commands_lead_to_a_tool_that_the_agent_calls(
    language: str, tmp_path: Path, toolchain: Path
) -> None:
    section = TEXT.split(f"### In {language}", 1)[1].split("\n###", 1)[0].split("\n## ", 1)[0]
    new, build, install, run, chat = commands(section)
    path = f"{toolchain}:/usr/bin:/bin"
    environment = {"HOME": str(tmp_path), "PATH": path, "PYTHONPATH": str(ROOT)}
    tool = ROOT / "wasm-examples" / {"JavaScript": "js", "Zig": "zig"}[language] / "tool.wasm"
    compiled(tmp_path / ".local/share/exogate", tool, *USUAL)

    def typed(words: list[str]) -> str:
        ended = forked().run(words, env=environment, cwd=tmp_path)
        assert ended.code == 0, ended
        return ended.out

    for words in (new, build, install):
        typed(words)
    with running(run, tmp_path, environment):
        answer = typed(chat)

    assert answer == "The tool wordcount says: words: 3; characters: 13\n"
