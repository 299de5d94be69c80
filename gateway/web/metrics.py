"""GET /metrics: what was spent and what is running, in the text format of Prometheus.

Written by hand: the format is a few lines, lifetime counts is in the ledger already, and
the official client would keep counters of its own that start at 0 with every start.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.errors import Forbidden
from gateway.api.http import METRICS
from gateway.api.operating import BudgetRow
from gateway.domain.budgets import NANO
from gateway.domain.channels import DIRECTIONS, ChannelStatus
from gateway.domain.mcp import Foreign
from gateway.domain.ports import Ledger, Outbox
from gateway.sessions.intake import Front
from gateway.web.asgi import Described, principal_of
from gateway.web.identity import may
from gateway.web.operating import DEAD, WAITING, held

FORMAT = "text/plain; version=0.0.4; charset=utf-8"
MOST_MODELS = 200  # users may choose models: their names must not make series without end

Labels = Mapping[str, object]
Sample = tuple[Labels, float]
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


@dataclass(frozen=True, slots=True)
class Metrics:
    front: Front
    spending: Ledger
    refusals: Mapping[str, int]  # by scope
    budgets: Callable[[], Awaitable[Sequence[BudgetRow]]]  # rows as in budget.status
    ready: Callable[[], Sequence[str]]  # as it was found last
    version: str
    channels: "ChannelFigures"
    mcp: Foreign

    def routes(self) -> Sequence[Described]:
        return (Described(METRICS, self.told),)

    async def told(self, request: Request) -> Response:
        principal = principal_of(request)
        if not may(principal, "metrics") or principal.agents is not None:
            raise Forbidden("metrics need the scope 'metrics', for all agents")
        return Response(await self.text(), headers={"content-type": FORMAT})

    async def text(self) -> str:
        front, intake = self.front, self.front.intake
        models = await self.spending.models(MOST_MODELS)
        rows = await self.budgets()
        names = [{"provider": one.provider, "model": one.model} for one in models]
        calls = zip(names, (one.calls for one in models), strict=True)
        costs = zip(names, (one.nano_usd / NANO for one in models), strict=True)
        tokens = [
            ({**name, "kind": kind}, amount)
            for name, one in zip(names, models, strict=True)
            for kind, amount in (("input", one.input_tokens), ("output", one.output_tokens))
        ]
        refusals = [({"scope": scope}, count) for scope, count in sorted(self.refusals.items())]
        families = (
            _family("info", "gauge", "Version of the gateway", [({"version": self.version}, 1)]),
            _family(
                "ready", "gauge", "1 if the gateway accepts work", [({}, int(not self.ready()))]
            ),
            _family(
                "sessions",
                "gauge",
                "Stored sessions",
                [({}, await front.sessions.count_sessions())],
            ),
            _family(
                "messages_pending",
                "gauge",
                "Accepted messages without an answer",
                [({}, intake.pending)],
            ),
            _family("runs_working", "gauge", "Running turns", [({}, intake.lanes.working)]),
            _family("model_calls_total", "counter", "Model calls", calls),
            _family(
                "model_tokens_total", "counter", "Tokens of model calls, input and output", tokens
            ),
            _family(
                "model_cost_usd_total", "counter", "Cost of model calls with a known price", costs
            ),
            *(_family(f"budget_{name}", "gauge", said, _of(rows, name)) for name, said in BUDGET),
            _family(
                "budget_refusals_total",
                "counter",
                "Requests refused because a budget is spent",
                refusals,
            ),
            *self.channels.traffic(),
            *await self.channels.deliveries(),
            *_mcp_figures(self.mcp),
        )
        return "".join(families)


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
        ended = _by(self.delivered, "state")
        return (
            _family("deliveries_total", "counter", "Delivery attempts by outcome", ended),
            _family("deliveries_waiting", "gauge", "Deliveries not sent yet", waiting),
            _family("dead_letters", "gauge", "Dead letters", dead),
        )


def _mcp_figures(mcp: Foreign) -> Sequence[str]:
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


def _family(name: str, kind: str, said: str, samples: Iterable[Sample]) -> str:
    name = f"exogate_{name}"
    lines = [f"{name}{_shown(labels)} {value}\n" for labels, value in samples]
    return "".join([f"# HELP {name} {said}\n# TYPE {name} {kind}\n", *lines])


def _shown(labels: Labels) -> str:
    pairs = [f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""
