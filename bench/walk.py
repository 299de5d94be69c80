"""Counts the Python calls, files and functions that a message passes in the gateway.

    python -m bench.walk            one message, files in the order of first entry
    python -m bench.walk --delta    one streamed delta of a reply
    python -m bench.walk --check    both; fails if one exceeds its bound in tools/ratchet.json

The counts depend on the version of Python (compare on 3.11), not on the load of the machine. A file
counts if one message in ten enters it, a function if every message passes it.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from bench.process import Started
from bench.targets import TOKEN, ModelPlan, gateway, model

BOUNDS = Path(__file__).parent.parent / "tools" / "ratchet.json"
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
context_window = 1000000
tools = ["echo"]

[limits]
token_budget = 200000

[[plugins]]
name = "echo"
path = "bundled:echo"

[[tokens]]
name = "alice"
token = "{token}"
scopes = ["chat"]
"""
# Runs the real command and counts calls between two signals.
HOOK = r"""
import collections, json, os, signal, sys, threading
from importlib.metadata import entry_points
calls = collections.Counter(); order = {{}}; names = {{}}; counting = False
def place(code):
    found = names.get(code)
    if found is None:
        path = code.co_filename
        at = path.rfind("/gateway/")
        file = path[at + 9:] if at >= 0 else "~" + path
        found = names[code] = (file, code.co_qualname, code.co_firstlineno)
    return found
def hook(frame, event, arg):
    if event == "call" and counting:
        found = place(frame.f_code); calls[found] += 1; order.setdefault(found[0])
def flip(*_):
    global counting
    if counting:
        counting = False
        with open({out!r} + ".part", "w") as out:
            json.dump({{"calls": [[*k, n] for k, n in calls.items()], "order": [*order]}}, out)
        os.rename({out!r} + ".part", {out!r})
    else:
        counting = True
command = next(e for e in entry_points(group="console_scripts") if e.name == "exogate").load()
signal.signal(signal.SIGUSR2, flip)
threading.setprofile(hook); sys.setprofile(hook)
sys.argv[0] = "exogate"
sys.exit(command())
"""


@dataclass(frozen=True, slots=True)
class Walk:
    """The counts of `times` messages or deltas."""

    calls: Counter[tuple[str, str, int]]
    order: Sequence[str]
    times: int

    def own(self) -> Counter[str]:
        """Returns the calls per own file; generated methods of own values are in "~<string>"."""
        found: Counter[str] = Counter()
        for (file, _, _), count in self.calls.items():
            if not file.startswith("~") or file == "~<string>":
                found[file] += count
        return found

    def figures(self) -> dict[str, float]:
        entered: Counter[str] = Counter()
        passed = 0
        for (file, _, _), count in self.calls.items():
            if not file.startswith("~"):
                entered[file] = max(entered[file], count)
                passed += count >= self.times * 0.9
        return {
            "calls": self.calls.total() / self.times,
            "own": self.own().total() / self.times,
            "files": sum(count >= self.times * 0.1 for count in entered.values()),
            "functions": passed,
        }


@contextmanager
def hooked_gateway(home: Path, plan: ModelPlan) -> Iterator[tuple[Started, Path]]:
    """Yields a gateway under the hook, and the file for its counts."""
    home.mkdir()
    out, hook = home / "walk.out", home / "hook.py"
    hook.write_text(HOOK.format(out=str(out)))
    program = [sys.executable, str(hook)]
    with (
        model(plan) as server,
        gateway(server.port, home / "gateway", program=program, config=CONFIG) as started,
    ):
        yield started, out


def message(home: Path, *, turns: int = 20, warm: int = 20) -> Walk:
    with (
        hooked_gateway(home, ModelPlan(tokens=20)) as (started, out),
        talking(started.port) as socket,
    ):
        for number in range(warm):
            ask(socket, number)
        time.sleep(2)  # lets the background work of the warm-up end
        with counting(started.pid):
            for number in range(warm, warm + turns):
                ask(socket, number)
        return read(out, turns)


def delta(home: Path, *, deltas: int = 200) -> Walk:
    """Counts the calls of a delta in a long reply, each delta in a separate read."""
    plan = ModelPlan(tokens=deltas, interval_ms=5)
    with hooked_gateway(home, plan) as (started, out), talking(started.port) as socket:
        ask(socket, 0)
        time.sleep(2)
        with counting(started.pid):
            ask(socket, 1)
        long = read(out, deltas)
    kept = {place: count for place, count in long.calls.items() if count >= deltas * 0.5}
    files = {place[0] for place in kept}
    return Walk(Counter(kept), [file for file in long.order if file in files], deltas)


@contextmanager
def talking(port: int) -> Iterator[ClientConnection]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with connect(f"ws://127.0.0.1:{port}/ws", additional_headers=headers) as socket:
        yield socket


def ask(socket: ClientConnection, number: int) -> None:
    params = {"content": f"what is the status of the item? {number}", "peer": "walker"}
    call = {"jsonrpc": "2.0", "id": number, "method": "chat.send", "params": params}
    socket.send(json.dumps(call))
    while True:
        told: dict[str, Any] = json.loads(socket.recv(60))
        kind = told.get("params", {}).get("type")
        if "error" in told or kind == "error":
            raise RuntimeError(f"the gateway answered with an error: {str(told)[:400]}")
        if kind == "done":
            return


@contextmanager
def counting(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGUSR2)
    time.sleep(0.3)
    yield
    time.sleep(1)  # counts the background work of the messages
    os.kill(pid, signal.SIGUSR2)


def read(out: Path, times: int) -> Walk:
    for _ in range(100):
        if out.exists():
            told = json.loads(out.read_text())
            calls = Counter({(file, name, line): n for file, name, line, n in told["calls"]})
            return Walk(calls, told["order"], times)
        time.sleep(0.1)
    raise RuntimeError("the hook did not answer")


def print_walk(walk: Walk) -> None:
    print(" -> ".join(file for file in walk.order if not file.startswith("~")))
    for file, count in walk.own().most_common():
        print(f"  {count / walk.times:7.1f}  {file}")
    print(", ".join(f"{name} {value:.0f}" for name, value in walk.figures().items()))


def exceeded(counted: dict[str, float], bounds: dict[str, float]) -> list[str]:
    return [
        f"{name}: {value:.0f}, allowed {bounds[name]}"
        for name, value in counted.items()
        if value > bounds[name]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delta", action="store_true", help="a streamed delta")
    parser.add_argument("--check", action="store_true", help="both, against the bounds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="walk-") as folder:
        home = Path(folder)
        if not given.check:
            print_walk(delta(home / "delta") if given.delta else message(home / "message"))
            return 0
        counted = message(home / "message").figures()
        counted["delta files"] = delta(home / "delta").figures()["files"]
    print(", ".join(f"{name} {value:.0f}" for name, value in counted.items()))
    over = exceeded(counted, json.loads(BOUNDS.read_text())["walk"])
    print("\n".join(over))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
