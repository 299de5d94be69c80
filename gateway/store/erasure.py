"""Whole results of tools, packed by the threads that write and read them; and erasing sessions."""

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
from gateway.store.transaction import Terms, Transaction, in_batches, places_of
from gateway.store.turns import forget_turns, rewrite_index
from gateway.store.writer import StorePart, WriteTransaction, reading, writing

_FAST = 1  # of zlib's levels
_ANY = "surrogatepass"  # a tool may say what is no text


def _forget_originals(tx: Transaction, session_key: SessionKey) -> None:
    tx.delete("original", {"session": session_key})


def sweep_originals(tx: Transaction, before: datetime, limit: int) -> int:
    """Deletes the oldest that were kept before that time. Returns how many."""
    rows = tx.find("original", {"at <": before}, "id", order="at", limit=limit)
    return tx.delete("original", {"id": tuple(row["id"] for row in rows)}) if rows else 0


def _keep(tx: Transaction, original: Original) -> None:
    one = original
    packed = zlib.compress(one.content.encode("utf-8", _ANY), _FAST)
    kept = {"reference": one.reference, "session": one.session_key, "run_id": one.run_id}
    tx.insert("original", {**kept, "tool": one.tool, "content": packed, "at": one.at}, taken="keep")


def _read(tx: Transaction, session_key: SessionKey, reference: str) -> Original | None:
    row = tx.first("original", {"reference": reference, "session": session_key})
    if row is None:
        return None
    content = zlib.decompress(row["content"]).decode("utf-8", _ANY)
    named = (reference, session_key, row["run_id"], row["tool"])
    return Original(*named, content, row["at"])


class StoredOriginals(StorePart):
    keep_original = writing(_keep, durable=False)
    read_original = reading(_read)
    forget_originals = writing(_forget_originals, durable=False)


class Erasures(StorePart):
    async def erase(self, key: SessionKey, *, by: str, dry_run: bool, now: datetime) -> Erased:
        """Returns only when the index of words is written anew as well: after a crash before that it
        has to be asked again."""
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
    session = tx.session(key)
    if session is None:
        raise NotFound(f"session {key}")
    if tx.find("run", {"session": session.id}, "id", limit=1, index="unfinished"):
        raise Busy(
            f"session {key} has a message that is not answered yet: nothing was erased; wait for its "
            "end or abort it first"
        )
    forget_turns(tx, session.id)  # as long as their texts can be told to the index
    erased = facts.erase(tx, what, now)
    blank = {"text": "", "packed": None, "label": None, "summary": None, "checkpoint": False}
    nodes = tx.change("node", _shown(session.id), {**blank, "standing": 2})
    _blank_rest(tx, {"session": session.id})
    tx.change("session", {"id": session.id}, {"head": None, "message_count": 0, "state": "closed"})
    _forget_originals(tx, key)
    session.head, session.head_id, session.summary = None, None, None
    session.last_summary, session.is_closed = None, True
    return Erased(nodes, erased, tombstone_of(what, now))


def _blank_rest(tx: Transaction, session: Terms) -> None:
    """The rest, each with what its row would otherwise still hold; ids stay, so that a message that
    is sent again is known, and accounts still add up."""
    runs = tx.find("run", session, "run_id")
    for some in in_batches([row["run_id"] for row in runs]):
        tx.delete("journal", {"run_id": some})
    texts = {"content": "", "digest": "", "summary": "", "has_journal": False}
    tx.change("run", session, {**texts, "log": None, "tape": None, "whence": None})
    tx.change("delivery", {**session, "state": "pending"}, {"state": "failed"})
    tx.change("delivery", session, {"text": "", "whence": None, "receipt": None, "why": ERASED})
    tx.delete("rule_state", session)
    tx.delete("notice", session)
