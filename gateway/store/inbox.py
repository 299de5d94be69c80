"""The inbox, its runs and their journals. Accept and finish are one commit each."""

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime

from pydantic_core import from_json, to_json

from gateway.domain.errors import Conflict, NotFound
from gateway.domain.events import Batching, Notice
from gateway.domain.ids import EPOCH, MICROSECOND, RunId, SessionKey
from gateway.domain.inbox import Accepted, Ending, Entry, NewEntry, RunHistory, RunRecord
from gateway.domain.journal import chunks_of
from gateway.store.channels import add_delivery, find_delivery, require_unheard, write_memos
from gateway.store.conversations import prune
from gateway.store.transaction import (
    Fields,
    Row,
    SessionRow,
    Transaction,
    add_nodes,
    count_nodes,
    require_session,
)
from gateway.store.writer import StorePart, reading, writing, writing_durably


# --- the journals of runs, and their state and notices for later runs ----------------------------
def add_part(tx: Transaction, run_id: RunId, part: int, pack: Callable[[], bytes]) -> None:
    tx.put("journal", {"run_id": run_id, "part": part, "data": pack()})


def forgive_attempt(tx: Transaction, run_id: RunId) -> None:
    open_one = {"run_id": run_id, "finished_at": None}
    row = tx.first("run", open_one, "forgiven attempts")
    if row is not None and row["forgiven"] < row["attempts"]:
        tx.change("run", open_one, {"forgiven +": 1})


def _parts(tx: Transaction, run_id: RunId) -> Sequence[bytes]:
    return [row["data"] for row in tx.find("journal", {"run_id": run_id}, "data", order="part")]


def _rule_state(tx: Transaction, key: SessionKey) -> str | None:
    return tx.value("rule_state", {"session": key}, "json", None)


def free_notices(
    tx: Transaction, person: str, key: SessionKey, run_id: RunId, *, now: datetime
) -> list[Row]:
    """Returns the notices that a run may claim or has claimed."""
    rows = tx.find("notice", {"agent": key.agent, "person": person}, order="id")
    session = tx.session_id(key) if rows else 0
    return [
        row
        for row in rows
        if row["session"] != session
        and row["claimed_by"] in {None, run_id}
        and (row["expires_at"] is None or row["expires_at"] > now)
    ]


def _claim(
    tx: Transaction, person: str, key: SessionKey, run_id: RunId, *, now: datetime
) -> list[Row]:
    rows = free_notices(tx, person, key, run_id, now=now)
    tx.change("notice", {"id": tuple(row["id"] for row in rows)}, {"claimed_by": run_id})
    return rows


class StoredJournal(StorePart):
    """Implements the port Journal."""

    append = writing(add_part)
    forgive = writing(forgive_attempt)
    read = reading(_parts)
    rule_state = reading(_rule_state)
    _free = reading(free_notices)
    _claim = writing(_claim)

    async def claim_notices(
        self, person: str, session_key: SessionKey, run_id: RunId, *, now: datetime
    ) -> Sequence[Notice]:
        """Writes nothing, and usually reads nothing, if there are no notices."""
        asked = (person, session_key, run_id)
        if not self._state.may_hold_notices or not await self._free(*asked, now=now):
            return ()
        rows = await self._claim(*asked, now=now)
        return [unpack_notice(row["expires_at"], row["json"]) for row in rows]


MOST_POSTED = 100  # unclaimed notices of an agent and a person; the oldest are deleted

_OF_NOTICE = Fields(
    " ".join(one.name for one in fields(Notice) if one.name not in {"data", "expires_at"})
)


def pack_notice(notice: Notice) -> str:
    """Returns a notice as JSON, without `expires_at`."""
    row = {**_OF_NOTICE.row(notice), "data": dict(notice.data)}
    return to_json(row, fallback=str).decode()


def unpack_notice(expires_at: datetime | None, packed: str) -> Notice:
    kept = from_json(packed)
    return Notice(**{**kept, "batching": Batching(**kept["batching"])}, expires_at=expires_at)


def _leave(ending: Ending, session: SessionRow, tx: Transaction) -> None:
    """Writes notices and the state of rules, in the commit that ends a run."""
    claimed = {"claimed_by": ending.run_id} if ending.has_claimed and tx.may_hold_notices else None
    if claimed and ending.leaves_claimed:
        tx.change("notice", claimed, {"claimed_by": None})
    elif claimed:
        tx.delete("notice", claimed)
    if ending.rule_state is not None:
        tx.put("rule_state", {"session": session.id, "json": ending.rule_state})
    if ending.posts:
        _post(ending, session, tx)


def _post(ending: Ending, session: SessionRow, tx: Transaction) -> None:
    tx.may_hold_notices = True
    whose = {"agent": ending.session_key.agent, "person": ending.person}
    for one in ending.posts:
        row = {"session": session.id, "expires_at": one.expires_at, "json": pack_notice(one)}
        tx.insert("notice", {**whose, **row})
    free = tx.find("notice", {**whose, "claimed_by": None}, "id", order="-id")
    tx.delete("notice", {"id": tuple(row["id"] for row in free[MOST_POSTED:])})


# --- accepting a message -------------------------------------------------------------------------
_AS_ACCEPTED = Fields(
    "run_id message_id matched_by platform_id digest sender context_id whence content partition"
)
_AS_IT_STANDS = Fields("seq state attempts forgiven")


def _accept(tx: Transaction, entry: NewEntry, *, begin: bool) -> Accepted:
    if entry.whence is not None:
        require_unheard(entry, tx)
    key, at = entry.session_key, (entry.accepted_at - EPOCH) // MICROSECOND
    session = tx.session(key)
    # Checked first, so that a repeat under another key makes no empty session.
    accepted = _earlier(entry, tx) if session is None else None
    if accepted is None:
        session = session or tx.make_session(key, at)
        seq = session.last_run + 1
        row = {
            **_AS_ACCEPTED.row(entry),
            "session": session.id,
            "seq": seq,
            "state": "running" if begin else "queued",
            "attempts": int(begin),
            "accepted_at": at,
            "channel": key.channel,
            "account": key.account,
            "limits": to_json(entry.limits).decode() if entry.limits else None,
        }
        added = tx.insert("run", row, on_conflict="keep")
        if added:
            tx.accepted = added
            if session.is_closed:
                tx.change("session", {"id": session.id}, {"state": "active"})
                session.is_closed = False
            session.last_run = seq
            names = (entry.message_id, entry.run_id, key, entry.matched_by)
            accepted = Accepted(*names, seq, attempts=int(begin))
        else:
            accepted = _earlier(entry, tx)
            assert accepted is not None
    if entry.memos:
        write_memos(tx, *entry.memos)
    return accepted


def _earlier(entry: NewEntry, tx: Transaction) -> Accepted | None:
    """Returns the first message with the same (channel, account, platform id). Raises Conflict if
    its content differs, or if there is none and another message has the run's id."""
    id_, channel, account = entry.platform_id, entry.session_key.channel, entry.session_key.account
    same = {"platform_id": id_, "channel": channel, "account": account}
    row = None if id_ is None else tx.first("run", same)
    if row is not None:
        if row["digest"] and row["digest"] != entry.digest:  # empty: the content is erased
            raise Conflict(
                f"key {id_!r} of {channel}:{account} was used before for another message: send it "
                "under a new key"
            )
        key = tx.keys_of([row["session"]])[row["session"]]
        names = (row["message_id"], row["run_id"], key, row["matched_by"], row["seq"])
        return Accepted(*names, duplicate=True, attempts=row["attempts"])
    if tx.first("run", {"run_id": entry.run_id}, "id") is not None:
        raise Conflict(f"run {entry.run_id} was accepted before: take a new id")
    return None


def begin_attempt(tx: Transaction, run_id: RunId) -> int:
    row = tx.require("run", {"run_id": run_id}, "attempts finished_at", f"run {run_id}")
    if row["finished_at"] is not None:
        raise Conflict(f"run {run_id} has ended")
    attempts: int = row["attempts"] + 1
    tx.change("run", {"run_id": run_id}, {"attempts": attempts, "state": "running"})
    return attempts


# --- ending a run --------------------------------------------------------------------------------
def end_run(tx: Transaction, ending: Ending) -> bool:
    session = require_session(ending.session_key, tx)
    is_head = ending.grown_from == session.head_id
    parent = session.head if is_head else tx.place(session, ending.grown_from)
    if parent is None and ending.grown_from is not None:
        raise NotFound(f"message {ending.grown_from}")
    at = (ending.finished_at - EPOCH) // MICROSECOND
    if not _end_runs(ending, session, at, tx):
        return False
    moves = bool(ending.nodes) and (ending.take_head or session.head == parent)
    count = add_nodes(ending.nodes, parent, session, tx)
    for new in ending.deliveries:
        add_delivery(new, at, tx, run=(ending.run_id, session.id))
    _leave(ending, session, tx)
    if moves:
        session.move_head(ending.nodes[-1].id)
    count_nodes(session, count, at, tx)
    if session.is_forked:
        prune(session, ending.most_nodes, tx)
    return moves


def _end_runs(ending: Ending, session: SessionRow, at: int, tx: Transaction) -> bool:
    """Ends a run and the runs merged into it. Returns False, and changes nothing, if the run ended
    before."""
    ends = [(ending.run_id, ending.state, ending.outcome, ending.summary)]
    if ending.merged:
        _require_open(ending, session, tx)
        ends += [(one.run_id, "done", "merged", one.summary) for one in ending.merged]
    for run_id, state, outcome, summary in ends:
        is_open = {"run_id": run_id, "session": session.id, "finished_at": None}
        end = {"state": state, "finished_at": at, "outcome": outcome, "summary": summary}
        if not tx.change("run", is_open, {**end, "has_journal": True}) and run_id == ending.run_id:
            _is_open(run_id, session, tx)
            return False
    tx.put("journal", {"run_id": ending.run_id, "part": ending.part, "data": ending.journal()})
    for one in ending.merged:
        tx.put("journal", {"run_id": one.run_id, "part": 0, "data": one.journal})
    return True


def _require_open(ending: Ending, session: SessionRow, tx: Transaction) -> None:
    """Raises Conflict if a merged run has ended and the run itself has not."""
    if _is_open(ending.run_id, session, tx):
        for one in ending.merged:
            if not _is_open(one.run_id, session, tx):
                raise Conflict(f"run {one.run_id} has ended")


def _is_open(run_id: RunId, session: SessionRow, tx: Transaction) -> bool:
    """True if the run has not ended. Raises NotFound if the session has no such run."""
    terms = {"run_id": run_id, "session": session.id}
    return tx.require("run", terms, "finished_at", f"run {run_id}")["finished_at"] is None


# --- reading -------------------------------------------------------------------------------------
def _unfinished(tx: Transaction) -> Sequence[Entry]:
    return to_entries(tx.find("run", {}, order="id", index="unfinished"), tx)


# Logs of earlier versions have fractions of milliseconds. Quotes within a text are escaped.
_FRACTION = re.compile(rb'("execution_time_ms":\d+)\.\d+')


def find_record(tx: Transaction, run_id: RunId) -> RunRecord | None:
    # The two queries come before any decision, so that a server answers them at one moment;
    # otherwise a run that ends meanwhile could look unfinished with its last chunk present.
    parts, row = _parts(tx, run_id), tx.first("run", {"run_id": run_id})
    if row is None:
        return None
    # An earlier version kept the log of an ended run in its row.
    old = row["log"]
    log = _FRACTION.sub(rb"\1", old) if old else chunks_of(parts)
    (entry,) = to_entries([row], tx)
    return RunRecord(entry, row["outcome"], log, row["summary"], row["finished_at"])


def read_history(tx: Transaction, run_id: RunId) -> RunHistory:
    """Returns the record, journal and delivery of a run. Raises NotFound."""
    record = find_record(tx, run_id)
    if record is None:
        raise NotFound(f"run {run_id}")
    delivery = find_delivery(tx, f"d_{record.entry.new.message_id}")
    return RunHistory(record, _parts(tx, run_id), delivery)


def to_entries(rows: Sequence[Row], tx: Transaction) -> list[Entry]:
    keys = tx.keys_of(row["session"] for row in rows)
    return [to_entry(row, keys[row["session"]]) for row in rows]


def to_entry(row: Row, key: SessionKey) -> Entry:
    limits = from_json(row["limits"]) if row["limits"] else {}
    made = {"session_key": key, "accepted_at": row["accepted_at"], "limits": limits}
    return Entry(NewEntry(**made, **_AS_ACCEPTED.values(row)), **_AS_IT_STANDS.values(row))


class StoredInbox(StorePart):
    """Implements the port Inbox."""

    accept = writing_durably(_accept)
    begin = writing(begin_attempt)
    finish = writing_durably(end_run)
    unfinished = reading(_unfinished)
    find_run = reading(find_record)
    run_history = reading(read_history)
