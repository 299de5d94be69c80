"""GET /metrics: what was spent and what is running, in the text format of Prometheus.

Written by hand: the format is a few lines. With the official client an observation costs five times as much, and a
scrape ten times.
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
from gateway.web.operating import DEAD, WAITING, held

FORMAT = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, object]
Sample = tuple[Labels, float]
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


@dataclass(frozen=True, slots=True)
class Metrics:
    front: Front
    refusals: Mapping[str, int]  # by scope
    budgets: Callable[[], Awaitable[Sequence[BudgetRow]]]  # rows as in budget.status
    ready: Callable[[], Sequence[str]]  # as it was found last
    version: str
    channels: "ChannelFigures"
    mcp: McpServers
    figures: Figures
    connections: Callable[[], int]
    dropped: Callable[[], Mapping[str, int]]  # what was lost of logs and traces, by its metric
    measure: Callable[[], Awaitable[None]]  # what is looked up for a scrape

    def routes(self) -> Sequence[Described]:
        return (Described(METRICS, self.told),)

    async def told(self, request: Request) -> Response:
        principal = principal_of(request)
        if not has_scope(principal, "metrics") or principal.agents is not None:
            raise Forbidden("metrics need the scope 'metrics', for all agents")
        return Response(await self.text(), headers={"content-type": FORMAT})

    async def text(self) -> str:
        intake, stored = self.front.intake, list[str]()
        await self.measure()
        with suppress(StoreUnavailable):  # a scrape says that it is away
            stored = await self._stored()
        version = [({"version": self.version}, 1)]
        refusals = [({"scope": scope}, count) for scope, count in sorted(self.refusals.items())]
        families = (
            _family("info", "gauge", "Version of the gateway", version),
            _family("build_info", "gauge", "The same under its usual name", version),
            _family(
                "ready", "gauge", "1 if the gateway accepts work", [({}, int(not self.ready()))]
            ),
            _family(
                "messages_pending",
                "gauge",
                "Accepted messages without an answer",
                [({}, intake.pending)],
            ),
            _family("runs_working", "gauge", "Running turns", [({}, intake.lanes.working)]),
            _family("connections", "gauge", "Open WebSockets", [({}, self.connections())]),
            *map(_counted, self.figures.families()),
            _family(
                "budget_refusals_total",
                "counter",
                "Requests refused because a budget is spent",
                refusals,
            ),
            *self.channels.traffic(),
            *stored,
            *_mcp_figures(self.mcp),
            *(
                _family(name, "counter", DROPPED[name], [({}, count)])
                for name, count in self.dropped().items()
            ),
            _family(
                "metrics_series_dropped_total",
                "counter",
                "Observations of more series than are kept",
                [({}, self.figures.quota.dropped)],
            ),
        )
        return "".join(families)

    async def _stored(self) -> list[str]:
        """Raises StoreUnavailable."""
        rows, count = await self.budgets(), await self.front.sessions.count_sessions()
        return [
            _family("sessions", "gauge", "Stored sessions", [({}, count)]),
            *(_family(f"budget_{name}", "gauge", said, _of(rows, name)) for name, said in BUDGET),
            *await self.channels.deliveries(),
        ]


@dataclass(frozen=True, slots=True)
class ChannelFigures:
    """The counts are since the start, by channel and another word."""

    statuses: Callable[[], Sequence[ChannelStatus]]
    letters: Outbox
    taken: Mapping[tuple[str, str], int]  # by what became of a message
    ignored: Mapping[tuple[str, str], int]  # by why
    delivered: Mapping[tuple[str, str], int]  # by what became of an attempt

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
        return (
            _family("channel_up", "gauge", "1 if the channel works in this direction", ups),
            _family(
                "channel_messages_total", "counter", "Messages received", _by(self.taken, "outcome")
            ),
            _family(
                "channel_refused_total",
                "counter",
                "Messages refused or ignored",
                _by(refused, "why"),
            ),
        )

    async def deliveries(self) -> Sequence[str]:
        tally = await self.letters.tally()
        waiting, dead = (
            [
                ({"channel": channel}, count)
                for channel, count in sorted(held(tally, states).items())
            ]
            for states in (WAITING, DEAD)
        )
        pending: list[Sample] = [({}, sum(count for _, count in waiting))]
        ended = _by(self.delivered, "state")
        return (
            _family("deliveries_total", "counter", "Delivery attempts by outcome", ended),
            _family("deliveries_waiting", "gauge", "Deliveries not sent yet", waiting),
            _family("outbox_pending", "gauge", "Deliveries not sent yet, of all channels", pending),
            _family("dead_letters", "gauge", "Dead letters", dead),
        )


def _mcp_figures(mcp: McpServers) -> Sequence[str]:
    ups = [({"server": one.name}, int(one.state == "connected")) for one in mcp.statuses()]
    calls = _by(mcp.outcomes(), "outcome", "server")
    return (
        _family("mcp_up", "gauge", "1 if the MCP server is connected", ups),
        _family("mcp_calls_total", "counter", "Tool calls of the MCP server by outcome", calls),
    )


BUDGET = (
    ("limit", "Limit of the budget, if one is set"),
    ("used", "Used in the current period"),
    ("reserved", "Reserved for running calls"),
)


def _by(counts: Mapping[tuple[str, str], int], label: str, of: str = "channel") -> Iterable[Sample]:
    for (name, value), count in sorted(counts.items()):
        yield {of: name, label: value}, count


def _of(rows: Sequence[BudgetRow], name: str) -> Iterable[Sample]:
    for row in rows:
        value = getattr(row, name)
        if value is not None:
            yield {"scope": row.scope, "unit": row.unit}, value


DROPPED = {
    "log_records_dropped_total": "Log records that nobody could write in time",
    "trace_spans_dropped_total": "Spans that did not reach the collector",
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


def _family(name: str, kind: str, said: str, samples: Iterable[Sample]) -> str:
    name = f"exogate_{name}"
    lines = [f"{name}{_shown(labels)} {value}\n" for labels, value in samples]
    return "".join([f"# HELP {name} {said}\n# TYPE {name} {kind}\n", *lines])


def _shown(labels: Labels) -> str:
    pairs = [f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""
