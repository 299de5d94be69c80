"""The data of channels: deliveries, in order within a session; memos; messages answered without a turn;
and pairings."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gateway.domain.channels import MOST_WAITING, ChannelMemo, Pairing, PairingState
from gateway.domain.errors import AlreadyReceived, Conflict
from gateway.domain.ids import RunId, to_micros
from gateway.domain.inbox import (
    TWICE,
    Delivery,
    DeliveryState,
    NewDelivery,
    NewEntry,
    ReceivedMessage,
)
from gateway.store.tables import TABLES
from gateway.store.transaction import Fields, Row, Terms, Transaction, without_none
from gateway.store.writer import StorePart, reading, writing, writing_durably

_MESSAGE, _PERSON = Fields("platform_id channel account"), Fields("channel account person")


# --- deliveries ----------------------------------------------------------------------------------
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


# --- pairings ------------------------------------------------------------------------------------
def _of_person(channel: str, account: str, person: str) -> Terms:
    return {"channel": channel, "account": account, "person": person}


def _find_pairing(tx: Transaction, channel: str, account: str, person: str) -> Pairing | None:
    row = tx.first("pairing", _of_person(channel, account, person))
    return Pairing(**row) if row else None


def _may_ask(tx: Transaction, asked: Pairing) -> bool:
    known = _find_pairing(tx, asked.channel, asked.account, asked.person)
    if known is not None and (known.state != "asked" or known.expires_at > asked.asked_at):
        return False
    line = {"channel": asked.channel, "account": asked.account, "state": "asked"}
    return tx.count("pairing", {**line, "expires_at >": asked.asked_at}) < MOST_WAITING


def _ask(tx: Transaction, asked: Pairing) -> bool:
    tx.guard("pairing", asked.channel, asked.account)
    if not _may_ask(tx, asked):
        return False
    tx.delete("pairing", {"state": "asked", "expires_at <=": asked.asked_at})
    tx.insert("pairing", TABLES["pairing"].row_of(asked))
    return True


def _decide_pairing(
    tx: Transaction, code_digest: str, state: PairingState, *, is_owner: bool, now: datetime
) -> Pairing | None:
    terms = {"code_digest": code_digest, "expires_at >": now}
    rows = tx.find("pairing", terms, limit=1, index="by_code")
    if not rows:
        return None
    asked = Pairing(**rows[0])
    tx.guard("pairing", asked.channel, asked.account)
    there: Terms = {"channel": asked.channel, "account": asked.account, "state": "paired"}
    owns = state == "paired" and (is_owner or tx.first("pairing", there, "person") is None)
    tx.change("pairing", _PERSON.row(asked), {"state": state, "is_owner": owns})
    return replace(asked, state=state, is_owner=owns)


def _remove_pairing(
    tx: Transaction,
    channel: str,
    account: str,
    person: str,
    *,
    state: PairingState | None = None,
) -> bool:
    terms = without_none({**_of_person(channel, account, person), "state": state})
    return tx.delete("pairing", terms) > 0


def _block(tx: Transaction, channel: str, account: str, person: str, *, now: datetime) -> Pairing:
    known = _find_pairing(tx, channel, account, person)
    new = Pairing(channel, account, person, None, "denied", "", now, now)
    blocked = replace(known or new, state="denied", code_digest="", is_owner=False)
    tx.put("pairing", TABLES["pairing"].row_of(blocked))
    return blocked


def _list_pairings(tx: Transaction, *, channel: str | None = None, limit: int) -> Sequence[Pairing]:
    terms = without_none({"channel": channel})
    found: list[Pairing] = []
    for state in ("asked", ("paired", "denied")):
        order = "-asked_at channel account person"
        rows = tx.find("pairing", {**terms, "state": state}, order=order, limit=limit - len(found))
        found += [Pairing(**row) for row in rows]
    return found


# --- messages without a turn, and memos ----------------------------------------------------------
def _read_memos(tx: Transaction, channel: str, account: str) -> Sequence[ChannelMemo]:
    terms = {"channel": channel, "account": account}
    return [ChannelMemo(**row) for row in tx.find("channel_memo", terms, order="slot")]


def write_memos(tx: Transaction, *memos: ChannelMemo) -> None:
    for memo in memos:
        tx.put("channel_memo", TABLES["channel_memo"].row_of(memo))


def _is_heard(tx: Transaction, message: Terms) -> bool:
    """True if the message was answered without a turn. An unreadable message may still be accepted
    later, when an operator asks for it."""
    return tx.value("channel_heard", message, "outcome", "unreadable") != "unreadable"


def require_unheard(entry: NewEntry, tx: Transaction) -> None:
    """Raises AlreadyReceived for a message of a channel that was answered without a turn."""
    id_, channel, account = entry.platform_id, entry.session_key.channel, entry.session_key.account
    if _is_heard(tx, {"platform_id": id_, "channel": channel, "account": account}):
        raise AlreadyReceived(f"message {id_!r} of {channel}:{account} was answered without a turn")


def _knows(tx: Transaction, channel: str, account: str, platform_id: str) -> bool:
    message = {"platform_id": platform_id, "channel": channel, "account": account}
    return _is_heard(tx, message) or tx.first("run", message, "id") is not None


def _record_heard(
    tx: Transaction,
    heard: ReceivedMessage,
    deliveries: Sequence[NewDelivery] = (),
    memos: Sequence[ChannelMemo] = (),
    asked: Pairing | None = None,
) -> bool:
    write_memos(tx, *memos)
    is_known = _knows(tx, heard.channel, heard.account, heard.platform_id)
    if heard.outcome == "unreadable":
        is_known = is_known or tx.first("channel_heard", _MESSAGE.row(heard), "at") is not None
    if is_known or (asked is not None and not _ask(tx, asked)):
        return False
    tx.put("channel_heard", TABLES["channel_heard"].row_of(heard))
    for new in deliveries:
        if tx.first("delivery", {"delivery_id": new.id}, "id") is None:
            add_delivery(new, to_micros(heard.at), tx)
    return True


def _list_unread(
    tx: Transaction, channel: str | None, *, platform_id: str | None = None, limit: int
) -> Sequence[ReceivedMessage]:
    terms = without_none({"outcome": "unreadable", "channel": channel, "platform_id": platform_id})
    return [
        ReceivedMessage(**row) for row in tx.find("channel_heard", terms, order="-at", limit=limit)
    ]


def _drop_unread(tx: Transaction, one: ReceivedMessage) -> None:
    tx.delete("channel_heard", {**_MESSAGE.row(one), "outcome": "unreadable"})


def _count_unread(tx: Transaction) -> Mapping[str, int]:
    counts = tx.tally("channel_heard", {"outcome": "unreadable"}, "channel")
    return {channel: count for (channel,), count in counts.items()}


def _forget_heard(tx: Transaction, *, before: datetime, limit: int) -> int:
    rows = tx.find("channel_heard", {"at <": before}, order="at", limit=limit)
    for row in rows:
        tx.delete("channel_heard", _MESSAGE.values(row))
    return len(rows)


class StoredChannels(StorePart):
    """Implements the port ChannelStore."""

    knows = reading(_knows)
    record = writing_durably(_record_heard)
    unread = reading(_list_unread)
    drop_unread = writing_durably(_drop_unread)
    count_unread = reading(_count_unread)
    forget_received = writing(_forget_heard)
    read_memos = reading(_read_memos)
    write_memos = writing_durably(write_memos)
    find_pairing = reading(_find_pairing)
    may_ask = reading(_may_ask)
    decide_pairing = writing_durably(_decide_pairing)
    remove_pairing = writing_durably(_remove_pairing)
    block = writing_durably(_block)
    list_pairings = reading(_list_pairings)
