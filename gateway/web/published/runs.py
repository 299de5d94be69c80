"""Runs: how one is begun and followed, and what is told of one afterwards."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from gateway.domain.agents import MatchedBy
from gateway.domain.inbox import EntryState
from gateway.memory.context import PartKind
from gateway.web.published.values import Time


class Sent(TypedDict):
    """A message that is durable; `duplicate`: it was before."""

    message_id: str
    run_id: str
    session_key: str
    agent_id: str
    matched_by: MatchedBy
    duplicate: bool


class Aborted(TypedDict):
    """`aborted`: it was still at work."""

    run_id: str
    aborted: bool


class Resumed(TypedDict):
    """`live`: more events will come."""

    run_id: str
    live: bool


class Verdict(TypedDict):
    """What was decided about a run."""

    kind: str
    turn: int
    reason: NotRequired[str]
    message: NotRequired[str]


class RunTimings(TypedDict):
    accepted_at: Time
    started_at: NotRequired[Time | None]
    queued_s: NotRequired[float]


class RunInspected(TypedDict):
    """What is optional is there once a turn has begun."""

    run_id: str
    session_key: str
    agent_id: str
    state: EntryState | Literal["ended"]
    turn: int
    tokens_used: int
    iteration_percent: float
    token_percent: float
    elapsed_s: float
    recent_actions: list[str]
    verdicts: list[Verdict]
    termination_reason: str | None
    tree: str | None
    decision: str | None
    config: dict[str, float]
    timings: RunTimings
    attempt: NotRequired[int]
    events: NotRequired[int]
    warned: NotRequired[list[str]]
    provider: NotRequired[str | None]
    model: NotRequired[str | None]
    merged_into: NotRequired[str]


class ContextItem(TypedDict):
    id: str
    tokens: int
    why: str


class ContextPart(TypedDict):
    kind: PartKind
    tokens: int
    items: list[ContextItem]


class ContextExplained(TypedDict):
    """The parts add up to the total."""

    run_id: str
    model: str | None
    max_context_tokens: int
    total_tokens: int
    parts: list[ContextPart]


class Divergence(TypedDict):
    """Where a run leaves its journal first, and what stands there in each."""

    at: str
    recorded: object
    now: object
    seq: int | None


class RunReplay(TypedDict):
    """`response` and `tokens_used` are those of another model that was asked."""

    run_id: str
    identical: bool
    divergence: Divergence | None
    chunks: int
    calls: int
    response: NotRequired[str | None]
    tokens_used: NotRequired[int | None]
