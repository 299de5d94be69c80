"""Sessions and their conversation trees: nodes, paths, labels, branches, lists, erasure."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import get_args

from gateway.domain.errors import Busy, NotFound
from gateway.domain.facts import Erasure, tombstone_of
from gateway.domain.ids import NodeId, SessionKey, to_micros
from gateway.domain.messages import Node, Standing
from gateway.domain.sessions import (
    Erased,
    ImportResult,
    Path,
    SessionPage,
    SessionQuery,
    SessionRecord,
    select_new_nodes,
)
from gateway.store import facts
from gateway.store.channels import ERASED
from gateway.store.pruning import Fork, Span, branches_off, kept_spans, outdated
from gateway.store.tables import TABLES
from gateway.store.transaction import (
    SEQ_BITS,
    Row,
    SessionRow,
    Terms,
    Transaction,
    add_nodes,
    count_nodes,
    place_of,
    places_of,
    require_session,
    seq_of,
    summary_at,
    unpack_message,
    without_none,
)
from gateway.store.turns import forget_turns, rewrite_index
from gateway.store.writer import StorePart, WriteTransaction, reading, writing, writing_durably

# --- nodes ---------------------------------------------------------------------------------------
_STANDINGS: tuple[Standing, ...] = get_args(Standing)  # by their number in the column
_ERASED = _STANDINGS.index("erased")
_MOST_FORKS = 1000  # of a session that are read: the newest


def _to_node(row: Row, parent_id: NodeId | None) -> Node:
    place = row["place"]
    role = "summary" if row["summary"] == place else row["role"]
    return Node(
        row["id"],
        parent_id,
        row["run_id"],
        unpack_message(role, row["text"], row["packed"]),
        row["created_at"],
        row["tokens"],
        row["status"],
        row["model"],
        seq_of(place),
        row["label"],
        row["checkpoint"],
        _STANDINGS[row["standing"]],
    )


# --- labels and branches -------------------------------------------------------------------------
def _put_label(session: SessionRow, place: int, label: str | None, tx: Transaction) -> None:
    if label is not None:
        tx.change("node", {"label": label, **places_of(session.id)}, {"label": None})
    tx.change("node", {"place": place}, {"label": label})


def forks_of(session: int, tx: Transaction) -> list[Fork]:
    """Returns the newest forks, oldest first."""
    terms, columns = places_of(session), "place parent"
    rows = tx.find("node", terms, columns, order="-place", limit=_MOST_FORKS, index="fork")
    return [
        (seq_of(row["place"]), None if row["parent"] is None else seq_of(row["parent"]))
        for row in reversed(rows)
    ]


def prune(session: SessionRow, most: int, tx: Transaction) -> None:
    """Archives branches of a tree with more than `most` nodes. The cost does not depend on the
    length of the session."""
    if session.head is None or not (most and session.is_forked) or session.is_pruned:
        return
    forks = forks_of(session.id, tx)
    kept = kept_spans(forks, _tips(session, tx))
    tree, branches = branches_off(forks, seq_of(session.head), kept, session.last_seq)

    def shown(spans: Sequence[Span]) -> int:
        gone = sum(tx.count("node", _within(session, span), index="archived") for span in spans)
        return sum(last - first + 1 for first, last in spans) - gone

    gone = outdated(tree, branches, shown, most)
    for span in gone:
        tx.change("node", {**_within(session, span), "standing": 0}, {"standing": 1})
    session.is_pruned = len(gone) == sum(map(len, branches))


def _bring_back(session: SessionRow, tx: Transaction) -> None:
    """Unarchives the paths to HEAD, labels and checkpoints."""
    session.is_pruned = False
    if tx.find("node", places_of(session.id), "place", limit=1, index="archived"):
        for span in kept_spans(forks_of(session.id, tx), _tips(session, tx)).items():
            archived = {**_within(session, span), "standing": 1}
            tx.change("node", archived, {"standing": 0}, index="archived")


def _tips(session: SessionRow, tx: Transaction) -> list[int]:
    kept = tx.find("node", places_of(session.id), "place", index="kept")
    tips = [seq_of(row["place"]) for row in kept]
    return tips if session.head is None else [*tips, seq_of(session.head)]


def _within(session: SessionRow, span: Span) -> Terms:
    first, last = span
    return {"place >=": place_of(session.id, first), "place <=": place_of(session.id, last)}


# --- reading the tree ----------------------------------------------------------------------------
def _path(
    tx: Transaction,
    key: SessionKey,
    *,
    upto: NodeId | None = None,
    before: NodeId | None = None,
    limit: int,
) -> Path:
    """Returns the path to `upto`, to the node before `before`, or to HEAD. Its `head` is always the
    session's HEAD. Raises NotFound for a node of another session."""
    session = tx.first("session", {"key": key}, "id head")
    if session is None:
        return Path((), None, more=False)
    head, named = session["head"], before or upto
    end = head if named is None else _end(named, session["id"], tx, is_before=before is not None)
    rows = _walk(end, max(0, limit) + 1, session["id"], tx)
    head_id = _id_at(head, rows, tx)
    if limit < 1 or not rows:
        return Path((), head_id, more=end is not None)
    parent_id = rows[limit]["id"] if len(rows) > limit else None
    more, nodes = parent_id is not None, list[Node]()
    for row in reversed(rows[:limit]):
        nodes.append(_to_node(row, parent_id))
        parent_id = nodes[-1].id
    return Path(tuple(nodes), head_id, more, None if before else _summary_of(rows, tx))


def _id_at(place: int | None, rows: Sequence[Row], tx: Transaction) -> NodeId | None:
    """Returns the id of the node at this place, which may be the first of the rows."""
    if rows and rows[0]["place"] == place:
        return NodeId(rows[0]["id"])
    return tx.value("node", {"place": place}, "id", None)


def _end(named: NodeId, session: int, tx: Transaction, *, is_before: bool) -> int | None:
    node = tx.first("node", {"id": named, "standing <": _ERASED}, "place parent")
    if node is None or node["place"] >> SEQ_BITS != session:
        raise NotFound(f"message {named}")
    end: int | None = node["parent" if is_before else "place"]
    return end


def _walk(end: int | None, limit: int, session: int, tx: Transaction) -> list[Row]:
    """Returns the path to a place, newest first. An unforked path is adjacent on disk; among
    branches, the query reads about as many rows of them as of the path."""
    rows, at, most = list[Row](), end, limit
    while at is not None and len(rows) < limit:
        first = max(at - min(most, limit - len(rows)), place_of(session, 0))
        there = tx.find("node", {"place >": first, "place <=": at}, order="-place")
        had = len(rows)
        for row in there:
            if row["place"] == at:
                rows.append(row)
                at = row["parent"]
        if len(rows) == had:  # the node at this place was deleted
            break
        most = 2 * (len(rows) - had)
    return rows[:limit]


def _summary_of(rows: Sequence[Row], tx: Transaction) -> Node | None:
    """Returns the newest summary on the path."""
    place = rows[0]["summary"] if rows else None
    if place is None:
        return None
    row = next((one for one in rows if one["place"] == place), None)
    row = row or tx.first("node", {"place": place})
    return None if row is None else _with_parent([row], tx)[0]


def _with_parent(rows: Sequence[Row], tx: Transaction) -> list[Node]:
    known = {row["place"]: row["id"] for row in rows}
    missing = tuple({row["parent"] for row in rows} - known.keys() - {None})
    known |= {row["place"]: row["id"] for row in tx.find("node", {"place": missing}, "place id")}
    return [_to_node(row, known.get(row["parent"])) for row in rows]


def _node(tx: Transaction, key: SessionKey, node_id: str) -> Node | None:
    if not (session := tx.session_id(key)):
        return None
    places = places_of(session)
    row = tx.first("node", {"id": node_id, "standing <": _ERASED, **places})
    row = row or tx.first("node", {"label": node_id, **places})
    return None if row is None else _with_parent([row], tx)[0]


_SHAPE = " ".join(one for one in TABLES["node"].types if one not in {"text", "packed"})


def _tree(
    tx: Transaction, key: SessionKey, *, limit: int, archived: bool = False
) -> Sequence[Node]:
    """Returns the newest `limit` nodes, oldest first."""
    if not (session := tx.session_id(key)):
        return []
    terms = {**places_of(session), "standing <=": int(archived)}
    rows = tx.find("node", terms, _SHAPE, order="-place", limit=limit)
    return _with_parent([{**row, "text": "", "packed": None} for row in reversed(rows)], tx)


# --- changing the tree ---------------------------------------------------------------------------
def _found_node(key: SessionKey, node: NodeId, tx: Transaction) -> tuple[SessionRow, int]:
    session = require_session(key, tx)
    if (place := tx.place(session, node)) is None:
        raise NotFound(f"message {node}")
    return session, place


def _move_head(
    tx: Transaction,
    key: SessionKey,
    to: NodeId,
    *,
    expected: NodeId | None,
    label: str | None = None,
) -> bool:
    """Moves HEAD. A label moves here from another node of the session. Raises NotFound for an
    unknown session or node."""
    session, place = _found_node(key, to, tx)
    if session.head_id != expected:
        return False
    summary = summary_at(place, tx)
    tx.change("session", {"id": session.id}, {"head": place})
    if label is not None:
        _put_label(session, place, label, tx)
    session.head, session.head_id, session.summary = place, to, summary
    _bring_back(session, tx)
    return True


def _append_summary(
    tx: Transaction, key: SessionKey, node: Node, *, expected: NodeId | None
) -> bool:
    session = require_session(key, tx)
    if session.head_id != expected:
        return False
    add_nodes((node,), session.head, session, tx)
    session.move_head(node.id)
    moved = {"last_seq": session.last_seq, "head": session.head}
    tx.change("session", {"id": session.id}, moved)
    return True


def _start_over(tx: Transaction, key: SessionKey, *, now: datetime) -> None:
    at = to_micros(now)
    session = tx.session(key) or tx.make_session(key, at)
    if session.head is not None:
        started = {"head": None, "state": "active", "updated_at": tx.stamp(at)}
        tx.change("session", {"id": session.id}, started)
        session.clear_head()
        session.is_closed = False


def _label_node(tx: Transaction, key: SessionKey, node: NodeId, label: str | None) -> None:
    session, place = _found_node(key, node, tx)
    _put_label(session, place, label, tx)
    _bring_back(session, tx)


def _checkpoint(tx: Transaction, key: SessionKey, node: NodeId, *, is_kept: bool) -> None:
    session, place = _found_node(key, node, tx)
    tx.change("node", {"place": place}, {"checkpoint": is_kept})
    _bring_back(session, tx)


def _import_nodes(
    tx: Transaction, key: SessionKey, nodes: Sequence[Node], *, now: datetime
) -> ImportResult:
    session, at = tx.session(key), to_micros(now)
    new, count = _new(key, nodes, session, tx), 0
    if session is None:
        first = min((to_micros(node.created_at) for node in new), default=at)
        session = tx.make_session(key, min(first, at))
    for node in new:
        parent = tx.place(session, node.parent_id) if node.parent_id else None
        moves = session.head == parent
        count += add_nodes((node,), parent, session, tx)
        if moves:
            session.move_head(node.id)
    session.last_run = session.last_run or int(session.last_seq > 0)
    count_nodes(session, count, at, tx)
    return ImportResult(len(new), NodeId(session.head_id) if session.head_id else None)


def _new(
    key: SessionKey, nodes: Sequence[Node], session: SessionRow | None, tx: Transaction
) -> list[Node]:
    """Returns the nodes that are not stored yet, with their new ids. Raises ImportRefused."""

    def is_known(name: NodeId) -> bool | None:
        """Returns None if the id is another session's, or erased."""
        row = tx.first("node", {"id": name}, "place standing")
        if row is None:
            return False
        is_ours = session is not None and row["place"] >> SEQ_BITS == session.id
        return True if is_ours and row["standing"] < _ERASED else None

    return select_new_nodes(key, nodes, is_known)


# --- sessions ------------------------------------------------------------------------------------
def _find_session(tx: Transaction, key: SessionKey) -> SessionRecord | None:
    row = tx.first("session", {"key": key})
    return _records([row], tx)[0] if row else None


def _list_sessions(tx: Transaction, query: SessionQuery) -> SessionPage:
    """Lists sessions, newest first. `updated_at` is unique, so passing that of the last session as
    `before` skips none."""
    wanted = {
        "agent": query.agents,
        "channel": query.channels,
        "account": query.account,
        "peer": query.peer,
        "key contains": query.text,
        "updated_at <": query.before,
    }
    limit = max(0, query.limit)
    rows = tx.find("session", without_none(wanted), order="-updated_at", limit=limit + 1)
    return SessionPage(tuple(_records(rows[:limit], tx)), more=len(rows) > limit)


def _records(rows: Sequence[Row], tx: Transaction) -> list[SessionRecord]:
    heads = tuple(row["head"] for row in rows if row["head"] is not None)
    ids = {one["place"]: one["id"] for one in tx.find("node", {"place": heads}, "place id")}
    keys = tuple(str(row["key"]) for row in rows)
    spent = {one["name"]: one for one in tx.find("spend", {"kind": "session", "name": keys})}
    return [_to_record(row, spent.get(str(row["key"])), ids.get(row["head"])) for row in rows]


def _to_record(row: Row, spent: Row | None, head: NodeId | None) -> SessionRecord:
    """Adds the counts in the row, which are from before there was a ledger, to those of the ledger."""
    sent, received, cost = row["input_tokens"], row["output_tokens"], row["cost_usd"]
    if spent is not None:
        sent, received = sent + spent["input_tokens"], received + spent["output_tokens"]
        if spent["priced"]:
            cost = (cost or 0.0) + spent["nano_usd"] / 1e9
    counts = (row["message_count"], sent, received, cost)
    times = (row["created_at"], row["updated_at"])
    return SessionRecord(row["key"], *times, *counts, row["state"], head)


def _close_session(tx: Transaction, key: SessionKey) -> None:
    session = require_session(key, tx)
    tx.change("session", {"id": session.id}, {"state": "closed"})
    session.is_closed = True


# --- erasure -------------------------------------------------------------------------------------
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


# --- settings of users ---------------------------------------------------------------------------
def read_settings(tx: Transaction, user: str) -> str | None:
    return tx.value("settings", {"user": user}, "json", None)


def _write_settings(tx: Transaction, user: str, record: str, *, expected: str | None) -> bool:
    if expected is None:
        return tx.insert("settings", {"user": user, "json": record}, on_conflict="keep") > 0
    return tx.change("settings", {"user": user, "json": expected}, {"json": record}) == 1


class StoredSessions(StorePart):
    """Implements the port SessionStore."""

    find_session = reading(_find_session, caught_up=True)
    list_sessions = reading(_list_sessions, caught_up=True)
    count_sessions = reading(lambda tx: tx.count("session", {}))
    close_session = writing_durably(_close_session)
    path = reading(_path)
    node = reading(_node)
    tree = reading(_tree)
    move_head = writing_durably(_move_head)
    append_summary = writing(_append_summary)
    start_over = writing_durably(_start_over)
    label_node = writing_durably(_label_node)
    checkpoint = writing_durably(_checkpoint)
    import_nodes = writing_durably(_import_nodes)
    read_settings = reading(read_settings)
    write_settings = writing_durably(_write_settings)

    async def erase(self, key: SessionKey, *, by: str, dry_run: bool, now: datetime) -> Erased:
        """Returns after the index of words is rewritten too. After a crash before that, the erasure
        has to be repeated."""
        what = Erasure(session_key=key, by=by)
        if dry_run:
            return await self._readers.read(partial(count_session, key=key, what=what))
        erase = partial(erase_session, key=key, what=what, now=now)
        erased = await self._writer.write(erase, durable=True)
        await rewrite_index(self._writer)
        return erased
