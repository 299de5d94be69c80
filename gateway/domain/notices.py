"""What a model, a user or both are told between the lines of a conversation; never part of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from gateway.domain.ids import RunId, SessionKey

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


class RuleStates(Protocol):
    async def of(self, key: SessionKey) -> str | None:
        """The JSON object that the session's last ended run left; None: none did."""
        ...


class NoticeBoard(Protocol):
    async def claim(
        self, person: str, session_key: SessionKey, run_id: RunId, *, now: datetime
    ) -> Sequence[Notice]:
        """What ended runs of other sessions of this agent and person posted and no other run has
        claimed, oldest first; asked again, the run gets its own again. Expired ones never come, and
        the end of the run takes away what it claimed."""
        ...
