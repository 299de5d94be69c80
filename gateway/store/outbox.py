"""The outbox: deliveries, in order within a session."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from gateway.domain.errors import Conflict
from gateway.domain.ids import RunId
from gateway.domain.inbox import NewDelivery
from gateway.domain.outbox import TWICE, Delivery, DeliveryState
from gateway.store.transaction import Fields, Row, Terms, Transaction, without_none
from gateway.store.writer import StorePart, reading, writing, writing_durably

NO_CHANNEL = "there is no channel of this name and account any more"
ERASED = "erased"

_OPEN = ("pending", "sending")
_DEAD = ("unknown", "failed")
_MADE = Fields("channel account peer thread text whence")
_SETTLED = Fields("run_id state attempts due_at receipt why arrived settled_at is_safe")


def add_delivery(
    new: NewDelivery, due: int, tx: Transaction, *, run: tuple[RunId, int] | None = None
) -> None:
    """Adds a pending delivery. `run` is the answered run and its session; None if no run made the delivery."""
    run_id, session = run or (None, None)
    row = {"delivery_id": new.id, "run_id": run_id, "session": session, **_MADE.row(new)}
    tx.insert("delivery", {**row, "state": "pending", "due_at": due})


def _deliveries(rows: Sequence[Row], tx: Transaction) -> Sequence[Delivery]:
    keys = tx.keys_of(row["session"] for row in rows)
    return [
        Delivery(
            NewDelivery(row["delivery_id"], **_MADE.values(row)),
            session_key=keys.get(row["session"]),
            place=row["id"],
            **_SETTLED.values(row),
        )
        for row in rows
    ]


def _due(tx: Transaction, channel: str, *, now: datetime, limit: int) -> Sequence[Delivery]:
    """Returns the oldest open delivery of each session, and every delivery without a session. Reads
    each waiting row once, and only the returned ones whole."""
    waiting: Terms = {"channel": channel, "due_at <=": now}
    rows = tx.find("delivery", waiting, "id delivery_id session", order="id", index="due")
    oldest: dict[int, int] = {}
    sessions = {"session": tuple({row["session"] for row in rows} - {None})}
    for one in tx.find("delivery", sessions, "id session", index="open"):
        oldest[one["session"]] = min(one["id"], oldest.get(one["session"], one["id"]))
    due = [row for row in rows if oldest.get(row["session"], row["id"]) == row["id"]]
    first = tuple(row["delivery_id"] for row in due[: max(0, limit)])
    return _deliveries(tx.find("delivery", {"delivery_id": first}, order="id"), tx)


def _dead_letters(
    tx: Transaction, channel: str | None, *, before: int | None, limit: int
) -> Sequence[Delivery]:
    terms = without_none({"id <": before, "channel": channel})
    return _deliveries(tx.find("delivery", terms, order="-id", limit=limit, index="dead"), tx)


def _interrupted(tx: Transaction) -> Sequence[Delivery]:
    return _deliveries(tx.find("delivery", {"state": "sending"}, order="id", index="open"), tx)


def _tally(tx: Transaction) -> Mapping[tuple[str, DeliveryState], int]:
    halves = (tx.tally("delivery", {}, "channel state", index=one) for one in ("open", "dead"))
    return {(channel, state): count for half in halves for (channel, state), count in half.items()}


def find_delivery(tx: Transaction, delivery_id: str) -> Delivery | None:
    found = _deliveries(tx.find("delivery", {"delivery_id": delivery_id}, limit=1), tx)
    return found[0] if found else None


def _require(tx: Transaction, delivery_id: str) -> Row:
    return tx.require("delivery", {"delivery_id": delivery_id}, "", f"delivery {delivery_id}")


def _sending(
    tx: Transaction,
    delivery_id: str,
    arrived: int,
    *,
    is_safe: bool = False,
    receipt: str | None = None,
) -> None:
    row = _require(tx, delivery_id)
    is_more, is_as_much = row["arrived"] < arrived, row["arrived"] == arrived
    is_repeat = is_as_much and row["receipt"] is not None and receipt is None
    is_pending = row["state"] == "pending"
    may = {"pending": is_more or is_as_much, "sending": is_more or is_repeat}
    if not may.get(row["state"]):
        raise Conflict(f"delivery {delivery_id} is {row['state']}, not pending")
    attempts = 1 if is_more else row["attempts"] + is_pending
    sent = {"arrived": arrived, "is_safe": is_safe, "receipt": receipt, "attempts": attempts}
    tx.change("delivery", {"id": row["id"]}, {"state": "sending", **sent})


def _arrived(tx: Transaction, delivery_id: str, arrived: int, *, receipt: str | None) -> None:
    row = _require(tx, delivery_id)
    is_open = row["state"] in _OPEN and row["why"] != ERASED
    if not is_open or row["arrived"] >= arrived:
        raise Conflict(f"delivery {delivery_id} is {row['state']}, not pending")
    waits = {"state": "pending", "arrived": arrived, "receipt": receipt, "attempts": 0}
    tx.change("delivery", {"id": row["id"]}, waits)


def _settle(  # noqa: PLR0913  # as the port has it
    tx: Transaction,
    delivery_id: str,
    state: DeliveryState,
    *,
    at: datetime,
    receipt: str | None = None,
    why: str | None = None,
    due_at: datetime | None = None,
) -> None:
    if state == "sending":
        raise Conflict("`settle` does not set the state sending: call `sending`")
    row = _require(tx, delivery_id)
    if row["state"] in {"sent", "failed"}:
        return  # a final state does not change
    is_erased = row["why"] == ERASED
    settled = {
        "state": "failed" if is_erased and state == "pending" else state,
        "receipt": row["receipt"] if receipt is None else receipt,
        "due_at": due_at or row["due_at"],
        "why": row["why"] if is_erased or why is None else why,
        "settled_at": row["settled_at"] or at,
    }
    tx.change("delivery", {"id": row["id"]}, settled)


def _strand(tx: Transaction, accounts: Collection[tuple[str, str]], *, at: datetime) -> int:
    rows = tx.find("delivery", {}, "id channel account", index="due")
    known = set(accounts)
    ids = tuple(one["id"] for one in rows if (one["channel"], one["account"]) not in known)
    tx.change("delivery", {"id": ids, "settled_at": None}, {"settled_at": at})
    return tx.change("delivery", {"id": ids}, {"state": "failed", "why": NO_CHANNEL})


def _dead_letter(tx: Transaction, delivery_id: str) -> Row:
    terms = {"delivery_id": delivery_id, "state": _DEAD}
    return tx.require("delivery", terms, "", f"dead letter {delivery_id}")


def _resubmit(tx: Transaction, delivery_id: str, *, now: datetime) -> None:
    row = _dead_letter(tx, delivery_id)
    if row["why"] == ERASED:
        raise Conflict(f"the text of dead letter {delivery_id} is erased: drop it")
    is_twice = row["state"] == "unknown" or (row["why"] or "").endswith(TWICE)
    again = {"state": "pending", "attempts": 0, "due_at": now, "settled_at": None}
    tx.change("delivery", {"id": row["id"]}, {**again, "why": TWICE if is_twice else None})


def _drop(tx: Transaction, delivery_id: str) -> None:
    tx.delete("delivery", {"id": _dead_letter(tx, delivery_id)["id"]})


class StoredOutbox(StorePart):
    """Implements the port Outbox."""

    due = reading(_due)
    interrupted = reading(_interrupted)
    dead_letters = reading(_dead_letters)
    tally = reading(_tally)
    sending = writing_durably(_sending)
    arrived = writing(_arrived)
    settle = writing(_settle)
    strand = writing_durably(_strand)
    resubmit = writing_durably(_resubmit)
    drop = writing_durably(_drop)
