"""Where a message comes from, and the bindings that say which agent answers it."""

from dataclasses import dataclass
from typing import Literal

from gateway.domain.ids import AgentId, SessionKey, encode_part

MatchedBy = Literal["peer", "guild", "team", "account", "channel", "default", "request"]
OWN_CHANNELS = frozenset({"websocket", "api"})  # where a principal's name is the account


@dataclass(frozen=True, slots=True)
class Address:
    """Where a message was said. `sender` is the person; in a direct chat that is the peer."""

    channel: str
    account: str
    peer: str = "main"
    guild: str | None = None
    team: str | None = None
    thread: str | None = None
    sender: str | None = None
    is_foreign: bool = False  # on a platform, where other people choose what rooms are called


@dataclass(frozen=True, slots=True)
class Binding:
    """Every field that is given must match."""

    agent_id: AgentId
    channel: str | None = None
    account_id: str | None = None
    peer_id: str | None = None
    guild_id: str | None = None
    team_id: str | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """Who answers, under which session key, and which binding decided it (None: no binding)."""

    agent_id: AgentId
    session_key: SessionKey
    matched_by: MatchedBy
    binding_index: int | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a binding was not the one."""

    index: int
    why: str


def peer_of(room: str, thread: str | None = None, *, is_foreign: bool = False) -> str:
    """As it stands in a session key: `room/thread`. In a foreign one `~1` is a slash, and `~0` a
    tilde, or a room could be read as another one's thread."""
    parts: tuple[str, ...] = (room,) if thread is None else (room, thread)
    if is_foreign:
        parts = tuple(part.replace("~", "~0").replace("/", "~1") for part in parts)
    return "/".join(parts)


def person_key(key: SessionKey, sender: str | None = None) -> str:
    """Whom a conversation is with, for all that is kept of a person: in a room the sender, else the
    peer. Facts, plugin stores and notes have it in common."""
    return ":".join(map(encode_part, (key.channel, key.account, sender or key.peer)))


def speaker(channel: str, account: str, person: str) -> str:
    """Who says something: a principal by its name, whoever writes elsewhere by the place."""
    if channel in OWN_CHANNELS:
        return encode_part(account)
    return ":".join(map(encode_part, (channel, account, person)))
