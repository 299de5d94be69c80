"""audit.tail, audit.verify: what changed authority or money, and whether that was changed since."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from gateway.api.errors import Forbidden
from gateway.domain.events import AuditEntry
from gateway.domain.ports import Audit
from gateway.web.given import Place, Whole
from gateway.web.published.money import AuditPage, AuditRow, AuditVerdict
from gateway.web.rpc import Call, Method
from gateway.web.shapes import stamp


class Tail(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    before: Place | None = None
    limit: Whole = Field(default=50, ge=1, le=500)


class Verify(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    head: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")


@dataclass(frozen=True, slots=True)
class AuditMethods:
    audit: Audit
    at_once: int = 1_000

    def all(self) -> Sequence[Method]:
        return (
            Method("audit.tail", Tail, ("admin",), self.tail),
            Method("audit.verify", Verify, ("admin",), self.verify),
        )

    async def tail(self, call: Call, params: Tail) -> AuditPage:
        """What changed authority or money, the newest first."""
        _require_all(call)
        found = await self.audit.newest(before=params.before, limit=params.limit + 1)
        shown = [_shown(entry) for entry in found[: params.limit]]
        return {"entries": shown, "more": len(found) > params.limit}

    async def verify(self, call: Call, params: Verify) -> AuditVerdict:
        """Whether the audit is as it was written.

        Reads all of it, a little at a time. `head` is a hash that was told earlier: an end that
        was cut off leaves a chain that is whole, but without that hash."""
        _require_all(call)
        last: AuditEntry | None = None
        is_known = params.head is None
        while entries := await self.audit.after(last.seq if last else 0, limit=self.at_once):
            for entry in entries:
                if not entry.follows(last):
                    return _verdict(last, f"entry {entry.seq} is not what was written there")
                last, is_known = entry, is_known or entry.hash == params.head
        return _verdict(last, None if is_known else "no entry has that hash: the end is missing")


def _require_all(call: Call) -> None:
    if call.principal.agents is not None:
        raise Forbidden("the audit is about all agents, and your token reaches some only")


def _verdict(last: AuditEntry | None, why: str | None) -> AuditVerdict:
    """`entries` and `head` are of the part that is whole."""
    entries, head = (last.seq, last.hash) if last else (0, None)
    return {"ok": why is None, "entries": entries, "head": head, "why": why}


def _shown(entry: AuditEntry) -> AuditRow:
    return {
        "seq": entry.seq,
        "at": stamp(entry.at),
        "kind": entry.kind,
        "actor": entry.actor,
        "detail": from_json(entry.detail),
        "hash": entry.hash,
    }
