"""GET /metrics: spending and activity in the text format of Prometheus.

The format is written by hand, as it is a few lines. With the official client an observation costs five times as much,
and a scrape ten times.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.errors import Forbidden
from gateway.api.http import METRICS
from gateway.api.spending import BudgetRow
from gateway.domain.channels import DIRECTIONS, ChannelStatus
from gateway.domain.errors import StoreUnavailable
from gateway.domain.figures import Figures, Histogram, Series
from gateway.domain.mcp import McpServers
from gateway.domain.ports import Outbox
from gateway.sessions.intake import Front
from gateway.web.asgi import Described, principal_of
from gateway.web.identity import has_scope
from gateway.web.operating import DEAD, WAITING, count_deliveries

FORMAT = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, object]
Sample = tuple[Labels, float]
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


@dataclass(frozen=True, slots=True)
class Metrics:
    front: Front
    refusals: Mapping[str, int]  # by scope
    budgets: Callable[[], Awaitable[Sequence[BudgetRow]]]  # rows of budget.status
    ready: Callable[[], Sequence[str]]  # reasons found by the latest probe
    version: str
    channels: "ChannelFigures"
    mcp: McpServers
    figures: Figures
    connections: Callable[[], int]
    dropped: Callable[[], Mapping[str, int]]  # lost log records and spans, by metric
    measure: Callable[[], Awaitable[None]]  # updates the figures that are read for a scrape

    def routes(self) -> Sequence[Described]:
        return (Described(METRICS, self.answer),)

    async def answer(self, request: Request) -> Response:
        principal = principal_of(request)
        if not has_scope(principal, "metrics") or principal.agents is not None:
            raise Forbidden("metrics need the scope 'metrics' and a token for all agents")
        return Response(await self.text(), headers={"content-type": FORMAT})

    async def text(self) -> str:
        intake, stored = self.front.intake, list[str]()
        await self.measure()
        with suppress(StoreUnavailable):  # `ready` shows that the store is away
            stored = await self._stored()
        version = [({"version": self.version}, 1)]
        refusals = [({"scope": scope}, count) for scope, count in sorted(self.refusals.items())]
        dropped = {**self.dropped(), "metrics_series_dropped_total": self.figures.quota.dropped}
        families = (
            _family("info", "gauge", "Version of the gateway", version),
            _family("build_info", "gauge", "Version of the gateway", version),
            _one("ready", "gauge", "1 if the gateway accepts work", int(not self.ready())),
            _one(
                "messages_pending", "gauge", "Accepted messages without an answer", intake.pending
            ),
            _one("runs_working", "gauge", "Running turns", intake.lanes.working),
            _one("connections", "gauge", "Open WebSockets", self.connections()),
            *map(_counted, self.figures.families()),
            _family("budget_refusals_total", "counter", REFUSED_BY_BUDGET, refusals),
            *self.channels.traffic(),
            *stored,
            *_mcp_figures(self.mcp),
            *(_one(name, "counter", DROPPED[name], count) for name, count in dropped.items()),
        )
        return "".join(families)

    async def _stored(self) -> list[str]:
        """Raises StoreUnavailable."""
        rows, count = await self.budgets(), await self.front.sessions.count_sessions()
        return [
            _family("sessions", "gauge", "Stored sessions", [({}, count)]),
            *(
                _family(f"budget_{name}", "gauge", help_text, _of(rows, name))
                for name, help_text in BUDGET
            ),
            *await self.channels.deliveries(),
        ]


@dataclass(frozen=True, slots=True)
class ChannelFigures:
    """The figures of channels: counts since the start, by channel and outcome or reason."""

    statuses: Callable[[], Sequence[ChannelStatus]]
    letters: Outbox
    taken: Mapping[tuple[str, str], int]  # received messages by outcome
    ignored: Mapping[tuple[str, str], int]  # by reason
    delivered: Mapping[tuple[str, str], int]  # delivery attempts by outcome

    def traffic(self) -> Sequence[str]:
        statuses = self.statuses()
        ups = [
            ({"channel": one.name, "direction": direction}, int(one.is_up(direction)))
            for one in statuses
            for direction in DIRECTIONS
        ]
        refused = Counter(self.ignored)
        for one in statuses:
            refused.update({(one.name, why): count for why, count in one.refused.items()})
        received, ignored = _by(self.taken, "outcome"), _by(refused, "why")
        return (
            _family("channel_up", "gauge", "1 if the channel works in this direction", ups),
            _family("channel_messages_total", "counter", "Messages received", received),
            _family("channel_refused_total", "counter", "Messages refused or ignored", ignored),
        )

    async def deliveries(self) -> Sequence[str]:
        tally = await self.letters.tally()
        waiting, dead = count_deliveries(tally, WAITING), count_deliveries(tally, DEAD)
        all_waiting, ended = waiting.total(), _by(self.delivered, "state")
        return (
            _family("deliveries_total", "counter", "Delivery attempts by outcome", ended),
            _family("deliveries_waiting", "gauge", NOT_SENT, _by_channel(waiting)),
            _one("outbox_pending", "gauge", f"{NOT_SENT}, of all channels", all_waiting),
            _family("dead_letters", "gauge", "Dead letters", _by_channel(dead)),
        )


def _mcp_figures(mcp: McpServers) -> Sequence[str]:
    ups = [({"server": one.name}, int(one.state == "connected")) for one in mcp.statuses()]
    calls = _by(mcp.outcomes(), "outcome", "server")
    return (
        _family("mcp_up", "gauge", "1 if the MCP server is connected", ups),
        _family("mcp_calls_total", "counter", "Tool calls of the MCP server by outcome", calls),
    )


NOT_SENT = "Deliveries not sent yet"
REFUSED_BY_BUDGET = "Requests refused because a budget is spent"
BUDGET = (
    ("limit", "Limit of the budget, if one is set"),
    ("used", "Used in the current period"),
    ("reserved", "Reserved for running calls"),
)


def _by_channel(counts: Mapping[str, int]) -> Sequence[Sample]:
    return [({"channel": channel}, count) for channel, count in sorted(counts.items())]


def _by(counts: Mapping[tuple[str, str], int], label: str, of: str = "channel") -> Iterable[Sample]:
    for (name, value), count in sorted(counts.items()):
        yield {of: name, label: value}, count


def _of(rows: Sequence[BudgetRow], name: str) -> Iterable[Sample]:
    for row in rows:
        value = getattr(row, name)
        if value is not None:
            yield {"scope": row.scope, "unit": row.unit}, value


DROPPED = {
    "log_records_dropped_total": "Log records dropped because the queue was full",
    "trace_spans_dropped_total": "Spans that did not reach the collector",
    "metrics_series_dropped_total": "Observations dropped because too many series exist",
}


def _counted(one: Series | Histogram) -> str:
    if isinstance(one, Series):
        samples = ((dict(zip(one.labels, key, strict=True)), n) for key, n in one.values.items())
        return _family(one.name, one.kind, one.help, samples)
    name = f"exogate_{one.name}"
    lines = [f"# HELP {name} {one.help}\n# TYPE {name} histogram\n"]
    for key, row in tuple(one.rows.items()):
        labels = dict(zip(one.labels, key, strict=True))
        count = 0
        for bound, more in zip((*one.bounds, "+Inf"), row[:-1], strict=True):
            count += int(more)
            lines.append(f"{name}_bucket{_shown({**labels, 'le': bound})} {count}\n")
        lines.append(
            f"{name}_sum{_shown(labels)} {row[-1]}\n{name}_count{_shown(labels)} {count}\n"
        )
    return "".join(lines)


def _one(name: str, kind: str, help_text: str, value: float) -> str:
    return _family(name, kind, help_text, [({}, value)])


def _family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> str:
    name = f"exogate_{name}"
    lines = [f"{name}{_shown(labels)} {value}\n" for labels, value in samples]
    return "".join([f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n", *lines])


def _shown(labels: Labels) -> str:
    pairs = [f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""
