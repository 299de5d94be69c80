"""The gateway's metrics: counters, gauges and histograms, and the reports of runs.

The metrics are written by hand, because an observation must take only a quarter of a microsecond.
Each series has one writer: the event loop, or the thread that commits.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from gateway.domain.ids import RunId, SessionKey, TraceContext, trace_below
from gateway.domain.messages import ToolResult, Usage
from gateway.domain.model import ModelReply, ModelRequest
from gateway.domain.ports import Clock

MOST_SERIES = 5_000
MOST_NAMES = 200  # users choose models, whose names must not create series without bound
OTHER = "other"

Key = tuple[str, ...]  # the values of the labels, in their order


class Bound(Protocol):
    """The context of log lines, such as a run, until it has ended."""

    ended: bool

    def bound(self) -> Mapping[str, object]:
        """Returns the fields that each of these lines has."""
        ...


# Yields a weak reference, because tasks that a run starts may outlive it.
BOUND: ContextVar[Callable[[], Bound | None]] = ContextVar("BOUND", default=lambda: None)


@dataclass(slots=True)
class SeriesQuota:
    """The number of series that may still be created, and the number of observations dropped for
    lack of one."""

    left: int = MOST_SERIES
    dropped: int = 0

    def reserve(self, count: int = 1) -> bool:
        if self.left < count:
            self.dropped += 1
            return False
        self.left -= count
        return True


@dataclass(slots=True)
class LabelValues:
    """The values of a label that users choose: the first `most` ones, then `other`."""

    most: int = MOST_NAMES
    known: set[str] = field(default_factory=set)

    def of(self, name: str) -> str:
        if name in self.known:
            return name
        if len(self.known) >= self.most:
            return OTHER
        self.known.add(name)
        return name


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers under one name, one for each combination of labels."""

    name: str
    help: str
    labels: Sequence[str]
    quota: SeriesQuota
    kind: str = "counter"
    values: dict[Key, float] = field(default_factory=dict)

    def add(self, key: Key, amount: float = 1) -> None:
        if key in self.values or self.quota.reserve():
            self.values[key] = self.values.get(key, 0) + amount

    def set(self, key: Key, value: float) -> None:
        if key in self.values or self.quota.reserve():
            self.values[key] = value

    def begin(self, keys: Iterable[Key]) -> None:
        """Starts combinations at 0, because the first value of a new series is no increase to a
        reader."""
        for key in keys:
            self.add(key, 0)


@dataclass(frozen=True, slots=True)
class Histogram:
    """The distribution of observations. A row holds a count for each bucket, a count beyond the
    last, and the sum."""

    name: str
    help: str
    labels: Sequence[str]
    quota: SeriesQuota
    bounds: tuple[float, ...]
    kind: str = "histogram"
    rows: dict[Key, list[float]] = field(default_factory=dict)

    def observe(self, key: Key, value: float) -> None:
        row = self.rows.get(key)
        if row is None:
            if not self.quota.reserve(len(self.bounds) + 3):
                return
            row = self.rows[key] = [0] * (len(self.bounds) + 2)
        row[bisect_left(self.bounds, value)] += 1
        row[-1] += value


# Bounds of buckets in seconds. MODEL_S are OpenTelemetry's.
RUN_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 600)
QUEUE_S = (0.001, 0.005, 0.025, 0.1, 0.5, 2, 10, 60)
MODEL_S = tuple(0.01 * 2**step for step in range(14))
TOOL_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 10, 30)
COMMIT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
COMMIT_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
LOOKS = 4  # measurements of the event loop in each second
DELAY_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1)


class FigureSet:
    """Series that are declared together."""

    def __init__(self, quota: SeriesQuota) -> None:
        self.quota = quota

    def families(self) -> Sequence[Series | Histogram]:
        """Returns the series in the order of declaration, without gauges that were never set."""
        known = [one for one in vars(self).values() if isinstance(one, Series | Histogram)]
        return [
            one for one in known if isinstance(one, Histogram) or one.values or one.kind != "gauge"
        ]

    def _counter(self, name: str, text: str, labels: str = "") -> Series:
        return Series(name, text, labels.split(), self.quota)

    def _gauge(self, name: str, text: str) -> Series:
        return Series(name, text, (), self.quota, "gauge")

    def _seconds(self, name: str, text: str, labels: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(f"{name}_seconds", text, labels.split(), self.quota, bounds)


REQUEST_OUTCOMES = ("answered", "conflict", "refused", "unavailable", "unknown")
LEASE_CHANGES = ("taken", "given_back", "lost")


class SharedFigures(FigureSet):
    """Metrics of a store on a server, and of gateways that share it."""

    def __init__(self, quota: SeriesQuota | None = None) -> None:
        super().__init__(quota or SeriesQuota())
        counter, gauge, seconds = self._counter, self._gauge, self._seconds
        self.requests = counter("store_requests_total", "Requests to the store", "outcome")
        self.request_s = seconds("store_request_duration", "Requests to the store", "", COMMIT_S)
        self.conflicts = counter("store_conflicts_total", "Commits repeated after a conflict")
        self.nodes = gauge("cluster_nodes", "Gateways that share the store")
        self.leases = gauge("cluster_leases", "Partitions that this gateway owns")
        self.lease_changes = counter("cluster_lease_changes_total", "Changes of leases", "change")
        self.fenced = counter("cluster_fenced_total", "Writes refused by a fence")
        self.turns_lost = counter("cluster_turns_lost_total", "Turns lost to another gateway")
        self.lag = gauge("cluster_lag_seconds", "Age of the oldest waiting message of all gateways")
        self.follow_s = seconds(
            "cluster_follow_delay",
            "Accept to first remote chunk",
            "",
            QUEUE_S,
        )
        self.hints = counter("cluster_hints_total", "Hints between gateways", "outcome")

    def request(self, outcome: str, seconds: float) -> None:
        self.requests.add((outcome,))
        self.request_s.observe((), seconds)


class Figures(FigureSet):
    """All metrics that are counted in memory since the start."""

    shared: SharedFigures | None = None

    def __init__(self) -> None:
        super().__init__(SeriesQuota())
        counter, gauge, seconds = self._counter, self._gauge, self._seconds
        self.models, self.channels, self.tools = LabelValues(), LabelValues(), LabelValues()
        self.runs = counter("runs_total", "Runs that have ended", "agent channel reason")
        self.run_s = seconds("run_duration", "From the accept to the end", "agent", RUN_S)
        self.queue_s = seconds("queue_wait", "From the accept to the start", "", QUEUE_S)
        self.model_calls = counter(
            "model_calls_total", "Requests to providers", "provider model outcome"
        )
        self.model_s = seconds(
            "model_call_duration", "Requests to providers", "provider model", MODEL_S
        )
        self.first_token_s = seconds(
            "model_first_token", "Time to the first delta", "provider model", MODEL_S
        )
        self.model_tokens = counter(
            "model_tokens_total", "Tokens of model calls", "agent provider model kind"
        )
        self.model_cost = counter(
            "model_cost_usd_total", "Cost of model calls with a known price", "agent provider model"
        )
        self.tool_calls = counter("tool_calls_total", "Calls of tools", "tool outcome")
        self.tool_s = seconds("tool_duration", "Calls of tools", "tool", TOOL_S)
        self.commit_s = seconds("store_commit_duration", "Commits of the store", "", COMMIT_S)
        self.commit_sizes = Histogram(
            "store_commit_operations", "Operations in a commit", (), self.quota, COMMIT_SIZES
        )
        self.loop_delay_s = seconds("event_loop_delay", "Longest delay in each second", "", DELAY_S)
        self.generations = gauge("generations", "Configurations in use, old ones included")
        self.reload_successful = gauge(
            "config_last_reload_successful", "0 if the last reload failed"
        )
        self.reload_timestamp = gauge(
            "config_last_reload_success_timestamp_seconds", "Time of last successful reload"
        )
        self.backup_timestamp = gauge(
            "backup_last_success_timestamp_seconds", "Time of last backup"
        )

    def families(self) -> Sequence[Series | Histogram]:
        shared = self.shared.families() if self.shared else ()
        return [*super().families(), *shared]

    def share(self, *, cluster: bool) -> SharedFigures:
        """Adds the metrics of a store on a server."""
        self.shared = shared = SharedFigures(self.quota)
        shared.requests.begin((one,) for one in REQUEST_OUTCOMES)
        shared.conflicts.begin([()])
        if cluster:
            shared.lease_changes.begin((one,) for one in LEASE_CHANGES)
            shared.fenced.begin([()])
            shared.turns_lost.begin([()])
        return shared

    def commit(self, seconds: float, operations: int) -> None:
        self.commit_s.observe((), seconds)
        self.commit_sizes.observe((), operations)


async def watch_loop(figures: Figures, clock: Clock) -> None:
    """Observes the longest delay of the event loop in each second."""
    while True:
        late = 0.0
        for _ in range(LOOKS):
            began = clock.monotonic()
            await clock.sleep(1 / LOOKS)
            late = max(late, clock.monotonic() - began - 1 / LOOKS)
        figures.loop_delay_s.observe((), late)


# -- a run


@dataclass(slots=True)
class CallTrace:
    """A call of a model or a tool within a run. `part` names the tool call that the subrun of this
    call serves, `inner` the subrun that serves this call. Times are of the monotonic clock."""

    kind: Literal["model", "tool"]
    name: str
    began: float
    part: str = ""
    provider: str = ""  # of a model call
    id: str = ""  # of a tool call
    inner: str = ""
    ended: float | None = None  # None: the call was interrupted
    first: float | None = None  # time of the first delta
    outcome: str = "cancelled"
    request: ModelRequest | None = None
    reply: ModelReply | None = None
    arguments: str = ""
    result: ToolResult | None = None


@dataclass(frozen=True, slots=True)
class RunTrace:
    """A run that has ended: its calls, its result and its times."""

    run_id: RunId
    session_key: SessionKey
    person: str
    reason: str  # of an error: its type
    usage: Usage
    iterations: int
    calls: Sequence[CallTrace]
    opened: float
    began: float
    ended: float
    ended_at: datetime
    store_s: float
    trace: TraceContext | None = None


@dataclass(slots=True)
class RunReports:
    """Counts, logs and traces each run when it has ended."""

    figures: Figures
    log: Callable[[str, Mapping[str, object]], None]
    trace: Callable[[RunTrace], None] | None = None
    spans_dropped: int = 0

    def begin(self, traceparent: str | None) -> TraceContext | None:
        """Returns the run's place in a trace, if the run is traced."""
        return trace_below(traceparent) if traceparent or self.trace else None

    def report(self, run: RunTrace) -> None:
        figures, key, began = self.figures, run.session_key, run.began
        waited_s, whole_s = max(0.0, began - run.opened), run.ended - run.opened
        channel = figures.channels.of(key.channel)
        figures.runs.add((key.agent, channel, run.reason))
        figures.run_s.observe((key.agent,), whole_s)
        figures.queue_s.observe((), waited_s)
        busy = {"model": 0.0, "tool": 0.0}
        upto, tools = {"model": 0.0, "tool": 0.0}, 0
        for call in run.calls:
            kind, ended = call.kind, call.ended or run.ended
            if kind == "tool":
                name = figures.tools.of(call.name)
                figures.tool_calls.add((name, call.outcome))
                figures.tool_s.observe((name,), ended - call.began)
                tools += 1
            elif call.first is not None:
                label = (call.provider, figures.models.of(call.name))
                figures.first_token_s.observe(label, call.first - call.began)
            if not call.part and ended > upto[kind]:  # parallel calls count once
                busy[kind] += ended - max(call.began, upto[kind])
                upto[kind] = ended
        usage = run.usage
        facts = {
            "run": run.run_id,
            "session": str(key),
            "agent": key.agent,
            "channel": key.channel,
            "person": run.person,
            "reason": run.reason,
            "iterations": run.iterations,
            "tools": tools,
            "tokens": usage.total,
            "cost_usd": usage.cost_usd,
            "queue_ms": round(waited_s * 1000, 3),
            "model_ms": round(busy["model"] * 1000, 3),
            "tools_ms": round(busy["tool"] * 1000, 3),
            "store_ms": round(run.store_s * 1000, 3),
            "total_ms": round(whole_s * 1000, 3),
        }
        if run.trace is not None:
            facts |= {"trace_id": run.trace.trace_id, "span_id": run.trace.span_id}
        self.log("run_finished", facts)
        if self.trace is not None:
            self.trace(run)
