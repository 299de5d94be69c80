"""Identifiers as types, the session key with its exact text form, secrets, and moments as numbers."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from secrets import token_hex
from typing import Literal, NamedTuple, NewType
from urllib.parse import unquote_to_bytes

from gateway.domain.errors import BadSessionKey

# Here, because a worker of the sandbox begins a quarter sooner if it imports nothing else of plugins.
PluginKind = Literal["tool", "channel"]
AgentId = NewType("AgentId", str)
MessageId = NewType("MessageId", str)
RunId = NewType("RunId", str)
NodeId = NewType("NodeId", str)

_UNSAFE = re.compile("[%:\x00-\x1f\x7f-\x9f]")


@lru_cache(maxsize=8192)  # every message asks for the names of a few
def encode_part(part: str) -> str:
    """One part of a key as text: `%`, `:` and control characters become percent escapes."""
    return _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), part)


def decode_part(text: str) -> str:
    """The exact inverse of `encode_part`; raises BadSessionKey for text it never makes."""
    try:
        part = unquote_to_bytes(text).decode()
    except UnicodeError as error:
        raise BadSessionKey(text) from error
    if encode_part(part) != text:
        raise BadSessionKey(text)
    return part


class SessionKey(NamedTuple):
    """Whose conversation with which agent; text only at the edge, as `str(key)`.

    A tuple, because it is the key of many dictionaries: it is hashed and compared in C.
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
        """Reads the text form; raises BadSessionKey for anything that `str` does not make."""
        parts = text.split(":")
        if len(parts) != 4:
            raise BadSessionKey(text)
        agent, channel, account, peer = (decode_part(part) for part in parts)
        return cls(AgentId(agent), channel, account, peer)


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Prints as `***` everywhere, so that no log, error or dump can carry it."""

    value: str

    def reveal(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__


_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The place of a run in a trace, as W3C's `traceparent` names it. `parent_id` is empty where the trace
    begins with it."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    is_sampled: bool = True

    def child(self, name: str) -> str:
        """The id of a span below: the same for the same name."""
        return blake2b(f"{self.span_id} {name}".encode(), digest_size=8).hexdigest()

    def header(self, name: str) -> str:
        """What a server is told that is asked in the span of that name."""
        return f"00-{self.trace_id}-{self.child(name)}-{'01' if self.is_sampled else '00'}"


def trace_below(traceparent: str | None) -> TraceContext:
    """A new span below the one that is named, or at the beginning of a trace of its own."""
    span_id = token_hex(8)
    found = _TRACEPARENT.fullmatch((traceparent or "").strip())
    if found is None or found[1] == "ff" or not int(found[2], 16) or not int(found[3], 16):
        return TraceContext(token_hex(16), span_id)
    return TraceContext(found[2], span_id, found[3], bool(int(found[4], 16) & 1))


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def to_micros(at: datetime) -> int:
    """Microseconds since 1970."""
    return (at - EPOCH) // MICROSECOND


def to_time(micros: int) -> datetime:
    """Raises OverflowError for what no calendar holds."""
    return EPOCH + timedelta(microseconds=micros)
