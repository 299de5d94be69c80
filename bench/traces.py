"""The benchmark of traces: the cost of a message with and without tracing.

    python -m bench.traces [--quick] [--json FILE]

It runs two gateways, one of them with a collector that accepts all spans. Rounds alternate.
"""

import http.server
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import targets
from bench.command import run
from bench.marks import Figure, marked
from bench.process import started
from bench.spine import Seen, compared, cpu_per_message, rate
from bench.targets import ModelPlan

BASE = "the same gateway without traces"
TRACED = targets.CONFIG + '\n[observability]\notlp_endpoint = "http://127.0.0.1:{collector}"\n'
COLLECT = "collect"
MOST = 1.15  # times the cost without tracing


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int = 5
    seconds: float = 4.0


QUICK = Sizes(seconds=1.5)
MICRO = Sizes(rounds=1, seconds=0.3)


class Collector(http.server.BaseHTTPRequestHandler):
    """Accepts every request."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def collect() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        print(json.dumps({"port": server.server_port}), flush=True)
        server.serve_forever()


def measure(sizes: Sizes, home: Path) -> Iterator[Figure]:
    command = [sys.executable, "-m", "bench.traces", COLLECT]
    with ExitStack() as stack:
        model = stack.enter_context(targets.model(ModelPlan()))
        find_port = targets.port_in_json
        collector = stack.enter_context(started(command, find_port=find_port))
        config = TRACED.replace("{collector}", str(collector.port))
        servers = [
            stack.enter_context(targets.gateway(model.port, home / "plain")),
            stack.enter_context(targets.gateway(model.port, home / "traced", config=config)),
        ]
        for sessions in (1, 32):
            runs: tuple[list[Seen], list[Seen]] = ([], [])
            turns = [0, 1, 1, 0] * sizes.rounds
            for place in turns[: 2 * sizes.rounds]:
                seen = targets.load(servers[place], sessions=sessions, seconds=sizes.seconds)
                runs[place].append(seen)
            at = f"{sessions} session{'s' if sessions > 1 else ''}"
            cpu = compared(f"CPU a message, {at}", "ms", runs, cpu_per_message)
            yield marked(cpu, MOST, ratio=True)
            yield compared(f"throughput, {at}", "messages/s", runs, rate)


if __name__ == "__main__":
    if sys.argv[1:] == [COLLECT]:
        collect()
    else:
        run(__doc__, BASE, lambda quick, home: measure(QUICK if quick else Sizes(), home))
