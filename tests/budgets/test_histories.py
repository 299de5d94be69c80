"""Whatever calls do at once, and whatever happens to clock, ledger and process: no limit is passed,
nothing is negative, and nothing stays held for ever."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.budgets import LiveBudgets, Meter, prompt_tokens
from gateway.domain.budgets import (
    Amount,
    BudgetExceeded,
    Budgets,
    Limit,
    Payer,
    RecordQuery,
    day_of,
    scopes_of,
)
from gateway.domain.errors import ModelFailed, NeverSent
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.messages import Message, Usage
from gateway.domain.model import ModelReply, ModelRequest, OnDelta, TextDelta
from gateway.domain.ports import Stores
from tests.fakes.clock import CountingIds, FakeClock
from tests.fakes.ledger import AwayLedger, FixedPrices
from tests.fakes.model import say
from tests.fakes.store import Mortal, open_mortal
from tests.forms import examples

PRICE = 3  # billionths of a dollar for a token
LIMITS = Budgets(
    session=Limit(1_600),
    daily=Limit(2_600, nano_usd=PRICE * 2_500),
    monthly=Limit(4_000),
    per_agent=Limit(2_200),
    agents={"b": Limit(nano_usd=PRICE * 2_000)},
)
TODAY = day_of(FakeClock().now())
KEYS = [SessionKey(AgentId(agent), "c", "acc", peer) for agent in "ab" for peer in "pq"]
AWAY = {"reserve", "settle"}
HEARD = "four token word "  # what is heard of a reply that breaks, well below any grant


@dataclass
class Open:
    """A call that a provider is at, or that waits for its reservation. `share` is how much of the
    longest reply is said."""

    request: ModelRequest
    share: float
    note_held: Callable[[], Awaitable[None]]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    end: str = ""
    has_end: anyio.Event = field(default_factory=anyio.Event)

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """A provider that answers when it is told to, perhaps at once."""
        await self.note_held()
        await self.has_end.wait()
        if self.end == "never sent":
            raise NeverSent("p", "network", "no connection")
        if self.end == "refused":
            raise ModelFailed("p", "server", "no", status=503)
        say(request, on_delta, TextDelta(HEARD))
        if self.end == "broken":
            raise ModelFailed("p", "truncated", "gone", started=True)
        usage = Usage(prompt_tokens(request), int(request.max_tokens * self.share))
        return ModelReply("p", "m", HEARD, usage=usage)


@dataclass
class World:
    """Processes that come and go over one store. No prompt is longer than it was thought to be: by
    what one is, a limit is passed."""

    mortal: Mortal
    group: TaskGroup
    share: float
    clock: FakeClock = field(default_factory=FakeClock)
    ids: CountingIds = field(default_factory=CountingIds)
    open: list[Open] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)  # reservations
    latest: str = ""  # the day that the newest of them is charged to
    most_held: Counter[SessionKey] = field(default_factory=Counter)  # at once, of each session
    stores: Stores = field(init=False)
    refusals: list[BudgetExceeded] = field(default_factory=list)
    ledger: AwayLedger = field(init=False)
    meter: Meter = field(init=False)

    async def start(self, stores: Stores) -> None:
        self.stores = stores
        self.ledger = AwayLedger(self.stores.ledger)
        prices, audit = FixedPrices(PRICE), self.stores.audit
        self.meter = Meter(self.ledger, LiveBudgets(LIMITS), prices, self.clock, self.ids, audit)
        await self.meter.settle_lost()

    async def crash(self) -> None:
        """Charges at least what calls held, and at most twice what sessions ever held at once."""
        held = await self.held()
        stores = await self.mortal.die()
        for call in self.open:
            call.scope.cancel()
        self.open.clear()
        await settled()
        lost, self.stores = await stores.ledger.unsettled(), stores
        charged = await self.held()
        assert all(held[key] <= charged[key] <= 2 * self.most_held[key] for key in KEYS), lost
        self.most_held.clear()
        await self.start(stores)

    async def held(self) -> Counter[SessionKey]:
        """Tokens, by session."""
        held = Counter[SessionKey]()
        for one in await self.stores.ledger.unsettled():
            held[one.payer.session_key] += one.held.tokens
        return held

    async def note_held(self) -> None:
        self.most_held |= await self.held()

    async def ask(self, key: SessionKey, size: int) -> None:
        call = Open(
            ModelRequest(
                *("p", "m", ""),
                (Message("user", "x" * size),),
                max_tokens=600,
                payer=Payer(key, RunId("r")),
            ),
            self.share,
            self.note_held,
        )
        self.open.append(call)
        self.group.start_soon(self._asking, call)
        await settled()

    async def _asking(self, call: Open) -> None:
        with call.scope, suppress(ModelFailed):
            try:
                await self.meter.around(call).reply(call.request, lambda _: None)
            except BudgetExceeded as refusal:
                self.refusals.append(refusal)
        if call in self.open:
            self.open.remove(call)

    async def take(self, step: str, which: int, size: int) -> None:
        if step == "ask":
            await self.ask(KEYS[which % 4], size)
        elif step == "crash":
            await self.crash()
        elif step == "away":
            self.ledger.away = AWAY - self.ledger.away
        elif step in {"forward", "back"}:
            days = size if step == "forward" else -size
            self.clock.set_wall(self.clock.now() + timedelta(days=days % 40, hours=days))
        elif self.open:
            call = self.open[which % len(self.open)]
            if step == "cancel":
                call.scope.cancel()
            call.end = step
            call.has_end.set()
            await settled()

    async def finish(self) -> None:
        """The store is there again, and what is open comes to its end."""
        self.ledger.away = set()
        for _ in range(len(self.open)):  # the more end, the fewer wait
            for which in range(len(self.open)):
                await self.take("answered", which, 0)
        assert not self.open
        await self.ask(KEYS[0], 1)  # before it, what waits is written
        await self.take("never sent", 0, 0)

    async def check(self) -> None:
        """The invariants."""
        records = (await self.stores.ledger.records(RecordQuery(limit=1_000))).records
        held = await self.stores.ledger.unsettled()
        await self.note_held()
        assert not any(one.waits_for for one in self.refusals), "refused for what is only reserved"
        assert held or self.ledger.away or not self.meter.queue.places, "it waits for nothing"
        for one in held:
            if one.id not in self.seen:
                assert one.day >= self.latest
                self.seen.add(one.id)
                self.latest = one.day
        scopes = {scope for key in KEYS for scope in scopes_of(key, self.latest or TODAY)}
        for tally in await self.stores.ledger.tallies(sorted(scopes, key=str)):
            mine = [one for one in held if tally.scope in scopes_of(one.payer.session_key, one.day)]
            assert tally.held == added([one.held for one in mine])
            assert min(*pair(tally.used), *pair(tally.held)) >= 0
            limit = LIMITS.limit(tally.scope)
            spoken_for = added([tally.used, tally.held])
            assert limit.tokens is None or spoken_for.tokens <= limit.tokens
            assert limit.nano_usd is None or spoken_for.nano_usd <= limit.nano_usd
            if tally.scope.kind in {"session", "agent"}:
                whose = [
                    one.amount for one in records if tally.scope in scopes_of(one.session_key, "")
                ]
                assert tally.used == added(whose)


async def settled() -> None:
    """Long enough for whatever can go on in memory; `wait_all_tasks_blocked` would sleep."""
    for _ in range(30):
        await checkpoint()


def pair(amount: Amount) -> tuple[int, int]:
    return amount.tokens, amount.nano_usd


def added(amounts: Sequence[Amount]) -> Amount:
    return Amount(sum(one.tokens for one in amounts), sum(one.nano_usd for one in amounts))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["ask"] * 5,
                *["answered"] * 3,
                *("broken", "refused", "never sent", "cancel"),
                *("crash", "away", "forward", "back"),
            ]
        ),
        st.integers(0, 7),
        st.integers(1, 900),
    ),
    min_size=10,
    max_size=60,
)


# A call that is granted out of the queue and answered within one step.
ANSWERED_AT_ONCE = [
    *(("ask", 0, 1), ("crash", 0, 1)),
    *[("ask", which, 1) for which in (0, 0, 0, 1)],
    *[("answered", which, 1) for which in (0, 0, 1, 0)],
    ("crash", 0, 1),
]


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.floats(0, 1))
@example(ANSWERED_AT_ONCE, 0.0)
def test_no_history_passes_a_limit_or_leaves_anything_held(
    steps: list[tuple[str, int, int]], share: float
) -> None:
    async def history() -> None:
        async with open_mortal() as mortal, anyio.create_task_group() as group:
            world = World(mortal, group, share)
            await world.start(await mortal.begin())
            for step in steps:
                await world.take(*step)
                await world.check()
            await world.finish()
            await world.check()

            assert list(await world.stores.ledger.unsettled()) == []

    anyio.run(history)
