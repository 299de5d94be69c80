"""The benchmark of webhooks: the speed of accepting platform calls during slow model calls.

    python -m bench.webhooks [--quick] [--json FILE]

The gateway verifies each call, reads it with the bundled adapter in its sandbox, and fsyncs it before the
answer. Rounds alternate with plain `chat.send`, which is the base.
"""

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import targets
from bench.accepts import CHANNEL, SECRET
from bench.command import run
from bench.marks import Figure, marked
from bench.process import Started
from bench.spine import Seen, compared, cpu_per_message, rate
from bench.targets import ModelPlan

CONFIG = (
    targets.CONFIG.replace("port = 0", "port = 0\ndrain_s = 1")
    + f"""
[[plugins]]
name = "webhook"
path = "bundled:webhook"

[channels.{CHANNEL}]
plugin = "webhook"
dm_policy = "open"
secrets = {{{{ secret = "whsec_{b64encode(SECRET).decode()}" }}}}
config = {{{{ scheme = "standard" }}}}
"""
)
BASE = "chat.send"


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int = 5
    seconds: float = 4.0
    sessions: int = 2_000
    model_ms: float = 30_000.0
    connections: int = 16


QUICK = Sizes(rounds=2, seconds=1.5)
MICRO = Sizes(rounds=1, seconds=0.3, sessions=20, connections=2)


def _accepts(server: Started, sizes: Sizes, way: str) -> Seen:
    options: dict[str, Any] = {
        "port": server.port,
        "pid": server.pid,
        "token": targets.TOKEN,
        "way": way,
        "connections": sizes.connections,
        "sessions": sizes.sessions,
        "seconds": sizes.seconds,
    }
    command = [sys.executable, "-m", "bench.accepts"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seen: Seen = json.loads(done.stdout)
    if seen["errors"] or not seen["messages"]:
        raise RuntimeError(f"errors while measuring: {seen['errors'][:3]}")
    return seen


def measure(sizes: Sizes, home: Path) -> Iterator[Figure]:
    runs: tuple[list[Seen], list[Seen]] = ([], [])
    for number in range(
        sizes.rounds
    ):  # a new gateway each time, because accepted messages wait long
        with (
            targets.model(ModelPlan(latency_ms=sizes.model_ms)) as model,
            targets.gateway(model.port, home / str(number), config=CONFIG) as server,
        ):
            runs[0].append(_accepts(server, sizes, "chat"))
            runs[1].append(_accepts(server, sizes, "webhook"))
    at = f"{sizes.sessions:,} sessions, {sizes.connections} connections"
    pace = compared(f"webhook accepts, {at}", "calls/s", runs, rate)
    yield marked(pace, 1_500, at_least=True)
    yield compared("answered p50", "ms", runs, lambda seen: seen["p50_ms"])
    yield marked(compared("answered p99", "ms", runs, lambda seen: seen["p99_ms"]), 25)
    slowest = max(seen["max_ms"] for seen in runs[1])
    name = f"slowest answer, {sizes.model_ms / 1000:g} s model"
    base = max(seen["max_ms"] for seen in runs[0])
    yield marked(Figure(name, "ms", slowest, base), 100)
    yield compared("CPU an accept", "ms", runs, cpu_per_message)
    client = median(seen["own_cpu_ms"] / seen["messages"] for seen in runs[1])
    yield Figure("CPU of the load generator a call", "ms", client)


if __name__ == "__main__":
    run(__doc__, BASE, lambda quick, home: measure(QUICK if quick else Sizes(), home))
