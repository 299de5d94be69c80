"""A real gateway for a test: in this process, or as the command that users start."""

import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from zlib import crc32

import anyio
from anyio import to_thread

from gateway.app.assembly import Gateway, open_gateway
from gateway.app.generation import web_settings
from gateway.app.proposals import ConfigFile
from gateway.cli.configuration import known_names
from gateway.config.load import LoadedConfig
from gateway.config.load import read as read_config
from gateway.config.values import GatewayConfig, Inputs
from gateway.domain.version import VERSION
from gateway.host.files import make_key
from gateway.web.server import ListenAddress, WebServer
from tests.fakes.commands import Forked, commands
from tests.fakes.compiled import compiled_before


class Engine:
    """What `[store]` says for every gateway of the test that runs, a database for each folder; empty: the
    embedded store."""

    section = ""

    def of(self, folder: Path) -> str:
        return self.section.replace("FOLDER", f"{crc32(bytes(folder)):x}")


ENGINE = Engine()
START_S = 60.0  # nothing is measured by it: what hangs ends
known_names()  # reads files, once: no test may do that while others wait
SOUL = "You answer tests."
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Setup:
    """What a configuration file says; each text goes into its section, `rest` to the end. The agent
    has these `tools`, of which the bundled ones are configured; `grants` are what they may do besides the usual."""

    model_url: str
    wire: str = "openai"
    name: str = "fake"  # of the provider
    gateway: str = ""
    provider: str = ""
    agent: str = ""
    tools: tuple[str, ...] = ()
    grants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rest: str = ""
    key: str = "sk-of-the-test"

    def toml(self, folder: Path) -> str:
        return f"""
[gateway]
port = 0
data_dir = "{folder / "data"}"
{self.gateway}

[providers.{self.name}]
wire = "{self.wire}"
base_url = "{self.model_url}"
api_key = "{self.key}"
{self.provider}

[agent]
id = "main"
provider = "{self.name}"
model = "m"
soul_path = "{folder / "soul.md"}"
tools = {json.dumps(self.tools)}
{self.agent}

{"".join(_bundled(name, self.grants.get(name, ())) for name in self.tools if name in known_names().bundled)}
{self.rest}
{"" if "[store]" in self.rest else ENGINE.of(folder)}
"""

    async def written(self, folder: Path) -> Path:
        """config.toml, with the soul and the data beside it."""
        await anyio.Path(folder / "soul.md").write_text(SOUL, encoding="utf-8")
        path = folder / "config.toml"
        text = await to_thread.run_sync(self.toml, folder)
        await anyio.Path(path).write_text(text, encoding="utf-8")
        plugins = [
            ROOT / "plugins" / name / "tool.wasm" for name in re.findall(r'"bundled:(\w+)"', text)
        ]
        plugins += map(Path, re.findall(r'"(/.+/wasm-examples/.+\.wasm)"', text))
        await compiled_before(plugins, folder / "data")
        return path


def _bundled(name: str, more: tuple[str, ...]) -> str:
    return f'''
[[plugins]]
name = "{name}"
path = "bundled:{name}"
capabilities = {json.dumps([*known_names().bundled[name].needs, *more])}
'''


@dataclass(frozen=True)
class Site:
    """A gateway that runs in this process."""

    url: str
    rooms: Gateway


Change = Callable[[GatewayConfig], GatewayConfig]
NO_VARIABLES: Mapping[str, str] = {}


def unchanged(config: GatewayConfig) -> GatewayConfig:
    return config


@asynccontextmanager
async def running(
    setup: Setup,
    folder: Path,
    change: Change = unchanged,
    environment: Mapping[str, str] = NO_VARIABLES,
    patience_s: float = START_S,
) -> AsyncIterator[Site]:
    """Started as `exogate run` does it; at the end it stops at once, whatever is at work. `change`
    is for bounds that no file may set so low."""
    path = await setup.written(folder)

    inputs = await to_thread.run_sync(lambda: Inputs(environment, folder, folder, known_names()))

    def read(other: Path | None = None) -> LoadedConfig:
        loaded = read_config(other or path, inputs)
        return replace(loaded, config=change(loaded.config))

    config = (await to_thread.run_sync(read)).config
    assembling = open_gateway(config, version=VERSION, patience_s=patience_s, read=read)
    async with assembling as rooms:
        rooms.changes.file = ConfigFile(lambda: path, path, lambda: inputs)
        key = await to_thread.run_sync(make_key, config.gateway.data_dir)
        settings = web_settings(config, key)
        app = rooms.web(settings)
        server = rooms.server = WebServer(app, settings)
        async with anyio.create_task_group() as group:
            group.start_soon(app.identities.watch)
            address: ListenAddress = await group.start(server.serve)
            await rooms.intake.resume()
            rooms.connect()
            rooms.health.starting = False
            yield Site(f"http://{address}", rooms)
            group.cancel_scope.cancel()


@dataclass
class Command:
    """`exogate run` as a process of its own; `output` is all that it said, on stdout and stderr."""

    process: Forked | subprocess.Popen[bytes]
    output: Path
    url: str = ""

    def kill(self) -> None:
        """kill -9, at this very moment; harmless if it is dead already."""
        self.process.kill()

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ready(self) -> bool:
        """Waits until it can answer; False if it died before."""
        return await to_thread.run_sync(self._read_banner)

    def _read_banner(self) -> bool:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.output.open("ab") as output:
                output.write(line)
            if b"HTTP API" in line:
                self.url = line.split()[2].decode().removesuffix("/api/chat")
            if b"Ctrl+C" in line:
                return True
        return False

    async def exit_code(self) -> int:
        """Waits for its end."""
        with anyio.fail_after(START_S):
            return await to_thread.run_sync(self.process.wait, START_S)

    async def said(self) -> bytes:
        return await anyio.Path(self.output).read_bytes()


def spawn(config: Path, port: int = 0, more: Mapping[str, str] = NO_VARIABLES) -> Command:
    """Blocks for a moment: call it in a thread. `more`: of the environment."""
    output = config.parent / "output.txt"
    with output.open("ab") as log:
        words = ["--config", str(config), "run", "--port", str(port)]
        variables = {"PATH": os.defpath, "HOME": str(config.parent), **more}  # nobody's keys
        process = commands().start(words, env=variables, err=log)
    return Command(process, output)


@asynccontextmanager
async def spawned(
    config: Path, port: int = 0, more: Mapping[str, str] = NO_VARIABLES
) -> AsyncIterator[Command]:
    """On its way up, perhaps; killed at the end if it still runs."""
    started = await to_thread.run_sync(spawn, config, port, more)
    try:
        yield started
    finally:
        started.kill()
        with anyio.CancelScope(shield=True):
            await started.exit_code()
            assert started.process.stdout is not None
            started.process.stdout.close()


@asynccontextmanager
async def command(
    config: Path, port: int = 0, more: Mapping[str, str] = NO_VARIABLES
) -> AsyncIterator[Command]:
    """A gateway that can answer."""
    async with spawned(config, port, more) as started:
        with anyio.fail_after(START_S):
            if not await started.ready():
                told = (await started.said()).decode(errors="replace")
                raise AssertionError(f"the gateway did not start:\n{told[-2000:]}")
        yield started
