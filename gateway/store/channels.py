"""The data of channels: memos, messages answered without a turn, and pairings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gateway.domain.channels import MOST_WAITING, ChannelMemo, Pairing, PairingState
from gateway.domain.errors import AlreadyReceived
from gateway.domain.ids import to_micros
from gateway.domain.inbox import NewDelivery, NewEntry, ReceivedMessage
from gateway.store.outbox import add_delivery
from gateway.store.tables import TABLES
from gateway.store.transaction import Fields, Terms, Transaction, without_none
from gateway.store.writer import StorePart, reading, writing, writing_durably

_MESSAGE, _PERSON = Fields("platform_id channel account"), Fields("channel account person")


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
