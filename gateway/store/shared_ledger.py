"""The ledger of a store that several nodes share: what all of them hold stands in the store.

Each call is held before it is made, and settled after it, in the counters of its scopes. Whatever of that
comes while a commit is under way goes into the next one, together, so that nodes seldom meet in a counter.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import anyio

from gateway.domain.budgets import (
    SCOPE_KINDS,
    BudgetExceeded,
    Decide,
    Due,
    Ended,
    Grant,
    Reservation,
    Resync,
    Scope,
    ScopeKind,
    Tally,
    TokenRecord,
    day_of,
    scopes_of,
)
from gateway.domain.errors import GatewayError, StoreUnavailable
from gateway.store.ledger import (
    LedgerBooks,
    counters_of,
    held_row,
    not_saved,
    record_call,
    release_held,
    resync_days,
    tallies_of,
    to_reservation,
)
from gateway.store.transaction import Transaction
from gateway.store.writer import Engine

LASTS_S = 1.0  # a call without a limit is written down if it lasts so long
REST_S = 2.0
PAUSES_S = (0.1, 0.2, 0.5, *[1.0] * 20)  # while the store is away
WITHIN_S = 20.0  # for all tries to hold a call
MOST_TOGETHER = 64  # steps of a commit
_KNOWN = 4096  # scopes


@dataclass(slots=True, eq=False)
class _Step:
    """A call is held, or ends. `decide` is None where no limit holds."""

    call: Reservation
    kinds: Collection[ScopeKind] = ()
    decide: Decide | None = None
    ended: Ended | None = None
    is_held: bool = True  # it was written down before
    is_again: bool = False  # the try before may have been carried out
    warned: Sequence[Tally] = ()
    failed: Callable[[Exception], None] = not_saved
    grant: Grant | None = None
    error: GatewayError | None = None
    is_done: anyio.Event = field(default_factory=anyio.Event)


Alive = Callable[[], Awaitable[Set[str]]]  # the nodes that share the store now


class SharedLedger(LedgerBooks):
    """Implements the port Ledger."""

    def __init__(
        self,
        engine: Engine,
        *,
        node: str,
        alive: Alive,
        within_s: float = WITHIN_S,
    ) -> None:
        super().__init__(engine)
        self._node, self._alive, self._within_s = node, alive, within_s
        self.latest = self._state.last_day
        self._steps: list[_Step] = []
        self._batch: list[_Step] = []  # that is being committed
        self._news, self._rest = anyio.Event(), anyio.Event()
        self._open: dict[str, Reservation] = {}
        self._bare: dict[str, asyncio.TimerHandle] = {}  # of calls that are not written down
        self._unheld: set[str] = set()  # perhaps not written down
        self._known: dict[Scope, Tally] = {}  # as a commit of ours left them

    # --- a call begins --------------------------------------------------------------------------
    def begin(self, wanted: Reservation) -> Reservation:
        call = self._opened(wanted)
        timer = asyncio.get_running_loop().call_later(LASTS_S, self._write_down, call)
        self._bare[call.id] = timer
        return call

    def _write_down(self, call: Reservation) -> None:
        if self._bare.pop(call.id, None) is not None:
            self._commit_soon(_Step(call, failed=partial(self._not_held, call)))

    def _not_held(self, call: Reservation, error: Exception) -> None:
        self._unheld.add(call.id)
        not_saved(error)

    async def reserve(
        self, wanted: Reservation, decide: Decide, kinds: Collection[ScopeKind] = SCOPE_KINDS
    ) -> tuple[Reservation, Grant]:
        step = _Step(self._opened(wanted), kinds, decide)
        try:
            step = await self._tried(step)
        except anyio.get_cancelled_exc_class():
            del self._open[step.call.id]
            self._release(step.call)
            raise
        if isinstance(step.error, BudgetExceeded):
            del self._open[step.call.id]
        if step.error is not None:
            raise step.error
        assert step.grant is not None
        call = self._open[step.call.id] = replace(step.call, held=step.grant.held)
        return call, step.grant

    def _release(self, call: Reservation) -> None:
        """It may have been held, and whoever wanted it is gone."""

        def again(_: Exception) -> None:
            asyncio.get_running_loop().call_later(PAUSES_S[-1], self._release, call)

        self._commit_soon(_Step(call, ended=call, failed=again))

    async def _tried(self, step: _Step) -> _Step:
        """The try that was carried out: others follow while the store is away, as with all that a turn writes.
        Raises StoreUnavailable."""
        error: GatewayError = StoreUnavailable(f"no answer within {self._within_s:g} s")
        with anyio.move_on_after(self._within_s):
            for pause_s in PAUSES_S:
                self._commit_soon(step)
                await step.is_done.wait()
                if not isinstance(step.error, StoreUnavailable):
                    return step
                error = step.error
                await anyio.sleep(pause_s)
                step = _Step(step.call, step.kinds, step.decide, is_again=True)
        raise error

    def _opened(self, wanted: Reservation) -> Reservation:
        self.latest = max(self.latest, wanted.day)
        call = self._open[wanted.id] = replace(wanted, day=self.latest)
        return call

    # --- a call ends ----------------------------------------------------------------------------
    def settle_soon(
        self, ended: Ended, failed: Callable[[Exception], None], due: Due | None = None
    ) -> Sequence[Tally]:
        call = self._open.pop(ended.id, None)
        if call is None:
            return ()
        if (timer := self._bare.pop(call.id, None)) is not None:
            timer.cancel()
        warned = self._count(call, ended, due)
        if isinstance(ended, TokenRecord) or timer is None:
            step = _Step(call, ended=ended, is_held=timer is None, warned=warned)
            step.failed = partial(self._not_written, step, failed)
            self._commit_soon(step)
        return warned

    def _count(self, call: Reservation, ended: Ended, due: Due | None) -> Sequence[Tally]:
        scopes = scopes_of(call.payer.session_key, call.day)
        known = [self._known[scope] for scope in scopes if scope in self._known]
        now = [
            replace(one, used=one.used + ended.amount, held=one.held - call.held) for one in known
        ]
        warned = self._to_warn_of(now, call.day, due) if due else []
        self._known |= {one.scope: one for one in now}
        for one in warned:
            self._known[one.scope] = replace(self._known[one.scope], warned=one.warned)
        return warned

    def _not_written(
        self, step: _Step, failed: Callable[[Exception], None], error: Exception
    ) -> None:
        self._open[step.call.id] = step.call
        if not step.is_held:
            self._unheld.add(step.call.id)
        failed(error)

    # --- commits --------------------------------------------------------------------------------
    def _commit_soon(self, step: _Step) -> None:
        self._steps.append(step)
        self._news.set()

    async def run(self) -> None:
        """Commits what there is, one commit after the other, until it is cancelled."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            while self._steps:
                await self._commit()
            self._rest.set()
            self._rest = anyio.Event()

    async def _commit(self) -> None:
        batch = self._batch = self._steps[:MOST_TOGETHER]
        del self._steps[:MOST_TOGETHER]
        await self._carry_out(batch)
        self._batch = []
        for step in batch:
            step.is_done.set()
        while len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]

    async def _carry_out(self, batch: Sequence[_Step]) -> None:
        """In one commit. If a step of it breaks a rule, each step is a commit, so that the others hold."""
        try:
            for step in batch:  # since it was given, the one before may have failed
                step.is_again = step.is_again or step.call.id in self._unheld
            raised = self._with_raises
            done = partial(_carry_out_all, batch=batch, node=self._node, raised=raised)
            self._known |= await self._writer.write(done, durable=False)
            self._unheld -= {step.call.id for step in batch if step.ended}
        except GatewayError as error:
            if len(batch) > 1 and not isinstance(error, StoreUnavailable):
                for step in batch:
                    await self._carry_out([step])
                return
            for step in batch:
                if step.decide is None:
                    step.failed(error)
                step.error = error

    async def caught_up(self) -> None:
        while self._steps or self._batch:
            await self._rest.wait()

    async def rest(self) -> None:
        """Before a stop in order: what has ended is settled as it came to."""
        with anyio.move_on_after(REST_S):
            await self.caught_up()

    def close(self) -> None:
        """What is open is settled by whoever finds that this node is gone."""
        for timer in self._bare.values():
            timer.cancel()

    # --- what is looked up ------------------------------------------------------------------------
    async def unsettled(self) -> Sequence[Reservation]:
        """What nodes held that are gone: from now on it is ours to settle."""
        alive = await self._alive()
        rows = await self._readers.read(lambda tx: tx.find("reservation", {}, order="id"))
        lost = [to_reservation(row) for row in rows if row["node"] not in alive]
        self._open |= {one.id: one for one in lost if one.id not in self._open}
        return lost

    async def resync(self, now: datetime) -> Resync:
        day, was = day_of(now), self.latest
        if was <= day:
            return Resync(day, was)
        self.latest = day
        return await self._writer.write(
            partial(resync_days, day=day, was=was, now=now, idle=()), durable=True
        )


def _carry_out_all(
    tx: Transaction,
    batch: Sequence[_Step],
    node: str,
    raised: Callable[[list[Tally], str], list[Tally]],
) -> Mapping[Scope, Tally]:
    """Gives the counters that were asked for, as they are then."""
    seen = set[Scope]()
    for step in batch:
        step.grant, step.error = None, None
        if step.ended is not None:
            _end(tx, step, step.ended)
        elif step.decide is None:
            _hold(tx, step.call, node)
        else:
            scopes = scopes_of(step.call.payer.session_key, step.call.day)
            asked = [one for one in scopes if one.kind in step.kinds]
            seen.update(asked)
            if step.is_again:
                _delete_reservation(tx, step.call)
            try:
                tallies = raised(tallies_of(tx, asked), step.call.day)
                step.grant = step.decide(tallies)
                _hold(tx, replace(step.call, held=step.grant.held), node)
            except BudgetExceeded as refusal:
                step.error = refusal
    return {one.scope: one for one in tallies_of(tx, seen)}


def _hold(tx: Transaction, call: Reservation, node: str) -> None:
    tx.insert("reservation", {**held_row(call, call.held), "node": node})
    amounts = {"held_tokens": call.held.tokens, "held_nano_usd": call.held.nano_usd}
    rows = [{**one, **amounts, "since": call.at} for one in counters_of(call, call.day)]
    tx.add("spend", rows, amounts)


def _end(tx: Transaction, step: _Step, ended: Ended) -> None:
    """A call that stood there and does no more was settled before, by another node perhaps."""
    call = step.call
    was_held = (step.is_held or step.is_again) and _delete_reservation(tx, call)
    is_over = _is_recorded(tx, call) if step.is_again else step.is_held
    is_new = was_held or not is_over
    if is_new and isinstance(ended, TokenRecord):
        record_call(tx, record=ended, call=call, rows=(), warned=step.warned)


def _is_recorded(tx: Transaction, call: Reservation) -> bool:
    return tx.first("token_record", {"id": call.id}, "id") is not None


def _delete_reservation(tx: Transaction, call: Reservation) -> bool:
    """Whether it was held."""
    row = tx.first("reservation", {"id": call.id})
    if row is not None:
        tx.delete("reservation", {"id": call.id})
        release_held(tx, row)
    return row is not None
