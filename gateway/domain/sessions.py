"""A session as it is listed, and pages of its conversation."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node

SessionState = Literal["active", "closed"]


@dataclass(frozen=True, slots=True)
class SessionRecord:
    key: SessionKey
    created_at: datetime
    updated_at: datetime
    message_count: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    state: SessionState
    head: NodeId | None


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Also the wall between principals, so that no page is spent on what must not be seen: None
    means any."""

    agents: tuple[str, ...] | None = None
    channels: tuple[str, ...] | None = None
    account: str | None = None
    peer: str | None = None
    text: str | None = None  # occurs in the key
    before: datetime | None = None  # updated before
    limit: int = 50


@dataclass(frozen=True, slots=True)
class SessionPage:
    sessions: tuple[SessionRecord, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Path:
    """Nodes along the path to `head`, oldest first; `more`: older ones exist. `summary` is the newest
    one on it, however far up; it is looked for only from the path's own end."""

    nodes: tuple[Node, ...]
    head: NodeId | None
    more: bool
    summary: Node | None = None
