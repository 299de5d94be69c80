"""The benchmark of a shared store: one gateway over a SurrealDB server, and two of them that share it.

    python -m bench.cluster [--quick] [--json FILE]

Needs the servers (EXOGATE_SURREAL_BIN, EXOGATE_NATS_BIN). The store fsyncs each commit. The model takes 300 ms. The base for one
gateway is the embedded store, the base for two gateways is one of them alone; rounds alternate.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

from bench import targets
from bench.command import run
from bench.marks import Figure, marked
from bench.process import Started, cpu_ns, tree
from bench.spine import SLOW_MS, Seen, rate
from bench.targets import TOKEN, ModelPlan
from tests.fakes.nats import NatsServer, nats_binary, running_nats
from tests.fakes.surreal import PASSWORD, USER, SurrealServer, running_surreal, surreal_binary

STORE = f"""
[store]
url = "{{url}}"
namespace = "bench"
database = "{{database}}"
username = "{USER}"
password = "{PASSWORD}"
"""
CLUSTER = """
[cluster]
url = "{nats}"
node = "{node}"
"""
PLAIN = targets.CONFIG.replace('scopes = ["chat"]', 'scopes = ["chat", "metrics"]')
PLAIN = PLAIN.replace("port = 0", "port = 0\ndrain_s = 1")
BASE, ONE = "embedded store", "one gateway"


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int = 3
    seconds: float = 8.0
    sessions: int = 512
    warm_up: int = 3
    model_ms: float = SLOW_MS


QUICK = Sizes(rounds=1, seconds=4.0)
MICRO = Sizes(rounds=1, seconds=0.3, sessions=4, warm_up=1, model_ms=1.0)


@dataclass(frozen=True, slots=True)
class Round:
    """The measurements of several load generators, and the resources of all processes in that time."""

    rate: float
    cpu_ms: Mapping[str, float]  # a message, by process group
    cores: float  # in use by all processes
    requests: float  # to the store per message
    p50_ms: float


@dataclass(frozen=True, slots=True)
class Place:
    """The servers that all gateways share."""

    home: Path
    model: Started
    surreal: SurrealServer
    nats: NatsServer
    numbers: Iterator[int]

    @contextmanager
    def gateways(self, kind: str, nodes: int) -> Iterator[list[Started]]:
        """Starts gateways on a fresh store: `embedded`, `shared`, or shared by a `cluster`."""
        number, config = next(self.numbers), PLAIN
        if kind != "embedded":
            config += STORE.format(url=self.surreal.url, database=f"d{number}")
        with ExitStack() as stack:
            found = []
            for node in range(nodes):
                more = CLUSTER.format(nats=self.nats.url, node=node) if kind == "cluster" else ""
                folder = self.home / f"g{number}-{node}"
                one = targets.gateway(self.model.port, folder, config=config + more)
                found.append(stack.enter_context(one))
            yield found

    def measured(self, kind: str, nodes: int, sizes: Sizes) -> Round:
        with self.gateways(kind, nodes) as servers:
            one = partial(_load, sessions=sizes.sessions // nodes, sizes=sizes)
            pids = {
                "gateways": [pid for one in servers for pid in tree(one.pid)],
                "store": [self.surreal.pid],
                "NATS": [self.nats.pid],
                "model server": [self.model.pid],
            }
            asked = sum(map(_requests, servers))
            with ThreadPoolExecutor(nodes) as pool:
                began = time.perf_counter()
                before = {name: cpu_ns(some) for name, some in pids.items()}
                runs = [*pool.map(one, servers, [f"s{node}-" for node in range(nodes)])]
                used = {name: (cpu_ns(some) - before[name]) / 1e6 for name, some in pids.items()}
                cores = sum(used.values()) / 1000 / (time.perf_counter() - began)
            asked = sum(map(_requests, servers)) - asked
        # The figures of the processes include their warm-up, those of the load generators do not.
        warm = sizes.warm_up * sizes.sessions
        messages = sum(run["messages"] for run in runs) + warm
        cpu = {name: ms / messages for name, ms in used.items()}
        own = sum(run["own_cpu_ms"] for run in runs) / (messages - warm)
        pace = sum(map(rate, runs))
        p50 = median(run["p50_ms"] for run in runs)
        return Round(pace, {**cpu, "load generators": own}, cores, asked / messages, p50)


def _load(server: Started, name: str, *, sessions: int, sizes: Sizes) -> Seen:
    how = {"seconds": sizes.seconds, "warm_up": sizes.warm_up, "name": name}
    seen = targets.load(server, sessions=sessions, **how)  # type: ignore[arg-type]  # its options
    if seen["errors"]:
        raise RuntimeError(f"errors while measuring: {seen['errors'][:3]}")
    return seen


def _requests(server: Started) -> float:
    """Returns the requests to the store since the start of the gateway."""
    url = f"http://127.0.0.1:{server.port}/metrics"
    asked = Request(url, headers={"authorization": f"Bearer {TOKEN}"})
    with urlopen(asked, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    mine = [line for line in lines if line.startswith("exogate_store_requests_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in mine)


@contextmanager
def place(home: Path, model_ms: float) -> Iterator[Place]:
    storage = f"surrealkv://{home / 'surreal'}?sync=every"
    with (
        targets.model(ModelPlan(latency_ms=model_ms)) as model,
        running_surreal(surreal_binary(), storage) as surreal,
        running_nats(nats_binary()) as nats,
    ):
        yield Place(home, model, surreal, nats, count(1))


def measure(sizes: Sizes, home: Path) -> Iterator[Figure]:
    kinds = {
        "embedded": ("embedded", 1),
        "alone": ("shared", 1),
        "one": ("cluster", 1),
        "two": ("cluster", 2),
    }
    rounds: dict[str, list[Round]] = {name: [] for name in kinds}
    with place(home, sizes.model_ms) as here:
        for _ in range(sizes.rounds):
            for name, (kind, nodes) in kinds.items():
                rounds[name].append(here.measured(kind, nodes, sizes))
    at = f"{sizes.sessions} sessions, {sizes.model_ms:g} ms model"
    rates = {name: [one.rate for one in some] for name, some in rounds.items()}
    name = f"throughput, one gateway on SurrealDB, {at}"
    yield marked(
        _figure(name, "messages/s", rates["alone"], rates["embedded"], BASE), 150, at_least=True
    )
    name = f"throughput, one gateway in a cluster, {at}"
    yield _figure(name, "messages/s", rates["one"], rates["embedded"], BASE)
    name = f"throughput, two gateways, {at}"
    two = _figure(name, "messages/s", rates["two"], rates["one"], ONE)
    yield marked(two, 1.7, ratio=True, at_least=True)
    for name in ("alone", "one", "two"):
        yield from _of(name, rounds[name])


def _of(name: str, rounds: Sequence[Round]) -> Iterator[Figure]:
    yield _figure(f"round trip p50, {name}", "ms", [one.p50_ms for one in rounds])
    for who in rounds[0].cpu_ms:
        used = [one.cpu_ms[who] for one in rounds]
        yield _figure(f"CPU a message, {name}: {who}", "ms", used)
    yield _figure(f"cores in use, {name}", "cores", [one.cores for one in rounds])
    yield _figure(f"requests to the store a message, {name}", "", [one.requests for one in rounds])


def _figure(
    name: str, unit: str, found: Sequence[float], floor: Sequence[float] = (), base: str = "floor"
) -> Figure:
    middle = median(found)
    spread = (max(found) - min(found)) / middle if middle else None
    return Figure(name, unit, middle, median(floor) if floor else None, base=base, spread=spread)


if __name__ == "__main__":
    run(__doc__, BASE, lambda quick, home: measure(QUICK if quick else Sizes(), home))
