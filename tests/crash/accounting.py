"""What became of every message: attempted, acknowledged, answered, lost, told or done twice. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

# Of a call that was not made: if the gateway is killed before it has written down what was said
# instead, the call is made after all.
SKIPPED = "Skipped due to queued user message."
TERMINAL = frozenset({"done", "error"})
Event = Mapping[str, Any]


@dataclass
class Record:
    """One message as its client knows it. Times are numbers of a common count."""

    name: str
    peer: str
    sent_at: int | None = None  # its first whole frame
    acked_at: int | None = None
    recovered: bool = False  # accepted, although the acknowledgement was lost
    frames: int = 0  # whole ones
    half_sent: bool = False
    ids: set[tuple[str, str]] = field(default_factory=set)
    ends: list[Event] = field(default_factory=list)
    last_seq: int = 0
    text: str = ""
    tools: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def run_id(self) -> str | None:
        return next(iter(self.ids))[1] if self.ids else None

    def acknowledge(self, answer: Mapping[str, Any], now: int) -> None:
        if self.acked_at is None:
            self.acked_at, self.recovered = now, answer["duplicate"]
            if answer["duplicate"] and self.frames < 2:
                self.problems.append("half a frame became a message")
        self.ids.add((answer["message_id"], answer["run_id"]))

    def hear(self, event: Event) -> None:
        """An event as it came, live or resumed."""
        again = event["type"] == "system" and "discard_from_seq" in event.get("metadata", {})
        if event["seq"] != self.last_seq + 1 and not (again and event["seq"] > self.last_seq):
            self.problems.append(f"seq {event['seq']} came after {self.last_seq}")
        self.last_seq = max(self.last_seq, event["seq"])
        if again or event["type"] == "tool_result":
            self.text = ""  # what counts as the answer is what is said after the last tool
        if event["type"] == "content":
            self.text += event["content"]
        if event["type"] == "tool_result" and event["tool_call"]["result"] != SKIPPED:
            call = event["tool_call"]
            self.tools.setdefault(call["id"], []).append((call["result"], call["duration_ms"]))
        if event["type"] in TERMINAL:
            self.ends.append(event)
            is_whole = event["type"] == "done" and not event.get("partial")
            if is_whole and event["response"] != self.text:
                self.problems.append("what was heard is not the answer that is kept")


@dataclass(frozen=True)
class Audit:
    """What the gateway says of one message after the last restart."""

    log: Sequence[Event]
    ids: tuple[str, str]  # what a copy of it is answered with


@dataclass(frozen=True)
class Account:
    """Jepsen's total queue, and what else was promised."""

    attempted: int
    acknowledged: int
    answered: int
    merged: int  # of these: together with another
    superseded: int
    recovered: int
    lost: Sequence[str]
    duplicated: Sequence[str]
    unexpected: Sequence[str]
    problems: Sequence[str]
    tools_told_again: int  # finished tool calls that a later attempt told again
    tools_run_again: Sequence[str]

    @property
    def is_valid(self) -> bool:
        bad = (self.lost, self.duplicated, self.unexpected, self.problems, self.tools_run_again)
        return not any(bad)

    def table(self) -> str:
        rows = {
            "attempted": self.attempted,
            "acknowledged": self.acknowledged,
            "answered": self.answered,
            "of these, merged into another": self.merged,
            "superseded by a newer one": self.superseded,
            "recovered (accepted, acknowledgement lost)": self.recovered,
            "lost": len(self.lost),
            "duplicated": len(self.duplicated),
            "unexpected": len(self.unexpected),
            "broken promises (order, gaps, texts)": len(self.problems),
            "finished tool calls told again": self.tools_told_again,
            "finished tool calls run again": len(self.tools_run_again),
        }
        lines = [f"  {name:44}{value:>8}" for name, value in rows.items()]
        named = (*self.lost, *self.duplicated, *self.unexpected, *self.problems)
        told = [f"    {what}" for what in (*named, *self.tools_run_again)[:40]]
        return "\n".join([*lines, *told])


def account(
    records: Sequence[Record],
    audits: Mapping[str, Audit],
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Account:
    """`audits` by the message's name, `histories` by peer, oldest message first."""
    tried = [one for one in records if one.sent_at is not None or one.half_sent]
    acknowledged = [one for one in tried if one.ids]
    kept = Counter(
        message["content"]
        for history in histories.values()
        for message in history
        if message["role"] == "user"
    )
    ends = {run: event for run, event in map(_only_end, audits.values()) if event is not None}
    answered = [one for one in tried if _is_answered(one, ends)]
    superseded = [one for one in tried if _reason(one, ends) == "superseded"]
    merged = {one.name for one in answered if _reason(one, ends) == "merged"}
    known = {one.name for one in tried}
    return Account(
        attempted=len(tried),
        acknowledged=len(acknowledged),
        answered=len(answered),
        merged=len(merged),
        superseded=len(superseded),
        recovered=sum(one.recovered for one in tried),
        lost=[
            one.name
            for one in acknowledged
            if (one not in answered and one not in superseded) or not kept[one.name]
        ],
        duplicated=[one.name for one in tried if _is_double(one, audits, kept)],
        unexpected=[name for name in kept if name not in known],
        problems=[
            *(f"{one.name}: {problem}" for one in tried for problem in one.problems),
            *(
                problem
                for peer, history in histories.items()
                for problem in _shape(peer, history, merged)
            ),
            *(problem for problem in _order(tried, histories)),
            *(
                f"{one.name}: nothing came after it"
                for one in superseded
                if _is_last(one, histories)
            ),
        ],
        tools_told_again=sum(len(told) > 1 for one in tried for told in one.tools.values()),
        tools_run_again=[
            f"{one.name}: {call}"
            for one in tried
            for call, told in one.tools.items()
            if len(set(told)) > 1
        ],
    )


def _only_end(audit: Audit) -> tuple[str, Event | None]:
    ends = [event for event in audit.log if event["type"] in TERMINAL]
    return audit.ids[1], ends[0] if len(ends) == 1 else None


def _reason(record: Record, ends: Mapping[str, Event]) -> str | None:
    end = ends.get(str(record.run_id))
    return None if end is None else end.get("reason", "answered")


def _is_answered(record: Record, ends: Mapping[str, Event]) -> bool:
    """By an answer to this message; it names all that it answers, and no other."""
    end = ends.get(str(record.run_id))
    if end is not None and "merged_into" in end:
        end = ends.get(str(end["merged_into"]))
    return end is not None and record.name in str(end.get("response")).split()


def _is_last(record: Record, histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    questions = [m["content"] for m in histories.get(record.peer, ()) if m["role"] == "user"]
    return questions[-1:] == [record.name]


def _is_double(record: Record, audits: Mapping[str, Audit], kept: Counter[str]) -> bool:
    audit = audits.get(record.name)
    told = [event for event in audit.log if event["type"] in TERMINAL] if audit else []
    ends = {_end(event) for event in (*record.ends, *told)}
    ids = {*record.ids, *([audit.ids] if audit else ())}
    return len(told) > 1 or len(ends) > 1 or len(ids) > 1 or kept[record.name] > 1


def _end(event: Event) -> tuple[object, ...]:
    return event["type"], event["seq"], event.get("response"), event.get("message_id")


def _shape(peer: str, history: Sequence[Mapping[str, Any]], merged: Collection[str]) -> list[str]:
    """Every question is followed by its answer, but for those that were answered together; every
    call has one result."""
    problems: list[str] = []
    roles = [message["role"] for message in history]
    following = {
        "user": {"user", "assistant"},
        "assistant": {"user", "tool"},
        "tool": {"tool", "user", "assistant"},
    }
    for place, (role, after) in enumerate(pairwise(roles)):
        pair = {message["content"] for message in history[place : place + 2]}
        is_within = after == "user" and role != "assistant"
        if after not in following[role] or (is_within and pair.isdisjoint(merged)):
            problems.append(f"{peer}: {after} follows {role} at {place}")
    if roles[:1] not in ([], ["user"]) or roles[-1:] not in ([], ["assistant"]):
        problems.append(f"{peer}: begins or ends in the middle of an exchange")
    calls = [call["id"] for message in history for call in message["tool_calls"] or ()]
    results = [message["tool_call_id"] for message in history if message["role"] == "tool"]
    if calls != results:
        problems.append(f"{peer}: {len(calls)} tool calls, {len(results)} results")
    return problems


def _order(
    records: Sequence[Record], histories: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[str]:
    """What was acknowledged before another was sent stands before it."""
    problems: list[str] = []
    for peer, history in histories.items():
        place = {m["content"]: n for n, m in enumerate(history) if m["role"] == "user"}
        mine = [one for one in records if one.peer == peer and one.name in place]
        for one in mine:
            late = [
                other.name
                for other in mine
                if one.acked_at is not None
                and other.sent_at is not None
                and one.acked_at < other.sent_at
                and place[one.name] > place[other.name]
            ]
            problems += [f"{peer}: {name} overtook {one.name}" for name in late]
    return problems
