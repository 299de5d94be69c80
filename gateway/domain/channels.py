"""Channels: configuration, pairings, memos, webhook calls, and status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal, Protocol

from gateway.domain.plugins import PluginSecret
from gateway.domain.settings import Setting, setting

TransportKind = Literal["webhook", "poll", "socket"]
PairingState = Literal["asked", "paired", "denied"]
MOST_WAITING = 3  # pairing requests of an account


@dataclass(frozen=True, slots=True)
class Pairing:
    """A person on a channel and the state of their pairing. The code is kept only as a digest."""

    channel: str
    account: str
    person: str
    name: str | None
    state: PairingState
    code_digest: str
    asked_at: datetime
    expires_at: datetime
    is_owner: bool = False  # may answer `/pair` in the chat


class Approvals(Protocol):
    """Decisions about pairings by an operator, or by an owner in the chat; `by` is written to the
    audit. Raises StoreUnavailable."""

    async def list_pairings(self, *, channel: str | None = None, limit: int) -> Sequence[Pairing]:
        """Lists pairings, without requests whose code has expired."""

    async def approve(self, code: str, *, by: str, is_owner: bool = False) -> Pairing:
        """Pairs the person with that code. Raises NotFound, and Busy after too many wrong codes."""

    async def deny(self, code: str, *, by: str) -> Pairing:
        """Denies the person, who gets no more answers. Raises as `approve`."""

    async def turn_away(
        self, channel: str, account: str, person: str, *, by: str
    ) -> Pairing | None:
        """Removes a pairing (returns None) or denies a waiting person; a denied person stays
        denied. Raises NotFound."""

    async def block(self, channel: str, account: str, person: str, *, by: str) -> Pairing:
        """Denies a person all answers in direct chats, known or not, under any policy."""

    async def unblock(self, channel: str, account: str, person: str, *, by: str) -> None:
        """Unblocks a person, who may then ask again. Raises NotFound if the person is not
        blocked."""

    async def revoke(self, channel: str, account: str, person: str, *, by: str) -> None:
        """Removes a pairing. Raises NotFound, and Conflict if the person is blocked."""


DmPolicy = Literal["pairing", "allowlist", "open", "disabled"]
OnUnknown = Literal["resend", "hold"]
ChannelState = Literal["starting", "connected", "failing", "refused", "stopped"]
Direction = Literal["in", "out"]
DIRECTIONS: tuple[Direction, ...] = ("in", "out")


@dataclass(frozen=True, slots=True)
class GroupRule:
    """The rule for a listed room; an empty `allow_from` admits all members."""

    allow_from: frozenset[str] = setting(frozenset(), "Ids of people who may talk. Empty: all.")
    require_mention: bool | None = setting(None, "Absent: the setting of the channel.")


@dataclass(frozen=True, slots=True)
class ChannelDef:
    """One configured channel. `groups` is keyed by the room's id; `*` is any room."""

    name: str
    plugin: Annotated[
        str, Setting("Its adapter: the name of one of [[plugins]].", form="plugin", refers="plugin")
    ]
    account: str = setting("default", "Name of the account in bindings and sessions.")
    transport: TransportKind | None = setting(None, "Absent: the adapter's first transport.")
    secrets: tuple[PluginSecret, ...] = setting(
        (),
        "Secrets that the adapter names; the host inserts them, the adapter never sees them.",
        names="secret",
        by_name=True,
    )
    config: Mapping[str, object] = setting({}, "Passed to the adapter unchanged.", names="any")
    dm_policy: DmPolicy = setting(
        "pairing", "Who may write directly: paired people, only allow_from, all, none."
    )
    allow_from: frozenset[str] = setting(frozenset(), "Ids of people who need no pairing.")
    groups: Mapping[str, GroupRule] = setting({}, "Rooms by id, * for any; others are closed.")
    require_mention: bool = setting(True, "In rooms, answer only when mentioned.")
    on_unknown_send: OnUnknown = setting("resend", "If a message may have arrived: resend or hold.")
    max_age_s: float = setting(86_400.0, "Older messages (seconds) are not answered.", 60, 604_800)


@dataclass(frozen=True, slots=True)
class ChannelMemo:
    """State that a channel passes to its next call (`adapter`) or connection (`socket`)."""

    channel: str
    account: str
    slot: Literal["adapter", "socket"]
    text: str


# ---------------------------------------------------------------------------------- webhooks
@dataclass(frozen=True, slots=True)
class WebhookCall:
    """A call as it arrived, undecoded. Header names are in lower case; repeated headers are
    kept."""

    channel: str
    method: str
    path: str  # after /webhooks/CHANNEL, undecoded
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class WebhookAnswer:
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class Webhooks(Protocol):
    """Receives every call under /webhooks, before the caller is authenticated."""

    def largest_body(self, channel: str) -> int | None:
        """Returns the most bytes that a body may have, or None for an unknown address."""

    async def receive(self, call: WebhookCall) -> WebhookAnswer:
        """Answers after the commit and before any model call. Raises nothing."""


# ------------------------------------------------------------------------------------ status
@dataclass(frozen=True, slots=True)
class FlowProgress:
    """One direction of a channel: when it last worked, and since when and why it fails."""

    last_at: datetime | None = None
    count: int = 0
    failing_since: datetime | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """The status of a channel, which is connected only while both directions work."""

    name: str
    plugin: str
    account: str
    transport: TransportKind | None
    state: ChannelState
    why: str | None = None
    receiving: FlowProgress = FlowProgress()
    sending: FlowProgress = FlowProgress()
    refused: Mapping[str, int] = field(default_factory=dict)  # by reason, since the start

    def is_up(self, direction: Direction) -> bool:
        way = self.receiving if direction == "in" else self.sending
        return self.state in {"connected", "failing"} and way.failing_since is None
