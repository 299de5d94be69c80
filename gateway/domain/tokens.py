"""Tokens that are created while the gateway runs: their form, state, scopes and budget."""

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal
from zlib import crc32

from gateway.domain.budgets import TokenBudget

PREFIX, LENGTH, CHECK = "exo_", 32, 6  # characters; a double click selects the whole token
HINT = 8  # characters that lists show
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

TokenState = Literal["active", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A token, of which only a digest of the secret is stored. `scopes` includes `agent:ID` entries
    if the token may use only some agents."""

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
    """Makes a token of 32 random bytes: 190 bits of them, and a checksum."""
    body = PREFIX + _base62(int.from_bytes(random), LENGTH)
    return body + _checksum(body)


def is_created(secret: str) -> bool:
    """True if the text has the form of a created token; the checksum is not verified."""
    return secret.startswith(PREFIX) and len(secret) == len(PREFIX) + LENGTH + CHECK


def is_intact(secret: str) -> bool:
    """True if the checksum of a created token is correct."""
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
