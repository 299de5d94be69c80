"""Identifiers as types, the session key with its exact text form, secrets, and moments as numbers."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, NewType
from urllib.parse import unquote_to_bytes

from gateway.domain.errors import BadSessionKey

AgentId = NewType("AgentId", str)
MessageId = NewType("MessageId", str)
RunId = NewType("RunId", str)
NodeId = NewType("NodeId", str)

_UNSAFE = re.compile("[%:\x00-\x1f\x7f-\x9f]")


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


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def to_micros(at: datetime) -> int:
    """Microseconds since 1970."""
    return (at - EPOCH) // MICROSECOND


def to_time(micros: int) -> datetime:
    """Raises OverflowError for what no calendar holds."""
    return EPOCH + timedelta(microseconds=micros)
