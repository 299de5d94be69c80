"""Events, the rules about them, the notices that rules give, and the audit."""

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
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # least first


@dataclass(frozen=True, slots=True)
class EventKind:
    """A type of event with its severity, and its name as a hook, if it has one."""

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
kind_named = _BY_NAME.get  # by its type, its constant name or its name as a hook


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. Types that no kind is listed for come from rules and trees."""

    type: str
    severity: Severity
    source: str  # the part that sends it: agent, tools, rule:ID, tree:NAME
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
    """Which of a rule's notices are told as one, and which are the same again."""

    window_ms: int = setting(1_000, "Time within which equal notices are merged.", 0, 3_600_000)
    max: int = setting(3, "Notices that are merged, at most.", 1, 1_000)
    dedupe: str = setting("", "Paths, with colons between, that make notices the same.", form="any")
    dedupe_ms: int = setting(10_000, "Time before the same event counts again.", 1, 86_400_000)


@dataclass(frozen=True, slots=True)
class Action:
    kind: ActionKind
    value: object  # a template, a name, or the table of set_state
    options: Mapping[str, object] = field(default_factory=dict)  # those that are given


@dataclass(frozen=True, slots=True)
class RuleDef:
    """`is_core`: it is there for every agent, and nobody can switch it off."""

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
        """Whether it remembers something from one run of a session to the next."""
        return self.once_per == "session" or any(one.kind == "set_state" for one in self.do)


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """What is wrong with a rule. `path` leads to it; `column` counts from 0 into a text there."""

    path: tuple[str | int, ...]
    message: str
    fix: str
    column: int | None = None


@dataclass(frozen=True, slots=True)
class RefusedRules:
    """A file whose rules are not in force, and why."""

    file: str
    why: str


Priority = Literal["critical", "high", "normal", "low"]
Point = Literal["immediate", "turn_start", "after_tool", "deferred", "cross_session"]
To = Literal["both", "model", "client"]

OPENING, CLOSING = "<system-notice>", "</system-notice>"  # around what a model is told


@dataclass(frozen=True, slots=True)
class Batching:
    """Notices of one source are told as one, up to `most` that come within `window_s`; a second one
    with the same `dedupe_key` is none within `dedupe_s`."""

    window_s: float = 1.0
    most: int = 3
    dedupe_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Notice:
    """`immediate`: at the next boundary between steps. `deferred`: when what `after_tool`,
    `after_turns` and `when` wait for has come. `cross_session`: in another session of the person."""

    content: str
    priority: Priority = "normal"
    inject_at: Point = "turn_start"
    to: To = "both"
    source: str = "rule"
    dedupe_key: str | None = None
    expires_at: datetime | None = None
    after_tool: str | None = None
    after_turns: int = 0
    when: str | None = None  # an expression over what rules see
    id: str = ""
    data: Mapping[str, object] = field(default_factory=dict)  # of the event, for a compact batch
    batching: Batching = Batching()
    batch: int = field(default=0, compare=False)  # given by the queue; 0: of none


AuditKind = Literal[
    "config.applied",  # at a start, with all that is about authority or money
    "config.changed",  # since the start before: who listens, who answers, which provider
    "token.changed",
    "token.created",  # while the gateway ran
    "token.revoked",
    "grant.changed",  # of a plugin
    "budget.changed",
    "budget.refused",  # a model was not asked
    "budget.raised",  # for one day
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
    "backup.created",
    "backup.restored",  # from then on: what stands before it is from the archive
]
MOST_APART = 1000  # things that are counted each for itself, a day


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Something that is worth an entry. `actor` is who did it: `config`, a session, or an address."""

    at: datetime
    kind: AuditKind
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


def entry_after(before: AuditEntry | None, event: AuditEvent) -> AuditEntry:
    seq, last = (before.seq, before.hash) if before else (0, "")
    detail = json.dumps(event.detail, sort_keys=True, separators=(",", ":"))
    bare = AuditEntry(seq + 1, event.at, event.kind, event.actor, detail, "")
    return AuditEntry(bare.seq, bare.at, bare.kind, bare.actor, detail, _hash(bare, last))


def _hash(entry: AuditEntry, last: str) -> str:
    at = entry.at.astimezone(UTC).isoformat(timespec="microseconds")
    whole = json.dumps([last, entry.seq, at, entry.kind, entry.actor, entry.detail])
    return sha256(whole.encode()).hexdigest()
