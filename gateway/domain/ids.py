"""Identifiers, the session key and its text form, secrets, trace contexts, and times as numbers."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from secrets import token_hex
from typing import Literal, NamedTuple, NewType
from urllib.parse import unquote_to_bytes

from gateway.domain.errors import BadSessionKey

# Declared here, because a sandbox worker starts 25 % faster without importing domain/plugins.py.
PluginKind = Literal["tool", "channel"]
AgentId = NewType("AgentId", str)
MessageId = NewType("MessageId", str)
RunId = NewType("RunId", str)
NodeId = NewType("NodeId", str)

_UNSAFE = re.compile("[%:\x00-\x1f\x7f-\x9f]")


@lru_cache(maxsize=8192)  # each message encodes the same few names
def encode_part(part: str) -> str:
    """Encodes one part of a key: `%`, `:` and control characters become percent escapes."""
    return _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), part)


def decode_part(text: str) -> str:
    """Inverts `encode_part`. Raises BadSessionKey for text that `encode_part` never returns."""
    try:
        part = unquote_to_bytes(text).decode()
    except UnicodeError as error:
        raise BadSessionKey(text) from error
    if encode_part(part) != text:
        raise BadSessionKey(text)
    return part


class SessionKey(NamedTuple):
    """The key of a conversation: agent, channel, account and peer. `str(key)` is its text form.

    The key is a tuple because it is the key of many dictionaries: tuples are hashed and compared in
    C.
    """

    agent: AgentId
    channel: str
    account: str
    peer: str = "main"

    @lru_cache(maxsize=8192)  # noqa: B019  # bounded, and keys are small
    def __str__(self) -> str:
        if _UNSAFE.search("".join(self)) is None:
            return ":".join(self)
        return ":".join(map(encode_part, self))

    @classmethod
    def parse(cls, text: str) -> "SessionKey":
        """Parses the text form. Raises BadSessionKey for text that `str` never returns."""
        parts = text.split(":")
        if len(parts) != 4:
            raise BadSessionKey(text)
        agent, channel, account, peer = (decode_part(part) for part in parts)
        return cls(AgentId(agent), channel, account, peer)


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A text that prints as `***`, so that logs, errors and dumps never contain it."""

    value: str

    def reveal(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__


_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The place of a run in a trace, as in W3C's `traceparent`. `parent_id` is empty if the run
    begins the trace."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    is_sampled: bool = True

    def child(self, name: str) -> str:
        """Returns the id of a child span; the same name gives the same id."""
        return blake2b(f"{self.span_id} {name}".encode(), digest_size=8).hexdigest()

    def header(self, name: str) -> str:
        """Returns the `traceparent` header for a request in the child span of that name."""
        return f"00-{self.trace_id}-{self.child(name)}-{'01' if self.is_sampled else '00'}"


def trace_below(traceparent: str | None) -> TraceContext:
    """Returns a new span below the given one, or a new trace if there is no valid one."""
    span_id = token_hex(8)
    found = _TRACEPARENT.fullmatch((traceparent or "").strip())
    if found is None or found[1] == "ff" or not int(found[2], 16) or not int(found[3], 16):
        return TraceContext(token_hex(16), span_id)
    return TraceContext(found[2], span_id, found[3], bool(int(found[4], 16) & 1))


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def to_micros(at: datetime) -> int:
    """Returns microseconds since 1970."""
    return (at - EPOCH) // MICROSECOND


def to_time(micros: int) -> datetime:
    """Inverts `to_micros`. Raises OverflowError for a time beyond the calendar."""
    return EPOCH + timedelta(microseconds=micros)
