"""How channels fare, what did not arrive, and who may talk there."""

from typing import Literal

from typing_extensions import TypedDict

from gateway.domain.channels import ChannelState, PairingState, TransportKind
from gateway.domain.outbox import DeliveryState
from gateway.web.published.values import Time


class ChannelProgress(TypedDict):
    last_at: Time | None
    count: int
    failing_since: Time | None
    why: str | None


class Channel(TypedDict):
    """`refused` counts by reason; `pending` answers are not sent yet; `dead` ones are letters, as are
    `unread` messages that came in."""

    name: str
    plugin: str
    account: str
    transport: TransportKind | None
    state: ChannelState
    why: str | None
    receiving: ChannelProgress
    sending: ChannelProgress
    refused: dict[str, int]
    pending: int
    dead: int
    unread: int


class ChannelList(TypedDict):
    channels: list[Channel]


class DeadLetter(TypedDict):
    """An answer that did not arrive; `arrived` characters of it did."""

    id: str
    place: int
    channel: str
    account: str
    peer: str
    state: DeliveryState
    why: str | None
    attempts: int
    text: str
    arrived: int
    run_id: str | None
    at: Time


class UnreadMessage(TypedDict):
    """What a platform sent and could not be taken; `why` is null where nobody wrote it down."""

    id: str
    channel: str
    account: str
    why: str | None
    text: str
    at: Time


class LetterCounts(TypedDict):
    """All there are, of the channel that was asked for."""

    outgoing: int
    incoming: int


class DeadLetterPage(TypedDict):
    letters: list[DeadLetter]
    more: bool
    unread: list[UnreadMessage]
    counts: LetterCounts


class LetterSettled(TypedDict):
    id: str
    state: Literal["pending", "taken", "dropped"]


class Paired(TypedDict):
    """One person on one channel; `expires_at` is the code's, while it waits."""

    channel: str
    account: str
    person: str
    name: str | None
    state: PairingState
    owner: bool
    asked_at: Time
    expires_at: Time | None


class PairingList(TypedDict):
    pairings: list[Paired]


class PairingRevoked(TypedDict):
    channel: str
    account: str
    person: str
    state: Literal["revoked", "unblocked"]
