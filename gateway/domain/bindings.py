"""Where a message comes from, and the bindings that say which agent answers it."""

from dataclasses import dataclass, replace
from typing import Literal

from gateway.domain.ids import AgentId, SessionKey, encode_part

MatchedBy = Literal["peer", "guild", "team", "account", "channel", "default", "request"]
OWN_CHANNELS = frozenset({"websocket", "api"})  # where a principal's name is the account

# Among whom turns are shared out: a token, or a channel's account; and there a person.
Share = tuple[tuple[str, ...], str]


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
    is_room: bool = False  # of a channel: `peer` is a room's id, no direct chat's


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


_ROOM, _DIRECT = "room:", "direct:"


def key_peer(raw: str, *, is_room: bool) -> str:
    """The peer of a channel's session: platforms give rooms and people ids that may be alike."""
    if is_room:
        return _ROOM + raw
    return _DIRECT + raw if raw.startswith((_ROOM, _DIRECT)) else raw


def raw_peer(peer: str) -> tuple[str, bool]:
    """The exact inverse of `key_peer`: the platform's id, and whether it is a room's."""
    if peer.startswith(_ROOM):
        return peer.removeprefix(_ROOM), True
    return peer.removeprefix(_DIRECT), False


def place_in(key: SessionKey) -> tuple[str, str | None]:
    """The platform's ids of the room or direct chat, and of the thread."""
    if key.channel in OWN_CHANNELS:
        return key.peer, None
    room, is_thread, thread = peer_in(key).partition("/")
    place = [part.replace("~1", "/").replace("~0", "~") for part in (room, thread)]
    return place[0], place[1] if is_thread else None


def peer_in(key: SessionKey) -> str:
    """As the platform has it; principals name their own conversations as they like."""
    return key.peer if key.channel in OWN_CHANNELS else raw_peer(key.peer)[0]


def person_in(key: SessionKey, sender: str | None) -> str:
    """Who talks there, as the peer of a key: no person of a channel has the same one as a room."""
    if not sender or sender == key.peer or key.channel in OWN_CHANNELS:
        return sender or key.peer
    return key_peer(sender, is_room=False)


def address_in(channel: str, account: str, peer: str, *, is_raw: bool = True) -> Address:
    """Of a peer that is given by whoever asks: a channel's `room:ID` is the room with that id.
    Unless `is_raw`, any other peer stands in the key as it is given."""
    if channel in OWN_CHANNELS:
        return Address(channel, account, peer)
    raw, is_room = raw_peer(peer)
    return Address(channel, account, raw, is_foreign=is_raw or is_room, is_room=is_room)


def of_person(key: SessionKey, sender: str | None) -> str:
    """An agent and whom it talks with, for all that is kept of a person: in a room the sender, else
    the peer. Facts, plugin stores and notes have the person in common."""
    return str(
        key if not sender or sender == key.peer else replace(key, peer=person_in(key, sender))
    )


def person_key(key: SessionKey, sender: str | None = None) -> str:
    """The same person, whichever agent they talk with: `channel:account:peer`."""
    return of_person(key, sender).partition(":")[2]


def speaker(channel: str, account: str, person: str) -> str:
    """Who says something: a principal by its name, whoever writes elsewhere by the place."""
    if channel in OWN_CHANNELS:
        return encode_part(account)
    return ":".join(map(encode_part, (channel, account, person)))


def share_of(key: SessionKey, sender: str | None) -> Share:
    """A principal shares with the others. The people of a channel's account share what it gets, so
    that no channel gets more turns the more people write there."""
    if key.channel in OWN_CHANNELS:
        return (key.account,), ""
    return (key.channel, key.account), sender or key.peer
