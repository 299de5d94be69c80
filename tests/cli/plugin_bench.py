"""`exogate plugin` as it is typed, in this process, with a home of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from click.testing import CliRunner, Result

from gateway.cli.command import report_errors, split_options
from gateway.cli.main import exogate
from tests.fakes.wat import describing, handling

HTTP = '(import "exogate:plugin/http@1.0.0" "request" (func (param i32 i32 i32)))'
STORE = '(import "exogate:plugin/store@1.0.0" "get" (func (param i32 i32 i32 i32 i32)))'
CLOCK = '(import "exogate:plugin/clock@1.0.0" "now-ms" (func (result i64)))'


class Bench:
    """Runs the verbs; no gateway runs here. `data` may be shared: what is compiled stays there."""

    def __init__(self, home: Path, data: Path) -> None:
        self.home, self.data = home, data
        self.config = home / ".config" / "exogate" / "config.toml"

    def run(self, *words: str, verb: str = "plugin", env: dict[str, str] | None = None) -> Result:
        given = ["--data-dir", str(self.data), verb, *words]

        @click.command()
        def whole() -> None:
            with report_errors(debug=False):
                front, rest = split_options(given)
                exogate([*front, *rest], prog_name="exogate")

        return CliRunner(env={"HOME": str(self.home), **(env or {})}).invoke(whole)

    def written(self, config: str) -> None:
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(config, encoding="utf-8")

    @property
    def installed(self) -> list[Path]:
        return sorted((self.data / "plugins" / "installed").glob("*"))


def guest(says: str, imports: str = "") -> bytes:
    """A tool that describes itself so, and gives back what it gets."""
    pieces = "{{memory}}{{realloc}}{{answer}}" + describing(says)
    return handling("(call $ok (local.get 0) (local.get 1))", imports=imports, pieces=pieces)


def folder_of(path: Path, about: str, wasm: bytes) -> Path:
    """A plugin's directory."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "plugin.toml").write_text(about, encoding="utf-8")
    (path / "tool.wasm").write_bytes(wasm)
    return path


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    before = path.read_bytes() if path.exists() else None
    yield
    assert (path.read_bytes() if path.exists() else None) == before
