"""A store that several nodes share: leases on partitions, the writes that only the owner of a session may make
and questions across nodes, and the ledger with the reservations of all nodes."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from secrets import token_hex
from typing import Any

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
from gateway.domain.cluster import (
    AT_ONCE,
    Begun,
    ClusterState,
    Fenced,
    Lease,
    LeaseState,
    Member,
    OpenRuns,
    Presence,
    Renewal,
    RunProgress,
    StoreInUse,
    Tenure,
)
from gateway.domain.errors import GatewayError, StoreUnavailable
from gateway.domain.ids import NodeId, RunId, SessionKey
from gateway.domain.inbox import NO_CHOICE, Ending, Entry, RunRecord, SessionChoice
from gateway.store.inbox import (
    add_part,
    begin_attempt,
    end_run,
    find_record,
    forgive_attempt,
    to_entry,
)
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
from gateway.store.surreal_connection import (
    RecordExists,
    RecordID,
    StatementRefused,
    SurrealConnection,
)
from gateway.store.surreal_schema import define
from gateway.store.transaction import Row, Transaction, keep_newest, require_session
from gateway.store.writer import Engine, StorePart, reading, writing, writing_durably

# --- leases --------------------------------------------------------------------------------------
_LEASE_TABLES = ";\n".join(
    (
        define("cluster", partitions="int", joins="int", key="option<string>"),
        define("lease", node="option<string>", epoch="int", expires_at="option<datetime>"),
        define("member", **dict.fromkeys(("seen_at", "expires_at"), "datetime")),
        define("member", **dict.fromkeys(("alone", "ready", "leaving"), "bool"), config="string"),
    )
)
_FIRST = """{
  CREATE cluster:main SET partitions = $partitions, joins = 0, key = $key RETURN NONE;
  FOR $number IN 0..$partitions { CREATE type::record('lease', $number) SET epoch = 0 RETURN NONE };
}"""
_FORGET = "DELETE member WHERE seen_at < time::now() - 1d RETURN NONE"
_SEEN = """UPSERT $member SET seen_at = time::now(), expires_at = time::now() + $ttl, alone = $alone,
    ready = $ready, config = $config, leaving = $leaving RETURN NONE"""
# Two joining nodes change the same counter, so the second has to repeat the statement.
_JOIN = f"""{{
  LET $others = (SELECT VALUE id FROM member
    WHERE id != $member AND expires_at > time::now() AND (alone OR $alone));
  IF $others != [] {{ {{ owner: $others[0] }} }} ELSE {{
    LET $c = (UPDATE ONLY cluster:main SET joins += 1 RETURN partitions);
    {_SEEN};
    {{ partitions: $c.partitions }} }}
}}"""
# A node holds the store alone until it expires; then another may have joined.
_STILL_ALONE = """
  LET $end = (SELECT VALUE expires_at FROM ONLY $member);
  IF $end == NONE OR $end <= time::now() { THROW 'exogate:late' };
  UPDATE cluster:main SET joins += 1 RETURN NONE;"""
_RENEW = f"""
  {_SEEN};
  LET $mine = (UPDATE lease SET expires_at = time::now() + $ttl
    WHERE node = $me AND expires_at > time::now() RETURN id, epoch);
  {{ mine: $mine,
    free: (SELECT VALUE id FROM lease WHERE node = NONE OR expires_at <= time::now()),
    members: (SELECT VALUE id FROM member WHERE !leaving AND expires_at > time::now()) }}"""
_TAKE = """
UPDATE $leases SET node = $me, epoch += 1, expires_at = time::now() + $ttl
  WHERE node = NONE OR expires_at <= time::now() RETURN id, epoch
"""
_RELEASE = """{
  FOR $one IN $leases {
    LET $lease = $one.id;
    UPDATE $lease SET node = NONE WHERE node = $me AND epoch = $one.epoch RETURN NONE
  };
}"""
_LEAVE = "DELETE $member RETURN NONE"
_BURY = """{
  DELETE $member RETURN NONE;
  UPDATE lease SET node = NONE WHERE node = $me RETURN NONE;
}"""
_STATE = "SELECT * FROM member WHERE expires_at > time::now(); SELECT * FROM lease ORDER BY id"
_ALIVE = "SELECT VALUE id FROM member WHERE expires_at > time::now() - $late"
_KEY = "RETURN cluster:main.key"


class SurrealLeases:
    """Implements the port Leases; the database decides by its own clock. Every call ends within `deadline_s`.

    Only writes of the same record conflict. Each statement changes the leases that it depends on, so
    that the second of two competing nodes has to repeat it and then finds the partition owned.
    """

    def __init__(self, connection: SurrealConnection, deadline_s: float) -> None:
        self._connection, self._deadline_s = connection, deadline_s

    async def join(self, presence: Presence, partitions: int, lease_s: float) -> int:
        # Definitions conflict like writes.
        await self._connection.commit(_LEASE_TABLES, deadline_s=self._deadline_s)
        with contextlib.suppress(RecordExists):
            await self._commit(_FIRST, {"partitions": partitions, "key": token_hex(32)})
        await self._commit(_FORGET, {})
        return await self._join(presence, lease_s)

    async def _join(self, presence: Presence, lease_s: float) -> int:
        found = await self._commit(_JOIN, _params(presence, lease_s))
        if "owner" in found:
            raise StoreInUse(found["owner"].id)
        return int(found["partitions"])

    async def renew(self, presence: Presence, lease_s: float) -> Renewal:
        text = f"{{ {_STILL_ALONE if presence.is_alone else ''} {_RENEW} }}"
        params = _params(presence, lease_s)
        try:
            found = await self._commit(text, params)
        except StatementRefused:
            await self._join(presence, lease_s)
            found = await self._commit(text, params)
        free, members = ([one.id for one in found[name]] for name in ("free", "members"))
        return Renewal([*map(_lease, found["mine"])], free, members)

    async def acquire(
        self, node: str, partitions: Sequence[int], lease_s: float
    ) -> Sequence[Lease]:
        leases = [RecordID("lease", number) for number in partitions]
        params = {"me": node, "leases": leases, "ttl": timedelta(seconds=lease_s)}
        return [*map(_lease, await self._commit(_TAKE, params))]

    async def release(self, node: str, leases: Sequence[Lease]) -> None:
        rows = [{"id": RecordID("lease", one.partition), "epoch": one.epoch} for one in leases]
        await self._commit(_RELEASE, {"me": node, "leases": rows})

    async def leave(self, node: str) -> None:
        await self._commit(_LEAVE, {"member": RecordID("member", node)})

    async def bury(self, node: str) -> None:
        """Releases the leases of a node that has ended."""
        await self._connection.commit(_LEASE_TABLES, deadline_s=self._deadline_s)
        await self._commit(_BURY, {"member": RecordID("member", node), "me": node})

    async def alive(self, late_s: float) -> set[str]:
        """Returns the nodes that expired less than `late_s` ago, or not at all: they may only be
        slow."""
        late = {"late": timedelta(seconds=late_s)}
        [found] = await self._connection.query(_ALIVE, late, deadline_s=self._deadline_s)
        return {one.id for one in found}

    async def key(self) -> bytes:
        """Returns a secret that only readers of the store know."""
        [found] = await self._connection.query(_KEY, deadline_s=self._deadline_s)
        return bytes.fromhex(found or "")

    async def state(self) -> ClusterState:
        members, leases = await self._connection.query(_STATE, deadline_s=self._deadline_s)
        return ClusterState(
            [Member(_presence(row), row["seen_at"]) for row in members],
            [LeaseState(_lease(row), row.get("node"), row.get("expires_at")) for row in leases],
        )

    async def _commit(self, text: str, params: dict[str, object]) -> Any:
        [result] = await self._connection.commit(text, params, deadline_s=self._deadline_s)
        return result


def _params(presence: Presence, lease_s: float) -> dict[str, object]:
    return {
        "me": presence.node,
        "member": RecordID("member", presence.node),
        "alone": presence.is_alone,
        "ready": presence.is_ready,
        "config": presence.config,
        "leaving": presence.is_leaving,
        "ttl": timedelta(seconds=lease_s),
    }


def _presence(row: Mapping[str, Any]) -> Presence:
    return Presence(row["id"].id, row["alone"], row["ready"], row["config"], row["leaving"])


def _lease(row: Mapping[str, Any]) -> Lease:
    return Lease(row["id"].id, row["epoch"])


# --- runs ----------------------------------------------------------------------------------------
# choices per query; a withdrawn choice is kept for that many changes
MOST_CHOICES = 4_096
MOST_LENIENT = 10  # attempts; after more, the message itself may stop the nodes


def _open_runs(tx: Transaction, partitions: Sequence[int], known: Set[RunId]) -> OpenRuns:
    terms = {"partition": tuple(partitions), "finished_at": None}
    rows = tx.find("run", terms, "run_id session stop", index="unfinished")
    keys = tx.keys_of(row["session"] for row in rows if row["run_id"] not in known)
    stops = {row["run_id"]: row["stop"] for row in rows if row["stop"]}
    return OpenRuns({*keys.values()}, stops, {row["run_id"] for row in rows})


def _require(tx: Transaction, tenure: Tenure) -> Row:
    """Returns the session's row. Raises Fenced if the session has a later owner. The commit also
    changes the session, so it comes before the later owner's or fails."""
    require_session(tenure.session_key, tx)
    row = tx.first("session", {"key": tenure.session_key}, "epoch choice")
    if row is None or row["epoch"] != tenure.epoch:
        raise Fenced(tenure.session_key)
    return row


def _open_session(tx: Transaction, tenure: Tenure) -> Sequence[Entry]:
    """Reads the session before its runs and does not remember it: a commit that ends a run changes
    the session. Writes nothing if this owner has opened it already; a later owner is detected when
    a turn begins."""
    key = tenure.session_key
    row, choice = tx.first("session", {"key": key}, "id epoch"), _choice(tx, key)
    if row is None or row["epoch"] > tenure.epoch:
        raise Fenced(key)
    if row["epoch"] < tenure.epoch:
        tx.change("session", {"key": key}, {"epoch": tenure.epoch, "choice": choice.change})
    terms = {"session": row["id"], "finished_at": None}
    rows = tx.find("run", terms, order="seq", index="unfinished")
    return [to_entry(row, key) for row in rows]


def _begin(
    tx: Transaction,
    run_id: RunId,
    tenure: Tenure,
    node: str = "",
    alive: Collection[str] = (),
    *,
    sender: str | None = None,  # for a store that prefetches
) -> Begun:
    chosen = _require(tx, tenure)["choice"]
    choice = _choice(tx, tenure.session_key) if chosen else NO_CHOICE
    head, this = require_session(tenure.session_key, tx).head_id, {"run_id": run_id}
    row = tx.first("run", this, "begun_by attempts forgiven")
    forgiven = row["forgiven"] if row else 0
    if row and row["begun_by"] in alive and row["attempts"] < MOST_LENIENT:
        forgive_attempt(tx, run_id)
        forgiven += 1
    attempts = begin_attempt(tx, run_id)
    tx.change("run", this, {"begun_by": node or None})
    return Begun(attempts, forgiven, None if head is None else NodeId(head), choice)


def _append(
    tx: Transaction, run_id: RunId, part: int, pack: Callable[[], bytes], tenure: Tenure
) -> None:
    _require(tx, tenure)
    add_part(tx, run_id, part, pack)


def _forgive(tx: Transaction, run_id: RunId, tenure: Tenure) -> None:
    _require(tx, tenure)
    forgive_attempt(tx, run_id)
    tx.change("run", {"run_id": run_id, "finished_at": None}, {"begun_by": None})


def _finish(tx: Transaction, ending: Ending, tenure: Tenure) -> bool:
    _require(tx, tenure)
    return end_run(tx, ending)


def _ask_to_stop(tx: Transaction, run_id: RunId, how: str) -> None:
    tx.change("run", {"run_id": run_id, "finished_at": None}, {"stop": how})


def _ask_session_to_stop(tx: Transaction, key: SessionKey) -> int:
    terms = {"session": key, "finished_at": None}
    return tx.change("run", terms, {"stop": AT_ONCE}, index="unfinished")


def _load(tx: Transaction, key: SessionKey) -> tuple[int, int]:
    rows = tx.find("run", {"session": key, "finished_at": None}, "state", index="unfinished")
    waiting = sum(row["state"] == "queued" for row in rows)
    return len(rows) - waiting, waiting


def _choice(tx: Transaction, key: SessionKey) -> SessionChoice:
    row = tx.first("choice", {"session": str(key)}, "model mode change")
    return SessionChoice(**row) if row else NO_CHOICE


def _choose(tx: Transaction, key: SessionKey, named: Mapping[str, Any]) -> SessionChoice:
    tx.guard("choice")
    before = _choice(tx, key)
    number = tx.value("choice", {}, "change", 0, order="-change")
    choice = replace(before, **named, change=number + 1)
    if choice == before:
        return replace(before, change=number)
    row = {"model": choice.model, "mode": choice.mode, "change": choice.change}
    tx.put("choice", {"session": str(key), **row})
    tx.change("session", {"key": key}, {"choice": choice.change})  # if the session exists
    tx.delete("choice", {"change": choice.change - MOST_CHOICES, "model": None, "mode": None})
    return choice


def _choices(tx: Transaction, after: int) -> tuple[int, Mapping[SessionKey, SessionChoice]]:
    rows = tx.find("choice", {"change >": after}, order="-change", limit=MOST_CHOICES)
    found = {SessionKey.parse(row.pop("session")): SessionChoice(**row) for row in reversed(rows)}
    return max([after, *(one.change for one in found.values())]), found


def _states(tx: Transaction, run_ids: Sequence[RunId]) -> Mapping[RunId, RunProgress]:
    rows = tx.find("run", {"run_id": tuple(run_ids)}, "run_id attempts finished_at")
    return {
        row["run_id"]: RunProgress(row["attempts"], row["finished_at"] is not None) for row in rows
    }


def _records(tx: Transaction, run_ids: Sequence[RunId]) -> Sequence[RunRecord]:
    return [*filter(None, [find_record(tx, one) for one in run_ids])]


def _backlog(tx: Transaction) -> tuple[Mapping[int, int], datetime | None]:
    rows = tx.sums("run", {}, "partition", index="unfinished")
    waiting, order = {"state": "queued"}, "accepted_at"
    oldest = tx.find("run", waiting, order, order=order, limit=1, index="unfinished")
    since = oldest[0]["accepted_at"] if oldest else None
    return {row["partition"]: row["calls"] for row in rows}, since


def _place_runs(tx: Transaction, place: Callable[[SessionKey], int]) -> int:
    rows = tx.find("run", {}, "run_id session partition", index="unfinished")
    keys, moved = tx.keys_of(row["session"] for row in rows), 0
    for row in rows:
        if (there := place(keys[row["session"]])) != row["partition"]:
            moved += tx.change("run", {"run_id": row["run_id"]}, {"partition": there})
    return moved


class StoredSharedRuns(StorePart):
    """Implements the port SharedRuns."""

    open_runs = reading(_open_runs)
    open_session = writing_durably(_open_session)
    begin = writing(_begin)
    append = writing(_append)
    forgive = writing(_forgive)
    finish = writing_durably(_finish)
    ask_to_stop = writing_durably(_ask_to_stop)
    ask_session_to_stop = writing_durably(_ask_session_to_stop)
    load = reading(_load)
    choose = writing_durably(_choose)
    choices = reading(_choices)
    states = reading(_states)
    records = reading(_records)
    backlog = reading(_backlog)
    place_runs = writing_durably(_place_runs)


# --- the ledger ----------------------------------------------------------------------------------
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
    """Implements the port Ledger: the store holds the reservations of all nodes.

    Each call is reserved before it is made, and settled after it, in the counters of its scopes. Steps
    that arrive during a commit share the next one, so that nodes seldom conflict over a counter.
    """

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
