"""The erasure of sessions: their texts, facts and words leave every table."""

from datetime import datetime

from gateway.domain.errors import Busy, NotFound
from gateway.domain.facts import Erasure, tombstone_of
from gateway.domain.ids import SessionKey
from gateway.domain.sessions import Erased
from gateway.store import facts
from gateway.store.outbox import ERASED
from gateway.store.transaction import (
    Terms,
    Transaction,
    places_of,
    require_session,
)
from gateway.store.turns import forget_turns
from gateway.store.writer import WriteTransaction


def _shown(session: int) -> Terms:
    return {**places_of(session), "standing <": 2}


def count_session(tx: Transaction, key: SessionKey, what: Erasure) -> Erased:
    if not (session := tx.session_id(key)):
        raise NotFound(f"session {key}")
    return Erased(tx.count("node", _shown(session)), facts.count_of(tx, what))


def erase_session(tx: WriteTransaction, key: SessionKey, what: Erasure, now: datetime) -> Erased:
    session = require_session(key, tx)
    if tx.find("run", {"session": session.id}, "id", limit=1, index="unfinished"):
        raise Busy(
            f"session {key} has an unanswered message, and nothing was erased: wait for the answer or "
            "abort it first"
        )
    forget_turns(tx, session.id)  # before their texts are gone: the index needs them to delete
    erased = facts.erase(tx, what, now)
    blank = {"text": "", "packed": None, "label": None, "summary": None, "checkpoint": False}
    nodes = tx.change("node", _shown(session.id), {**blank, "standing": 2})
    _blank_rest(tx, {"session": session.id})
    tx.change("session", {"id": session.id}, {"head": None, "message_count": 0, "state": "closed"})
    tx.delete("original", {"session": key})
    session.clear_head()
    session.last_summary, session.is_closed = None, True
    return Erased(nodes, erased, tombstone_of(what, now))


def _blank_rest(tx: Transaction, session: Terms) -> None:
    """Blanks the texts in the other tables. Ids stay, so that a repeated message is recognised and
    accounts still add up."""
    runs = tx.find("run", session, "run_id")
    tx.delete("journal", {"run_id": tuple(row["run_id"] for row in runs)})
    texts = {"content": "", "digest": "", "summary": "", "has_journal": False}
    tx.change("run", session, {**texts, "log": None, "tape": None, "whence": None})
    tx.change("delivery", {**session, "state": "pending"}, {"state": "failed"})
    tx.change("delivery", session, {"text": "", "whence": None, "receipt": None, "why": ERASED})
    tx.delete("rule_state", session)
    tx.delete("notice", session)
