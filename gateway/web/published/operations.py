"""What one address does for whoever asks: its operation, and the route that is made of it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.routing import Route

from gateway.web.published.errors import ErrorAnswer

JSON = "application/json"
STREAM = "text/event-stream"
ANYTHING = "*/*"


@dataclass(frozen=True, slots=True)
class Header:
    """Of a request or of an answer; `pattern` says what it may hold."""

    name: str
    says: str
    pattern: str | None = None
    is_sure: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """`type` is what the body holds, or the data of each event of a stream; None: it is text, or
    whatever `media` has. A status may have several, each in a medium of its own; 0 stands for all
    others."""

    status: int
    says: str
    type: Any = None
    media: str = JSON
    headers: tuple[Header, ...] = ()
    last: str | None = None  # the data of the event that ends a stream


@dataclass(frozen=True, slots=True)
class Operation:
    """`path` as Starlette has it. `refusals` are the statuses with which it is refused besides those
    of all operations, each told as `error`."""

    method: str
    path: str
    says: str
    answers: Sequence[Answer]
    query: type[BaseModel] | None = None
    body: Any = None
    body_media: str = JSON
    headers: tuple[Header, ...] = ()
    refusals: tuple[int, ...] = ()
    error: Any = ErrorAnswer
    is_guarded: bool = True


class Described(Route):
    """No route of ours is made without saying what it does."""

    def __init__(self, operation: Operation, endpoint: Callable[..., Awaitable[object]]) -> None:
        super().__init__(operation.path, endpoint, methods=[operation.method])
        self.operation = operation


WAIT = Header("Retry-After", "Seconds.")
RUN = Header("X-Exogate-Run", "The id of the run.", is_sure=True)
# Without control characters, and without blanks at its ends, which belong to no header's value.
WORD = r"^[^\x00-\x20\x7f]([^\x00-\x08\x0a-\x1f\x7f]{0,254}[^\x00-\x20\x7f])?$"
IDEMPOTENCY_KEY = Header(
    "Idempotency-Key", "The same request under the same key gets the stored answer.", WORD
)
