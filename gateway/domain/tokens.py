"""Tokens that are created while the gateway runs: how they look, what they may, how long and how much."""

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal
from zlib import crc32

from gateway.domain.budgets import TokenBudget

PREFIX, LENGTH, CHECK = "exo_", 32, 6  # characters: all of it is one double click
HINT = 8  # characters that a list shows
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

TokenState = Literal["active", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A token is known by the digest of its secret alone. `scopes` has `agent:ID` among them where it
    reaches some agents only."""

    digest: bytes
    name: str
    hint: str
    scopes: frozenset[str]
    created_at: datetime
    created_by: str
    budget: TokenBudget | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    def state(self, now: datetime) -> TokenState:
        if self.revoked_at is not None:
            return "revoked"
        return "active" if self.expires_at is None or now < self.expires_at else "expired"


def new_secret(random: bytes) -> str:
    """A token of 32 random bytes: 190 bits of them, and a checksum."""
    body = PREFIX + _base62(int.from_bytes(random), LENGTH)
    return body + _checksum(body)


def is_created(secret: str) -> bool:
    """Whether it looks like a token that a gateway created, also one that is mistyped."""
    return secret.startswith(PREFIX) and len(secret) == len(PREFIX) + LENGTH + CHECK


def is_intact(secret: str) -> bool:
    """Whether the checksum of such a token is right."""
    return secret.isascii() and secret[-CHECK:] == _checksum(secret[:-CHECK])


def digest_of(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def is_token_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _checksum(body: str) -> str:
    return _base62(crc32(body.encode("ascii")), CHECK)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, rest = divmod(number, 62)
        digits.append(_DIGITS[rest])
    return "".join(reversed(digits))
