"""Ids that sort by the time they were made."""

import secrets
from base64 import b32hexencode

from gateway.domain.ports import Clock

TIME_BYTES = 6  # milliseconds since 1970: enough until the year 10889
RANDOM_BYTES = 10


class TimeIds:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def new(self) -> str:
        """26 characters; base32hex keeps the order of the bytes."""
        millis = int(self._clock.now().timestamp() * 1000)
        raw = millis.to_bytes(TIME_BYTES, "big") + secrets.token_bytes(RANDOM_BYTES)
        return b32hexencode(raw).rstrip(b"=").decode().lower()
