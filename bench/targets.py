"""The measured processes: the model server, the floor and the gateway."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from bench.process import Started, started

TOKEN = "bench-token-of-alice"
CONFIG = """
[gateway]
data_dir = {data_dir}
port = 0

[providers.mock]
wire = "openai"
base_url = "http://127.0.0.1:{model_port}/v1"
api_key = "sk-bench"

[agent]
id = "main"
provider = "mock"
model = "mock-1"

[[tokens]]
name = "alice"
token = "{token}"
scopes = ["chat"]
"""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The plan of the model server."""

    tokens: int = 20
    latency_ms: float = 0.0
    interval_ms: float = 0.0
    tool_calls: int = 0  # before each answer
    arguments: str = "{}"  # of each


@contextmanager
def model(plan: ModelPlan) -> Iterator[Started]:
    command = [sys.executable, "-m", "bench.model_server", "--tokens", str(plan.tokens)]
    command += ["--latency-ms", str(plan.latency_ms), "--chunk-interval-ms", str(plan.interval_ms)]
    command += ["--tool-calls", str(plan.tool_calls), "--arguments", plan.arguments]
    with started(command, find_port=port_in_json) as server:
        yield server


@contextmanager
def floor(model_port: int, data_dir: Path) -> Iterator[Started]:
    data_dir.mkdir(parents=True)
    with started(floor_command(model_port, data_dir), find_port=port_in_json) as server:
        yield server


def floor_command(model_port: int, data_dir: Path) -> list[str]:
    url = f"http://127.0.0.1:{model_port}/v1"
    return [sys.executable, "-m", "bench.floor", "--model", url, "--data-dir", str(data_dir)]


@contextmanager
def gateway(
    model_port: int, data_dir: Path, *, program: Sequence[str] = (), config: str = CONFIG
) -> Iterator[Started]:
    command = gateway_command(model_port, data_dir, program=program, config=config)
    with started(command, find_port=port_in_banner) as server:
        yield server


def gateway_command(
    model_port: int, data_dir: Path, *, program: Sequence[str] = (), config: str = CONFIG
) -> list[str]:
    """Returns the real command, or `program`, with its data directory, which is fresh unless it was filled
    before."""
    data_dir.mkdir(parents=True, exist_ok=True)
    file = data_dir / "bench.toml"
    file.write_text(
        config.format(
            data_dir=json.dumps(str(data_dir / "data")), model_port=model_port, token=TOKEN
        )
    )
    return [*(program or exogate()), "--config", str(file), "run"]


def exogate() -> list[str]:
    """Returns the installed command of this interpreter."""
    return [str(Path(sys.executable).with_name("exogate"))]


def port_in_banner(line: str) -> int | None:
    found = re.search(r"ws://[^/]*:(\d+)/ws", line)
    return int(found[1]) if found else None


def port_in_json(line: str) -> int | None:
    return int(json.loads(line)["port"])


def load(server: Started, *, sessions: int, **options: int | float | str) -> dict[str, Any]:
    """Runs the load generator. Raises CalledProcessError."""
    command = [sys.executable, "-m", "bench.load", "--port", str(server.port), "--token", TOKEN]
    command += ["--sessions", str(sessions), "--pid", str(server.pid)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def stats(model: Started) -> dict[str, int]:
    """Returns the counts of the model server."""
    with urlopen(f"http://127.0.0.1:{model.port}/stats", timeout=10) as answer:
        told: dict[str, int] = json.load(answer)
    return told


def run_to_end(command: Sequence[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
