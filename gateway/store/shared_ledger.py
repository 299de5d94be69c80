"""The ledger of a store that several nodes share: the store holds the reservations of all of them.

Each call is reserved before it is made, and settled after it, in the counters of its scopes. Steps
that arrive during a commit share the next one, so that nodes seldom conflict over a counter.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
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
    Scope,
    ScopeKind,
    Tally,
    TokenRecord,
    scopes_of,
)
from gateway.domain.errors import GatewayError, StoreUnavailable
from gateway.store.ledger import (
    LedgerBase,
    counters_of,
    held_row,
    hold_in,
    not_saved,
    record_call,
    release_held,
    tallies_of,
    to_reservation,
)
from gateway.store.transaction import Transaction, keep_newest
from gateway.store.writer import Engine

LASTS_S = 1.0  # a call without a limit is written down if it lasts so long
DRAIN_S = 2.0
PAUSES_S = (0.1, 0.2, 0.5, *[1.0] * 20)  # while the store is away
WITHIN_S = 20.0  # for all tries to reserve
MOST_TOGETHER = 64  # steps of a commit
_KNOWN = 4096  # scopes


@dataclass(slots=True, eq=False)
class _Step:
    """A reservation or the end of a call. `decide` is None if no limit applies."""

    call: Reservation
    kinds: Collection[ScopeKind] = ()
    decide: Decide | None = None
    ended: Ended | None = None
    is_held: bool = True  # it has a row, or should have one
    is_again: bool = False  # an earlier try may have been executed
    warned: Sequence[Tally] = ()
    failed: Callable[[Exception], None] = not_saved
    grant: Grant | None = None
    error: GatewayError | None = None
    is_done: anyio.Event = field(default_factory=anyio.Event)


Alive = Callable[[], Awaitable[Set[str]]]  # the nodes that share the store now


class SharedLedger(LedgerBase):
    """Implements the port Ledger."""

    def __init__(
        self, engine: Engine, *, node: str, alive: Alive, within_s: float = WITHIN_S
    ) -> None:
        super().__init__(engine)
        self._node, self._alive, self._within_s = node, alive, within_s
        self.latest = self._state.last_day
        self._steps: list[_Step] = []
        self._batch: list[_Step] = []  # being committed
        self._wanted, self._idle = anyio.Event(), anyio.Event()
        self._open: dict[str, Reservation] = {}
        self._unwritten: dict[str, asyncio.TimerHandle] = {}  # of calls without a row
        self._unheld: set[str] = set()  # calls that may lack a row
        self._known: dict[Scope, Tally] = {}  # as the last commit here left them

    # --- beginning a call ------------------------------------------------------------------------
    def begin(self, wanted: Reservation) -> Reservation:
        call = self._open_call(wanted)
        timer = asyncio.get_running_loop().call_later(LASTS_S, self._write_down, call)
        self._unwritten[call.id] = timer
        return call

    def _write_down(self, call: Reservation) -> None:
        if self._unwritten.pop(call.id, None) is not None:
            self._commit_soon(_Step(call, failed=partial(self._note_unheld, call)))

    def _note_unheld(self, call: Reservation, error: Exception) -> None:
        self._unheld.add(call.id)
        not_saved(error)

    async def reserve(
        self, wanted: Reservation, decide: Decide, kinds: Collection[ScopeKind] = SCOPE_KINDS
    ) -> tuple[Reservation, Grant]:
        step = _Step(self._open_call(wanted), kinds, decide)
        try:
            step = await self._retry(step)
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
        """Releases a reservation that may exist although its caller was cancelled."""

        def again(_: Exception) -> None:
            asyncio.get_running_loop().call_later(PAUSES_S[-1], self._release, call)

        self._commit_soon(_Step(call, ended=call, failed=again))

    async def _retry(self, step: _Step) -> _Step:
        """Repeats a step while the store is away, and returns the try that was executed. Raises
        StoreUnavailable."""
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

    def _open_call(self, wanted: Reservation) -> Reservation:
        self.latest = max(self.latest, wanted.day)
        call = self._open[wanted.id] = replace(wanted, day=self.latest)
        return call

    # --- ending a call ---------------------------------------------------------------------------
    def settle_soon(
        self, ended: Ended, failed: Callable[[Exception], None], due: Due | None = None
    ) -> Sequence[Tally]:
        call = self._open.pop(ended.id, None)
        if call is None:
            return ()
        if (timer := self._unwritten.pop(call.id, None)) is not None:
            timer.cancel()
        warned = self._count(call, ended, due)
        if isinstance(ended, TokenRecord) or timer is None:
            step = _Step(call, ended=ended, is_held=timer is None, warned=warned)
            step.failed = partial(self._not_written, step, failed)
            self._commit_soon(step)
        return warned

    def _count(self, call: Reservation, ended: Ended, due: Due | None) -> Sequence[Tally]:
        scopes = scopes_of(call.payer.session_key, call.day)
        now = [
            replace(one, used=one.used + ended.amount, held=one.held - call.held)
            for one in (self._known[scope] for scope in scopes if scope in self._known)
        ]
        self._known |= {one.scope: one for one in now}
        warned = self._to_warn_of(now, call.day, due) if due else []
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

    # --- commits ---------------------------------------------------------------------------------
    def _commit_soon(self, step: _Step) -> None:
        self._steps.append(step)
        self._wanted.set()

    async def run(self) -> None:
        """Commits the waiting steps, one commit after the other, until it is cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            while self._steps:
                await self._commit()
            self._idle.set()
            self._idle = anyio.Event()

    async def _commit(self) -> None:
        batch = self._batch = self._steps[:MOST_TOGETHER]
        del self._steps[:MOST_TOGETHER]
        await self._carry_out(batch)
        self._batch = []
        for step in batch:
            step.is_done.set()
        keep_newest(self._known, _KNOWN)

    async def _carry_out(self, batch: Sequence[_Step]) -> None:
        """Commits the steps together. If one breaks a rule, each step is its own commit, so that
        the others succeed."""
        try:
            for step in batch:  # an earlier step may have failed since it was queued
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
            await self._idle.wait()

    async def drain(self) -> None:
        """Settles ended calls before an orderly stop."""
        with anyio.move_on_after(DRAIN_S):
            await self.caught_up()

    def close(self) -> None:
        """Leaves open calls to the node that finds this one gone."""
        for timer in self._unwritten.values():
            timer.cancel()

    # --- queries ---------------------------------------------------------------------------------
    async def unsettled(self) -> Sequence[Reservation]:
        """Returns the reservations of nodes that are gone; this node settles them from now on."""
        alive = await self._alive()
        rows = await self._readers.read(lambda tx: tx.find("reservation", {}, order="id"))
        lost = [to_reservation(row) for row in rows if row["node"] not in alive]
        self._open |= {one.id: one for one in lost if one.id not in self._open}
        return lost


def _carry_out_all(
    tx: Transaction,
    batch: Sequence[_Step],
    node: str,
    raised: Callable[[list[Tally], str], list[Tally]],
) -> Mapping[Scope, Tally]:
    """Returns the counters that the steps read, as the commit leaves them."""
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
    row = {**held_row(call, call.held), "node": node}
    tx.insert("reservation", row)
    hold_in(tx, counters_of(call.payer.session_key, call.day), row)


def _end(tx: Transaction, step: _Step, ended: Ended) -> None:
    """Settles a call. A call without a row was settled before, perhaps by another node."""
    call = step.call
    was_held = (step.is_held or step.is_again) and _delete_reservation(tx, call)
    is_over = step.is_held
    if step.is_again:
        is_over = tx.first("token_record", {"id": call.id}, "id") is not None
    if (was_held or not is_over) and isinstance(ended, TokenRecord):
        record_call(tx, record=ended, call=call, rows=(), warned=step.warned)


def _delete_reservation(tx: Transaction, call: Reservation) -> bool:
    """True if there was a reservation."""
    row = tx.first("reservation", {"id": call.id})
    if row is not None:
        tx.delete("reservation", {"id": call.id})
        release_held(tx, row)
    return row is not None
