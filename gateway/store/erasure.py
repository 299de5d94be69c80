"""Whole results of tools, packed in the threads of the store; and the erasure of sessions."""

import zlib
from datetime import datetime
from functools import partial

from gateway.domain.agents import Original
from gateway.domain.errors import Busy, NotFound
from gateway.domain.facts import Erasure, tombstone_of
from gateway.domain.ids import SessionKey
from gateway.domain.sessions import Erased
from gateway.store import facts
from gateway.store.outbox import ERASED
from gateway.store.transaction import (
    Fields,
    Terms,
    Transaction,
    in_batches,
    places_of,
    require_session,
)
from gateway.store.turns import forget_turns, rewrite_index
from gateway.store.writer import StorePart, WriteTransaction, reading, writing

_FAST = 1  # a level of zlib
_OF_ORIGINAL = Fields("reference run_id tool at")
_ANY = "surrogatepass"  # a tool may return half of a surrogate pair


def _forget_originals(tx: Transaction, session_key: SessionKey) -> None:
    tx.delete("original", {"session": session_key})


def sweep_originals(tx: Transaction, before: datetime, limit: int) -> int:
    """Deletes the oldest originals from before that time. Returns their number."""
    rows = tx.find("original", {"at <": before}, "id", order="at", limit=limit)
    return tx.delete("original", {"id": tuple(row["id"] for row in rows)}) if rows else 0


def _keep(tx: Transaction, original: Original) -> None:
    packed = zlib.compress(original.content.encode("utf-8", _ANY), _FAST)
    row = {**_OF_ORIGINAL.row(original), "session": original.session_key, "content": packed}
    tx.insert("original", row, on_conflict="keep")


def _read(tx: Transaction, session_key: SessionKey, reference: str) -> Original | None:
    row = tx.first("original", {"reference": reference, "session": session_key})
    if row is None:
        return None
    content = zlib.decompress(row["content"]).decode("utf-8", _ANY)
    return Original(session_key=session_key, content=content, **_OF_ORIGINAL.values(row))


class StoredOriginals(StorePart):
    keep_original = writing(_keep, durable=False)
    read_original = reading(_read)
    forget_originals = writing(_forget_originals, durable=False)


class Erasures(StorePart):
    async def erase(self, key: SessionKey, *, by: str, dry_run: bool, now: datetime) -> Erased:
        """Returns after the index of words is rewritten too. After a crash before that, the erasure
        has to be repeated."""
        what = Erasure(session_key=key, by=by)
        if dry_run:
            return await self._readers.read(partial(_count, key=key, what=what))
        erase = partial(_erase, key=key, what=what, now=now)
        erased = await self._writer.write(erase, durable=True)
        await rewrite_index(self._writer)
        return erased


def _shown(session: int) -> Terms:
    return {**places_of(session), "standing <": 2}


def _count(tx: Transaction, key: SessionKey, what: Erasure) -> Erased:
    session = tx.first("session", {"key": key}, "id")
    if session is None:
        raise NotFound(f"session {key}")
    return Erased(tx.count("node", _shown(session["id"])), facts.count_of(tx, what))


def _erase(tx: WriteTransaction, key: SessionKey, what: Erasure, now: datetime) -> Erased:
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
    _forget_originals(tx, key)
    session.clear_head()
    session.last_summary, session.is_closed = None, True
    return Erased(nodes, erased, tombstone_of(what, now))


def _blank_rest(tx: Transaction, session: Terms) -> None:
    """Blanks the texts in the other tables. Ids stay, so that a repeated message is recognised and
    accounts still add up."""
    runs = tx.find("run", session, "run_id")
    for some in in_batches([row["run_id"] for row in runs]):
        tx.delete("journal", {"run_id": some})
    texts = {"content": "", "digest": "", "summary": "", "has_journal": False}
    tx.change("run", session, {**texts, "log": None, "tape": None, "whence": None})
    tx.change("delivery", {**session, "state": "pending"}, {"state": "failed"})
    tx.change("delivery", session, {"text": "", "whence": None, "receipt": None, "why": ERASED})
    tx.delete("rule_state", session)
    tx.delete("notice", session)
