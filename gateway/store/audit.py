"""The audit, a chain of entries that are never changed (SQLite enforces it by triggers); and the
tokens that were created while a gateway ran, by the digests of their secrets."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial

import anyio

from gateway.domain.budgets import Limit, TokenBudget
from gateway.domain.errors import Conflict, NotFound
from gateway.domain.events import AuditEntry, AuditEvent, AuditKind, entry_after
from gateway.domain.tokens import CreatedToken
from gateway.store.tables import TABLES
from gateway.store.transaction import Fields, Row, Transaction, without_none
from gateway.store.writer import Engine, StorePart, reading, writing_durably

log = logging.getLogger(__name__)


# --- audit ---------------------------------------------------------------------------------------
def append_event(tx: Transaction, event: AuditEvent) -> None:
    last = _newest(tx)
    tx.insert("audit", TABLES["audit"].row_of(entry_after(last[0] if last else None, event)))


def _newest(
    tx: Transaction,
    *,
    kind: AuditKind | None = None,
    before: int | None = None,
    limit: int = 1,
) -> Sequence[AuditEntry]:
    terms = without_none({"kind": kind, "seq <": before})
    return [AuditEntry(**row) for row in tx.find("audit", terms, order="-seq", limit=limit)]


def _after(tx: Transaction, seq: int, *, limit: int) -> Sequence[AuditEntry]:
    rows = tx.find("audit", {"seq >": seq}, order="seq", limit=limit)
    return [AuditEntry(**row) for row in rows]


class StoredAudit(StorePart):
    """Implements the port Audit."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._turn = anyio.Lock()

    async def append(self, event: AuditEvent) -> None:
        async with self._turn:  # each entry contains the hash of the previous one
            await self._writer.write(partial(append_event, event=event), durable=False)

    newest = reading(_newest, caught_up=True)
    after = reading(_after, caught_up=True)

    def append_soon(self, event: AuditEvent) -> None:
        self._writer.write_soon(partial(append_event, event=event), partial(_note_missing, event))


def _note_missing(event: AuditEvent, error: Exception) -> None:
    facts = {"kind": event.kind, "actor": event.actor, "why": str(error)}
    log.error("audit_entry_not_written", extra=facts)


# --- tokens --------------------------------------------------------------------------------------
KEYS = "keys"  # tokens and raised limits


def note_change(tx: Transaction) -> None:
    """Raises the version that other gateways over the same store poll."""
    tx.add("live", [{"name": KEYS, "version": 1}], {"version": 1})


def _version(tx: Transaction) -> int:
    return tx.value("live", {"name": KEYS}, "version", 0)


def _create(tx: Transaction, token: CreatedToken, event: AuditEvent, *, inherits: bool) -> None:
    tx.guard("token", token.name)
    for row in tx.find("token", {"name": token.name}, "revoked_at"):
        if row["revoked_at"] is None:
            raise Conflict(
                f"token {token.name!r} exists already: choose another name, or revoke it"
            )
        if not inherits:
            raise Conflict(
                f"token {token.name!r} was revoked and still owns sessions and facts: choose another name, "
                "or pass --inherit to give them to the new token"
            )
    tx.insert("token", _row_of(token))
    note_change(tx)
    append_event(tx, event)


def _revoke(tx: Transaction, name: str, event: AuditEvent) -> None:
    in_force = {"name": name, "revoked_at": None}
    if not tx.find("token", in_force, "digest"):
        raise NotFound(f"token {name[:100]!r}")
    tx.change("token", in_force, {"revoked_at": event.at})
    note_change(tx)
    append_event(tx, event)


def _note_use(tx: Transaction, digest: bytes, at: datetime) -> None:
    tx.change("token", {"digest": digest.hex()}, {"last_used_at": at})


def _all(tx: Transaction) -> Sequence[CreatedToken]:
    return [_token_of(row) for row in tx.find("token", {}, order="name created_at")]


class StoredTokens(StorePart):
    """Implements the port TokenStore."""

    create = writing_durably(_create)
    revoke = writing_durably(_revoke)
    tokens = reading(_all, caught_up=True)
    version = reading(_version)

    def note_use(self, digest: bytes, at: datetime) -> None:
        self._writer.write_soon(partial(_note_use, digest=digest, at=at), _not_noted)


def _not_noted(error: Exception) -> None:
    log.warning("token_use_not_noted", extra={"why": str(error)})


_PLAIN = Fields("name hint created_at created_by expires_at revoked_at last_used_at")


def _row_of(token: CreatedToken) -> Row:
    budget = None if token.budget is None else json.dumps(asdict(token.budget))
    scopes = json.dumps(sorted(token.scopes))
    return {"digest": token.digest.hex(), "scopes": scopes, "budget": budget, **_PLAIN.row(token)}


def _token_of(row: Row) -> CreatedToken:
    kept = None if row["budget"] is None else json.loads(row["budget"])
    budget = kept and TokenBudget(**{name: Limit(**limit) for name, limit in kept.items()})
    scopes: Row = {"scopes": frozenset(json.loads(row["scopes"])), "budget": budget}
    return CreatedToken(bytes.fromhex(row["digest"]), **scopes, **_PLAIN.values(row))
