"""A message as a front door hands it in, before anything is decided about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.domain.bindings import Address
from gateway.domain.channels import ChannelMemo
from gateway.domain.ids import NodeId


@dataclass(frozen=True, slots=True)
class Inbound:
    """`key` is the platform's message id or the client's idempotency key. `fingerprint` is what has
    to be equal for a second message under that key to be the same message. `whence` is the JSON of a
    Whence, where the answer leaves by a channel; `memos` are in the commit of the accept."""

    address: Address
    content: str
    key: str | None = None
    fingerprint: str = ""
    requested_agent: str | None = None
    context_id: NodeId | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    whence: str | None = None
    memos: tuple[ChannelMemo, ...] = ()
