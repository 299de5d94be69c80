"""The audit: what changed authority or money, each entry chained to the one before it."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Literal

DeedKind = Literal[
    "config.applied",  # at a start, with all that is about authority or money
    "config.changed",  # since the start before: who listens, who answers, which provider
    "token.changed",
    "grant.changed",  # of a plugin
    "budget.changed",
    "budget.refused",  # a model was not asked
    "budget.resynced",  # days that a clock was ahead in count no more
    "plugin.refused",  # it was not loaded
    "login.refused",  # a wrong token
    "mcp.tool.changed",  # it is not what it was when it was first seen
    "webhook.refused",  # a call that nobody could vouch for
    "memory.erased",  # facts, for good
    "pair.approved",  # a person may talk in direct chats
    "pair.denied",  # a person may not, or may no more
    "pair.blocked",  # a person may not, whatever the policy is
    "pair.unblocked",
]
MOST_APART = 1000  # things that are counted each for itself, a day


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that is worth an entry. `actor` is who did it: `config`, a session, or an address."""

    at: datetime
    kind: DeedKind
    actor: str
    detail: Mapping[str, object]  # plain data, and nothing secret


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """`detail` is JSON."""

    seq: int
    at: datetime
    kind: str
    actor: str
    detail: str
    hash: str

    def follows(self, before: "AuditEntry | None") -> bool:
        """Whether it is what was once written after that one."""
        seq, last = (before.seq, before.hash) if before else (0, "")
        return self.seq == seq + 1 and self.hash == _hash(self, last)


class Recurrences:
    """What anybody can bring about as often as they like must not fill the disk: the first time is
    worth an entry, then the 10th, the 100th, and so on, anew each day."""

    def __init__(self) -> None:
        self._day: date | None = None
        self._times: Counter[str] = Counter()

    def worth(self, what: str, at: datetime) -> int:
        """How often it happened today, if that is worth an entry; else 0."""
        day = at.astimezone(UTC).date()
        if day != self._day:
            self._day = day
            self._times.clear()
        if what not in self._times and len(self._times) >= MOST_APART:
            what = ""
        self._times[what] += 1
        times = self._times[what]
        return times if times == 10 ** (len(str(times)) - 1) else 0


def entry_after(before: AuditEntry | None, deed: Deed) -> AuditEntry:
    seq, last = (before.seq, before.hash) if before else (0, "")
    detail = json.dumps(deed.detail, sort_keys=True, separators=(",", ":"))
    bare = AuditEntry(seq + 1, deed.at, deed.kind, deed.actor, detail, "")
    return AuditEntry(bare.seq, bare.at, bare.kind, bare.actor, detail, _hash(bare, last))


def _hash(entry: AuditEntry, last: str) -> str:
    at = entry.at.astimezone(UTC).isoformat(timespec="microseconds")
    whole = json.dumps([last, entry.seq, at, entry.kind, entry.actor, entry.detail])
    return sha256(whole.encode()).hexdigest()
