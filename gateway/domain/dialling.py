"""WebSockets that the gateway opens to platforms, and keeps."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from gateway.domain.ports import FetchGrant


@dataclass(frozen=True, slots=True)
class Dial:
    """A WebSocket that a recipe leads to: `wss://HOST` needs the grant of `https://HOST`."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 15.0  # to the open connection
    max_frame_bytes: int = 1024 * 1024


class Line(Protocol):
    """An open WebSocket of ours to a platform."""

    async def send(self, text: str) -> None:
        """`${secret:NAME}` is filled in here. Raises Denied, HttpFailed."""
        ...

    async def receive(self) -> str | None:
        """A text without anything secret in it; None once the platform has closed it. Raises
        HttpFailed for a line that broke."""
        ...

    @property
    def close_code(self) -> int | None: ...

    async def close(self, code: int) -> None: ...


class Dialler(Protocol):
    """The guarded way out, for connections that stay open."""

    def dial(self, dial: Dial, grant: FetchGrant) -> AbstractAsyncContextManager[Line]:
        """Raises Denied for what is not allowed, HttpFailed for a network that does not answer."""
        ...
