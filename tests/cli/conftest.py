"""A demo gateway that runs as users start it, and the command line beside it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from tests.cli.plugin_bench import Bench
from tests.fakes.commands import Ended, commands
from tests.fakes.compiled import compiled
from tests.fakes.gateway import Command, spawn

CONFIG = """
[gateway]
port = 0
data_dir = "{folder}/data"

[agent]
id = "demo"
provider = "demo"
model = "demo"
tools = ["time"]
subagents = ["clerk"]

[[agents]]
id = "second"
provider = "demo"
model = "demo"

[[subagents]]
name = "clerk"
prompt_path = "clerk.md"
tools = ["time/time"]

[[bindings]]
agent_id = "second"
channel = "telegram"
"""
TOOLS = ('tools = ["time"]\n', 'tools = ["time/time"]\n')
PLUGIN = """
[[plugins]]
name = "time"
path = "bundled:time"
capabilities = ["host_function:clock"]
"""


@dataclass(frozen=True)
class Shell:
    """Runs `exogate` with a configuration."""

    config: Path

    def __call__(self, *words: str, typed: str = "", env: Mapping[str, str] | None = None) -> Ended:
        variables = {"HOME": str(self.config.parent), "PATH": "/usr/bin:/bin", **(env or {})}
        return commands().run(["--config", str(self.config), *words], env=variables, typed=typed)


def written(folder: Path, *, with_plugin: bool = True) -> Path:
    (folder / "clerk.md").write_text("You count.", encoding="utf-8")
    text = CONFIG.format(folder=folder)
    for tools in () if with_plugin else TOOLS:
        text = text.replace(tools, "")
    if with_plugin:
        compiled(folder / "data", "time")
    path = folder / "config.toml"
    path.write_text(text + PLUGIN * with_plugin, encoding="utf-8")
    return path


@pytest.fixture(scope="package")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """With a gateway that runs."""
    config = written(tmp_path_factory.mktemp("cli"))
    gateway = spawn(config)
    assert anyio.run(gateway.ready)
    yield Shell(config)
    end(gateway)


def end(gateway: Command) -> None:
    gateway.kill()
    gateway.process.wait(10)
    assert gateway.process.stdout is not None
    gateway.process.stdout.close()


@pytest.fixture
def alone(tmp_path: Path) -> Shell:
    """Where no gateway runs."""
    return Shell(written(tmp_path, with_plugin=False))


@pytest.fixture(scope="package")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one test compiled, the next one finds."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def bench(tmp_path: Path, data: Path) -> Bench:
    return Bench(tmp_path, data)
