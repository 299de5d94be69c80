"""Runs that several nodes work on: the writes that only the owner of a session may make, and
questions across nodes."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from typing import Any

from gateway.domain.cluster import AT_ONCE, Begun, Fenced, OpenRuns, RunProgress, Tenure
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
from gateway.store.transaction import Row, Transaction, require_session
from gateway.store.writer import StorePart, reading, writing, writing_durably

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
