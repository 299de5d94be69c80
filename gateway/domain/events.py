"""Events, the rules about them, the notices that rules create, and the audit."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Annotated, Literal, get_args

from gateway.domain.ids import RunId, SessionKey
from gateway.domain.settings import Setting, setting

Severity = Literal["debug", "info", "warning", "error", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # least severe first


@dataclass(frozen=True, slots=True)
class EventKind:
    """A type of event with its severity and, if it has one, its name as a hook."""

    type: str
    severity: Severity
    hook: str | None = None

    @property
    def constant(self) -> str:
        """The type as a constant name."""
        return self.type.upper().replace(".", "_")


KINDS: tuple[EventKind, ...] = (
    EventKind("query.start", "info", "on_query_start"),
    EventKind("session.resumed", "info"),
    EventKind("session.end", "info", "on_session_end"),
    EventKind("agent.turn.started", "debug", "on_turn_start"),
    EventKind("agent.turn.ended", "debug", "on_turn_end"),
    EventKind("agent.loop.detected", "warning"),
    EventKind("agent.no_progress", "warning"),
    EventKind("tool.call.started", "debug", "on_tool_call"),
    EventKind("tool.call.success", "info", "on_tool_complete"),
    EventKind("tool.call.failure", "error", "on_tool_failure"),
    EventKind("budget.iteration.warning", "warning"),
    EventKind("budget.iteration.exceeded", "error"),
    EventKind("budget.token.warning", "warning"),
    EventKind("budget.token.exceeded", "error"),
    EventKind("context.approaching_limit", "warning"),
    EventKind("model.failed", "error"),
    EventKind("delivery.failed", "error"),
    EventKind("delivery.unknown", "warning"),
    EventKind("rule.error", "error"),
    EventKind("bus.dropped", "warning"),
    EventKind("tree.reloaded", "info"),
    EventKind("tree.refused", "error"),
    EventKind("pair.asked", "info"),
    EventKind("pair.approved", "info"),
    EventKind("channel.connected", "info"),
    EventKind("channel.failing", "error"),
    EventKind("channel.refused", "error"),
    EventKind("mcp.connected", "info"),
    EventKind("mcp.disconnected", "warning"),
    EventKind("mcp.tool.changed", "warning"),
)

_BY_NAME: Mapping[str, EventKind] = {
    name: kind for kind in KINDS for name in (kind.type, kind.constant, kind.hook) if name
}
kind_named = _BY_NAME.get  # by its type, constant name or hook name


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. Types without an EventKind come from rules and trees."""

    type: str
    severity: Severity
    source: str  # the sender: agent, tools, rule:ID, tree:NAME
    at: datetime
    session_key: SessionKey | None
    run_id: RunId | None
    payload: Mapping[str, object]


OncePer = Literal["run", "session", "never"]
ActionKind = Literal[
    "notify", "log", "set_state", "emit", "interrupt", "set_model", "add_tool", "remove_tool"
]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rules for merging a rule's notices and for dropping equal ones."""

    window_ms: int = setting(1_000, "Time within which equal notices are merged.", 0, 3_600_000)
    max: int = setting(3, "Notices that are merged, at most.", 1, 1_000)
    dedupe: str = setting("", "Paths, with colons between, that make notices the same.", form="any")
    dedupe_ms: int = setting(10_000, "Time before the same event counts again.", 1, 86_400_000)


@dataclass(frozen=True, slots=True)
class Action:
    kind: ActionKind
    value: object  # a template, a name, or the table of set_state
    options: Mapping[str, object] = field(default_factory=dict)  # the options that are set


@dataclass(frozen=True, slots=True)
class RuleDef:
    """A rule. `is_core`: it applies to every agent and cannot be switched off."""

    id: Annotated[str, Setting("Its name: letters, digits and hyphens.", form="id")]
    on: Annotated[tuple[str, ...], Setting("Types of events; * for any part.")]
    do: Annotated[tuple[Action, ...], Setting("What is done, in order.")]
    description: str = setting("", "What it is for.", form="any")
    is_core: bool = setting(False, "Whether it applies to every agent, always.", key="core")
    is_enabled: bool = setting(True, "Whether it is in force.", key="enabled")
    priority: int = setting(0, "Rules with a higher priority run first.", -1_000_000, 1_000_000)
    min_severity: Severity = setting("debug", "The lowest severity that counts.")
    when: str | None = setting(None, "An expression that must be true.")
    once_per: OncePer = setting("never", "How often it may fire: once a run, a session, or always.")
    batch: Batch = setting(Batch(), "Limits for repeated events.")
    source: str = ""  # file:line

    @property
    def keeps_state(self) -> bool:
        """True if the rule stores state between the runs of a session."""
        return self.once_per == "session" or any(one.kind == "set_state" for one in self.do)


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """A mistake in a rule. `path` leads to it; `column` counts from 0 in the text at that path."""

    path: tuple[str | int, ...]
    message: str
    fix: str
    column: int | None = None


@dataclass(frozen=True, slots=True)
class RefusedRules:
    """A file whose rules are not in force, and the reason."""

    file: str
    why: str


Priority = Literal["critical", "high", "normal", "low"]
Point = Literal["immediate", "turn_start", "after_tool", "deferred", "cross_session"]
To = Literal["both", "model", "client"]

OPENING, CLOSING = "<system-notice>", "</system-notice>"  # around notices to a model


@dataclass(frozen=True, slots=True)
class Batching:
    """Up to `most` notices of one source within `window_s` are merged. A second notice with the
    same `dedupe_key` within `dedupe_s` is dropped."""

    window_s: float = 1.0
    most: int = 3
    dedupe_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to the model or the client about a run.

    `immediate` notices are injected at the next boundary between steps, `deferred` ones once
    `after_tool`, `after_turns` and `when` are met, `cross_session` ones in another session of the
    person.
    """

    content: str
    priority: Priority = "normal"
    inject_at: Point = "turn_start"
    to: To = "both"
    source: str = "rule"
    dedupe_key: str | None = None
    expires_at: datetime | None = None
    after_tool: str | None = None
    after_turns: int = 0
    when: str | None = None  # an expression over the variables of rules
    id: str = ""
    data: Mapping[str, object] = field(default_factory=dict)  # payload of the event, for merging
    batching: Batching = Batching()
    batch: int = field(default=0, compare=False)  # set by the queue; 0: not in a batch


AuditKind = Literal[
    "config.applied",  # at a start, with all settings about permissions or budgets
    "config.changed",  # since the previous start: listeners, agents, providers
    "token.changed",
    "token.created",  # while the gateway runs
    "token.revoked",
    "grant.changed",  # of a plugin
    "budget.changed",
    "budget.refused",  # a model call was refused
    "budget.raised",  # for one day
    "budget.resynced",  # usage of days that a wrong clock was ahead no longer counts
    "plugin.refused",  # a plugin was not loaded
    "login.refused",  # a wrong token
    "mcp.tool.changed",  # a tool differs from its first version
    "webhook.refused",  # a call failed verification
    "memory.erased",  # facts were erased
    "pair.approved",  # a person may talk in direct chats
    "pair.denied",  # a person may not talk, or no longer may
    "pair.blocked",  # a person may not talk under any policy
    "pair.unblocked",
    "backup.created",
    "backup.restored",  # earlier entries come from the archive
]
MOST_APART = 1000  # different events a day with a count of their own


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An event for the audit trail. `actor` is `config`, a session, or a network address."""

    at: datetime
    kind: AuditKind
    actor: str
    detail: Mapping[str, object]  # plain data without secrets


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A stored audit event; `detail` is JSON, and `hash` covers the entry before it."""

    seq: int
    at: datetime
    kind: str
    actor: str
    detail: str
    hash: str

    def follows(self, before: "AuditEntry | None") -> bool:
        """True if the entry is intact and was written directly after `before`."""
        seq, last = (before.seq, before.hash) if before else (0, "")
        return self.seq == seq + 1 and self.hash == _hash(self, last)


class Recurrences:
    """Limits audit entries of events that a caller can cause at will, so that they cannot fill the
    disk: the 1st, 10th, 100th … occurrence of a day is worth an entry."""

    def __init__(self) -> None:
        self._day: date | None = None
        self._times: Counter[str] = Counter()

    def worth(self, what: str, at: datetime) -> int:
        """Counts an occurrence; returns the count if it is worth an entry, else 0."""
        day = at.astimezone(UTC).date()
        if day != self._day:
            self._day = day
            self._times.clear()
        if what not in self._times and len(self._times) >= MOST_APART:
            what = ""
        self._times[what] += 1
        times = self._times[what]
        return times if times == 10 ** (len(str(times)) - 1) else 0


def entry_after(before: AuditEntry | None, event: AuditEvent) -> AuditEntry:
    """Returns the entry for an event, chained to the entry before it."""
    seq, last = (before.seq, before.hash) if before else (0, "")
    detail = json.dumps(event.detail, sort_keys=True, separators=(",", ":"))
    bare = AuditEntry(seq + 1, event.at, event.kind, event.actor, detail, "")
    return AuditEntry(bare.seq, bare.at, bare.kind, bare.actor, detail, _hash(bare, last))


def _hash(entry: AuditEntry, last: str) -> str:
    at = entry.at.astimezone(UTC).isoformat(timespec="microseconds")
    whole = json.dumps([last, entry.seq, at, entry.kind, entry.actor, entry.detail])
    return sha256(whole.encode()).hexdigest()
