"""An Http port that answers from a script, without sockets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.domain.ports import MOST_READ, HttpAnswer, HttpCall, HttpFailed


@dataclass
class ScriptedAnswer:
    """Gives its pieces one read at a time; an HttpFailed among them is raised."""

    pieces: Sequence[bytes | HttpFailed] = ()
    status: int = 200
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"content-type": "text/event-stream"}
    )
    reads: int = 0
    rest: bytes = b""
    closed: Callable[[], None] = lambda: None

    def close(self) -> None:
        self.closed()

    @property
    def is_over(self) -> bool:
        return self.reads >= len(self.pieces) and not self.rest

    async def read_some(self) -> bytes:
        if self.rest:
            return self._some(self.rest)
        if self.reads >= len(self.pieces):
            return b""
        piece = self.pieces[self.reads]
        self.reads += 1
        if isinstance(piece, HttpFailed):
            raise piece
        return self._some(piece)

    def _some(self, data: bytes) -> bytes:
        self.rest = data[MOST_READ:]
        return data[:MOST_READ]

    async def read_into(self, take: Callable[[bytes], bool]) -> bool:
        while data := await self.read_some():
            if not take(data):
                return False
        return True


class ScriptedHttp:
    """One script entry a call, the last one for ever; keeps what it was asked."""

    def __init__(self, *script: ScriptedAnswer | HttpFailed) -> None:
        self.script = list(script)
        self.calls: list[HttpCall] = []
        self.left_open = 0

    async def send(self, call: HttpCall) -> HttpAnswer:
        self.calls.append(call)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, HttpFailed):
            raise step
        step.reads, step.rest, step.closed = 0, b"", self._closed
        self.left_open += 1
        return step

    def _closed(self) -> None:
        self.left_open -= 1
