"""docs/tutorial.md is true: each command, in order, prints what the page shows.

Its `pip install` of a compiler is left out, because it fetches 100 MB from PyPI: the build gets a compiler
that gives the core module of the example in the repository, which is what `plugin new` copies.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.test_plugin_journey import core_of, running
from tests.fakes.commands import commands
from tests.fakes.compiled import USUAL, compiled

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
ID = re.compile(r"[fr]_[a-z0-9]{26}")
COMMAND_S = 60
FETCHES = "python -m pip install "
STARTS = ".venv/bin/exogate run"


def steps() -> Iterator[tuple[str, str]]:
    """What the reader does, in order: ("toml", TEXT) to write, or (COMMAND, OUTPUT)."""
    for language, block in re.findall(r"^```(console|toml)\n(.*?)^```", PAGE, re.M | re.S):
        if language == "toml":
            yield language, block
            continue
        for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = one.partition("\n")
            yield command, output


class Reader:
    """Somebody who types what the page says, in a home of their own."""

    def __init__(self, home: Path, path: str) -> None:
        self.folder = home / "exogate"  # where the page is read, and the gateway's output kept
        self.folder.mkdir(parents=True)
        self.config = home / ".config/exogate/config.toml"
        self.environment = {"HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT)}
        self.seen = ""
        self._ids: dict[str, str] = {}  # of the page: those of this machine
        self._gateway = ExitStack()

    def start_gateway(self) -> None:
        """Ends the gateway that runs, as Ctrl+C does, and starts another."""
        self.stop_gateway()
        banner = self.folder / "output"
        banner.unlink(missing_ok=True)
        self._gateway.enter_context(running(["run"], self.folder, self.environment))
        self.seen = banner.read_text(encoding="utf-8")

    def stop_gateway(self) -> None:
        self._gateway.close()

    def type(self, command: str) -> None:
        typed = ID.sub(lambda found: self._ids[found[0]], command)
        self.seen = subprocess.run(
            ["/bin/sh", "-c", typed],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        ).stdout

    def write(self, text: str) -> None:
        """The whole configuration, or the line that was reported."""
        if text.startswith("["):
            self.config.write_text(text, encoding="utf-8")
            return
        place = re.match(r"~/\.config/exogate/config\.toml:(\d+):", self.seen)
        assert place, self.seen
        lines = self.config.read_text(encoding="utf-8").splitlines(keepends=True)
        lines[int(place[1]) - 1] = text
        self.config.write_text("".join(lines), encoding="utf-8")

    def compare(self, command: str, shown: str) -> None:
        """`…` is any text within a line, or any lines; an id of the page is the one that is seen."""
        new = [one for one in ID.findall(shown) if one not in self._ids]
        pattern = re.escape(ID.sub(lambda found: self._ids.get(found[0], found[0]), shown))
        pattern = re.sub(r"^…\n", r"(?:.*\\n)*?", pattern.replace("\\\n", "\n"), flags=re.M)
        pattern = pattern.replace("…", ".*")
        for one in new:
            pattern = pattern.replace(one, f"({ID.pattern})", 1)
        found = re.fullmatch(pattern, self.seen)
        assert found, f"$ {command}\n{self.seen}\n-- the page shows --\n{shown}"
        self._ids |= zip(new, found.groups(), strict=True)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    programs = tmp_path / "bin"
    programs.mkdir()
    core = tmp_path / "core.wasm"
    core.write_bytes(core_of((ROOT / "wasm-examples" / "zig" / "tool.wasm").read_bytes()))
    for name, line in {
        "exogate": f'exec {commands().program} "$@"',
        "python": f"cp {core} core.wasm",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    tool = ROOT / "wasm-examples" / "zig" / "tool.wasm"
    compiled(tmp_path / "home/.local/share/exogate", tool, *USUAL)
    somebody = Reader(tmp_path / "home", f"{programs}:/usr/bin:/bin")
    try:
        yield somebody
    finally:
        somebody.stop_gateway()


def test_each_step_of_the_tutorial_shows_what_the_page_says(reader: Reader) -> None:
    for command, shown in steps():
        if command == "toml":
            reader.write(shown)
        elif command.endswith(STARTS):
            reader.start_gateway()
            reader.compare(command, shown)
        elif not command.startswith(FETCHES):
            reader.type(command)
            reader.compare(command, shown)
